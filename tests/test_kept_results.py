"""The rules `whole` and `keep` do what the pages say: each example there is played through a real run."""

from __future__ import annotations

import base64
import random
import re
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.function_tool import FunctionTool
from keeping import read_of, rules
from plans import small
from scripted import Chat, Scripted, Sent, call, was_cut

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.errors import PolicyError

ROOT = Path(__file__).parent.parent
PROMISES = {"whole": (True, False), "keep": (True, True), "instructs": (True, True), "always": (False, False)}
"""By rule: whether a long result is sent whole when it comes, and whether it is after cuts."""
EXAMPLE = re.compile(rf'"?(\w+)"? ?[=:] "({"|".join(PROMISES)})"')
"""A tool and its rule, in TOML or in Python."""


def examples() -> list[tuple[str, str, str]]:
    """Page, tool and rule of each example in the pages, but for the generated ones."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [(page.name, *found) for page in pages for found in EXAMPLE.findall(page.read_text(encoding="utf-8"))]


def reader(name: str, count: int = 60) -> FunctionTool:
    """A tool of such a name, whose result takes about 25 tokens for each of ``count`` lines."""

    def read(area: str) -> str:
        return "\n".join(rules(area, count))

    read.__name__, read.__doc__ = name, "Reads about an area."
    return FunctionTool(read)


def whole(sent: Sent, area: str, count: int = 60) -> bool:
    return all(line in read_of(sent) for line in rules(area, count))


def turns(count: int) -> list[str]:
    return [f"Tell me about house {at}: " + f"it has {at + 3} rooms and {at * 7} windows. " * 80 for at in range(count)]


def played(rule: str, *calls: Any, name: str = "read", turn_count: int = 7, **settings: Any) -> Chat:
    policy = small(8_000, offload={"tools": {name: rule}}, **settings)
    chat = Chat([*calls, *["It is a house. " * 120] * turn_count], [reader(name)], policy)
    chat.say(*turns(turn_count))
    assert any(was_cut(manifest) for manifest in chat.manifests())
    assert not any(manifest.over_window for manifest in chat.manifests())
    return chat


@pytest.mark.parametrize("rule", ["always", "threshold"])
def test_short_data_of_a_tool_is_stored_where_its_rule_says_always(rule: str) -> None:
    def export() -> dict[str, str]:
        """Exports a table."""
        return {"table": base64.b64encode(random.Random(1).randbytes(330)).decode()}

    chat = Chat([call("export"), "ok"], [export], PackPolicy(offload={"tools": {"export": rule}}))
    chat.say("Export it.")
    (answer,) = chat.sent[-1].answers("export")
    assert ("artifact" in answer) is (rule == "always")


def unkept(chat: Chat) -> list[str]:
    """What manifests say of results that were not kept."""
    return [note for manifest in chat.manifests() for note in manifest.degradations if note.startswith("offload.tools")]


def test_the_pages_show_every_promise():
    assert {rule for _, _, rule in examples()} >= PROMISES.keys()
    assert {page for page, _, _ in examples()} >= {
        "evidence.md",
        "first-settings.md",
        "recipes.md",
        "why.md",
    }


@pytest.mark.parametrize(("page", "name", "rule"), examples())
@pytest.mark.rows(4)
def test_each_example_of_the_pages_keeps_its_word(page: str, name: str, rule: str):
    chat = played(rule, call(name, area="stairs"), name=name)
    assert (whole(chat.sent[1], "stairs"), whole(chat.sent[-1], "stairs")) == PROMISES[rule]
    assert unkept(chat) == []
    chat.replays()


def test_what_a_quarter_of_the_window_does_not_hold_is_told_once_with_the_reason(caplog: pytest.LogCaptureFixture):
    chat = played("keep", *(call("read", area=area) for area in ("stairs", "roof", "cellar")))
    assert [whole(chat.sent[-1], area) for area in ("stairs", "roof", "cellar")] == [False, False, True]
    note = "a result of 'read', whose rule is keep, left the request: later ones fill a quarter of the window"
    assert set(unkept(chat)) == {f"offload.tools: {note}"}
    assert len([record for record in caplog.records if note in record.message]) == 1
    chat.replays()


@pytest.mark.parametrize("strategy", ["sliding_turns", "heads_tails", "stable_prefix"])
@pytest.mark.rows(1)
def test_every_strategy_keeps_them(strategy: str):
    conversation = {"strategy": [strategy], "sliding_turns": {"tokens": 4_000}, "stable_prefix": {"threshold": 0.5}}
    policy = small(8_000, offload={"tools": {"read": "keep"}}, conversation=conversation)
    talk = ["It is a house. " * 120] * 12
    chat = Chat([*talk[:2], call("read", area="stairs"), *talk[2:]], [reader("read")], policy)
    chat.say(*turns(10))
    assert read_of(chat.sent[-1]).count("It is a house. ") < 120 * 8
    assert all(whole(sent, "stairs") for sent in chat.sent[3:])
    chat.replays()


def test_a_result_for_which_the_window_has_no_room_is_told():
    chat = Chat([call("read", area="stairs")], [reader("read", 20)], small(3_000, offload={"tools": {"read": "keep"}}))
    chat.say("go", "And this: " + " ".join(f"word{at}" for at in range(4_000)))
    assert not whole(chat.sent[-1], "stairs", 20)
    assert unkept(chat)[-1].endswith("the window has no room for it")


def test_another_agent_keeps_what_it_is_shown_of_them():
    talk = ["It is a house. " * 120] * 6
    sub = LlmAgent(name="teller", model=Scripted(script=list(talk), sent=[]), description="Tells.", instruction="Tell.")
    root = Scripted(script=[call("read", area="stairs"), call("transfer_to_agent", agent_name="teller")], sent=[])
    lead = LlmAgent(name="lead", model=root, instruction="You lead.", tools=[reader("read")], sub_agents=[sub])
    chat = Chat(agent=lead, policy=small(8_000, offload={"tools": {"read": "keep"}}))
    chat.say(*turns(6))
    last = chat.sent[-1]
    assert last.agent == "teller"
    assert any(was_cut(manifest) for manifest in chat.manifests())
    assert whole(last, "stairs")
    assert unkept(chat) == []


def test_never_is_no_rule():
    with pytest.raises(
        PolicyError, match=r"'never' is neither a rule nor a registered extractor: known are whole, keep"
    ):
        ContextPackPlugin(policy=PackPolicy(offload={"tools": {"read": "never"}}), store="memory://unused")
