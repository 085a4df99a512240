"""Tool results on their way into a session: the whole to the store, an extract to the model, and the address of both.

    aether:evidence:{digits}      what is known of a result that is not shown whole, by the digits of its address

A result whose whole could not be stored stays as it is: no address is shown that leads nowhere.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import ValidationError

from aether_context.adk.bounded import keep
from aether_context.adk.reading import ESSENTIAL, ESSENTIAL_MARK
from aether_context.adk.recorder import Recorder
from aether_context.canonical import canonical_json, plain
from aether_context.errors import StoreError
from aether_context.evidence import EvidenceRecord, Offloaded, check_rules, evidence_key, offload, superseded
from aether_context.evidence.record import arguments_hash
from aether_context.policy import PackPolicy
from aether_context.store import PackStore
from aether_context.tokens import counter_for

_STATE = "aether:evidence:"
_QUOTED = "` tool returned result:\n"
STORE_SECONDS = 5.0
_INSTANT_CHARACTERS = 200_000
_ASKED_CHARACTERS = 400
_MOST_SHOWN = 512
_MOST_PROBLEMS = 20

Scope = tuple[str, str, str]
"""App, user, session."""


class Offloader:
    """The offload of one plugin. Nothing of a session's is edited: what is returned is new.

    Args:
        policy: its ``offload`` section says what to do.
        store: where the whole results go.
        recorder: writes what nothing waits for.
        tell: is told of failures.

    Raises:
        PolicyError: a rule names an extractor that is not registered.
    """

    def __init__(self, policy: PackPolicy, store: PackStore, recorder: Recorder, tell: Callable[..., None]) -> None:
        check_rules(policy.offload.tools.values())
        self._settings = policy.offload
        self._records_all = policy.record == "full"
        self._store = store
        self._recorder = recorder
        self._tell = tell
        self._counter = counter_for("")
        self._shown: OrderedDict[object, Offloaded] = OrderedDict()
        self._problems: OrderedDict[Scope, list[str]] = OrderedDict()

    async def after_tool(
        self, tool: BaseTool, arguments: Mapping[str, Any], context: ToolContext, result: object
    ) -> dict[str, Any] | None:
        """What takes the result's place in the session's history; None where it stays."""
        if self._settings.mode == "off" or not self._concerns(tool, context, result):
            return None
        response = result if isinstance(result, dict) else {"result": result}
        if not _is_json(response):
            return None
        query = _asked(context, arguments)
        found = await self._offloaded(response, tool.name, query)
        record = _record(found, tool.name, arguments, context, query)
        scope = session_of(context)
        if found.form == "verbatim":
            if self._records_all:
                self._recorder.evidence(scope, record, found.data)
            return None
        if not await self._stored(scope, record, found.data):
            return None
        put_record(context, record)
        return dict(found.response) if self._settings.mode == "session" else None

    def show(self, context: CallbackContext, request: LlmRequest) -> None:
        """Puts extracts into a request where the session's history holds the results themselves.

        Which results, and what is shown of them, follows from the history and the records in the session's state.
        """
        if self._settings.mode != "request":
            return
        records = state_records(context.session.state)
        if not records:
            return
        request.contents = [self._content(content, records) for content in request.contents]
        if any(_quotes(part) for content in request.contents for part in content.parts or ()):
            texts = self._quoted(context, records)
            request.contents = [_requoted(content, texts) for content in request.contents]

    def take_problems(self, scope: Scope) -> tuple[str, ...]:
        """What went wrong in a session since this was asked last."""
        return tuple(self._problems.pop(scope, ()))

    # one result

    def _concerns(self, tool: BaseTool, context: ToolContext, result: object) -> bool:
        marks = tool.custom_metadata or ()
        if tool.name in ESSENTIAL or ESSENTIAL_MARK in marks or context.actions.skip_summarization:
            return False
        if tool.is_long_running and not result:
            return False
        return context.get_invocation_context().live_request_queue is None

    async def _offloaded(self, response: Mapping[str, Any], tool: str, query: str) -> Offloaded:
        """The offload, off the event loop where it would be felt."""
        if _characters(response) <= _INSTANT_CHARACTERS:
            return offload(response, tool, self._settings, counter=self._counter, query=query)
        return await asyncio.to_thread(offload, response, tool, self._settings, counter=self._counter, query=query)

    async def _stored(self, scope: Scope, record: EvidenceRecord, data: bytes) -> bool:
        try:
            await asyncio.wait_for(asyncio.to_thread(self._store.write_evidence, *scope, record, data), STORE_SECONDS)
        except (StoreError, TimeoutError) as error:
            reason = f"a result of {record.source} was not offloaded: {type(error).__name__}"
            told = self._problems.setdefault(scope, [])
            if len(told) < _MOST_PROBLEMS:
                told.append(reason)
            self._tell(reason, error)
            return False
        return True

    # results in a request

    def _content(self, content: types.Content, records: Mapping[str, EvidenceRecord]) -> types.Content:
        parts = [self._part(part, records) for part in content.parts or ()]
        if all(one is other for one, other in zip(parts, content.parts or (), strict=True)):
            return content
        return types.Content(role=content.role, parts=parts)

    def _quoted(self, context: CallbackContext, records: Mapping[str, EvidenceRecord]) -> list[tuple[str, str]]:
        """How ADK quotes the results of this session to other agents, and what is quoted in their place."""
        texts: list[tuple[str, str]] = []
        for event in context.session.events:
            for held in event.get_function_responses():
                found = self._found(held.name or "", held.response, records) if held.response else None
                if found is not None:
                    texts.append((str(held.response), str(dict(found.response))))
        return texts

    def _part(self, part: types.Part, records: Mapping[str, EvidenceRecord]) -> types.Part:
        held = part.function_response
        if held is None or not held.response:
            return part
        found = self._found(held.name or "", held.response, records)
        if found is None:
            return part
        shown = held.model_copy(update={"response": dict(found.response)})
        return part.model_copy(update={"function_response": shown})

    def _found(self, tool: str, response: Mapping[str, Any], records: Mapping[str, EvidenceRecord]) -> Offloaded | None:
        """What is shown of a response, None where that is the response itself."""
        if not any(one.source == tool for one in records.values()) or not _is_json(response):
            return None
        text = canonical_json(response)
        found = self._shown.get((tool, text))
        if found is None:
            found = offload(response, tool, self._settings, counter=self._counter)
            keep(self._shown, (tool, text), found, _MOST_SHOWN)
        record = records.get(evidence_key(found.uri) or "")
        if record is None or record.digest != found.digest:
            return None
        key = (tool, text, record.query)
        if key not in self._shown:
            again = offload(response, tool, self._settings, counter=self._counter, query=record.query)
            keep(self._shown, key, again, _MOST_SHOWN)
        return self._shown[key] if self._shown[key].form != "verbatim" else None


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


def state_records(state: Mapping[str, Any]) -> dict[str, EvidenceRecord]:
    """The records in a session's state, by the digits of their addresses."""
    found = {key.removeprefix(_STATE): read_record(held) for key, held in state.items() if key.startswith(_STATE)}
    return {key: record for key, record in found.items() if record is not None}


def state_record(state: Mapping[str, Any], digits: str) -> EvidenceRecord | None:
    """The record of an address in a session's state; None where the session has none."""
    return read_record(state.get(f"{_STATE}{digits}"))


def put_record(context: CallbackContext, record: EvidenceRecord) -> None:
    """Writes what is known of evidence into a session's state; of equal bytes what came first stands.

    An equal call's time is that of its last answer, and a tool's result comes before what was kept by hand, since
    extracts in a request are found by their tool.
    """
    key = f"{_STATE}{evidence_key(record.uri)}"
    held = read_record(context.session.state.get(key))
    kept = record
    if held is not None and (held.arguments or not record.arguments):
        kept = held.model_copy(update={"time": record.time}) if held.call == record.call else held
    if kept != held:
        context.state[key] = kept.model_dump(mode="json", exclude_defaults=True)


def readings(state: Mapping[str, Any]) -> dict[str, str]:
    """The addresses in a session's state, each with that of a later reading that differs, empty where there is none."""
    records = sorted(state_records(state).values(), key=lambda one: (one.time or 0.0, one.uri))
    later = superseded(records)
    return {record.uri: later.get(record.uri, "") for record in records}


def read_record(held: object) -> EvidenceRecord | None:
    if not isinstance(held, Mapping):
        return None
    try:
        return EvidenceRecord.model_validate(held)
    except ValidationError:
        return None


def session_of(context: CallbackContext) -> Scope:
    """Whose session it is."""
    session = context.session
    return session.app_name, session.user_id, session.id


def _asked(context: ToolContext, arguments: Mapping[str, Any]) -> str:
    """The user's request and the call's arguments, each cut short."""
    said = " ".join(
        part.text for part in (context.user_content.parts if context.user_content else None) or () if part.text
    )
    return f"{said[:_ASKED_CHARACTERS]}\n{canonical_json(plain(dict(arguments)))[:_ASKED_CHARACTERS]}"


def _record(
    found: Offloaded, tool: str, arguments: Mapping[str, Any], context: ToolContext, query: str
) -> EvidenceRecord:
    events = context.session.events
    return EvidenceRecord(
        uri=found.uri,
        digest=found.digest,
        size_bytes=len(found.data),
        lines=found.lines,
        tokens=found.tokens,
        media_type=found.media_type,
        source=tool,
        arguments=arguments_hash(plain(dict(arguments))),
        agent=context.agent_name,
        invocation=context.invocation_id,
        time=events[-1].timestamp if events else None,
        form=found.form,
        query="" if found.form == "verbatim" else query,
    )


def _characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list) else 8


def _is_json(value: object, depth: int = 0) -> bool:
    """Whether a value is plain JSON, with nothing in it that ADK makes media of."""
    if value is None or isinstance(value, (str, bool, int)):
        return True
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    if depth > 50:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(one, depth + 1) for key, one in value.items())
    return isinstance(value, list) and all(_is_json(one, depth + 1) for one in value)
