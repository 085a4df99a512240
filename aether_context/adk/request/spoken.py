"""What was said in a session, read once and kept from one user message to the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from google.adk.events.event import Event
from google.genai import types

from aether_context.conversation.quotes import Said
from aether_context.conversation.quotes import said as quoted_words
from aether_context.retrieval.ranking import room_for_turns

if TYPE_CHECKING:
    from aether_context.retrieval import Entry

LOADER = "load_memory"


class Outline(NamedTuple):
    """What of a content is seen at a glance.

    ``words`` are its text without thoughts, nothing where it calls or answers a call; ``quoted`` is what they quote of
    another agent. ``least_characters`` is its length, of calls and answers only the texts that stand at their top.
    ``loads`` is whether it holds what ``load_memory`` found.
    """

    words: str
    quoted: Said | None
    least_characters: int
    loads: bool


_UNREAD = Outline("", None, 0, False)


class SpokenTurns:
    """The turns of a history as one agent of a session is shown it, which mostly grows.

    A look compares what the history says with what was read, and reads on from the first content that differs. How long
    calls and results are is measured while they are sent; when they are cut, that stands. All that is kept follows from
    the history and the session's events, so that any process comes to the same.
    """

    def __init__(self, mask: Callable[[str], str] = str) -> None:
        self._mask = mask
        # By place in the history. A length that nothing has asked for yet is None.
        self._glances: list[object] = []
        self._outlines: list[Outline] = []
        self._spoken: list[int] = []
        self._least: list[int] = []
        self._written: list[int | None] = []
        self._loads: set[int] = set()
        self._forget_turns()

    def _forget_turns(self) -> None:
        self._turns: list[tuple[Entry, ...]] = []
        # Of each text: the places that say it, those that quote it, and the events that say it, by author.
        self._saying: defaultdict[str, list[int]] = defaultdict(list)
        self._quoting: defaultdict[str, list[int]] = defaultdict(list)
        self._events: dict[str, dict[str, list[_Source]]] = {}
        self._event_glances: list[object] = []
        self._last_event, self._was_edited = "", False

    def __len__(self) -> int:
        """How many contents and events were read."""
        return len(self._outlines) + len(self._event_glances)

    def read(self, history: Sequence[types.Content], live: Iterable[int]) -> None:
        """Takes over what a history says now.

        Args:
            live: places of the contents that are still sent.
        """
        glances, known = _glances(history), len(self._glances)
        if glances[:known] != self._glances:
            known = next(at for at, before in enumerate(self._glances) if glances[at : at + 1] != [before])
            self._forget(known)
        self._glances = glances
        for place in live:
            if place < known and not self._outlines[place].words:
                self._note(place, history[place])
        for place in range(known, len(history)):
            self._outlines.append(_UNREAD)
            self._spoken.append(0)
            self._least.append(0)
            self._written.append(None)
            self._note(place, history[place])

    def _note(self, place: int, content: types.Content) -> None:
        outline = outline_of(content)
        self._outlines[place] = outline
        self._spoken[place], self._least[place] = len(outline.words), outline.least_characters
        self._written[place] = outline.least_characters if outline.words else None
        if outline.loads:
            self._loads.add(place)
        else:
            self._loads.discard(place)

    def _forget(self, first: int) -> None:
        """Forgets the contents from a place on."""
        self._was_edited = True
        texts: set[str] = set()
        for outline in reversed(self._outlines[first : len(self._turns)]):
            self._saying[outline.words].pop()
            texts.add(outline.words)
            if outline.quoted is not None:
                self._quoting[outline.quoted.words].pop()
                texts.add(outline.quoted.words)
        del (
            self._turns[first:],
            self._outlines[first:],
            self._spoken[first:],
            self._least[first:],
            self._written[first:],
        )
        for text in texts:
            self._match(text)
        self._loads = {place for place in self._loads if place < first}

    def loading(self, end: int) -> list[int]:
        """The places before ``end`` that hold what ``load_memory`` found."""
        return sorted(place for place in self._loads if place < end)

    def room(self, history: Sequence[types.Content], end: int, most: float) -> int:
        """Tokens for recalled turns, of at most so many; 0 where they would be too few for any.

        Args:
            history: as it was read.
            end: the place behind the last content that counts.
        """
        spoken = sum(self._spoken[:end])

        # To write out calls and results takes long, and mostly their texts alone are so many that too little is left.
        if not room_for_turns(spoken, sum(self._least[:end]), most):
            return 0
        if None in self._written[:end]:
            for place in range(end):
                if self._written[place] is None:
                    self._written[place] = _written(history[place])
        return room_for_turns(spoken, sum(filter(None, self._written[:end])), most)

    def turns(self, events: Sequence[Event], end: int) -> list[Entry]:
        """The turns before ``end`` that are words alone, with time and author of the events that they came from.

        Ids are places in the history; long turns come in passages, whose ids go on with a number.
        A content without an event, like an instruction or a summary of the host's, is no turn. Of events that say the
        same the latest belong to the latest contents, since histories lose their beginning first. What ADK quotes of
        another agent belongs to that agent's event; a user's message that only looks like that belongs to the user's.
        """
        if not self._goes_on(events):
            self._forget_turns()
        self._was_edited = False
        changed: set[str] = set()
        read = len(self._event_glances)
        for number, event in enumerate(events[read:], start=read):
            if event.content is None or event.partial or not (text := outline_of(event.content).words):
                continue
            if text not in self._events:
                # What was taken for a quote says this text.
                for place in self._saying[text]:
                    self._turns[place] = ()
                    quoted = self._outlines[place].quoted
                    changed.update(() if quoted is None else (quoted.words,))
            source = _Source(number, event.author, event.timestamp)
            self._events.setdefault(text, {}).setdefault(event.author, []).append(source)
            changed.add(text)
        self._event_glances += _glances(event.content for event in events[read:])
        self._last_event = events[-1].id if events else ""
        for place, outline in enumerate(self._outlines[len(self._turns) :], start=len(self._turns)):
            self._turns.append(())
            self._saying[outline.words].append(place)
            changed.add(outline.words)
            if outline.quoted is not None:
                self._quoting[outline.quoted.words].append(place)
                changed.add(outline.quoted.words)
        for text in changed:
            self._match(text)
        return list(chain.from_iterable(self._turns[:end]))

    def _goes_on(self, events: Sequence[Event]) -> bool:
        """Whether events are those that were read, and further ones.

        They are taken to be where the last one read is in its place, and the contents have not changed either.
        """
        read = len(self._event_glances)
        if read and (read > len(events) or events[read - 1].id != self._last_event):
            return False
        return not self._was_edited or _glances(event.content for event in events[:read]) == self._event_glances

    def _match(self, text: str) -> None:
        """Finds the events of the contents that say or quote a text anew."""
        left = {author: list(sources) for author, sources in self._events.get(text, {}).items()}
        for place in reversed(self._quoting[text]):
            outline = self._outlines[place]
            if outline.quoted is not None and outline.words not in self._events:
                sources = left.get(outline.quoted.agent)
                self._turns[place] = self._turn(place, text, sources.pop() if sources else None)
        for place in reversed(self._saying[text]) if left else ():
            latest = max(
                (sources for sources in left.values() if sources), key=lambda sources: sources[-1], default=None
            )
            self._turns[place] = self._turn(place, text, latest.pop() if latest else None)

    def _turn(self, place: int, text: str, source: _Source | None) -> tuple[Entry, ...]:
        """A turn, in passages where it is long; the entries that it had before where it has not changed."""
        if source is None:
            return ()
        before = self._turns[place]
        if before and (before[0].time, before[0].speaker) == (source.time, source.author):
            return before
        from aether_context.retrieval.call_indexes import turn_entries

        return tuple(turn_entries(place, self._mask(text), time=source.time, speaker=source.author))


class _Source(NamedTuple):
    """An event of a text, by its number in the session."""

    number: int
    author: str
    time: float


def _glances(contents: Iterable[types.Content | None]) -> list[object]:
    """What tells contents from others that say something else; of calls and results no more than that they are some."""
    # There are thousands at each look, so that for most nothing is made and no function entered.
    return [
        True
        if len(parts) == 1 and not (text := (fields := parts[0].__dict__)["text"])
        else text
        if len(parts) == 1 and fields["function_call"] is fields["function_response"] and not fields["thought"]
        else _glance(parts)
        for content in contents
        for parts in (content.parts or () if content is not None else (),)
    ]


def _glance(parts: Sequence[types.Part]) -> list[object]:
    return [(part.text, part.thought, bool(part.function_call or part.function_response)) for part in parts]


def _written(content: types.Content) -> int:
    """The characters of a content with its calls and results written out, and one more."""
    size = 1
    for part in content.parts or ():
        call, response = part.function_call, part.function_response
        exchanged = (call and call.args, response and response.response)
        size += len(part.text or "") + sum(len(repr(value)) for value in exchanged if value)
    return size


def characters(content: types.Content) -> int:
    """The length of a content, of calls and answers only the texts that stand at their top, and one more."""
    size = 1
    for part in content.parts or ():
        size += len(part.text or "")
        call, response = part.function_call, part.function_response
        for values in (call and call.args, response and response.response):
            for value in values.values() if values else ():
                if isinstance(value, str):
                    size += len(value)
    return size


def outline_of(content: types.Content) -> Outline:
    exchanges, loads = False, False
    texts: list[str] = []
    for part in content.parts or ():
        if part.text and not part.thought:
            texts.append(part.text)
        if part.function_call is not None or part.function_response is not None:
            exchanges = True
            loads = loads or (part.function_response is not None and part.function_response.name == LOADER)
    size = characters(content)
    if exchanges or not texts:
        return Outline("", None, size, loads)
    return Outline("\n".join(texts).strip(), quoted_words(texts), size, loads)
