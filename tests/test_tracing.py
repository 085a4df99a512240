"""Spans and metrics of packs, as OpenTelemetry's own SDK hands them to an exporter."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
from scripted import Chat, Failure, Memories, call, look_up, new_store, remembered

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

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


def test_a_request_that_grows_says_what_it_shares(traces: Traces) -> None:
    chat = Chat(tools=[look_up], script=[call("look_up", key="a"), "done"])
    chat.say("go")
    _, grown = traces.packs
    assert grown.attributes["aether_context.prefix.tokens"] == chat.manifests()[1].prefix.shared_tokens
    assert "aether_context.prefix.broken_by" not in grown.attributes


def test_a_cut_is_on_the_span_and_counted(traces: Traces) -> None:
    chat = Chat(policy=small())
    chat.say(*turns(9))
    cuts = [manifest for manifest in chat.manifests() if any(one.stage == "cut" for one in manifest.truncation_events)]
    spans = [span for span in traces.packs if span.attributes.get("aether_context.cut")]
    assert [span.attributes["aether_context.pack.id"] for span in spans] == [manifest.pack_id for manifest in cuts]
    assert {span.attributes["aether_context.epoch.reason"] for span in spans} == {"high_water"}
    assert {span.attributes["aether_context.prefix.broken_by"] for span in spans} == {"cut"}
    counted = [point for point in traces.metrics() if point["name"] == "aether_context.pack.cuts"]
    assert sum(point["value"] for point in counted) == len(cuts) > 0
    assert {point["attributes"]["aether_context.epoch.reason"] for point in counted} == {"high_water"}


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


class Odd(ContextPackPlugin):
    """Fails at the first pack."""

    def __init__(self) -> None:
        super().__init__(store=new_store())
        self._packer._gatherer.planned = self._fail  # type: ignore[method-assign]

    def _fail(self, call: Any) -> Any:
        raise Failure(SECRET)


def test_what_fails_is_named_by_its_class_alone(traces: Traces) -> None:
    chat = Chat(plugin=Odd())
    chat.say("hello")
    (pack,) = traces.packs
    assert pack.attributes["error.type"] == "Failure"
    assert (pack.status.status_code, pack.status.description) == (trace.StatusCode.ERROR, None)
    assert pack.events == ()
    assert pack.attributes["aether_context.pack.id"] == chat.manifests()[0].pack_id
    (duration,) = [point for point in traces.metrics() if point["name"] == "aether_context.pack.duration"]
    assert duration["attributes"]["error.type"] == "Failure"


def test_a_call_that_a_limit_refuses_says_so(traces: Traces) -> None:
    chat = Chat(policy=PackPolicy(limits={"session": {"total_tokens": 60}, "on_budget": "stop"}))
    chat.say("hello", "again")
    refused = traces.packs[-1]
    assert refused.attributes["error.type"] == "budget_exceeded"
    assert "aether_context.pack.id" not in refused.attributes


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


def test_sessions_at_once_keep_their_spans_apart(traces: Traces) -> None:
    chat = Chat(memory=Memories(remembered("She likes tea"), delay_seconds=0.02))

    async def converse() -> None:
        before = trace.get_current_span()
        await asyncio.gather(*(chat.tell("hello", session=f"s{at}") for at in range(8)))
        assert trace.get_current_span() is before

    asyncio.run(converse())
    assert len(traces.packs) == 8
    for pack in traces.packs:
        agent = traces.above(pack)
        session = pack.attributes["gen_ai.conversation.id"]
        assert agent.attributes["gen_ai.conversation.id"] == session
        assert f"/{session}/packs/" in pack.attributes["aether_context.pack.uri"]
        asked = next(span for span in traces.within(agent) if span.name.startswith("generate_content"))
        assert asked.parent.span_id == agent.context.span_id


def test_nothing_is_recorded_where_the_trace_is_not_sampled_or_packs_are_not_kept(traces: Traces) -> None:
    dropped = trace.SpanContext(trace_id=1, span_id=1, is_remote=True, trace_flags=trace.TraceFlags(0))
    with trace.use_span(trace.NonRecordingSpan(dropped)):
        Chat().say("hello")
    assert traces.own == []
    assert {point["name"] for point in traces.metrics()} >= {"aether_context.pack.duration"}
    Chat(policy=PackPolicy(record="off")).say("hello")
    assert "aether_context.pack.uri" not in traces.packs[0].attributes


def test_the_page_names_whatever_is_exported(traces: Traces) -> None:
    chat = Chat(policy=small(), tools=[look_up], script=[call("look_up", key="a")], state=planned())
    chat.say(*turns(9))
    page = (Path(__file__).parent.parent / "docs" / "tracing.md").read_text("utf-8")
    exported = {key for span in traces.own for key in span.attributes}
    exported |= {name for point in traces.metrics() for name in (point["name"], *point["attributes"])}
    layers = {f"aether_context.tokens.{layer}" for layer in ("task", "tools", "evidence", "memory", "conversation")}
    assert len(exported) > 15
    assert {name for name in exported - layers if f"`{name}`" not in page} == set()


# over the wire


EXPORTING = """
from google.adk.telemetry.setup import maybe_set_otel_providers
from opentelemetry import metrics, trace
from scripted import Chat

maybe_set_otel_providers()
chat = Chat()
chat.say("hello")
print(chat.manifests()[0].pack_id)
trace.get_tracer_provider().shutdown()
metrics.get_meter_provider().shutdown()
"""


class Collector(BaseHTTPRequestHandler):
    """Takes what is sent by OTLP over HTTP."""

    received: list[tuple[str, bytes]] = []

    def do_POST(self) -> None:
        self.received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        assert self.headers["Content-Type"] == "application/x-protobuf"
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return None


@pytest.mark.integration
def test_a_collector_gets_spans_and_metrics_by_otlp() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install '.[dev]'")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tests.parent), str(tests), os.environ.get("PYTHONPATH", "")])
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "OTEL_SERVICE_NAME": "desk"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", EXPORTING],
            env={**os.environ, **settings, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    finally:
        server.shutdown()
        server.server_close()
    spans = {
        span.name: span
        for where, data in Collector.received
        if where == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    assert {"invoke_agent clerk", "pack_context clerk"} <= set(spans)
    pack = spans["pack_context clerk"]
    assert pack.parent_span_id == spans["invoke_agent clerk"].span_id
    values = {one.key: one.value for one in pack.attributes}
    assert values["aether_context.pack.id"].string_value == done.stdout.strip()
    assert values["aether_context.tokens.request"].int_value > 0
    names = {
        metric.name
        for where, data in Collector.received
        if where == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(data).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert {"aether_context.pack.duration", "aether_context.pack.tokens", "aether_context.cache.tokens"} <= names
