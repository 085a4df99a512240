"""Tool results on their way into a session: the whole to the store, an extract to the model, and the address of both.

Media go to the store by their content, and a mark with their address stays. A result that differs from the last one of
an equal call names the address of that.

A result whose whole could not be stored stays as it is: no address is shown that leads nowhere.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from cachetools import LRUCache
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.computer_use.computer_use_tool import ComputerUseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.call import ESSENTIAL, ESSENTIAL_MARK, SessionKey, session_key, time_of, words_of
from aether_context.adk.services.recorder import Recorder
from aether_context.adk.session.records import SessionRecords, put_record
from aether_context.canonical import canonical_json, hash_bytes, plain, replaced
from aether_context.errors import StoreError
from aether_context.evidence import EvidenceRecord, Offloaded, check_rules, evidence_uri, offload
from aether_context.evidence.extracts import tokens_of
from aether_context.evidence.lines import MEDIA_TYPES, is_text
from aether_context.evidence.media import Medium, mark, media_in, typed
from aether_context.evidence.offload import digest_of, free_key, gist, superseding
from aether_context.evidence.record import READ, SEARCH, arguments_hash
from aether_context.policy import PackPolicy
from aether_context.store import PackStore
from aether_context.tokens import counter_for, family_of, media_tokens

MEDIA_KEY = "media"
"""The key of a response under which what stands for media is listed that a tool hands to ADK as parts."""
STORE_SECONDS = 5.0
_QUOTED = "` tool returned result:\n"
"""How ADK shows an agent the result of another agent's tool."""
_DEEPEST = 50
_GONE = object()
_INSTANT_CHARACTERS = 200_000
_ASKED_CHARACTERS = 400
_MOST_SHOWN = 512
_MOST_PROBLEMS = 20

_T = TypeVar("_T")


class Offloader:
    """The offload of one plugin. Nothing of a session's is edited: what is returned is new.

    Raises:
        PolicyError: a rule of the policy names an extractor that is not registered.
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
        if self._settings.mode == "off" or tool.name in ESSENTIAL or ESSENTIAL_MARK in (tool.custom_metadata or ()):
            return None
        if (tool.is_long_running and not result) or isinstance(tool, ComputerUseTool):
            return None
        if context.actions.skip_summarization or context.get_invocation_context().live_request_queue is not None:
            return None
        given = plain(dict(arguments))
        query = "\n".join(text[:_ASKED_CHARACTERS] for text in (words_of(context.user_content), canonical_json(given)))
        origin = {
            "source": tool.name,
            "arguments": arguments_hash(given),
            "agent": context.agent_name,
            "invocation": context.invocation_id,
            "step": self._step_of(context),
            "time": time_of(context),
        }
        response, parts = split(result)
        inside = await _off_the_loop(response, lambda: list(media_in(response)))
        marks = [
            await self._marked(medium, context, {**origin, "piece": piece}) if medium is not None else ""
            for piece, medium in enumerate([*map(medium_of, parts), *inside], start=1)
        ]
        for medium, text in zip(inside, marks[len(parts) :], strict=True):
            response = replaced(response, medium.path, text) if text else response
        is_changed = any(marks)
        if _is_json(response):
            found = await _off_the_loop(
                response, lambda: offload(response, tool.name, self._settings, counter=self._counter, query=query)
            )
            is_whole = found.form == "verbatim"
            record = EvidenceRecord(
                **origin,
                uri=found.uri,
                digest=found.digest,
                size_bytes=len(found.data),
                lines=found.lines,
                tokens=found.tokens,
                media_type=found.media_type,
                form=found.form,
                query="" if is_whole else query,
                summary="" if is_whole else gist(found, counter=self._counter, query=query),
            )
            earlier = await self._keep(context, record, found.data)
            if earlier is not None:
                response, is_changed = superseding(found.response, earlier), True
        if self._settings.mode == "request" or not is_changed:
            return None
        return joined(response, [text or part for text, part in zip(marks, parts, strict=False)])

    async def _marked(self, medium: Medium, context: ToolContext, origin: Mapping[str, Any]) -> str:
        """What stands in the place of a medium that went to the store; empty where the medium itself stays."""
        # What stands in JSON is sent as it is written there.
        is_written = bool(medium.path)
        tokens = tokens_of(medium.written, self._counter) if is_written else medium_tokens(medium, model_of(context))
        rule = self._settings.tools.get(origin["source"], "threshold")
        stays = rule == "never" or (rule != "always" and tokens <= self._settings.threshold_tokens)
        digest = hash_bytes(medium.data)
        record = EvidenceRecord(
            **origin,
            uri=evidence_uri(digest, MEDIA_TYPES["text" if is_text(medium.media_type) else "data"][1]),
            digest=digest,
            size_bytes=len(medium.data),
            tokens=tokens,
            media_type=medium.media_type,
            form="verbatim" if stays else "described",
        )
        earlier = await self._keep(context, record, medium.data)
        return "" if earlier is None else mark(record, earlier)

    async def _keep(self, context: ToolContext, record: EvidenceRecord, data: bytes) -> str | None:
        """Puts evidence into the store and its record into the session's state.

        Gives the address of what it supersedes, empty where that is nothing; None where the result stays as it is.
        """
        scope = session_key(context)
        if record.form == "verbatim":
            if self._records_all:
                self._recorder.evidence(scope, record, data)
            return None
        try:
            await asyncio.wait_for(asyncio.to_thread(self._store.write_evidence, *scope, record, data), STORE_SECONDS)
        except (StoreError, TimeoutError) as error:
            reason = f"a result of {record.source} was not offloaded: {type(error).__name__}"
            problems = self._problems.setdefault(scope, [])
            if len(problems) < _MOST_PROBLEMS:
                problems.append(reason)
            self._report(reason, error)
            return None
        earlier = self._records.of(context).latest(record.call)
        put_record(context, record)
        return earlier.uri if earlier is not None and earlier.digest != record.digest else ""

    def take_problems(self, scope: SessionKey) -> tuple[str, ...]:
        """What went wrong in a session since this was asked last."""
        return tuple(self._problems.pop(scope, ()))

    def show(self, context: CallbackContext, request: LlmRequest) -> None:
        """Puts extracts into a request where the session's history holds the results themselves.

        Which results, and what is shown of them, follows from the history and the records in the session's state.
        """
        records = self._records.of(context).by_digits().values() if self._settings.mode == "request" else ()
        if not records:
            return
        known = _Known(records)

        def shown(part: types.Part) -> types.Part:
            answer = self._shown_of(part.function_response, known) if part.function_response is not None else None
            return part if answer is None else part.model_copy(update={"function_response": answer})

        request.contents = [with_parts(content, shown) for content in request.contents]
        if not any(_QUOTED in (part.text or "") for content in request.contents for part in content.parts or ()):
            return
        known = _Known(records)
        quotes: list[tuple[str, str]] = []
        for event in context.session.events:
            for response in event.get_function_responses():
                answer = self._shown_of(response, known)
                if answer is not None and answer.response != response.response:
                    quotes.append((str(response.response), str(answer.response)))

        def requoted(part: types.Part) -> types.Part:
            if part.text is None or _QUOTED not in part.text:
                return part
            text = part.text
            for before, after in quotes:
                text = text.replace(before, after)
            return part if text == part.text else part.model_copy(update={"text": text})

        request.contents = [with_parts(content, requoted) for content in request.contents]

    def _shown_of(self, answer: types.FunctionResponse, known: _Known) -> types.FunctionResponse | None:
        """A response with marks and extracts in the place of what is in the store; None where it stays as it is."""
        name = answer.name or ""
        if name in (READ, SEARCH):
            return None
        before: dict[str, Any] = answer.response or {}
        response, marks = before, []
        left = list(answer.parts or ())
        if known.has_media:
            rest, parts = split(before)
            marks = [known.mark_of(medium_of(part)) for part in parts]
            if all(marks):
                response = rest
            else:
                marks = []
            for medium in list(media_in(response)):
                text = known.mark_of(medium)
                response = replaced(response, medium.path, text) if text else response
            of_parts = [known.mark_of(medium_of(part)) for part in left]
            marks += [text for text in of_parts if text]
            left = [part for part, text in zip(left, of_parts, strict=True) if not text]
        extract = self._extract(name, response, known) if response and name in known.sources else None
        if extract is None and response is before and not marks:
            return None
        return answer.model_copy(update={"response": joined(extract or response, marks), "parts": left or None})

    def _extract(self, tool: str, response: Mapping[str, Any], known: _Known) -> Mapping[str, Any] | None:
        """What is shown of a response, None where that is the response itself."""
        record = known.by_digest.get(digest_of(response)) if _is_json(response) else None
        if record is None:
            return None
        key = (tool, canonical_json(response), record.query)
        with self._lock:
            found = self._shown.get(key)
        if found is None:
            found = offload(response, tool, self._settings, counter=self._counter, query=record.query)
            with self._lock:
                self._shown[key] = found
        return superseding(found.response, known.earlier(record)) if found.form != "verbatim" else None


class _Known:
    """What a session knows of its evidence, while its history is gone through from its beginning.

    Which earlier answer a later one supersedes follows from their order there, so that it stays as it was when the
    history grows.
    """

    def __init__(self, records: Collection[EvidenceRecord]) -> None:
        self.by_digest = {record.digest: record for record in records}
        self.sources = {record.source for record in records}
        self.has_media = any(record.piece for record in records)
        self._last: dict[str, EvidenceRecord] = {}

    def earlier(self, record: EvidenceRecord) -> str:
        """The address of the last answer to the same call, where this one differs; empty where there is none."""
        last = self._last.get(record.call)
        self._last[record.call] = record
        return last.uri if last is not None and last.digest != record.digest else ""

    def mark_of(self, medium: Medium | None) -> str:
        """What stands in the place of a medium; empty where it stays."""
        record = self.by_digest.get(hash_bytes(medium.data)) if medium is not None else None
        return mark(record, self.earlier(record)) if record is not None and record.form == "described" else ""


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
    return {**response, free_key(response, MEDIA_KEY): list(media)} if media else dict(response)


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


def medium_tokens(medium: Medium, model: str) -> int:
    """Tokens that a medium takes which ADK sends beside a response."""
    size = len(medium.data)
    return media_tokens(medium.media_type, size, family=family_of(model), model=model, data=medium.data)


def with_parts(content: types.Content, change: Callable[[types.Part], types.Part]) -> types.Content:
    """A content with other parts; itself where none is another. What ADK hands in is the session's own."""
    before = content.parts or []
    after = [change(part) for part in before]
    if all(new is old for new, old in zip(after, before, strict=True)):
        return content
    return types.Content(role=content.role, parts=after)


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
        items = {key: _without(item, found, depth + 1) for key, item in value.items()}
        rest: Any = {key: item for key, item in items.items() if item is not _GONE}
    else:
        rest = [kept for item in value if (kept := _without(item, found, depth + 1)) is not _GONE]
    if len(found) == before:
        return value
    return rest or _GONE


def _is_media(part: types.Part) -> bool:
    """Whether ADK sends a part beside the response: with data or a file's address, and a media type."""
    blob, file = part.inline_data, part.file_data
    has_data = blob is not None and blob.data is not None and blob.mime_type
    return bool(has_data or (file is not None and file.file_uri and file.mime_type))


async def _off_the_loop(response: object, act: Callable[[], _T]) -> _T:
    """What an act gives, off the event loop where a long response would be felt."""
    return act() if _characters(response) <= _INSTANT_CHARACTERS else await asyncio.to_thread(act)


def _characters(value: object) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 8 + sum(map(_characters, items))


def _is_json(value: object, depth: int = 0) -> bool:
    """Whether a value is plain JSON, and not nested too deeply."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return depth <= _DEEPEST and all(isinstance(key, str) and _is_json(value[key], depth + 1) for key in value)
    if isinstance(value, list):
        return depth <= _DEEPEST and all(_is_json(item, depth + 1) for item in value)
    return value is None or isinstance(value, (str, int))
