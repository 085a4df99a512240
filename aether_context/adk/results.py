"""Tool results as ADK hands them over and sessions keep them: JSON, with media beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.genai import types

from aether_context.adk.call import ModelCall
from aether_context.adk.request.reader import stored
from aether_context.canonical import is_writable
from aether_context.evidence.media import Medium, typed
from aether_context.evidence.offload import free_key
from aether_context.pack import noted
from aether_context.tokens import family_of, media_tokens

MEDIA_KEY = "media"
"""The key of a response under which what stands for media is listed that a tool hands to ADK as parts."""
_FRAMEWORK = "adk_request_"
"""How the names begin of what ADK itself asks a person for: consent, credentials, input."""
_DEEPEST = 50
_NO_VALUE = object()
_SCALARS = frozenset({str, int, float, bool, type(None)})


class ToolResult(NamedTuple):
    """The result of a tool, with the call that asked for it, by whom, and when."""

    tool: str
    arguments: Mapping[str, Any]
    response: Mapping[str, Any]
    parts: Sequence[types.Part | types.FunctionResponsePart]
    agent: str
    invocation: str
    time: float | None


def unread_results(call: ModelCall) -> list[ToolResult]:
    """The results of tools since an agent's last answer, the oldest first, as the session has them now.

    The event of an answer names the pack that was made for it, beside what its call wrote into the session's state. So
    another process goes on from there, and what was lost with a call that failed is found again. Of other agents'
    results there are those that these agents have not come to.
    """
    events, branch, last = call.context.session.events, call.key[3], call.last
    until, asking = (last.pack.identity.last_event_id, last.pack.identity.invocation) if last is not None else ("", "")
    own_key = (call.context.agent_name, branch)
    answered: dict[tuple[str, str], int] = {}
    """Where the last answers of agents stand."""
    has_spoken, at = False, len(events)
    places: list[int] = []
    while at and own_key not in answered:
        at -= 1
        event = events[at]
        if rewound := event.actions.rewind_before_invocation_id:
            at = next((position for position in range(at) if events[position].invocation_id == rewound), at)
            continue
        if has_spoken and event.id == until:  # other callbacks can keep an answer from naming its pack
            break
        by = (event.author, event.branch or "")
        if "pack_id" in noted(event):
            answered.setdefault(by, at)
        elif event.content is not None and event.content.role == "model":
            # What a callback says in the agent's place, in a later run, answers nothing that a failed call looked at.
            has_spoken = has_spoken or (by == own_key and event.invocation_id == asking)
        elif not event.actions.skip_summarization and (not branch or f"{branch}.".startswith(f"{by[1] or branch}.")):
            places.append(at)
    results: list[ToolResult] = []
    for at in reversed(places):
        for answer in events[at].get_function_responses():
            event, requested = _call_event(events, at, answer.id)
            name, by = answer.name or "", (event.author, event.branch or "")
            if requested is not None and answered.get(by, -1) < at and not name.startswith(_FRAMEWORK):
                response, inside = split(answer.response or {})
                parts = [*inside, *(answer.parts or ())]
                who = (event.author, events[at].invocation_id, event.timestamp)
                results.append(ToolResult(name, requested.args or {}, response, parts, *who))
    return results


def _call_event(events: Sequence[Event], at: int, name: str | None) -> tuple[Event, types.FunctionCall | None]:
    """The event of the call that an answer is to, and the call; None where the session has none by its id before it."""
    for position in range(at - 1, -1, -1) if name else ():
        for call in events[position].get_function_calls():
            if call.id == name:
                return events[position], call
    return events[at], None


def split(result: object) -> tuple[dict[str, Any], list[types.Part]]:
    """A result as the response that ADK makes of it, and the media taken out of it, in order.

    Objects and lists that held nothing else go as well.
    """
    parts: list[types.Part] = []
    plain_result = _without(result, parts, 0)
    plain_result = {} if plain_result is _NO_VALUE else plain_result
    return (plain_result if isinstance(plain_result, dict) else {"result": plain_result}), parts


def joined(response: Mapping[str, Any], media: Sequence[object]) -> dict[str, Any]:
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
    from google.adk.agents import LlmAgent

    agent = context.get_invocation_context().agent
    return agent.canonical_model.model if isinstance(agent, LlmAgent) else ""


def medium_tokens(medium: Medium, model: str) -> int:
    """Tokens that a medium takes which ADK sends beside a response."""
    size = len(medium.data)
    return media_tokens(medium.media_type, size, family=family_of(model), model=model, data=medium.data)


def with_parts(content: types.Content, change: Callable[[types.Part], types.Part]) -> types.Content:
    """A content with other parts; itself where none is another. What ADK hands in is the session's own."""
    host_parts = content.parts or []
    new_parts = [change(part) for part in host_parts]
    if all(new is old for new, old in zip(new_parts, host_parts, strict=True)):
        return content
    return types.Content(role=content.role, parts=new_parts)


def _without(value: object, parts: list[types.Part], depth: int) -> Any:
    """A value without media; `_NO_VALUE` where nothing else was in it."""
    if isinstance(value, types.Part):
        # ADK sends a part beside the response that has data or a file's address, and a media type.
        blob, file = value.inline_data, value.file_data
        has_data = blob is not None and blob.data is not None and blob.mime_type
        if not (has_data or (file is not None and file.file_uri and file.mime_type)):
            return value
        parts.append(value)
        return _NO_VALUE
    if depth > _DEEPEST or not isinstance(value, (dict, list, tuple)):
        return value
    # A call, or a line, for each of many numbers would be felt.
    if _SCALARS.issuperset(map(type, value.values() if isinstance(value, dict) else value)):
        return value
    part_count = len(parts)
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    items = {at: item if type(item) in _SCALARS else _without(item, parts, depth + 1) for at, item in pairs}
    if len(parts) == part_count:
        return value
    remaining = {at: item for at, item in items.items() if item is not _NO_VALUE}
    return (remaining if isinstance(value, dict) else [*remaining.values()]) or _NO_VALUE


def as_json(response: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A result in JSON, as session services keep it; None where it cannot be, or is nested too deeply."""
    if _is_json(response):
        return response
    plain_response = stored(response)
    return plain_response if _is_json(plain_response) else None


def _is_json(value: object, depth: int = 0) -> bool:
    """Tells whether a value is plain JSON, and not nested too deeply."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return depth <= _DEEPEST and all(isinstance(key, str) and _is_json(value[key], depth + 1) for key in value)
    if isinstance(value, list):
        return depth <= _DEEPEST and all(_is_json(item, depth + 1) for item in value)
    return value is None or isinstance(value, str) or (isinstance(value, int) and is_writable(value))
