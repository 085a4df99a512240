"""Notes and evidence: what is written is what is read, and what cannot be read is not written."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from aether_context.errors import KnowledgeError
from aether_context.state import read_state
from aether_context.state.knowledge import add_evidence, append_note, covered

PLAN: dict[str, Any] = {
    "steps": [
        {"id": "find", "text": "Find", "acceptance": ["Found", {"id": "cited", "text": "Cited"}], "status": "done"},
        {"id": "draft", "text": "Draft", "acceptance": [{"id": "whole", "text": "Whole"}]},
    ]
}


def fresh() -> dict[str, Any]:
    return {"plan": copy.deepcopy(PLAN)}


# notes


def test_a_note_is_read_as_it_was_written() -> None:
    state = fresh()
    note = append_note(state, "The limit is 200", time=1_000.0, ttl_seconds=60, step_id="draft")
    read = read_state(state)
    assert read.problems == ()
    (found,) = read.candidates
    assert (found.id, found.text, found.time, found.expires) == (note.id, "The limit is 200", 1_000.0, 1_060.0)
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"text": "  "}, "needs a text"),
        ({"text": "x" * 20_001}, "text: .*20000"),
        ({"text": "\ud800"}, "text: "),
        ({"text": "x", "ttl_seconds": 5}, "give time, too"),
        ({"text": "x", "time": 1.0, "ttl_seconds": -5}, "ttl_seconds: .*greater than 0"),
        ({"text": "x", "time": float("nan")}, "time: "),
        ({"text": "x", "step_id": "fly"}, "no step 'fly': the steps are 'find', 'draft'"),
        ({"text": "x", "step_id": "find"}, "step 'find' is done"),
    ],
)
def test_a_wrong_note_is_not_written(given: dict[str, Any], said: str) -> None:
    state = fresh()
    with pytest.raises(KnowledgeError, match=said):
        append_note(state, **given)
    assert state == fresh()


@pytest.mark.parametrize(
    ("held", "write"),
    [
        ("text", lambda state: append_note(state, "x")),
        ({"notes": "text"}, lambda state: append_note(state, "x")),
        ({"evidence": 3}, lambda state: add_evidence(state, uri="artifact://x", summary="x")),
    ],
)
def test_knowledge_that_is_none_is_an_error_that_names_the_key(held: object, write: Callable[..., object]) -> None:
    state = {"knowledge": held}
    before = copy.deepcopy(held)
    with pytest.raises(KnowledgeError, match=r"state\['knowledge'\]"):
        write(state)
    assert state["knowledge"] == before


# evidence


def test_evidence_is_read_as_it_was_written() -> None:
    state = fresh()
    record = add_evidence(state, uri="artifact://r.md", summary="Who approves", covers=["whole"], time=9.0)
    (found,) = read_state(state).candidates
    assert (found.id, found.uri, found.text, found.covers, found.time) == (
        record.id,
        "artifact://r.md",
        "Who approves",
        ("whole",),
        9.0,
    )
    assert covered(state) == {"whole"}


def test_an_unknown_item_is_an_error_that_names_the_known_ones() -> None:
    state = fresh()
    with pytest.raises(KnowledgeError, match="no acceptance item is named 'a9': covers takes 'whole', 'a1', 'cited'"):
        add_evidence(state, uri="artifact://r.md", summary="x", covers=["whole", "a9"])
    assert state == fresh()
    with pytest.raises(KnowledgeError, match="no acceptance items: leave covers empty"):
        add_evidence({}, uri="artifact://r.md", summary="x", covers="a1")
