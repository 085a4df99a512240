"""How long things take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def of_unit(unit: str) -> Callable[[int], str]:
    return lambda size: (unit * (size // len(unit) + 1))[:size]


def lines_of(work: Callable[[], object]) -> int:
    """The number of lines of Python that a work executes in this thread: the same on every machine, however busy."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count
