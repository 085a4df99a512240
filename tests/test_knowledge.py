"""Notes and evidence: what is written is what is read, and what cannot be read is not written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from plans import planned
from scripted import Chat, call, results, state_of

from aether_context.adk import evidence_tools
from aether_context.state import read_state

PLAN: dict[str, Any] = {
    "steps": [
        {"id": "find", "text": "Find", "acceptance": ["Found", {"id": "cited", "text": "Cited"}], "status": "done"},
        {"id": "draft", "text": "Draft", "acceptance": [{"id": "whole", "text": "Whole"}]},
    ]
}


def written(tool: str, state: Mapping[str, Any] | None = None, **arguments: Any) -> tuple[dict[str, Any], Any]:
    """The answer of a tool that writes into the state, and the state."""
    chat = Chat(
        script=[call(tool, **arguments), "ok"],
        tools=evidence_tools(),
        state=planned(PLAN) if state is None else state,
    )
    (answer,) = results(chat.say("Go. See artifact://r.md."))
    return answer, {key: value for key, value in state_of(chat).items() if key in ("plan", "knowledge")}


def test_a_note_is_read_as_it_was_written() -> None:
    answer, state = written("add_note", text="The limit is 200", keep_seconds=60, step_id="draft")
    read = read_state(state)
    assert read.problems == ()
    (note,) = read.candidates
    assert (note.id, note.text) == (answer["noted"], "The limit is 200")
    assert note.time is not None
    assert note.expires == note.time + 60
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"text": "  "}, "needs a text"),
        ({"text": "x" * 20_001}, "20000"),
        ({"text": "x", "keep_seconds": -5}, "greater than 0"),
        ({"text": "x", "step_id": "fly"}, "no step 'fly': the steps are 'find', 'draft'"),
        ({"text": "x", "step_id": "find"}, "step 'find' is done"),
    ],
)
def test_a_wrong_note_is_not_written(arguments: dict[str, Any], said: str) -> None:
    answer, state = written("add_note", **arguments)
    assert said in answer["error"]
    assert state == planned(PLAN)


@pytest.mark.parametrize("knowledge", ["text", {"notes": "text"}, {"evidence": 3}])
def test_knowledge_that_is_none_is_an_error_that_names_the_key(knowledge: object) -> None:
    other = isinstance(knowledge, dict) and "evidence" in knowledge
    tool = ("record_evidence", {"uri": "artifact://r.md", "summary": "x", "covers": []}) if other else ("add_note", {})
    answer, state = written(tool[0], {"knowledge": knowledge}, **(tool[1] or {"text": "x"}))
    assert "state['knowledge']" in answer["error"]
    assert state["knowledge"] == knowledge


def test_evidence_is_read_as_it_was_written() -> None:
    answer, state = written("record_evidence", uri="artifact://r.md", summary="Who approves", covers=["whole"])
    assert answer["covers"] == ["whole"]
    (record,) = read_state(state).candidates
    assert (record.id, record.uri) == (answer["recorded"], "artifact://r.md")
    assert (record.text, record.covers) == ("Who approves", ("whole",))


def test_an_unknown_item_is_an_error_that_names_the_known_ones() -> None:
    unknown = {"uri": "artifact://r.md", "summary": "x", "covers": ["whole", "a9"]}
    answer, state = written("record_evidence", **unknown)
    assert "no acceptance item is named 'a9': covers takes 'whole', 'a1', 'cited'" in answer["error"]
    assert state == planned(PLAN)
    answer, _ = written("record_evidence", {}, **unknown)
    assert "no acceptance items: leave covers empty" in answer["error"]
