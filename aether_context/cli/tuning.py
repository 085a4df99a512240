"""`aether-context tune`: searches for a better policy on recorded sessions."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from aether_context.canonical import JSON, short
from aether_context.cli.terminal import FAILED, Screen, cell, counted_progress, grid, print_json, tell
from aether_context.policy import PackPolicy
from aether_context.tuning.chart import report
from aether_context.tuning.knobs import KNOBS, knob_named
from aether_context.tuning.proposal import Mover, Recordings, Tuner, policy_file
from aether_context.tuning.statistics import Difference
from aether_context.tuning.study import Compared, Study, adjusted
from aether_context.tuning.workers import Journal, pool


def tune(
    urls: tuple[str, ...],
    profiles: tuple[str, ...],
    knobs: tuple[str, ...],
    base: str | None,
    check: str | None,
    trials: int,
    seed: int,
    margin: float,
    spend: float,
    jobs: int | None,
    dask: str | None,
    journal: Path | None,
    output: Path | None,
    report_to: Path | None,
    explain: bool,
    as_json: bool,
) -> int:
    tuned_knobs = [knob_named(name) for name in knobs] or list(KNOBS)
    base_policy = PackPolicy.load(base) if base is not None else None
    checked_policy = PackPolicy.load(check) if check is not None else None
    screen = Screen()
    with (
        pool(jobs, dask) as workers,
        closing(Journal(journal)) as journal_file,
        counted_progress("playing sessions") as advance,
    ):
        tuner = Tuner(urls, workers, journal_file, seed=seed, base=base_policy, advance=advance)
        if checked_policy is not None:
            return _check(tuner, screen, profiles, checked_policy, margin, explain, as_json)
        all_recordings = [tuner.recordings(profile) for profile in profiles]
        studies = adjusted(
            [
                tuner.study(recordings, knobs=tuned_knobs, trials=trials, margin=margin, spend=spend)
                for recordings in all_recordings
            ]
        )
        movers = [
            tuner.movers(recordings, study.points[study.chosen].values) if explain and study.chosen is not None else []
            for recordings, study in zip(all_recordings, studies, strict=True)
        ]
    results = list(zip(all_recordings, studies, strict=True))
    text = policy_file(results, urls=urls, seed=seed, margin=margin)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if report_to is not None:
        report_to.write_text(report(results, text), encoding="utf-8")
    if as_json:
        print_json([_json(recordings, study) for recordings, study in results])
        return 0
    for (recordings, study), study_movers in zip(results, movers, strict=True):
        _show(screen, recordings, study)
        _show_movers(screen, study_movers)
    if output is None:
        screen.print()
        for line in text.splitlines():
            screen.print_line(line)
    else:
        tell(f"{output} holds the policy and what it stands on")
    return 0


def _check(
    tuner: Tuner,
    screen: Screen,
    profiles: tuple[str, ...],
    policy: PackPolicy,
    margin: float,
    explain: bool,
    as_json: bool,
) -> int:
    """Prints how a policy compares with the recordings; fails where it is worse by more than the margin, where more
    requests pass the window, and where a session cannot be played."""
    any_worse = False
    for profile in profiles:
        recordings = tuner.recordings(profile)
        comparison = tuner.against(recordings, policy)
        unplayed = len(recordings.sessions) - comparison.sessions
        more_over = comparison.over[1] - comparison.over[0]
        problems = {
            f"{more_over} more requests pass the window": more_over > 0,
            f"{unplayed} sessions cannot be played": unplayed > 0,
            f"it is worse by more than {margin:g}": comparison.retention.mean < -margin
            or comparison.cost.mean > margin,
        }
        reasons = [reason for reason, applies in problems.items() if applies]
        is_worse = bool(reasons)
        any_worse = any_worse or is_worse
        if as_json:
            print_json({"profile": profile, "loses": is_worse, "reasons": list[JSON](reasons), **_compared(comparison)})
            continue
        _show_recordings(screen, recordings)
        _show_compared(screen, [("all sessions", comparison)])
        screen.print_line(
            f"{profile}: {'loses: ' + '; '.join(reasons) if reasons else f'holds (margin {margin:g})'}", "bold"
        )
        if explain:
            _show_movers(screen, tuner.movers(recordings, {}, policy))
    return FAILED if any_worse else 0


def _show_recordings(screen: Screen, recordings: Recordings) -> None:
    parts = recordings.split
    screen.print_heading(f"Profile {recordings.profile}: {len(recordings.sessions)} sessions, {recordings.calls} calls")
    if recordings.given is None:
        screen.print_line(f"{recordings.same} of {recordings.calls} requests are built again byte for byte")
        if recordings.policies > 1:
            screen.print_line(
                f"recorded under {recordings.policies} policies: all are played under {short(recordings.base.digest)}, "
                "which most calls have; --from takes another"
            )
    held = f", {len(parts.held_out)} of {parts.source} held out" if parts.source else ""
    screen.print_line(f"{len(parts.fit)} sessions to fit on, {len(parts.check)} to check on{held}")
    for name, problem in list(recordings.unusable.items())[:3]:
        screen.print_line(f"left out: {name}: {problem}", "dim")
    if len(recordings.unusable) > 3:
        screen.print_line(f"left out: {len(recordings.unusable) - 3} more", "dim")


def _show(screen: Screen, recordings: Recordings, study: Study) -> None:
    _show_recordings(screen, recordings)
    screen.print()
    names = list(dict.fromkeys(name for point in study.points for name in point.values))
    table = grid("trial", ">cost", ">retention", *(f">{name.rpartition('.')[2]}" for name in names))
    for number in study.front:
        point = study.points[number]
        mark = " recommended" if number == study.chosen else ""
        table.add_row(
            cell(f"{number}{mark}" if number else "base"),
            f"{point.cost:+.1f}%",
            f"{point.retention:+.2f}",
            *(f"{point.values[name]:g}" if name in point.values else "" for name in names),
        )
    screen.print_heading(f"The best of {len(study.points) - 1} trials on the sessions to fit on")
    screen.print(table)
    parts = [("fit", study.fit), ("check", study.check), ("held out", study.held_out)]
    _show_compared(screen, [(name, part) for name, part in parts if part is not None])
    screen.print_line(f"{study.profile}: {study.verdict}: {study.reason}", "bold")


def _show_compared(screen: Screen, parts: list[tuple[str, Compared]]) -> None:
    if not parts:
        return
    table = grid("sessions", ">number", ">that differ", ">cost", ">retention", ">bill", ">effective in the bill")
    for name, part in parts:
        table.add_row(
            cell(name),
            f"{part.sessions}",
            f"{part.cost.sessions}",
            _interval(part.cost, "%"),
            _interval(part.retention, ""),
            f"{part.bill:+.1f}%",
            f"{part.weight:.1f}",
        )
    screen.print()
    screen.print(table)


def _interval(difference: Difference, unit: str) -> str:
    if not difference.sessions:
        return "none"
    return f"{difference.mean:+.2f}{unit} [{difference.low:+.2f}, {difference.high:+.2f}]"


def _show_movers(screen: Screen, movers: list[Mover]) -> None:
    if not movers:
        return
    table = grid("session", ">cost", ">retention", ">cuts", "pack")
    for mover in movers:
        table.add_row(
            cell(mover.session.rpartition("/")[2]),
            f"{mover.cost:+.1f}%",
            f"{mover.retention:+.2f}",
            f"{mover.before.cuts} → {mover.after.cuts}",
            cell(mover.pack),
        )
    screen.print()
    screen.print_heading("Sessions that moved it, with the pack whose answer used what the other request lacked")
    screen.print(table)


def _json(recordings: Recordings, study: Study) -> dict[str, JSON]:
    parts = {"fit": study.fit, "check": study.check, "held_out": study.held_out}
    return {
        "profile": study.profile,
        "verdict": study.verdict,
        "reason": study.reason,
        "chance": study.chance,
        "sessions": len(recordings.sessions),
        "recordings": recordings.digest,
        "left_out": dict(recordings.unusable),
        "values": dict(study.values),
        "front": list(study.front),
        "points": [{**asdict(point), "values": dict(point.values)} for point in study.points],
        **{name: _compared(part) for name, part in parts.items() if part is not None},
    }


def _compared(comparison: Compared) -> dict[str, JSON]:
    def figures(difference: Difference) -> dict[str, JSON]:
        if not difference.sessions:
            return {"sessions": 0}
        return {
            "mean": difference.mean,
            "low": difference.low,
            "high": difference.high,
            "sessions": difference.sessions,
        }

    return {
        "cost_percent": figures(comparison.cost),
        "retention_points": figures(comparison.retention),
        "bill_percent": comparison.bill,
        "sessions": comparison.sessions,
        "effective_sessions_of_bill": comparison.weight,
    }
