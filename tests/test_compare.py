"""Arms are compared by what their sessions came to: a known difference is found, and none is not."""

from __future__ import annotations

import json
import random

import pytest
from click.testing import CliRunner
from recorded_sessions import edit, read_file
from scripted import Chat, call, new_store

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.cli import main
from aether_context.exam import hold_exam
from aether_context.exam.recordings import folders
from aether_context.tuning.arms import compare_arms, report_arms

SEEDS = range(20)


def simulated(seed: int, *, effect: float) -> dict[str, list[dict[str, float]]]:
    """400 sessions of two arms whose costs are long-tailed; the second costs more by a share."""
    chance = random.Random(seed)
    arms: dict[str, list[dict[str, float]]] = {"a": [], "b": []}
    for number in range(400):
        arm = "ab"[number % 2]
        cost = chance.lognormvariate(-3, 0.6) * (1 + effect * (arm == "b"))
        recall = min(100.0, max(0.0, chance.gauss(70, 15) - 100 * effect / 2 * (arm == "b")))
        others = {"cached": chance.uniform(60, 95), "refused": chance.choice((0.0,) * 9 + (5.0,))}
        accepted = 100.0 * (chance.random() < 0.8)
        arms[arm].append({**others, "cost": cost, "overflows": 0.0, "recall": recall, "accepted": accepted})
    return arms


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_known_difference_is_found(seed: int) -> None:
    report = report_arms(simulated(seed, effect=0.5))
    shown = {one.measure for one in report.contrasts if one.more_sessions is None}
    assert {"cost", "recall"} <= shown
    (cost,) = [one for one in report.contrasts if one.measure == "cost"]
    assert cost.difference.low > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_where_there_is_none_none_is_seen(seed: int) -> None:
    report = report_arms(simulated(seed, effect=0.0))
    assert [one.measure for one in report.contrasts if one.more_sessions is None] == []
    assert all("no difference seen yet" in str(one) for one in report.contrasts)
    assert all(f"about {one.more_sessions:,} more" in str(one) for one in report.contrasts if one.difference.mean)


def test_few_sessions_show_nothing() -> None:
    few = {arm: sessions[:10] for arm, sessions in simulated(1, effect=3.0).items()}
    report = report_arms(few)
    assert all(one.more_sessions for one in report.contrasts)
    (cost,) = [one for one in report.contrasts if one.measure == "cost"]
    assert cost.more_sessions >= 2 * (30 - 10)


def spread(middle: float) -> list[dict[str, float]]:
    return [{"cost": middle + (-1) ** number} for number in range(100)]


def test_the_plan_is_for_the_test_that_decides() -> None:
    """The difference is 2.4 standard errors: 5% (one-sided) would have shown it, and 1% in two tails does not."""
    (cost,) = report_arms({"a": spread(10.0), "b": spread(10.339)}).contrasts
    assert 0.01 < cost.chance < 0.05
    # Normal quantiles of 1% in two tails and of a power of 80%: (2.576 + 0.842)**2 * 2.02 / 0.339**2 sessions of each.
    assert cost.more_sessions == pytest.approx(2 * (206 - 100), abs=4)


def test_of_many_measures_each_takes_more_sessions() -> None:
    arms = {"a": spread(10.0), "b": spread(10.339)}
    (alone,) = report_arms(arms).contrasts
    noise = {"cached": 50.0, "refused": 1.0, "recall": 70.0, "accepted": 80.0}
    many = {
        arm: [
            session | {name: mean + (-1) ** (at // 2) for name, mean in noise.items()} for at, session in enumerate(of)
        ]
        for arm, of in arms.items()
    }
    report = report_arms(many)
    (cost,) = [one for one in report.contrasts if one.measure == "cost"]
    assert cost.more_sessions > 1.3 * alone.more_sessions
    assert {one.more_sessions for one in report.contrasts if one.measure != "cost"} == {0}, "no number would show none"
    assert "no difference seen yet" in str(report.contrasts[-1])
    assert "about" not in str(report.contrasts[-1])


def test_the_arms_of_recorded_sessions_are_told_apart() -> None:
    store = new_store()
    for number in range(8):
        plugin = ContextPackPlugin(store=store, arms={"chat": 0.5, "observe": 0.5}, on_error="raise")
        script = [call("read_file", name=f"src/file_{number}.py"), "It holds values.", "Yes."]
        Chat(plugin=plugin, tools=[read_file, edit], script=script, session=f"s{number}").say("Read it.", "Sure?")
    report = compare_arms(store)
    assert sum(report.sessions.values()) == 8
    assert set(report.sessions) == {"chat", "observe"}
    assert report.means["chat"]["recall"].mean == 100
    assert not report.means["observe"]["recall"].sessions, "its packs were never sent"
    found = CliRunner().invoke(main, ["compare", store.url, "--json"], catch_exceptions=False)
    assert found.exit_code == 0
    assert {name: arm["sessions"] for name, arm in json.loads(found.stdout)["arms"].items()} == report.sessions
    assert "no difference seen yet" in CliRunner().invoke(main, ["compare", store.url]).stdout


def test_an_observed_session_is_judged_by_what_was_sent_and_one_of_hashes_by_the_rest() -> None:
    store = new_store()
    policies = {"observe": PackPolicy(max_input_tokens=2_000), "hashes": PackPolicy(record="hashes")}
    for number in range(4):
        observed = ContextPackPlugin(policy=policies["observe"], store=store, arms={"observe": 1.0})
        Chat(plugin=observed, script=["Fine."] * 3, session=f"o{number}").say("word " * 3_000, "And?", "So?")
        packed = ContextPackPlugin(store=store, arms={"chat": 1.0})
        packed._arms.packers["chat"].policy = policies["hashes"]
        Chat(plugin=packed, script=["Fine."], session=f"c{number}").say("Hello.")
    report = compare_arms(store)
    assert report.sessions == {"chat": 4, "observe": 4}
    assert report.means["observe"]["overflows"].mean == 100
    assert report.means["chat"]["cost"].sessions == 4
    assert not report.means["chat"]["recall"].sessions


def test_options_of_a_store_reach_its_sessions() -> None:
    recorded = new_store()
    Chat(store=recorded).say("Hello.")
    store = PackStore(recorded.url, skip_instance_cache=True)
    (folder,) = folders([store])
    assert folder.store.files.options == {"skip_instance_cache": True}
    assert hold_exam(store).sessions


def test_a_store_without_arms_says_so() -> None:
    store = new_store()
    Chat(store=store, script=["one"]).say("Hello.")
    found = CliRunner().invoke(main, ["compare", store.url])
    assert found.exit_code == 3
    assert "has an arm" in found.output
