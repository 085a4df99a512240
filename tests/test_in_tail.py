"""What counts as already in the conversation is judged by the request that is sent, not by what was once said."""

from __future__ import annotations

from typing import Any

import pytest
from packs import STEP, answered, called, lines, memory, pack_input, said
from scripted import Chat, Memories, call, remembered

from aether_context import PackPolicy
from aether_context.packing import build_pack

ANSWER = "The manager of Lisbon approves refunds above 740 euros"


def ask(name: str) -> dict[str, Any]:
    """Asks for a file."""
    middle = ANSWER if name == "rules" else "nothing of interest"
    return {"text": f"{lines(f'{name} first', 25)}\n{middle}\n{lines(f'{name} second', 25)}"}


@pytest.mark.parametrize("strategy", ["epochs", "stable_prefix", "sliding_turns", "heads_tails", "summarize", "none"])
def test_an_answer_that_is_no_longer_in_what_is_sent_returns_as_a_memory(strategy: str) -> None:
    script: list[Any] = []
    for name in ("rules", *(f"file{at}" for at in range(8))):
        script += [call("ask", name=name), f"I read {name}."]
    policy = PackPolicy(
        max_input_tokens=4_000,
        retrieval={"recall": False},
        conversation={"strategy": strategy, "stable_prefix": {"keep_last_messages": 2}},
    )
    chat = Chat(script=script, tools=[ask], policy=policy, memory=Memories(remembered(ANSWER)))
    chat.say(*(f"Read file {at}" for at in range(9)))
    for question in ("Who approves refunds above 740 euros in Lisbon?", "And which manager approves refunds?"):
        chat.say(question)
        assert ANSWER in chat.sent[-1].text or ANSWER in "".join(chat.sent[-1].wires)
    chat.replays()


def pack_of(text: str, window: int, policy: PackPolicy | None = None) -> Any:
    contents = [said("Read it"), called("ask", "c1"), answered("ask", "c1", text)]
    source = pack_input(contents, window=window, candidates=[memory("m1", ANSWER)], step=STEP)
    return build_pack(source, policy or PackPolicy())


def test_an_answer_in_a_response_that_has_to_become_an_extract_is_not_recorded_as_present() -> None:
    text = "\n".join([lines("first", 200), ANSWER.replace("Lisbon", "Porto"), ANSWER, lines("second", 200)])
    for window in (1_500, 2_000, 3_000, 16_000):
        pack = pack_of(text, window)
        sent = "\n".join(one.content.wire for one in pack.contents)
        (fate,) = [one for one in pack.rows if one.id == "m1"]
        assert (fate.reason == "already_in_conversation") <= (ANSWER in sent), window
        assert ANSWER in sent, window


def test_an_answer_that_is_sent_is_not_repeated() -> None:
    pack = pack_of(ANSWER, 16_000)
    (fate,) = [one for one in pack.rows if one.id == "m1"]
    assert (fate.form, fate.reason) == ("left_out", "already_in_conversation")
