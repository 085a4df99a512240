"""Tuning: sessions are played as they were, what is measured is what was used, and chance changes no policy."""

from __future__ import annotations

import json
import random
from contextlib import closing
from dataclasses import replace
from itertools import count

import pytest
from click.testing import CliRunner
from recorded_sessions import SMALL, STARVED, record
from scripted import Chat, call, look_up, new_store

from aether_context import PackPolicy
from aether_context.canonical import short
from aether_context.cli import main
from aether_context.errors import PackNotFound, PolicyError
from aether_context.tuning.knobs import KNOBS, knob_named, settings, with_values
from aether_context.tuning.proposal import Tuner, policy_file
from aether_context.tuning.recordings import recorded_sessions
from aether_context.tuning.retention import used
from aether_context.tuning.simulation import Played, play
from aether_context.tuning.statistics import difference, effective, holm, needed_sessions
from aether_context.tuning.study import choose, compare, decide, search, split
from aether_context.tuning.workers import Folder, Journal, Pool, Task, folders, run, run_all


def sessions_of(store):
    return list(recorded_sessions(store, store.places()))


def played(store, policy=None, profile="chat"):
    (session,) = sessions_of(store)
    policies = {}
    return play(
        session, used(session), lambda call: policies.setdefault(call.policy.digest, policy or call.policy), profile
    )


# a session is played as it was


def test_a_tool_loop_with_cuts_is_played_byte_for_byte():
    store = new_store()
    record(store, 1)
    found = played(store)
    assert found.cuts > 2
    assert found.same == len(found.kept) == 29


def test_a_chat_whose_turns_return_is_played_byte_for_byte():
    store = new_store()
    talk = [f"Note {number}: the {name} is in drawer {number * 17}." for number, name in enumerate("abcdefgh" * 6)]
    chat = Chat(store=store, policy=PackPolicy(max_input_tokens=1_200), script=["Noted, it is written down. " * 9] * 60)
    chat.say(*talk, "Where is the c?", "And which note said so?")
    assert any(manifest.searched for manifest in store.manifests())
    found = played(store)
    assert found.cuts > 1
    assert found.same == len(found.kept)


def test_another_policy_is_played_from_the_first_call_on():
    store, other = new_store(), new_store()
    record(store, 1)
    record(other, 1, policy=STARVED)
    assert played(store, STARVED).cost == pytest.approx(played(other).cost, rel=0.1)


def test_calls_of_another_profile_keep_their_policy():
    store = new_store()
    record(store, 1)
    assert played(store, STARVED, profile="coding").kept == ()


def test_hashes_alone_cannot_be_played():
    store = new_store()
    Chat(store=store, policy=PackPolicy(record="hashes")).say("hello")
    found = run(Task(folder=folders(store)[0], profile="chat"))
    assert found.played is None
    assert "recorded hashes only" in found.problem


# what counts as used


def test_what_an_answer_quotes_counts_where_it_stood_before():
    store = new_store()
    answers = ["The order order-4711 is at /srv/out/b.csv, not ticket-99.", "It was order-4711, as said."]
    chat = Chat(store=store, script=answers, instruction="You know /etc/hosts.yml.")
    chat.say("Where is order-4711?", "Which was it? See /etc/hosts.yml.", "thanks")
    (session,) = sessions_of(store)
    first, second, third = used(session)
    assert {use.text: sorted(use.places) for use in first.uses} == {"order-4711": [0]}
    assert {use.text: sorted(use.places) for use in second.uses} == {"order-4711": [0, 1]}
    assert third.uses == ()


def test_a_line_that_was_cut_is_not_kept():
    store = new_store()
    record(store, 1, reach=12)
    wide, narrow = played(store, SMALL.changed(max_input_tokens=100_000)), played(store)
    assert wide.needed == narrow.needed > 20
    assert wide.retention > narrow.retention + 20
    assert wide.cuts == 0


def test_reading_back_counts_against_the_pack():
    store = new_store()
    chat = Chat(store=store, tools=[look_up], script=[call("look_up", key="k"), call("read_artifact", uri="x"), "done"])
    chat.say("look", "thanks")
    (session,) = sessions_of(store)
    assert sum(need.read_back for need in used(session)) == 1
    assert played(store).retention < 100


# knobs


def test_a_knob_changes_its_setting_alone():
    for knob in KNOBS:
        for value in (knob.low, knob.high):
            changed = with_values(PackPolicy(), {knob.name: int(value) if knob.whole else value})
            assert knob.value(changed) == pytest.approx(value, abs=0.16 if knob.is_share else 1e-6)


@pytest.mark.parametrize("profile", ["chat", "coding", "research", "requirements", "test_cases"])
def test_every_corner_of_the_usual_knobs_is_a_policy(profile):
    policy = PackPolicy.load(profile)
    for corner in range(2 ** len(KNOBS)):
        values = {knob.name: (knob.high if corner >> at & 1 else knob.low) for at, knob in enumerate(KNOBS)}
        values["retrieval.memory_k"] = int(values["retrieval.memory_k"])
        changed = with_values(policy, values)
        assert PackPolicy(**{**policy.model_dump(exclude_unset=True), "profile": profile})
        assert changed.conversation.compact_to <= changed.conversation.compact_at


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("retrieval.flor=0:1", "retrieval.floor"),
        ("retrieval.floor=1:0", "not below"),
        ("retrieval.floor=a:b", "LOW:HIGH"),
        ("retrieval.recall=0:1", "no number"),
        ("retrieval.mmr_lambda", "needs a range"),
        ("retrieval.floor=0:3", "retrieval.floor"),
    ],
)
def test_a_knob_that_is_none_is_told(text, told):
    with pytest.raises(PolicyError, match=told):
        knob_named(text)


def test_what_the_file_says_is_the_tuned_policy(tmp_path):
    values = {"conversation.compact_at": 0.6, "retrieval.memory_k": 7, "budget.shares.evidence": 0.5}
    base = PackPolicy(
        max_input_tokens=9_000,
        tools={"always": ("a", 'b"c')},
        windows={"x/y": 5_000},
        limits={"agent": {"total_tokens": 9}, "agents": {"clerk": {"cost_usd": 0.5}, "any \x7f \U0001f600": {}}},
    )
    assert settings(base, values)["budget"]["shares"]["evidence"] == {"low": 0.375, "high": 0.625}
    store = new_store()
    record(store, 2)
    tuner = Tuner([store.url], Pool(), Journal(None), base=base)
    recordings = tuner.recordings("chat")
    study = replace(decided(True), points=(replace(decided(True).points[0], values=values),) * 2)
    path = tmp_path / "tuned.toml"
    path.write_text(policy_file([(recordings, study)], urls=[store.url], seed=0, margin=1.0), encoding="utf-8")
    assert PackPolicy.load(path) == with_values(base, values)


def test_sessions_of_several_policies_are_played_under_the_one_that_most_calls_have(tmp_path):
    store, journal = new_store(), tmp_path / "journal.jsonl"
    record(store, 1, policy=STARVED)
    record(store, 2, app="store")
    with closing(Journal(journal)) as written:
        tuner = Tuner([store.url], Pool(), written)
        recordings = tuner.recordings("chat")
    assert recordings.policies == 2
    assert recordings.same == recordings.calls == 3 * 29
    assert recordings.base.conversation == SMALL.conversation
    asked = Tuner([store.url], Pool(), Journal(None), base=SMALL)
    everything = asked.recordings("chat").sessions
    with closing(Journal(journal)) as read:
        tuner = Tuner([store.url], Pool(), read)
        assert tuner.recordings("chat") == tuner.recordings("chat") == recordings
        assert tuner.play({}, everything, "chat") == asked.play({}, everything, "chat")
    found = run_main(store.url, "--trials", "1")
    assert f"recorded under 2 policies: all are played under {short(recordings.base.digest)}" in found.output


def test_a_journal_of_another_version_is_not_taken_for_this_ones(monkeypatch):
    task = Task(folder=Folder(url="u", path="r/a/ann/s/packs", packs=("p",)), profile="chat")
    key = task.key
    monkeypatch.setattr("aether_context.tuning.workers.__version__", "0.0.1")
    assert task.key != key


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


def of(cost, kept, needed=100):
    return Played(tokens=0, cost=cost, over=0, cuts=0, needed=needed, kept=(kept,), same=0)


def decided(holds, *, sessions=80, least=30):
    """A study of a trial that saves a tenth on the sessions to fit on, and on those to check on if it holds."""
    names = [f"s{number}" for number in range(sessions)]
    fit = {name: of(100.0, 90) for name in names}, {name: of(90.0, 90) for name in names}
    chance = random.Random(1)
    after = {name: of(90.0 + chance.random() if holds else 97 + 6 * chance.random(), 90) for name in names}
    points = search(lambda values, _: fit[1] if values else fit[0], (), KNOBS, trials=2, seed=0)
    chosen = choose(points, 1.0)
    return decide(
        "chat",
        points,
        chosen,
        fit=compare(*fit, 0),
        check=compare(fit[0], after, 0),
        held_out=None,
        margin=1.0,
        least=least,
    )


def test_what_holds_on_other_sessions_is_recommended():
    study = decided(True)
    assert study.verdict == "tuned"
    assert study.check.cost.mean == pytest.approx(-9.5, abs=0.2)


def test_what_does_not_hold_changes_nothing():
    assert decided(False).verdict == "no change"
    assert decided(False).values == {}


def test_too_few_sessions_are_refused_and_it_says_how_many_would_do():
    study = decided(True, sessions=20)
    assert study.verdict == "refused"
    assert "about 30" in study.reason


def test_a_policy_is_refused_where_hardly_an_answer_tells_what_it_used():
    before = {f"s{at}": of(100.0, 0, needed=0) for at in range(80)} | {"s0": of(100.0, 90)}
    after = {f"s{at}": of(90.0, 0, needed=0) for at in range(80)} | {"s0": of(90.0, 90)}
    found = compare(before, after, 0)
    assert (found.cost.sessions, found.retention.sessions) == (80, 1)
    points = decided(True).points
    study = decide("chat", points, choose(points, 1.0), fit=found, check=found, held_out=None, margin=1.0)
    assert study.verdict == "refused"
    assert "in 1 of 80 sessions to check on whose answers used anything" in study.reason


def test_a_source_of_its_own_is_held_out():
    folders = [
        Folder(url="u", path=f"r/{app}/ann/s{n}/packs", packs=("p",)) for app in "ab" for n in range(9 + (app == "b"))
    ]
    parts = split(folders, 0)
    assert parts.source == "a"
    assert len(parts.held_out) == 9
    assert len(parts.fit) == len(parts.check) == 5
    assert not set(parts.fit) & set(parts.check)


# the command


def run_main(*arguments):
    return CliRunner().invoke(main, ["tune", *arguments, "--jobs", "1"], catch_exceptions=False)


@pytest.fixture(scope="module")
def shop():
    store = new_store()
    record(store, 6)
    return store


def test_few_sessions_change_nothing(shop, tmp_path):
    out, page = tmp_path / "p.toml", tmp_path / "t.html"
    found = run_main(shop.url, "--trials", "3", "-o", str(out), "--report", str(page), "--explain")
    assert found.exit_code == 0, found.output
    assert "174 of 174 requests are built again byte for byte" in found.output
    assert "refused" in found.output or "no change" in found.output
    assert "# No change" in out.read_text()
    assert PackPolicy.load(out) == PackPolicy()
    assert "<svg" in page.read_text()
    assert "<script" not in page.read_text()


def test_a_worse_policy_fails_the_check(shop, tmp_path):
    worse = tmp_path / "worse.toml"
    worse.write_text("max_input_tokens = 2000\n[conversation]\ncompact_at = 0.3\ncompact_to = 0.15\n")
    found = run_main(shop.url, "--check", str(worse), "--explain")
    assert found.exit_code == 1
    assert "loses" in found.output
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


def test_a_store_without_packs_is_told(tmp_path):
    found = run_main(str(tmp_path / "none"))
    assert found.exit_code == 3
    store = new_store()
    record(store, 1)
    tuner = Tuner([store.url], Pool(), Journal(None))
    with pytest.raises(PackNotFound, match="no session of the profile coding"):
        tuner.recordings("coding")


def test_a_run_that_was_stopped_goes_on(shop, tmp_path):
    path, played = tmp_path / "journal.jsonl", count()

    class Stops(Pool):
        def submit(self, act, task):
            if next(played) == 4:
                raise KeyboardInterrupt
            return super().submit(act, task)

    def study(pool):
        journal = Journal(path)
        try:
            tuner = Tuner([shop.url], pool, journal)
            return tuner.study(tuner.recordings("chat"), trials=2)
        finally:
            journal.close()

    with pytest.raises(KeyboardInterrupt):
        study(Stops())
    assert len(path.read_text().splitlines()) == 4
    with path.open("a") as file:
        file.write('["half a li')
    again = study(Pool())
    whole = Tuner([shop.url], Pool(), Journal(None))
    assert again.points == whole.study(whole.recordings("chat"), trials=2).points
    keys = [json.loads(line)[0] for line in path.read_text().splitlines() if not line.startswith('["half')]
    assert len(keys) == len(set(keys))


def test_results_do_not_depend_on_who_plays(shop):
    folder = Folder(
        url=shop.url, path=shop.places()[0].rpartition("/")[0], packs=(shop.places()[0].rpartition("/")[2],)
    )
    tasks = [Task(folder=folder, profile="chat", values=(("retrieval.memory_k", k),)) for k in (1, 2, 3)]
    forward = run_all(tasks, Pool(), Journal(None))
    backward = run_all(tasks[::-1], Pool(), Journal(None))
    assert forward == backward
