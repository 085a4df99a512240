"""`check` builds recorded sessions again under a change, and fails where it is worse than its bounds."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from click.testing import Result
from recorded_sessions import SMALL, record
from scripted import Chat, call, look_up, new_store, was_cut
from terminal import run

from aether_context import PackPolicy, PackStore
from aether_context.lab.tuning.simulation import Played, cost_of
from aether_context.lab.tuning.verdict import checked, compare
from aether_context.packing import payload

WIDE = PackPolicy(max_input_tokens=20_000)


def check(store: PackStore, *arguments: str) -> Result:
    return run("check", store.url, "--jobs", "1", *arguments, code=None)


@pytest.fixture(scope="module")
def shop() -> PackStore:
    store = new_store()
    record(store, 2, steps=8)
    assert any(map(was_cut, store.manifests()))
    return store


def test_this_version_against_what_is_recorded_holds(shop: PackStore) -> None:
    found = check(shop, "--all")
    assert found.exit_code == 0
    assert found.output.startswith("chat: holds: cost +0.00% [+0.00, +0.00], retention +0.00 points")
    assert re.search(r"\b34 of 34 requests are built again byte for byte", found.output)
    assert "call " not in found.output


def test_another_version_that_says_more_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    for session in ("s1", "s2"):
        chat = Chat(store=store, session=session, state={"knowledge": {"notes": [{"text": "The rate is 19 percent."}]}})
        chat.say("What is the rate of tax in percent?", "And what was it?")
    assert check(store).output.startswith("chat: holds: cost +0.00%")
    longer = {key: f"{line} {'and so on ' * 40}" for key, line in payload.WORDING.items()}
    monkeypatch.setattr(payload, "WORDING", longer)
    found = check(store)
    assert found.exit_code == 1, found.output
    assert re.match(r"chat: loses: cost rises by more than 2%; .*\n  call \d+ of session s\d, clerk: ", found.output)


def test_a_longer_instruction_costs_what_it_is_predicted_to_cost(tmp_path: Path) -> None:
    longer = "You help. " + "Answer in whole sentences, and name the source of each figure. " * 36
    script: list[object] = [part for at in range(6) for part in (call("look_up", key=f"k{at}"), f"It is {at}.")]

    def play(instruction: str) -> Chat:
        chat = Chat(policy=WIDE, instruction=instruction, script=script, tools=[look_up])
        chat.say(*(f"What is k{at}?" for at in range(6)))
        return chat

    short, long = play("You help."), play(longer)
    file = tmp_path / "instruction.txt"
    file.write_text(longer)
    gained = long.manifests()[0].counted_tokens - short.manifests()[0].counted_tokens
    assert 480 < gained < 560
    played = sum(map(cost_of, long.manifests())) / sum(map(cost_of, short.manifests()))
    found = check(short.store, "--instruction", str(file), "--json")
    (result,) = json.loads(found.stdout)
    predicted = 1 + result["played"]["all sessions"]["cost_percent"]["mean"] / 100
    assert played > 1.1
    assert predicted == pytest.approx(played, rel=0.01)
    assert found.exit_code == 1


def test_a_tool_and_a_model_are_taken_away(shop: PackStore) -> None:
    found = check(shop, "--without-tool", "edit")
    assert (found.exit_code, re.search(r"cost -\d", found.output) is not None) == (0, True)
    assert check(shop, "--model", "gemini-2.5-flash").output.startswith("chat: holds")
    dearer = check(shop, "--model", "gemini-2.5-pro")
    assert re.search(r"cost \+[2-9]\d\d", dearer.output), dearer.output
    other = check(shop, "--without-tool", "edit", "--agent", "nobody")
    assert "cost +0.00%" in other.output


def test_a_bound_is_passed_where_it_is_named(shop: PackStore, tmp_path: Path) -> None:
    narrow, longer = tmp_path / "narrow.toml", tmp_path / "instruction.txt"
    narrow.write_text("max_input_tokens = 1_500\n")
    longer.write_text("You help. " + "Be brief and kind. " * 24)
    found = check(shop, "--policy", str(narrow))
    assert found.output.startswith("chat: loses: retention changes by less than -1 points; cost -1")
    assert check(shop, "--policy", str(narrow), "--min-answered", "-60").exit_code == 0
    found = check(shop, "--instruction", str(longer), "--max-cost", "1")
    assert found.output.startswith("chat: loses: cost rises by more than 1%; cost +1.")
    assert check(shop, "--instruction", str(longer), "--max-cost", "+40%").exit_code == 0


def test_where_nothing_can_be_built_the_code_is_3() -> None:
    store = new_store()
    Chat(store=store, policy=SMALL.changed(record="hashes")).say("hello")
    found = check(store)
    assert found.exit_code == 3
    assert "left out: " in found.stderr
    assert check(store, "--model", "nobody-knows").exit_code == 3


def alarms(draws: int, more_percent: float, seed: int) -> int:
    """How many draws of thirty sessions fail whose costs rise by so much in the mean. The spread of three points is
    above that of recorded sessions under four other policies and instructions, .3 to 2.2."""
    chance, failed = random.Random(seed), 0
    for _ in range(draws):
        means = {number: chance.lognormvariate(5, 0.8) for number in range(30)}
        before = {number: Played(cost=cost) for number, cost in means.items()}
        after = {
            number: Played(cost=cost * (1 + (more_percent + chance.gauss(0, 3)) / 100))
            for number, cost in means.items()
        }
        verdict = checked(compare(before, after, 0, frozenset(before)), 2.0, -1.0)  # type: ignore[arg-type, type-var]
        failed += verdict.kind == "loses"
    return failed


def test_five_percent_more_is_found_and_nothing_where_nothing_is() -> None:
    assert alarms(20, 5, 1) == 20
    assert alarms(20, 0, 2) == 0


@pytest.mark.slow
def test_chance_fails_no_check() -> None:
    """Also where the mean is at the bound itself, where every alarm is a false one."""
    found, at_bound, unchanged = alarms(2_000, 5, 3), alarms(2_000, 2, 4), alarms(500, 0, 5)
    assert (found >= 1_980, at_bound <= 28, unchanged) == (True, True, 0), (found, at_bound, unchanged)


def test_lost_answers_fail_a_check_whatever_they_save() -> None:
    before = {number: Played(cost=100.0, questions=10, answered=9) for number in range(30)}
    after = {number: Played(cost=90.0, questions=10, answered=9 - (number % 3 == 0)) for number in range(30)}
    verdict = checked(compare(before, after, 0, frozenset(before)), 2.0, -1.0)  # type: ignore[arg-type, type-var]
    assert verdict.reason.startswith("answers change by less than -1 points; cost -10.00%")
    assert checked(compare(before, before, 0, frozenset(before)), 2.0, -1.0).kind == "holds"  # type: ignore[arg-type, type-var]
