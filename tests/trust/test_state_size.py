"""What a long conversation adds to session state: every event that writes a value stores it whole, for good."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from scripted import Chat, set_state, state_of, was_cut

from aether_context import PackPolicy

WORDS = [
    "refund", "order", "price", "total", "city", "harbour", "river", "bridge", "museum", "ticket", "train", "hotel",
]  # fmt: skip
WORDS += ["lunch", "dinner", "garden", "winter", "coffee", "letter", "doctor", "school", "market", "island", "concert"]
TURNS = 36


def talk() -> tuple[list[str], list[str]]:
    """Questions that come back to what was said before, and answers to them, the same at each call."""
    chance = random.Random(7)
    questions = [f"Question {at}: " + " ".join(chance.choices(WORDS, k=35)) + "?" for at in range(TURNS)]
    return questions, [" ".join(chance.choices(WORDS, k=150)) for _ in range(TURNS)]


def chat_of(answers: list[str]) -> Chat:
    return Chat(policy=PackPolicy(max_input_tokens=4_000), script=answers)


def own(values: dict[str, Any]) -> int:
    """Bytes of the package's own keys, as JSON."""
    return sum(len(json.dumps(value)) + len(key) for key, value in values.items() if "aether:" in key)


def test_recalled_turns_are_written_to_state_once(figure: Callable[[str, float], None]) -> None:
    questions, answers = talk()
    chat = chat_of(answers)
    deltas: list[int] = []
    for question in questions:
        before = len(asyncio.run(chat.held()).events) if deltas else 0
        chat.say(question)
        deltas.append(sum(own(event.actions.state_delta) for event in asyncio.run(chat.held()).events[before:]))
    cuts = [was_cut(manifest) for manifest in chat.manifests()]
    first = cuts.index(True)
    later = [size for size, cut in zip(deltas[first + 1 :], cuts[first + 1 :], strict=True) if not cut]
    assert len(later) > 10
    assert "MEMORY:" in chat.sent[-1].human()
    figure("state_kilobytes", max(own(state_of(chat)), *deltas) / 1_000)
    figure("state_bytes_a_turn", sum(later) / len(later))
    assert sum(later) / len(later) < 1_600
    assert own(state_of(chat)) < 9_000


@pytest.mark.slow
def test_another_process_sends_the_same_by_what_state_holds() -> None:
    questions, answers = talk()
    chat, other = chat_of(answers), chat_of(answers)
    for question in questions:
        chat.say(question)
        other.restart()
        other.say(question)
    assert any("MEMORY:" in sent.human() for sent in chat.sent)
    assert [sent.wires for sent in other.sent] == [sent.wires for sent in chat.sent]
    other.replays(every=1)


@pytest.mark.parametrize("value", [None, 5, "USER REQUEST:", ["x"], {"a": 1}])
@pytest.mark.rows(1, slow=2)
def test_lines_that_something_else_wrote_break_no_request(value: Any) -> None:
    questions, answers = talk()
    chat = chat_of(answers)
    chat.say(*questions[:-4])
    keys = [key for key in state_of(chat) if key.startswith("aether:line:")]
    assert keys
    asyncio.run(set_state(chat, **dict.fromkeys(keys[::2], value)))
    chat.restart()
    chat.say(*questions[-4:])
    chat.replays(every=1)
