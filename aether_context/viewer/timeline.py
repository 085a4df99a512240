"""The page of a session: its calls in their order, as charts and as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from aether_context.errors import ManifestError, PackNotFound
from aether_context.pack import LAYERS
from aether_context.policy import PackPolicy
from aether_context.store import PackStore
from aether_context.usage import Accuracy, Totals, accuracy
from aether_context.viewer.rows import Row
from aether_context.views import Comparison, Unpacked

MOST_CALLS = 1_000
"""Most calls on a page."""
COMPARED = 60
"""Up to this many calls a session is compared with itself without packs even where that is not requested."""
WIDTH, LEFT = 1_000, 52
"""Units across a chart, and before its first bar."""
_WIDEST = 34
_LABEL = 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A line at a call, with its label where there is room for it."""

    x: float
    label: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart in units of an SVG: a path of bars for each series, lines by name, ticks by height, and markers.

    ``above`` are the lines that are beyond the top, with their tokens.
    """

    height: int
    bars: Mapping[str, str]
    lines: Mapping[str, str]
    ticks: Sequence[tuple[float, int]]
    markers: Sequence[Marker] = ()
    above: Mapping[str, int]
    columns: Sequence[tuple[float, float, Row]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """A call: ``grown`` is the growth in tokens since the agent's call before, ``freed`` the tokens left out.

    ``error`` is the estimate's error as a share of the reported tokens.
    """

    row: Row
    grown: int | None
    freed: int
    reasons: tuple[str, ...]
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A session. ``offset`` is the number of the first call on the page, from 0."""

    calls: Sequence[CallLine]
    requests: Chart
    tokens: Chart | None
    totals: Totals
    close: Accuracy
    agents: Sequence[str]
    whole: int
    offset: int

    @property
    def first(self) -> Row:
        return self.calls[0].row

    @property
    def last(self) -> Row:
        return self.calls[-1].row

    @property
    def pages(self) -> int:
        return max(1, -(-self.whole // MOST_CALLS))


def timeline(rows: Sequence[Row], policy_of: Callable[[Row], PackPolicy | None], page: int | None = None) -> Timeline:
    """The timeline of a session's rows, which are given the oldest first; by default its last page.

    Args:
        policy_of: the policy of a pack, None where it cannot be read.
    """
    pages = max(1, -(-len(rows) // MOST_CALLS))
    offset = ((pages if page is None else max(1, min(page, pages))) - 1) * MOST_CALLS
    shown = rows[offset : offset + MOST_CALLS]
    totals = Totals()
    for row in rows:
        if row.answered is not None:
            totals = totals.plus(Totals.of(row.answered))
    pairs = [(row.estimate, reported) for row in rows if (reported := _reported(row)) is not None]
    return Timeline(
        calls=_lines(shown),
        requests=_requests(shown, policy_of),
        tokens=_tokens(shown) if any(map(_reported, shown)) else None,
        totals=totals,
        close=accuracy(pairs),
        agents=sorted({row.agent for row in rows}),
        whole=len(rows),
        offset=offset,
    )


def compared(store: PackStore, rows: Sequence[Row]) -> Comparison:
    """A session's input with its packs and without; rows are given the oldest first.

    This reads each manifest, which takes a second for a thousand.
    """
    unpacked, comparison = Unpacked(store), Comparison()
    for row in rows:
        if row.fault:  # it has a flag of its own
            continue
        # It was deleted meanwhile, or its fields are impossible, which its own page reports.
        with suppress(PackNotFound, ManifestError, LookupError, ArithmeticError):
            comparison = comparison.plus(unpacked.compare(store.read(f"{store.files.root}/{row.place}")))
    return comparison


def _reported(row: Row) -> int | None:
    return row.answered.input_tokens if row.answered is not None and not row.answered.input_estimated else None


def _lines(rows: Sequence[Row]) -> list[CallLine]:
    previous_estimates: dict[tuple[str, str], int] = {}
    lines = []
    for row in rows:
        previous = previous_estimates.get((row.agent, row.branch))
        previous_estimates[row.agent, row.branch] = row.estimate
        reported = _reported(row)
        lines.append(
            CallLine(
                row=row,
                grown=None if previous is None else row.estimate - previous,
                freed=sum(max(0, tokens) for _, _, tokens in row.cut),
                reasons=tuple(dict.fromkeys(f"{stage}: {reason}" for stage, reason, _ in row.cut)),
                error=(row.estimate - reported) / reported if reported else None,
            )
        )
    return lines


class _Scale:
    """Converts calls and tokens to units of an SVG. ``top`` are the tokens at the top of ``height``."""

    def __init__(self, calls: int, height: int, top: int) -> None:
        self.height, self.top = height, max(1, top)
        self.step = min(float(_WIDEST), (WIDTH - LEFT - 8) / max(1, calls))
        self.wide = max(0.6, self.step * 0.8)

    def x(self, index: int) -> float:
        return round(LEFT + index * self.step, 2)

    def y(self, tokens: float) -> float:
        return round(self.height - 18 - (self.height - 26) * tokens / self.top, 2)

    def ticks(self) -> list[tuple[float, int]]:
        return [(self.y(tokens), tokens) for tokens in (0, self.top // 2, self.top)]

    def bars(self, series: Mapping[str, Sequence[int]]) -> dict[str, str]:
        """A path for each series, stacked in their order."""
        stacked = [0] * max(map(len, series.values()), default=0)
        paths = {}
        for name, values in series.items():
            segments = []
            for index, tokens in enumerate(values):
                if tokens > 0:
                    low, high = self.y(stacked[index]), self.y(stacked[index] + tokens)
                    segments.append(f"M{self.x(index)} {low}V{high}h{self.wide:.2f}V{low}z")
                    stacked[index] += tokens
            if segments:
                paths[name] = "".join(segments)
        return paths

    def line(self, values: Sequence[int]) -> str:
        """The path of a stepped line, one step for each call."""
        path = f"M{self.x(0)} {self.y(values[0])}H{self.x(1)}"
        for index, (previous, tokens) in enumerate(pairwise(values), start=1):
            path += ("" if previous == tokens else f"V{self.y(tokens)}") + f"H{self.x(index + 1)}"
        return path


def _requests(rows: Sequence[Row], policy_of: Callable[[Row], PackPolicy | None]) -> Chart:
    """The chart of requests by layer, with window, budget and the marks for cuts as lines."""
    lines: dict[str, list[int]] = {
        "window": [row.window for row in rows],
        "budget": [row.budget for row in rows],
    }
    policies = [policy_of(row) for row in rows]
    for name in ("compact_at", "compact_to"):
        thresholds = [getattr(policy.conversation, name) if policy is not None else 1.0 for policy in policies]
        lines[name] = [int(threshold * row.budget) for threshold, row in zip(thresholds, rows, strict=True)]
    if lines["compact_at"] == lines["budget"]:
        del lines["compact_at"]
    # Layers are in counted tokens, window and budget in the provider's: each bar is scaled to its request's estimate.
    shares = [row.estimate / (sum(row.used) or 1) for row in rows]
    series: dict[str, list[int]] = {
        layer: [int(row.used[index] * share) for row, share in zip(rows, shares, strict=True)]
        for index, layer in enumerate(LAYERS)
    }
    peak = max(row.estimate for row in rows)
    window = max(lines["window"])
    top = max(window, peak) if 4 * peak >= window else int(1.3 * peak)
    scale = _Scale(len(rows), 240, top)
    markers: list[Marker] = []
    for index, row in enumerate(rows):
        if row.epoch_reason:
            x = scale.x(index)
            has_room = not markers or x - max((m.x for m in markers if m.label), default=-_LABEL) >= _LABEL
            markers.append(Marker(x=x, label=str(row.epoch) if has_room else "", reason=row.epoch_reason))
    return Chart(
        height=240,
        bars=scale.bars(series),
        lines={name: scale.line(values) for name, values in lines.items() if max(values) <= top},
        ticks=scale.ticks(),
        markers=markers,
        above={name: max(values) for name, values in lines.items() if max(values) > top},
        columns=[(scale.x(index), scale.step, row) for index, row in enumerate(rows)],
    )


def _tokens(rows: Sequence[Row]) -> Chart:
    """The chart of reported tokens: cached and fresh input, and output; with the estimate as a line."""
    usages = [row.answered for row in rows]
    input_tokens = [_reported(row) or 0 for row in rows]
    cached = [
        min(call.cached_tokens or 0, total) if call else 0 for call, total in zip(usages, input_tokens, strict=True)
    ]
    fresh = [total - cached_tokens for total, cached_tokens in zip(input_tokens, cached, strict=True)]
    output = [call.output_tokens if call is not None else 0 for call in usages]
    estimates = [row.estimate for row in rows]
    peak = max(*map(sum, zip(input_tokens, output, strict=True)), *estimates, 1)
    scale = _Scale(len(rows), 150, peak)
    return Chart(
        height=150,
        bars=scale.bars({"cached": cached, "fresh": fresh, "output": output}),
        lines={"estimate": scale.line(estimates)},
        ticks=scale.ticks(),
        above={},
        columns=[(scale.x(index), scale.step, row) for index, row in enumerate(rows)],
    )
