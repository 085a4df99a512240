"""What fails inside, in the store or in the model never reaches a run that is not told to end."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from plans import loop, messages, planned, small, turns
from scripted import Chat, Failure, call, faults, look_up

from aether_context import PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.errors import StoreError


class Broken(PackStore):
    """A store whose writes fail."""

    def __init__(self, error: Exception) -> None:
        super().__init__("memory://broken")
        self.error = error

    def write(self, recording: Any, outcome: Any = None) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [StoreError("full"), OSError("gone"), RuntimeError("what"), MemoryError()])
@pytest.mark.parametrize("on_error", ["passthrough", "raise"])
def test_a_store_that_fails_never_reaches_the_run(error: Exception, on_error: str) -> None:
    plugin = ContextPackPlugin(store=Broken(error), on_error=on_error)  # type: ignore[arg-type]
    chat = Chat(plugin=plugin, state=planned(), script=[call("look_up", key="a"), "done"], tools=[look_up])
    assert chat.say("go")[-1].content.parts[0].text == "done"
    assert len(chat.sent) == 2
    assert all("CONTEXT PACK" in one.text for one in chat.sent)


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
    told = messages(chat.manifests()[-1].degradations)
    assert "unreadable" in told or "Failure" in told


def test_state_that_a_failed_call_lost_does_not_break_the_next_one() -> None:
    chat = Chat(script=[*loop(1), "a", Failure("x"), "b", "c"], tools=[look_up], state=planned(), policy=small(1_500))
    chat.say("first")
    with pytest.raises(Failure):
        chat.say("second")
    chat.say("third", "fourth")
    before = chat.sent[-2].wires[:-1]
    assert chat.sent[-1].wires[: len(before)] == before
    chat.replays()


def test_nothing_that_was_said_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(policy=small(3_000, usage={"gate": 0}), tools=[look_up], script=[*loop(25), "done"])
    with caplog.at_level(logging.DEBUG, logger="aether_context"):
        chat.say("the secret word is xylophone")
    told = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("aether_context"))
    assert told
    assert "xylophone" not in told
