"""Contents made anew: a packed message, parts cut down to extracts, a summary; nothing is edited in place."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from aether_context.canonical import JSON, Path, canonical_json, hash_text, replaced, strings
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.conversation.quotes import attributed, requoted
from aether_context.conversation.turns import is_human
from aether_context.pack import Content, PackedMessage, Part
from aether_context.text.compression import extract, level, lines_of
from aether_context.text.entities import SCHEME
from aether_context.text.leaves import laid_out, parsed
from aether_context.tokens.cache import PackCounter

LEAST_EXTRACT = 48
"""Tokens under which a response is not shortened."""
_DOMINANT, _LARGEST = 0.8, 0.5
_LEAST_TEXT = 8
"""Tokens under which a text inside arguments is not cut."""
_LEAST_LEFT = 4


def text_part(text: str) -> Part:
    return part_of({"text": text})


def query_of(contents: Sequence[Content], index: int) -> str:
    """The query by which lines of the content at ``index`` are chosen: the arguments of the calls that it answers, and
    the user's words before them, which stay in the request for as long as the content does."""
    agent = contents[index].agent
    calls = (
        [quote.text for quote in contents[at].quotes if quote.kind == "call" and quote.agent == agent]
        if agent
        else [part.text for part in contents[at].calls]
        for at in range(index - 1, -1, -1)
    )
    arguments = next((joined for texts in calls if (joined := " ".join(texts))), "")
    return f"{arguments}\n{words_before(contents, index)}"


def words_before(contents: Sequence[Content], index: int) -> str:
    """The user's last words before the content at ``index``; empty where there are none."""
    return next((contents[at].text for at in range(index - 1, -1, -1) if is_human(contents[at])), "")


def packed_message(
    raw: Content, origin: int, packed: PackedMessage, counter: PackCounter
) -> tuple[Content, tuple[tuple[int, int], ...]]:
    """A message in its packed form: whatever is not text stays behind the new text, as far as ``largest`` lets it.

    With the members of `Outgoing`.
    """
    sizes = sizes_beside_text(raw, counter)
    places = [at for at, size in sizes.items() if packed.largest is None or size <= packed.largest]
    content = content_of_parts(raw.role, [text_part(packed.text), *(raw.parts[at] for at in places)])
    return content, () if len(places) == len(sizes) else ((origin, -1), *((origin, at) for at in places))


def sizes_beside_text(raw: Content, counter: PackCounter) -> dict[int, int]:
    """Tokens of each part of a message that is not text, such as media and code, by index."""
    others = ((at, part) for at, part in enumerate(raw.parts) if part.kind != "text")
    return {at: max(counter.media(part), counter.count(part.text)) for at, part in others}


def told(contents: Sequence[Content], max_tokens: int, query: str, counter: PackCounter) -> Content:
    """What contents say, call and give as one text of about ``max_tokens`` tokens, in a message of the user.

    Of other agents' turns it is the last quote alone. Each call stands with what it returned. Lines are indented, so
    that none of them can stand for a header.
    """
    quoting = next((content for content in reversed(contents) if content.quotes), None)
    if quoting is not None:
        return quoted_alone(quoting, max_tokens, query, counter)
    returned: dict[str, deque[str]] = defaultdict(deque)
    for part in (part for content in contents for part in content.responses):
        returned[part.call_id or part.name].append(laid_out(json.loads(part.text)))
    pieces: list[str] = []
    for part in (part for content in contents for part in content.parts if part.kind != "response"):
        texts = returned.get(part.call_id or part.name) if part.kind == "call" else None
        call = f"{part.name}({part.text})" if part.kind == "call" else part.text or f"[{part.mime_type} is left out]"
        pieces.append(f"{call}: {texts.popleft()}" if texts else call)
    pieces += [text for texts in returned.values() for text in texts]
    text = "\n".join("- " + "\n  ".join(lines_of(piece)) for piece in pieces)
    chosen = extract(text, max_tokens=max(1, max_tokens - counter.count(_TOLD)), counter=counter, query=query)
    return content_of_parts("user", [text_part(f"{_TOLD}\n{chosen}")])


_TOLD = "[Calls and what they returned, in one text, since they find no room one by one]"


def quoted_alone(raw: Content, max_tokens: int, query: str, counter: PackCounter) -> Content:
    """Of another agent's turn what explains the marks, and between them an extract of what was said last, or else of
    the last quote, of about ``max_tokens`` tokens; only a note of it where these are few."""
    quote = max(raw.quotes, key=lambda quote: (quote.kind == "said", quote.at))
    head = [raw.parts[0], text_part(requoted(raw.parts[quote.at], ""))]
    room = max(8, max_tokens - counter.content(content_of_parts(raw.role, head)))
    chosen = extract(quote.text, max_tokens=room, counter=counter, query=query)
    return _like(raw, [raw.parts[0], text_part(requoted(raw.parts[quote.at], chosen))])


def shortened(raw: Content, ceiling: int, query: str, counter: PackCounter) -> Content:
    """A content each of whose parts holds at most ``ceiling`` tokens, about: what is longer is an extract.

    Calls keep their names and the keys of their arguments; media and parts of unknown kinds that are larger leave a
    note. Of another agent's turn only what is quoted is shortened.
    """
    key = f"{raw.digest}:{raw.agent}:{ceiling}:{hash_text(query)}"
    for part in raw.parts:
        counter.media(part)  # A replay, which remembers no contents, reads sizes of media from this pack's counts.
    content = counter.remembered(key)
    if content is None:
        parts = [
            part if raw.agent and part.kind in ("text", "thought") else _shortened(part, ceiling, query, counter)
            for part in raw.parts
        ]
        for quote in raw.quotes:
            if counter.count(quote.text) > ceiling:
                text = _text_within(quote.text, ceiling, query, counter)
                parts[quote.at] = _with_text(parts[quote.at], requoted(parts[quote.at], text))
        content = _like(raw, parts)
        counter.remember(key, content)
    return content


def _like(raw: Content, parts: list[Part]) -> Content:
    """A content of the same role and the same agent as another."""
    content = content_of_parts(raw.role, parts)
    return attributed(content) if raw.agent else content


def response_tokens(content: Content, counter: PackCounter) -> list[int]:
    """Tokens of each response in a content, media aside; of each quoted one where it is another agent's."""
    quoted = [quote.text for quote in content.quotes if quote.kind == "response"]
    return counter.count_all([*(part.text for part in content.responses), *quoted])


def part_tokens(content: Content, counter: PackCounter) -> list[int]:
    """Tokens of each part of a content that `shortened` can shorten, about."""
    # Parts that a host does not quote, such as code, come unchanged beside the quotes.
    parts = [part for part in content.parts if not content.agent or part.kind not in ("text", "thought")]
    texts = counter.count_all([part.text for part in parts])
    quoted = counter.count_all([quote.text for quote in content.quotes])
    return [*quoted, *(max(size, counter.media(part)) for size, part in zip(texts, parts, strict=True))]


def _shortened(part: Part, ceiling: int, query: str, counter: PackCounter) -> Part:
    large, media = counter.count(part.text) > ceiling, counter.media(part)
    if not large and media <= ceiling:
        return part
    if part.kind in ("text", "thought"):
        return _with_text(part, _text_within(part.text, ceiling, query, counter))
    wire: dict[str, Any] = json.loads(part.wire)
    if part.kind == "response":
        answer = wire["function_response"]
        if large:
            answer["response"] = _extracted(answer.get("response"), ceiling, query, counter)
            part = replace(part, text=canonical_json(answer["response"]))
        if media > ceiling:
            answer.pop("parts", None)
            part = replace(part, media_tokens=0, size_bytes=0)
        return replace(part, wire=canonical_json(wire))
    if part.kind == "call":
        wire["function_call"]["args"] = clipped(wire["function_call"].get("args") or {}, ceiling, counter)
        return part_of(wire)
    for name in _CODE:
        if name in wire and media <= ceiling:
            shorter_part = part_of({**wire, name: clipped(wire[name], ceiling, counter)})
            if counter.count(shorter_part.text) <= 2 * ceiling:
                return shorter_part
    tokens = max(media, counter.count(part.text))
    return text_part(f"[{part.mime_type or 'a part'} of {tokens} tokens is left out]")


_CODE = ("executable_code", "code_execution_result", "tool_call", "tool_response")
"""Kinds of parts whose texts can be cut, by their field."""


def _with_text(part: Part, text: str) -> Part:
    return part_of({**json.loads(part.wire), "text": text})


def _text_within(text: str, ceiling: int, query: str, counter: PackCounter) -> str:
    """An extract of a text; where it is the text of a value, with records on lines of their own."""
    value = parsed(text)
    laid = text if value is None else laid_out(value)
    return extract(laid, max_tokens=max(1, ceiling), counter=counter, query=query)


def clipped(value: JSON, ceiling: int, counter: PackCounter) -> JSON:
    """A JSON object of about ``ceiling`` tokens: its longest texts end early and say so, its keys stay.

    Where the keys alone are too much, the object becomes an extract under one key.
    """
    leaves = [(path, text) for path, text in strings(value) if path and path[-1] not in _NAMES]
    sizes = counter.count_all([text for _, text in leaves])
    room = ceiling - (counter.count(canonical_json(value)) - sum(sizes))
    while room > _LEAST_LEFT * len(leaves):
        most = max(_LEAST_TEXT, level(sizes, room))
        clipped_value = _replaced_all(
            value, [(path, _ended(text, size, most)) for (path, text), size in zip(leaves, sizes, strict=True)]
        )
        used = counter.count(canonical_json(clipped_value))
        if used <= ceiling:
            return clipped_value
        room -= max(used - ceiling, 1 + room // 8)
    extract_text = extract(laid_out(value), max_tokens=max(1, ceiling - _LEAST_TEXT), counter=counter)
    return {"left_out": extract_text} if isinstance(value, dict) and not _NAMES.intersection(value) else value


_NAMES = frozenset({"id", "name", "language", "outcome", "tool_type"})
"""Keys whose texts are names that a provider reads, never cut."""


def _ended(text: str, size: int, most: int) -> str:
    """The beginning of a text of ``size`` tokens, about ``most`` of them, and how much is missing."""
    if size <= most:
        return text
    kept_characters = max(1, len(text) * max(1, most - _LEAST_TEXT) // size)
    return f"{text[:kept_characters]}[… {len(text) - kept_characters} characters left out]"


def _replaced_all(value: JSON, texts: Iterable[tuple[tuple[str | int, ...], str]]) -> JSON:
    copy = json.loads(canonical_json(value))
    for path, text in texts:
        parent: Any = copy
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = text
    return copy


def _extracted(response: JSON, ceiling: int, query: str, counter: PackCounter) -> JSON:
    """The response with its one dominant text reduced to an extract, or an extract of its JSON, a record a line.

    The address under which all of it is kept stays for as long as it leaves room for more.
    """
    response_json = canonical_json(response)
    no_text: tuple[Path, str] = (), ""
    path, longest = max(strings(response), key=lambda pair: (len(pair[1]), pair[0]), default=no_text)
    share = len(longest) / len(response_json)
    value = parsed(longest)
    longest = longest if value is None else laid_out(value)
    fields = response.items() if isinstance(response, dict) else ()
    address = {name: item.split(" ")[0] for name, item in fields if isinstance(item, str) and item.startswith(SCHEME)}
    if address and counter.count(canonical_json(address)) > ceiling - _LEAST_TEXT:
        address = {}
    # A result with an address is kept whole elsewhere, so its longest text is worth more than its other fields.
    bare: JSON = {"extract": "", **address}
    source_text = longest if address and share >= _LARGEST else laid_out(response)
    if path and share >= _DOMINANT:
        text = longest
    else:
        response, path, text = bare, ("extract",), source_text
    budget = ceiling
    while True:
        chosen = extract(text, max_tokens=max(1, budget), counter=counter, query=query)
        result = replaced(response, path, chosen)
        used = counter.count(canonical_json(result))
        if used <= ceiling or (budget <= 1 and path == ("extract",)):
            return result
        if budget <= 1:
            response, path, text, budget = bare, ("extract",), source_text, ceiling
            continue
        budget = max(1, min(budget - 1, budget * ceiling // used))
