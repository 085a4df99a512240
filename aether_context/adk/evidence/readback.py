"""The tools by which a model reads what was taken out of its prompt: ``read_artifact`` and ``search_artifact``.

They resolve addresses of their own session only: evidence by the session's state, the rest by ADK's own artifacts of
the session. Whatever a model asks for, it gets an answer; what they answer is never offloaded.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cachetools import LRUCache
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.bounds import within
from aether_context.adk.call import ESSENTIAL_MARK
from aether_context.adk.evidence.offload import MEDIA_KEY, model_of
from aether_context.adk.session.records import SessionRecords, state_record
from aether_context.canonical import replaced, strings
from aether_context.errors import AetherContextError, BlobNotFound
from aether_context.evidence import evidence_key
from aether_context.evidence.lines import is_text, view_of
from aether_context.evidence.media import Medium, can_be_shown
from aether_context.evidence.passages import Excerpt, Searcher, read_lines
from aether_context.evidence.record import READ, SEARCH, EvidenceRecord, size_words
from aether_context.redaction import masker
from aether_context.store import PackStore
from aether_context.text.entities import SCHEME
from aether_context.tokens import counter_for, family_of, media_tokens

logger = logging.getLogger("aether_context")

_SECONDS = 10.0
_MOST_KEPT = 16
_MOST_CHARACTERS = 100_000_000
_MOST_LINES = 2_000
_USUAL_LINES = 100
_MOST_QUERY = 500
_MESSAGES = f"{SCHEME}messages/"
_TEXT_ANSWERS = "gemini"
"""The family of models that take no media in the answers of tools: Gemini up to 2.5."""
_FILE = re.compile(r"[\w.+ -]{1,120}(?:/[\w.+ -]{1,120}){0,8}")

Room = Callable[[ToolContext], int]
"""The tokens that an answer may have now."""


class Unreadable(AetherContextError):
    """An address leads to nothing that can be read; the message says why, for the model."""


class Library:
    """What sessions may read of a store; the texts read last are kept, with their indexes.

    Args:
        records: what sessions know of their evidence.
        redact: patterns of what is masked before texts are compared.
    """

    def __init__(self, store: PackStore, records: SessionRecords, redact: tuple[str, ...] = ()) -> None:
        self._store = store
        self._records = records
        self._mask = masker(redact) if redact else None
        self._texts: LRUCache[tuple[str, ...], Searcher] = LRUCache(_MOST_KEPT)
        self._lock = threading.Lock()

    async def open(self, uri: str, context: ToolContext) -> Searcher:
        """The text of an address, in lines.

        Raises:
            Unreadable: the address is none of this session's, or nothing is there, or it is not text.
        """
        uri = uri.strip()
        digits = evidence_key(uri)
        if digits is not None:
            return await self._evidence(uri, digits, context)
        if uri.startswith(_MESSAGES):
            return await self._message(uri, context)
        return await self._file(uri, context)

    def later(self, uri: str, context: ToolContext) -> str:
        """The address of a later reading that differs; empty where there is none."""
        return self._records.of(context).readings().get(uri.strip(), "")

    async def medium(self, uri: str, context: ToolContext) -> Medium | None:
        """What an address of this session stands for, where that is an image, sound, video or document.

        Raises:
            Unreadable: it is not kept any more.
        """
        record = state_record(context.session.state, evidence_key(uri.strip()) or "")
        if record is None or is_text(record.media_type) or not can_be_shown(record.media_type):
            return None
        return Medium(data=await self._bytes(record, context), media_type=record.media_type)

    async def _evidence(self, uri: str, digits: str, context: ToolContext) -> Searcher:
        record = state_record(context.session.state, digits)
        if record is None:
            raise Unreadable(f"this session has no {uri}: take the address from a result as it stands there")
        if not is_text(record.media_type):
            raise Unreadable(f"{uri} is {record.media_type} of {record.size_bytes} bytes, which cannot be read as text")
        session = context.session
        key = (session.app_name, session.user_id, record.digest)
        with self._lock:
            held = self._texts.get(key)
        if held is not None:
            return held
        data = await self._bytes(record, context)
        try:
            text = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise Unreadable(f"{uri} says that it is {record.media_type}, and is not text in UTF-8") from error
        return await self._kept(key, text)

    async def _bytes(self, record: EvidenceRecord, context: ToolContext) -> bytes:
        """The bytes of a piece of evidence."""
        session = context.session
        try:
            return await asyncio.to_thread(self._store.evidence_data, session.app_name, session.user_id, record.digest)
        except BlobNotFound as error:
            raise Unreadable(f"{record.uri} is not kept any more: call {record.source or 'the tool'} again") from error

    async def _message(self, uri: str, context: ToolContext) -> Searcher:
        session = context.session
        name = uri.removeprefix(SCHEME)
        scope = (session.app_name, session.user_id, session.id)
        data = await asyncio.to_thread(self._store.message, *scope, name)
        if data is None:
            raise Unreadable(f"this session has no {uri[:200]}")
        return await self._kept((*scope, name), data.decode("utf-8", "surrogatepass"))

    async def _file(self, uri: str, context: ToolContext) -> Searcher:
        """One of ADK's artifacts of this session."""
        name = uri.removeprefix(SCHEME)
        known = _FILE.fullmatch(name) and uri.startswith(SCHEME)
        if not known or any(part.strip(". ") == "" for part in name.split("/")) or name.startswith("apps/"):
            raise Unreadable(
                f"{uri[:200]!r} is no address of this session: use one that begins with {SCHEME} as it stands"
            )
        if context.get_invocation_context().artifact_service is None:
            raise Unreadable(f"this session has no {uri}")
        part = await context.load_artifact(name)
        text = _text_of(part)
        if text is None:
            raise Unreadable(f"{uri} is not there" if part is None else f"{uri} is not text")
        return await self._kept((), text)

    async def _kept(self, key: tuple[str, ...], text: str) -> Searcher:
        if len(text) > _MOST_CHARACTERS:
            raise Unreadable("it is too large to be read here")
        view = await asyncio.to_thread(view_of, text)
        found = Searcher(view, redact=self._mask)
        if key:
            with self._lock:
                self._texts[key] = found
        return found


class _Reader(BaseTool):
    """A tool over a session's stored texts."""

    def __init__(self, declaration: types.FunctionDeclaration, library: Library, room: Room) -> None:
        super().__init__(
            name=declaration.name or "",
            description=declaration.description or "",
            custom_metadata={ESSENTIAL_MARK: True},
        )
        self._declaration = declaration
        self._library = library
        self._room = room
        self._counter = counter_for("")

    def _get_declaration(self) -> types.FunctionDeclaration:
        return self._declaration

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        uri = args.get("uri")
        if not isinstance(uri, str) or not uri.strip():
            return {"error": "give the address in uri, such as artifact://evidence/…"}
        try:
            answer = await within(_SECONDS, self._run(uri, args, tool_context))
            later = self._library.later(uri, tool_context)
            return {**answer, "superseded_by": later} if later else answer
        except Unreadable as error:
            return {"error": str(error)}
        except Exception as error:
            logger.warning("an artifact could not be read: %s", type(error).__name__, exc_info=error)
            return {"error": f"it could not be read now ({type(error).__name__}): try again later"}

    async def _run(self, uri: str, args: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        searcher = await self._library.open(uri, context)
        room = self._room(context)
        return await asyncio.to_thread(self.answer, searcher, args, room)

    @abstractmethod
    def answer(self, searcher: Searcher, args: Mapping[str, Any], room: int) -> dict[str, Any]:
        """What the model gets, of at most ``room`` tokens."""


class ReadArtifact(_Reader):
    """Reads lines by their numbers."""

    def __init__(self, library: Library, room: Room) -> None:
        super().__init__(_READ_DECLARATION, library, room)

    async def _run(self, uri: str, args: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        medium = await self._library.medium(uri, context)
        if medium is None:
            return await super()._run(uri, args, context)
        return self._show(medium, model_of(context), self._room(context))

    def _show(self, medium: Medium, model: str, room: int) -> dict[str, Any]:
        """A medium as it came, which ADK sends beside the answer."""
        size = len(medium.data)
        said = f"{medium.media_type}, {size_words(size)}"
        if family_of(model) == _TEXT_ANSWERS:
            return {"error": f"it is {said}, which {model} takes in no tool's answer"}
        tokens = media_tokens(medium.media_type, size, family=family_of(model), model=model, data=medium.data)
        if tokens > room:
            return {"error": f"it is {said} and takes {tokens} tokens, and there is room for {room}"}
        return {"shown": said, MEDIA_KEY: types.Part.from_bytes(data=medium.data, mime_type=medium.media_type)}

    def answer(self, searcher: Searcher, args: Mapping[str, Any], room: int) -> dict[str, Any]:
        total = len(searcher.view.lines)
        start = _number(args.get("start_line"), 1)
        count = max(1, min(_number(args.get("max_lines"), _USUAL_LINES), _MOST_LINES))
        start = total + 1 + start if start < 0 else start
        if not 1 <= start <= total:
            return {"error": f"it has lines 1 to {total}: give start_line among them"}
        found = read_lines(searcher.view, start - 1, count, max_tokens=room, counter=self._counter)
        answer: dict[str, Any] = {"lines": f"{_named(found)} of {total}", "text": found.text}
        if found.is_cut:
            answer["note"] = "the line goes on: search_artifact finds what is further in it"
        elif found.stop < min(total, start - 1 + count):
            answer["note"] = f"there was no room for more: go on with start_line={found.stop + 1}"
        return answer


class SearchArtifact(_Reader):
    """Finds lines by words, or by what they are about."""

    def __init__(self, library: Library, room: Room) -> None:
        super().__init__(_SEARCH_DECLARATION, library, room)

    def answer(self, searcher: Searcher, args: Mapping[str, Any], room: int) -> dict[str, Any]:
        query = args.get("query")
        if not isinstance(query, str) or not query.strip():
            return {"error": "say in query what to look for: a word, an identifier, or a question"}
        found = searcher.search(query[:_MOST_QUERY], max_tokens=room, counter=self._counter)
        total = len(searcher.view.lines)
        if not found.excerpts:
            return {"found": [], "note": f"nothing in its {total} lines answers this: try other words"}
        answer: dict[str, Any] = {"found": [{"lines": _named(one), "text": one.text} for one in found.excerpts]}
        answer["note"] = _NOTES[found.how].format(matches=found.matches, total=total)
        return answer


def declare(request: LlmRequest, readers: Sequence[BaseTool]) -> bool:
    """Declares the readers behind an agent's own tools; whether one of them is declared then.

    Not where an agent answers in a schema without tools, or has only tools that the provider runs, since models do not
    combine these with functions; nor by a name that it has itself.
    """
    config = request.config
    if config is not None:
        tools = [tool for tool in config.tools or () if isinstance(tool, types.Tool)]
        functions = bool(request.tools_dict) or any(tool.function_declarations for tool in tools)
        if not functions and (tools or config.response_schema is not None or config.response_json_schema is not None):
            return False
    request.append_tools([reader for reader in readers if reader.name not in request.tools_dict])
    return any(request.tools_dict.get(reader.name) is reader for reader in readers)


def conceal(request: LlmRequest) -> None:
    """Takes addresses that only the readers resolve out of a request that declares none; people's words stay."""
    request.contents = [_concealed(content) for content in request.contents]


_OURS = re.compile(
    rf"{SCHEME}(?:evidence/[0-9a-f]{{16}}\.[a-z]{{2,4}}|messages/[0-9a-f]{{16}}\.txt)"
    rf"(?: has all (\d+) lines \(([^()]{{1,40}})\): use {READ} or {SEARCH})?"
)
_QUOTED = "For context:"


def _concealed(content: types.Content) -> types.Content:
    parts = content.parts or []
    answers = any(part.function_response for part in parts)
    quotes = any((part.text or "").startswith(_QUOTED) for part in parts)
    if content.role == "user" and not answers and not quotes:
        return content
    made = [_without_addresses(part) for part in parts]
    same = all(one is other for one, other in zip(made, parts, strict=True))
    return content if same else types.Content(role=content.role, parts=made)


def _without_addresses(part: types.Part) -> types.Part:
    if part.text is not None and SCHEME in part.text:
        text = _OURS.sub(_described, part.text)
        return part if text == part.text else part.model_copy(update={"text": text})
    answer = part.function_response
    if answer is None or not answer.response:
        return part
    response: Any = answer.response
    for path, text in list(strings(answer.response)):
        if SCHEME in text:
            response = replaced(response, path, _OURS.sub(_described, text))
    if response is answer.response:
        return part
    return part.model_copy(update={"function_response": answer.model_copy(update={"response": response})})


def _described(found: re.Match[str]) -> str:
    lines, size = found.groups()
    return f"{lines} lines ({size}) that are not all shown" if lines else "what is not shown here"


_NOTES = {
    "literal": "{matches} of {total} lines hold the query",
    "words": "no line holds the query as it is; {matches} of {total} hold its words",
    "ranked": "none of {total} lines holds the query as it is; these come nearest",
}


def _named(found: Excerpt) -> str:
    return str(found.start + 1) if found.stop - found.start == 1 else f"{found.start + 1}-{found.stop}"


def _number(value: object, otherwise: int) -> int:
    """What a model gave for a whole number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return otherwise
    try:
        return int(float(value))
    except (ValueError, OverflowError):
        return otherwise


def _text_of(part: types.Part | None) -> str | None:
    """The text of an artifact, None where it has none."""
    if part is None:
        return None
    if part.text is not None:
        return part.text
    if part.inline_data is None or part.inline_data.data is None:
        return None
    try:
        return part.inline_data.data.decode()
    except UnicodeDecodeError:
        return None


_URI = {"type": "string", "description": "Address of the artifact, as a result shows it: artifact://…"}
_READ_DECLARATION = types.FunctionDeclaration(
    name=READ,
    description="Reads lines of a tool result or file that is shown only in part. Shows an image or document.",
    parameters_json_schema={
        "type": "object",
        "properties": {
            "uri": _URI,
            "start_line": {"type": "integer", "description": "First line, from 1; -50 is the 50th from the end."},
            "max_lines": {"type": "integer", "description": f"How many lines; {_USUAL_LINES} where it is left out."},
        },
        "required": ["uri"],
    },
)
_SEARCH_DECLARATION = types.FunctionDeclaration(
    name=SEARCH,
    description="Finds lines in a tool result or file that is shown only in part, by exact words or by meaning.",
    parameters_json_schema={
        "type": "object",
        "properties": {
            "uri": _URI,
            "query": {"type": "string", "description": "An identifier or words as they stand there, or a question."},
        },
        "required": ["uri", "query"],
    },
)
