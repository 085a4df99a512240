"""How long things take."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_of(rounds: int, work: Callable[[], object]) -> float:
    """The shortest of so many runs, in milliseconds of processor time: other work on the machine does not count."""
    spent = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        spent.append(1_000 * (time.thread_time() - began))
    return min(spent)


def of_unit(unit: str) -> Callable[[int], str]:
    return lambda size: (unit * (size // len(unit) + 1))[:size]
