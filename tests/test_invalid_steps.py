"""Steps that are not complete or do not fit: sent with a warning, answered, or refused."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from plans import NO_ACCEPTANCE, PLAN, planned, small, words
from scripted import Chat, set_state

from aether_context import PackPolicy


@pytest.mark.parametrize(
    ("plan", "reason"),
    [(NO_ACCEPTANCE, "no acceptance list"), ({"task": "t"}, "no step"), ({"step": "", "acceptance": ["x"]}, "no step")],
)
def test_an_invalid_plan_is_sent_with_a_warning_by_default(plan: dict[str, Any], reason: str) -> None:
    chat = Chat(state=planned(plan))
    chat.say("go")
    manifest = chat.manifests()[0]
    assert manifest.validity == "invalid"
    assert reason in manifest.invalid_reason
    assert len(chat.llm.sent) == 1


@pytest.mark.parametrize("on_error", ["passthrough", "raise"])
def test_an_invalid_plan_ends_the_run_where_the_policy_raises(on_error: str) -> None:
    chat = Chat(state=planned(NO_ACCEPTANCE), policy=PackPolicy(on_invalid="raise"), on_error=on_error)
    with pytest.raises(RuntimeError, match="no acceptance list"):
        chat.say("go")
    assert chat.llm.sent == []


@pytest.mark.parametrize("on_error", ["passthrough", "raise"])
def test_an_invalid_plan_is_answered_where_the_policy_responds(on_error: str) -> None:
    chat = Chat(state=planned(NO_ACCEPTANCE), policy=PackPolicy(on_invalid="respond"), on_error=on_error)
    events = chat.say("go")
    assert chat.llm.sent == []
    assert "no acceptance list" in events[-1].content.parts[0].text
    asyncio.run(set_state(chat, plan=PLAN))
    chat.say("now go")
    assert "CONTEXT PACK" in chat.llm.sent[0].text


@pytest.mark.parametrize("on_error", ["passthrough", "raise"])
def test_a_step_too_large_is_answered_where_the_policy_responds(on_error: str) -> None:
    plan = {**PLAN, "acceptance": [words(2_000)], "step": {"id": "3", "text": "x"}}
    chat = Chat(state=planned(plan), policy=small(1_000, on_invalid="respond"), on_error=on_error)
    events = chat.say("go")
    assert chat.llm.sent == []
    answer = events[-1].content.parts[0].text
    assert "does not fit" in answer
    assert re.search(r"largest are acceptance item a1 \d{4}", answer)
    assert "split the step into steps that each have fewer acceptance items" in answer
    asyncio.run(set_state(chat, plan=PLAN))
    chat.say("now go")
    assert "CONTEXT PACK" in chat.llm.sent[0].text


@pytest.mark.parametrize("on_error", ["passthrough", "raise"])
def test_a_step_too_large_ends_the_run_where_the_policy_raises(on_error: str) -> None:
    plan = {**PLAN, "acceptance": [words(2_000)], "step": {"id": "3", "text": "x"}}
    chat = Chat(state=planned(plan), policy=small(1_000, on_invalid="raise"), on_error=on_error)
    with pytest.raises(RuntimeError, match="input budget"):
        chat.say("go")
    assert chat.llm.sent == []


def test_a_step_too_large_is_made_to_fit_by_default() -> None:
    chat = Chat(state=planned({**PLAN, "goal": words(150)}), policy=small(1_000))
    chat.say(words(3_000))
    manifest = chat.manifests()[0]
    assert manifest.request_tokens <= 1_000
    assert "The middle of this message is left out" in chat.sent[0].human()
    chat.replays()
