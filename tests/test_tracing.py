"""Spans and metrics of packs, as OpenTelemetry's own SDK hands them to an exporter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry import trace
from plans import NARROW, planned, small, turns
from scripted import Chat, Failure, Memories, call, look_up, remembered
from traces import SECRET, Traces


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
        "aether_context.pack.uri": f"artifact://packs/{manifest.pack_id}/manifest.json",
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
    page = (Path(__file__).parent.parent / "docs" / "deploy.md").read_text("utf-8")
    exported = {key for span in traces.own for key in span.attributes}
    exported |= {name for point in traces.metrics() for name in (point["name"], *point["attributes"])}
    layers = {f"aether_context.tokens.{layer}" for layer in ("task", "tools", "evidence", "memory", "conversation")}
    assert len(exported) > 15
    assert {name for name in exported - layers if f"`{name}`" not in page} == set()
