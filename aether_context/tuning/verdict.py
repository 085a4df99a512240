"""What the results of policies say: which one is better than the base, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from aether_context.tuning.recordings import Folder
from aether_context.tuning.simulation import Played
from aether_context.tuning.statistics import Difference, difference, effective, holm, needed_sessions

LEAST_SESSIONS = 30
"""The smallest number of differing sessions for a result."""
_ALPHA = 0.05

Outcomes: TypeAlias = Mapping[Folder, Played]
"""The results of sessions under one policy."""
Kind: TypeAlias = Literal["cheaper at the same retention", "more kept", "no change", "holds", "loses"]
"""The last two are those of a policy that was given to be checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The comparison of two policies.

    Attributes:
        cost: relative difference in percent, the mean over the sessions that count.
        retention: difference in percentage points, the mean over those of them in which anything was needed.
        bill: relative difference of the total cost of all sessions, in percent.
        sessions: number of sessions played.
        weight: their effective number, weighted by cost.
        over: additional requests larger than the window.
        unplayed: number of sessions that cannot be played under the other policy.
    """

    cost: Difference
    retention: Difference
    bill: float
    sessions: int
    weight: float
    over: int
    unplayed: int

    def __str__(self) -> str:
        cost, retention = self.cost.text("%"), self.retention.text(" points")
        return f"{self.cost.sessions} of {self.sessions} sessions: cost {cost}, retention {retention}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
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
        price = f" for {self.check.cost.mean:+.1f}%" if self.kind == "more kept" and self.check is not None else ""
        return f"{self.kind}{price}: {self.reason}"


def compare(before: Outcomes, after: Outcomes, seed: int, counting: frozenset[Folder] | None = None) -> Compared:
    """Compares two policies over the sessions in which they differ, or over others that count."""
    counting = _differing(before, after) if counting is None else counting
    pairs = {folder: (before[folder], after[folder]) for folder in before if folder in after}
    counted = [pair for folder, pair in pairs.items() if folder in counting]
    retentions = [(base.retention, other.retention) for base, other in counted]
    total = sum(base.cost for base, _ in pairs.values())
    return Compared(
        cost=difference([_percent(base.cost, other.cost) for base, other in counted], seed),
        retention=difference([b - a for a, b in retentions if a is not None and b is not None], seed + 1),
        bill=_percent(total, sum(other.cost for _, other in pairs.values())),
        sessions=len(pairs),
        weight=effective([base.cost for base, _ in pairs.values()]),
        over=sum(other.over - base.over for base, other in pairs.values()),
        unplayed=len(before) - len(pairs),
    )


def _differing(before: Outcomes, after: Outcomes) -> frozenset[Folder]:
    def result(played: Played) -> object:
        return played.cost, played.kept

    return frozenset(folder for folder in before if folder in after and result(before[folder]) != result(after[folder]))


def _percent(before: float, after: float) -> float:
    return 100 * (after / before - 1) if before else 0.0


def search(base: Outcomes, others: Mapping[str, Outcomes], seed: int) -> Mapping[str, Compared]:
    """Policies against the base, over the sessions that any of them changes: many are never near their window."""
    counting = frozenset[Folder]().union(*(_differing(base, outcomes) for outcomes in others.values()))
    return {name: compare(base, outcomes, seed, counting) for name, outcomes in others.items()}


def decide(
    trials: Mapping[str, Compared], test: Callable[[str], Compared], *, margin: float = 1.0, spend: float = 0.0
) -> Verdict:
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
    played = any(trial.sessions for trial in trials.values())
    allowed = {name: trial for name, trial in trials.items() if trial.over <= 0 and not trial.unplayed}
    cheaper = {n: t for n, t in allowed.items() if t.cost.mean < -margin and t.retention.mean >= -margin / 2}
    more = {name: trial for name, trial in allowed.items() if trial.retention.mean > margin}
    better = {name: trial for name, trial in more.items() if trial.cost.mean <= spend}
    saves = bool(cheaper) and not (better and spend)
    if not cheaper and not better:
        reason = "no policy of the grid is cheaper and keeps as much, or keeps more for what may be spent"
        if more:
            name = min(more, key=lambda name: more[name].cost.mean)
            kept, price = more[name].retention.mean, more[name].cost.mean
            reason += f"; {name!r} keeps {kept:.1f} points more for {price:.1f}%: --spend allows it"
        return Verdict(kind="no change", reason=reason if played else "no session can be played", trials=trials)
    # Of equals the first, since single factors come before combinations.
    if saves:
        chosen = min(cheaper, key=lambda name: cheaper[name].cost.mean)
    else:
        chosen = max(better, key=lambda name: (better[name].retention.mean, -better[name].cost.mean))
    check = test(chosen)
    cost, retention = check.cost, check.retention
    chance = 1.0
    kind: Kind = "no change"
    # Where answers used nothing, nothing is known of what a policy keeps.
    sessions = min(cost.sessions, retention.sessions)
    if sessions < LEAST_SESSIONS:
        needs = [LEAST_SESSIONS, needed_sessions(retention.deviation, trials[chosen].retention.mean)]
        if saves:
            needs[1:] = (
                needed_sessions(cost.deviation, trials[chosen].cost.mean),
                needed_sessions(retention.deviation, margin),
            )
        reason = (
            f"too few sessions: of {check.sessions} that were not searched {chosen!r} changes {sessions} whose "
            f"answers used anything; {LEAST_SESSIONS} are the least, and to show this effect takes about {max(needs)}"
        )
        return Verdict(kind=kind, reason=reason, trials=trials, chosen=chosen, check=check)
    if saves:
        chance = max(cost.chance_of(above=0.0), retention.chance_of(below=-margin))
    else:
        chance = max(retention.chance_of(below=0.0), cost.chance_of(above=spend + margin))
    if chance > _ALPHA:
        reason = f"{chosen!r} does not hold on the sessions that were not searched"
    elif check.over > 0 or check.unplayed:
        reason = f"with {chosen!r} {check.over} more requests pass the window, {check.unplayed} sessions fail"
    else:
        kind = "cheaper at the same retention" if saves else "more kept"
        reason = f"{chosen!r} holds on the sessions that were not searched"
    return Verdict(kind=kind, reason=reason, trials=trials, chosen=chosen, check=check, chance=chance)


def checked(comparison: Compared, margin: float) -> Verdict:
    """Whether a policy is worse by more than the margin, over all sessions."""
    problems = {
        "no session can be played": not comparison.sessions,
        f"it is worse by more than {margin:g}": max(-comparison.retention.mean, comparison.cost.mean) > margin,
        f"{comparison.over} more requests pass the window": comparison.over > 0,
        f"{comparison.unplayed} sessions cannot be played": comparison.unplayed > 0,
    }
    reason = "; ".join(problem for problem, applies in problems.items() if applies)
    kind: Kind = "loses" if reason else "holds"
    return Verdict(kind=kind, reason=reason or f"margin {margin:g}", trials={"all sessions": comparison})


def adjusted(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts of several profiles, with p-values adjusted for their number."""
    tested = [number for number, verdict in enumerate(verdicts) if verdict.chance < 1]
    found = list(verdicts)
    for number, chance in zip(tested, holm([verdicts[number].chance for number in tested]), strict=True):
        found[number] = replace(found[number], chance=chance)
        if chance > _ALPHA and found[number].kind != "no change":
            reason = f"{found[number].chosen!r} does not hold beside what was found for other profiles"
            found[number] = replace(found[number], kind="no change", reason=reason)
    return found
