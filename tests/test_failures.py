"""What fails inside, in the store or in the model never reaches a run that is not told to end."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types
from plans import PLAN, loop, messages, planned, small, turns
from scripted import Chat, Failure, call, faults, look_up, new_store

from aether_context import PackStore
from aether_context.adk import ContextPackPlugin, context_pack_callbacks
from aether_context.errors import StoreError


class Broken(PackStore):
    """A store whose writes fail."""

    def __init__(self, error: Exception) -> None:
        super().__init__("memory://broken")
        self.error = error
        self.attempts = 0

    def write(self, recording: Any, outcome: Any = None) -> Any:
        self.attempts += 1
        raise self.error


@pytest.mark.parametrize("error", [StoreError("full"), OSError("gone"), RuntimeError("what"), MemoryError()])
@pytest.mark.parametrize("on_error", ["passthrough", "raise"])
def test_a_store_that_fails_never_reaches_the_run(error: Exception, on_error: str) -> None:
    plugin = ContextPackPlugin(store=Broken(error), on_error=on_error)  # type: ignore[arg-type]
    chat = Chat(plugin=plugin, state=planned(), script=[call("look_up", key="a"), "done"], tools=[look_up])
    began = time.monotonic()
    events = chat.say("go")
    assert events[-1].content.parts[0].text == "done"
    assert len(chat.sent) == 2
    assert all("CONTEXT PACK" in one.text for one in chat.sent)
    assert time.monotonic() - began < 60


def test_a_store_that_is_down_for_long_does_not_hold_every_run_up() -> None:
    plugin = ContextPackPlugin(store=Broken(StoreError("down")))
    chat = Chat(plugin=plugin)
    began = time.monotonic()
    chat.say("one", "two")
    assert time.monotonic() - began < 60


def test_packs_that_waited_are_written_when_the_store_is_back() -> None:
    class Down(PackStore):
        broken = True

        def write(self, recording: Any, outcome: Any = None) -> Any:
            if self.broken:
                raise StoreError("down")
            return super().write(recording, outcome)

    store = Down(new_store().url)
    plugin = ContextPackPlugin(store=store, on_error="raise")
    chat = Chat(plugin=plugin)
    chat.say("one")
    assert list(store.manifests()) == []
    store.broken = False
    chat.say("two")
    assert len(list(store.manifests())) == 2
    assert [bool(store.outcome(manifest)) for manifest in store.manifests()] == [True, True]


class Hostile(dict[str, Any]):
    """A mapping that cannot be read."""

    def items(self) -> Any:
        raise Failure("unreadable")


def unreadable(context: CallbackContext, _: LlmRequest) -> None:
    context.session.state["plan"] = Hostile(step="x")


def test_a_failure_inside_never_reaches_the_run_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(alter=unreadable, on_error="passthrough", script=[*loop(2), "done"], tools=[look_up])
    with caplog.at_level(logging.WARNING, logger="aether_context"):
        events = chat.say("go")
    assert events[-1].content.parts[0].text == "done"
    assert [one.wires for one in chat.sent] == [one.wires for one in chat.raw]
    assert len([record for record in caplog.records if "unreadable" in record.getMessage()]) == 1


def test_a_failure_inside_ends_the_run_where_it_is_told_to() -> None:
    chat = Chat(alter=unreadable)
    with pytest.raises(RuntimeError, match="unreadable"):
        chat.say("go")


def test_after_a_failure_the_request_still_fits_the_window_and_has_a_manifest() -> None:
    late: list[bool] = []

    def alter(context: CallbackContext, request: LlmRequest) -> None:
        if late:
            unreadable(context, request)

    chat = Chat(policy=small(1_500), on_error="passthrough", alter=alter)
    chat.say(*turns(12))
    usual = max(len(one.text) for one in chat.sent)
    count = len(chat.manifests())
    late.append(True)
    chat.say("last question")
    assert faults(chat.sent[-1].contents) == []
    assert chat.sent[-1].contents[-1].parts[0].text == "last question"
    assert len(chat.sent[-1].text) <= 1.1 * usual
    assert len(chat.manifests()) == count + 1
    assert "unreadable" in messages(chat.manifests()[-1].degradations) or "Failure" in messages(
        chat.manifests()[-1].degradations
    )


def test_the_next_call_after_a_failure_is_packed_again() -> None:
    failing = [True]

    def alter(context: CallbackContext, request: LlmRequest) -> None:
        if failing:
            failing.pop()
            unreadable(context, request)
        else:
            context.session.state["plan"] = PLAN

    chat = Chat(alter=alter, on_error="passthrough", script=[*loop(2), "done"], tools=[look_up])
    chat.say("go")
    assert "CONTEXT PACK" not in chat.sent[0].text
    assert "CONTEXT PACK" in chat.sent[1].text
    assert "CONTEXT PACK" in chat.sent[2].text


def test_a_request_without_config_passes() -> None:
    def alter(_: CallbackContext, request: LlmRequest) -> None:
        request.config = None  # type: ignore[assignment]

    class Restore(BasePlugin):
        async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> None:
            if llm_request.config is None:
                llm_request.config = types.GenerateContentConfig()

    plugin = ContextPackPlugin(store=new_store(), on_error="raise")
    chat = Chat(plugin=plugin, state=planned(), alter=alter, script=["a"])
    chat.runner.plugin_manager.plugins.insert(2, Restore(name="restore"))
    chat.say("go")
    assert "CONTEXT PACK" in chat.sent[0].text


def test_a_failing_model_leaves_its_packs_in_the_store() -> None:
    chat = Chat(script=[call("look_up", key="a"), Failure("overloaded"), "recovered"], tools=[look_up], state=planned())
    with pytest.raises(Failure):
        chat.say("go")
    assert len(chat.manifests()) == 2
    chat.say("try again")
    assert len(chat.manifests()) == 3
    chat.replays()


def test_a_failing_model_leaves_its_packs_in_the_store_with_agent_callbacks() -> None:
    store = new_store()
    chat = Chat(
        script=[Failure("overloaded")],
        store=store,
        settings=dict(context_pack_callbacks(store=store, on_error="raise")),
        use_plugin=False,
    )
    with pytest.raises(Failure):
        chat.say("go")
    deadline = time.monotonic() + 60
    while not list(store.manifests()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(list(store.manifests())) == 1


def test_state_that_a_failed_call_lost_does_not_break_the_next_one() -> None:
    chat = Chat(script=[*loop(1), "a", Failure("x"), "b", "c"], tools=[look_up], state=planned(), policy=small(1_500))
    chat.say("first")
    with pytest.raises(Failure):
        chat.say("second")
    chat.say("third", "fourth")
    before = chat.sent[-2].wires[:-1]
    assert chat.sent[-1].wires[: len(before)] == before
    chat.replays()
