"""A to-do list that an agent keeps with a tool: its latest state survives every cut, its history does not."""

from __future__ import annotations

import pytest
from keeping import state, write_todos
from packs import answered, called, said
from plans import small, turns
from scripted import Chat, call
from wording import SUMMARY_TITLE, TODO_TITLE

from aether_context.conversation.summary import Recap, recap
from aether_context.conversation.todo import latest_list
from aether_context.tokens import counter_for

COUNTER = counter_for("gemini-2.5-flash")


@pytest.mark.parametrize("name", ["write_todos", "TodoWrite", "todo", "task_list", "update_plan", "todo_read"])
def test_the_list_is_read_from_arguments_or_response(name: str):
    by_arguments = [called(name, "a", todos=state("done", "in_progress", "pending")), answered(name, "a", "ok")]
    found = latest_list(by_arguments)
    assert found is not None
    assert found[2] == ["[x] Pack box 0", "[~] Pack box 1", "[ ] Pack box 2"]
    by_response = [called(name, "a"), answered(name, "a", "- [x] Pack box 0\n- [ ] Pack box 1")]
    found = latest_list(by_response)
    assert found is not None
    assert found[2] == ["[x] Pack box 0", "[ ] Pack box 1"]


def test_an_emptied_list_is_empty_and_one_changed_entry_is_not_the_list():
    written = [called("write_todos", "a", todos=state("pending")), answered("write_todos", "a", "ok")]
    emptied = latest_list([*written, called("write_todos", "b", todos=[]), answered("write_todos", "b", "ok")])
    assert emptied is not None
    assert emptied[2] == []
    changed = [*written, called("complete_todo", "b", items=["Pack box 0"]), answered("complete_todo", "b", "ok")]
    found = latest_list(changed)
    assert found is not None
    assert found[1:] == ("write_todos", ["[ ] Pack box 0"])
    told = latest_list([*written, called("add_todo", "b", item="Go"), answered("add_todo", "b", "- [ ] A\n- [ ] Go")])
    assert told is not None
    assert told[2] == ["[ ] A", "[ ] Go"]


@pytest.mark.parametrize("name", ["list_issues", "search", "planet", "explain", "get_weather"])
def test_what_other_tools_give_is_no_list(name: str):
    assert latest_list([called(name, "a", todos=state("done")), answered(name, "a", "- [x] one")]) is None


def test_a_long_list_loses_what_is_done_first():
    items = [*(f"[x] Done thing {at}" for at in range(60)), "[ ] Pack the last box"]
    text = recap([said("Go on.")], [], Recap(), max_tokens=300, counter=COUNTER, todo=("todo", items))
    assert text.endswith(f"{TODO_TITLE}todo (60 of 61 items are not shown):\n  [ ] Pack the last box")
    assert recap([said("And on.")], [], Recap(text), max_tokens=300, counter=COUNTER).endswith("Pack the last box")
    assert TODO_TITLE not in recap([said("Ah.")], [], Recap(text), max_tokens=300, counter=COUNTER, todo=("", []))


def test_the_latest_state_survives_every_cut_and_its_history_does_not():
    script = [
        call("write_todos", todos=state("pending", "pending")),
        "Written.",
        call("write_todos", todos=state("completed", "in_progress")),
        "Updated.",
    ]
    chat = Chat(script=script, tools=[write_todos], policy=small(5_000))
    chat.say("Make a list.", "Go on.", *turns(30))
    cuts = [sent.text[sent.text.index(SUMMARY_TITLE) :] for sent in chat.sent if SUMMARY_TITLE in sent.text]
    assert len(cuts) > 10
    for text in cuts:
        assert f"{TODO_TITLE}write_todos:\n  [x] Pack box 0\n  [~] Pack box 1" in text
        assert "[ ] Pack box 0" not in text
    chat.llm.script[:] = [call("write_todos", todos=state("completed", "completed", "pending")), "Updated."]
    chat.say("Done?", *turns(20))
    assert chat.sent[-1].text.count(TODO_TITLE) == 1
    assert "  [x] Pack box 1\n  [ ] Pack box 2" in chat.sent[-1].text
    chat.replays()
