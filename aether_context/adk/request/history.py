"""What was said in a session as one agent is shown it: taken in once, by position, searched, and kept in the store."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from google.adk.events.event import Event
from google.genai import types

from aether_context.adk.bounds import Waits, in_thread
from aether_context.adk.call import AgentKey, Contents, ModelCall
from aether_context.adk.request.reader import Reader, characters, is_answer, is_message, key_of, without_client_ids
from aether_context.adk.session import ANCHORS, scope_of
from aether_context.canonical import JSON, short
from aether_context.conversation.quotes import said
from aether_context.pack import Content, noted
from aether_context.redaction import Masker
from aether_context.store.files import Files
from aether_context.store.masking import masked_part
from aether_context.store.turns import Stored, TurnFiles

if TYPE_CHECKING:
    from aether_context.retrieval import Entry
    from aether_context.retrieval.call_indexes import TurnIndex

_MOST_HISTORIES, _MOST_ROWS = 512, 200_000
"""So many agents' histories stay in a process, and contents of them all: about 100 MB."""
MOST_RECENT = 300
_MOST_MEDIA_BYTES = 4_096
_DIGITS = 16
LENGTH = "contents"
"""The key of the number of contents that an answer was given to, in the metadata of its event."""


class Origin(NamedTuple):
    """The event that says what a content says; ``event`` is its id, ``mark`` what anchors it in its metadata."""

    author: str
    time: float
    event: str
    mark: Any = None


class Row(NamedTuple):
    """What is known of a content.

    ``key`` is a hash of all that the host showed, 0 where it did not, and ``digest`` then the content's, or its first
    digits. ``words`` are those of a content that is words alone; where it is an event's, it is a turn. ``sizes`` are
    its characters: of its words alone, of all as `characters` counts them, and with calls and results written out.
    """

    key: int = 0
    words: str = ""
    origin: Origin | None = None
    sizes: tuple[int, int, int] = (0, 0, 0)
    digest: str = ""


UNKNOWN, LOST = Row(), Row(digest="lost")
"""The rows of contents that were not seen here, and of those that are not in the store either."""


class History:
    """The contents of one agent's history. Threads may share it, and hold ``lock`` meanwhile.

    Args:
        reader: reads contents.
        files: keeps them; None where nothing is kept.
    """

    def __init__(self, reader: Reader, files: TurnFiles | None = None) -> None:
        self.rows: list[Row] = []
        self.live: Mapping[int, types.Content] = {}
        """What the last request sent of a history that was not loaded whole."""
        self.loading: dict[int, types.Content] = {}
        """The results of ADK's ``load_memory``."""
        self.lock = threading.Lock()
        self.files = files
        self.problem = ""
        """Why what was looked for in the store last is not known."""
        self._unsaved: int | None = None
        """The first content that is not in the store; None where that is not known."""
        self._reader = reader
        self._entries: list[list[Entry]] = []
        """The turns of the first rows as an index takes them."""
        self._mask = ""
        self._indexes: dict[str, TurnIndex] = {}

    # what the host shows

    def take(self, contents: Contents, events: Sequence[Event], end: int) -> None:
        """Takes in the loaded contents before ``end``; anew from the first one on that is not what it was."""
        first, loaded = contents.first, contents.loaded
        self.reach(first)
        known = min(len(self.rows), len(contents)) - first
        keys = [hash(key_of(content)) for content in loaded[: max(known, end - first)]]
        same = next((at for at in range(known) if not self._is(first + at, keys[at], loaded[at])), known)
        if first + same < len(self.rows):
            self._forget(first + same)
            del self.rows[first + same :]
            self.live = {at: content for at, content in self.live.items() if at < first + same}
            self._unsaved = None if self._unsaved is None else min(self._unsaved, first + same)
        if end <= first + same:
            return
        last = next((row.origin.event for row in reversed(self.rows) if row.origin), "")
        origins = origins_of(loaded[same:], events, last)
        for at in range(same, end - first):
            words, origin = origins.get(at - same, ("", None))
            self.rows.append(self._row(first + at, loaded[at], words, origin, keys[at], ""))

    def _is(self, at: int, key: int, content: types.Content) -> bool:
        """Whether a row is of a content, which is then known by its key."""
        row = self.rows[at]
        if row.key == 0 and row.digest and row is not LOST:
            if self.digest_of(content, row.digest) != row.digest:
                return False
            row = self.rows[at] = row._replace(key=key)
        return row.key == key

    def digest_of(self, content: types.Content, like: str = "") -> str:
        """The digest of a content, as long as another one."""
        digest = self._reader.content(content, "").digest
        return short(digest, _DIGITS) if len(like) == _DIGITS else digest

    def _row(self, at: int, content: types.Content, words: str, origin: Origin | None, key: int, digest: str) -> Row:
        results = [part.function_response for part in content.parts or () if part.function_response is not None]
        if any(result.name == "load_memory" for result in results):
            self.loading[at] = content
        own = _words(_texts(content))
        return Row(key, words or own, origin, (len(own), characters(content), _written(content)), digest)

    def reach(self, end: int) -> None:
        self.rows += [UNKNOWN] * (end - len(self.rows))

    def _forget(self, start: int) -> None:
        """Forgets what was made of the rows from ``start`` on."""
        del self._entries[start:]
        self._indexes = {}
        self.loading = {at: content for at, content in self.loading.items() if at < start}

    # where loaded contents stand

    def place(self, loaded: Sequence[types.Content], events: Sequence[Event], agent: str, branch: str) -> int | None:
        """The position of the first loaded content, by the latest answer of the agent; None where none says it."""
        for event in reversed(events):
            length = noted(event).get(LENGTH)
            if type(length) is int and event.content is not None and is_answer(event, agent, branch):
                forms = (key_of(event.content), key_of(without_client_ids(event.content)))
                at = next((at for at in range(len(loaded) - 1, -1, -1) if key_of(loaded[at]) in forms), None)
                if at is not None and length >= at:
                    return length - at
        return None

    def overlap(self, loaded: Sequence[types.Content]) -> int:
        """The same by the contents that are known to begin with those that were taken in last; behind them where there
        are none."""
        for count in range(min(len(self.rows), len(loaded)), 0, -1):
            start = len(self.rows) - count
            if all(self._is(start + at, hash(key_of(loaded[at])), loaded[at]) for at in range(count)):
                return start
        return len(self.rows)

    # the store

    def learn(self, stored: Mapping[int, Stored], start: int, end: int | None) -> None:
        """Takes in what the store holds of the contents from ``start`` to before ``end`` that are not known; None takes
        in all that it holds."""
        end = max(stored, default=-1) + 1 if end is None else end
        self.reach(end)
        unknown = [at for at in range(start, end) if self.rows[at] is UNKNOWN]
        if unknown:
            self._forget(unknown[0])
        for at in unknown:
            if (one := stored.get(at)) is None:
                self.rows[at] = LOST
                continue
            origin = Origin(*one["origin"]) if "origin" in one else None
            self.rows[at] = self._row(at, content_of(one), one.get("words", ""), origin, 0, one["digest"])

    async def read(
        self, start: int, end: int | None, call: ModelCall, waits: Waits, wanted: Collection[int] = ()
    ) -> None:
        """Takes in what the store holds of the contents from ``start`` to before ``end``, and puts what is wanted of it
        among the live ones."""
        files, stored = self.files, dict[int, Stored]()
        self.problem = "the policy records no texts" if files is None else "the store does not hold them"
        if files is not None:
            try:
                reading = in_thread(partial(files.read, start, 2**62 if end is None else end))
                stored = await waits.within("turns", call.invocation.invocation_id, reading)
            except Exception as error:
                self.problem = f"the store could not be read ({type(error).__name__})"
                return

        def learn() -> None:
            with self.lock:
                self.learn(stored, start, end)
                self.live = {**{at: content_of(stored[at]) for at in wanted if at in stored}, **self.live}

        await asyncio.to_thread(learn)

    def save(self, contents: Contents, events: Sequence[Event], end: int, mask: Masker) -> None:
        """Writes what the store does not hold yet of the contents before ``end``.

        Raises:
            StoreError: it could not be written.
        """
        if self.files is None:
            return
        with self.lock:
            self.take(contents, events, end)
            start, rows = self._unsaved, self.rows[:end]
        if start is None and contents.first:
            start = contents.first
        elif start is None:  # another process may have stored what was other then
            posted = (event.author == "user" and event.get_function_responses() for event in events)
            rewound = (event.actions.rewind_before_invocation_id for event in events)
            start = 0 if any(posted) or any(rewound) else self.files.end()
        held = ((at, contents[at]) for at in range(start, end) if at >= contents.first or at in contents.earlier)
        if new := {at: self._stored(at, content, rows[at], mask) for at, content in held}:
            self.files.add(new)
        with self.lock:
            self._unsaved = end if self._unsaved in (start, None) else self._unsaved

    def _stored(self, at: int, content: types.Content, row: Row, mask: Masker) -> Stored:
        """A content as the store keeps it: masked, and without large media."""
        before: list[dict[str, Any]]
        frozen = self._reader.content(content, "")
        try:
            before = content.model_dump(mode="json", exclude_none=True).get("parts") or []
        except Exception:  # a tool may give what is no JSON
            before = json.loads(frozen.wire)["parts"]
        parts: list[dict[str, JSON]] = []
        most_bytes = 0 if mask else _MOST_MEDIA_BYTES  # a file may hold what is masked
        for part in before:
            blob = part.get("inline_data")
            if blob is not None and len(blob.get("data") or "") > most_bytes:
                part = {"text": f"[{blob.get('mime_type')}: it is not kept]"}
            if inside := part.get("function_response", {}).get("parts"):
                small = [one for one in inside if len(str(one.get("inline_data") or "")) <= most_bytes]
                if len(small) < len(inside):
                    part = {**part, "function_response": {**part["function_response"], "parts": small}}
            parts.append(masked_part(part, mask) if mask else part)
        origin = row.origin
        value: dict[str, Any] = {"at": at, "content": {"role": content.role, "parts": parts}}
        value["digest"] = short(frozen.digest, _DIGITS) if parts == before else frozen.digest
        if origin is not None:
            value["origin"] = [origin.author, origin.time, origin.event, *([origin.mark] if origin.mark else [])]
            if row.words != _words(_texts(content)):
                value["words"] = mask(row.words)
        return value

    # the turns

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
            row = self.rows[place]
            origin, words = row.origin, mask(row.words) if row.origin else ""
            turns = turn_entries(place, words, time=origin.time, speaker=origin.author) if origin else []
            self._entries.append(turns)
        return [*chain.from_iterable(self._entries[:end])]

    def index(self, embedder: str) -> TurnIndex:
        """The index of the turns by an embedder, which may hang: each has its own."""
        from aether_context.retrieval.call_indexes import TurnIndex

        return self._indexes.setdefault(embedder, TurnIndex())


class Histories:
    """The histories that were looked at last. Safe to share between threads.

    Args:
        reader: reads contents.
        files: of the store that keeps them; None where nothing is kept.
    """

    def __init__(self, reader: Reader, files: Files | None = None) -> None:
        self._reader = reader
        self._files = files
        self._known: dict[AgentKey, History] = {}
        self._lock = threading.Lock()

    def of(self, key: AgentKey) -> History:
        """The one of an agent in its session and branch."""
        with self._lock:
            history = self._known.pop(key, None)
            if history is None:
                files = self._files and TurnFiles(self._files, *key[:3], scope_of(*key[3:], _DIGITS))
                history = History(self._reader, files or None)
            self._known[key] = history
            rows = sum(len(other.rows) for other in self._known.values())
            while len(self._known) > 1 and (rows > _MOST_ROWS or len(self._known) > _MOST_HISTORIES):
                rows -= len(self._known.pop(next(iter(self._known))).rows)
            return history


@dataclass(slots=True)
class Placed:
    """Where the contents that a host loaded stand in an agent's whole history, and what of those before them is known.

    ``digests`` are what an epoch says of contents: where its last cut was made is not looked at below the loaded ones.
    What stands before ``begin`` is not sent. ``rows`` are those of the contents before the loaded ones, the latest
    first.
    """

    contents: Contents
    history: History | None = None
    digests: Mapping[int, str] = field(default_factory=dict)
    begin: int = 0
    problems: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def lacking(self, positions: Iterable[int]) -> list[int]:
        """Those of the positions before the loaded contents whose contents are not there."""
        return [at for at in positions if self.begin <= at < self.contents.first and at not in self.contents.earlier]

    async def fill(self, history: History, positions: Collection[int], call: ModelCall, waits: Waits) -> None:
        """Takes what was sent last, and what the store holds. What neither has is not sent, nor what stands before it;
        what is sent begins with a user's message then."""
        first = self.contents.first
        recent = range(max(0, first - MOST_RECENT), first)
        with history.lock:
            history.reach(first)
            wanted = [at for at in positions if at not in history.live and history.rows[at] is not LOST]
            unknown = [at for at in recent if history.rows[at] is UNKNOWN]
        if wanted or unknown:
            await history.read(min([*wanted, *unknown]), first, call, waits, wanted)
        self.contents = replace(self.contents, earlier={at: history.live[at] for at in positions if at in history.live})
        if lost := self.lacking(positions):
            self.problems.append(f"{len(lost):,} contents before the loaded events are not sent: {history.problem}")
            self.begin = max(lost) + 1
            whole = range(self.begin, len(self.contents))
            self.begin = next((at for at in whole if is_message(self.contents[at])), self.begin)
        self.rows = history.rows[:first][::-1]

    def content(self, at: int, content: Content) -> Content:
        """A content before those that are loaded, as it was before it was stored; one that only stands for it where it
        is not there."""
        if at not in self.contents.earlier:
            return replace(content, digest=self.digests.get(at, ""))
        row = self.rows[-1 - at]
        if len(row.digest) > _DIGITS:
            content = replace(content, digest=row.digest)
        return replace(content, agent="", quotes=()) if row.origin and row.origin.author == "user" else content


def content_of(stored: Stored) -> types.Content:
    """The content that the store holds."""
    return types.Content.model_validate_json(json.dumps(stored["content"]))


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
            mark = (event.custom_metadata or {}).get(ANCHORS)
            origin = Origin(event.author, event.timestamp, event.id, mark)
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
