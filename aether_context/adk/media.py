"""Media that tools hand to ADK as parts, which it sends beside a response, not in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.genai import types

from aether_context.evidence.media import Medium, typed

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
