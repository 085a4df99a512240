"""Long texts in pieces."""

from __future__ import annotations

import re

LONGEST = 600
"""Characters of a passage."""
_TITLE = 120
_SENTENCE = re.compile(r"[^\n.!?]*(?:[.!?]+|\n|$)\s*")


def passages(text: str, most: int = LONGEST) -> list[str]:
    """A text in pieces of at most so many characters, each of whole lines or sentences while those are no longer."""
    if len(text) <= most:
        return [text.strip()] if text.strip() else []
    pieces = [""]
    for sentence in _SENTENCE.findall(text):
        for start in range(0, len(sentence), most):
            part = sentence[start : start + most]
            if len(pieces[-1]) + len(part) > most:
                pieces.append("")
            pieces[-1] += part
    return [piece.strip() for piece in pieces if piece.strip()]


def titled_passages(text: str) -> list[str]:
    """The passages of a text, one where it is short; before all but the first stands the text's first line.

    In its first line most documents name their subject, which their parts do not repeat.
    """
    pieces = passages(text)
    if len(pieces) < 2:
        return [text]
    title = text.lstrip().partition("\n")[0][:_TITLE]
    return [pieces[0], *(f"{title}\n{piece}" for piece in pieces[1:])]
