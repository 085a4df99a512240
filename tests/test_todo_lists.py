"""A to-do list that an agent keeps with a tool: its latest state survives every cut, its history does not."""

from __future__ import annotations

import pytest
from keeping import state, write_todos
from packs import answered, called, said, summary_of
from plans import small, turns
from scripted import Chat, call
from wording import SUMMARY_TITLE, TODO_TITLE

from aether_context.pack import Content

WRITTEN = [called("write_todos", "a", todos=state("pending")), answered("write_todos", "a", "ok")]


def listed(*contents: Content, earlier: str = "") -> tuple[str, list[str]] | None:
    """The tool and the items of the list in a summary; None where it has none."""
    _, title, text = summary_of(*contents, earlier=earlier).partition(TODO_TITLE)
    name, *items = text.split("\n  ")
    return (name.removesuffix(":"), items) if title else None


@pytest.mark.parametrize("name", ["write_todos", "TodoWrite", "todo", "task_list", "update_plan", "todo_read"])
def test_the_list_is_read_from_arguments_or_response(name: str):
    by_arguments = [called(name, "a", todos=state("done", "in_progress", "pending")), answered(name, "a", "ok")]
    assert listed(*by_arguments) == (name, ["[x] Pack box 0", "[~] Pack box 1", "[ ] Pack box 2"])
    by_response = [called(name, "a"), answered(name, "a", "- [x] Pack box 0\n- [ ] Pack box 1")]
    assert listed(*by_response) == (name, ["[x] Pack box 0", "[ ] Pack box 1"])


def test_an_emptied_list_is_empty_and_one_changed_entry_is_not_the_list():
    emptied = [called("write_todos", "b", todos=[]), answered("write_todos", "b", "ok")]
    assert listed(*WRITTEN, *emptied) is None
    assert listed(*emptied, earlier=summary_of(*WRITTEN)) is None
    changed = [called("complete_todo", "b", items=["Pack box 0"]), answered("complete_todo", "b", "ok")]
    assert listed(*WRITTEN, *changed) == ("write_todos", ["[ ] Pack box 0"])
    told = [called("add_todo", "b", item="Go"), answered("add_todo", "b", "- [ ] A\n- [ ] Go")]
    assert listed(*WRITTEN, *told) == ("add_todo", ["[ ] A", "[ ] Go"])


@pytest.mark.parametrize("name", ["list_issues", "search", "planet", "explain", "get_weather"])
def test_what_other_tools_give_is_no_list(name: str):
    others = [called(name, "a", todos=state("done")), answered(name, "a", "- [x] one")]
    assert listed(*others, earlier=summary_of(*WRITTEN)) == ("write_todos", ["[ ] Pack box 0"])


def test_a_long_list_loses_what_is_done_first():
    todos = [{"content": f"Done thing {at}", "status": "done"} for at in range(60)] + [{"content": "Pack the last box"}]
    text = summary_of(said("Go on."), called("todo", "a", todos=todos), answered("todo", "a", "ok"), max_tokens=300)
    assert text.endswith(f"{TODO_TITLE}todo (60 of 61 items are not shown):\n  [ ] Pack the last box")
    assert summary_of(said("And on."), earlier=text, max_tokens=300).endswith("Pack the last box")


def test_the_latest_state_survives_every_cut_and_its_history_does_not():
    script = [
        call("write_todos", todos=state("pending", "pending")),
        "Written.",
        call("write_todos", todos=state("completed", "in_progress")),
        "Updated.",
    ]
    chat = Chat(script=script, tools=[write_todos], policy=small(2_500))
    chat.say("Make a list.", "Go on.", *turns(14))
    cuts = [sent.text[sent.text.index(SUMMARY_TITLE) :] for sent in chat.sent if SUMMARY_TITLE in sent.text]
    assert len(cuts) > 5
    for text in cuts:
        assert f"{TODO_TITLE}write_todos:\n  [x] Pack box 0\n  [~] Pack box 1" in text
        assert "[ ] Pack box 0" not in text
    chat.llm.script[:] = [call("write_todos", todos=state("completed", "completed", "pending")), "Updated."]
    chat.say("Done?", *turns(6))
    assert chat.sent[-1].text.count(TODO_TITLE) == 1
    assert "  [x] Pack box 1\n  [ ] Pack box 2" in chat.sent[-1].text
    chat.replays()
