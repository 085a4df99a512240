"""What was said in a session as one agent is shown it: taken in once, by position, and searched."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from google.adk.events.event import Event
from google.genai import types

from aether_context.adk.call import AgentKey
from aether_context.adk.request.reader import key_of
from aether_context.conversation.quotes import said
from aether_context.redaction import Masker

if TYPE_CHECKING:
    from aether_context.retrieval import Entry
    from aether_context.retrieval.call_indexes import TurnIndex

_MOST_HISTORIES, _MOST_ROWS = 512, 200_000
"""So many agents' histories stay in a process, and contents of them all: about 100 MB."""


class Origin(NamedTuple):
    """The event that says what a content says; ``event`` is its id."""

    author: str
    time: float
    event: str


class Row(NamedTuple):
    """What is known of a content.

    ``key`` is a hash of all that the host showed. ``words`` are those of a content that is words alone; where it is an
    event's, it is a turn. ``sizes`` are its characters: of its words alone, of all as `characters` counts them, and
    with calls and results written out.
    """

    key: int
    words: str
    origin: Origin | None
    sizes: tuple[int, int, int]


class History:
    """The contents of one agent's history. Threads may share it."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.lock = threading.Lock()
        self._entries: list[list[Entry]] = []
        """The turns of the first rows as an index takes them."""
        self._mask = ""
        self._indexes: dict[str, TurnIndex] = {}

    def take(self, contents: Sequence[types.Content], events: Sequence[Event], end: int) -> None:
        """Takes in the contents before ``end``; anew from the first one on that is not what it was."""
        known = min(len(self.rows), len(contents))
        keys = [hash(key_of(content)) for content in contents[: max(known, end)]]
        same = next((at for at in range(known) if self.rows[at].key != keys[at]), known)
        if same < len(self.rows):
            del self.rows[same:], self._entries[same:]
            self._indexes = {}
        last = next((row.origin.event for row in reversed(self.rows) if row.origin), "")
        origins = origins_of(contents[same:], events, last) if end > same else {}
        for at in range(same, end):
            texts = _texts(contents[at])
            words, origin = origins.get(at - same, (_words(texts), None))
            sizes = (len(_words(texts)), characters(contents[at]), _written(contents[at]))
            self.rows.append(Row(keys[at], words, origin, sizes))

    def sizes(self, end: int) -> tuple[int, int, int]:
        """Those of the rows before ``end``, together."""
        spoken, whole, written = zip(*(row.sizes for row in self.rows[:end]), strict=True) if end else ((), (), ())
        return sum(spoken), sum(whole), sum(written)

    def turns(self, end: int, mask: Masker) -> list[Entry]:
        """The turns before ``end`` as an index takes them, masked; see `turn_entries`."""
        from aether_context.retrieval.call_indexes import turn_entries

        if mask.name != self._mask:
            self._mask, self._entries, self._indexes = mask.name, [], {}
        for place in range(len(self._entries), end):
            _, words, origin, _ = self.rows[place]
            turns = turn_entries(place, mask(words), time=origin.time, speaker=origin.author) if origin else []
            self._entries.append(turns)
        return [*chain.from_iterable(self._entries[:end])]

    def index(self, embedder: str) -> TurnIndex:
        """The index of the turns by an embedder, which may hang: each has its own."""
        from aether_context.retrieval.call_indexes import TurnIndex

        return self._indexes.setdefault(embedder, TurnIndex())


class Histories:
    """The histories that were looked at last. Safe to share between threads."""

    def __init__(self) -> None:
        self._known: dict[AgentKey, History] = {}
        self._lock = threading.Lock()

    def of(self, key: AgentKey) -> History:
        """The one of an agent in its session and branch."""
        with self._lock:
            history = self._known.pop(key) if key in self._known else History()
            self._known[key] = history
            rows = sum(len(other.rows) for other in self._known.values())
            while len(self._known) > 1 and (rows > _MOST_ROWS or len(self._known) > _MOST_HISTORIES):
                rows -= len(self._known.pop(next(iter(self._known))).rows)
            return history


def origins_of(
    contents: Sequence[types.Content], events: Sequence[Event], after: str = ""
) -> dict[int, tuple[str, Origin]]:
    """Of the contents that are turns, the words and the events that say them.

    A content without an event, like an instruction or a summary of the host's, is no turn. Of events that say the same
    the latest belong to the latest contents, since histories lose their beginning first. What ADK quotes of another
    agent belongs to that agent's event; a user's message that only looks like that belongs to the user's.

    Args:
        after: the id of the event that the contents come after; empty for none.
    """
    texts = [*map(_texts, contents)]
    words = [*map(_words, texts)]
    saying: dict[str, dict[str, deque[tuple[int, Origin]]]] = {}
    """Of each text the events that say it, by author, the latest last, with numbers that say which of two is later."""
    for number, event in enumerate(reversed(events)):
        if event.id == after:
            break
        if event.content is not None and not event.partial and (text := _words(_texts(event.content))):
            origin = Origin(event.author, event.timestamp, event.id)
            saying.setdefault(text, {}).setdefault(event.author, deque()).appendleft((-number, origin))
    found: dict[int, tuple[str, Origin]] = {}
    for place in range(len(contents) - 1, -1, -1):
        quoted = said(texts[place]) if words[place] not in saying else None
        if quoted is not None and (sources := saying.get(quoted.words, {}).get(quoted.agent)):
            found[place] = quoted.words, sources.pop()[1]
    for place in range(len(contents) - 1, -1, -1):
        latest = [(sources[-1], author) for author, sources in saying.get(words[place], {}).items() if sources]
        if latest:
            (_, origin), author = max(latest)
            saying[words[place]][author].pop()
            found[place] = words[place], origin
    return found


def _texts(content: types.Content) -> list[str]:
    """The texts of a content without its thoughts; none where it calls or answers a call."""
    parts = content.parts or ()
    if any(part.function_call is not None or part.function_response is not None for part in parts):
        return []
    return [part.text for part in parts if part.text and not part.thought]


def _words(texts: Sequence[str]) -> str:
    return "\n".join(texts).strip()


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
