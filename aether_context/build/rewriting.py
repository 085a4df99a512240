"""Contents made anew: a packed message, a response cut down to an extract, a summary; nothing is edited in place."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from aether_context.canonical import JSON, canonical_json, hash_text, replaced, strings
from aether_context.compression import extract
from aether_context.conversation import is_human
from aether_context.counting import Tally
from aether_context.pack import Content, Part
from aether_context.wire import content_of_parts, part_of

_DOMINANT = 0.8


def text_part(text: str) -> Part:
    return part_of({"text": text})


def message(raw: Content, text: str) -> Content:
    """A message with its text replaced; whatever is not text stays, behind it."""
    return content_of_parts(raw.role, [text_part(text), *(part for part in raw.parts if part.kind != "text")])


def summary_content(text: str) -> Content:
    return content_of_parts("user", [text_part(text)])


def asked(contents: Sequence[Content], index: int) -> str:
    """What the content at ``index`` is there for, as a query: the arguments of the calls that it answers, and the
    person's words before them, which stay for as long as it does."""
    before = range(index - 1, -1, -1)
    called = next((" ".join(part.text for part in contents[at].calls) for at in before if contents[at].calls), "")
    said = next((contents[at].text for at in before if is_human(contents[at])), "")
    return f"{called}\n{said}"


def shortened(raw: Content, ceiling: int, query: str, tally: Tally) -> Content:
    """A content whose responses of more than ``ceiling`` tokens are extracts of at most that many."""
    key = f"{raw.digest}:{ceiling}:{hash_text(query)}"
    found = tally.remembered(key)
    if found is None:
        found = content_of_parts(raw.role, [_shortened(part, ceiling, query, tally) for part in raw.parts])
        tally.remember(key, found)
    return found


def response_tokens(content: Content, tally: Tally) -> list[int]:
    """Tokens of each response in a content."""
    return [tally.count(part.text) for part in content.parts if part.kind == "response"]


def _shortened(part: Part, ceiling: int, query: str, tally: Tally) -> Part:
    if part.kind != "response" or tally.count(part.text) <= ceiling:
        return part
    wire = json.loads(part.wire)
    held = wire["function_response"]
    held["response"] = _extracted(held.get("response"), ceiling, query, tally)
    return replace(part, text=canonical_json(held["response"]), wire=canonical_json(wire))


def _extracted(response: JSON, ceiling: int, query: str, tally: Tally) -> JSON:
    """The response with its one dominant text reduced to an extract, or an extract of its JSON, a value a line."""
    whole = canonical_json(response)
    leaf = max(strings(response), key=lambda one: (len(one[1]), one[0]), default=None)
    if leaf is not None and len(leaf[1]) >= _DOMINANT * len(whole):
        path, text = leaf
    else:
        response, path, text = {"extract": ""}, ("extract",), json.dumps(response, ensure_ascii=False, indent=1)
    budget = ceiling
    while True:
        chosen = extract(text, max_tokens=max(1, budget), counter=tally, query=query).text
        result = replaced(response, path, chosen)
        used = tally.count(canonical_json(result))
        if used <= ceiling or (budget <= 1 and path == ("extract",)):
            return result
        if budget <= 1:
            whole = json.dumps(response, ensure_ascii=False, indent=1)
            response, path, text, budget = {"extract": ""}, ("extract",), whole, ceiling
            continue
        budget = max(1, min(budget - 1, budget * ceiling // used))
