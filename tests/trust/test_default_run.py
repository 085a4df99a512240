"""A session with default settings that is killed at random moments, and goes on in the next process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aether_context import PackStore, verify

LIFE = Path(__file__).parent.parent / "default_life.py"
LIVES = 4


@pytest.mark.slow
def test_a_default_session_outlives_kills(tmp_path: Path, figure: Callable[[str, float], None]) -> None:
    choice, turns = random.Random(7), list[int]()
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join([str(LIFE.parent), *filter(None, sys.path)])}
    settings["AETHER_CONTEXT_SPOOL"] = str(tmp_path / "spool")
    for _ in range(LIVES):
        with subprocess.Popen(
            [sys.executable, str(LIFE), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=settings,
            text=True,
        ) as life:
            assert life.stdout is not None
            lines = [life.stdout.readline() for _ in range(choice.choice([2, 3, 4]))]
            time.sleep(choice.uniform(0.0, 0.3))
            life.kill()
            lines += life.stdout.read().splitlines()
        turns += [int(line.split()[1]) for line in lines if line.startswith("turn ")]
    figure("lives", LIVES)
    assert turns == sorted(set(turns))
    assert len(turns) >= LIVES
    store = PackStore(str(tmp_path / "store"))
    found = verify(store, replays=True)
    faults = [fault for fault in found.faults.values() if "is missing" not in fault]
    figure("invalid", len(faults))
    assert (faults, found.foreign) == ([], [])
