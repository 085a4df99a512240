"""`aether-context exam` and `compare`: could calls know what they used, and which arm does better."""

from __future__ import annotations

from aether_context.canonical import JSON
from aether_context.lab.cli import packs
from aether_context.lab.cli.terminal import NOT_THERE, print_json, print_table, progress, say, say_error
from aether_context.lab.exam import Exam, Interval, hold_exam
from aether_context.lab.exam.marking import MARKS, ROWS
from aether_context.lab.tuning.arms import MEASURES, compare_arms
from aether_context.store import PackStore

_LITTLE, _MUCH = 10, 33
"""Percent of questions that may be lost for cuts to lose little, and up to which they lose a part."""


def show_exam(url: str, *, as_json: bool, **selection: str | None) -> int:
    exam = hold_exam(packs.require(PackStore(url)), advance=progress, **selection)
    rows = {row: _figures(exam, row) for row in ROWS}
    if as_json:
        figures: JSON = {row: {name: _json(figure) for name, figure in of_row.items()} for row, of_row in rows.items()}
        facts: JSON = {"sessions": len(exam.sessions), "requests": exam.total.requests, "judgement": _judgement(exam)}
        print_json({**facts, "rows": figures, "unusable": dict(exam.unusable)})
    else:
        columns = ("", ">asked", *(f">{mark}, %" for mark in MARKS))
        print_table(columns, [(row, *map(_cell, of_row.values())) for row, of_row in rows.items() if of_row["asked"]])
        count, brackets = len(exam.sessions), "; brackets hold 95% over sessions"
        say(f"{exam.total.requests:,} requests of {count:,} session{'s'[: count != 1]}{brackets * (count > 1)}")
        for name, problem in exam.unusable.items():
            say_error(f"left out: {name}: {problem}", "red")
        say(_judgement(exam))
    return NOT_THERE if exam.unusable else 0


def _figures(exam: Exam, row: str) -> dict[str, int | Interval]:
    return {"asked": exam.total.count(*MARKS, row=row), **{mark: exam.share(mark, row=row) for mark in MARKS}}


def _judgement(exam: Exam) -> str:
    """A sentence that says what the figures come to."""
    if not (asked := exam.total.count(*MARKS)):
        return "Nothing to ask: what calls used of results and people's words was new, or stood whole."
    answered, found, lost = (100 * exam.total.count(mark) / asked for mark in MARKS)
    verdict = "little is lost" if lost <= _LITTLE else "a part is lost" if lost <= _MUCH else "much is lost"
    advice = "" if lost <= _LITTLE else "; a wider window or `aether-context tune` may keep more"
    return (
        f"Of {asked:,} texts that calls used and cuts or extracts had taken, {answered:.0f}% stand in the request, "
        f"{found:.0f}% are one search away, and {lost:.0f}% are lost: {verdict}{advice}."
    )


def show_arms(url: str, *, everything: bool, as_json: bool, **selection: str | None) -> int:
    report = compare_arms(packs.require(PackStore(url)), **selection)
    if as_json:
        contrasts = [
            {"arm": one.arm, "measure": one.measure, "chance": one.chance, "more_sessions": one.more_sessions}
            | {"difference": one.difference.to_json()}
            for one in report.contrasts
        ]
        arms = {
            name: {"sessions": report.sessions[name], "cost_estimated": name in report.estimated}
            | {measure: mean.to_json() for measure, mean in means.items()}
            for name, means in report.means.items()
        }
        print_json({"verdict": str(report), "arms": arms, "contrasts": contrasts, "unusable": dict(report.unusable)})
    else:
        say(report, "green" if any(contrast.more_sessions is None for contrast in report.contrasts) else "yellow")
        if everything:
            for contrast in report.contrasts:
                say(f"against {next(iter(report.sessions))}: {contrast}")
            columns = [f">{name}, {unit}" for name, unit in MEASURES.items()]
            rows = [(name, report.sessions[name], *map(_cell, means.values())) for name, means in report.means.items()]
            print_table(("arm", ">sessions", *columns), rows)
            if report.estimated:
                names = ", ".join(sorted(report.estimated))
                say(f"cost is estimated where providers did not report all of it: {names}")
        for name, problem in report.unusable.items():
            say_error(f"left out: {name}: {problem}", "red")
    return NOT_THERE if report.unusable else 0


def _cell(figure: int | Interval) -> str:
    if isinstance(figure, int):
        return f"{figure:,}"
    digits = 1 if abs(figure.mean) >= 1 or not figure.mean else 5
    interval = f" [{figure.low:.{digits}f}, {figure.high:.{digits}f}]" if figure.sessions > 1 else ""
    return f"{figure.mean:.{digits}f}{interval}" if figure.sessions else ""


def _json(figure: int | Interval) -> JSON:
    return figure if isinstance(figure, int) else figure.to_json()
