"""Notes and evidence: what is written is what is read, and what cannot be read is not written."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.adk.sessions.state import State
from hypothesis import given
from hypothesis import strategies as st

from aether_context.canonical import hash_text
from aether_context.errors import KnowledgeError
from aether_context.state import read_state
from aether_context.state.knowledge import add_evidence, add_note, covered, remove_note
from aether_context.tokens import counter_for

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
    note = add_note(state, "The limit is 200", time=1_000.0, ttl_seconds=60, step_id="draft")
    read = read_state(state)
    assert read.problems == ()
    (found,) = read.candidates
    assert (found.id, found.text, found.time, found.expires) == (note.id, "The limit is 200", 1_000.0, 1_060.0)
    assert json.loads(json.dumps(state)) == state


def test_a_note_of_the_same_name_is_replaced_and_the_key_assigned_anew() -> None:
    state = {**fresh(), "knowledge": {"notes": ["An older one"], "more": [1]}}
    held = state["knowledge"]
    add_note(state, "First", id="n")
    add_note(state, "Second", id="n")
    add_note(state, "An older one", time=5.0)
    assert [one["text"] for one in state["knowledge"]["notes"]] == ["An older one", "Second"]
    assert state["knowledge"]["more"] == [1]
    assert held == {"notes": ["An older one"], "more": [1]}


def test_a_note_is_removed_by_its_name_written_or_not() -> None:
    state = {**fresh(), "knowledge": {"notes": ["Nameless", {"id": "n", "text": "Named"}, {"broken": 1}]}}
    nameless = read_state(state).candidates[0].id
    remove_note(state, nameless)
    remove_note(state, "n")
    assert state["knowledge"]["notes"] == [{"broken": 1}]
    with pytest.raises(KnowledgeError, match="there is no note 'n': the notes are none"):
        remove_note(state, "n")


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
        add_note(state, **given)
    assert state == fresh()


@pytest.mark.parametrize(
    ("held", "write"),
    [
        ("text", lambda state: add_note(state, "x")),
        ({"notes": "text"}, lambda state: add_note(state, "x")),
        ({"evidence": 3}, lambda state: add_evidence(state, uri="artifact://x", summary="x")),
    ],
)
def test_knowledge_that_is_none_is_an_error_that_names_the_key(held: object, write: Callable[..., object]) -> None:
    state = {"knowledge": held}
    before = copy.deepcopy(held)
    with pytest.raises(KnowledgeError, match=r"state\['knowledge'\]"):
        write(state)
    assert state["knowledge"] == before


def test_the_step_of_a_plan_without_a_board_can_have_notes() -> None:
    state = {"plan": {"step": {"id": "3", "text": "Do", "acceptance": ["Done"]}}}
    assert add_note(state, "x", step_id="3").step_id == "3"


# evidence


def test_evidence_is_read_as_it_was_written() -> None:
    state = fresh()
    text = "The clerk approves refunds above 200 euros. " * 30
    counter = counter_for("gpt-4o")
    record = add_evidence(
        state, uri="artifact://r.md", summary="Who approves", covers=["whole"], time=9.0, text=text, counter=counter
    )
    assert (record.hash, record.tokens) == (hash_text(text), counter.count(text))
    (found,) = read_state(state).candidates
    assert (found.id, found.uri, found.text, found.covers, found.time) == (
        record.id,
        "artifact://r.md",
        "Who approves",
        ("whole",),
        9.0,
    )
    assert state["knowledge"]["evidence"][0]["tokens"] == record.tokens
    assert covered(state) == {"whole"}


def test_evidence_without_its_text_has_neither_hash_nor_tokens() -> None:
    state = fresh()
    record = add_evidence(state, uri="artifact://r.md", summary="x")
    assert (record.hash, record.tokens) == ("", None)
    assert add_evidence(state, uri="artifact://r.md", summary="x", text="").tokens == 0
    assert len(state["knowledge"]["evidence"]) == 1


def test_an_unknown_item_is_an_error_that_names_the_known_ones() -> None:
    state = fresh()
    with pytest.raises(KnowledgeError, match="no acceptance item is named 'a9': covers takes 'whole', 'a1', 'cited'"):
        add_evidence(state, uri="artifact://r.md", summary="x", covers=["whole", "a9"])
    assert state == fresh()
    with pytest.raises(KnowledgeError, match="no acceptance items: leave covers empty"):
        add_evidence({}, uri="artifact://r.md", summary="x", covers="a1")


@pytest.mark.parametrize("field", ["uri", "summary"])
def test_evidence_needs_an_address_and_a_summary(field: str) -> None:
    given: dict[str, Any] = {"uri": "artifact://r.md", "summary": "x", field: " "}
    with pytest.raises(KnowledgeError, match=f"needs a {field}") as caught:
        add_evidence({}, **given)
    assert caught.value.field == field


# together


def test_adk_records_every_change() -> None:
    delta: dict[str, Any] = {}
    state = State({}, delta)
    add_note(state, "one")
    add_evidence(state, uri="artifact://r.md", summary="two")
    assert [one["text"] for one in delta["knowledge"]["notes"]] == ["one"]
    assert [one["summary"] for one in delta["knowledge"]["evidence"]] == ["two"]


def test_notes_from_many_threads_are_all_there() -> None:
    state = State({}, {})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: add_note(state, f"note {at}"), range(200)))
    assert len(read_state(state.to_dict()).candidates) == 200


@given(st.text(max_size=30), st.floats() | st.none(), st.floats() | st.none())
def test_what_is_written_can_be_read(text: str, time: float | None, ttl: float | None) -> None:
    state: dict[str, Any] = {}
    try:
        note = add_note(state, text, time=time, ttl_seconds=ttl)
    except KnowledgeError:
        assert state == {}
        return
    read = read_state(state)
    assert read.problems == ()
    assert [one.id for one in read.candidates] == [note.id]
    json.dumps(state, allow_nan=False)
