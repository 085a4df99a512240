"""Controls of tuning: nothing is found where nothing is, what was spoilt is repaired, what is needed gets its share."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from recorded_sessions import RESEARCH, SMALL, STARVED, record, record_research

from aether_context import PackPolicy, PackStore
from aether_context.lab.tuning.simulation import Change
from aether_context.lab.tuning.tuner import Tuner, executor, grid

pytestmark = pytest.mark.slow

MARGIN = 1.0
SESSIONS = 70


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    store = PackStore(str(tmp_path_factory.mktemp("packs")))
    record(store, SESSIONS, steps=10)
    return store


@pytest.fixture(scope="module")
def research(tmp_path_factory):
    store = PackStore(str(tmp_path_factory.mktemp("packs")))
    record_research(store, SESSIONS)
    return store


@pytest.fixture(scope="module")
def workers():
    with executor() as found:
        assert isinstance(found, ProcessPoolExecutor)
        yield found


def test_evidence_that_is_needed_gets_more_room(research, workers):
    tuner = Tuner([research.url], workers)
    recordings = tuner.recordings("research")
    verdict = tuner.tune(recordings, margin=MARGIN, spend=5)
    assert verdict.kind == "more kept", verdict
    assert verdict.check.retention.low > 0
    assert verdict.check.cost.high < 5 + MARGIN
    assert tuner.same["research"] == tuner.calls["research"]
    policy = grid(recordings.base)[verdict.chosen]
    assert policy.budget.shares.evidence.middle > RESEARCH.budget.shares.evidence.middle


def test_a_spoilt_profile_is_repaired(recorded, workers):
    tuner = Tuner([recorded.url], workers, base=STARVED)
    recordings = tuner.recordings("chat")
    verdict = tuner.tune(recordings, margin=MARGIN, spend=60)
    assert verdict.kind == "more kept", verdict
    repaired = tuner.check(recordings, Change(policy=grid(STARVED)[verdict.chosen]))[0]
    # A check changes what a policy names, so the default names everything.
    default = tuner.check(recordings, Change(policy=PackPolicy(**SMALL.model_dump())))[0]
    assert default.retention.mean > 5
    assert repaired.retention.mean > default.retention.mean - MARGIN


def test_what_is_not_needed_is_not_paid_for(tmp_path, workers):
    store = PackStore(str(tmp_path))
    record(store, SESSIONS, steps=16, reach=0)
    tuner = Tuner([store.url], workers)
    verdict = tuner.tune(tuner.recordings("chat"), margin=MARGIN)
    assert verdict.kind == "cheaper at the same retention", verdict
    assert verdict.check.cost.high < -2
    assert verdict.check.retention.low >= -MARGIN


def test_where_nothing_is_short_nothing_changes(tmp_path, workers):
    store = PackStore(str(tmp_path))
    record(store, SESSIONS, policy=PackPolicy(), steps=3)
    tuner = Tuner([store.url], workers)
    verdict = tuner.tune(tuner.recordings("chat"), margin=MARGIN, spend=20)
    assert verdict.kind == "no change"
    assert all(trial.cost.sessions == 0 for trial in verdict.trials.values())


@pytest.mark.integration
def test_a_dask_cluster_finds_the_same(research):
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, executor(scheduler=cluster.scheduler_address) as workers:
        there = _tuned(research, workers)
    with executor(2) as workers:
        assert _tuned(research, workers) == there
    assert there[1].kind == "more kept"


def _tuned(store, workers):
    tuner = Tuner([store.url], workers)
    recordings = tuner.recordings("research")
    return recordings, tuner.tune(recordings, margin=MARGIN, spend=5)


@pytest.mark.soak
def test_the_page_leads_to_a_policy(tmp_path):
    """The commands of docs/tune.md on recorded sessions, in an empty folder."""
    tests = Path(__file__).parent
    page = (tests.parent / "docs" / "tune.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"^```shell\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("AETHER_CONTEXT")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    for command in (f'"{sys.executable}" "{tests}/record_day.py"', commands):
        done = subprocess.run(
            ["bash", "-euc", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
    written = tmp_path / "policies" / "chat.toml"
    assert re.search("chat: change to .*, cheaper at the same retention", written.read_text())
    assert PackPolicy.load(written).for_profile("chat") != PackPolicy(max_input_tokens=2_000)
