"""The list of sessions: a line for each session, and the usage by day and agent."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from aether_context.packing.payload import day
from aether_context.usage import Totals
from aether_context.viewer.rows import FLAGS, Row

MOST_SESSIONS = 100
"""Sessions on a page."""
_MOST_GROUPS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A filter of packs: by the fields that are set, all of which must match, and by words anywhere in their names."""

    app: str = ""
    user: str = ""
    agent: str = ""
    day: str = ""
    flag: str = ""
    q: str = ""

    @classmethod
    def of(cls, query: dict[str, str]) -> Wanted:
        return cls(**{name.name: query[name.name].strip()[:200] for name in fields(cls) if name.name in query})

    def given(self, **changed: str) -> dict[str, str]:
        """The fields that are set, as a query."""
        return {name: value for name, value in {**self.all(), **changed}.items() if value}

    def all(self) -> dict[str, str]:
        return {name.name: getattr(self, name.name) for name in fields(self)}

    def holds(self, row: Row) -> bool:
        words = " ".join([row.app, row.user, row.session, row.agent, row.model, row.task, row.step, row.pack_id])
        return (
            (not self.app or row.app == self.app)
            and (not self.user or row.user == self.user)
            and (not self.agent or row.agent == self.agent)
            and (not self.day or day(row.time) == self.day)
            and (not self.flag or self.flag in row.flags)
            and all(word in words.casefold() for word in self.q.casefold().split())
        )


@dataclass(slots=True)
class SessionLine:
    """A session in the list: sums over its packs that pass the filter. ``fullest`` is the largest share of a window."""

    last: Row
    agents: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    cuts: int = 0
    first: float = 0.0
    fullest: float = 0.0
    totals: Totals = field(default_factory=Totals)

    def add(self, row: Row) -> None:
        self.calls += 1
        self.agents[row.agent] += 1
        self.flags.update(row.flags)
        self.cuts += any(stage == "cut" for stage, _, _ in row.cut)
        self.first = row.time
        self.fullest = max(self.fullest, row.estimate / row.window if row.window else 0.0)
        if row.answered is not None:
            self.totals = self.totals.plus(Totals.of(row.answered))


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLine:
    """What the calls of an agent used on a day; ``share`` is relative to the tokens of the largest line."""

    day: str
    agent: str
    totals: Totals
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionList:
    """The list. ``choices`` are the values to filter by, ``found`` is the number of sessions on all pages."""

    wanted: Wanted
    sessions: Sequence[SessionLine]
    usage: Sequence[UsageLine]
    whole: Totals
    choices: dict[str, Sequence[str]]
    flags: dict[str, int]
    packs: int
    found: int
    page: int

    @property
    def pages(self) -> int:
        return max(1, -(-self.found // MOST_SESSIONS))


def session_list(rows: Iterable[Row], wanted: Wanted, page: int = 1) -> SessionList:
    """The list of sessions, from rows with the newest first."""
    lines: dict[str, SessionLine] = {}
    groups: defaultdict[tuple[str, str], Totals] = defaultdict(Totals)
    flags: Counter[str] = Counter()
    choices: defaultdict[str, set[str]] = defaultdict(set)
    whole, packs = Totals(), 0
    for row in rows:
        choices["app"].add(row.app)
        choices["user"].add(row.user)
        choices["agent"].add(row.agent)
        flags.update(row.flags)
        if not wanted.holds(row):
            continue
        packs += 1
        line = lines.get(row.session_place)
        if line is None:
            line = lines[row.session_place] = SessionLine(last=row)
        line.add(row)
        if row.answered is not None:
            used = Totals.of(row.answered)
            groups[day(row.time), row.agent] = groups[day(row.time), row.agent].plus(used)
            whole = whole.plus(used)
    page = max(1, min(page, -(-len(lines) // MOST_SESSIONS)))
    largest = max((totals.total_tokens for totals in groups.values()), default=0) or 1
    usage = [
        UsageLine(day=group_day, agent=agent, totals=totals, share=totals.total_tokens / largest)
        for (group_day, agent), totals in sorted(groups.items(), key=lambda item: item[0], reverse=True)
    ]
    return SessionList(
        wanted=wanted,
        sessions=list(lines.values())[(page - 1) * MOST_SESSIONS : page * MOST_SESSIONS],
        usage=usage[:_MOST_GROUPS],
        whole=whole,
        choices={name: sorted(filter(None, values))[:500] for name, values in sorted(choices.items())},
        flags={name: flags[name] for name in FLAGS if flags[name]},
        packs=packs,
        found=len(lines),
        page=page,
    )
