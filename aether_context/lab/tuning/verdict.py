"""Verdicts on the results of policies: which one is better than the base, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from aether_context.lab.exam.intervals import (
    LEAST_SESSIONS,
    MOST_CHANCE,
    Interval,
    effective,
    holm,
    needed_sessions,
    paired_difference,
)
from aether_context.lab.exam.recordings import SessionFolder
from aether_context.lab.tuning.simulation import Played, percent_more

# What the results of policies say.

Outcomes: TypeAlias = Mapping[SessionFolder, Played]
"""The results of sessions under one policy."""
Kind: TypeAlias = Literal["cheaper at the same retention", "more kept", "no change", "holds", "loses"]
"""The last two are those of a policy that was given to be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The comparison of two policies.

    Attributes:
        cost: relative difference in percent, the mean over the sessions that count.
        retention: difference in percentage points, the mean over those of them in which anything was needed.
        answered: that of the exam's answered questions, the mean over those in which any is asked.
        bill: relative difference of the total cost of all sessions, in percent.
        sessions: number of sessions played.
        weight: their effective number, weighted by cost.
        over: additional requests larger than the window.
        unplayed: number of sessions that were not played under the other policy, or cannot be.
    """

    cost: Interval
    retention: Interval
    bill: float
    sessions: int
    weight: float
    over: int
    unplayed: int
    answered: Interval = field(default_factory=Interval)

    def __str__(self) -> str:
        cost, retention = self.cost.text("%"), self.retention.text(" points")
        answered = f", answered {self.answered.text(' points')}" if self.answered.sessions else ""
        return f"cost {cost}, retention {retention}{answered} in {self.cost.sessions} of {self.sessions} sessions"


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningVerdict:
    """The result for one profile.

    ``trials`` are the policies of the grid on the sessions that were searched, ``chosen`` is the name of the one that
    was tested on the others, with the result ``check``. ``chance`` is the p-value of the difference, adjusted for the
    number of profiles.
    """

    kind: Kind
    reason: str
    trials: Mapping[str, Compared]
    chosen: str | None = None
    check: Compared | None = None
    chance: float = 1.0

    def __str__(self) -> str:
        if self.kind in ("no change", "holds", "loses"):
            return f"{self.kind}: {self.reason}"
        return f"change to {self.chosen!r}, {self.kind}: {self.reason}; chance {self.chance:.2%}"


def compare(
    base_outcomes: Outcomes, new: Outcomes, seed: int, counting: frozenset[SessionFolder] | None = None
) -> Compared:
    """Compares two policies over the sessions in which they differ, or over others that count."""
    counting = _differing(base_outcomes, new) if counting is None else counting
    pairs = {folder: (base_outcomes[folder], new[folder]) for folder in base_outcomes if folder in new}
    counted = [pair for folder, pair in pairs.items() if folder in counting]
    retentions = [(base.retention, other.retention) for base, other in counted]
    total = sum(base.cost for base, _ in pairs.values())
    return Compared(
        cost=paired_difference([percent_more(base.cost, other.cost) for base, other in counted], seed),
        retention=paired_difference([b - a for a, b in retentions if a is not None and b is not None], seed + 1),
        bill=percent_more(total, sum(other.cost for _, other in pairs.values())),
        sessions=len(pairs),
        weight=effective([base.cost for base, _ in pairs.values()]),
        over=sum(other.over - base.over for base, other in pairs.values()),
        unplayed=len(base_outcomes) - len(pairs),
        answered=paired_difference(
            [100 * (b.answered - a.answered) / a.questions for a, b in counted if a.questions], seed + 2
        ),
    )


def _differing(base_outcomes: Outcomes, new: Outcomes) -> frozenset[SessionFolder]:
    pairs = ((folder, played, new[folder]) for folder, played in base_outcomes.items() if folder in new)
    return frozenset(folder for folder, a, b in pairs if (a.cost, a.kept) != (b.cost, b.kept))


def search(base: Outcomes, other_outcomes: Mapping[str, Outcomes], seed: int) -> Mapping[str, Compared]:
    """Policies against the base, over the sessions that any of them changes: many are never near their window."""
    counting = frozenset[SessionFolder]().union(*(_differing(base, outcomes) for outcomes in other_outcomes.values()))
    return {name: compare(base, outcomes, seed, counting) for name, outcomes in other_outcomes.items()}


def decide(
    trials: Mapping[str, Compared], test: Callable[[str], Compared], *, margin: float = 1.0, spend: float = 0.0
) -> TuningVerdict:
    """Chooses a policy by some sessions, and says whether it holds on others.

    It is the cheapest whose retention is within the margin of the base's, or else the one that keeps most for what may
    be spent; where something may be spent, the latter comes first. Half of the margin is left for the test, since a
    choice made on some sessions does a little worse on others.

    Args:
        trials: the policies on the sessions that were searched.
        test: compares the policy of a name with the base on the others.
        margin: percentage points of retention, and percent of cost, that do not matter.
        spend: percent of additional cost that is allowed for more retention.
    """
    allowed = {name: trial for name, trial in trials.items() if trial.over <= 0 and not trial.unplayed}
    cheaper = {n: t for n, t in allowed.items() if t.cost.mean < -margin and t.retention.mean >= -margin / 2}
    more = {name: trial for name, trial in allowed.items() if trial.retention.mean > margin}
    better = {name: trial for name, trial in more.items() if trial.cost.mean <= spend}
    kind: Kind
    # Of equals the first is taken, since single factors come before combinations.
    if cheaper and not (better and spend):
        kind, winner = "cheaper at the same retention", min(cheaper, key=lambda name: cheaper[name].cost.mean)
        check = test(winner)
        chance = max(check.cost.chance_of(above=0.0), check.retention.chance_of(below=-margin))
        of_cost = needed_sessions(check.cost.deviation, cheaper[winner].cost.mean)
        needs = max(of_cost, needed_sessions(check.retention.deviation, margin))
    elif better:
        kind, winner = "more kept", max(better, key=lambda name: (better[name].retention.mean, -better[name].cost.mean))
        check = test(winner)
        chance = max(check.retention.chance_of(below=0.0), check.cost.chance_of(above=spend + margin))
        needs = needed_sessions(check.retention.deviation, better[winner].retention.mean)
    else:
        reason = "no policy of the grid is cheaper and keeps as much, or keeps more for what may be spent"
        if more:
            name, trial = min(more.items(), key=lambda pair: pair[1].cost.mean)
            reason += f"; {name!r} keeps {trial.retention.mean:.1f} points more for {trial.cost.mean:.1f}% (--spend)"
        if not any(trial.sessions for trial in trials.values()):
            reason = "no session can be played"
        return TuningVerdict(kind="no change", reason=reason, trials=trials)
    reason = f"{check} that were not searched"
    # Where answers used nothing, nothing is known of what a policy keeps. Half of the sessions are searched.
    both = (trials[winner], check)
    sessions = sum(min(half.cost.sessions, half.retention.sessions) for half in both)
    needs = max(LEAST_SESSIONS, 2 * needs)
    if min(check.cost.sessions, check.retention.sessions) < LEAST_SESSIONS // 2:
        kind, chance, reason = "no change", 1.0, few_sessions(sessions, needs)
    elif chance > MOST_CHANCE:
        kind = "no change"
        reason = f"{winner!r} does not hold on sessions that were not searched: {few_sessions(sessions, needs)}"
    elif faults := _faults(check):
        kind, reason = "no change", f"with {winner!r} {faults}"
    return TuningVerdict(kind=kind, reason=reason, trials=trials, chosen=winner, check=check, chance=chance)


def few_sessions(sessions: int, needs: int = LEAST_SESSIONS) -> str:
    """The words for too few sessions that tell two policies apart."""
    return f"{sessions:,} session{'s' * (sessions != 1)}, about {needs:,} are needed"


_MOST_CHANCE_OF_CHECK = 0.03
"""Below this chance in two tails, adjusted, a bound is passed. Of 2,000 draws of 30 sessions whose mean is at the bound
itself 25 fail for their cost, at 0.05 39: with few sessions a bootstrap is a little too narrow."""


def checked(comparison: Compared, max_cost: float, min_answered: float, comparisons: int = 1) -> TuningVerdict:
    """Tells whether a change is worse than its bounds with confidence, over all sessions.

    Args:
        max_cost: most change of a session's cost, in percent.
        min_answered: least change of its answered questions, and of its retention, in percentage points.
        comparisons: number of profiles that are checked together.
    """
    points = f"by less than {min_answered:+g} points"
    chances = {
        f"cost rises by more than {max_cost:g}%": comparison.cost.chance_of(below=max_cost),
        f"answers change {points}": comparison.answered.chance_of(above=min_answered),
        f"retention changes {points}": comparison.retention.chance_of(above=min_answered),
    }
    chances = {fault: min(1.0, chance * len(chances) * comparisons) for fault, chance in chances.items()}
    fault = _faults(comparison) if comparison.sessions else "no session can be played"
    faults = [name for name, chance in chances.items() if chance < _MOST_CHANCE_OF_CHECK] + [fault] * bool(fault)
    kind: Kind = "loses" if faults else "holds"
    reason, chance = "; ".join([*faults, str(comparison)]), min(chances.values())
    return TuningVerdict(kind=kind, reason=reason, trials={"all sessions": comparison}, chance=chance)


def _faults(compared: Compared) -> str:
    if compared.over > 0:
        return f"{compared.over} more requests pass the window"
    return f"{compared.unplayed} sessions cannot be played" if compared.unplayed else ""


def adjusted(verdicts: Sequence[TuningVerdict]) -> list[TuningVerdict]:
    """The verdicts of several profiles, with p-values adjusted for their number."""
    tested = [number for number, verdict in enumerate(verdicts) if verdict.chance < 1]
    adjusted_verdicts = list(verdicts)
    for number, chance in zip(tested, holm([verdicts[number].chance for number in tested]), strict=True):
        adjusted_verdicts[number] = replace(adjusted_verdicts[number], chance=chance)
        if chance > MOST_CHANCE and adjusted_verdicts[number].kind != "no change":
            reason = f"{adjusted_verdicts[number].chosen!r} does not hold beside what was found for other profiles"
            adjusted_verdicts[number] = replace(adjusted_verdicts[number], kind="no change", reason=reason)
    return adjusted_verdicts
