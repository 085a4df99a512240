"""Placeholders up to a boundary that never moves back, so that the beginning of the request stays the same.

Texts of the model and responses of tools become a placeholder; messages of users and of the system, calls and media
stay. Nothing happens until the estimate, or the pack's own count, passes a share of the window. Then everything older
than the last messages of the model goes in one act, and further ones, one at a time, while either is still above it.
The boundary is a count of the host's own contents, with the hash of the last content below it.

Departures from the design that this follows: the exchange that the model has yet to read is never replaced, nor is a
text that is no longer than the placeholder; the output reserve is at most a quarter of the window, so that small ones
have room.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from aether_context.canonical import JSON, canonical_json, utf8_size
from aether_context.conversation.extracts import placeholder
from aether_context.conversation.strategy import Conversation, Decision
from aether_context.conversation.turns import Unit, cut, units, unread_exchange
from aether_context.pack import Content, ContentForm, Part, Reason, Tool, with_content
from aether_context.policy import StablePrefixSettings

BOUNDARY = "trimmed_up_to_message_index"
"""The key of the boundary in the strategy's state: so many contents of the host's list are below it."""

_LAST = "last_hash"
# The strategy's own estimate, in tokens but for the first two; see `estimate` and `estimate_tool_overhead`.
_BYTES_PER_TOKEN = 3.5
_SAFETY, _TOOL_FACTOR = 1.05, 1.2
_MESSAGE, _PART, _IMAGE, _TOOL = 8, 3, 2_000, 8
_OUTPUT_RESERVE = 16_000
_CALL_BYTES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class StablePrefix:
    settings: StablePrefixSettings
    name: ClassVar[str] = "stable_prefix"
    early: ClassVar[bool] = True

    def trim(self, conversation: Conversation, target_tokens: int) -> Decision:
        settings, budget, contents = self.settings, conversation.budget, conversation.contents
        counter, tokens, anchored = conversation.counter, conversation.tokens, conversation.anchored
        begin, note = _boundary(conversation)
        placeholders = [
            placeholder(content) if at not in anchored and (content.responses or content.role == "model") else content
            for at, content in enumerate(contents)
        ]
        replaceable = [at for at, content in enumerate(contents) if placeholders[at].digest != content.digest]
        # Tokens of the messages above which more is replaced, in this strategy's own estimate.
        reserve = min(_OUTPUT_RESERVE, budget.window // 4)
        window = budget.window - bytes_to_tokens(len(conversation.request.system.encode())) - reserve
        room = int(settings.threshold * window) - estimate_tool_overhead(conversation.request.tools)
        # The estimate takes numbers and ids for fewer tokens than they are; without the count beside it a cut would
        # then take users' messages.
        estimated = {at: estimate(contents[at]) - estimate(placeholders[at]) for at in replaceable}
        counted = {at: tokens[at] - counter.content(placeholders[at]) for at in replaceable}
        goals = ((estimated, sum(map(estimate, contents)) - int(room / _SAFETY)), (counted, sum(tokens) - budget.most))
        over = any(excess > sum(freed[at] for at in replaceable if at < begin) for freed, excess in goals)
        end = begin
        pressure = conversation.pressure
        if pressure == "by_hand" or (over and pressure == "marks"):
            final = unread_exchange(units(contents), conversation.request_index)
            # What the model has yet to read is never replaced.
            limit = 0 if final is None else final.indices[0] if final.kind == "exchange" else final.indices[-1]
            replies = [at for at, content in enumerate(contents) if content.role == "model"]
            older = len(replies) - settings.keep_last_messages
            end = max(begin, min(limit, 0 if older <= 0 else (*replies, len(contents))[older]))
            singles = [Unit(kind="message", indices=(at,), turn=at) for at in range(limit)]
            for freed, excess in goals:
                sizes = [freed.get(at, 0) for at in range(limit)]
                removed = cut(singles, sizes, target=sum(sizes) - excess).indices
                end = max(end, len(removed))
            # At what stays in the session: the host may put messages of people elsewhere at the next call.
            end = max((at + 1 for at in replaceable if begin <= at < end), default=begin)
        reason: Reason = "by_hand" if pressure == "by_hand" else "threshold"
        forms = {
            at: ContentForm("placeholder", reason if at >= begin else "threshold", strategy=self.name)
            for at in replaceable
            if at < end
        }
        state: Mapping[str, JSON] | None = None
        if end != begin or note:
            state = (
                {BOUNDARY: conversation.positions[end - 1] + 1, _LAST: conversation.raws[end - 1].digest} if end else {}
            )
        return Decision(forms, state=state, note=note, earlier=frozenset(at for at in forms if at < begin))


@with_content
def estimate(content: Content) -> int:
    """The estimate of one message, before the safety factor."""
    tokens = _MESSAGE + sum(map(_part_tokens, content.parts))
    is_text = len(content.parts) == 1 and content.parts[0].kind == "text"
    return tokens if is_text else tokens + _PART * len(content.parts)


def _part_tokens(part: Part) -> int:
    size = utf8_size(part.text)
    if part.kind == "media":
        return _IMAGE
    if part.kind == "call":
        return bytes_to_tokens(utf8_size(part.name) + size + _CALL_BYTES)
    if part.kind == "response":
        # Read off the wire, which replays have as well.
        media = _IMAGE if '"parts":[' in part.wire.partition('"response":')[0] else 0
        return bytes_to_tokens(size + _CALL_BYTES) + media
    return bytes_to_tokens(size)


def bytes_to_tokens(size: float) -> int:
    return math.ceil(size / _BYTES_PER_TOKEN)


def estimate_tool_overhead(tools: Sequence[Tool]) -> int:
    """The estimate of declarations: bytes of name, description and schema, times 1.2, by 3.5, and 8 for each."""
    return sum(bytes_to_tokens(_tool_bytes(tool.wire) * _TOOL_FACTOR) + _TOOL for tool in tools)


@lru_cache(maxsize=2_000)
def _tool_bytes(wire: str) -> int:
    declaration: dict[str, Any] = json.loads(wire)
    schema = declaration.get("parameters_json_schema") or declaration.get("parameters") or {}
    text = str(declaration.get("name") or "") + str(declaration.get("description") or "") + canonical_json(schema)
    return utf8_size(text)


def _boundary(conversation: Conversation) -> tuple[int, str]:
    """The index of the boundary, found by the hash of the last content below it, and what was wrong with it.

    A content that a cut took away since then cannot be compared; then the count alone decides.
    """
    state = conversation.state.get("stable_prefix") or {}
    count, digest = state.get(BOUNDARY), state.get(_LAST)
    if not isinstance(count, int) or count <= 0:
        return 0, ""
    below = sum(position < count for position in conversation.positions)
    last = conversation.positions[below - 1] if below else -1
    if last < count - 1 and len(conversation.positions) > below:
        return below, ""
    if below and conversation.raws[below - 1].digest == digest:
        return below, ""
    places = [at + 1 for at, raw in enumerate(conversation.raws) if raw.digest == digest]
    if places:
        return min(places, key=lambda at: (abs(at - below), at)), "the boundary of the placeholders was found again"
    return 0, "the boundary of the placeholders is gone"
