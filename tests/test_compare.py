"""Arms are compared by what their sessions came to: a known difference is found, and none is not."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from packs import recording
from recorded_sessions import edit, read_file
from scripted import Chat, call, new_store
from terminal import run, told

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.lab.exam import hold_exam

SEEDS = range(4)


def compared(arms: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """What a store tells of arms whose sessions have one call each, with these outcomes."""
    store, template = new_store(), recording(policy=PackPolicy(record="hashes"))
    for arm, outcomes in arms.items():
        for number, outcome in enumerate(outcomes):
            store.write(template.changed(session=f"{arm}{number}", arm=arm), {"output_tokens": 0, **outcome})
    contrasts: list[dict[str, Any]] = told("compare", store=store, code=None)["contrasts"]
    return contrasts


def simulated(seed: int, *, effect: float, count: int = 200) -> dict[str, list[dict[str, Any]]]:
    """Sessions of two arms whose costs are long-tailed; the second costs more by a share, and is accepted less."""
    chance = random.Random(seed)
    arms: dict[str, list[dict[str, Any]]] = {"a": [], "b": []}
    for number in range(2 * count):
        arm = "ab"[number % 2]
        tokens = round(10_000 * chance.lognormvariate(0, 0.6) * (1 + effect * (arm == "b")))
        passed = chance.random() < 0.8 - effect / 2 * (arm == "b")
        cached = {"cached_tokens": round(tokens * chance.uniform(0.6, 0.95) / 2)}
        arms[arm].append({"input_tokens": tokens, **cached, "acceptance": {"passed": passed}})
    return arms


def shown(contrasts: Sequence[Mapping[str, Any]]) -> set[str]:
    return {one["measure"] for one in contrasts if one["more_sessions"] is None}


@pytest.mark.rows(0, slow=1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_known_difference_is_found(seed: int) -> None:
    contrasts = compared(simulated(seed, effect=0.5))
    assert shown(contrasts) == {"cost", "accepted"}
    (cost,) = [one for one in contrasts if one["measure"] == "cost"]
    assert cost["difference"]["low"] > 0


@pytest.mark.rows(0, slow=1)
@pytest.mark.parametrize("seed", SEEDS)
def test_where_there_is_none_none_is_seen(seed: int) -> None:
    assert shown(compared(simulated(seed, effect=0.0))) == set()


def test_few_sessions_show_nothing() -> None:
    contrasts = compared(simulated(1, effect=1.0, count=10))
    assert shown(contrasts) == set()
    (cost,) = [one for one in contrasts if one["measure"] == "cost"]
    assert cost["more_sessions"] >= 2 * (30 - 10)


def spread(middle: int, **more: Any) -> list[dict[str, Any]]:
    return [{"input_tokens": middle + (-1) ** number * 100_000, **more} for number in range(100)]


@pytest.mark.slow
def test_the_plan_is_for_the_test_that_decides() -> None:
    """It is 2.2 standard errors: 5% in two tails would show it, and of three measures do not."""
    arms = {"a": spread(1_000_000), "b": spread(1_031_100)}
    (alone,) = [one for one in compared(arms) if one["measure"] == "cost"]
    assert 0.05 < alone["chance"] < 0.15
    # Normal quantiles of a third of 5% in two tails and of a power of 80%: (2.394 + 0.842)**2 * 2.02 / 0.311**2.
    assert alone["more_sessions"] == pytest.approx(2 * (219 - 100), abs=6)
    noise = [{"acceptance": {"passed": at % 4 < 2}, "cached_tokens": 10_000 * (1 + at % 4 // 2)} for at in range(100)]
    many = compared({arm: [one | other for one, other in zip(of, noise, strict=True)] for arm, of in arms.items()})
    (cost,) = [one for one in many if one["measure"] == "cost"]
    assert cost["more_sessions"] > alone["more_sessions"], "of many measures each takes more sessions"
    (accepted,) = [one for one in many if one["measure"] == "accepted"]
    assert accepted["more_sessions"] == 0, "no number would show a difference"


def test_the_arms_of_recorded_sessions_are_told_apart() -> None:
    store = new_store()
    for number in range(8):
        plugin = ContextPackPlugin(store=store, arms={"chat": 0.5, "observe": 0.5}, on_error="raise")
        script = [call("read_file", name=f"src/file_{number}.py"), "It holds values.", "Yes."]
        Chat(plugin=plugin, tools=[read_file, edit], script=script, session=f"s{number}").say("Read it.", "Sure?")
    arms = told("compare", store=store, code=None)["arms"]
    assert set(arms) == {"chat", "observe"}
    assert sum(arm["sessions"] for arm in arms.values()) == 8
    assert not arms["observe"]["answered"]["sessions"], "its packs were never sent"
    first = run("compare", store=store, code=None).stdout
    assert re.fullmatch(r"no difference seen yet: sessions of \w+: \d, \w+: \d(, about \d+ more are needed)?\n", first)
    assert run("compare", "--all", store=store, code=None).stdout.startswith(first)


def test_an_observed_session_is_judged_by_what_was_sent_and_one_of_hashes_by_the_rest() -> None:
    store = new_store()
    policies = {"observe": PackPolicy(max_input_tokens=2_000), "hashes": PackPolicy(record="hashes")}
    for number in range(4):
        observed = ContextPackPlugin(policy=policies["observe"], store=store, arms={"observe": 1.0})
        Chat(plugin=observed, script=["Fine."] * 3, session=f"o{number}").say("word " * 3_000, "And?", "So?")
        packed = ContextPackPlugin(store=store, arms={"chat": 1.0})
        packed._arms.packers["chat"].policy = policies["hashes"]
        Chat(plugin=packed, script=["Fine."], session=f"c{number}").say("Hello.")
    arms = told("compare", store=store, code=None)["arms"]
    assert {name: arm["sessions"] for name, arm in arms.items()} == {"chat": 4, "observe": 4}
    assert arms["observe"]["overflows"]["mean"] == 100
    assert arms["chat"]["cost"]["sessions"] == 4
    assert not arms["chat"]["answered"]["sessions"]


class Locked(MemoryFileSystem):  # type: ignore[misc]
    """Files that are reached with a key alone."""

    protocol, cachable = "locked", False

    def __init__(self, key: str = "", **options: Any) -> None:
        if key != "k":
            raise PermissionError("no key")
        super().__init__(**options)


def test_options_of_a_store_reach_its_sessions() -> None:
    fsspec.register_implementation("locked", Locked, clobber=True)
    store = PackStore("locked://compare", key="k")
    Chat(store=store).say("Hello.")
    assert hold_exam(store).sessions


def test_a_store_without_arms_says_so() -> None:
    store = new_store()
    Chat(store=store, script=["one"]).say("Hello.")
    assert "has an arm" in run("compare", store=store, code=3).output
