"""Spans and metrics of packs, as OpenTelemetry's own SDK hands them to an exporter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from plans import NARROW, planned, small, turns
from scripted import Chat, Failure, Memories, call, look_up, remembered

SECRET = "hunter2"


class Switch(SimpleSpanProcessor):
    """Keeps nothing but what a test of this file does: a process has one provider, and many other tests."""

    on = False
    fails_at = ""
    """``start`` or ``end``, where the package's own spans are to fail there."""

    def on_start(self, span: ReadableSpan, parent_context: Any = None) -> None:
        self._fail("start", span)

    def on_end(self, span: ReadableSpan) -> None:
        self._fail("end", span)
        if self.on:
            super().on_end(span)

    def _fail(self, at: str, span: ReadableSpan) -> None:
        scope = span.instrumentation_scope
        if at == self.fails_at and scope is not None and scope.name == "aether_context":
            raise Failure(SECRET)


class Traces:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.switch = Switch(self._exporter)
        if not isinstance(trace.get_tracer_provider(), TracerProvider):  # one of ADK's servers may have set one
            trace.set_tracer_provider(TracerProvider())
        provider = trace.get_tracer_provider()
        assert isinstance(provider, TracerProvider)
        provider.add_span_processor(self.switch)
        delta = AggregationTemporality.DELTA
        self._reader = InMemoryMetricReader({Counter: delta, Histogram: delta})
        metrics.set_meter_provider(MeterProvider([self._reader]))

    def clear(self) -> None:
        self._exporter.clear()
        self._reader.get_metrics_data()

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def own(self) -> list[ReadableSpan]:
        return [span for span in self.all if span.instrumentation_scope.name == "aether_context"]

    @property
    def packs(self) -> list[ReadableSpan]:
        return [span for span in self.own if span.name.startswith("pack_context ")]

    def within(self, parent: ReadableSpan) -> list[ReadableSpan]:
        return [span for span in self.all if span.parent is not None and span.parent.span_id == parent.context.span_id]

    def above(self, child: ReadableSpan) -> ReadableSpan:
        return next(span for span in self.all if child.parent and span.context.span_id == child.parent.span_id)

    def metrics(self) -> list[dict[str, Any]]:
        """Every data point of the package since the last look, with its metric's name and unit."""
        found = self._reader.get_metrics_data()
        scopes = [scope for resource in (found.resource_metrics if found else ()) for scope in resource.scope_metrics]
        return [
            {"name": metric.name, "unit": metric.unit, **json.loads(point.to_json())}
            for scope in scopes
            for metric in scope.metrics
            if scope.scope.name == "aether_context"
            for point in metric.data.data_points
        ]


@pytest.fixture(scope="session")
def _traces() -> Traces:
    """Made once: workers come back to a module after others, and a provider cannot be set again."""
    return Traces()


@pytest.fixture
def traces(_traces: Traces) -> Iterator[Traces]:
    _traces.clear()
    _traces.switch.on = True
    yield _traces
    _traces.switch.on, _traces.switch.fails_at = False, ""
    _traces.clear()


def test_a_pack_is_a_span_below_the_agent(traces: Traces) -> None:
    chat = Chat(tools=[look_up], state=planned(NARROW, knowledge={"notes": ["The rate is 19 percent"]}))
    (event,) = chat.say("Find the rate")
    (pack,), (manifest,) = traces.packs, chat.manifests()
    assert (pack.name, traces.above(pack).name) == ("pack_context clerk", "invoke_agent clerk")
    assert traces.own == [pack]
    attributes = dict(pack.attributes)
    used = {layer: share.used for layer, share in manifest.allocation.items() if layer != "slack" and share.used}
    assert {"task", "memory", "system"} <= set(used)
    assert attributes == {
        "gen_ai.operation.name": "pack_context",
        "gen_ai.agent.name": "clerk",
        "gen_ai.conversation.id": "s1",
        "aether_context.model": "gemini-2.5-flash",
        "aether_context.pack.id": manifest.pack_id,
        "aether_context.pack.uri": chat.store.uri(manifest),
        "aether_context.window": manifest.window,
        "aether_context.tokens.request": manifest.request_tokens,
        **{f"aether_context.tokens.{layer}": tokens for layer, tokens in used.items()},
        "aether_context.epoch.reason": "first_call",
    }
    assert pack.status.status_code is trace.StatusCode.UNSET
    assert event.custom_metadata["aether_context"]["pack_id"] == manifest.pack_id


def test_metrics_add_up_to_the_manifests(traces: Traces) -> None:
    chat = Chat(tools=[look_up], script=[call("look_up", key="a"), "done"])
    events = chat.say("go", "and now?")
    manifests, found = (
        chat.manifests(),
        {point["name"].removeprefix("aether_context."): point for point in traces.metrics()},
    )
    assert found["pack.duration"]["count"] == found["pack.tokens"]["count"] == len(manifests) == 3
    assert found["pack.tokens"]["sum"] == sum(manifest.request_tokens for manifest in manifests)
    assert found["prefix.tokens"]["value"] == sum(manifest.prefix.shared_tokens or 0 for manifest in manifests)
    usages = [event.usage_metadata for event in events if event.usage_metadata]
    assert found["cache.tokens"]["value"] == sum(usage.cached_content_token_count for usage in usages) > 0
    labels = {"gen_ai.agent.name": "clerk", "aether_context.model": "gemini-2.5-flash"}
    assert all(point["attributes"] == labels for point in found.values())
    assert {name: point["unit"] for name, point in found.items()} == {
        "pack.duration": "s",
        "pack.tokens": "{token}",
        "prefix.tokens": "{token}",
        "cache.tokens": "{token}",
    }


def test_no_text_of_anybody_is_exported(traces: Traces) -> None:
    """Secrets in what is asked, answered, planned, noted, remembered, looked up, and in what errors say."""
    plan = {**NARROW, "task": f"Task {SECRET}", "goal": SECRET, "constraints": [SECRET], "odd": {SECRET: SECRET}}
    plan["step"] = {"text": f"Step {SECRET}", "acceptance": [f"names {SECRET}"], "tools": [SECRET]}

    def leak(key: str) -> dict[str, str]:
        """A tool of hunter2."""
        return {"result": "\n".join(f"{SECRET} {at} {key}" for at in range(3_000))}

    for memory in (Memories(remembered(f"Her word is {SECRET}")), Memories(error=Failure(SECRET))):
        chat = Chat(
            tools=[leak],
            memory=memory,
            instruction=f"You keep {SECRET}.",
            state=planned(plan, knowledge={"notes": [SECRET], "decisions": [SECRET, 7]}),
            script=[call("leak", key=SECRET), f"It is {SECRET}", Failure(SECRET)],
            policy=small(3_000),
            on_error="passthrough",
        )
        chat.say(f"My password is {SECRET}")
        with pytest.raises(Failure):
            chat.say(SECRET * 5_000)
    text = json.dumps([json.loads(span.to_json()) for span in traces.own]) + json.dumps(traces.metrics())
    assert len(traces.packs) == 6
    assert any(span.attributes.get("aether_context.degradations") for span in traces.packs)
    assert any(SECRET in note for manifest in chat.manifests() for note in manifest.degradations)
    assert SECRET not in text


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_trace_that_fails_changes_nothing_else(traces: Traces, at: str, caplog: pytest.LogCaptureFixture) -> None:
    def said() -> Chat:
        chat = Chat(script=[call("look_up", key="k"), "done"], tools=[look_up])
        chat.say("hello")
        return chat

    plain = said()
    traces.switch.fails_at = at
    before = trace.get_current_span()
    chat = said()
    assert trace.get_current_span() is before
    assert [request.contents for request in chat.sent] == [request.contents for request in plain.sent]
    assert [manifest.degradations for manifest in chat.manifests()] == [(), ()]
    assert all(chat.store.outcome(manifest) for manifest in chat.manifests())
    assert "OpenTelemetry" in caplog.text


def test_the_page_names_whatever_is_exported(traces: Traces) -> None:
    chat = Chat(policy=small(), tools=[look_up], script=[call("look_up", key="a")], state=planned())
    chat.say(*turns(9))
    page = (Path(__file__).parent.parent / "docs" / "tracing.md").read_text("utf-8")
    exported = {key for span in traces.own for key in span.attributes}
    exported |= {name for point in traces.metrics() for name in (point["name"], *point["attributes"])}
    layers = {f"aether_context.tokens.{layer}" for layer in ("task", "tools", "evidence", "memory", "conversation")}
    assert len(exported) > 15
    assert {name for name in exported - layers if f"`{name}`" not in page} == set()
