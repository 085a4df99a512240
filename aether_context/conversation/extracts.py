"""Contents whose long parts are extracts, or placeholders; nothing is edited in place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aether_context.canonical import JSON, canonical_json, hash_text, replaced, strings
from aether_context.conversation.content_json import content_of_parts, part_of, text_part
from aether_context.conversation.normalization import PLACEHOLDER
from aether_context.conversation.quotes import attributed, requoted
from aether_context.conversation.turns import TRANSFER, is_human
from aether_context.pack import Content, Part, with_content
from aether_context.retrieval import telling_words
from aether_context.text.decoding import said_once
from aether_context.text.entities import SCHEME
from aether_context.text.shorten import level, shorten
from aether_context.tokens.cache import PackCounter

LEAST_EXTRACT = 48
"""Tokens under which a response is not shortened."""
_LEAST_TEXT = 8
"""Tokens under which a text inside arguments is not cut."""
_LEAST_LEFT = 4


def query_of(contents: Sequence[Content], index: int, request_index: int | None) -> str:
    """The query by which lines of the content at ``index`` are chosen: the arguments of the calls that it answers, and
    the user's words before them, which stay in the request for as long as the content does.

    Args:
        request_index: where the user's request stands.
    """
    agent = contents[index].agent
    calls = (
        [it.text for it in contents[at].quotes if it.kind == "call" and it.agent == agent and it.name != TRANSFER]
        if agent
        else [part.text for part in contents[at].calls]
        for at in range(index - 1, -1, -1)
    )
    arguments = next((joined for texts in calls if (joined := " ".join(texts))), "")
    return f"{arguments}\n{telling_words(words_before(contents, index, request_index))}"


def words_before(contents: Sequence[Content], index: int, request_index: int | None) -> str:
    """The user's last words before the content at ``index``; empty where there are none."""
    # What the host puts behind the request for one call, like the artifacts that ADK loads, are no words of the user.
    last = index - 1 if request_index is None else min(index - 1, request_index)
    return next((contents[at].text for at in range(last, -1, -1) if is_human(contents[at])), "")


def quoted_alone(raw: Content, max_tokens: int, query: str, counter: PackCounter) -> Content:
    """Of another agent's turn what explains the marks, and between them an extract of what was said last, or else of
    the last quote, of about ``max_tokens`` tokens; only a note of it where these are few."""
    quote = max(raw.quotes, key=lambda quote: (quote.kind == "said", quote.at))
    head = [raw.parts[0], text_part(requoted(raw.parts[quote.at], ""))]
    room = max(8, max_tokens - counter.content(content_of_parts(raw.role, head)))
    excerpt = shorten(quote.text, room, counter=counter, query=query).text
    return _like(raw, [raw.parts[0], text_part(requoted(raw.parts[quote.at], excerpt))])


# What is signed is whole or absent. Claude refuses a signed thought in other words, and a call of the current turn
# without the thought before it; Gemini a call in other words than its signature is for. Thoughts of turns that are over
# may go.


def is_whole(content: Content, part: Part, *, is_over: bool) -> bool:
    """Tells whether a part is sent as it is or not at all: a signed thought or call, a call beside a signed thought,
    and what instructs.

    Args:
        is_over: whether the content's turn is: its thoughts are left out of an extract, which leaves its calls free.
    """
    if part.kind == "text" or part.kind == "media":
        return False
    return (
        part.is_signed
        or part.is_instruction
        or (part.kind == "call" and not is_over and any(other.is_signed for other in content.parts))
    )


def sent_places(content: Content, *, is_over: bool) -> tuple[int, ...]:
    """The places of the parts that an extract of a content has: all but the signed thoughts of a turn that is over."""
    places = [at for at, part in enumerate(content.parts) if not (is_over and part.is_thought and part.is_signed)]
    return tuple(places or range(len(content.parts)))


def shorten_content(
    raw: Content, max_tokens: int, *, counter: PackCounter, query: str = "", is_over: bool = False
) -> Content:
    """A content each of whose parts holds at most ``max_tokens`` tokens, about: what is longer is an extract.

    Its parts are those at `sent_places`; what `is_whole` may be longer. Calls keep their names and the keys of their
    arguments; media and parts of unknown kinds that are larger leave a note. Of another agent's turn only what is
    quoted is shortened.
    """
    instructs = [at for at, part in enumerate(raw.parts) if part.is_instruction]
    key = f"{raw.digest}:{raw.agent}:{max_tokens}:{is_over}:{instructs}:{hash_text(query)}"
    for part in raw.parts:
        counter.media(part)  # A replay, which remembers no contents, reads sizes of media from this pack's counts.
    content = counter.remembered(key)
    if content is None:
        parts = [
            part
            if (raw.agent and part.kind in ("text", "thought")) or is_whole(raw, part, is_over=is_over)
            else shorten_part(part, max_tokens, counter=counter, query=query)
            for part in (raw.parts[at] for at in sent_places(raw, is_over=is_over))
        ]
        for quote in raw.quotes:
            if counter.count(quote.text) > max_tokens:
                text = shorten(quote.text, max_tokens, counter=counter, query=query).text
                parts[quote.at] = _with_text(parts[quote.at], requoted(parts[quote.at], text))
        content = _like(raw, parts)
        counter.remember(key, content)
    return content


def medium_key(part: Part) -> tuple[str, str]:
    """The hash of the bytes of the medium in a part, or else the address of a file elsewhere; the other is empty."""
    wire = json.loads(part.wire) if part.kind == "media" else {}
    digest = str((wire.get("inline_data") or {}).get("data") or "")
    return digest, "" if digest else str((wire.get("file_data") or {}).get("file_uri") or "")


def mark_of(part: Part, media: Mapping[str, str]) -> str:
    """The mark that stands for the medium in a part, of those by hash or address; empty where it has none."""
    key = "".join(medium_key(part)) if media else ""
    return media.get(key, "") if key else ""


def without_media(raw: Content, media: Mapping[str, str]) -> Content:
    """A content with marks in the places of its media, and its words as they are."""
    if not raw.has_media:
        return raw
    parts = [text_part(mark) if (mark := mark_of(part, media)) else part for part in raw.parts]
    return content_of_parts(raw.role, parts) if parts != [*raw.parts] else raw


def _like(raw: Content, parts: list[Part]) -> Content:
    """A content of the same role and the same agent as another."""
    content = content_of_parts(raw.role, parts)
    return attributed(content) if raw.agent else content


def response_tokens(content: Content, counter: PackCounter) -> list[int]:
    """Tokens of each response in a content that an extract can stand for, media aside; of each quoted one where it is
    another agent's."""
    quoted = [quote.text for quote in content.quotes if quote.kind == "response"]
    return counter.count_all([*(part.text for part in content.responses if not part.is_instruction), *quoted])


def part_tokens(content: Content, counter: PackCounter, *, is_over: bool = False) -> list[int]:
    """Tokens of each part of a content that `shorten_content` can shorten, about."""
    # Parts that a host does not quote, such as code, come unchanged beside the quotes.
    parts = [
        part
        for part in content.parts
        if (not content.agent or part.kind not in ("text", "thought")) and not is_whole(content, part, is_over=is_over)
    ]
    texts = counter.count_all([part.text for part in parts])
    quoted = counter.count_all([quote.text for quote in content.quotes])
    return [*quoted, *(max(size, counter.media(part)) for size, part in zip(texts, parts, strict=True))]


def shorten_part(part: Part, max_tokens: int, *, counter: PackCounter, query: str = "") -> Part:
    """A part of at most ``max_tokens`` tokens, about."""
    large, media = counter.count(part.text) > max_tokens, counter.media(part)
    if not large and media <= max_tokens:
        return part
    if part.kind == "text" and part.is_signed:  # the signature, which a text need not have, is not for other words
        return text_part(shorten(part.text, max_tokens, counter=counter, query=query).text)
    if part.kind in ("text", "thought"):
        return _with_text(part, shorten(part.text, max_tokens, counter=counter, query=query).text)
    wire: dict[str, Any] = json.loads(part.wire)
    if part.kind == "response":
        answer = wire["function_response"]
        if large:
            answer["response"] = _shorten_object(answer.get("response"), max_tokens, query, counter)
            part = replace(part, text=canonical_json(answer["response"]))
        if media > max_tokens and answer.pop("parts", None):
            note = f"[{part.mime_type or 'a medium'} of {media} tokens is left out: there is no room for it]"
            answer["response"] = {**(answer.get("response") or {}), "left_out": note}
            part = replace(part, text=canonical_json(answer["response"]), media_tokens=0, size_bytes=0)
        return replace(part, wire=canonical_json(wire))
    if part.kind == "call":
        wire["function_call"]["args"] = _shorten_object(
            wire["function_call"].get("args") or {}, max_tokens, query, counter
        )
        return part_of(wire)
    for name in _CODE:
        if name in wire and media <= max_tokens:
            shorter = _levelled(wire[name], max_tokens, query, counter)
            if shorter is not None:
                return part_of({**wire, name: shorter})
    tokens = max(media, counter.count(part.text))
    return text_part(f"[{part.mime_type or 'a part'} of {tokens} tokens is left out]")


_CODE = ("executable_code", "code_execution_result", "tool_call", "tool_response")
"""Kinds of parts whose texts can be cut, by their field."""
_NAMES = frozenset({"id", "name", "language", "outcome", "tool_type"})
"""Keys whose texts are names that a provider reads, never cut."""


def _with_text(part: Part, text: str) -> Part:
    return part_of({**json.loads(part.wire), "text": text})


def _levelled(value: JSON, max_tokens: int, query: str, counter: PackCounter) -> JSON:
    """A JSON value of at most ``max_tokens`` tokens: its longest texts are shortened to one length, its keys stay.

    None where keys, numbers, names and addresses alone are too much.
    """
    texts = [
        (path, text) for path, text in strings(value) if path and path[-1] not in _NAMES and not text.startswith(SCHEME)
    ]
    sizes = counter.count_all([canonical_json(text) for _, text in texts])
    room = max_tokens - (counter.count(canonical_json(value)) - sum(sizes))
    while room > _LEAST_LEFT * len(texts):
        ceiling = max(_LEAST_TEXT, level(sizes, room))
        levelled = value
        for (path, text), size in zip(texts, sizes, strict=True):
            if size > ceiling:
                levelled = replaced(levelled, path, shorten(text, ceiling, counter=counter, query=query).text)
        used = counter.count(canonical_json(levelled))
        if used <= max_tokens:
            return levelled
        room -= max(used - max_tokens, 1 + room // 8)
    return None


def _shorten_object(value: JSON, max_tokens: int, query: str, counter: PackCounter) -> JSON:
    """A JSON object with its texts levelled, or lines of its JSON.

    The address under which all of it is kept stays for as long as it leaves room for more.
    """
    value = said_once(value) if isinstance(value, dict) else value
    levelled = _levelled(value, max_tokens, query, counter)
    if levelled is not None:
        return levelled
    fields = value.items() if isinstance(value, dict) else ()
    address = {name: item.split(" ")[0] for name, item in fields if isinstance(item, str) and item.startswith(SCHEME)}
    if address and counter.count(canonical_json(address)) > max_tokens - _LEAST_TEXT:
        address = {}
    budget = max_tokens
    while True:
        shortened: JSON = shorten(canonical_json(value), budget, counter=counter, query=query).text
        with suppress(ValueError):
            shortened = json.loads(shortened)
        result = {**(shortened if isinstance(shortened, dict) else {"extract": shortened}), **address}
        used = counter.count(canonical_json(result))
        if used <= max_tokens or budget <= 1:
            return result
        budget = max(1, min(budget - 1, budget * max_tokens // used))


@with_content
def placeholder(content: Content) -> Content:
    """A content with a placeholder for each longer text and response; calls, media and unknown parts stay."""
    parts = tuple(map(_blank, content.parts))
    return content if parts == content.parts else content_of_parts(content.role, list(parts))


def _blank(part: Part) -> Part:
    if part.kind == "text" and len(part.text) > len(PLACEHOLDER):
        return part_of({"text": PLACEHOLDER})
    response = {"result": PLACEHOLDER}
    if part.kind == "response" and len(part.text) > len(canonical_json(response)):
        wire = json.loads(part.wire)
        wire["function_response"]["response"] = response
        return part_of(wire, size_bytes=part.size_bytes, media_tokens=part.media_tokens)
    return part
