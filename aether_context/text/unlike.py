"""Lines of a text that are unlike the rest of it: those whose words are rare in it, and those that head its parts.

Which words say that something is wrong differs by tool and by language (``ERR!``, ``not ok``, ``FEHLER``). In what a
machine writes line by line, such as a log, they are rare, so a line is told by the words of its own text alone. Digits
count for nothing, since those of times and numbers differ in every line.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain

_NO_WORD = {code: " " for code in range(128) if not chr(code).isalpha() and chr(code) != "\n"}
"""What stands between words: of the signs of ASCII all but letters. A check mark is a word."""
_FEWEST_LINES, _MOST_ABOVE = 8, 60
_TIMES_USUAL, _LEAST_ODD = 1.8, 0.2
"""How many times as rare as those of the median line the words of an odd one are on the average, and the least of it.
In prose and code the words of most lines are rare."""
_LONGEST_BLOCK = 12
_HEADING = re.compile(
    r"""diff\ -|Index:\ \S|\#{1,6}\ \S|([=_-])\1{2,}\s\S.*\s\1{3,}\s*$|\[[\w.:/ -]{1,80}\]$
    |\s{0,8}(?:(?:export|default|public|private|protected|internal|static|async|abstract|final|pub(?:\(\w+\))?)\s+){0,4}
      (?:def|class|function|func|fn|impl|interface|struct|enum|trait|module|namespace|type)\s+[\w$(]
    |(?i:chapter|section|article|clause|part|§)\s{0,2}[\dIVX]|\d{1,3}(?:\.\d{1,3}){0,4}\.?\s+[A-Z]\w""",
    re.VERBOSE,
)


def odd_lines(lines: Sequence[str]) -> list[list[int]]:
    """Blocks of lines whose words are rare among the words of all, the oddest first; of equal lines the first.

    A line's oddness is the mean over its words of how rare each is, 0 for one in every line and 1 for one that stands
    in a single line. A word more counts 0, so that a line of one word is not the oddest. Behind a block that is
    indented comes the line that it stands under.
    """
    if len(lines) < _FEWEST_LINES:
        return []
    words = [line.split() for line in "\n".join(lines).translate(_NO_WORD).split("\n")]
    scale = math.log(len(lines) + 1)
    counts = Counter(chain.from_iterable(words))
    rarity = {word: max(0.0, 1 - math.log(count) / scale) for word, count in counts.items()}
    oddness = [sum(map(rarity.__getitem__, of_line)) / (len(of_line) + 1) for of_line in words]
    usual = sorted(score for score in oddness if score)[len(lines) // 2 :][:1] or [0.0]
    threshold = max(_LEAST_ODD, _TIMES_USUAL * usual[0])
    blocks: list[list[int]] = []
    shapes: set[tuple[str, ...]] = set()
    for at, score in enumerate(oddness):
        if score < threshold or (shape := tuple(words[at])) in shapes:
            continue
        shapes.add(shape)
        last = blocks[-1][-1] if blocks and len(blocks[-1]) < _LONGEST_BLOCK else at
        if last < at and not any(words[last + 1 : at][:2]) and at - last <= 2:
            blocks[-1] += range(last + 1, at + 1)
        else:
            blocks.append([at])
    blocks.sort(key=lambda block: (-max(oddness[at] for at in block), block[0]))
    return [list(dict.fromkeys((*block, *_outer_line(lines, block[0])))) for block in blocks]


def _outer_line(lines: Sequence[str], at: int) -> list[int]:
    """The line that an indented one stands under, such as the file that a warning is about."""
    indent = len(lines[at]) - len(lines[at].lstrip())
    lines_before = (line for line in range(at - 1, max(-1, at - _MOST_ABOVE), -1) if lines[line].strip())
    return [line for line in lines_before if len(lines[line]) - len(lines[line].lstrip()) < indent][:1]


def headings(lines: Sequence[str]) -> list[int]:
    """The lines that head parts of a text, in their order: of files in a diff, of definitions in code, of sections."""
    return [at for at, line in enumerate(lines) if _HEADING.match(line)]


_YAML_ENTRY = re.compile(r"^( *)- [^\s:*][^\n:]{0,60}:(?!\S)[^\n]*\n\1  [^\s:-][^\n:]{0,60}:(?!\S)", re.MULTILINE)
"""An entry of a list in YAML that has several keys."""


def yaml_entries(text: str) -> int:
    """The number of entries in the outermost list of mappings in YAML; 0 where there is none."""
    indents = Counter(map(len, _YAML_ENTRY.findall(text)))
    return indents[min(indents)] if indents else 0


_RULE = re.compile(r"\s*[|+]?\s*:?-{2,}[-:|+=\s]*")


def column_names(lines: Sequence[str]) -> list[int]:
    """The lines that may name the columns of a table: the first one, and one above a rule, with that."""
    rule = next((at for at in range(1, min(len(lines), _MOST_ABOVE)) if _RULE.fullmatch(lines[at])), 0)
    return sorted({0, max(0, rule - 1), rule})
