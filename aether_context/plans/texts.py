"""Reads the data that a text holds: JSON or Python in fences and braces, YAML, or headings, labels and lists.

A planner's answer mostly is such a text, with words around the data. Whoever asks decides which of the readings counts.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json

from aether_context.plans.spellings import field_of, spoken_status, status_of
from aether_context.text.decoding import read_python
from aether_context.text.patterns import pattern
from aether_context.text.shorten import sentences

if TYPE_CHECKING:
    from xml.etree import ElementTree

_MOST_JSON, _MOST_YAML, _MOST_OUTLINE = 1_000_000, 64 * 1024, 200_000
_MOST_DEPTH = 20
_MOST_BRACES = 40
_FENCE = pattern(r"^[ \t]{0,12}```[^\n]{0,40}\n(.*?)(?:^[ \t]{0,12}```|\Z)", re.DOTALL | re.MULTILINE)
_BRACE = pattern(r"""\{(?=\s{0,100}["'}\w/])|\[(?=\s{0,100}["'{\[])""")
_LOOSE = pattern(r"""("(?:[^"\\\n]|\\.)*")|//[^\n]*|,(?=\s{0,100}[}\]])""")
"""In JSON: a string, which stays, or a comment or a comma before a closing bracket, which a strict reader refuses."""


def json_in(text: str) -> tuple[Any, bool]:
    """The object or list that a text is, None where it is none; and whether the text ends before it is complete."""
    text = text[:_MOST_JSON].strip()
    if not text.startswith(("{", "[")):
        return None, False
    with suppress(ValueError, RecursionError):
        return json.loads(text), False
    if (value := read_python(text)) is not None:
        return value, False
    # pydantic-core reads UTF-8 only, which cannot hold half of a surrogate pair.
    strict = _LOOSE.sub(lambda match: match[1] or "", text).encode("utf-8", "replace")
    for ends_early in (False, True):
        with suppress(ValueError):
            value = from_json(strict, allow_partial=ends_early)
            return (value, ends_early) if value else (None, False)
    return None, False


def readings(text: str) -> Iterator[tuple[Any, bool]]:
    """Each reading of a text as data, the likeliest first, and whether the text ends before it is complete."""
    text = text[:_MOST_JSON].replace("\r\n", "\n")
    blocks = [*(match[1] for match in _FENCE.finditer(text)), text]
    yield from (reading for reading in map(json_in, blocks) if reading[0] is not None and not reading[1])
    starts = [match.start() for match in _BRACE.finditer(text)][:_MOST_BRACES]
    end = 0
    for start in starts:
        with suppress(ValueError, RecursionError):
            try:
                value, end = json.JSONDecoder().raw_decode(text, start) if start >= end else (None, end)
            except ValueError:  # what stands in an object that the text ends in is not read without it
                value, end = from_json(text[start:].encode("utf-8", "replace"), allow_partial=True), len(text) + 1
            if isinstance(value, dict) or any(isinstance(item, dict) for item in value or ()):
                yield value, end > len(text)
    for start in starts[: 0 if end else 3]:
        last = max(text.rfind("}"), text.rfind("]")) + 1
        yield from (reading for reading in map(json_in, (text[start:last], text[start:])) if reading[0] is not None)
    for read in (read_yaml, read_xml, read_outline):
        yield from ((value, False) for value in map(read, blocks) if value)


def read_yaml(text: str) -> Any:
    """The mapping or list that a YAML text is, each scalar as the text that it is; None where it is none.

    Reading ends at an alias, a few of which stand for more data than any memory holds, and at a depth above 20, where
    the parser's time grows with the square of the depth.
    """
    if len(text) > _MOST_YAML:
        return None
    import yaml  # like the parser of XML below: most plans need neither

    class Loader(yaml.BaseLoader):  # type: ignore[misc]
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.depth += 1
            if self.depth > _MOST_DEPTH or self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        value = yaml.load(text, Loader=Loader)  # it makes nothing but texts, lists and mappings
    except (yaml.YAMLError, ValueError):
        return None
    holds_data = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    return value if isinstance(value, dict) or holds_data else None


def read_xml(text: str) -> Any:
    """The elements of a text as mappings, with their attributes; None where it is not XML. Declarations are refused:
    they define entities, a few of which stand for more data than any memory holds."""
    start, end = text.find("<"), text.rfind(">") + 1
    if start < 0 or "<!" in text or end - start > _MOST_OUTLINE:
        return None
    from xml.etree import ElementTree

    with suppress(ElementTree.ParseError, RecursionError):
        return _element(ElementTree.fromstring(f"<all>{text[start:end]}</all>"))
    return None


def _element(element: ElementTree.Element) -> Any:
    fields: dict[str, Any] = dict(element.attrib)
    tags = Counter(child.tag for child in element)
    for child in element:
        if tags[child.tag] > 1:
            fields.setdefault(f"{child.tag}s", []).append(_element(child))
        else:
            fields[child.tag] = _element(child)
    text = (element.text or "").strip()
    return ({"text": text} if text else {}) | fields if fields else text


# Steps as lines, and their marks.

_STEP_WORD = (
    r"(?:steps?|tasks?|todo|phase|milestone|schritt|aufgabe|[eé]tape|t[aâ]che|paso|tarea|passo|etapa|fase|步骤|任务|阶段"
    r"|ステップ|手順|タスク|단계|шаг)"
)
_COUNT_WORD = r"[一二三四五六七八九十]"
_NUMBER = pattern(
    r"#?\(?(\d{1,3}[a-z]?|\d{1,2}(?:\.\d{1,2}){1,3})"
    r"(?:[.)\]:](?=[ \t]|[^\x00-\x7f])|[、．]|(?<=\d\.\d)(?=[ \t]))[ \t]{0,8}"
    rf"|第(\d{{1,3}}|{_COUNT_WORD}{{1,3}})(?:步|阶段)?[:：、,，. ]{{1,3}}"
    rf"|{_STEP_WORD}[ \t]{{0,4}}#?(\d{{1,3}}[a-z]?|{_COUNT_WORD})[ \t]{{0,4}}(?:[:：.)、–—-][ \t]{{0,8}}|$)",
    re.IGNORECASE,
)
_BOX = pattern(r"\[([ xX✓✔~>/-])\][ \t]{0,8}")
_SIGN = pattern(r"[^\w\s\[\](){}\"'`$€£%&@#*+<=.,;:!?/\\|~^-]{1,3}")
_BEFORE = pattern(r"[\[(（【]([\w -]{1,20})[\])）】][ \t:：]{0,4}|([A-Z_ ]{4,20})[:：][ \t]{1,4}")
_BEHIND = pattern(
    r"[ \t]{0,8}(?:[(\[（【]([^()\[\]（）【】]{1,40})[)\]）】]"
    r"|(?<=[ \t])(?:[–—|:-]|←|<-{1,2})[ \t]{1,4}([^–—|:←<-]{1,40}))[.!]?"
)
_LAST = pattern(r"(?<=[.!?。！？])[ \t]{0,8}([^.!?。！？]{2,60})[.!。！]?$")
"""A sentence behind a step's own."""
_DIGITS = {digit: str(number) for number, digit in enumerate("一二三四五六七八九十", start=1)}
_BOXES = {" ": "ready", "~": "claimed", ">": "claimed", "/": "claimed", "-": "claimed"}


class Marked(NamedTuple):
    """A step in a line of text, without its marks: a box, a sign, a number, a status in brackets or behind a dash."""

    text: str
    id: str = ""
    status: str = ""


def marked(text: str) -> Marked:
    """The step that a text is, and what its marks say of it. The first mark that says its status holds."""
    id, status, text = "", "", text.strip()
    for _ in range(4):
        unchanged = text
        if box := _BOX.match(text):
            status, text = status or _BOXES.get(box[1], "done"), text[box.end() :]
        if text.startswith("~~") and "~~" in text[2:]:
            status, text = status or "done", text[2:].replace("~~", "", 1).strip()
        if (number := _NUMBER.match(text)) and number.end() < len(text):
            number_text = number[1] or number[2] or number[3]
            id, text = id or _DIGITS.get(number_text, number_text), text[number.end() :]
        if (sign := _SIGN.match(text)) and (status_word := status_of(sign[0])):
            status, text = status or status_word, text[sign.end() :].strip()
        label = _BEFORE.match(text)
        if label and label.end() < len(text) and (status_word := status_of(label[1] or label[2])):
            status, text = status or status_word, text[label.end() :]
        for tail in _BEHIND.finditer(text, max(1, len(text) - 60)):
            if tail.end() == len(text) and (status_word := status_of(tail[1] or tail[2])):
                status, text = status or status_word, text[: tail.start()].strip()
                break
        if (last := _LAST.search(text)) and (status_word := spoken_status(last[1])):
            status, text = status or status_word, text[: last.start()]
        if (sign := _SIGN.fullmatch(text[-2:].strip())) and (status_word := status_of(sign[0])) and len(text) > 4:
            status, text = status or status_word, text[: -len(sign[0])].strip()
        if text == unchanged:
            break
    return Marked(text, id, status)


_BULLET = pattern(r"[-*+•▪◦‣–][ \t]{1,8}(?=\S)")
_ITEM = pattern(rf"(?:{_BULLET.pattern})?(?:{_BOX.pattern}|{_SIGN.pattern}[ \t]|~~|{_NUMBER.pattern})", re.IGNORECASE)


def bulleted(text: str) -> list[str]:
    """The lines of a text in which each line is a bullet or numbered, without the bullets; else the text alone."""
    lines = [line.strip() for piece in text.splitlines() for line in _numbered(piece) if line.strip()]
    if len(lines) < 2 or not all(_BULLET.match(line) or _ITEM.match(line) for line in lines):
        return [text]
    return [_BULLET.sub("", line, count=1) for line in lines]


_COUNT = pattern(rf"(?:^|(?<=\s))(?:{_STEP_WORD}\s)?\(?([1-9]\d?)[.):]\s", re.IGNORECASE)


def _numbered(line: str) -> list[str]:
    """A line cut at the numbers in it, where they count from 1: ``1. Find it 2. Fix it``."""
    starts: list[int] = []
    for match in _COUNT.finditer(line):
        if int(match[1]) == len(starts) + 1:
            starts.append(match.start())
    pieces = [line[start:end] for start, end in zip([0, *starts], [*starts, len(line)], strict=True)]
    return [piece for piece in pieces if piece.strip()] if len(starts) > 1 else [line]


# Sentences that say how far the steps are.

_TO = r"[ ]?(?:[-–,&]|and|to|through|und|bis|et|à|y|a|e)[ ]?"
_NUMBERS = pattern(rf"(?i){_STEP_WORD}[ ]?#?(\d{{1,3}}(?:{_TO}(?:{_STEP_WORD}[ ]?)?#?\d{{1,3}})*)")
_COUNTS = {"first": 1, "second": 2, "third": 3, "fourth": 4, "two": 2, "three": 3, "four": 4, "five": 5}
_WORDED = pattern(rf"(?i)(?<!of )\b(?:first )?({'|'.join(_COUNTS)}) step(s?)\b")
_RANGE, _SHARE = pattern(r"(?<=\d)[ ]?[-–][ ]?(?=\d)"), pattern(r"\b\d{1,3} ?(?:/|of) ?\d{1,3}\b")
_CLAUSE = pattern(rf"(?i),[ ](?!\d)|(?<!\d)[ ](?:and|but|while|und|aber)[ ](?=(?:the[ ])?{_STEP_WORD}[ ]?#?\d)")


def progress_in(text: str) -> tuple[str, dict[str, Any]]:
    """A text without the sentences that say how far its steps are, and what they say by field: of ``Steps 1 and 2 are
    done.`` the numbers, and ``2 of 3 steps are done.`` itself."""
    other_text, fields = "", dict[str, Any]()
    for sentence in sentences(text):
        claim = _RANGE.sub(" to ", sentence.strip())
        claim = _WORDED.sub(lambda match: f"step {'1 to ' if match[2] else ''}{_COUNTS[match[1].lower()]}", claim)
        clauses = [(match, clause) for clause in _CLAUSE.split(claim) if (match := _NUMBERS.search(clause))]
        statuses = [spoken_status(clause.replace(match[0], " ")) for match, clause in clauses]
        if not clauses and _SHARE.search(claim) and spoken_status(claim) == "done":
            fields["progress"] = claim
        elif not any(statuses) or _ITEM.match(claim):
            other_text += sentence
            continue
        for (match, _), status in zip(clauses, statuses, strict=True):
            ends = [int(end) for end in re.findall(r"\d+", match[1])]
            is_range = len(ends) == 2 and re.search("to|through|bis|à", match[1])
            name = {"done": "completed steps", "claimed": "current step number"}.get(status, "")
            fields.setdefault(name, []).extend(range(ends[0], ends[1] + 1) if is_range else ends)
    fields.pop("", None)  # what is ready or blocked, and clauses that say nothing of a status
    return other_text, fields


# Headings, labels and lists.

_TAG = pattern(r"<(/?)([A-Za-z_][\w -]{0,40})>|/\*([A-Z_ ]{3,30})\*/")
_HEADING = pattern(r"(#{1,6})[ \t]{1,8}(\S.*)")
_LABEL = pattern(r"([^\s:：|\"'{}\[\]][^:：|]{0,48})[:：](?!//)(.*)")
_MOST_HEADINGS, _LABEL_LEVEL, _ITEM_LEVEL = 6, 7.0, 8.0


class _Node:
    """A line of an outline, and what stands below it: a label that is known, an item of a list, or prose."""

    def __init__(
        self, level: float, text: str, label: str = "", *, is_item: bool = False, is_step: bool = False
    ) -> None:
        self.level, self.text, self.label = level, text, label
        self.is_item, self.is_step = is_item, is_step
        self.below: list[_Node] = []

    @property
    def says_its_value(self) -> bool:
        """Whether it is the label of a task or goal with that behind it, to which no list of steps belongs."""
        return bool(self.text) and (field_of("plan", self.label) or ("",))[0] in ("task", "goal")

    def items(self) -> list[Any]:
        """The list below; none where most of it are questions, which a planner asks who has no plan yet."""
        items = [node.value() for node in self.below if node.is_item]
        asks = sum(str(item).rstrip("\"'} ").endswith(("?", "？")) for item in items)
        return items if 2 * asks <= len(items) else []

    def prose(self) -> str:
        nodes = [node for node in self.below if not node.label and not node.is_item]
        return "\n".join(node.text for node in nodes if node.level > _MOST_HEADINGS)

    def fields(self) -> dict[str, Any]:
        """Reads the nodes below as a mapping: values by label, prose as its text, items as steps or as its parts."""
        values_by_label = defaultdict[str, list[Any]](list, text=[self.prose()] if self.prose() else [])
        for node in self.below:
            if node.label:
                values = [value for value in (node.text, *(node.items() or [node.prose()])) if value]
                titled = len(values) > 1 and values[0] == node.text and _tells_of_steps(node.label)
                values_by_label["task"] += values[:titled]
                values_by_label[node.label] += values[titled:]
                for label, more in node.fields().items():  # a label under a label belongs to the same
                    values_by_label[label] += more if label not in ("text", "parts", "steps") else ()
        for node in self.below:
            if node.level <= _MOST_HEADINGS and not (node.label or node.is_item):  # a heading of any other kind
                for label, more in node.fields().items():
                    if label != "text" and not (label == "steps" and values_by_label.get("steps")):
                        values_by_label[label] += more
        if self.is_item and not (self.level <= _MOST_HEADINGS and any(node.is_step for node in self.below)):
            values_by_label["parts"] += self.items()
        elif any(node.is_step for node in self.below) or _tells_of_steps(self.label or self.text):
            values_by_label["steps"] += self.items()
        return {label: values for label, values in values_by_label.items() if values}

    def value(self) -> Any:
        """An item: its text, or its fields with that."""
        fields = _single(self.fields())
        return {**fields, "text": "\n".join(filter(None, (self.text, fields.get("text"))))} if fields else self.text


def _single(fields: dict[str, Any]) -> dict[str, Any]:
    return {label: values[0] if len(values) == 1 else values for label, values in fields.items()}


def read_outline(text: str) -> dict[str, Any]:
    """Reads a text by headings, tags, labels and lists, as a mapping; empty where it has none."""
    text = _TAG.sub(lambda tag: f"\n# {'' if tag[1] else tag[2] or tag[3]}\n", text[:_MOST_OUTLINE])
    text, progress = progress_in(text)
    lines = [line for whole in text.replace("**", "").replace("__", "").splitlines() for line in _numbered(whole)]
    labels = Counter(match[1] for line in lines if (match := _LABEL.fullmatch(line)))
    top = _Node(0.0, "")
    open_nodes = [top]
    after_item = False
    for line in lines:
        body = line.strip()
        if not body or set(body) <= set("#-=*_`~"):
            after_item, open_nodes = False, [top] if body == "#" else open_nodes
            continue
        node = _node(line, body, labels if after_item else {})
        is_prose = not (node.label or node.is_item or node.level <= _MOST_HEADINGS)
        # A line of prose at the margin ends what is open, but for a label that waits for its value.
        while len(open_nodes) > 1 and (
            not (after_item or open_nodes[-1].level <= _MOST_HEADINGS) and (open_nodes[-1].text or open_nodes[-1].below)
            if is_prose
            else open_nodes[-1].level >= node.level or (node.is_step and open_nodes[-1].says_its_value)
        ):
            open_nodes.pop()
        open_nodes[-1].below.append(node)
        open_nodes += [] if is_prose else [node]
        after_item = node.is_item or (after_item and not is_prose)
    if all(node.is_item for node in top.below):
        top.label = "steps"  # nothing but a list
    fields = {label: values for label, values in _single(top.fields()).items() if label != "text"} | progress
    rows = _table([line.strip() for line in lines])
    return {**fields, "steps": rows} if rows else fields


def _node(line: str, body: str, labels: Mapping[str, int]) -> _Node:
    """Classifies a line. Items stand deeper than labels at the margin, so that a list belongs to the label before it; a
    label that is said again after other items belongs to the item before it. ``labels`` says how often each label
    stands at the margin, for a line below an item."""
    indent, heading, bullet = len(line) - len(line.lstrip()), _HEADING.match(body), _BULLET.match(body)
    text = heading[2].strip("# ") if heading is not None else body[bullet.end() :] if bullet is not None else body
    is_step = _ITEM.match(text) is not None
    rise = 0.5 if is_step and bullet is None else 0
    level = len(heading[1]) if heading is not None else _ITEM_LEVEL + indent - rise
    is_alone = heading is not None or (bullet is None and field_of("plan", text) is not None)
    match = _LABEL.fullmatch(text) or (_LABEL.fullmatch(f"{text}:") if is_alone else None)
    if match is not None and not is_step:
        label, value = match[1].strip(" *_-`"), match[2].strip()
        is_known = field_of("plan", label) or field_of("step", label)
        if is_known or (not value and _tells_of_steps(label)):
            if bullet is None and heading is None and not indent:
                level = _LABEL_LEVEL if labels.get(match[1], 0) < 2 else level + 0.1
            return _Node(level, value, label if is_known or not _tells_of_steps(label) else "steps")
    return _Node(level, text, is_item=is_step or (bullet is not None and heading is None), is_step=is_step)


def _tells_of_steps(text: str) -> bool:
    """Tells whether a heading or an opening line says that steps follow."""
    return any((field_of("plan", word) or ("", 0))[0] == "steps" for word in re.split(r"[\W_]+", text[:80]) if word)


def _table(lines: list[str]) -> list[dict[str, str]]:
    """The rows of a Markdown table of steps, by the words of its head."""
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    head, *rows = table or [[]]
    if not any((field_of("step", cell) or ("", 0))[0] in ("text", "title") for cell in head):
        return []
    return [dict(zip(head, row, strict=False)) for row in rows if any(cell.strip(":- ") for cell in row)]
