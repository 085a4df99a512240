"""Marks questions: the request answers what its call used and a cut had taken, or one search finds it, or neither."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, groupby
from typing import Literal, TypeAlias, get_args

from aether_context.canonical import JSON
from aether_context.errors import AetherContextError, PackNotFound
from aether_context.evidence.offload import ARTIFACT_KEY, stored_bytes
from aether_context.evidence.passages import Searcher, search_answer
from aether_context.evidence.past import PastPart, PastTurn, past_lines
from aether_context.evidence.record import READ, SEARCH
from aether_context.lab.exam.intervals import Interval, paired_difference
from aether_context.lab.exam.questions import ADDRESS, KINDS, SOURCES, Question, questions, said
from aether_context.lab.exam.recordings import (
    RecordedCall,
    RecordedSession,
    SessionFolder,
    folders,
    recorded_sessions,
    stored_texts,
)
from aether_context.pack import Content, Pack
from aether_context.packing.demand import room_to_read
from aether_context.store import PackStore
from aether_context.store.replay import Replayer
from aether_context.text.entities import HISTORY
from aether_context.text.shorten import lines_view
from aether_context.tokens import counter_for

Mark: TypeAlias = Literal["answered", "found", "lost"]
"""``answered``: it stands in the request beside a word of its line; ``found``: it does not, and one search with the
words that the model has then gives it; ``lost``: neither."""
MARKS: tuple[Mark, ...] = get_args(Mark)
Marker: TypeAlias = Callable[[Pack], Iterator[tuple[Question, Mark]]]
"""Marks the questions of a call by a pack for it: those about what does not stand whole there."""
ALL = "all"
ROWS = (ALL, *KINDS, *SOURCES)
"""All questions, those of each kind, and those of each source."""
_RECENT = 4
"""A need that was last mentioned in the latest quarter of a window is not asked for."""


@dataclass(slots=True, kw_only=True)
class SessionMarks:
    """The marked questions of one session, each about a text that does not stand whole in its call's request."""

    name: str = ""
    requests: int = 0
    marked: list[tuple[Question, Mark]] = field(default_factory=list)

    def count(self, *marks: Mark, row: str = ALL) -> int:
        """The number of questions with one of these marks: all, those of a kind, or those of a source."""
        rows = ((ALL, question.kind, question.source) for question, mark in self.marked if mark in marks)
        return sum(row in each for each in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """The marks of sessions; ``unusable`` are those that cannot be examined, with the reasons."""

    sessions: tuple[SessionMarks, ...]
    unusable: Mapping[str, str]

    @property
    def total(self) -> SessionMarks:
        """The sums over all sessions."""
        marked = [each for session in self.sessions for each in session.marked]
        return SessionMarks(name=ALL, requests=sum(session.requests for session in self.sessions), marked=marked)

    def share(self, *marks: Mark, row: str = ALL) -> Interval:
        """The share of questions with some marks, in percent, over the sessions that have any."""
        pairs = [(session.count(*marks, row=row), session.count(*MARKS, row=row)) for session in self.sessions]
        return paired_difference([100 * part / whole for part, whole in pairs if whole], 0)


def hold_exam(
    store: PackStore | str,
    *,
    advance: Callable[[int, int], object] = lambda done, total: None,
    **selection: str | None,
) -> Exam:
    """Examines recorded sessions: could their calls know what they used, where a cut had taken it?

    Args:
        advance: called with the number of packs that are done, and of all.
        selection: ``app``, ``user`` and ``session`` of those to examine; all by default.

    Raises:
        PackNotFound: there are no such packs.
    """
    store = store if isinstance(store, PackStore) else PackStore(store)
    sessions, done = folders([store], **selection), count(1)
    total = sum(len(folder.places) for folder in sessions)
    marked = {folder.name: mark_session(folder, lambda: advance(next(done), total)) for folder in sessions}
    if not marked:
        raise PackNotFound(f"no packs of such sessions in {store.url}")
    return Exam(
        sessions=tuple(marks for marks in marked.values() if isinstance(marks, SessionMarks)),
        unusable={name: marks for name, marks in marked.items() if isinstance(marks, str)},
    )


def mark_session(folder: SessionFolder, advance: Callable[[], object] = lambda: None) -> SessionMarks | str:
    """The marks of one session; a text says why it cannot be examined."""
    marks = SessionMarks(name=folder.name)
    try:
        replayer, stored = Replayer(folder.store), stored_texts(folder)
        for session in recorded_sessions(folder, replayer):
            marks.requests += len(session.calls)
            for call, mark in examined(session, stored):
                marks.marked += mark(replayer.replay(call.manifest).pack) if mark else ()
                advance()
    except AetherContextError as error:
        return f"{type(error).__name__}: {error}"
    return marks


def examined(session: RecordedSession, stored: Mapping[str, str]) -> Iterator[tuple[RecordedCall, Marker | None]]:
    """The calls of an agent's session, each with what marks a pack for it; None where nothing is asked.

    Args:
        stored: whole texts of which messages show extracts, by address.
    """
    for _, group in groupby(session.calls, key=lambda call: id(call.history)):
        calls = list(group)
        examiner = _Examiner(session.agent, calls, stored)
        for number, call in enumerate(calls):
            asked = examiner.asked.get(number)
            yield call, partial(examiner.marked, call, asked) if asked else None


class _Examiner:
    """Asks about calls of an agent that share a history, and searches as the agent could.

    Args:
        stored: whole texts of which messages show extracts, by address.
    """

    def __init__(self, agent: str, calls: Sequence[RecordedCall], stored: Mapping[str, str]) -> None:
        self._agent, self._stored = agent, stored
        self._addresses = {text: address for address, text in stored.items()}
        self._searchers: dict[str, Searcher] = {}
        history, request = calls[0].history, calls[0].source.request
        always = "\n".join((request.system, *(tool.wire for tool in request.tools)))
        lengths = [(call.length, call.manifest.window // _RECENT) for call in calls]
        self.asked: dict[int, list[Question]] = {}
        for question in questions(history, lengths, always=always, stored=stored, readers=(READ, SEARCH)):
            self.asked.setdefault(question.call, []).append(question)
        numbers = {call.length: call.manifest.call for call in calls}
        turns = (
            PastTurn(
                _author(content, agent), time, content.role == "model", list(_parts(content)), numbers.get(place, 0)
            )
            for place, (content, time) in enumerate(zip(history, calls[-1].times, strict=False))
        )
        self._past = list(past_lines(turns, agent, self._written)) if self.asked else []

    def marked(self, call: RecordedCall, asked: Sequence[Question], pack: Pack) -> Iterator[tuple[Question, Mark]]:
        """The questions of a call about what does not stand whole in its request, with their marks."""
        whole = {pack.source.request.positions[index] for index in pack.whole}
        text = request_text(pack)
        for question in asked:
            if question.place not in whole or question.stored:
                is_answered = question.is_answered(text)
                is_found = not is_answered and any(map(question.is_in, self._findings(question, call, pack)))
                yield question, "answered" if is_answered else "found" if is_found else "lost"

    def _findings(self, question: Question, call: RecordedCall, pack: Pack) -> Iterator[str]:
        """What each search gives that the model could make: of the past, and of a stored text that holds the need."""
        if SEARCH not in {tool.name for tool in pack.tools.sent}:
            return
        parts = [part for item in pack.contents for part in item.content.parts]
        shown = dict.fromkeys(address for part in parts for address in ADDRESS.findall(part.text))
        holding = [address for address in shown if question.is_in(self._stored.get(address, ""))]
        for address in [*([HISTORY] if HISTORY in shown else []), *holding[:1]]:
            is_past, asked_at = address == HISTORY, call.request_index
            for query in question.queries:
                answer = search_answer(
                    self._searcher(address, call),
                    query,
                    is_past=is_past,
                    max_tokens=room_to_read(pack, 1)[0],
                    counter=counter_for(""),
                    sent_parts=parts,
                    asking=call.history[asked_at].words if is_past and asked_at is not None else "",
                )
                yield "\n".join(passage["text"] for passage in answer["found"])

    def _searcher(self, address: str, call: RecordedCall) -> Searcher:
        key = f"{address} {call.length}" if address == HISTORY else address
        if key not in self._searchers:
            past = "\n".join(chain.from_iterable(self._past[: call.length])) if address == HISTORY else ""
            self._searchers[key] = Searcher(lines_view(past or self._stored[address]))
        return self._searchers[key]

    def _written(self, response: JSON) -> str:
        """The whole text of a response behind its address, also of one of which the message shows an extract."""
        values = (value for key, value in response.items() if key.startswith(ARTIFACT_KEY) and isinstance(value, str))
        named = (address for value in values for address in ADDRESS.findall(value)[:1] if address in self._stored)
        text = self._stored.get(address := next(named, "")) or stored_bytes(response).decode(errors="replace")
        address = address or self._addresses.get(text, "")
        return f"{address}: {text}" if address else text


def _author(content: Content, agent: str) -> str:
    return content.agent or (agent if content.role == "model" else "user")


def _parts(content: Content) -> Iterator[PastPart]:
    """The parts of a message in the past; of another agent's turn its words."""
    if content.agent:
        yield "text", "", content.words
    for part in () if content.agent else content.parts:
        if part.kind in ("call", "response"):
            yield part.kind, part.name, json.loads(part.text)
        elif part.kind == "text":
            yield "text", "", part.text


def request_text(pack: Pack) -> str:
    """All that can be read in a request."""
    return "\n".join((pack.system, *(said(part) for item in pack.contents for part in item.content.parts)))
