"""The tools with which a model reads what an address stands for: ``read_artifact`` and ``search_artifact``.

They resolve addresses of their own session only: evidence by the session's state, ``artifact://history`` by its
events, the rest by ADK's own artifacts of the session. What they answer is never offloaded.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4
from weakref import WeakValueDictionary

from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.bounds import within
from aether_context.adk.call import ESSENTIAL_MARK, session_key, words_of
from aether_context.adk.past import past_events, read_past
from aether_context.adk.request.reader import Reader, additions
from aether_context.adk.request.sessions import Sessions
from aether_context.adk.results import MEDIA_KEY, as_json, medium_of, medium_tokens, model_of
from aether_context.canonical import hash_bytes, strings
from aether_context.errors import ArtifactError, BlobNotFound, StoreError
from aether_context.evidence import EvidenceRecord, evidence_key
from aether_context.evidence.media import Medium, can_be_shown, record_of
from aether_context.evidence.offload import stored_bytes
from aether_context.evidence.record import READ, SEARCH, STORED, message_uri, size_words
from aether_context.evidence.show import is_text
from aether_context.pack import Part
from aether_context.redaction import masker
from aether_context.store import PackStore
from aether_context.store.artifacts import artifact_owner
from aether_context.store.layout import pack_at
from aether_context.text.entities import HISTORY, SCHEME
from aether_context.text.shorten import lines_view
from aether_context.tokens import counter_for
from aether_context.tokens.cache import TokenCache
from aether_context.tokens.counters import SharedLRU, takes_media

if TYPE_CHECKING:
    from aether_context.evidence.passages import Searcher

logger = logging.getLogger("aether_context")

_SECONDS = 10.0
_MOST_CHARACTERS = 100_000_000
_MOST_LINES = 2_000
_MOST_REASON = 300
_USUAL_LINES = 100
_ADDRESS = re.compile(rf"{STORED.pattern}|{HISTORY}(?![\w/-]|\.\w)")
"""An address that this package gives, of which models copy the words around it, too."""

_Answer: TypeAlias = Callable[[str, Mapping[str, Any], ToolContext], Coroutine[Any, Any, dict[str, Any]]]


class Readers:
    """The tools by which a model reads a store's texts by address. The evidence read last stays in memory, indexed.

    Args:
        sessions: what is known of their evidence.
        room: gives the tokens that the text of one answer may have now, and a medium in it.
        parts_sent: gives the parts of the agent's last request.
        redact: patterns of what is masked before texts are compared.
        sees_own: tells whether an agent is shown no other agent's turns.
    """

    def __init__(
        self,
        store: PackStore,
        sessions: Sessions,
        room: Callable[[ToolContext], tuple[int, int]],
        parts_sent: Callable[[ToolContext], Sequence[Part]],
        redact: tuple[str, ...],
        sees_own: Callable[[ToolContext], bool],
    ) -> None:
        self._sees_own = sees_own
        self._store = store
        self._sessions = sessions
        self._room, self._parts_sent = room, parts_sent
        self._mask = masker(redact) if redact else None
        self._counter = counter_for("")
        self._texts: SharedLRU[tuple[str, str, str], Searcher] = SharedLRU(16)
        copied = (uuid4().hex, store, redact)
        _live[copied[0]] = self
        handlers = ((_READ_DECLARATION, self._read_artifact), (_SEARCH_DECLARATION, self._search))
        self.tools = tuple(ReaderTool(declaration, sessions, answer, copied) for declaration, answer in handlers)

    async def _read_artifact(self, uri: str, args: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Lines by their numbers, or a medium."""
        room, medium_room = self._room(context)
        record = await self._record(evidence_key(uri) or "", context)
        if record is not None and not is_text(record.media_type) and can_be_shown(record.media_type):
            medium = Medium(data=await self._data(record, context), media_type=record.media_type)
            model = model_of(context)
            size = f"{medium.media_type}, {size_words(len(medium.data))}"
            if not takes_media(model):
                return {"error": f"it is {size}, which {model} takes in no tool's answer"}
            tokens = medium_tokens(medium, model)
            if tokens > medium_room:
                return {"error": f"it is {size} and takes {tokens} tokens, and there is room for {medium_room}"}
            return {"shown": size, MEDIA_KEY: types.Part.from_bytes(data=medium.data, mime_type=medium.media_type)}
        view = (await self._open(uri, context)).view
        total = len(view.lines)
        start = _number(args.get("start_line"), 1)
        count = max(1, min(_number(args.get("max_lines"), _USUAL_LINES), _MOST_LINES))
        start = total + 1 + start if start < 0 else start
        if not 1 <= start <= total:
            return {"error": f"it has lines 1 to {total}: give start_line among them"}
        from aether_context.evidence.passages import line_range, read_lines

        passage = await asyncio.to_thread(read_lines, view, start - 1, count, max_tokens=room, counter=self._counter)
        answer: dict[str, Any] = {"lines": f"{line_range(passage)} of {total}", "text": passage.text}
        if passage.stop < min(total, start - 1 + count):
            answer["note"] = f"there was no room for more: go on with start_line={passage.stop + 1}"
        return answer

    async def _search(self, uri: str, args: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Lines by words, or by what they are about."""
        searcher = await self._open(uri, context)
        query = args.get("query")
        if not isinstance(query, str) or not query.strip():
            return {"error": "say in query what to look for: a word, an identifier, or a question"}
        room, _ = self._room(context)
        messages = [context.user_content] if uri == HISTORY else []  # elsewhere it may be what is searched
        messages += [event.content for event in context.session.events[-1:]]
        parts = self._parts_sent(context)
        from aether_context.evidence.passages import search_answer

        def search() -> dict[str, Any]:
            asking = "\n".join(map(words_of, messages))
            return search_answer(
                searcher,
                query,
                is_past=uri == HISTORY,
                max_tokens=room,
                counter=self._counter,
                sent_parts=parts,
                asking=self._mask(asking) if self._mask else asking,
            )

        return await asyncio.to_thread(search)

    async def _open(self, uri: str, context: ToolContext) -> Searcher:
        """The text of an address, in lines.

        Raises:
            ArtifactError: the address is none of this session's, or nothing is there, or it is not text.
        """
        key: tuple[str, str, str] | None = None
        if (digits := evidence_key(uri)) is not None:
            record = await self._record(digits, context)
            if record is None:
                raise ArtifactError(f"this session has no {uri}: take the address from a result as it stands there")
            kind = record.media_type
            if not is_text(kind):
                raise ArtifactError(f"{uri} is {kind} of {record.size_bytes} bytes, which cannot be read as text")
            key = (context.session.app_name, context.session.user_id, record.digest)
            if (cached := self._texts.get(key)) is not None:
                return cached
            data: bytes | None = await self._data(record, context)
        elif pack_at(uri.removeprefix(SCHEME)) is not None:
            data = await asyncio.to_thread(self._store.receipt, *session_key(context), uri.removeprefix(SCHEME))
        elif uri == HISTORY:
            events, sees_own = await past_events(context), self._sees_own(context)
            addresses = {record.digest: record.uri for record in self._sessions.records(context).by_digits.values()}
            read = partial(read_past, context, events, self._store.files, self._mask, sees_own, addresses)
            data = await asyncio.to_thread(read)
        elif uri.startswith(f"{SCHEME}messages/"):
            data = await asyncio.to_thread(self._message, uri, context)
        else:
            data = await _artifact(uri, context)
        if data is None:
            raise ArtifactError(f"this session has no {uri[:200]}")
        try:
            text = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{uri[:200]} is not text in UTF-8") from error
        if len(text) > _MOST_CHARACTERS:
            raise ArtifactError("it is too large to be read here")
        from aether_context.evidence.passages import Searcher

        searcher = Searcher(await asyncio.to_thread(lines_view, text), redact=self._mask)
        if key is not None:
            self._texts.put(key, searcher)
        return searcher

    def _message(self, uri: str, context: ToolContext) -> bytes | None:
        """The text of a message that was too long, from the session's own events, since a tool that answers fast comes
        before its pack is written; from the store where the host does not load that event."""
        reader, events = Reader(), reversed(tuple(context.session.events))
        messages = (reader.content(event.content, "") for event in events if event.author == "user" and event.content)
        text = next((content.text for content in messages if message_uri(content.digest) == uri), None)
        if text is None:
            return self._store.message(*session_key(context), uri.removeprefix(SCHEME))
        return (self._mask(text) if self._mask else text).encode("utf-8", "surrogatepass")

    async def _record(self, digits: str, context: ToolContext) -> EvidenceRecord | None:
        """Looks up the record of a piece of the session's evidence; asks the store, too, where the host loaded a part
        of the events."""
        match = self._sessions.records(context).by_digits.get(digits)
        if match is None and digits:
            stored = await asyncio.to_thread(self._store.evidence, *session_key(context))
            match = next((record for record in reversed(stored) if evidence_key(record.uri) == digits), None)
        for medium in _sent_media(context) if match is None and digits else ():
            medium_record = record_of(medium)
            if evidence_key(medium_record.uri) == digits:
                return medium_record
        return match

    async def _data(self, record: EvidenceRecord, context: ToolContext) -> bytes:
        """The bytes of a piece of evidence: the store's, else those of the result in the session's history.

        Raises:
            ArtifactError: they are not kept any more, or the store is away.
        """
        session = context.session
        try:
            return await asyncio.to_thread(self._store.evidence_data, session.app_name, session.user_id, record.digest)
        except StoreError as error:
            for event in reversed(session.events):
                for answer in event.get_function_responses():
                    content = as_json(answer.response or {}) if answer.name == record.source else None
                    if content and hash_bytes(data := stored_bytes(content)) == record.digest:
                        return data
            for medium in _sent_media(context):
                if hash_bytes(medium.data) == record.digest:
                    return medium.data
            reason = "is not kept any more" if isinstance(error, BlobNotFound) else "cannot be read now"
            raise ArtifactError(f"{record.uri} {reason}: call {record.source or 'the tool'} again") from error


def _sent_media(context: ToolContext) -> Iterator[Medium]:
    """The media that people sent in a session, as far as the host loads it, the latest first."""
    for event in reversed(context.session.events):
        if event.author == "user" and event.content is not None:
            yield from filter(None, map(medium_of, event.content.parts or ()))


_Copied: TypeAlias = tuple[str, PackStore, tuple[str, ...]]
_live: WeakValueDictionary[str, Readers] = WeakValueDictionary()
"""The readers of this process, by the names that stand for them in a pickle."""
_UNKNOWN_ROOM = 500


def _restored(tool: str, name: str, store: PackStore, redact: tuple[str, ...]) -> ReaderTool:
    """The reader that was copied; in another process one that reads the same store and the session at hand, and
    answers with little, since it does not know the window."""
    readers = _live.get(name) or Readers(
        store,
        Sessions(TokenCache()),
        lambda context: (_UNKNOWN_ROOM, _UNKNOWN_ROOM),
        lambda context: (),
        redact,
        lambda context: True,
    )
    return next(reader for reader in readers.tools if reader.name == tool)


async def _artifact(uri: str, context: ToolContext) -> bytes | None:
    """The bytes of one of ADK's own artifacts of the session or its user; None where there is none of that name.

    Raises:
        ArtifactError: the address is none of this session's.
    """
    owner, name, version = artifact_owner(uri, session_key(context))
    name = name if owner[2:] else f"user:{name}"
    if context.get_invocation_context().artifact_service is None:
        return None
    if (part := await context.load_artifact(name, version)) is None:
        return None
    if part.text is not None:
        return part.text.encode("utf-8", "surrogatepass")
    return part.inline_data.data if part.inline_data is not None else None


_READ_DECLARATION = types.FunctionDeclaration(
    name=READ,
    description="Reads lines of a tool result or file that is shown only in part. Shows an image or document.",
    parameters_json_schema={
        "type": "object",
        "properties": {
            "uri": {"type": "string", "description": "artifact://…"},
            "start_line": {"type": "integer", "description": "From 1; -50 is the 50th from the end."},
            "max_lines": {"type": "integer"},
        },
        "required": ["uri"],
    },
)
_SEARCH_DECLARATION = types.FunctionDeclaration(
    name=SEARCH,
    description="Finds lines in a tool result or file, by exact words or by meaning.",
    parameters_json_schema={
        "type": "object",
        "properties": {
            "uri": {"type": "string"},
            "query": {"type": "string", "description": "An identifier, words, or a question."},
        },
        "required": ["uri", "query"],
    },
)


class ReaderTool(BaseTool):
    """One of the two tools. Whatever a model asks for, it gets an answer."""

    def __init__(
        self, declaration: types.FunctionDeclaration, sessions: Sessions, answer: _Answer, copied: _Copied
    ) -> None:
        name, description = declaration.name or "", declaration.description or ""
        super().__init__(name=name, description=description, custom_metadata={ESSENTIAL_MARK: True})
        self._declaration, self._sessions, self._answer, self._copied = declaration, sessions, answer, copied

    def __reduce__(self) -> tuple[Any, ...]:
        """By name: a copy of a request, deep or pickled, has this very tool in it."""
        return _restored, (self.name, *self._copied)

    def _get_declaration(self) -> types.FunctionDeclaration:
        return self._declaration

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        uri = args.get("uri")
        if not isinstance(uri, str) or not uri.strip():
            return {"error": "give the address in uri, such as artifact://evidence/…"}
        uri = match[0] if (match := _ADDRESS.search(uri)) is not None else uri.strip()
        try:
            answer = await within(_SECONDS, self._answer(uri, args, tool_context))
            # The address of a later reading, where that differs.
            later = self._sessions.records(tool_context).readings.get(uri)
        except ArtifactError as error:
            return {"error": str(error).replace(uri, uri[:200])[:_MOST_REASON]}
        except Exception as error:
            logger.warning("an artifact could not be read: %s", type(error).__name__, exc_info=error)
            return {"error": f"it could not be read now ({type(error).__name__}): try again later"}
        return {**answer, "superseded_by": later} if later else answer


def declare(request: LlmRequest, readers: Sequence[BaseTool]) -> bool:
    """Declares the readers behind an agent's own tools, where the request takes functions, by no name that the agent
    has itself; tells whether one of them is declared then."""
    if not additions(request).functions:
        return False
    request.append_tools([reader for reader in readers if reader.name not in request.tools_dict])
    return any(request.tools_dict.get(reader.name) is reader for reader in readers)


def names_evidence(content: types.Content) -> bool:
    """Tells whether an address of evidence stands in a text or a result."""
    texts = [part.text or "" for part in content.parts or ()]
    responses = [part.function_response for part in content.parts or () if part.function_response is not None]
    texts += [text for answer in responses for _, text in strings(answer.response or {})]
    return any(STORED.search(text) for text in texts if SCHEME in text)


def _number(value: Any, otherwise: int) -> int:
    """Reads a model's argument as a whole number."""
    try:
        return otherwise if isinstance(value, bool) else int(float(value))
    except (TypeError, ValueError, OverflowError):
        return otherwise
