"""The price of what later requests still answer: the plugin's marks beside what a user could pick.

    AETHER_CONTEXT_DATA=FOLDER python tests/bench/price.py [--window 16000] [--limit N] [--files NAME ...]
                                                           [--ways NAME ...] [--plot FILE.svg] [--fits]

Sessions, questions and ways are those of exam.py. Beside them stand the whole history, which passes the window, and
marks: ``compact_at/compact_to``, where ``pays`` cuts once it pays. Tokens and lines are those of tool_runs.py. With
``--fits`` the sessions are those whose whole history stays within the window, and the last lines give what all of them
cost together.

over      requests of more tokens than the window, in percent
price     of a call's input: tokens outside the prefix shared with the request before, and a tenth of those inside
in all    that, and what else the same user pays for a call of the agent: what the model is sent to write summaries (see
          exam.py), all of it uncached; and one read for each call whose quoted lines an address alone leads to
a read    of one more call that reads something back: a tenth of a request, and 500 tokens of answer
answered  of the exam's questions about what was cut, those that the request answers, in percent
found     those that one search finds; see exam.py
lost      those that neither answers
lines     of 30 characters and more that the next calls quote: those in the request, in percent

Nothing that a model writes is priced: neither answers, nor summaries, nor the calls that read something back.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from exam import WAYS, Searching, Way, asked_of, figures, long_runs, summarizer_tokens
from google.adk.plugins.base_plugin import BasePlugin
from sessions import PERCENT, Figures, print_table
from tool_runs import CACHED_PRICE, Request, play, price, score, shared, tokens

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

MARKS = ((0.5, 0.2), (0.6, 0.25), (0.7, 0.3), (0.8, 0.3), (0.8, 0.5), (1.0, 0.25), (1.0, 0.55), (None, 0.42))
_READ_TOKENS = 500
COLUMNS = {"over": PERCENT, "price": (1.0, 0), "in all": (1.0, 0), "a read": (1.0, 0)}
COLUMNS |= dict.fromkeys(("answered", "found", "lost", "lines"), PERCENT)


def with_marks(compact_at: float | None, compact_to: float) -> Way:
    def way(window: int, url: str) -> tuple[list[BasePlugin], dict[str, Any]]:
        marks = {"compact_at": compact_at, "compact_to": compact_to}
        return [ContextPackPlugin(policy=PackPolicy(max_input_tokens=window, conversation=marks), store=url)], {}

    return way


ALL_WAYS: Mapping[str, Way] = {
    "the whole history": lambda window, url: ([], {}),
    **{f"{'pays' if at is None else at}/{to}": with_marks(at, to) for at, to in MARKS},
    **WAYS,
}


def prices(requests: Sequence[Request]) -> Iterator[float]:
    blocks = [(), *(request.blocks for request in requests)]
    for before, after in pairwise(blocks):
        yield price(sum(map(tokens, after)), shared(before, after))


def session(run: Mapping[str, Any], name: str, window: int, url: str) -> Figures:
    plugins, settings = ALL_WAYS[name](window, url)
    searching = Searching(asked_of(run, window))
    requests = asyncio.run(play(run, *plugins, searching, **settings))
    row = figures(run, requests, searching, window)
    scored = score(run, requests, window)
    total = sum(prices(requests))
    reads = CACHED_PRICE * row["tokens"][0] + _READ_TOKENS * len(requests)
    in_all = total + summarizer_tokens(plugins, settings) + scored.reads * reads / len(requests)
    return {
        **{name: row[name] for name in ("over", "answered", "found", "lost")},
        "lines": scored.figures(window)["lines"],
        "price": (total, len(requests)),
        "in all": (in_all, len(requests)),
        "a read": (reads, len(requests)),
    }


def measured(runs: Sequence[Mapping[str, Any]], name: str, window: int) -> list[Figures]:
    return [session(run, name, window, f"memory://price-{abs(hash(name))}-{at}") for at, run in enumerate(runs)]


def point(sessions: Sequence[Figures]) -> tuple[float, float]:
    """The means of what a way costs in all and of what it answers in percent."""
    return tuple(  # type: ignore[return-value]
        scale * sum(one[name][0] / one[name][1] for one in sessions if one[name][1]) / len(sessions)
        for name, scale in (("in all", 1.0), ("answered", 100.0))
    )


def plot(points: Mapping[tuple[str, str], tuple[float, float]]) -> str:
    """A panel for each file: the price of a call to the right, doubling by equal steps; what is answered upwards."""
    width, height, left, top, line = 560, 360, 48, 30, 11
    files = list(dict.fromkeys(file for file, _ in points))
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {(width + left) * len(files) + 20} {height + top + 50}" '
        'font-family="sans-serif" font-size="11" role="img" aria-label="The price of a call, and what is answered">'
    ]
    for at, file in enumerate(files):
        own = {name: xy for (of, name), xy in points.items() if of == file}
        prices = [x for x, _ in own.values()]
        low, most, x0, y0 = min(prices) / 1.2, 2.4 * max(prices), left + at * (width + left), top + height

        def across(price: float, low: float = low, most: float = most, x0: int = x0) -> float:
            return x0 + width * math.log(price / low) / math.log(most / low)

        drawn.append(f'<text x="{x0}" y="18" font-weight="bold">{file}</text>')
        drawn.append(f'<path d="M{x0} {top}V{y0}H{x0 + width}" fill="none" stroke="#667"/>')
        drawn += [
            f'<text x="{x0 - 6}" y="{y0 - height * share / 100 + 4:.0f}" text-anchor="end">{share}%</text>'
            for share in (0, 25, 50, 75, 100)
        ]
        drawn += [
            f'<text x="{across(tick):.0f}" y="{y0 + 16}" text-anchor="middle">{tick:,}</text>'
            for tick in (500, 1_000, 2_000, 4_000, 8_000)
            if low < tick < most
        ]
        labels: list[tuple[float, float]] = []
        for name, (x, y) in sorted(own.items(), key=lambda item: -item[1][1]):
            cx, cy = across(x), y0 - height * y / 100
            down = cy + 4
            while any(abs(cx - other) < 150 and abs(down - height_of) < line for other, height_of in labels):
                down += 1
            labels.append((cx, down))
            colour = "#2563eb" if "/" in name or name == "defaults" else "#b45309"
            drawn.append(f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{5 if name == "defaults" else 3}" fill="{colour}"/>')
            drawn.append(f'<text x="{cx + 9:.1f}" y="{down:.1f}" font-size="10" fill="{colour}">{name}</text>')
        label = "price of a call, with summaries and reads, in tokens of uncached input"
        drawn.append(f'<text x="{x0}" y="{y0 + 36}">{label}</text>')
    return "\n".join([*drawn, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--window", type=int, default=16_000)
    parser.add_argument("--limit", type=int, help="only so many sessions of each file")
    parser.add_argument("--files", nargs="+", default=["runs.jsonl", "runs-swe.jsonl"], metavar="NAME")
    parser.add_argument("--ways", nargs="+", choices=ALL_WAYS, default=list(ALL_WAYS), metavar="NAME")
    parser.add_argument("--plot", type=Path, help="where an SVG of price and answers is written")
    parser.add_argument("--fits", action="store_true", help="sessions that fit the window, not the others")
    given = parser.parse_args()
    if not (data := os.environ.get("AETHER_CONTEXT_DATA")):
        print("skipped: AETHER_CONTEXT_DATA names no folder with recorded runs")
        return
    points: dict[tuple[str, str], tuple[float, float]] = {}
    together: dict[str, float] = {}

    def rows() -> Iterator[tuple[list[str], list[Figures]]]:
        for file in given.files:
            runs = long_runs(Path(data, file), given.window, given.fits)[: given.limit]
            for way in given.ways if runs else ():
                sessions = measured(runs, way, given.window)
                points[file, way] = point(sessions)
                together[way] = together.get(way, 0.0) + sum(one["in all"][0] for one in sessions)
                yield [file, way], sessions

    print_table(("file", "way"), COLUMNS, rows())
    for way, total in together.items() if given.fits else ():
        print(f"{way}: {total:,.0f} in all sessions together")
    if given.plot:
        given.plot.write_text(plot(points))


if __name__ == "__main__":
    main()
