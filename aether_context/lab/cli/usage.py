"""`aether-context usage`: what recorded calls used and cost, and how close their estimates were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import click

from aether_context.canonical import JSON
from aether_context.errors import AetherContextError
from aether_context.lab.cli import packs
from aether_context.lab.cli.rendering import print_comparison
from aether_context.lab.cli.terminal import NOT_THERE, moment, print_json, print_table, say, say_error, watched
from aether_context.lab.reading import Comparison, Reading
from aether_context.lab.reading.cache import CacheWitness
from aether_context.lab.reading.tools import ToolUses
from aether_context.store import Manifest, PackStore
from aether_context.store.files import File
from aether_context.store.replay import Replayer
from aether_context.usage import Totals, accuracy


@dataclass(slots=True)
class _Group:
    """Calls in one row. ``unanswered`` counts those without a recorded outcome, ``failed`` those without usage.

    ``pairs`` are estimated and reported input tokens.
    """

    totals: Totals = field(default_factory=Totals)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    unanswered: int = 0
    failed: int = 0

    def add(self, manifest: Manifest, outcome: Mapping[str, JSON] | None) -> None:
        if outcome is None:
            self.unanswered += 1
            return
        call = manifest.usage(outcome)
        if call is None:
            self.failed += 1
            return
        system, tools = (manifest.allocation[name].used for name in ("system", "tools"))
        call = replace(call, system_tokens=system, tool_tokens=tools)
        self.totals = self.totals.plus(Totals.of(call))
        input_tokens = outcome.get("input_tokens")
        if isinstance(input_tokens, int) and not call.input_estimated and not manifest.passthrough_reason:
            self.pairs.append((manifest.request_tokens, input_tokens))

    def figures(self) -> dict[str, JSON]:
        """The figures of the calls; None is unknown."""
        totals = self.totals
        names: tuple[str, ...] = ("calls", "input_tokens", "output_tokens", "total_tokens", "cached_share")
        names += ("system_tokens", "tool_tokens", "unpriced_calls")
        return {name: getattr(totals, name) for name in names} | {
            "unanswered": self.unanswered,
            "failed": self.failed,
            "cached_tokens": totals.cached_tokens if totals.cached_share is not None else None,
            "unreported_inputs": totals.estimated_inputs,
            "unreported_outputs": totals.estimated_outputs,
            **totals.cost_fields,
            "estimate": {
                **accuracy(self.pairs)._asdict(),
                "estimated_tokens": sum(estimated for estimated, _ in self.pairs) if self.pairs else None,
                "reported_tokens": sum(reported for _, reported in self.pairs) if self.pairs else None,
            },
        }


def show_usage(url: str, *, by: Sequence[str], as_json: bool, **selection: str | None) -> int:
    """Prints the usage of recorded calls, grouped ``by`` some columns."""
    listed, by = packs.selected_packs(store := PackStore(url), newest=None, **selection), tuple(dict.fromkeys(by))
    if "tool" in by:
        return _show_tools(store, listed, by, as_json)
    groups: defaultdict[tuple[str, ...], _Group] = defaultdict(_Group)
    strategies: defaultdict[str, Counter[str]] = defaultdict(Counter)
    all_calls, unreadable = _Group(), list[AetherContextError]()
    compared, witness = Comparison(), CacheWitness()

    for _, manifest, outcome in watched(store.calls(listed, outcomes=True), len(listed)):
        if isinstance(manifest, AetherContextError):
            unreadable.append(manifest)
            continue
        compared.add(manifest, call := manifest.usage(outcome))
        witness.add(manifest, call)
        for act in manifest.strategy_acts:
            effects = {name: getattr(act, name) for name in ("removed", "replaced", "freed_tokens", "lost_tokens")}
            strategies[act.strategy].update(cuts=1, **effects)
        keys = {
            "agent": manifest.agent,
            "day": moment(manifest.last_event_time).partition(" ")[0],
            "model": manifest.model,
            "session": "/".join([manifest.app, manifest.user, manifest.session]),
        }
        for group in (groups[tuple(keys[name] for name in by)], all_calls):
            group.add(manifest, outcome)
    rows = sorted(groups.items())
    acts = {name: dict(strategies[name]) for name in sorted(strategies)}
    if as_json:
        groups_json = [dict(zip(by, key, strict=True)) | group.figures() for key, group in rows]
        report = {"by": list(by), "groups": groups_json, "all": all_calls.figures(), "strategies": acts}
        report["cache_losses"] = witness.to_json()
        sides = {"packed": _side(compared.packed), "unpacked": _side(compared.unpacked)}
        print_json(report | {"comparison": sides, "unreadable": len(unreadable)})
    else:
        _print(by, rows, all_calls, acts)
        say()
        if witness.rows:
            print_table(("cache lost to", ">calls", ">tokens", ">cost above cached"), witness.rows)
            say()
        print_comparison(compared)
    for fault in () if as_json else unreadable:
        say_error(f"unreadable: {fault}", "red")
    return NOT_THERE if unreadable else 0


def _show_tools(store: PackStore, listed: Mapping[str, File], by: Sequence[str], as_json: bool) -> int:
    """Prints the declarations and results of each tool, sent over all calls, with their price."""
    if by != ("tool",):
        raise click.UsageError("--by tool stands alone: a call has several tools")
    uses, replayer, unreadable = ToolUses(), Replayer(store), list[AetherContextError]()
    for _, manifest, outcome in watched(store.calls(listed, outcomes=True), len(listed)):
        try:
            if isinstance(manifest, AetherContextError):
                raise manifest
            uses.add(replayer, manifest, manifest.usage(outcome))
        except AetherContextError as error:
            unreadable.append(error)
    if as_json:
        by_name = sorted(uses.by_name.items())
        tools = [{"tool": name, **asdict(use), "cost_usd": float(use.cost_usd)} for name, use in by_name]
        print_json({"tools": tools, "unread": uses.unread, "unreadable": len(unreadable)})
        return NOT_THERE if unreadable else 0
    print_table(("tool", ">requests", ">declared", ">results", ">cost"), uses.rows)
    if uses.unread:
        say(f"calls whose texts are not recorded, or that sent no pack, not counted: {uses.unread:,}")
    for fault in unreadable:
        say_error(f"unreadable: {fault}", "red")
    return NOT_THERE if unreadable else 0


def _side(reading: Reading) -> dict[str, JSON]:
    sizes = {name: getattr(reading, name) for name in ("shared", "largest", "over_window")}
    return {"calls": reading.totals.calls, "tokens": reading.totals.input_tokens, **sizes, **reading.totals.cost_fields}


def _print(
    by: Sequence[str],
    rows: Sequence[tuple[Sequence[str], _Group]],
    all_calls: _Group,
    strategy_acts: Mapping[str, Mapping[str, int]],
) -> None:
    """Prints a row for each group and one for all; then what each strategy cut, freed and cost."""
    table: list[tuple[object, ...]] = []
    for key, group in [*rows, (("all", *[""] * (len(by) - 1)), all_calls)]:
        figures = group.figures()
        close, cached = figures["estimate"], figures["cached_share"]
        forms = {"p50": ".1%", "p95": ".1%", "bias": "+.1%"}
        errors = [None if close[name] is None else format(close[name], form) for name, form in forms.items()]
        row = (
            *(*key, figures["calls"], close["estimated_tokens"], close["reported_tokens"], *errors),
            "~" * bool(figures["unreported_inputs"]) + f"{figures['input_tokens']:,}",
            "~" * bool(figures["unreported_outputs"]) + f"{figures['output_tokens']:,}",
            None if cached is None else f"{cached:.0%}",
            group.totals.cost_text,
        )
        table.append(row)
    estimates = (">estimated", ">reported", ">p50", ">p95", ">bias")
    print_table((*by, ">calls", *estimates, ">input", ">output", ">cached", ">cost"), table)
    whole = all_calls.figures()
    notes = {
        "~ holds calls whose provider reported no usage: the estimate stands for their input, 0 for their output": (
            whole["unreported_inputs"] or whole["unreported_outputs"]
        ),
        f"calls of models without a known price: {whole['unpriced_calls']:,}": whole["unpriced_calls"],
        f"calls that failed, not counted: {whole['failed']:,}": whole["failed"],
        f"packs without an answer on record, not counted: {whole['unanswered']:,}": whole["unanswered"],
    }
    for note, holds in notes.items():
        if holds:
            say(note)
    if strategy_acts:
        say()
        columns = ("strategy", ">cuts", ">removed", ">replaced", ">freed", ">read anew")
        print_table(columns, [(name, *sums.values()) for name, sums in strategy_acts.items()])
