"""What a cut leaves in the place of what it takes: a summary and an entity table, in one text that mostly grows.

The text stands where the first content went, behind what stays in front of that, so a cut that only adds to it leaves
both inside the provider's cached prefix. Once there is no room left for an addition, everything is ranked anew in a
part of it, so that the next cuts can add again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from aether_context.canonical import strings
from aether_context.pack import Content, Part
from aether_context.text.compression import Counts, Summaries, split_bullets, summarize
from aether_context.text.entities import calls_line, entity_table, is_entry, table_of

SUMMARY_TITLE = "CONVERSATION SUMMARY (earlier messages that are no longer in full)"


def summary_message(summary: str) -> str:
    """The summary as a message of its own before the turns that are kept."""
    return f"{SUMMARY_TITLE}:\n{fenced(summary)}"


def fenced(text: str) -> str:
    """Text whose every line is a bullet or indented."""
    return "\n".join(line if line.startswith(("- ", "  ")) else f"  {line}" for line in text.splitlines())


MOST_TOKENS = 4_000
"""A recap's ceiling whatever the window: it lies in session state, where 12 KB of text are 4 KB or less."""

_ENTITIES = 0.7
_LOOKUPS = 0.3
_FIRST = 0.7
_LEAST_ADDED, _MOST_ADDED = 0.15, 0.3


def recap(
    gone: Sequence[Content],
    kept: Sequence[Content],
    *,
    max_tokens: int,
    counter: Counts,
    summaries: Summaries | None = None,
    earlier: str = "",
) -> str:
    """The text that replaces contents that a cut takes; empty where nothing fits.

    Args:
        gone: contents that leave, in their order.
        kept: contents that stay; what they mention is not repeated.
        summaries: a model's, in place of the summary in the conversation's own words.
        earlier: the recap of earlier cuts.
    """
    summaries = summaries or Summaries("", {})
    room = max_tokens - counter.count(earlier) if earlier else 0
    if room >= _LEAST_ADDED * max_tokens:
        added = _composed(gone, kept, "", min(room, int(_MOST_ADDED * max_tokens)), counter, summaries, known=earlier)
        return f"{earlier}\n{added}" if added else earlier
    return _composed(gone, kept, earlier, int(_FIRST * max_tokens), counter, summaries)


def _composed(
    gone: Sequence[Content],
    kept: Sequence[Content],
    earlier: str,
    room: int,
    counter: Counts,
    summaries: Summaries,
    known: str = "",
) -> str:
    bullets = split_bullets(earlier)
    entries = "\n".join(bullet for bullet in bullets if is_entry(bullet))
    summary_bullets = "\n".join(bullet for bullet in bullets if not (is_entry(bullet) or is_lookup(bullet)))
    lookup_bullets = [bullet for bullet in bullets if is_lookup(bullet)]
    lines = lookup_lines(gone, max_tokens=int(_LOOKUPS * room), counter=counter, earlier=lookup_bullets, known=known)
    looked_up = "\n".join(lines)
    dropped_lookups = table_of(line for line in lookup_bullets if line not in lines)
    entries = "\n".join(filter(None, (dropped_lookups, entries)))
    known = "\n".join(filter(None, (known, looked_up)))
    table = entity_table(
        gone, max_tokens=int(_ENTITIES * room), counter=counter, earlier=entries, present=kept, known=known
    )
    summary_room = room - counter.count(looked_up) - counter.count(table) - 2
    summary = summaries.conversation(gone, max_tokens=summary_room, counter=counter, earlier=summary_bullets)
    summary = summary or summarize(gone, max_tokens=summary_room, counter=counter, earlier=summary_bullets)
    return "\n".join(filter(None, (summary, looked_up, table))) or calls_line(gone, max_tokens=room, counter=counter)


# Small results of calls as lines of a recap: what was asked, and what came of it.

_LOOKUP_TITLE = "- found by "
_LONGEST_LOOKUP = 360
"""Characters of a result that is small."""
_MANY_LOOKUPS, _LOOKUP_SHARE = 4, 0.3
"""A tool's small results are listed where there are so many, and where they are such a share of all of its results."""


def is_lookup(bullet: str) -> bool:
    """Whether a bullet of a recap is the line of a small result."""
    return bullet.startswith(_LOOKUP_TITLE)


def lookup_lines(
    contents: Sequence[Content], *, max_tokens: int, counter: Counts, earlier: Sequence[str] = (), known: str = ""
) -> list[str]:
    """The small results of tools that gave many, a line each, in their order; the latest where not all find room.

    Args:
        contents: that leave, in their order.
        earlier: the lines of earlier cuts.
        known: text beside them; lines in it are left out.
    """
    lookups = list(_small(contents))
    results = Counter(response.name for content in contents for response in content.responses)
    counts = Counter(name for name, _ in lookups)
    tables = {name for name, number in counts.items() if number >= max(_MANY_LOOKUPS, _LOOKUP_SHARE * results[name])}
    lines = [*earlier, *(line for name, line in lookups if name in tables)]
    known_lines = set(known.splitlines())
    latest_lines = [line for line in dict.fromkeys(reversed(lines)) if line not in known_lines]
    chosen_lines: list[str] = []
    for line in latest_lines:
        max_tokens -= counter.count(line) + 1
        if max_tokens < 0:
            break
        chosen_lines.append(line)
    return chosen_lines[::-1]


def _small(contents: Sequence[Content]) -> Iterator[tuple[str, str]]:
    """The tool of each small result, and the line with what was asked and what came."""
    calls_by_tool: dict[str, list[Part]] = {}
    for content in contents:
        for call in content.calls:
            calls_by_tool.setdefault(call.name, []).append(call)
        for response in content.responses:
            waiting = calls_by_tool.get(response.name, [])
            matching = (at for at, candidate in enumerate(waiting) if candidate.call_id == response.call_id)
            answered = waiting.pop(next(matching, 0)) if waiting else None
            if answered is not None and len(response.text) <= _LONGEST_LOOKUP and (values := _values(response.text)):
                yield answered.name, f"{_LOOKUP_TITLE}{answered.name} {_values(answered.text)}: {values}"


def _values(text: str) -> str:
    """The texts in a JSON text in one line; the JSON itself where it holds none."""
    texts = [value for _, value in strings(json.loads(text))] or [text]
    return ", ".join(
        "; ".join(" ".join(line.split()) for line in value.splitlines() if line.strip()) for value in texts
    )
