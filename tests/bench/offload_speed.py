"""How long offload takes by the size and the kind of an output, and how much memory beside the output itself.

    python tests/bench/offload_speed.py

CPU milliseconds of `aether_context.evidence.offload`, the best of 3 to 15 rounds with nothing counted before, and the
peak of what is allocated as a multiple of the output's size in memory, the output included; the kilobytes beside are
what of it is neither the output nor its bytes for the store. What the token counter needs while it counts is left out:
up to 0.8 MB, whatever the size. The store's time is not in it.
"""

from __future__ import annotations

import base64
import json
import random
import sys
import time
import tracemalloc
from collections.abc import Callable

from aether_context.evidence import Offloaded, offload
from aether_context.policy import OffloadSettings
from aether_context.tokens import EstimateCounter

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000)
MOST_ROUNDS = 15
SETTINGS = OffloadSettings()
QUERY = 'why was order 48113 refused?\n{"order_id":"48113","service":"payments"}'


def rows(size: int) -> str:
    """An array of uniform objects, without line breaks."""
    made = [
        {"id": at, "name": f"customer_{at}", "score": at * 37 % 1009, "tags": ["a", "b"]} for at in range(size // 70)
    ]
    return json.dumps(made)[:size]


def log(size: int) -> str:
    """A coloured log with an error here and there."""
    line = "\x1b[32m2025-01-01 10:00:{:02d}\x1b[0m INFO order {} of service payments took {} ms\n"
    made = [line.format(at % 60, at, at * 37 % 1009) for at in range(size // 80)]
    for at in range(500, len(made), 5_000):
        made[at] = f"\x1b[31m2025-01-01 10:00:00\x1b[0m ERROR order {at} was refused: card expired\n"
    return "".join(made)


def code(size: int) -> str:
    """A minified script on one line."""
    return "".join(f"function f{at}(a,b){{return a*{at}+b}};" for at in range(size // 34))


def data(size: int) -> str:
    """Random bytes in base64."""
    return base64.b64encode(random.Random(1).randbytes(size * 3 // 4)).decode()


def chinese(size: int) -> str:
    """Chinese lines."""
    return "".join(f"第{at}行：订单{at}的付款已经完成，没有发现错误。\n" for at in range(size // 60))


KINDS: dict[str, Callable[[int], str]] = {"json": rows, "log": log, "code": code, "base64": data, "chinese": chinese}


def counter() -> EstimateCounter:
    """The counter of unknown models, with nothing counted."""
    return EstimateCounter("generic", ("gemini", "openai", "claude"), accuracy="heuristic")


def offloaded(text: str) -> Offloaded:
    """The offload of a text of which nothing was counted before."""
    return offload({"result": text}, "tool", SETTINGS, counter=counter(), query=QUERY)


def measured(text: str) -> tuple[float, float, int, Offloaded]:
    """CPU seconds, peak memory as a multiple of the text's, the peak beside the text and its bytes, and the result."""
    spent = []
    for _ in range(max(3, min(MOST_ROUNDS, MOST_ROUNDS * 1_000_000 // len(text)))):
        began = time.process_time()
        found = offloaded(text)
        spent.append(time.process_time() - began)
        del found
    known = counter()
    offload({"result": text}, "tool", SETTINGS, counter=known, query=QUERY)
    tracemalloc.start()
    found = offload({"result": text}, "tool", SETTINGS, counter=known, query=QUERY)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = sys.getsizeof(text)
    return min(spent), (size + peak) / size, max(0, peak - len(found.data)), found


def main() -> None:
    print("| kind | size | ms | memory | KB beside | shown as | tokens |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind, make in KINDS.items():
        for size in SIZES:
            seconds, memory, beside, found = measured(make(size))
            told = f"{1000 * seconds:.1f} | {memory:.1f} | {beside / 1000:.0f} | {found.form} | {found.shown_tokens:,}"
            print(f"| {kind} | {size:,} | {told} |")


if __name__ == "__main__":
    main()
