"""Marks requests: what of the questions they answer, what could be read again from them, and what is lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Literal, TypeAlias, get_args

from aether_context.canonical import hash_text
from aether_context.errors import AetherContextError, PackNotFound
from aether_context.evidence.record import READ, SEARCH
from aether_context.lab.exam.intervals import Interval, paired_difference
from aether_context.lab.exam.questions import ADDRESS, Kind, Question, plain_text, questions
from aether_context.lab.exam.recordings import RecordedSession, SessionFolder, folders, recorded_sessions, stored_texts
from aether_context.pack import RECALLED, Content, Pack, Part
from aether_context.store import PackStore
from aether_context.store.replay import Replayer

Mark: TypeAlias = Literal["whole", "answered", "readable", "lost"]
"""``whole``: the message stands in the request; ``answered``: it does not, and the answer stands with its record
elsewhere; ``readable``: an address leads there, and a tool reads it; ``lost``: none of these."""
MARKS: tuple[Mark, ...] = get_args(Mark)
DISTANCES = {8: "up to 8 calls", 25: "up to 25 calls", 70: "up to 70 calls", 10**9: "more calls"}
"""The distances from a message to a later request, by the most calls of each."""
LAST, NOTES = "the last call", "notes and memories"
"""The questions at a session's last call, which count at their distances, too; and those about candidates."""
HISTORY = "artifact://history"
"""The address under which a session's own turns are searched."""
PAGE_TOKENS = 2_000
"""The most tokens that one call of a reader answers with."""
_MOST_READ = 20
"""Questions that a reader is asked of one request."""
_CHARACTERS = 4
"""Characters of a token, where what is read is estimated."""

AnswerReader: TypeAlias = Callable[[str, str], str]
"""A model that is given a request's text and a question, and gives its answer."""


class AnswerKey:
    """Questions, and the texts that answer them; each text is looked through once."""

    def __init__(self, asked: Sequence[Question]) -> None:
        self.questions = asked
        self._found: dict[str, Mapping[int, int]] = {}

    def answers(self, text: str) -> Mapping[int, int]:
        """The questions that a text answers, each with the index in its plain form at which the answer stands."""
        if text not in self._found:
            plain = _plain(text) if self.questions else ""
            found = ((number, question.find(plain)) for number, question in enumerate(self.questions))
            self._found[text] = {number: at for number, at in found if at >= 0}
        return self._found[text]


_plain = lru_cache(maxsize=256)(plain_text)


@dataclass(slots=True, kw_only=True)
class SessionMarks:
    """The marks of one session's requests.

    ``marks`` counts them by kind and distance; ``tokens`` are those of all requests. ``read_tokens`` and
    ``read_calls`` are those that it takes to read what is readable, ``right`` and ``wrong`` a reader's answers.
    """

    name: str = ""
    requests: int = 0
    tokens: int = 0
    marks: Counter[tuple[Kind, str, Mark]] = field(default_factory=Counter)
    read_tokens: int = 0
    read_calls: int = 0
    right: int = 0
    wrong: int = 0

    def count(self, *marks: Mark, kind: str | None = None, distance: str | None = None) -> int:
        """The number of questions with one of these marks, of a kind and at a distance."""
        return sum(
            number
            for (of_kind, at, mark), number in self.marks.items()
            if mark in marks and kind in (None, of_kind) and (at == distance if distance else at != LAST)
        )


class Examiner:
    """Asks what stood in a session's history at each of its later calls, and what its notes and memories say.

    Args:
        stored: whole texts of which messages show extracts, by address.
    """

    def __init__(self, session: RecordedSession, stored: Mapping[str, str]) -> None:
        self._session, self._stored = session, stored
        self._keys: dict[int, tuple[AnswerKey, list[int]]] = {}
        notes: dict[str, int] = {}
        self._notes: list[set[int]] = []
        # A host that rewrites its history hands over the messages that stay in it anew: each is as old as it was.
        first_calls: dict[tuple[str, int], int] = {}
        messages: dict[int, list[tuple[str, int]]] = {}
        for number, call in enumerate(session.calls):
            if id(call.history) not in self._keys:
                self._keys[id(call.history)] = AnswerKey(questions(call.history, stored)), []
                repeats = defaultdict[str, Iterator[int]](count)
                messages[id(call.history)] = [(item.digest, next(repeats[item.digest])) for item in call.history]
            first = self._keys[id(call.history)][1]
            new = messages[id(call.history)][len(first) : call.length]
            first += [first_calls.setdefault(message, number) for message in new]
            present = (note.text for note in call.source.candidates if note.source != RECALLED)
            self._notes.append({notes.setdefault(text, len(notes)) for text in present})
        of_notes = ((spot, questions([_as_result(text)], {})) for text, spot in notes.items())
        self._note_key = AnswerKey([replace(item, place=spot) for spot, items in of_notes for item in items])

    def mark(self, number: int, pack: Pack, into: SessionMarks) -> list[Question]:
        """Marks the request of a call; returns the questions that were asked."""
        call, is_last = self._session.calls[number], number == len(self._session.calls) - 1
        key, first = self._keys[id(call.history)]
        whole = {pack.source.request.positions[index] for index in pack.whole}
        texts = request_texts(pack)
        answered, noted = (set[int]().union(*map(one.answers, texts)) for one in (key, self._note_key))
        can_read = bool({READ, SEARCH} & {tool.name for tool in pack.tools.sent})
        addresses = dict.fromkeys(name for text in texts for name in ADDRESS.findall(text)) if can_read else {}
        readable: dict[int, tuple[int, int]] = {}
        for text in filter(None, map(self._stored.get, addresses)):
            for index, at in key.answers(text).items():
                pages = 1 + at // _CHARACTERS // PAGE_TOKENS  # of whoever reads from the top
                readable.setdefault(index, (pages, min(pages * PAGE_TOKENS, len(text) // _CHARACTERS)))
        into.requests += 1
        into.tokens += pack.tokens.expected
        asked: list[Question] = []
        for index, question in enumerate(key.questions):
            is_known = question.place < call.length and (question.until is None or question.until >= call.length)
            if not is_known or not (distance := number - first[question.place]):
                continue
            mark: Mark = "lost"
            if question.place in whole and not question.stored:
                mark = "whole"
            elif index in answered:
                mark = "answered"
            elif index in readable or HISTORY in addresses:
                mark = "readable"
                calls, tokens = readable.get(index, (1, PAGE_TOKENS))
                into.read_calls += calls
                into.read_tokens += tokens
            label = next(name for most, name in DISTANCES.items() if distance <= most)
            into.marks.update((question.kind, name, mark) for name in ((label, LAST) if is_last else (label,)))
            asked.append(question)
        for index, question in enumerate(self._note_key.questions):
            if question.place in self._notes[number]:
                into.marks[question.kind, NOTES, "answered" if index in noted else "lost"] += 1
        return asked


def request_texts(pack: Pack) -> list[str]:
    """All that can be read in a request."""
    return [pack.system, *(part.text for item in pack.contents for part in item.content.parts)]


def _as_result(text: str) -> Content:
    """A note as a message."""
    return Content(role="user", parts=(Part(kind="response", text=text, wire=""),), wire="", digest="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """The marks of sessions; ``unusable`` are those that cannot be examined, with the reasons."""

    sessions: tuple[SessionMarks, ...]
    unusable: Mapping[str, str]

    @property
    def total(self) -> SessionMarks:
        """The sums over all sessions."""
        total = SessionMarks(name="all")
        for session in self.sessions:
            for name in ("requests", "tokens", "marks", "read_tokens", "read_calls", "right", "wrong"):
                setattr(total, name, getattr(total, name) + getattr(session, name))
        return total

    def share(
        self, *marks: Mark, of: tuple[Mark, ...], kind: str | None = None, distance: str | None = None
    ) -> Interval:
        """The share of questions with some marks among those with any ``of`` these, in percent, over sessions."""
        pairs = [
            (session.count(*marks, kind=kind, distance=distance), session.count(*of, kind=kind, distance=distance))
            for session in self.sessions
        ]
        return paired_difference([100 * part / whole for part, whole in pairs if whole], 0)


def hold_exam(
    store: PackStore | str,
    *,
    reader: AnswerReader | None = None,
    advance: Callable[[int, int], object] = lambda done, total: None,
    **selection: str | None,
) -> Exam:
    """Examines recorded sessions: what their later requests still hold of what was said before.

    Args:
        reader: also answers a few questions from the last request of each agent.
        advance: called with the number of packs that are done, and of all.
        selection: ``app``, ``user`` and ``session`` of those to examine; all by default.

    Raises:
        PackNotFound: there are no such packs.
    """
    store = store if isinstance(store, PackStore) else PackStore(store)
    sessions, done = folders([store], **selection), count(1)
    total = sum(len(folder.places) for folder in sessions)
    marked = {folder.name: mark_session(folder, reader, lambda: advance(next(done), total)) for folder in sessions}
    if not marked:
        raise PackNotFound(f"no packs of such sessions in {store.url}")
    return Exam(
        sessions=tuple(marks for marks in marked.values() if isinstance(marks, SessionMarks)),
        unusable={name: marks for name, marks in marked.items() if isinstance(marks, str)},
    )


def mark_session(
    folder: SessionFolder, reader: AnswerReader | None = None, advance: Callable[[], object] = lambda: None
) -> SessionMarks | str:
    """The marks of one session; a text says why it cannot be examined."""
    marks = SessionMarks(name=folder.name)
    try:
        replayer, stored = Replayer(folder.store), stored_texts(folder)
        for session in recorded_sessions(folder, replayer):
            examiner = Examiner(session, stored)
            for number, call in enumerate(session.calls):
                pack = replayer.replay(call.manifest).pack
                asked = examiner.mark(number, pack, marks)
                advance()
            if reader is not None:
                text = "\n".join(request_texts(pack))
                for question in sorted(asked, key=lambda question: hash_text(question.text))[:_MOST_READ]:
                    is_right = question.is_right(reader(text, question.text))
                    marks.right += is_right
                    marks.wrong += not is_right
    except AetherContextError as error:
        return f"{type(error).__name__}: {error}"
    return marks
