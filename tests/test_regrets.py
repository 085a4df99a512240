"""Regrets: what a cut had taken and came back, planted in a talk beside repeats that no cut is to blame for."""

from __future__ import annotations

import re
from typing import Any

import pytest
from keeping import CURE, NOTHING_RETURNS, changed
from plans import words
from scripted import Chat, call, was_cut
from teams import agent
from terminal import run, told

from aether_context import PackPolicy
from aether_context.lab.cli import regrets as command

TIGHT = PackPolicy(max_input_tokens=4_000, offload={"mode": "off"}, **NOTHING_RETURNS)
WIDE = PackPolicy(max_input_tokens=100_000, offload={"mode": "off"})
CRATE = "Please remember that the green crate with the oranges belongs to Thora of Bergen."
BOAT = "The blue boat leaves the harbour of Husum on Friday at nine."


def weigh(item: str) -> str:
    """Weighs an item."""
    return f"{item} weighs {len(item) * 37} kilograms, by the scale of the {item} dock. {words(60, item[0])}"


def talk(policy: PackPolicy) -> Chat:
    """Ten turns, each long. The crate's weight is asked three times, and two messages are said twice."""
    weighs = {1: "crate", 2: "anchor", 3: "anchor", 7: "crate", 8: "crate"}
    searches = {9: call("search_artifact", uri="artifact://history", query="oranges")}
    messages = {0: CRATE, 1: BOAT, 2: BOAT, 6: CRATE, 8: f"Now, {BOAT.lower()} Is that so?", 9: "Who owns a crate?"}
    script: list[Any] = []
    for turn in range(10):
        script += [call("weigh", item=weighs[turn])] if turn in weighs else []
        script += [searches[turn]] if turn in searches and policy is not WIDE else []
        script.append(f"Noted. {words(250, f'a{turn}w')}")
    chat = Chat(policy=policy, script=script, tools=[weigh])
    chat.say(*(f"{messages.get(turn, '')} Turn {turn}: {words(150, f't{turn}w')}" for turn in range(10)))
    return chat


def test_planted_repeats_are_found_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_MOST_PACKS", 0)  # no cures, which the next test is about
    chat = talk(TIGHT)
    # Each call that cut, and each that has what a cut took; those that repeat what still stands are not named.
    assert [manifest.number for manifest in chat.manifests() if was_cut(manifest)] == [6, 9, 11, 15]
    found = told("regrets", store=chat.store)["regrets"]
    assert [(one["number"], one["kind"], one["tool"], one["cut"]) for one in found] == [
        (6, "asked again", "weigh", 6),
        (10, "said again", "", 6),
        (11, "asked again", "weigh", 6),
        (13, "said again", "", 9),
        (15, "fetched", "", 15),
    ]
    assert (found[1]["text"], found[3]["text"]) == (CRATE, BOAT)
    asked = chat.raw[11].answers("weigh")[-1]
    assert "crate weighs 185 kilograms" in str(asked)
    assert [one["cost_usd"] for one in found] == pytest.approx([one["tokens"] * 0.3 / 1e6 for one in found])
    output = run("regrets", store=chat.store).stdout
    assert "call 10 of session s1: said again" in output
    assert re.search(r"^5 texts came back after a cut: [\d,]+ tokens, \$0\.00\d+$", output, re.MULTILINE)


def test_a_second_transfer_to_an_agent_is_no_regret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "_MOST_PACKS", 0)
    there, back = (call("transfer_to_agent", agent_name=name) for name in ("dock", "clerk"))
    dock = agent("dock", [back, f"Noted. {words(250, 'd')}"] * 10, tools=[])
    clerk = agent("clerk", [there, f"Noted. {words(250, 'c')}"] * 10, tools=[], sub_agents=[dock])
    chat = Chat(policy=TIGHT, agent=clerk)
    chat.say(*(f"Turn {turn}: {words(150, f't{turn}w')}" for turn in range(10)))
    assert sum(was_cut(manifest) for manifest in chat.manifests()) > 1
    assert told("regrets", store=chat.store)["regrets"] == []


@pytest.mark.slow
def test_the_named_setting_keeps_what_came_back() -> None:
    chat = talk(TIGHT)
    value = told("regrets", store=chat.store)["regrets"]
    assert len(value) == 5
    said = value[1]
    name, setting = CURE.fullmatch(said["cure"]).groups()  # type: ignore[union-attr]
    kept = talk(changed(TIGHT, name, setting))
    before = next(one for one in kept.manifests() if one.turn == 7).number - 1
    assert CRATE in " ".join(kept.sent[before - 1].wires)
    assert CRATE not in " ".join(chat.sent[9 - 1].wires)


def test_where_nothing_was_cut_nothing_came_back() -> None:
    chat = talk(WIDE)
    assert not any(map(was_cut, chat.manifests()))
    assert run("regrets", store=chat.store).stdout == "0 texts came back after a cut: 0 tokens\n"
