"""Small results of calls as lines of a recap: what was asked, and what came of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from aether_context.canonical import strings
from aether_context.pack import Content, Part
from aether_context.text.compression import CountsAhead

_TITLE = "- found by "
_LONGEST = 360
"""Characters of a result that is small."""
_MANY, _SHARE = 4, 0.3
"""So many small results of one tool, and so much of all of its results, are a table; others are told like the rest."""


def is_lookup(bullet: str) -> bool:
    """Whether a bullet of a recap is the line of a small result."""
    return bullet.startswith(_TITLE)


def lookup_lines(
    contents: Sequence[Content], *, max_tokens: int, counter: CountsAhead, earlier: Sequence[str] = (), known: str = ""
) -> list[str]:
    """The small results of tools that gave many, a line each, in their order; the latest where not all find room.

    Args:
        contents: that leave, in their order.
        earlier: the lines of earlier cuts.
        known: text that stands beside them; what it says already is left out.
    """
    small = list(_small(contents))
    results = Counter(response.name for content in contents for response in content.responses)
    often = Counter(name for name, _ in small)
    tables = {name for name, number in often.items() if number >= max(_MANY, _SHARE * results[name])}
    lines = [*earlier, *(line for name, line in small if name in tables)]
    there = set(known.splitlines())
    latest = [line for line in dict.fromkeys(reversed(lines)) if line not in there]
    counter.count_ahead(latest[: max_tokens // 8])
    kept: list[str] = []
    for line in latest:
        max_tokens -= counter.count(line) + 1
        if max_tokens < 0:
            break
        kept.append(line)
    return kept[::-1]


def _small(contents: Sequence[Content]) -> Iterator[tuple[str, str]]:
    """The tool of each small result, and the line that tells it."""
    asked: dict[str, list[Part]] = {}
    for content in contents:
        for call in content.calls:
            asked.setdefault(call.name, []).append(call)
        for response in content.responses:
            waiting = asked.get(response.name, [])
            mine = (at for at, one in enumerate(waiting) if one.call_id == response.call_id)
            question = waiting.pop(next(mine, 0)) if waiting else None
            if question is not None and len(response.text) <= _LONGEST and (said := _values(response.text)):
                yield question.name, f"{_TITLE}{question.name} {_values(question.text)}: {said}"


def _values(text: str) -> str:
    """The texts in a JSON text in one line; the JSON itself where it holds none."""
    texts = [said for _, said in strings(json.loads(text))] or [text]
    return ", ".join("; ".join(" ".join(line.split()) for line in said.splitlines() if line.strip()) for said in texts)
