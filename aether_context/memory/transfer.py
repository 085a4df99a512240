"""Memories as lines of a file, and memories of other services read to be added.

The first line says what the file is, each further one is a memory and whose it is:

{"format":"aether-memories","version":1}
{"app":"home","author":"Ann","metadata":{},"name":"e1","role":"user","session":"s1","text":"…","timestamp":"…","user":"ann"}

Other services' are the SQLite file of ADK's `SqliteMemoryService`, and the JSON of Vertex AI Memory Bank: what its
REST methods ``memories.list`` and ``memories:retrieve`` answer, one page or several, or a memory a line.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aether_context.canonical import canonical_json, plain
from aether_context.errors import StoreError
from aether_context.memory.library import Memories
from aether_context.memory.rows import Memory

FORMAT, VERSION = "aether-memories", 1

_SQLITE = b"SQLite format 3\0"
_ADK_SCHEMA = "1"
NO_SESSION = "__unknown_session_id__"
"""What ADK's services call the session of events that came without one."""
_WRITTEN_AT_ONCE, _CHARACTERS = 10_000, 4_000
"""So many memories are written together; of a text each so many characters count as one more."""
_NO_SPACE = re.compile(r"\S")
_UNDERSCORE = re.compile("_([a-z])")
_PAGES = ("memories", "retrievedMemories")
_WRONG = (ValueError, LookupError, TypeError, AttributeError, OverflowError, OSError, RecursionError)
"""What comes of values that are of another kind than they should be."""

_log = logging.getLogger("aether_context.memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A memory and whose it is."""

    app: str
    user: str
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What is no memory that could be added: where it stands, and why. No text of a memory is quoted."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import did: memories that were read, those of them that were new or other than before, and refusals."""

    read: int
    written: int
    refused: int


def export_lines(memories: Memories, app: str | None = None, user: str | None = None) -> Iterator[str]:
    """The lines of a file, without line ends, of all that is remembered, or of an app or a user."""
    yield canonical_json({"format": FORMAT, "version": VERSION})
    for of_app, of_user, _ in memories.users():
        if app in (None, of_app) and user in (None, of_user):
            for memory in memories.all(of_app, of_user):
                yield canonical_json({"app": of_app, "user": of_user, **asdict(memory)})


def import_memories(
    memories: Memories,
    source: str | os.PathLike[str] | io.BufferedIOBase | Iterable[Owned | Refused],
    *,
    app: str | None = None,
    user: str | None = None,
    revive: bool = False,
    on_refused: Callable[[Refused], None] | None = None,
) -> Imported:
    """Adds what a file holds, or what is given; the same again adds nothing. What is broken is passed over.

    Args:
        app: the app of memories that name none, and ``user`` likewise; what a memory names itself decides.
        revive: whether what was deleted may be written again.
        on_refused: is told what was passed over; else a warning is logged.

    Raises:
        StoreError: the source cannot be read or is of no known kind, or the memories cannot be written.
    """
    read = written = refused = waiting = 0
    batch: dict[tuple[str, str], list[Memory]] = {}

    def write() -> int:
        changed = sum(memories.add(*owner, of_owner, revive=revive) for owner, of_owner in batch.items())
        batch.clear()
        return changed

    given = _read(source, app, user) if isinstance(source, (str, os.PathLike, io.BufferedIOBase)) else source
    for one in given:
        if isinstance(one, Refused):
            refused += 1
            (on_refused or _warn)(one)
            continue
        batch.setdefault((one.app, one.user), []).append(one.memory)
        read += 1
        waiting += 1 + len(one.memory.text) // _CHARACTERS
        if waiting >= _WRITTEN_AT_ONCE:
            written, waiting = written + write(), 0
    return Imported(read=read, written=written + write(), refused=refused)


def _warn(refused: Refused) -> None:
    _log.warning("no memory was imported from %s: %s", refused.place, refused.reason)


def _read(
    source: str | os.PathLike[str] | io.BufferedIOBase, app: str | None, user: str | None
) -> Iterator[Owned | Refused]:
    try:
        if isinstance(source, io.BufferedIOBase):
            yield from _of_json(_documents(source), app, user)
            return
        with open(source, "rb") as file:
            if file.peek(len(_SQLITE)).startswith(_SQLITE):
                yield from _of_adk(Path(source))
            else:
                yield from _of_json(_documents(file), app, user)
    except OSError as error:
        raise StoreError(f"{source} cannot be read: {error.strerror or error}") from error


class _Line(BaseModel):
    """A line of a file; the fields of `Memory` with whose it is."""

    model_config = ConfigDict(extra="forbid", strict=True)

    app: str = Field(min_length=1)
    user: str = Field(min_length=1)
    name: str = Field(min_length=1)
    text: str = Field(pattern=r"\S")
    session: str = ""
    role: str = "user"
    author: str | None = None
    timestamp: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


def _owned(fields: Any, app: str | None, user: str | None) -> Owned:
    """A memory of a line, or of Vertex AI.

    Raises:
        ValueError: a field is missing, wrong or unknown.
    """
    if not isinstance(fields, dict):
        raise ValueError("it is no object with the fields of a memory")
    if fields.keys() & {"fact", "scope"}:
        fields = _of_vertex(fields)
    given = {"app": fields.get("app") or app, "user": fields.get("user") or user}
    if missing := [name for name, value in given.items() if value is None]:
        raise ValueError(f"it names no {missing[0]}: give the import one for memories like this")
    try:
        line = _Line.model_validate({**fields, **given})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    values = line.model_dump(exclude={"app", "user"})
    return Owned(app=line.app, user=line.user, memory=Memory(**{**values, "metadata": plain(line.metadata)}))


def _refused(place: str, error: Exception) -> Refused:
    told = type(error) is ValueError
    return Refused(place=place, reason=str(error) if told else "its fields are not of the kinds that they should be")


# JSON


def _of_json(documents: Iterable[tuple[str, Any]], app: str | None, user: str | None) -> Iterator[Owned | Refused]:
    further = None
    for place, document in documents:
        if isinstance(document, dict) and "format" in document:
            if (document["format"], document.get("version")) != (FORMAT, VERSION):
                raise StoreError(
                    f"{place} begins {document['format']!r} of version {document.get('version')!r}, and this release "
                    f"reads {FORMAT!r} of version {VERSION}: import it by the release that wrote it or a later one"
                )
            continue
        page = _page(document)
        if page is not None:
            further = place if isinstance(document, dict) and document.get("nextPageToken") else None
        for number, value in enumerate([document] if page is None else page, start=1):
            try:
                if isinstance(value, ValueError):
                    raise value
                yield _owned(value, app, user)
            except _WRONG as error:
                yield _refused(place if page is None else f"{place}, memory {number}", error)
    if further is not None:
        yield Refused(place=further, reason="its nextPageToken says that more follows: fetch that and import it, too")


def _page(document: Any) -> list[Any] | None:
    """The memories of a page, as Vertex AI answers; None where it is none."""
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):
        return None
    found: Any = next((document[name] for name in _PAGES if name in document), None if document else [])
    if not isinstance(found, list):
        return None
    return [one.get("memory", one) if isinstance(one, dict) else one for one in found]


def _of_vertex(value: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a memory of Vertex AI, whose names REST writes as ``updateTime`` and the SDK as ``update_time``."""
    value = {_UNDERSCORE.sub(lambda found: found[1].upper(), name): given for name, given in value.items()}
    scope = value.get("scope") or {}
    if others := sorted(scope.keys() - {"app_name", "user_id"}):
        raise ValueError(f"its scope has {others[0]!r} beside app_name and user_id: make it a part of one of them")
    metadata = {}
    for name, given in (value.get("metadata") or {}).items():
        kinds = [key for key in given if key.endswith(("Value", "_value"))] if isinstance(given, dict) else []
        metadata[name] = given[kinds[0]] if len(kinds) == 1 else given
    return {
        "app": scope.get("app_name"),
        "user": scope.get("user_id"),
        "name": str(value.get("name") or "").rpartition("/")[2],
        "text": value.get("fact"),
        "author": "user",
        "timestamp": value.get("updateTime") or value.get("createTime"),
        "metadata": metadata,
    }


def _documents(file: io.BufferedIOBase) -> Iterator[tuple[str, Any]]:
    """What stands in a file of JSON, each with its place, an error in the place of what is none.

    A line is a value; where the first one is no whole value, the file is read at once.
    """
    for number, line in enumerate(file, start=1):
        line = line.removeprefix(codecs.BOM_UTF8).strip()
        if number == 1 and (line == b"{" or line.startswith(b"[")):
            yield from _values(line + b"\n" + file.read())
        elif line:
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                yield f"line {number}", _fault(error)


def _values(data: bytes) -> Iterator[tuple[str, Any]]:
    decoder, at, line = json.JSONDecoder(), 0, 1
    try:
        text = data.decode()
        while found := _NO_SPACE.search(text, at):
            start = found.start()
            line += text.count("\n", at, start)
            value, at = decoder.raw_decode(text, start)
            yield f"line {line}", value
            line += text.count("\n", start, at)
    except (ValueError, RecursionError) as error:
        yield f"line {getattr(error, 'lineno', line)}", _fault(error)


def _fault(error: Exception) -> ValueError:
    """What is wrong with JSON, without what stands in it."""
    at = f": {error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
    return ValueError(f"it is not JSON in UTF-8{at}")


# ADK's SqliteMemoryService


def _of_adk(path: Path) -> Iterator[Owned | Refused]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "memory_events" not in tables:
                cure = "export it, and import that" if "memories" in tables else "give the file of that service"
                raise StoreError(f"{path} has no table memory_events of ADK's SqliteMemoryService: {cure}")
            schema = database.execute("SELECT value FROM adk_memory_metadata WHERE key = 'schema_version'").fetchone()
            if schema != (_ADK_SCHEMA,):
                raise StoreError(f"{path} has ADK's schema {schema}, and {_ADK_SCHEMA!r} is the one that is known")
            rows = database.execute(
                "SELECT id, app_name, user_id, session_id, event_id, author, timestamp, content_json"
                " FROM memory_events ORDER BY id"
            )
            for number, app, user, session, name, author, seconds, content in rows:
                try:
                    said = json.loads(content)
                    texts = [part["text"] for part in said["parts"] if part.get("text") and not part.get("thought")]
                    fields = {
                        "app": app,
                        "user": user,
                        "name": name,
                        "session": "" if session == NO_SESSION else session,
                        "text": " ".join(texts).strip(),
                        "role": said.get("role") or "user",
                        "author": author or None,
                        "timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(),
                    }
                    yield _owned(fields, None, None)
                except _WRONG as error:
                    yield _refused(f"row {number}", error)
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
