"""A session as one agent is shown it: taken in once, by position, searched, and kept in the store."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from google.adk.events.event import Event
from google.genai import types

from aether_context.adk.bounds import Waits, in_thread
from aether_context.adk.call import Contents, ModelCall
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
from aether_context.pack import noted
from aether_context.redaction import Masker
from aether_context.store.masking import masked_part
from aether_context.store.turns import Stored, TurnFiles

if TYPE_CHECKING:
    from aether_context.retrieval import Entry
    from aether_context.retrieval.call_indexes import TurnIndex

LENGTH = "contents"
"""The key of the number of contents that an answer was given to, in the metadata of its event."""


class Origin(NamedTuple):
    """The event that says what a content says; ``event`` is its id, ``mark`` what anchors it in its metadata."""

    author: str
    time: float
    event: str
    mark: Any = None


class HistoryRow(NamedTuple):
    """The facts that are stored of a content.

    ``key`` is a hash of all that the host showed, 0 where it did not; ``digest`` is the content's, as it was before it
    was stored. ``words`` are those of a content that is words alone and an event's, which is a turn.
    ``sizes`` are its characters: of its words alone, of all as `characters` counts them, and with all written out.
    """

    key: int
    words: str
    origin: Origin | None
    sizes: tuple[int, int, int]
    digest: str = ""


class AgentHistory:
    """The contents of one agent's history, kept in ``files``. Threads may share it, and hold ``lock`` meanwhile."""

    def __init__(self, reader: Reader, files: TurnFiles | None = None, rewound: str = "") -> None:
        self.rewound = rewound
        """The id of the event with which it begins, as `turns_begin` gives it; empty for none."""
        self.rows: list[HistoryRow | None] = []
        """None stands for a content that is not known."""
        self.live: Mapping[int, types.Content] = {}
        """What the last request sent of a history that was not loaded whole."""
        self.newest = 0
        """The identity of what was loaded for the latest call, which need not be kept."""
        self.lock = threading.Lock()
        self.problem = ""
        """Why what was looked for in the store last is not known."""
        self._asked = 0
        """The contents before this one were looked for in the store."""
        self._unsaved: int | None = None
        """The first content that is not in the store; None where nothing was written here."""
        self._reader = reader
        self._files = files
        self._entries: list[Entry] = []
        """The turns of the first rows as an index takes them; ``_ends`` are their numbers behind each of the rows."""
        self._ends: list[int] = []
        self._mask = ""
        self._indexes: dict[str, TurnIndex] = {}

    def take(self, contents: Contents, events: Sequence[Event], end: int, *, is_late: bool = False) -> None:
        """Takes in the loaded contents before ``end``; anew from the first one on that is not what it was, but where
        it ``is_late`` and later calls have taken in theirs."""
        first, loaded = contents.first, contents.loaded
        self.newest = self.newest if is_late else id(loaded)
        self.rows += [None] * (first - len(self.rows))
        shared_end = min(len(self.rows), len(contents))
        same = next((at for at in range(first, shared_end) if not self._is(at, loaded[at - first])), shared_end)
        if same < len(self.rows):
            if is_late:
                return
            self._forget(same)
            del self.rows[same:]
            self.live = {at: content for at, content in self.live.items() if at < same}
            self._asked = min(self._asked, same)
            self._unsaved = None if self._unsaved is None else min(self._unsaved, same)
        if end <= same:
            return
        last = next((row.origin.event for row in reversed(self.rows) if row and row.origin), "")
        origins = origins_of(loaded[same - first :], events, last)
        for at, content in enumerate(loaded[same - first : end - first]):
            words, origin = origins.get(at, ("", None))
            if words and any(part.inline_data or part.file_data for part in content.parts or ()):
                words = " ".join([words, *media_marks(self._reader.content(content, "")).values()])
            sizes = len(_words(_texts(content))), characters(content), characters(content, written=True)
            self.rows.append(HistoryRow(key_hash(content), words, origin, sizes))

    def _is(self, at: int, content: types.Content) -> bool:
        """Tells whether a row is of a content, which is then known by its key."""
        row, key = self.rows[at], key_hash(content)
        if row and row.key == 0 and row.digest == self.digest_of(content):
            row = self.rows[at] = row._replace(key=key)
        return row is not None and row.key == key

    def surviving(self, live: Collection[str], successor: AgentHistory) -> None:
        """Hands on to ``successor``, the history that follows a rewind, the rows before the first one whose event is
        not among the ``live`` ones; off the event loop, since it copies files."""
        rewound_rows = (at for at, row in enumerate(self.rows) if row and row.origin and row.origin.event not in live)
        end = next(rewound_rows, len(self.rows))
        if self._files is not None and successor._files is not None and (stored := self._files.read(0, end)):
            successor._files.add({at: content for at, content in stored.items() if at < end})
        successor.rows = self.rows[:end]
        successor.live = {at: content for at, content in self.live.items() if at < end}

    def digest_of(self, content: types.Content) -> str:
        return self._reader.content(content, "").digest

    def _forget(self, start: int) -> None:
        """Forgets what was made of the rows from ``start`` on."""
        del self._ends[start:]
        del self._entries[self._ends[-1] if self._ends else 0 :]
        self._indexes = {}

    # the store

    async def load(self, end: int | None, call: ModelCall, waits: Waits, positions: Collection[int] = ()) -> None:
        """Takes in what the store holds of the contents before ``end`` that are not known, of all where that is None,
        and puts what is wanted of it among the live ones."""
        with self.lock:
            rows = self.rows + [None] * ((1 if end is None else end) - len(self.rows))
            positions = set(positions).difference(self.live)
            missing = (at for at, row in enumerate(rows[:end]) if (at in positions if row else at >= self._asked))
            start = next(missing, None)
        if start is None:
            return
        live: dict[int, types.Content] = {}

        def taken(turn: Stored) -> HistoryRow:
            if turn["at"] in positions:
                live[turn["at"]] = types.Content.model_validate_json(json.dumps(turn["content"]))
            origin = Origin(*turn["origin"]) if "origin" in turn else None
            return HistoryRow(0, turn.get("words", ""), origin, tuple(turn["sizes"]), turn["digest"])

        self.problem = "the policy records no texts" if self._files is None else "the store does not hold them"
        stored: Mapping[int, HistoryRow] = {}
        if self._files is not None:
            try:
                reading = in_thread(partial(self._files.read, start, 2**62 if end is None else end, taken))
                stored = await waits.within("turns", call.invocation.invocation_id, reading)
            except Exception as error:
                self.problem = f"the store could not be read ({type(error).__name__})"
                return
        with self.lock:
            stop = max(stored, default=-1) + 1 if end is None else end
            self.rows += [None] * (stop - len(self.rows))
            unknown = [at for at in range(start, stop) if self.rows[at] is None and at in stored]
            self._forget(min(unknown, default=stop))
            for at in unknown:
                self.rows[at] = stored[at]
            self._asked = max(self._asked, stop)
            self.live = {**live, **self.live}

    def save(self, contents: Contents, events: Sequence[Event], end: int, mask: Masker, model: str) -> None:
        """Writes what the store does not hold yet of the contents before ``end``, which were read for a model.

        Raises:
            StoreError: it could not be written.
        """
        if self._files is None:
            return
        with self.lock:
            is_late = self.newest != id(contents.loaded)
            self.take(contents, events, end, is_late=is_late)
            if is_late:  # a later call may have been shown another history: what both were shown is written
                compared = range(contents.first, min(end, len(self.rows)))
                end = next((at for at in compared if not self._is(at, contents[at])), compared.stop)
            unsaved, rows = self._unsaved, self.rows[:end]
        start = contents.first if unsaved is None else unsaved
        if unsaved is None and not any(map(_changes_earlier, events)):
            start = max(start, self._files.end())
        unsaved_rows = [(at, rows[at]) for at in range(start, end) if at >= contents.first or at in contents.earlier]
        new = {at: self._stored(at, contents[at], row, mask, model) for at, row in unsaved_rows if row}
        if new:
            self._files.add(new)
        with self.lock:
            # A turn that is recalled is known by its digest, when it is not loaded any more.
            for at, row in unsaved_rows:
                if row and self.rows[at : at + 1] == [row]:
                    self.rows[at] = row._replace(digest=new[at]["digest"])
            self._unsaved = end if self._unsaved == unsaved else self._unsaved

    def _stored(self, at: int, content: types.Content, row: HistoryRow, mask: Masker, model: str) -> Stored:
        """A content as the store keeps it: masked, and a note in the place of media."""
        parts: list[dict[str, Any]]
        frozen = self._reader.content(content, model)
        try:
            parts = content.model_dump(mode="json", exclude_none=True).get("parts") or []
        except Exception:  # a tool may give what is no JSON
            parts = json.loads(frozen.wire)["parts"]
        for part in parts:
            if blob := part.pop("inline_data", None):
                part["text"] = f"[{blob.get('mime_type')}: it is not kept]"
            part.get("function_response", {}).pop("parts", None)
        stored_content = {"role": content.role, "parts": [masked_part(part, mask) for part in parts]}
        value = {"at": at, "content": stored_content, "digest": frozen.digest, "sizes": list(row.sizes)}
        if row.origin is not None:
            value |= {"origin": list(row.origin), "words": mask(row.words)}
        return value

    # the turns

    def sizes(self, end: int) -> tuple[int, int]:
        """The characters before ``end``: of words alone, and of all as they are written out."""
        sizes = [row.sizes for row in self.rows[:end] if row]
        return sum(size[0] for size in sizes), sum(size[2] for size in sizes)

    def turns(self, end: int, mask: Masker) -> list[Entry]:
        """The turns before ``end`` as an index takes them, masked; see `turn_entries`."""
        from aether_context.retrieval.call_indexes import turn_entries

        if mask.name != self._mask:
            self._forget(0)
            self._mask = mask.name
        for at, row in enumerate(self.rows[len(self._ends) : end], len(self._ends)):
            if row and row.origin and row.words:
                time, speaker = row.origin.time, row.origin.author
                self._entries += turn_entries(at, mask(row.words), time=time, speaker=speaker)
            self._ends.append(len(self._entries))
        return self._entries[: self._ends[end - 1] if end else 0]

    def index(self, embedder: str) -> TurnIndex:
        """The index of the turns by an embedder, which may hang: each has its own."""
        from aether_context.retrieval.call_indexes import TurnIndex

        return self._indexes.setdefault(embedder, TurnIndex())


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


def _changes_earlier(event: Event) -> bool:
    """Tells whether contents before an event became others with it, which another process may have stored as they
    were."""
    posted = event.author == "user" and event.get_function_responses()
    return bool(posted or event.actions.rewind_before_invocation_id)


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
    words = [*map(_words, texts)]
    keys = [text or key_of(without_client_ids(content)) for text, content in zip(words, contents, strict=True)]
    saying: dict[object, dict[str, deque[tuple[int, Origin]]]] = {}
    """Of each text, or content without one, the events that say it, by author, the latest last, with numbers that say
    which of two is later."""
    for number, event in enumerate(reversed(events)):
        if event.id == previous_event:
            break
        if event.content is not None and not event.partial:
            text = _words(_texts(event.content)) or key_of(without_client_ids(event.content))
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


def _words(texts: Sequence[str]) -> str:
    return "\n".join(texts).strip()
