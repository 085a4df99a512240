"""Tuning: sessions are played as they were, what is measured is what was used, and chance changes no policy."""

from __future__ import annotations

import json
import pathlib
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner
from recorded_sessions import SMALL, STARVED, record
from scripted import Chat, call, look_up, new_store

from aether_context import PackPolicy, PackStore
from aether_context.canonical import short
from aether_context.cli import main
from aether_context.cli.tuning import policy_file
from aether_context.errors import MissingExtra, PackNotFound, StoreUnavailable
from aether_context.pack import FLEXIBLE_LAYERS
from aether_context.policy import PROFILES
from aether_context.tuning.grid import grid
from aether_context.tuning.recordings import Folder, folders, recorded_sessions
from aether_context.tuning.retention import used
from aether_context.tuning.simulation import Played, play
from aether_context.tuning.statistics import difference, effective, holm, needed_sessions
from aether_context.tuning.tuner import Recordings, Tuner, executor
from aether_context.tuning.verdict import Verdict, adjusted, compare, decide, search


def session_of(store):
    (folder,) = folders([store.url])
    (session,) = recorded_sessions(folder)
    return session


def played(store, policy=SMALL, profile="chat"):
    (folder,) = folders([store.url])
    (result,) = play(folder, profile, [policy])
    return result


def cuts(store):
    return sum(any(event.stage == "cut" for event in manifest.truncation_events) for manifest in store.manifests())


@pytest.fixture
def workers():
    with ThreadPoolExecutor(1) as found:
        yield found


# a session is played as it was


def test_a_tool_loop_with_cuts_is_played_byte_for_byte():
    store = new_store()
    record(store, 1)
    found = played(store)
    assert cuts(store) > 2
    assert found.same == len(found.kept) == 29


def test_a_chat_whose_turns_return_is_played_byte_for_byte():
    store = new_store()
    talk = [f"Note {number}: the {name} is in drawer {number * 17}." for number, name in enumerate("abcdefgh" * 6)]
    policy = PackPolicy(max_input_tokens=1_200)
    chat = Chat(store=store, policy=policy, script=["Noted, it is written down. " * 9] * 60)
    chat.say(*talk, "Where is the c?", "And which note said so?")
    assert any(manifest.searched for manifest in store.manifests())
    found = played(store, policy)
    assert cuts(store) > 1
    assert found.same == len(found.kept)


def test_another_policy_is_played_from_the_first_call_on():
    store, other = new_store(), new_store()
    record(store, 1)
    record(other, 1, policy=STARVED)
    assert played(store, STARVED).cost == pytest.approx(played(other, STARVED).cost, rel=0.1)


def test_calls_of_another_profile_keep_their_policy():
    store = new_store()
    record(store, 1)
    assert played(store, STARVED, profile="coding").kept == ()


def test_hashes_alone_cannot_be_played():
    store = new_store()
    Chat(store=store, policy=PackPolicy(record="hashes")).say("hello")
    assert "recorded hashes only" in played(store)


# what counts as used


def test_what_an_answer_quotes_counts_where_it_stood_before():
    store = new_store()
    answers = ["The order order-4711 is at /srv/out/b.csv, not ticket-99.", "It was order-4711, as said."]
    chat = Chat(store=store, script=answers, instruction="You know /etc/hosts.yml.")
    chat.say("Where is order-4711?", "Which was it? See /etc/hosts.yml.", "thanks")
    first, second, third = used(session_of(store))
    assert first.places == {"order-4711": {0}}
    assert second.places == {"order-4711": {0, 1}}
    assert third.places == {}


def test_a_line_that_was_cut_is_not_kept():
    store = new_store()
    record(store, 1, reach=12)
    wide, narrow = played(store, SMALL.changed(max_input_tokens=100_000)), played(store)
    assert wide.needed == narrow.needed > 20
    assert wide.retention > narrow.retention + 20


def test_reading_back_counts_against_the_pack():
    store = new_store()
    chat = Chat(store=store, tools=[look_up], script=[call("look_up", key="k"), call("read_artifact", uri="x"), "done"])
    chat.say("look", "thanks")
    assert sum(need.read_back for need in used(session_of(store))) == 1
    assert played(store, PackPolicy()).retention < 100


# the grid


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


def test_evidence_of_research_moves_to_the_upper_end_of_what_is_usual():
    shares = grid(PackPolicy.load("research"))["evidence for conversation"].budget.shares
    assert shares.evidence.middle == pytest.approx(0.65)
    assert shares.conversation.middle == pytest.approx(0.075)


def test_a_policy_whose_ranges_are_points_keeps_its_shares():
    shares = {"evidence": {"low": 0.5, "high": 0.5}, "memory": {"low": 0.2, "high": 0.2}}
    base = PackPolicy(budget={"shares": {**shares, "conversation": {"low": 0.3, "high": 0.3}}})
    assert {policy.budget for policy in grid(base).values()} == {base.budget}


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
        for name, policy in grid(recordings.base).items():
            for kind, expected in (("more kept", policy), ("no change", recordings.base)):
                verdict = Verdict(kind=kind, reason="two\nlines", trials={}, chosen=name)
                path.write_text(policy_file(recordings, verdict, "a store"), encoding="utf-8")
                assert PackPolicy.load(path) == expected


def test_sessions_of_several_policies_are_played_under_the_one_that_most_calls_have(workers):
    store = new_store()
    record(store, 1, policy=STARVED)
    record(store, 2, app="store")
    recordings = Tuner([store.url], workers).recordings("chat")
    assert recordings.policies == 2
    assert recordings.base == SMALL
    found = run_main(store.url, "--check", "chat")
    assert f"recorded under 2 policies: all are played under {short(SMALL.digest)}" in found.output
    assert Tuner([store.url], workers, base=STARVED).recordings("chat").base == STARVED


# statistics


def test_known_figures():
    assert effective([1, 1, 1, 1]) == 4
    assert effective([1, 0, 0, 0]) == 1
    assert effective([91, 3, 3, 3]) == pytest.approx(1.2, abs=0.05)
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert needed_sessions(10, 5) == 25
    found = difference([1.0, 2.0, 3.0, 4.0] * 10, 0)
    assert (found.mean, found.sessions) == (2.5, 40)
    assert found.low == pytest.approx(2.15, abs=0.05)
    assert found.high == pytest.approx(2.85, abs=0.05)
    assert found.chance_of(below=0.0) == pytest.approx(1e-4, rel=0.1)


SESSIONS = tuple(Folder(url="u", places=(f"r/app/ann/s{number}/packs/p",)) for number in range(80))


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


def test_nothing_is_claimed_where_hardly_an_answer_tells_what_it_used():
    verdict = decided(90.0, needed=0)
    assert verdict.check.cost.sessions == 80
    assert "'other' changes 0 whose answers used anything" in verdict.reason


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
    (found,) = adjusted([Verdict(kind="more kept", reason="", trials={}, chosen="other", chance=0.03)])
    assert found.kind == "more kept"
    of_two = [
        Verdict(kind="more kept", reason="", trials={}, chosen="other", chance=chance) for chance in (0.001, 0.03)
    ]
    assert [verdict.kind for verdict in adjusted([*of_two, of_two[1]])] == ["more kept", "no change", "no change"]


def test_halves_depend_on_names_and_seed_alone(workers):
    store, other = new_store(), new_store()
    for one in (store, other):
        for number in range(9):
            Chat(store=one, session=f"s{number}").say("hello")

    def halves(one, seed):
        recordings = Tuner([one.url], workers, seed=seed).recordings("chat")
        return [[folder.name for folder in half] for half in (recordings.searched, recordings.tested)]

    assert halves(store, 0) == halves(other, 0) != halves(store, 1)
    searched, tested = halves(store, 0)
    assert sorted([*searched, *tested]) == [f"shop/ann/s{number}" for number in range(9)]


# the command


def run_main(*arguments):
    return CliRunner().invoke(main, ["tune", *arguments, "--jobs", "1"], catch_exceptions=False)


@pytest.fixture(scope="module")
def shop():
    store = new_store()
    record(store, 6)
    return store


def test_few_sessions_change_nothing(shop, tmp_path):
    found = run_main(shop.url, "-o", str(tmp_path / "policies"))
    assert found.exit_code == 0, found.output
    assert "174 of 174 requests are built again byte for byte" in found.output
    assert "chat: no change" in found.output
    written = tmp_path / "policies" / "chat.toml"
    assert "# chat: no change" in written.read_text()
    assert PackPolicy.load(written) == SMALL


def test_json_has_every_policy_that_was_played(shop):
    (found,) = json.loads(run_main(shop.url, "--json").stdout)
    assert (found["profile"], found["verdict"]) == ("chat", "no change")
    assert len(found["played"]) == 24
    assert {"mean", "low", "high", "sessions"} == set(found["played"]["cut at 1 to 0.7"]["cost_percent"])


def test_all_profiles_that_were_recorded_are_tuned(tmp_path):
    store = new_store()
    for profile in ("research", "test_cases"):
        Chat(store=store, policy=profile, app_name=profile).say("hello", "thanks")
    found = run_main(store.url, "-o", str(tmp_path))
    assert "research: no change" in found.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["research.toml", "test_cases.toml"]
    assert PackPolicy.load(tmp_path / "research.toml") == PackPolicy.load("research")
    found = run_main(store.url, "--profile", "research")
    assert "test_cases" not in found.output


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


def test_a_policy_that_passes_the_window_more_often_fails_the_check(tmp_path):
    store, policy = new_store(), tmp_path / "small.toml"
    instruction = "You are a clerk. " + "Follow the long rules of the house in all you do. " * 60
    talk = Chat(store=store, policy=PackPolicy(max_input_tokens=3_000), instruction=instruction, script=["ok"] * 4)
    talk.say(*["hello"] * 4)
    policy.write_text("max_input_tokens = 400\n")
    found = run_main(store.url, "--check", str(policy))
    assert found.exit_code == 1
    assert "chat: loses: 4 more requests pass the window" in found.output


def test_sessions_that_cannot_be_played_are_left_out_and_hold_no_check():
    store = new_store()
    Chat(store=store, policy=PackPolicy(record="hashes")).say("hello")
    found = run_main(store.url, "--check", "chat")
    assert found.exit_code == 1
    assert "left out: shop/ann/s1: ReplayIncomplete" in found.output
    assert "chat: loses: no session can be played" in found.output
    assert "chat: no change: no session can be played" in run_main(store.url).output


def test_a_session_that_cannot_be_read_is_left_out_and_told_where_there_is_no_other(tmp_path):
    store = PackStore(str(tmp_path))
    for session in ("s1", "s2"):
        Chat(store=store, session=session).say("hello")
    _spoil(store.places()[0])
    found = run_main(store.url)
    assert (found.exit_code, found.output.count("left out: ")) == (0, 1)
    _spoil(store.places()[-1])
    found = run_main(store.url)
    assert found.exit_code == 3
    assert "no session can be read: ManifestError" in found.output


def _spoil(place):
    pathlib.Path(f"{place}.json.gz").write_bytes(b"{")


def test_a_store_without_packs_is_told(tmp_path, shop, workers):
    assert run_main(str(tmp_path / "none")).exit_code == 3
    with pytest.raises(PackNotFound, match="profile 'coding', but of chat"):
        Tuner([shop.url], workers).recordings("coding")


def test_a_missing_cluster_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"pip install distributed$"), executor(scheduler="tcp://there:1"):
        pass


@pytest.mark.integration
def test_a_scheduler_that_does_not_answer_is_told():
    pytest.importorskip("distributed")
    with pytest.raises(StoreUnavailable, match="no Dask scheduler answers at nothing"), executor(scheduler="nothing"):
        pass
