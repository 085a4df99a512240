"""`aether-context usage`: what recorded calls used and cost, and how close their estimates were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from aether_context.canonical import JSON
from aether_context.cli import packs
from aether_context.cli.terminal import cell, console, grid, moment, number, print_json, tell
from aether_context.errors import AetherContextError
from aether_context.store import Manifest, PackStore
from aether_context.usage import Accuracy, CallUsage, Totals, accuracy
from aether_context.usage.prices import cost_of

BY = ("agent", "day", "model", "session")
"""What calls can be grouped by."""


_ROOM_FOR_ESTIMATES = 120
"""Columns from which on a row also says how close estimates were."""


@dataclass(slots=True)
class _Group:
    """Calls that are reported in one row. ``unanswered`` have no answer on record, ``failed`` came to nothing."""

    totals: Totals = field(default_factory=Totals)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    unanswered: int = 0
    failed: int = 0

    def add(self, manifest: Manifest, outcome: Mapping[str, JSON] | None) -> None:
        if outcome is None:
            self.unanswered += 1
            return
        call = _call(manifest, outcome)
        if call is None:
            self.failed += 1
            return
        self.totals = self.totals.plus(Totals.of(call))
        if (reported := _count(outcome, "input_tokens")) is not None and not manifest.passthrough_reason:
            self.pairs.append((manifest.request_tokens, reported))


def show(url: str, *, app: str | None, user: str | None, session: str | None, by: Sequence[str], as_json: bool) -> bool:
    """Prints the ledger; False where a pack could not be read.

    Args:
        by: names from `BY`, the columns that calls are grouped by.

    Raises:
        StoreError: the store is not there, or could not be listed.
    """
    store = packs.require(PackStore(url))
    groups: defaultdict[tuple[str, ...], _Group] = defaultdict(_Group)
    strategies: defaultdict[str, Counter[str]] = defaultdict(Counter)
    whole, unreadable = _Group(), []
    for place in store.folders(app=app, user=user, session=session):
        try:
            manifest = store.read(place)
            outcome = store.outcome(manifest)
        except AetherContextError as error:
            unreadable.append(str(error))
            continue
        for act in manifest.strategy_acts:
            done = {name: getattr(act, name) for name in ("removed", "replaced", "freed_tokens", "lost_tokens")}
            strategies[act.strategy].update(cuts=1, **done)
        for group in (groups[tuple(_key(manifest, name) for name in by)], whole):
            group.add(manifest, outcome if isinstance(outcome, dict) else None)
    rows = sorted(groups.items())
    if as_json:
        listed = [dict(zip(by, key, strict=True)) | _value(one) for key, one in rows]
        acts = {name: dict(strategies[name]) for name in sorted(strategies)}
        found = {"by": list(by), "groups": listed, "all": _value(whole), "strategies": acts}
        print_json(found | {"unreadable": len(unreadable)})
    elif not groups:
        tell(f"no packs{packs.whose(app=app, user=user, session=session)} in {store.url}")
    else:
        _print(by, [*rows, (("all", *[""] * (len(by) - 1)), whole)], whole)
        _print_acts(strategies)
    for fault in () if as_json else unreadable:
        tell(f"unreadable: {fault}", "red")
    return not unreadable


def _key(manifest: Manifest, name: str) -> str:
    if name == "day":
        return moment(manifest.last_event_time).partition(" ")[0]
    if name == "session":
        return "/".join([manifest.app, manifest.user, manifest.session])
    return manifest.agent if name == "agent" else manifest.model


def _call(manifest: Manifest, outcome: Mapping[str, JSON]) -> CallUsage | None:
    """The usage of one call, its estimate where the provider did not report; None where it failed."""
    read, answered = _count(outcome, "input_tokens"), _count(outcome, "output_tokens")
    if read is None and outcome.get("error_code") is not None:
        return None
    usage = {
        "input_tokens": (manifest.request_tokens if read is None else read) + (_count(outcome, "tool_use_tokens") or 0),
        "output_tokens": answered or 0,
        "cache_write_tokens": _count(outcome, "cache_write_tokens") or 0,
    }
    cached = _count(outcome, "cached_tokens")
    return CallUsage(
        **usage,
        cached_tokens=cached,
        input_estimated=read is None,
        output_estimated=answered is None,
        cost_usd=cost_of(manifest.model, manifest.last_event_time, cached_tokens=cached, **usage),
        system_tokens=manifest.allocation["system"].used,
        tool_tokens=manifest.allocation["tools"].used,
    )


def _count(outcome: Mapping[str, JSON], name: str) -> int | None:
    value = outcome.get(name)
    return value if type(value) is int and value >= 0 else None


def _value(group: _Group) -> dict[str, JSON]:
    """A row as JSON: None is unknown."""
    totals, close = group.totals, accuracy(group.pairs)
    cost = totals.known_cost_usd
    return {
        "calls": totals.calls,
        "unanswered": group.unanswered,
        "failed": group.failed,
        "input_tokens": totals.input_tokens,
        "output_tokens": totals.output_tokens,
        "total_tokens": totals.total_tokens,
        "cached_tokens": totals.cached_tokens if totals.known_cache_tokens else None,
        "cached_share": totals.cached_share,
        "system_tokens": totals.system_tokens,
        "tool_tokens": totals.tool_tokens,
        "unreported_inputs": totals.estimated_inputs,
        "unreported_outputs": totals.estimated_outputs,
        "cost_usd": None if cost is None else float(cost),
        "unpriced_calls": totals.unpriced_calls,
        "estimate": {
            "calls": close.calls,
            "estimated_tokens": sum(estimated for estimated, _ in group.pairs),
            "reported_tokens": sum(reported for _, reported in group.pairs),
            "p50": close.p50,
            "p95": close.p95,
            "bias": close.bias,
            "under": close.under,
        },
    }


def _print(by: Sequence[str], rows: Iterable[tuple[tuple[str, ...], _Group]], whole: _Group) -> None:
    out = console()
    narrow = out.width < _ROOM_FOR_ESTIMATES
    estimates = () if narrow else (">estimated", ">reported", ">p50", ">p95", ">bias")
    table = grid(*by, ">calls", *estimates, ">input", ">output", ">cached", ">cost")
    for key, group in rows:
        totals, close = group.totals, accuracy(group.pairs)
        sums = (sum(pair[at] for pair in group.pairs) for at in (0, 1))
        table.add_row(
            *(cell(name, limit=60) for name in key),
            number(totals.calls),
            *(() if narrow else (*map(number, sums), *_errors(close))),
            _about(totals.input_tokens, totals.estimated_inputs),
            _about(totals.output_tokens, totals.estimated_outputs),
            "unknown" if totals.cached_share is None else f"{totals.cached_share:.0%}",
            _dollars(totals),
            style="bold" if group is whole else "",
        )
    out.print(table)
    if narrow:
        out.print(Text(f"estimates and their errors are shown from {_ROOM_FOR_ESTIMATES} columns on", style="dim"))
    for note in _notes(whole):
        out.print(cell(note, "dim"))


def _print_acts(strategies: Mapping[str, Counter[str]]) -> None:
    """How often each strategy cut, what that freed, and what of the cached prefix had to be read anew for it."""
    if not strategies:
        return
    table = grid("strategy", ">cuts", ">removed", ">replaced", ">freed", ">read anew")
    for name, acts in sorted(strategies.items()):
        table.add_row(cell(name, limit=60), *(number(value) for value in acts.values()))
    out = console()
    out.print()
    out.print(table)


def _errors(close: Accuracy) -> tuple[str, str, str]:
    """Median, p95 and bias of the estimates, in percent."""
    if close.p50 is None or close.p95 is None or close.bias is None:
        return "unknown", "unknown", "unknown"
    return f"{close.p50:.1%}", f"{close.p95:.1%}", f"{close.bias:+.1%}"


def _about(tokens: int, unreported: int) -> str:
    return f"~{number(tokens)}" if unreported else number(tokens)


def _dollars(totals: Totals) -> str:
    """The cost; with a plus sign where calls without a price come on top."""
    cost = totals.known_cost_usd
    if cost is None:
        return "unknown"
    return f"${cost:,.4f}{'+' if totals.unpriced_calls else ''}"


def _notes(whole: _Group) -> Iterable[str]:
    totals = whole.totals
    if totals.estimated_inputs or totals.estimated_outputs:
        yield "~ holds calls whose provider reported no usage: the estimate stands for their input, 0 for their output"
    if totals.unpriced_calls:
        yield f"{number(totals.unpriced_calls)} calls are of models without a known price"
    if whole.failed:
        yield f"{number(whole.failed)} calls failed and are not counted"
    if whole.unanswered:
        yield f"{number(whole.unanswered)} packs have no answer on record and are not counted"
