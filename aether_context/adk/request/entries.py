"""A conversation as one agent is shown it: an entry for each content, made once, and compared with the host's list.

ADK copies every content for every call, and callbacks may edit what it copied from. So at each call all are compared
with their entries, by a hash that takes a microsecond.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from google.adk.events.event import Event
from google.genai import types

from aether_context.adk.request.reader import (
    Reader,
    characters,
    is_answer,
    key_hash,
    key_of,
    media_marks,
    without_client_ids,
)
from aether_context.adk.session import ANCHORS
from aether_context.conversation.quotes import quote_of
from aether_context.pack import Content, PackedMessage, noted
from aether_context.redaction import Masker

if TYPE_CHECKING:
    from aether_context.retrieval import Entry
    from aether_context.store.turns import TurnFiles


class Origin(NamedTuple):
    """The event that says what a content says; ``event`` is its id, ``mark`` what anchors it in its metadata."""

    author: str
    time: float
    event: str
    mark: Any = None


@dataclass(slots=True, eq=False)
class HistoryEntry:
    """A content of a conversation, and what is known of it.

    ``key`` is a hash of all that the host showed, 0 where it did not; ``digest`` is the content's, as it was before it
    was stored, empty until it is known. ``words`` are those of a content that is words alone and an event's, which is a
    turn. ``sizes`` are its characters: of its words alone, of all as `characters` counts them, and with all written
    out. ``stored_in`` are the files of the store that were given it.

    While it may be sent, ``frozen`` are its frozen form, and what is sent of it, None where that is the host's own.
    ``raw`` is kept where the host may not load it again.
    """

    key: int
    words: str
    origin: Origin | None
    sizes: tuple[int, int, int]
    digest: str = ""
    stored_in: TurnFiles | None = None
    frozen: tuple[Content, types.Content | None] | None = None
    raw: types.Content | None = None
    passages: Sequence[Entry] = ()
    """Its words as an index takes them."""
    masked_by: str | None = None
    """The name of the mask that these went through; None before they are made."""

    def is_stored_as(self, raw: types.Content, key: int, reader: Reader) -> bool:
        """Tells whether a content is the one that the store had, which is then known by its key."""
        if self.key or self.digest != reader.content(raw, "").digest:
            return False
        self.key = key
        return True

    def take_in(self, raw: types.Content, reader: Reader, model: str) -> tuple[Content, types.Content | None]:
        """Takes in its content, as it would be sent to a model."""
        if (frozen := self.frozen) is None:
            frozen = self.frozen = reader.freeze(raw, model)
            self.digest = frozen[0].digest
        return frozen

    def passages_under(self, mask: Masker, at: int) -> Sequence[Entry]:
        """Its words as an index takes them, masked; nothing where it is no turn. See `turn_entries`."""
        from aether_context.retrieval.call_indexes import turn_entries

        if self.masked_by != mask.name:
            words, origin = self.words, self.origin
            turns = turn_entries(at, mask(words), time=origin.time, speaker=origin.author) if origin and words else ()
            self.passages, self.masked_by = tuple(turns), mask.name
        return self.passages


Entries: TypeAlias = Sequence[HistoryEntry | None]
"""An agent's entries by place; None stands for a content that is not known."""


def same_until(
    entries: Entries, loaded: Sequence[types.Content], reader: Reader, first: int = 0, compared: Sequence[int] = ()
) -> int:
    """The place of the first content ``loaded``, from ``first`` on, that is another one than its entry's. Where places
    to be ``compared`` are given, in ascending order, no others are up to the last of them."""
    shared_end, begin = min(len(entries), first + len(loaded)), compared[-1] + 1 if compared else first
    for at in chain(compared[: bisect_left(compared, shared_end)], range(begin, shared_end)):
        entry, key = entries[at], key_hash(loaded[at - first])
        if entry is None or not (entry.key == key or entry.is_stored_as(loaded[at - first], key, reader)):
            return at
    return shared_end


def turns_of(entries: Entries, mask: Masker) -> list[Entry]:
    """The turns among entries as an index takes them."""
    turns: list[Entry] = []
    for at, entry in enumerate(entries):
        if entry is not None and entry.words:
            turns += entry.passages_under(mask, at)
    return turns


def extended(
    entries: Entries,
    loaded: Sequence[types.Content],
    events: Sequence[Event],
    same: int,
    reader: Reader,
    first: int = 0,
) -> Entries:
    """The entries of a call, of which those before ``same`` are as they were; those given stay as they are."""
    begin = max(same, first)
    if begin == len(entries) == first + len(loaded):
        return entries
    result = [*entries[:begin], *[None] * (begin - len(entries))]
    earlier_event = next((entry.origin.event for entry in reversed(result) if entry and entry.origin), "")
    new = loaded[begin - first :]
    origins = origins_of(new, events, earlier_event)
    for at, content in enumerate(new):
        words, origin = origins.get(at, ("", None))
        if words and any(part.inline_data or part.file_data for part in content.parts or ()):
            words = " ".join([words, *media_marks(reader.content(content, "")).values()])
        sizes = len(words_of_content(content)), characters(content), characters(content, written=True)
        result.append(HistoryEntry(key_hash(content), words, origin, sizes))
    return result


class CallHistory(dict[int, Content]):
    """The contents of one call by place, each frozen when it is first asked for, and taken over where it was before.

    ``loaded`` are those that the host shows, the first of them at ``first``, ``earlier`` what is needed of those before
    them, and ``entries`` those of all. ``digests`` are of contents before ``first``, as the epoch names them.

    Args:
        authored: gives a content that shows another agent's turn to its author.
    """

    def __init__(
        self,
        loaded: Sequence[types.Content],
        first: int,
        entries: Entries,
        reader: Reader,
        model: str,
        authored: Callable[[types.Content, Content], Content],
    ) -> None:
        self.loaded, self.first, self.entries = loaded, first, entries
        self.earlier: Mapping[int, types.Content] = {}
        self.digests: Mapping[int, str] = {}
        self._escaped: dict[int, types.Content] = {}
        self._reader, self._model, self._authored = reader, model, authored

    @property
    def count(self) -> int:
        """The number of places."""
        return self.first + len(self.loaded)

    def raw(self, at: int) -> types.Content:
        """The host's content at a place; an empty one where it is not known."""
        return self.loaded[at - self.first] if at >= self.first else self.earlier.get(at) or types.Content()

    def __missing__(self, at: int) -> Content:
        entry, raw = self.entries[at], self.raw(at)
        if at >= self.first and entry is not None:
            content, escaped = entry.take_in(raw, self._reader, self._model)
            if escaped is not None:
                self._escaped[at] = escaped
            content = self._authored(raw, content) if content.agent else content
        else:
            content = self._reader.content(raw, self._model)
            if at not in self.earlier:
                content = replace(content, digest=self.digests.get(at, ""))
            elif entry is not None:
                content = replace(content, digest=entry.digest or content.digest)
                if entry.origin is not None and entry.origin.author == "user":
                    content = replace(content, agent="", quotes=())
        self[at] = content
        return content

    def take_over(self, positions: Iterable[int]) -> None:
        """Takes over what stands at these places as an earlier call read it, in one pass; the rest is read when it is
        asked for, and so is what its author has to look at again."""
        entries, first = self.entries, self.first
        for at in positions:
            entry = entries[at]
            frozen = entry.frozen if entry is not None and at >= first else None
            if frozen is not None and frozen[1] is None and not frozen[0].agent:
                self[at] = frozen[0]

    def as_sent(self, positions: Iterable[int]) -> list[types.Content]:
        """Contents that were read, as they are sent: with escapes in the place of what nobody sees, where others
        wrote."""
        return [
            self._escaped.get(at) or self.raw(at)
            if at >= self.first
            else self._reader.freeze(self.raw(at), self._model)[1] or self.raw(at)
            for at in positions
        ]

    def original_text(self, message: PackedMessage) -> str:
        """The text of the message that a packed one stands for, mostly still where it was; empty where it is gone."""
        for at in chain((message.place,), range(self.count - 1, -1, -1)):
            if 0 <= at < self.count and self.raw(at).role == "user" and self[at].digest == message.of:
                return self[at].text
        return ""


# Who said what contents say.

LENGTH = "contents"
"""The key of the number of contents that an answer was given to, in the metadata of its event."""


def first_position(loaded: Sequence[types.Content], events: Sequence[Event], agent: str, branch: str) -> int | None:
    """The position of the first loaded content, by the latest answer of the agent; None where none says it."""
    for event in reversed(events):
        length = noted(event).get(LENGTH)
        if type(length) is int and event.content is not None and is_answer(event, agent, branch):
            forms = (key_of(event.content), key_of(without_client_ids(event.content)))
            at = next((at for at in range(len(loaded) - 1, -1, -1) if key_of(loaded[at]) in forms), None)
            if at is not None and length >= at:
                return length - at
    return None


def origins_of(
    contents: Sequence[types.Content], events: Sequence[Event], previous_event: str = ""
) -> dict[int, tuple[str, Origin]]:
    """Of the contents that events say, the words and the events; the words are empty where there are others than these.

    A content without an event is like an instruction or a summary of the host's. Of events that say the same the latest
    belong to the latest contents, since histories lose their beginning first. What ADK quotes of another agent belongs
    to that agent's event; a user's message that only looks like that belongs to the user's.

    Args:
        previous_event: the id of the event that the contents come after; empty for none.
    """
    texts = [*map(_texts, contents)]
    words = [*map(_joined, texts)]
    keys = [text or key_of(without_client_ids(content)) for text, content in zip(words, contents, strict=True)]
    saying: dict[object, dict[str, deque[tuple[int, Origin]]]] = {}
    """Of each text, or content without one, the events that say it, by author, the latest last, with numbers that say
    which of two is later."""
    for number, event in enumerate(reversed(events)):
        if event.id == previous_event:
            break
        if event.content is not None and not event.partial:
            text = words_of_content(event.content) or key_of(without_client_ids(event.content))
            mark = (event.custom_metadata or {}).get(ANCHORS)
            origin = Origin(event.author, event.timestamp, event.id, mark)
            saying.setdefault(text, {}).setdefault(event.author, deque()).appendleft((-number, origin))
    origins: dict[int, tuple[str, Origin]] = {}
    for at in range(len(contents) - 1, -1, -1):
        quoted = quote_of(texts[at]) if keys[at] not in saying else None
        if quoted is not None and (sources := saying.get(quoted.text, {}).get(quoted.agent)):
            origins[at] = quoted.text, sources.pop()[1]
    for at in range(len(contents) - 1, -1, -1):
        latest = [(sources[-1], author) for author, sources in saying.get(keys[at], {}).items() if sources]
        if latest:
            (_, origin), author = max(latest)
            saying[keys[at]][author].pop()
            origins[at] = words[at], origin
    return origins


def _texts(content: types.Content) -> list[str]:
    """The texts of a content without its thoughts; none where it calls or answers a call."""
    parts = content.parts or ()
    if any(part.function_call is not None or part.function_response is not None for part in parts):
        return []
    return [part.text for part in parts if part.text and not part.thought]


def _joined(texts: Sequence[str]) -> str:
    return "\n".join(texts).strip()


def words_of_content(content: types.Content) -> str:
    """The words of a content that is words alone; none of one that calls or answers a call."""
    return _joined(_texts(content))
