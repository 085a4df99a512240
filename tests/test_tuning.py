"""Tuning: sessions are played as they were, what is measured is what was used, and chance changes no policy."""

from __future__ import annotations

import random
import re
import sys

import pytest
from click.testing import CliRunner
from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from recorded_sessions import SMALL, read_file, record
from scripted import Chat, Scripted, call, new_store, was_cut

from aether_context import PackPolicy
from aether_context.cli import main
from aether_context.cli.tuning import policy_file
from aether_context.errors import MissingExtra, StoreUnavailable
from aether_context.exam.recordings import SessionFolder, folders
from aether_context.pack import FLEXIBLE_LAYERS
from aether_context.policy import PROFILES
from aether_context.tuning.simulation import Played, play
from aether_context.tuning.tuner import Recordings, Tuner, executor, grid
from aether_context.tuning.verdict import (
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


def played(store, policy=SMALL, profile="chat"):
    (folder,) = folders([store.url])
    (result,) = play(folder, profile, [policy])
    return result


def test_a_tool_loop_with_cuts_is_played_byte_for_byte():
    store = new_store()
    record(store, 1)
    found = played(store)
    assert sum(map(was_cut, store.manifests())) > 2
    assert found.same == len(found.kept) == 29


def test_a_chat_whose_turns_return_is_played_byte_for_byte():
    store = new_store()
    talk = [f"Note {number}: the {name} is in drawer {number * 17}." for number, name in enumerate("abcdefgh" * 6)]
    policy = PackPolicy(max_input_tokens=1_200)
    chat = Chat(store=store, policy=policy, script=["Noted, it is written down. " * 9] * 60)
    chat.say(*talk, "Where is the c?", "And which note said so?")
    assert any(manifest.searched for manifest in store.manifests())
    found = played(store, policy)
    assert sum(map(was_cut, store.manifests())) > 1
    assert found.same == len(found.kept)


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


def test_a_file_holds_the_tuned_policy(tmp_path):
    base = PackPolicy(
        max_input_tokens=9_000,
        tools={"always": ("a", 'b"c')},
        limits={"agents": {"*": {"total_tokens": 9}, "clerk": {"cost_usd": 0.5}, "any \x7f \U0001f600": {}}},
        preset="cost_first",
    )
    path = tmp_path / "tuned.toml"
    for profile in PROFILES:
        recordings = Recordings(
            profile=profile, base=base.for_profile(profile), policies=1, searched=SESSIONS, tested=SESSIONS
        )
        assert grid(recordings.base)
        for name, policy in grid(recordings.base).items():
            for kind, expected in (("more kept", policy), ("no change", recordings.base)):
                verdict = TuningVerdict(kind=kind, reason="two\nlines", trials={}, chosen=name)
                path.write_text(policy_file(recordings, verdict, "a store"), encoding="utf-8")
                assert PackPolicy.load(path) == expected


def test_known_figures():
    assert effective([1, 1, 1, 1]) == 4
    assert effective([1, 0, 0, 0]) == 1
    assert effective([91, 3, 3, 3]) == pytest.approx(1.2, abs=0.05)
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert needed_sessions(10, 5, 0.05) == 25
    found = paired_difference([1.0, 2.0, 3.0, 4.0] * 10, 0)
    assert (found.mean, found.sessions) == (2.5, 40)
    assert found.low == pytest.approx(2.15, abs=0.05)
    assert found.high == pytest.approx(2.85, abs=0.05)
    assert found.chance_of(below=0.0) == pytest.approx(1e-4, rel=0.1)


SESSIONS = tuple(SessionFolder(url="u", places=(f"r/app/ann/s{number}/packs/p",)) for number in range(80))


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
    assert str(decided(104.0, 95, spend=5)).startswith("more kept for +4.0%: 'other' holds")
    verdict = decided(104.0, 95)
    assert verdict.kind == "no change"
    assert "'other' keeps 5.0 points more for 4.0% (--spend)" in verdict.reason
    assert decided(100.0, 95).kind == "more kept"


def test_what_does_not_hold_changes_nothing():
    assert decided(90.0, found=noisy(100, 6)).kind == "no change"
    assert decided(90.0, 80).kind == "no change"


def test_too_few_sessions_are_told_with_how_many_would_do():
    verdict = decided(90.0, sessions=20)
    assert verdict.kind == "no change"
    assert "too few sessions: of 20 " in verdict.reason
    assert "about 30" in verdict.reason


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


def run_main(*arguments):
    return CliRunner().invoke(main, ["tune", *arguments, "--jobs", "1"], catch_exceptions=False)


@pytest.fixture(scope="module")
def shop():
    store = new_store()
    record(store, 6, steps=12)
    return store


def test_few_sessions_change_nothing(shop, tmp_path):
    found = run_main(shop.url, "-o", str(tmp_path / "policies"))
    assert found.exit_code == 0, found.output
    assert re.search(r"\b([1-9]\d*) of \1 requests are built again byte for byte", found.output)
    assert "chat: no change" in found.output
    written = tmp_path / "policies" / "chat.toml"
    assert "# chat: no change" in written.read_text()
    assert PackPolicy.load(written) == SMALL


def test_a_worse_policy_fails_the_check(shop, tmp_path):
    worse = tmp_path / "worse.toml"
    worse.write_text(
        "max_input_tokens = 2000\n[conversation]\ncompact_at = 0.3\ncompact_to = 0.1\nsummary_share = 0\n"
        "[retrieval]\nmemory_k = 0\nrecall = false\n"
    )
    found = run_main(shop.url, "--check", str(worse))
    assert found.exit_code == 1
    assert "loses: it is worse by more than 1" in found.output
    same = tmp_path / "same.toml"
    same.write_text("max_input_tokens = 2000\n")
    assert run_main(shop.url, "--check", str(same)).exit_code == 0


def test_a_preset_is_checked_in_the_recorded_window(shop):
    """A bare preset names no window, and was once played in the model's own, which is a hundred times as large."""
    found = run_main(shop.url, "--check", "cost_first")
    words = re.search(r"\| all sessions .*|all sessions .*", found.output)[0]
    cost = float(re.search(r"([+-]\d+\.\d+)%", words)[1])
    assert cost < 0, found.output
    assert PackPolicy.load("cost_first").over(SMALL).max_input_tokens == SMALL.max_input_tokens
    assert PackPolicy.load("cost_first").over(SMALL).conversation == PackPolicy.load("cost_first").conversation


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
    found = run_main(store.url, "--check", "cost_first")
    assert re.match(r"chat: (holds|loses): ", found.output)
    assert "[" not in found.output


TEAM = PackPolicy(
    max_input_tokens=6_000,
    agents={"editor": {"max_input_tokens": 2_000, "conversation": {"compact_to": 0.3}}, "reviewer": "coding"},
)


@pytest.fixture(scope="module")
def team():
    """Sessions of a clerk, who has no table, of an editor that runs as a tool, and of a reviewer."""
    store = new_store()
    for number in range(3):
        reads = [call("read_file", name=f"src/{number}_{at}.py") for at in range(14)]
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
        Chat(agent=clerk, store=store, policy=TEAM, session=f"s{number}").say("Work through the files, please.")
    return store


def test_each_agent_is_played_under_its_own_table(team):
    assert {manifest.agent: manifest.window for manifest in team.manifests()} == {
        "clerk": 6_000, "editor": 2_000, "reviewer": 6_000
    }  # fmt: skip
    assert any(was_cut(manifest) for manifest in team.manifests() if manifest.agent == "editor")
    with executor(1) as workers:
        tuner = Tuner([team.url], workers)
        for profile, count in (("chat", 1), ("coding", 1)):
            recordings = tuner.recordings(profile)
            assert recordings.base == TEAM.for_profile(profile)
            assert recordings.policies == count
            verdict = tuner.check(recordings, PackPolicy(conversation={"compact_to": 0.7}))
            assert tuner.same[profile] == tuner.calls[profile] > 0
            # The editor's table names it, and nobody else is near the window.
            assert (verdict.kind, verdict.trials["all sessions"].cost.sessions) == ("holds", 0)
        recordings = tuner.recordings("chat")
        named = PackPolicy(agents={"editor": {"conversation": {"compact_to": 0.7}}})
        assert tuner.check(recordings, named).trials["all sessions"].cost.sessions == 3


def test_the_tuned_file_keeps_the_tables(team, tmp_path):
    assert run_main(team.url, "-o", str(tmp_path)).exit_code == 0
    for profile in ("chat", "coding"):
        tuned = PackPolicy.load(tmp_path / f"{profile}.toml")
        assert tuned.for_agent("editor", profile) == TEAM.for_agent("editor", profile)
        assert tuned.for_agent("clerk", profile).max_input_tokens == 6_000


def test_a_missing_cluster_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"pip install distributed$"), executor(scheduler="tcp://there:1"):
        pass


@pytest.mark.integration
def test_a_scheduler_that_does_not_answer_is_told():
    pytest.importorskip("distributed")
    with pytest.raises(StoreUnavailable, match="no Dask scheduler answers at nothing"), executor(scheduler="nothing"):
        pass
