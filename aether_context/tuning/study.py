"""Searches for a better policy on one half of the sessions, and tests it on the other half."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from aether_context.errors import MissingExtra, PolicyError
from aether_context.tuning.knobs import Knob, Values
from aether_context.tuning.simulation import Played
from aether_context.tuning.statistics import Difference, difference, effective, holm, needed_sessions
from aether_context.tuning.workers import Folder

LEAST_SESSIONS = 30
"""The smallest number of differing sessions for a result."""
_ALPHA = 0.05
_DIGITS = 3

Verdict: TypeAlias = Literal["tuned", "no change", "refused"]
Outcomes: TypeAlias = Mapping[str, Played]
"""The results of sessions under one policy, by name."""
Play: TypeAlias = Callable[[Values, Sequence[Folder]], Outcomes]
"""Plays sessions with other values for the knobs; those that cannot be played are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Sessions to fit on, sessions to check on, and those of one source that are held out of both."""

    fit: tuple[Folder, ...]
    check: tuple[Folder, ...]
    held_out: tuple[Folder, ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The comparison of two policies, over the sessions in which they differ.

    Attributes:
        cost: relative difference in percent, the mean over sessions.
        retention: difference in percentage points, the mean over sessions in which anything was needed.
        bill: relative difference of the total cost of all sessions, in percent.
        sessions: number of sessions played.
        weight: their effective number, weighted by cost.
        over: number of requests larger than the window, before and after.
    """

    cost: Difference
    retention: Difference
    bill: float
    sessions: int
    weight: float
    over: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The result of one trial on the sessions to fit on, compared with the base."""

    values: Values
    cost: float
    retention: float
    allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The result of a search for one profile.

    ``points`` are the trials, the base first; ``front`` are the numbers of those that no other beats in both cost and
    retention. ``chosen`` is the number of the recommended one, None for the base. ``chance`` is the p-value of the
    difference, adjusted for the number of profiles.
    """

    profile: str
    verdict: Verdict
    reason: str
    points: tuple[Point, ...]
    front: tuple[int, ...]
    chosen: int | None
    fit: Compared | None = None
    check: Compared | None = None
    held_out: Compared | None = None
    chance: float = 1.0

    @property
    def values(self) -> Values:
        """The recommended values; none where nothing changes."""
        return self.points[self.chosen].values if self.verdict == "tuned" and self.chosen is not None else {}


def split(folders: Sequence[Folder], seed: int) -> Split:
    """Splits sessions in halves by a hash of their names; of several sources one of the smaller ones is held out."""
    ordered = sorted(folders, key=lambda folder: _hash(f"{seed} {folder.name}"))
    sources: dict[str, int] = {}
    for folder in ordered:
        sources[folder.source] = sources.get(folder.source, 0) + 1
    source = ""
    if len(sources) > 1:
        largest = max(sources, key=lambda name: (sources[name], name))
        source = min((name for name in sources if name != largest), key=lambda name: _hash(f"{seed} {name}"))
    remaining = [folder for folder in ordered if folder.source != source] if source else ordered
    return Split(
        fit=tuple(remaining[::2]),
        check=tuple(remaining[1::2]),
        held_out=tuple(folder for folder in ordered if source and folder.source == source),
        source=source,
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def compare(before: Outcomes, after: Outcomes, seed: int) -> Compared:
    """Compares two policies, over the sessions that both were played on."""
    names = [name for name in before if name in after]
    pairs = [(before[name], after[name]) for name in names]
    changes = [
        change for before_played, after_played in pairs if (change := _change(before_played, after_played)).differs
    ]
    before_cost = sum(before_played.cost for before_played, _ in pairs)
    return Compared(
        cost=difference([change.cost for change in changes], seed),
        retention=difference([change.retention for change in changes if change.retention is not None], seed + 1),
        bill=100 * (sum(after_played.cost for _, after_played in pairs) / before_cost - 1) if before_cost else 0.0,
        sessions=len(pairs),
        weight=effective([before_played.cost for before_played, _ in pairs]),
        over=(
            sum(before_played.over for before_played, _ in pairs),
            sum(after_played.over for _, after_played in pairs),
        ),
    )


def search(
    play: Play, folders: Sequence[Folder], knobs: Sequence[Knob], *, trials: int, seed: int
) -> tuple[Point, ...]:
    """Tries values for knobs, the base first; the sampler learns from the result of each trial.

    A trial's result is the mean over the sessions that any trial changes, since many are never near their window.

    Raises:
        MissingExtra: Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra("tune", "the search for a policy") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    before = play({}, folders)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns that the sampler's options are experimental
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, n_startup_trials=min(12, trials // 2))
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
    trial_results: list[tuple[Values, Mapping[str, _Change]]] = [({}, dict.fromkeys(before, _Change()))]
    for _ in range(trials):
        trial = study.ask()
        values = {knob.name: _suggested(trial, knob) for knob in knobs}
        try:
            after = play(values, folders)
        except PolicyError:  # these values are not valid together
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        changes = {name: _change(played, after[name]) for name, played in before.items() if name in after}
        study.tell(trial, (_mean(changes.values(), "cost"), _mean(changes.values(), "retention")))
        trial_results.append((values, changes))
    moved_sessions = {name for _, changes in trial_results for name, change in changes.items() if change.differs}
    return tuple(
        Point(
            values=values,
            cost=_mean((change for name, change in changes.items() if name in moved_sessions), "cost"),
            retention=_mean((change for name, change in changes.items() if name in moved_sessions), "retention"),
            allowed=len(changes) == len(before) and sum(change.over for change in changes.values()) <= 0,
        )
        for values, changes in trial_results
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """The change in one session: cost in percent, retention in points, number of requests larger than the window."""

    cost: float = 0.0
    retention: float | None = 0.0
    over: int = 0
    differs: bool = False


def _change(before: Played, after: Played) -> _Change:
    retentions = before.retention, after.retention
    return _Change(
        cost=100 * (after.cost / before.cost - 1) if before.cost else 0.0,
        retention=None if retentions[0] is None or retentions[1] is None else retentions[1] - retentions[0],
        over=after.over - before.over,
        differs=(before.cost, before.kept) != (after.cost, after.kept),
    )


def _mean(changes: Iterable[_Change], name: Literal["cost", "retention"]) -> float:
    known = [value for change in changes if (value := getattr(change, name)) is not None]
    return sum(known) / len(known) if known else 0.0


def _suggested(trial: Any, knob: Knob) -> float:
    if knob.whole:
        return int(trial.suggest_int(knob.name, int(knob.low), int(knob.high)))
    return round(float(trial.suggest_float(knob.name, knob.low, knob.high)), _DIGITS)


def front(points: Sequence[Point]) -> tuple[int, ...]:
    """The numbers of the points that no other beats in both cost and retention, the cheapest first."""
    order = sorted(
        (number for number, point in enumerate(points) if point.allowed),
        key=lambda number: (points[number].cost, -points[number].retention),
    )
    front_numbers: list[int] = []
    for number in order:
        if not front_numbers or points[number].retention > points[front_numbers[-1]].retention:
            front_numbers.append(number)
    return tuple(front_numbers)


def choose(points: Sequence[Point], margin: float, spend: float = 0.0) -> int | None:
    """The number of the recommended point: the cheapest whose retention is within the margin of the base's, or else the
    one with the highest retention for at most ``spend``. None is the base.

    Half of the margin is left for the check, since a choice made on some sessions does a little worse on others.
    """
    allowed = [number for number, point in enumerate(points) if number and point.allowed]
    cheaper = [number for number in allowed if _saves(points[number], margin)]
    if cheaper and not spend:
        return min(cheaper, key=lambda number: (points[number].cost, number))
    better = [number for number in allowed if points[number].cost <= spend and points[number].retention > margin]
    return max(better, key=lambda number: (points[number].retention, -number)) if better else None


def _saves(point: Point, margin: float) -> bool:
    return point.cost < -margin and point.retention >= -margin / 2


def decide(
    profile: str,
    points: Sequence[Point],
    chosen: int | None,
    *,
    fit: Compared | None,
    check: Compared | None,
    held_out: Compared | None,
    margin: float,
    spend: float = 0.0,
    least: int = LEAST_SESSIONS,
) -> Study:
    """Decides whether the recommended point holds on the sessions that it was not chosen on, for one profile.

    Args:
        margin: percentage points of retention, and percent of cost, that do not matter.
        spend: percent of additional cost that is allowed for more retention.
        least: the smallest number of differing sessions for a result.
    """

    def study(verdict: Verdict, reason: str, chance: float = 1.0) -> Study:
        return Study(
            profile=profile,
            verdict=verdict,
            reason=reason,
            points=tuple(points),
            front=front(points),
            chosen=chosen,
            fit=fit,
            check=check,
            held_out=held_out,
            chance=chance,
        )

    if chosen is None or check is None:
        return study("no change", "no trial is cheaper and keeps as much, or keeps more for what may be spent")
    saves = _saves(points[chosen], margin) and not spend
    # Where answers used nothing, nothing is known of what a policy keeps.
    differing = min(check.cost.sessions, check.retention.sessions)
    if differing < least:
        deviation = check.cost.deviation if saves else check.retention.deviation
        effect = abs(points[chosen].cost if saves else points[chosen].retention)
        needs = max(least, needed_sessions(deviation, effect))
        needs = max(needs, needed_sessions(check.retention.deviation, margin)) if saves else needs
        return study(
            "refused",
            f"the two policies differ in {differing} of {check.sessions} sessions to check on whose answers used "
            f"anything, and {least} are the least to claim anything from; to show this effect takes about {needs}",
        )
    if saves:
        chance = max(check.cost.chance_of(above=0.0), check.retention.chance_of(below=-margin))
    else:
        chance = max(check.retention.chance_of(below=0.0), check.cost.chance_of(above=spend + margin))
    if chance > _ALPHA:
        return study("no change", "what the search found does not hold on the sessions to check on", chance)
    if check.over[1] > check.over[0]:
        return study("no change", "more requests would pass the window", chance)
    if held_out is not None and (held_out.retention.mean < -margin or (saves and held_out.cost.mean > margin)):
        return study("no change", "it loses on the source that was held out", chance)
    reason = f"keeps more for at most {spend:g}% more" if spend else "keeps more at no more cost"
    return study("tuned", "cheaper, and keeps as much" if saves else reason, chance)


def adjusted(studies: Sequence[Study]) -> list[Study]:
    """Studies of several profiles, with p-values adjusted for their number."""
    tested = [study for study in studies if study.chance < 1]
    chances = dict(zip((study.profile for study in tested), holm([study.chance for study in tested]), strict=True))
    return [_with_chance(study, chances.get(study.profile, 1.0)) for study in studies]


def _with_chance(study: Study, chance: float) -> Study:
    if study.verdict == "tuned" and chance > _ALPHA:
        reason = "what the search found does not hold beside what it found for other profiles"
        return replace(study, verdict="no change", reason=reason, chance=chance)
    return replace(study, chance=chance)
