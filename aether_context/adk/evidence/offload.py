"""Tool results on their way into a session: the whole to the store, an extract to the model, and the address of both.

Media go to the store by their content, and a mark with their address stays. A result that differs from the last one of
an equal call names the address of that.

A result whose whole could not be stored stays as it is: no address is shown that leads nowhere.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cachetools import LRUCache
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.computer_use.computer_use_tool import ComputerUseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.call import ESSENTIAL, ESSENTIAL_MARK, SessionKey, session_key, words_of
from aether_context.adk.services.recorder import Recorder
from aether_context.adk.session.records import SessionRecords, put_record
from aether_context.canonical import canonical_json, hash_bytes, plain, replaced
from aether_context.errors import StoreError
from aether_context.evidence import EvidenceRecord, Offloaded, check_rules, evidence_key, evidence_uri, offload
from aether_context.evidence.extracts import tokens_of
from aether_context.evidence.lines import MEDIA_TYPES, is_text
from aether_context.evidence.media import Medium, mark, media_in, typed
from aether_context.evidence.offload import gist, superseding
from aether_context.evidence.record import READ, SEARCH, arguments_hash
from aether_context.policy import PackPolicy
from aether_context.store import PackStore
from aether_context.tokens import counter_for, family_of, media_tokens

# Media that tools hand to ADK as parts, which it sends beside a response, not in it.

MEDIA_KEY = "media"
"""The key of a response under which what stands for such media is listed."""
_DEEPEST = 50
_GONE = object()


def split(result: object) -> tuple[dict[str, Any], list[types.Part]]:
    """A result as the response that ADK makes of it, and the media taken out of it, in order.

    Objects and lists that held nothing else go as well.
    """
    found: list[types.Part] = []
    rest = _without(result, found, 0)
    rest = {} if rest is _GONE else rest
    return (rest if isinstance(rest, dict) else {"result": rest}), found


def joined(response: Mapping[str, Any], media: Sequence[types.Part | str]) -> dict[str, Any]:
    """A response with media, or what stands for them, beside it: parts are taken out by ADK, texts stay."""
    if not media:
        return dict(response)
    key = MEDIA_KEY
    while key in response:
        key += "_"
    return {**response, key: list(media)}


def medium_of(part: types.Part | types.FunctionResponsePart) -> Medium | None:
    """The bytes of a part; None where it refers to a file elsewhere."""
    blob = part.inline_data
    if blob is None or not blob.data:
        return None
    return Medium(data=blob.data, media_type=typed(blob.mime_type, blob.data))


def model_of(context: CallbackContext) -> str:
    """The name of the model of the agent at work; empty where it has none."""
    agent = context.get_invocation_context().agent
    return agent.canonical_model.model if isinstance(agent, LlmAgent) else ""


def _without(value: object, found: list[types.Part], depth: int) -> Any:
    """A value without media; `_GONE` where nothing else was in it."""
    if isinstance(value, types.Part):
        if not _is_media(value):
            return value
        found.append(value)
        return _GONE
    if depth > _DEEPEST or not isinstance(value, (dict, list, tuple)):
        return value
    before = len(found)
    if isinstance(value, dict):
        items = {key: _without(one, found, depth + 1) for key, one in value.items()}
        rest: Any = {key: one for key, one in items.items() if one is not _GONE}
    else:
        rest = [kept for one in value if (kept := _without(one, found, depth + 1)) is not _GONE]
    if len(found) == before:
        return value
    return rest or _GONE


def _is_media(part: types.Part) -> bool:
    """Whether ADK sends a part beside the response: with data or a file's address, and a media type."""
    blob, file = part.inline_data, part.file_data
    if blob is not None and blob.data is not None and blob.mime_type:
        return True
    return file is not None and bool(file.file_uri) and bool(file.mime_type)


_QUOTED = "` tool returned result:\n"
STORE_SECONDS = 5.0
_INSTANT_CHARACTERS = 200_000
_ASKED_CHARACTERS = 400
_MOST_SHOWN = 512
_MOST_PROBLEMS = 20

_T = TypeVar("_T")


class Offloader:
    """The offload of one plugin. Nothing of a session's is edited: what is returned is new.

    Args:
        policy: its ``offload`` section says what to do.
        store: where the whole results go.
        recorder: writes what nothing waits for.
        records: what sessions know of their evidence.
        report: is told of failures.
        step_of: the key of the step in whose request a tool was called, empty where it is not known.

    Raises:
        PolicyError: a rule names an extractor that is not registered.
    """

    def __init__(
        self,
        policy: PackPolicy,
        store: PackStore,
        recorder: Recorder,
        records: SessionRecords,
        report: Callable[..., None],
        step_of: Callable[[CallbackContext], str],
    ) -> None:
        check_rules(policy.offload.tools.values())
        self._settings = policy.offload
        self._records_all = policy.record == "full"
        self._store = store
        self._recorder = recorder
        self._records = records
        self._report = report
        self._step_of = step_of
        self._counter = counter_for("")
        self._shown: LRUCache[object, Offloaded] = LRUCache(_MOST_SHOWN)
        self._lock = threading.Lock()
        self._problems: dict[SessionKey, list[str]] = {}

    async def after_tool(
        self, tool: BaseTool, arguments: Mapping[str, Any], context: ToolContext, result: object
    ) -> dict[str, Any] | None:
        """What takes the result's place in the session's history; None where it stays."""
        if self._settings.mode == "off" or not self._concerns(tool, context, result):
            return None
        call = _Call(tool=tool.name, arguments=arguments, context=context, step=self._step_of(context))
        response, parts = split(result)
        response, media, is_marked = await self._marked(response, parts, call)
        shown = await self._extracted(response, call) if _is_json(response) else None
        if self._settings.mode == "request" or (shown is None and not is_marked):
            return None
        return joined(response if shown is None else shown, media)

    def show(self, context: CallbackContext, request: LlmRequest) -> None:
        """Puts extracts into a request where the session's history holds the results themselves.

        Which results, and what is shown of them, follows from the history and the records in the session's state.
        """
        if self._settings.mode != "request":
            return
        records = self._records.of(context).by_digits()
        if not records:
            return
        known = _Known(records)
        request.contents = [self._content(content, known) for content in request.contents]
        if any(_quotes(part) for content in request.contents for part in content.parts or ()):
            texts = self._quoted(context, _Known(records))
            request.contents = [_requoted(content, texts) for content in request.contents]

    def take_problems(self, scope: SessionKey) -> tuple[str, ...]:
        """What went wrong in a session since this was asked last."""
        return tuple(self._problems.pop(scope, ()))

    # one result

    def _concerns(self, tool: BaseTool, context: ToolContext, result: object) -> bool:
        marks = tool.custom_metadata or ()
        if tool.name in ESSENTIAL or ESSENTIAL_MARK in marks or context.actions.skip_summarization:
            return False
        if (tool.is_long_running and not result) or isinstance(tool, ComputerUseTool):
            return False
        return context.get_invocation_context().live_request_queue is None

    async def _marked(
        self, response: dict[str, Any], parts: Sequence[types.Part], call: _Call
    ) -> tuple[dict[str, Any], list[types.Part | str], bool]:
        """A response and its media with marks in the place of those that went to the store, and whether any did."""
        model = model_of(call.context)
        media: list[types.Part | str] = []
        for part in parts:
            medium = medium_of(part)
            marked = ""
            if medium is not None:
                size, family = len(medium.data), family_of(model)
                tokens = media_tokens(medium.media_type, size, family=family, model=model, data=medium.data)
                marked = await self._kept(medium, tokens, len(media) + 1, call)
            media.append(marked or part)
        inside = await self._at_once(response, lambda: list(media_in(response)))
        marks: list[str] = []
        for medium in inside:
            number = len(parts) + len(marks) + 1
            marks.append(await self._kept(medium, tokens_of(medium.written, self._counter), number, call))
            if marks[-1]:
                response = replaced(response, medium.path, marks[-1])
        return response, media, any(marks) or any(isinstance(one, str) for one in media)

    async def _kept(self, medium: Medium, tokens: int, number: int, call: _Call) -> str:
        """Puts a medium into the store, by its content; the mark of it, empty where the medium itself stays."""
        rule = self._settings.tools.get(call.tool, "threshold")
        stays = rule == "never" or (rule != "always" and tokens <= self._settings.threshold_tokens)
        record = call.record(
            *_address(medium),
            size_bytes=len(medium.data),
            tokens=tokens,
            media_type=medium.media_type,
            piece=number,
            form="verbatim" if stays else "described",
        )
        if stays:
            if self._records_all:
                self._recorder.evidence(session_key(call.context), record, medium.data)
            return ""
        if not await self._stored(session_key(call.context), record, medium.data):
            return ""
        return mark(record, self._noted(call.context, record))

    async def _extracted(self, response: Mapping[str, Any], call: _Call) -> Mapping[str, Any] | None:
        """What is read in the place of a response, which then is in the store; None where it stays."""
        query = _asked(call.context, call.arguments)
        found = await self._at_once(
            response, lambda: offload(response, call.tool, self._settings, counter=self._counter, query=query)
        )
        record = call.record(
            found.uri,
            found.digest,
            size_bytes=len(found.data),
            lines=found.lines,
            tokens=found.tokens,
            media_type=found.media_type,
            form=found.form,
            query="" if found.form == "verbatim" else query,
            summary="" if found.form == "verbatim" else gist(found, counter=self._counter, query=query),
        )
        scope = session_key(call.context)
        if found.form == "verbatim":
            if self._records_all:
                self._recorder.evidence(scope, record, found.data)
            return None
        if not await self._stored(scope, record, found.data):
            return None
        return superseding(found.response, self._noted(call.context, record))

    def _noted(self, context: ToolContext, record: EvidenceRecord) -> str:
        """Puts a record into the session's state; the address of what it supersedes, empty where that is nothing."""
        before = self._records.of(context).latest(record.call)
        put_record(context, record)
        return before.uri if before is not None and before.digest != record.digest else ""

    async def _at_once(self, response: Mapping[str, Any], act: Callable[[], _T]) -> _T:
        """What an act gives, off the event loop where it would be felt."""
        return act() if _characters(response) <= _INSTANT_CHARACTERS else await asyncio.to_thread(act)

    async def _stored(self, scope: SessionKey, record: EvidenceRecord, data: bytes) -> bool:
        try:
            await asyncio.wait_for(asyncio.to_thread(self._store.write_evidence, *scope, record, data), STORE_SECONDS)
        except (StoreError, TimeoutError) as error:
            reason = f"a result of {record.source} was not offloaded: {type(error).__name__}"
            told = self._problems.setdefault(scope, [])
            if len(told) < _MOST_PROBLEMS:
                told.append(reason)
            self._report(reason, error)
            return False
        return True

    # results in a request

    def _content(self, content: types.Content, known: _Known) -> types.Content:
        parts: list[types.Part] = []
        changed = False
        for part in content.parts or ():
            answer = part.function_response
            shown = self._shown_of(answer, known) if answer is not None else None
            changed = changed or shown is not None
            parts.append(part if shown is None else part.model_copy(update={"function_response": shown}))
        return types.Content(role=content.role, parts=parts) if changed else content

    def _quoted(self, context: CallbackContext, known: _Known) -> list[tuple[str, str]]:
        """How ADK quotes the results of this session to other agents, and what is quoted in their place."""
        texts: list[tuple[str, str]] = []
        for event in context.session.events:
            for answer in event.get_function_responses():
                shown = self._shown_of(answer, known)
                if shown is not None and shown.response != answer.response:
                    texts.append((str(answer.response), str(shown.response)))
        return texts

    def _shown_of(self, held: types.FunctionResponse, known: _Known) -> types.FunctionResponse | None:
        """A response with marks and extracts in the place of what is in the store; None where it stays as it is."""
        name = held.name or ""
        if name in (READ, SEARCH):
            return None
        before: dict[str, Any] = held.response or {}
        response, marks = known.marked(before)
        left: list[types.FunctionResponsePart] = []
        for part in held.parts or ():
            said = known.mark_of(medium_of(part))
            if said:
                marks.append(said)
            else:
                left.append(part)
        found = self._found(name, response, known) if response else None
        if found is None and response is before and not marks:
            return None
        shown = joined(found if found is not None else response, marks)
        return held.model_copy(update={"response": shown, "parts": left or None})

    def _found(self, tool: str, response: Mapping[str, Any], known: _Known) -> Mapping[str, Any] | None:
        """What is shown of a response, None where that is the response itself."""
        if tool not in known.sources or not _is_json(response):
            return None
        text = canonical_json(response)
        plain = self._shown_as(response, tool, text, "")
        record = known.record(plain.uri, plain.digest)
        if record is None:
            return None
        shown = self._shown_as(response, tool, text, record.query)
        return superseding(shown.response, known.earlier(record)) if shown.form != "verbatim" else None

    def _shown_as(self, response: Mapping[str, Any], tool: str, text: str, query: str) -> Offloaded:
        key = (tool, text, query)
        with self._lock:
            shown = self._shown.get(key)
        if shown is None:
            shown = offload(response, tool, self._settings, counter=self._counter, query=query)
            with self._lock:
                self._shown[key] = shown
        return shown


class _Known:
    """What a session knows of its evidence, while its history is gone through from its beginning.

    Which earlier answer a later one supersedes follows from their order there, so that it stays as it was when the
    history grows.
    """

    def __init__(self, records: Mapping[str, EvidenceRecord]) -> None:
        self._records = records
        self._last: dict[str, EvidenceRecord] = {}
        self._has_media = any(record.piece for record in records.values())
        self.sources = {record.source for record in records.values()}

    def record(self, uri: str, digest: str) -> EvidenceRecord | None:
        """The record of what an address and a hash name together."""
        found = self._records.get(evidence_key(uri) or "")
        return found if found is not None and found.digest == digest else None

    def earlier(self, record: EvidenceRecord) -> str:
        """The address of the last answer to the same call, where this one differs; empty where there is none."""
        last = self._last.get(record.call)
        self._last[record.call] = record
        return last.uri if last is not None and last.digest != record.digest else ""

    def mark_of(self, medium: Medium | None) -> str:
        """What stands in the place of a medium; empty where it stays."""
        if medium is None or not self._has_media:
            return ""
        record = self.record(*_address(medium))
        return mark(record, self.earlier(record)) if record is not None and record.form == "described" else ""

    def marked(self, response: dict[str, Any]) -> tuple[dict[str, Any], list[types.Part | str]]:
        """A response with marks in the place of media in it, and the marks of parts that ADK left in it.

        The response itself where there are none.
        """
        if not self._has_media:
            return response, []
        rest, parts = split(response)
        marks: list[types.Part | str] = [self.mark_of(medium_of(part)) for part in parts]
        if marks and all(marks):
            response = rest
        else:
            marks = []
        for medium in list(media_in(response)):
            said = self.mark_of(medium)
            response = replaced(response, medium.path, said) if said else response
        return response, marks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of a tool, and what is known of all that it gave."""

    tool: str
    arguments: Mapping[str, Any]
    context: ToolContext
    step: str = ""

    def record(self, uri: str, digest: str, **of: Any) -> EvidenceRecord:
        events = self.context.session.events
        return EvidenceRecord(
            uri=uri,
            digest=digest,
            source=self.tool,
            arguments=arguments_hash(plain(dict(self.arguments))),
            agent=self.context.agent_name,
            invocation=self.context.invocation_id,
            step=self.step,
            time=events[-1].timestamp if events else None,
            **of,
        )


def _address(medium: Medium) -> tuple[str, str]:
    """The address and the hash of a medium."""
    digest = hash_bytes(medium.data)
    return evidence_uri(digest, MEDIA_TYPES["text" if is_text(medium.media_type) else "data"][1]), digest


def _quotes(part: types.Part) -> bool:
    """Whether a part is how ADK shows an agent the result of another agent's tool."""
    return part.text is not None and _QUOTED in part.text


def _requoted(content: types.Content, texts: Sequence[tuple[str, str]]) -> types.Content:
    """A content with other texts in the place of quoted ones."""
    if not any(_quotes(part) for part in content.parts or ()):
        return content
    parts = []
    for part in content.parts or ():
        text = part.text or ""
        for before, after in texts if _quotes(part) else ():
            text = text.replace(before, after)
        parts.append(part if text == (part.text or "") else part.model_copy(update={"text": text}))
    return types.Content(role=content.role, parts=parts)


def _asked(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    """The user's request and the call's arguments, each cut short."""
    pieces = (words_of(context.user_content), canonical_json(plain(dict(arguments))))
    return "\n".join(piece[:_ASKED_CHARACTERS] for piece in pieces)


def _characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    if isinstance(value, bytes):
        return len(value)
    return sum(map(_characters, value)) if isinstance(value, list) else 8


def _is_json(value: object, depth: int = 0) -> bool:
    """Whether a value is plain JSON."""
    if value is None or isinstance(value, (str, bool, int)):
        return True
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if depth > _DEEPEST:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(one, depth + 1) for key, one in value.items())
    return isinstance(value, list) and all(_is_json(one, depth + 1) for one in value)
