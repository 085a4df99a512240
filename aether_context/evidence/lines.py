"""The lines in which an output is shown, read and searched: the same ones, by the same numbers, everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from aether_context.evidence.kinds import Kind, kind_of
from aether_context.evidence.outline import Line, compact, outlined, pieces, rendered, tabled
from aether_context.text.compression import lines_of
from aether_context.text.decoding import decoded, printable, read_json

MOST_DECODED = 40_000
"""Characters of the longest output that is decoded; longer ones are shown in their own lines."""

_LONGEST, _PIECE = 240, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """An output in lines, numbered from 1. ``outline`` holds them where they are JSON, ``whole`` the shortest text that
    says the same as the output; it is empty where that is the output itself. ``ends_early`` says that the JSON was cut
    off before it came here."""

    kind: Kind
    lines: Sequence[str]
    outline: Sequence[Line] = field(default=())
    whole: str = ""
    ends_early: bool = False

    def line(self, at: int) -> str:
        """A line as it is shown; the first one is 0."""
        return printable(self.lines[at])


def view_of(text: str) -> View:
    """An output in lines: those of the JSON or the text that it holds, long ones in pieces."""
    if len(text) > MOST_DECODED:
        return View(kind=kind_of(text), lines=lines_of(text))
    inside = decoded(text)
    found = read_json(inside)
    if found is None:
        lines = [piece for line in inside.split("\n") for piece in _pieces(line)]
        return View(kind=kind_of(inside), lines=lines, whole=inside if inside != text else "")
    value, is_complete = found
    outline = outlined(value)
    shortest = min(compact(value), compact(tabled(value)), key=len)
    lines = rendered(outline, range(len(outline))).split("\n")
    return View(
        kind="json",
        lines=lines,
        outline=outline,
        whole=shortest if len(shortest) < len(text) else "",
        ends_early=not is_complete,
    )


def _pieces(line: str) -> list[str]:
    return pieces(line, _PIECE) if len(line) > _LONGEST else [line]
