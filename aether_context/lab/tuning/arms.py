"""Compares the arms of a plugin on what users did: each arm's means over sessions, and which differences are there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from aether_context.canonical import JSON
from aether_context.errors import AetherContextError, PackNotFound
from aether_context.lab.exam.intervals import (
    LEAST_SESSIONS,
    MOST_CHANCE,
    Interval,
    between,
    holm,
    needed_sessions,
    paired_difference,
)
from aether_context.lab.exam.marking import MARKS, SessionMarks, mark_session
from aether_context.lab.exam.recordings import folders
from aether_context.pack import OBSERVE
from aether_context.store import Manifest, PackStore
from aether_context.usage import Totals

MEASURES: Mapping[str, str] = {
    "cost": "US dollars", "cached": "% of input", "overflows": "% of calls", "refused": "% of calls",
    "answered": "% of questions", "lost": "% of questions", "accepted": "% of answers",
}  # fmt: skip
"""The measures of a session with their units: list price as billed; input that a cache served; requests larger than the
window; calls that failed; questions of the exam that requests answer, and those that neither these nor one search
answer; checked answers that passed."""

_Key: TypeAlias = tuple[str, str, str]
_Calls: TypeAlias = list[tuple[Manifest, Mapping[str, JSON] | None]]
Measured: TypeAlias = Mapping[str, float]
"""What a session comes to, by measure, without what is not known."""


@dataclass(slots=True)
class _Session:
    """The calls of a session, and of the agents that ran as its tools."""

    arm: str = ""
    totals: Totals = field(default_factory=Totals)
    calls: int = 0
    over: int = 0
    refused: int = 0
    checked: int = 0
    passed: int = 0
    marks: list[SessionMarks] = field(default_factory=list)

    def add(self, manifest: Manifest, outcome: Mapping[str, JSON] | None) -> None:
        self.arm = self.arm or manifest.arm
        self.calls += 1
        # What was observed was sent as it came.
        is_over = manifest.whole_history_tokens > manifest.window
        self.over += is_over if manifest.arm == OBSERVE else manifest.over_window > 0
        self.refused += outcome is not None and outcome.get("error_code") is not None
        if (call := manifest.usage(outcome)) is not None:
            self.totals = self.totals.plus(Totals.of(call))
        if isinstance(verdict := (outcome or {}).get("acceptance"), dict):
            self.checked += 1
            self.passed += bool(verdict.get("passed"))

    def measured(self) -> Measured:
        cost, cached = self.totals.known_cost_usd, self.totals.cached_share
        asked, answered, lost = (
            sum(marks.count(*which) for marks in self.marks) for which in (MARKS, ("answered",), ("lost",))
        )
        values = {
            "cost": None if cost is None else float(cost),
            "cached": None if cached is None else 100 * cached,
            "overflows": 100 * self.over / self.calls,
            "refused": 100 * self.refused / self.calls,
            "answered": 100 * answered / asked if asked else None,
            "lost": 100 * lost / asked if asked else None,
            "accepted": 100 * self.passed / self.checked if self.checked else None,
        }
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """The difference of an arm from the first in one measure.

    ``chance`` is its p-value, adjusted by Holm's method; ``more_sessions`` is about how many more would show a
    difference of this size, None where it is shown, 0 where no number would.
    """

    arm: str
    measure: str
    difference: Interval
    chance: float
    more_sessions: int | None

    def __str__(self) -> str:
        about = f"{self.arm}, {self.measure}: {self.difference.text(' ' + MEASURES[self.measure])}"
        plan = f", about {self.more_sessions:,} more sessions" if self.more_sessions else ""
        return about if self.more_sessions is None else f"{about}; no difference seen yet{plan}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmReport:
    """Arms with the number of their sessions and the means of each measure, and what the others differ in from the
    first, which has most sessions; the cost of those in ``estimated`` holds what providers did not report."""

    sessions: Mapping[str, int]
    means: Mapping[str, Mapping[str, Interval]]
    contrasts: tuple[Contrast, ...]
    unusable: Mapping[str, str] = field(default_factory=dict)
    estimated: frozenset[str] = frozenset()

    def __str__(self) -> str:
        first, sizes = next(iter(self.sessions)), ", ".join(f"{name}: {size:,}" for name, size in self.sessions.items())
        if shown := [str(contrast) for contrast in self.contrasts if contrast.more_sessions is None]:
            return f"against {first}: {'; '.join(shown)}"
        plans = [contrast.more_sessions for contrast in self.contrasts if contrast.more_sessions]
        plan = f", about {min(plans):,} more are needed" if plans else ""
        return f"no difference seen yet: sessions of {sizes}{plan}"


def compare_arms(store: PackStore | str, **selection: str | None) -> ArmReport:
    """Compares the arms of a store's sessions; those of agents as tools count with their callers'.

    Raises:
        PackNotFound: no session there has an arm.
    """
    store = store if isinstance(store, PackStore) else PackStore(store)
    sessions: defaultdict[_Key, _Session] = defaultdict(_Session)
    callers: dict[_Key, _Key] = {}
    read: list[tuple[_Calls, SessionMarks]] = []
    unusable: dict[str, str] = {}
    for folder in folders([store], **selection):
        try:
            manifests = list(store.files.at_once(store.read, folder.places))
            ends = store.outcomes(manifests)
            calls: _Calls = [(manifest, ends.of(manifest)) for manifest in manifests]
        except AetherContextError as error:
            unusable[folder.name] = f"{type(error).__name__}: {error}"
            continue
        # What was only observed was not sent, so that nothing is asked of it.
        marks = SessionMarks(name=folder.name) if manifests[0].arm == OBSERVE else mark_session(folder)
        if isinstance(marks, str):
            unusable[folder.name] = f"{marks}: it has no exam"
            marks = SessionMarks(name=folder.name)
        read.append((calls, marks))
        callers |= {manifest.session_key: manifest.caller for manifest in manifests if manifest.caller}
    for calls, marks in read:
        owner, passed = calls[0][0].session_key, set[_Key]()
        while (caller := callers.get(owner)) is not None and owner not in passed:
            passed.add(owner)
            owner = caller
        sessions[owner].marks.append(marks)
        for manifest, outcome in calls:
            sessions[owner].add(manifest, outcome)
    arms: defaultdict[str, list[Measured]] = defaultdict(list)
    for _, session in sorted(sessions.items()):
        if session.arm:
            arms[session.arm].append(session.measured())
    if not arms:
        raise PackNotFound(f"no session in {store.url} has an arm: give the plugin arms={{...}}")
    estimated = frozenset(session.arm for session in sessions.values() if session.totals.cost_estimated)
    return replace(report_arms(arms), unusable=unusable, estimated=estimated)


def report_arms(arms: Mapping[str, Sequence[Measured]], seed: int = 0) -> ArmReport:
    """Compares arms by what their sessions came to."""
    names = sorted(arms, key=lambda name: (-len(arms[name]), name))
    means = {
        name: {
            measure: paired_difference([one[measure] for one in arms[name] if measure in one], seed + number)
            for measure in MEASURES
        }
        for number, name in enumerate(names)
    }
    pairs = [
        (name, measure, between(means[name][measure], means[names[0]][measure]))
        for name in names[1:]
        for measure in MEASURES
        if min(means[name][measure].sessions, means[names[0]][measure].sessions) > 1
    ]
    chances = holm([min(gap.chance_of(below=0), gap.chance_of(above=0)) for _, _, gap in pairs])
    # Of Holm's steps the next one decides: the differences that are shown are behind it.
    comparisons = max(1, sum(chance > MOST_CHANCE for chance in chances))
    contrasts = []
    for (name, measure, gap), chance in zip(pairs, chances, strict=True):
        sizes = [means[arm][measure].sessions for arm in (name, names[0])]
        wanted = max(LEAST_SESSIONS, needed_sessions(gap.deviation, gap.mean, comparisons))
        more = None
        if chance > MOST_CHANCE or min(sizes) < LEAST_SESSIONS:
            more = max(int(gap.mean != 0), sum(max(0, wanted - size) for size in sizes))
        contrasts.append(Contrast(arm=name, measure=measure, difference=gap, chance=chance, more_sessions=more))
    return ArmReport(sessions={name: len(arms[name]) for name in names}, means=means, contrasts=tuple(contrasts))
