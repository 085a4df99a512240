"""Tuning: sessions are played as they were, what is measured is what was used, and chance changes no policy."""

from __future__ import annotations

import json
import random
import re
import sys
from itertools import combinations

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from recorded_sessions import SMALL, read_file, record
from scripted import Chat, Scripted, call, new_store, was_cut
from terminal import run, told

from aether_context import PackPolicy
from aether_context.lab.cli.tuning import policy_file
from aether_context.lab.tuning.simulation import Change, Played
from aether_context.lab.tuning.tuner import Tuner, executor, grid
from aether_context.lab.tuning.verdict import (
    TuningVerdict,
    adjusted,
    compare,
    decide,
    effective,
    holm,
    needed_sessions,
    paired_difference,
    search,
)
from aether_context.pack import FLEXIBLE_LAYERS
from aether_context.policy import PROFILES


def run_main(*arguments, command="tune"):
    return run(command, *arguments, "--jobs", "1", code=None)


def run_check(store, policy, *arguments):
    return run_main(store.url, "--policy", str(policy), *arguments, command="check")


def changed_and_loaded(store, path, profile="chat"):
    """A policy of the grid, and what a file of it is loaded as."""
    with executor(1) as workers:
        recordings = Tuner([store.url], workers).recordings(profile)
    name, policy = next(iter(grid(recordings.base).items()))
    verdict = TuningVerdict(kind="more kept", reason="more is kept", trials={}, chosen=name)
    path.write_text(policy_file(recordings, verdict, "here"), encoding="utf-8")
    return policy, PackPolicy.load(path)


def is_played_byte_for_byte(store):
    """Whether all of a store's requests are built again as they were."""
    output = run_check(store, "chat", "--all").output
    calls = len(list(store.manifests()))
    return f"{calls} of {calls} requests are built again byte for byte" in output


def test_a_tool_loop_with_cuts_is_played_byte_for_byte():
    store = new_store()
    record(store, 1)
    assert sum(map(was_cut, store.manifests())) > 1
    assert is_played_byte_for_byte(store)


def test_a_chat_whose_turns_return_is_played_byte_for_byte():
    store = new_store()
    talk = [f"Note {number}: the {name} is in drawer {number * 17}." for number, name in enumerate("abcdefgh" * 2)]
    policy = PackPolicy(max_input_tokens=1_200)
    chat = Chat(store=store, policy=policy, script=["Noted, it is written down. " * 9] * 60)
    chat.say(*talk, "Where is the c?", "And which note said so?")
    assert any(manifest.searched for manifest in store.manifests())
    assert sum(map(was_cut, store.manifests())) > 1
    assert is_played_byte_for_byte(store)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_grid_moves_shares_inside_the_ranges_of_the_profile(profile):
    base = PackPolicy.load(profile)
    policies = grid(base)
    assert len(policies) == 24
    for name, policy in policies.items():
        middles = {layer: getattr(policy.budget.shares, layer).middle for layer in FLEXIBLE_LAYERS}
        usual = {layer: getattr(base.budget.shares, layer) for layer in FLEXIBLE_LAYERS}
        assert sum(middles.values()) == pytest.approx(sum(allowed.middle for allowed in usual.values()))
        for layer, allowed in usual.items():
            moved = getattr(policy.budget.shares, layer)
            assert allowed.low <= moved.low < moved.high <= allowed.high
            assert (middles[layer] > allowed.middle) == name.startswith(f"{layer} for")
            assert (middles[layer] < allowed.middle) == (f"for {layer}" in name)


def test_a_file_holds_the_policy_whatever_it_names(tmp_path):
    odd = SMALL.changed(
        tools={"always": ("a", 'b"c')},
        limits={"agents": {"*": {"total_tokens": 10**9}, "clerk": {"cost_usd": 0.5}, "any \x7f \U0001f600": {}}},
        preset="cost_first",
    )
    store = new_store()
    record(store, 1, steps=2, policy=odd)
    changed, loaded = changed_and_loaded(store, tmp_path / "chat.toml")
    assert loaded == changed
    assert loaded.limits == odd.limits


def test_known_figures():
    assert effective([1, 1, 1, 1]) == 4
    assert effective([1, 0, 0, 0]) == 1
    assert effective([91, 3, 3, 3]) == pytest.approx(1.2, abs=0.05)
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert needed_sessions(10, 5) == 32
    found = paired_difference([1.0, 2.0, 3.0, 4.0] * 10, 0)
    assert (found.mean, found.sessions) == (2.5, 40)
    assert found.low == pytest.approx(2.15, abs=0.05)
    assert found.high == pytest.approx(2.85, abs=0.05)
    assert found.chance_of(below=0.0) == pytest.approx(2e-4, rel=0.1)


SESSIONS = tuple(f"session {number}" for number in range(80))


def of(cost, kept, needed=100):
    return Played(cost=cost, needed=needed, kept=(kept,))


def decided(cost, kept=90, *, found=None, sessions=80, needed=100, **options):
    """The verdict on a policy that makes a session cost so much in the place of 100, and keep so much in the place of
    90; ``found`` are the costs on the sessions that were not searched."""
    names = SESSIONS[:sessions]
    base = {name: of(100.0, 90 if needed else 0, needed) for name in names}
    after = {name: of(cost, kept if needed else 0, needed) for name in names}
    tested = {
        name: of(value, kept if needed else 0, needed) for name, value in zip(names, found or [cost] * 80, strict=False)
    }
    return decide(search(base, {"other": after}, 0), lambda _: compare(base, tested, 0), **options)


def noisy(middle, width):
    chance = random.Random(1)
    return [middle + width * (chance.random() - 0.5) for _ in range(80)]


def test_a_cheaper_policy_that_holds_on_other_sessions_is_recommended():
    verdict = decided(90.0, found=noisy(90.5, 1))
    assert verdict.kind == "cheaper at the same retention"
    assert verdict.check.cost.mean == pytest.approx(-9.5, abs=0.2)
    assert verdict.check.cost.low < verdict.check.cost.mean < verdict.check.cost.high


def test_more_is_kept_for_what_may_be_spent():
    verdict = str(decided(104.0, 95, spend=5))
    assert verdict.startswith("change to 'other', more kept: cost +4.00% [+4.00, +4.00], retention +5.00 points")
    assert re.search(r"in 80 of 80 sessions that were not searched; chance 0\.\d\d%$", verdict), verdict
    verdict = decided(104.0, 95)
    assert verdict.kind == "no change"
    assert "'other' keeps 5.0 points more for 4.0% (--spend)" in verdict.reason
    assert decided(100.0, 95).kind == "more kept"


def test_what_does_not_hold_changes_nothing():
    assert decided(90.0, found=noisy(100, 6)).kind == "no change"
    assert decided(90.0, 80).kind == "no change"


def test_too_few_sessions_are_told_with_how_many_would_do():
    assert str(decided(90.0, sessions=14)) == "no change: 28 sessions, about 30 are needed"
    assert decided(90.0, sessions=15).kind == "cheaper at the same retention", "of thirty, half are searched"


def test_a_policy_that_passes_the_window_or_fails_a_session_is_out():
    base = {name: of(100.0, 90) for name in SESSIONS}
    cheaper = {name: of(90.0, 90) for name in SESSIONS}
    over = cheaper | {SESSIONS[0]: Played(cost=90.0, over=1, needed=100, kept=(90,))}
    lacking = {name: cheaper[name] for name in SESSIONS[1:]}
    for outcomes in (over, lacking):
        searched = decide(search(base, {"other": outcomes}, 0), lambda _: compare(base, cheaper, 0))
        tested = decide(search(base, {"other": cheaper}, 0), lambda _, found=outcomes: compare(base, found, 0))
        assert (searched.kind, tested.kind) == ("no change", "no change")


def test_of_several_profiles_each_has_to_hold_beside_the_others():
    (found,) = adjusted([TuningVerdict(kind="more kept", reason="", trials={}, chosen="other", chance=0.03)])
    assert found.kind == "more kept"
    of_two = [
        TuningVerdict(kind="more kept", reason="", trials={}, chosen="other", chance=chance) for chance in (0.001, 0.03)
    ]
    assert [verdict.kind for verdict in adjusted([*of_two, of_two[1]])] == ["more kept", "no change", "no change"]


@pytest.mark.slow
def test_chance_changes_nothing():
    """Sessions that differ, each of which comes to something else under every policy, none of which is better."""
    chance = random.Random(7)

    def outcomes(sessions, means):
        return {name: of(means[name] * chance.uniform(0.9, 1.1), round(chance.gauss(60, 15))) for name in sessions}

    def kind(seed):
        means = {name: chance.lognormvariate(4, 0.5) for name in SESSIONS}
        searched, tested = SESSIONS[::2], SESSIONS[1::2]
        others = {str(number): outcomes(searched, means) for number in range(24)}
        trials = search(outcomes(searched, means), others, seed)
        return decide(trials, lambda _: compare(outcomes(tested, means), outcomes(tested, means), seed)).kind

    kinds = [kind(seed) for seed in range(40)]
    assert kinds.count("no change") >= 37, kinds


@pytest.fixture(scope="module")
def shop():
    store = new_store()
    record(store, 4, steps=8)
    return store


def test_few_sessions_change_nothing(shop, tmp_path):
    found = run_main(shop.url, "-o", str(tmp_path / "policies"))
    assert found.exit_code == 0, found.output
    assert found.stdout == "chat: no change: 4 sessions, about 30 are needed\n"
    assert found.stderr == "no policy is written for chat: no change\n"
    assert not (tmp_path / "policies").exists()


@pytest.mark.slow
def test_all_figures_of_few_sessions_are_shown(shop):
    found = run_main(shop.url, "--all")
    assert re.search(r"\b([1-9]\d*) of \1 requests are built again byte for byte", found.output)
    assert "chat: no change" in found.output


def test_a_worse_policy_fails_the_check(shop, tmp_path):
    worse = tmp_path / "worse.toml"
    worse.write_text(
        "max_input_tokens = 2000\n[conversation]\ncompact_at = 0.3\ncompact_to = 0.1\nsummary_share = 0\n"
        "[retrieval]\nmemory_k = 0\nrecall = false\n"
    )
    found = run_check(shop, worse)
    assert found.exit_code == 1
    assert "loses: retention changes by less than -1 points; cost -" in found.output
    same = tmp_path / "same.toml"
    same.write_text("max_input_tokens = 2000\n")
    assert run_check(shop, same).exit_code == 0


def test_a_preset_is_checked_in_the_recorded_window(shop):
    """A bare preset names no window, and was once played in the model's own, which is a hundred times as large."""
    found = run_check(shop, "cost_first", "--all")
    words = re.search(r"\| all sessions .*|all sessions .*", found.output)[0]
    cost = float(re.search(r"([+-]\d+\.\d+)%", words)[1])
    assert cost < 0, found.output
    assert PackPolicy.load("cost_first").over(SMALL).max_input_tokens == SMALL.max_input_tokens
    assert PackPolicy.load("cost_first").over(SMALL).conversation == PackPolicy.load("cost_first").conversation


def test_a_model_that_no_window_is_named_for_keeps_the_recorded_one(shop, tmp_path):
    """By `check --policy`, which took its default, and by `replay --policy`."""
    other = tmp_path / "other.toml"
    other.write_text('max_input_tokens = { "another-model" = 500 }\n')
    (result,) = json.loads(run_check(shop, other, "--json").stdout)
    assert result["worst"] == []
    assert told("replay", "--policy", other, store=shop)["same"]


def test_what_a_policy_names_lies_over_the_recorded_one():
    recorded = PackPolicy(
        **PackPolicy.load("research", preset="cost_first", max_input_tokens=9_000, redact=("email",)).model_dump()
    )
    assert PackPolicy().over(recorded) == recorded
    assert PackPolicy.load("balanced").over(recorded) == recorded.changed(preset="balanced")
    assert PackPolicy(conversation={"compact_to": 0.1}).over(recorded) == recorded.changed(
        conversation={"compact_to": 0.1}
    )
    assert PackPolicy(max_input_tokens=512).over(recorded).max_input_tokens == 512


def test_the_verdict_comes_first_and_one_session_has_no_interval():
    store = new_store()
    record(store, 1, steps=12)
    found = run_check(store, "cost_first")
    assert re.match(r"chat: (holds|loses): ", found.output)
    assert "[" not in found.output


TEAM = PackPolicy(
    max_input_tokens=6_000,
    agents={"editor": {"max_input_tokens": 2_000, "conversation": {"compact_to": 0.3}}, "reviewer": "coding"},
)


@pytest.fixture(scope="module")
def team():
    """Sessions of a clerk, who has no table, of an editor that runs as a tool, and of a reviewer."""
    return team_store(TEAM, 2)


def team_store(policy, count):
    store = new_store()
    for number in range(count):
        reads = [call("read_file", name=f"src/{number}_{at}.py") for at in range(10)]
        clerk = LlmAgent(
            name="clerk",
            model=Scripted(
                script=[call("editor", request="Read the files."), call("reviewer", request="Ok?"), "Done."]
            ),
            tools=[
                AgentTool(agent=LlmAgent(name=name, model=Scripted(script=script), tools=[read_file]))
                for name, script in (("editor", [*reads, "Read."]), ("reviewer", [*reads[:2], "Ok."]))
            ],
        )
        Chat(agent=clerk, store=store, policy=policy, session=f"s{number}").say("Work through the files, please.")
    return store


def test_each_agent_is_played_under_its_own_table(team, tmp_path):
    assert {manifest.agent: manifest.window for manifest in team.manifests()} == {
        "clerk": 6_000, "editor": 2_000, "reviewer": 6_000
    }  # fmt: skip
    assert any(was_cut(manifest) for manifest in team.manifests() if manifest.agent == "editor")
    broad, named = tmp_path / "broad.toml", tmp_path / "named.toml"
    broad.write_text("[conversation]\ncompact_to = 0.7\n")
    named.write_text("[agents.editor.conversation]\ncompact_to = 0.7\n")
    output = run_check(team, broad, "--all").output
    assert len(re.findall(r"\b([1-9]\d*) of \1 requests are built again byte for byte", output)) == 2
    assert "recorded under" not in output, "tables of agents are of the one policy"
    for result in json.loads(run_check(team, broad, "--json").stdout):
        # The editor's table names it, and nobody else is near the window.
        assert (result["verdict"], result["worst"]) == ("holds", [])
    chat, _ = json.loads(run_check(team, named, "--json").stdout)
    assert len({re.search(r"session (\S+), editor", call["words"])[1] for call in chat["worst"]}) == 2


def test_settings_that_only_one_agent_has_stay_as_recorded(tmp_path):
    """No call was recorded under the app's own policy, which alone holds the tables."""
    store = team_store(
        TEAM.changed(agents={"clerk": {"retrieval": {"memory_k": 3}}, "reviewer": {"max_input_tokens": 5_000}}), 1
    )
    output = run_main(store.url, "--profile", "chat", "--all").output
    assert re.search(r"\b([1-9]\d*) of \1 requests are built again byte for byte", output), output
    shared, own = tmp_path / "shared.toml", tmp_path / "own.toml"
    shared.write_text("[conversation]\nsummary_share = 0\n")
    own.write_text("max_input_tokens = 60000\n[conversation]\ncompact_to = 0.7\n")
    changed = {}
    for path in (shared, own):
        result, *_ = json.loads(run_check(store, path, "--json").stdout)
        changed[path.stem] = len({call["words"].split(":")[0] for call in result["worst"]}) > 0
    assert changed == {"shared": True, "own": False}, "the editor's window and depth are its own"


def test_the_tuned_file_keeps_the_tables(team, tmp_path):
    for profile in ("chat", "coding"):
        changed, tuned = changed_and_loaded(team, tmp_path / f"{profile}.toml", profile)
        assert tuned == changed
        assert tuned.agents == TEAM.agents
        assert tuned.for_agent("clerk", profile).max_input_tokens == 6_000


@pytest.mark.slow
def test_a_policy_comes_to_the_same_whichever_is_played_first():
    """What is far from a cut is played once for all policies."""
    store, base = new_store(), SMALL.changed(max_input_tokens=3_000)
    record(store, 1, steps=10, policy=base)

    def beside(first, second):
        with executor(1) as workers:
            tuner = Tuner([store.url], workers, base=first)
            found, _ = tuner.check(tuner.recordings("chat"), Change(policy=PackPolicy(**second.model_dump())))
        return found.cost.mean, found.retention.mean

    early = base.changed(conversation={"compact_at": 0.6, "compact_to": 0.25})
    for first, second in combinations([base, early, base.changed(max_input_tokens=900)], 2):
        (cost, retention), (cost_back, retention_back) = beside(first, second), beside(second, first)
        assert cost != 0
        assert (1 + cost / 100) * (1 + cost_back / 100) == pytest.approx(1)
        assert retention == pytest.approx(-retention_back)


def told_of(shop, scheduler):
    return run("tune", shop.url, "--scheduler", scheduler, code=None)


def test_a_missing_cluster_is_told(shop, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    found = told_of(shop, "tcp://there:1")
    assert found.exit_code > 1
    assert re.search(r"pip install distributed$", found.output, re.MULTILINE)


@pytest.mark.integration
def test_a_scheduler_that_does_not_answer_is_told(shop):
    pytest.importorskip("distributed")
    assert "no Dask scheduler answers at nothing" in told_of(shop, "nothing").output
