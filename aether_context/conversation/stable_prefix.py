"""Placeholders up to a boundary that never moves back, so that the beginning of the request stays the same.

Texts of the model and responses of tools become a placeholder; messages of users and of the system, calls and media
stay. Nothing happens until the estimate, or the pack's own count, passes a share of the window. Then everything older
than the last messages of the model goes in one act, and further ones, one at a time, while either is still above it.
The boundary is a count of the host's own contents, with the hash of the last content below it.

Departures from the design that this follows: the exchange that the model has yet to read is never replaced, nor is a
text that is no longer than the placeholder; the output reserve is at most the slack, so that small windows have room.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias

from aether_context.canonical import JSON, canonical_json
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.conversation.strategy import Conversation, Replaced, Trimmed, decided
from aether_context.conversation.turns import units
from aether_context.pack import Content, Part, Reason, Tool
from aether_context.policy import ConversationSettings, StablePrefixSettings
from aether_context.tokens.counters import SharedLRU

BOUNDARY = "trimmed_up_to_message_index"
"""The key of the boundary in the strategy's state: so many contents of the host's list are below it."""

_Blank: TypeAlias = Callable[[int], Content | None]
"""What stands for a content, by index; None where it stays."""

_LAST = "last_hash"
_CALL_BYTES = 30
_BLANKED: SharedLRU[str, Content] = SharedLRU(20_000)
_ESTIMATES: SharedLRU[str, int] = SharedLRU(50_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class StablePrefix:
    """The strategy ``stable_prefix``."""

    settings: ConversationSettings
    name: ClassVar[str] = "stable_prefix"
    early: ClassVar[bool] = True

    def trim(self, conversation: Conversation) -> Trimmed:
        settings = self.settings.stable_prefix
        begin, note = _boundary(conversation)
        blank = self._blanks(conversation)
        held = _replacements(blank, range(begin), "threshold", new=False)
        sizes = [estimate(content, settings) for content in conversation.contents]
        for one in held:
            sizes[one.index] = estimate(one.content, settings)
        counts = list(conversation.tokens)
        for one in held:
            counts[one.index] = conversation.counter.content(one.content)
        end = begin
        if conversation.forced or (self._over(conversation, sum(sizes), sum(counts)) and not conversation.gated):
            end = self._advance(conversation, begin, sizes, counts, blank)
        reason: Reason = "by_hand" if conversation.forced else "threshold"
        return decided(
            conversation,
            self.name,
            replaced=(*held, *_replacements(blank, range(begin, end), reason, new=True)),
            state=_state(conversation, end) if end != begin or note else None,
            normalize=True,
            note=note,
        )

    def _over(self, conversation: Conversation, estimated: int, counted: int) -> bool:
        """Whether more is replaced: by this strategy's own estimate of the messages, or by the pack's count of them.

        The estimate takes numbers and ids for fewer tokens than they are; a cut would then take messages of users.
        """
        over = _with_safety(estimated, self.settings.stable_prefix) > self._room(conversation)
        return over or counted > conversation.budget.ceiling

    def _room(self, conversation: Conversation) -> int:
        """Tokens of the messages above which more is replaced, in the strategy's own estimate."""
        settings, budget = self.settings.stable_prefix, conversation.budget
        reserve = min(settings.output_reserve_tokens, budget.slack)
        window = budget.window - bytes_to_tokens(len(conversation.system.encode()), settings) - reserve
        return int(settings.threshold * window) - estimate_tool_overhead(conversation.tools, settings)

    def _advance(
        self, conversation: Conversation, begin: int, sizes: Sequence[int], counts: Sequence[int], blank: _Blank
    ) -> int:
        """The new boundary: at the last messages to keep, or further where estimate or count asks for it."""
        settings = self.settings.stable_prefix
        estimated, counted = sum(sizes), sum(counts)
        stop = _unread(conversation)
        keep = min(_first_kept(conversation.contents, settings.keep_last_messages), stop)
        end = begin
        while end < stop and (end < keep or self._over(conversation, estimated, counted)):
            made = blank(end)
            if made is not None:
                estimated += estimate(made, settings) - sizes[end]
                counted += conversation.counter.content(made) - counts[end]
            end += 1
        return end

    def _blanks(self, conversation: Conversation) -> _Blank:
        anchored, text = conversation.anchored, self.settings.stable_prefix.placeholder

        def blank(at: int) -> Content | None:
            content = conversation.contents[at]
            if at in anchored or not (content.responses or content.role == "model"):
                return None
            made = placeholder(content, text)
            return None if made.digest == content.digest else made

        return blank


def _replacements(blank: _Blank, indices: range, reason: Reason, *, new: bool) -> list[Replaced]:
    made = ((at, blank(at)) for at in indices)
    return [Replaced(index=at, content=content, reason=reason, new=new) for at, content in made if content is not None]


def placeholder(content: Content, text: str) -> Content:
    """A content with a placeholder for each longer text and response; calls, media and unknown parts stay."""
    key = f"{text}\0{content.digest}"
    found = _BLANKED.get(key)
    if found is None:
        parts = [_blank(part, text) for part in content.parts]
        changed = any(one is not other for one, other in zip(parts, content.parts, strict=True))
        found = content_of_parts(content.role, parts) if changed else content
        _BLANKED.put(key, found)
    return found


def _blank(part: Part, text: str) -> Part:
    if part.kind == "text" and len(part.text) > len(text):
        return part_of({"text": text})
    response = {"result": text}
    if part.kind == "response" and len(part.text) > len(canonical_json(response)):
        wire = json.loads(part.wire)
        wire["function_response"]["response"] = response
        return part_of(wire, size_bytes=part.size_bytes, media_tokens=part.media_tokens)
    return part


def estimate_tokens(contents: Sequence[Content], settings: StablePrefixSettings | None = None) -> int:
    """This strategy's own estimate of messages, on the safe side: bytes by 3.5, what each message and part adds, and 5%
    on top."""
    settings = settings or StablePrefixSettings()
    return _with_safety(sum(estimate(content, settings) for content in contents), settings)


def estimate(content: Content, settings: StablePrefixSettings) -> int:
    """The estimate of one message, before the safety factor."""
    rates = (settings.bytes_per_token, settings.message_tokens, settings.part_tokens, settings.image_tokens)
    key = f"{rates}{content.digest}"
    found = _ESTIMATES.get(key)
    if found is None:
        found = settings.message_tokens + sum(_part_tokens(part, settings) for part in content.parts)
        if not _plain(content):
            found += settings.part_tokens * len(content.parts)
        _ESTIMATES.put(key, found)
    return found


def _plain(content: Content) -> bool:
    return len(content.parts) == 1 and content.parts[0].kind == "text"


def _part_tokens(part: Part, settings: StablePrefixSettings) -> int:
    size = len(part.text.encode("utf-8", "surrogatepass"))
    if part.kind == "media":
        return settings.image_tokens
    if part.kind == "call":
        return bytes_to_tokens(len(part.name.encode("utf-8", "surrogatepass")) + size + _CALL_BYTES, settings)
    if part.kind == "response":
        media = settings.image_tokens if part.media_tokens else 0
        return bytes_to_tokens(size + _CALL_BYTES, settings) + media
    return bytes_to_tokens(size, settings)


def bytes_to_tokens(size: float, settings: StablePrefixSettings) -> int:
    return math.ceil(size / settings.bytes_per_token)


def estimate_tool_overhead(tools: Sequence[Tool], settings: StablePrefixSettings | None = None) -> int:
    """The estimate of declarations: bytes of name, description and schema, times 1.2, by 3.5, and 8 for each."""
    settings = settings or StablePrefixSettings()
    return sum(
        bytes_to_tokens(_tool_bytes(tool.wire) * settings.tool_factor, settings) + settings.tool_tokens
        for tool in tools
    )


@lru_cache(maxsize=2_000)
def _tool_bytes(wire: str) -> int:
    declared: dict[str, Any] = json.loads(wire)
    schema = declared.get("parameters_json_schema") or declared.get("parameters") or {}
    said = str(declared.get("name") or "") + str(declared.get("description") or "") + canonical_json(schema)
    return len(said.encode("utf-8", "surrogatepass"))


def _with_safety(tokens: int, settings: StablePrefixSettings) -> int:
    return math.ceil(tokens * settings.safety)


def _first_kept(contents: Sequence[Content], keep_last: int) -> int:
    """The index of the first of the model's last messages, 0 where there are no more than those."""
    said = [at for at, content in enumerate(contents) if content.role == "model"]
    if len(said) <= keep_last:
        return 0
    return said[-keep_last] if keep_last else len(contents)


def _unread(conversation: Conversation) -> int:
    """The index from which nothing is replaced: what the model has yet to read."""
    parts = units(conversation.contents)
    if not parts:
        return 0
    last = max(parts, key=lambda unit: unit.indices[-1])
    return last.indices[0] if last.kind == "exchange" else last.indices[-1]


def _boundary(conversation: Conversation) -> tuple[int, str]:
    """The index of the boundary, found by the hash of the last content below it, and what was wrong with it.

    A content that a cut took away since then cannot be compared; the count stands.
    """
    kept = conversation.state.get("stable_prefix") or {}
    count, digest = kept.get(BOUNDARY), kept.get(_LAST)
    if not isinstance(count, int) or count <= 0:
        return 0, ""
    below = sum(place < count for place in conversation.positions)
    last = conversation.positions[below - 1] if below else -1
    if last < count - 1 and len(conversation.positions) > below:
        return below, ""
    if below and conversation.raws[below - 1].digest == digest:
        return below, ""
    places = [at + 1 for at, raw in enumerate(conversation.raws) if raw.digest == digest]
    if places:
        return min(places, key=lambda at: (abs(at - below), at)), "the boundary of the placeholders was found again"
    return 0, "the boundary of the placeholders is gone"


def _state(conversation: Conversation, end: int) -> Mapping[str, JSON]:
    if not end:
        return {}
    return {BOUNDARY: conversation.positions[end - 1] + 1, _LAST: conversation.raws[end - 1].digest}
