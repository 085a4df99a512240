"""A session's entries in the store, for hosts that load only a part of its events."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from google.adk.events.event import Event
from google.genai import types

from aether_context.adk.bounds import Waits, in_thread
from aether_context.adk.call import ModelCall
from aether_context.adk.request.entries import CallHistory, Entries, HistoryEntry, Origin
from aether_context.adk.request.reader import Reader
from aether_context.adk.request.sessions import AgentSession
from aether_context.redaction import Masker
from aether_context.store.files import Files
from aether_context.store.masking import masked_part
from aether_context.store.turns import Stored, TurnFiles


class Archive:
    """The entries of sessions in a store's ``files``; nowhere without these. ``waits`` bounds the time that a store is
    waited for."""

    def __init__(self, reader: Reader, waits: Waits, files: Files | None = None) -> None:
        self._reader, self._waits, self._files = reader, waits, files

    def begin(self, session: AgentSession, rewound: str) -> None:
        """Begins a session's entries with an event, anew where that is another one than before."""
        if session.rewound != rewound:
            session.forget()
            session.rewound = rewound
            session.files = TurnFiles(self._files, *session.key, rewound) if self._files is not None else None

    async def load(
        self, session: AgentSession, entries: Entries, end: int | None, call: ModelCall, needed: Collection[int] = ()
    ) -> Entries:
        """The entries with what the store holds of those before ``end`` that are not known, of all where that is None;
        those that are ``needed`` with their contents."""
        places = [*entries, *[None] * ((1 if end is None else end) - len(entries))][:end]
        lacking = {at for at in needed if (entry := places[at]) is None or entry.raw is None}
        missing = (at for at, entry in enumerate(places) if (at in lacking if entry else at >= session.asked_until))
        if (start := next(missing, None)) is None:
            return entries
        session.problem = "the policy records no texts" if session.files is None else "the store does not hold them"
        stored: Mapping[int, HistoryEntry] = {}
        if session.files is not None:
            stop = 2**62 if end is None else end
            reading = in_thread(partial(session.files.read, start, stop, partial(_entry, session.files, lacking)))
            try:
                stored = await self._waits.within("turns", call.invocation.invocation_id, reading)
            except Exception as error:
                session.problem = f"the store could not be read ({type(error).__name__})"
                return entries
        stop = max(stored, default=-1) + 1 if end is None else end
        result = [*entries, *[None] * (stop - len(entries))]
        for at in (at for at in stored if start <= at < stop):
            if (entry := result[at]) is None:
                result[at] = stored[at]
            elif entry.raw is None:
                entry.raw = stored[at].raw
        session.asked_until = max(session.asked_until, stop)
        return result

    async def survive(self, session: AgentSession, entries: Entries, rewound: str, live: Collection[str]) -> None:
        """Begins a session's entries with an event, and with those before the first whose event is not among the
        ``live`` ones."""
        rewound_places = (
            at for at, entry in enumerate(entries) if entry and entry.origin and entry.origin.event not in live
        )
        surviving, files = entries[: next(rewound_places, len(entries))], session.files
        self.begin(session, rewound)
        if files is not session.files and files is not None and session.files is not None:
            for at in await in_thread(partial(_copy, files, session.files, len(surviving))):
                if (entry := surviving[at]) is not None:
                    entry.stored_in = session.files
        session.entries, session.stable_end = surviving, len(surviving)

    def save(
        self, files: TurnFiles, history: CallHistory, end: int, mask: Masker, model: str, *, changes_earlier: bool
    ) -> None:
        """Writes what files do not hold yet of the contents before ``end``, which were read for a model.

        Args:
            changes_earlier: whether contents may be others than another process has stored.

        Raises:
            StoreError: it could not be written.
        """
        if not (files.is_begun or changes_earlier):
            for entry in filter(None, history.entries[: min(end, files.end())]):
                entry.stored_in = files
        unsaved = {
            at: entry
            for at, entry in enumerate(history.entries[:end])
            if entry is not None and entry.stored_in is not files and (at >= history.first or at in history.earlier)
        }
        if unsaved:
            files.add({at: self._stored(at, history.raw(at), entry, mask, model) for at, entry in unsaved.items()})
        for entry in unsaved.values():
            entry.stored_in = files
        files.is_begun = True

    def _stored(self, at: int, content: types.Content, entry: HistoryEntry, mask: Masker, model: str) -> Stored:
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
        # A turn that is recalled is known by its digest, when it is not loaded any more.
        entry.digest = frozen.digest
        stored_content = {"role": content.role, "parts": [masked_part(part, mask) for part in parts]}
        value = {"at": at, "content": stored_content, "digest": frozen.digest, "sizes": list(entry.sizes)}
        if entry.origin is not None:
            value |= {"origin": list(entry.origin), "words": mask(entry.words)}
        return value


def may_change_earlier(event: Event) -> bool:
    """Tells whether contents before an event became others with it, which another process may have stored as they
    were."""
    posted = event.author == "user" and event.get_function_responses()
    return bool(posted or event.actions.rewind_before_invocation_id)


def _entry(files: TurnFiles, lacking: Collection[int], turn: Stored) -> HistoryEntry:
    """The entry that a content of the store becomes, with the content where that is lacking."""
    raw = types.Content.model_validate_json(json.dumps(turn["content"])) if turn["at"] in lacking else None
    origin = Origin(*turn["origin"]) if "origin" in turn else None
    sizes: tuple[int, int, int] = tuple(turn["sizes"])
    return HistoryEntry(0, turn.get("words", ""), origin, sizes, turn["digest"], stored_in=files, raw=raw)


def _copy(source: TurnFiles, target: TurnFiles, end: int) -> Collection[int]:
    stored = {at: content for at, content in source.read(0, end).items() if at < end}
    if stored:
        target.add(stored)
    return stored.keys()
