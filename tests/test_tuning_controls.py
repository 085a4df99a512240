"""Controls of tuning: it finds nothing where nothing is, repairs what was spoilt, and no source pays for another."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_sessions import SMALL, STARVED, record

from aether_context import PackPolicy, PackStore
from aether_context.tuning.knobs import KNOBS
from aether_context.tuning.proposal import Tuner
from aether_context.tuning.study import choose, compare, decide, search, split
from aether_context.tuning.workers import Journal, Pool, folders, pool

pytestmark = pytest.mark.slow

MARGIN = 1.0
SESSIONS = 70


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    store = PackStore(str(tmp_path_factory.mktemp("packs")))
    record(store, SESSIONS, steps=10)
    return store


@pytest.fixture(scope="module")
def workers():
    with pool(os.cpu_count()) as found:
        yield found


def test_shuffled_outcomes_change_nothing(recorded, workers):
    """Each session's outcomes under real policies are dealt to the trials at random, so that no policy is better."""
    tuner = Tuner([recorded.url], workers, Journal(None))
    all_folders = folders(recorded)
    chance = random.Random(0)
    tried = [{knob.name: _value(knob, chance) for knob in KNOBS} for _ in range(7)]
    outcomes = [tuner.play(values, all_folders, "chat") for values in ({}, *tried)]
    assert len({one.cost for outcome in outcomes for one in outcome.values()}) > SESSIONS
    verdicts = [_study_of_shuffled(outcomes, all_folders, seed).verdict for seed in range(100)]
    assert verdicts.count("tuned") <= 5, verdicts


def _value(knob, chance):
    value = chance.uniform(knob.low, knob.high)
    return int(value) if knob.whole else round(value, 3)


def _study_of_shuffled(outcomes, all_folders, seed):
    chance = random.Random(seed)
    dealt = {name: chance.sample([outcome[name] for outcome in outcomes], len(outcomes)) for name in outcomes[0]}
    parts = split(all_folders, seed)
    numbers = {(): 0}

    def play(values, chosen):
        number = numbers.setdefault(tuple(sorted(values.items())), len(numbers))
        return {folder.name: dealt[folder.name][number] for folder in chosen}

    points = search(play, parts.fit, KNOBS, trials=len(outcomes) - 1, seed=seed)
    chosen = choose(points, MARGIN)
    check = None
    if chosen is not None:
        check = compare(play({}, parts.check), play(points[chosen].values, parts.check), seed)
    return decide("chat", points, chosen, fit=None, check=check, held_out=None, margin=MARGIN)


def test_a_spoilt_profile_is_repaired(recorded, workers):
    tuner = Tuner([recorded.url], workers, Journal(None), base=STARVED)
    recordings = tuner.recordings("chat")
    study = tuner.study(recordings, trials=16, margin=MARGIN, spend=60)
    assert study.verdict == "tuned", study.reason
    check = recordings.split.check
    default = tuner.play({}, check, "chat", SMALL)
    spoilt = tuner.play({}, check, "chat")
    tuned = tuner.play(study.values, check, "chat")
    assert _retention(spoilt) < _retention(default) - 5
    assert _retention(tuned) > _retention(default) - MARGIN


def test_what_is_not_needed_is_not_paid_for(tmp_path, workers):
    store = PackStore(str(tmp_path))
    record(store, SESSIONS, steps=16, reach=0)
    tuner = Tuner([store.url], workers, Journal(None))
    recordings = tuner.recordings("chat")
    study = tuner.study(recordings, trials=20, margin=MARGIN)
    assert study.verdict == "tuned", study.reason
    assert study.check.cost.mean < -10
    assert study.check.retention.mean == 0


def _retention(outcomes):
    known = [one.retention for one in outcomes.values() if one.retention is not None]
    return sum(known) / len(known)


def test_the_source_that_was_held_out_does_not_lose(tmp_path):
    store = PackStore(str(tmp_path))
    record(store, 62, steps=6, reach=2)
    record(store, 8, steps=10, reach=9, app="archive")
    for seed in (0, 1):
        tuner = Tuner([store.url], Pool(), Journal(None), seed=seed, base=STARVED)
        recordings = tuner.recordings("chat")
        assert recordings.split.source == "archive"
        study = tuner.study(recordings, trials=8, margin=MARGIN)
        if study.verdict == "tuned":
            assert study.held_out.retention.mean >= -MARGIN


@pytest.mark.integration
def test_a_dask_cluster_finds_the_same(recorded):
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, pool(dask=cluster.scheduler_address) as workers:
        there = _few(recorded, workers)
    with pool(2) as workers:
        assert _few(recorded, workers) == there


def _few(store, workers):
    tuner = Tuner([store.url], workers, Journal(None))
    return tuner.study(tuner.recordings("chat"), trials=3, margin=MARGIN)


def test_the_page_leads_to_a_policy(tmp_path):
    """The commands and the script of docs/tune.md, in their order, in an empty folder."""
    page = (Path(__file__).parents[1] / "docs" / "tune.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```python file=record_day.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "record_day.py").write_text(script, encoding="utf-8")
    commands = re.findall(r"^```shell tutorial\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(commands) == 2
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AETHER_CONTEXT")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for command in commands:
        done = subprocess.run(
            ["bash", "-euc", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "tuned: cheaper, and keeps as much" in (tmp_path / "clerk.toml").read_text().replace(
        "chat: tuned,", "tuned:"
    )
    assert PackPolicy.load(tmp_path / "clerk.toml") != PackPolicy(max_input_tokens=2_000)
