"""Images, sound and other data inside a tool's result, and the few words that stand for them in a prompt.

Data inside a text is told by the media type of its URI or by its signature (PNG, PDF, …). Without either, long runs of
one alphabet are data where they are as mixed as data is: hashes, tokens, keys and most certificates are shorter, and a
model may have to copy them. So stays what is named as something to copy, and a private key, which redaction masks.
"""

from __future__ import annotations

import ast
import base64
import binascii
import operator
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from aether_context.canonical import Path, hash_bytes, replaced
from aether_context.evidence.record import READ, EvidenceRecord, evidence_uri, size_words
from aether_context.evidence.show import is_text
from aether_context.redaction import Masker
from aether_context.text.json_lines import compact_json
from aether_context.text.patterns import pattern
from aether_context.tokens.media import sniffed

_TYPE = pattern(r"[\w.+-]{1,60}/[\w.+-]{1,80}")
_TYPE_KEYS = ("mimeType", "mime_type", "mimetype", "mediaType", "media_type")
_LEAST = 60
_DEEPEST = 50
_NO_TEXT = pattern(
    r"(?:image/(?!svg)|audio/|video/|font/|application/(?:pdf|zip|gzip|x-tar|ogg|msword|vnd\.))", re.IGNORECASE
)
_SHOWN = pattern(r"image/(?:png|jpeg|webp|heic|heif|gif)|audio/.+|video/.+|application/pdf")

_ENCODED = pattern(
    r"""(?x)
    data:(?P<uri>[\w.+/\\-]{0,140})(?:;[\w=.%-]{1,60}){0,4};base64,(?=[\w+/\\%-])
    | data:image\\{0,8}/svg\+xml[\w;=-]{0,60},(?P<svg>[\w%!$&'()*+,;=:@/?~.-]{60,}+|\\{0,8}<svg[^"\\]*+)
    | (?:(?<=\\[nrt])|(?<![A-Za-z0-9+/_\\-]))(?P<run>(?:[A-Za-z0-9+/_-]*+\\{1,8}/){0,20}?[A-Za-z0-9+/_-]{60,}+)
    | [\[({](?P<list>[\d\s,.+xXa-fA-Fnrt\\-]{200,}+)(?:[\])}]|\Z)
    | (?<![\d.,+-])(?<![\d, ][ ])(?P<row>-?\d[\d\ ,.eE+-]{999,}+)
    | (?<![\w:,-])(?<![\da-fA-F][ ])(?<![\da-fA-F],[ ])(?P<pairs>(?:(?:0|\\{1,8})x)?[\da-fA-F]{2}
        (?:(?:\\{1,8}x|[\s:,-]{1,2}(?:0x)?)[\da-fA-F]{2}){255,}+)(?!\w)
    | ^(?P<dump>(?:(?:0x)?[\da-fA-F]{4,16}:?[ \t]{1,4}
        (?:(?:[\da-fA-F]{2}){1,4}[ \t]{1,2}){4,32}[^\n]{0,80}(?:\n|\Z)){16,}+)
    | (?<!\w)(?P<literal>b(?:'(?:[^'\\\n]|\\x[\da-f]{2}|\\[nrt'\\]){100,}+(?:'|.{0,3}\Z)
        |"(?:[^"\\\n]|\\x[\da-f]{2}|\\[nrt\\]){100,}+(?:"|.{0,3}\Z)))
    """,
    re.MULTILINE,
)
"""Where data may begin: a URI, a run of base64 or hexadecimal, numbers, a dump, bytes as Python writes them. No part of
a text is read often: a run begins where none of its alphabet stands before it."""
_SIGNS = tuple(
    pattern(rf"(?:[{alphabet}]{{0,{size - 1}}}+[^{alphabet}]++)*+[{alphabet}]{{{size}}}")
    for alphabet, size in ((r"A-Za-z0-9+/_-", 60), (r"\s\d,.:xa-fA-Fnrt\\+-", 48))
)
"""Long runs of an alphabet, of which data without ``data:`` or ``\\x`` has one. They look at each character once, which
takes a third of the time of a search."""
_STEP, _OVERLAP, _LONGEST_PIECE = 50_000, 8_192, 500
"""Characters in which data may begin that one call looks at, since no other thread has its turn meanwhile; those behind
them, as many as it takes at most to know a beginning for one; and more than any piece of which data repeats many."""
_RUN = pattern(r"(?:[A-Za-z0-9+/_-]+|\\{1,8}/|%2[BbFf])+")
_PADDING = pattern(r"(?:=|%3[Dd]|\\{1,8}u003[dD]){0,2}")
_ENDS = pattern(r"""=|%3[Dd]|[\s"'\\<),;]*(?:\n|\Z|-----)|["'\\<)\]]""")
_LINE_END = pattern(r"""(?:(?:\\{1,8}r)?\\{1,8}n|\r?\n)["',\s>]{0,80}""")
"""A line break in base64, as such or as ``\\n``, with what a mail or a notebook puts around it."""
_HEX = pattern(r"(?:0x)?((?:[\da-fA-F]{2})+)")
_DUMPED = pattern(r"(?m)^(?:0x)?([\da-fA-F]+):?[ \t]+((?:(?:[\da-fA-F]{2}){1,4}[ \t]{1,2})+)")
_KEY = pattern(r"""(\\*["'])\s*:[\s\[]*$""")
_NEAR_TYPE = pattern(rf"""(?i)(?:mime|media|content)[_-]?type[\\"'\s:=]{{1,12}}({_TYPE.pattern})""")
_COPIED = pattern(
    r"""(?i)(?:token|cursor|continuation|signature|next_?page|state|secret|key|jwt|cookie)[\\"'\s:=>]*\Z|\.\Z"""
)
"""The name of what a model has to copy, and the dot between the parts of a token."""
_VECTOR = pattern(r"(?i)embedding|vector")
_IS_VECTOR = pattern(
    r"""(?i)(?:embedding|vector)s?[\W\d_]{0,20}(?:(?:values?|data|dense|u?int8|float\d{0,2})[\W\d_]{0,20})?\Z"""
)
"""A name of the list itself, whose numbers may be all positive, or quantized to bytes; one beside it is weaker."""
_BEFORE = 200
_LEAST_UNKNOWN = 2_048
"""Characters of base64 or hexadecimal without a type and a signature."""
_LONGEST_LINE, _USUAL_WIDTHS = 1_000, (60, 72, 76)
"""Characters of a line that goes on in the next, and of usual ones; equal lines of another width are a list of hashes
or tokens."""
_LEAST_NUMBERS, _LEAST_VECTOR, _VECTOR_STEP = 100, 256, 64
"""Numbers of the shortest list, and of a vector that nothing names: those of embeddings are a multiple, 365
measurements are not."""
_LEAST_BYTES, _LEAST_VALUES = 1_000, 200
"""Bytes of the shortest list without a signature, and how many different ones it holds: ages and counts hold fewer."""

_MOST_MEDIA = 64
"""Written data of one result that gets addresses, the largest: their records take 25 KB of the session's state."""


class Medium(NamedTuple):
    """Bytes of a media type. ``path`` leads to them in the JSON that they were found in, where ``written`` stands;
    ``span`` is its place in the text there, None where it is all of it. What replaces it needs ``quote`` around it."""

    data: bytes
    media_type: str
    path: Path = ()
    written: str = ""
    span: tuple[int, int] | None = None
    quote: str = ""


def media_in(value: object, path: Path = (), media_type: str = "") -> Iterator[Medium]:
    """The data in a result: base64 beside its media type, bytes and lists of them, vectors, and what stands in texts.

    Base64 stands beside its type under ``data`` or ``blob``, as the Model Context Protocol and the providers' APIs
    write it.

    Args:
        path: leads to the value.
        media_type: what the object that holds the value says that it is.
    """
    if isinstance(value, dict) and len(path) <= _DEEPEST:
        given = next((value[key] for key in _TYPE_KEYS if isinstance(value.get(key), str)), "")
        kind = given.partition(";")[0].strip().lower()
        kind = kind if _TYPE.fullmatch(kind) and (kind.startswith("image/") or not is_text(kind)) else ""
        for key, item in value.items():
            yield from media_in(item, (*path, key), kind if key in ("data", "blob") else "")
    elif isinstance(value, list) and len(path) <= _DEEPEST:
        if len(value) >= _LEAST_NUMBERS and {*map(type, value)} <= {int, float}:
            written, names = compact_json(value), " ".join(map(str, path[-3:]))
            if (numbers := _of_numbers([*map(repr, value)], written, names)) is not None:
                yield Medium(*numbers, path, written)
            return
        for at, item in enumerate(value):
            yield from media_in(item, (*path, at))
    elif isinstance(value, (bytes, bytearray)):
        data = bytes(value)
        written = base64.b64encode(data).decode()
        yield Medium(data=data, media_type=media_type or typed("", data), path=path, written=written)
    elif isinstance(value, str) and len(value) >= _LEAST:
        decoded = _decoded("".join(value.split())) if media_type else None
        if decoded is not None:
            yield Medium(data=decoded, media_type=typed(media_type, decoded), path=path, written=value)
        else:
            yield from _inside(value, path)


def clear_media(response: Mapping[str, Any], mask: Masker) -> list[Medium]:
    """The media that a response holds, but for secrets, which redaction masks where they stand; the largest, where they
    are very many."""
    media = list(media_in(response))
    if mask:
        clear = {medium.data for medium in media_in(mask.json(response))}
        media = [medium for medium in media if sniffed(medium.data) or medium.data in clear]
    lengths = sorted((len(medium.written) for medium in media), reverse=True)[:_MOST_MEDIA]
    return [medium for medium in media if len(medium.written) >= lengths[-1]]


def masked(medium: Medium, mask: Masker) -> Medium:
    """A medium as the store keeps it: masked where it is text."""
    if not mask or not is_text(medium.media_type):
        return medium
    with suppress(UnicodeDecodeError):
        text = mask(medium.data.decode("utf-8", "surrogatepass"))
        medium = medium._replace(data=text.encode("utf-8", "surrogatepass"))
    return medium


def is_clear(medium: Medium, mask: Masker) -> bool:
    """Tells whether nothing of a medium is to be masked: of pictures, sound and the like, and of a text that says so;
    not of what cannot be decoded."""
    if not mask or _NO_TEXT.match(medium.media_type):
        return True
    try:
        text = medium.data.replace(b"\0", b"").decode("utf-8")
    except UnicodeDecodeError:
        return False
    return mask(text) == text


def typed(media_type: object, data: bytes) -> str:
    """The media type that a tool gave, in lower case; where that is none, what the bytes tell."""
    kind = media_type.partition(";")[0].strip().lower() if isinstance(media_type, str) else ""
    if kind := kind if _TYPE.fullmatch(kind) else sniffed(data):
        return kind
    with suppress(UnicodeDecodeError):
        if "".join(data.decode().split()).isprintable():
            return "text/plain"
    return "application/octet-stream"


def can_be_shown(media_type: str) -> bool:
    """Tells whether models take a media type beside a text."""
    return _SHOWN.fullmatch(media_type) is not None


def record_of(medium: Medium, ending: str = "bin", **fields: Any) -> EvidenceRecord:
    """The record of a medium whose bytes are evidence, with what else is known of it."""
    digest, kind = hash_bytes(medium.data), medium.media_type
    fields |= {"uri": evidence_uri(digest, ending), "digest": digest, "size_bytes": len(medium.data)}
    return EvidenceRecord(**fields, media_type=kind, form="described")


def mark(record: EvidenceRecord, earlier: str = "", *, is_inside: bool = False) -> str:
    """The mark in the place of a medium: its address, its type and its size, and the address that it supersedes.

    Args:
        is_inside: whether a text stands around it.
    """
    if is_inside:
        return f"[{record.media_type}, {size_words(record.size_bytes)}: {record.uri}]"
    text = f"{record.uri} ({record.media_type}, {size_words(record.size_bytes)})"
    text += f", supersedes {earlier}" if earlier else ""
    return f"{text}: {READ} shows it" if can_be_shown(record.media_type) else text


def with_marks(response: Mapping[str, Any], marks: Sequence[tuple[Medium, str]]) -> Any:
    """A response with texts in the places of media, which are given in their order."""
    marked: Any = response
    for medium, text in reversed(marks):
        if medium.span is not None:
            whole, (start, end) = reduce(operator.getitem, medium.path, marked), medium.span
            text = f"{whole[:start]}{medium.quote}{text}{medium.quote}{whole[end:]}"
        marked = replaced(marked, medium.path, text)
    return marked


def _inside(text: str, path: Path) -> Iterator[Medium]:
    """The data in a text, in order."""
    at, steps = 0, deque(start for start in range(0, len(text), _STEP) if _may_hold(text, start))
    while (match := _next_data(text, at, steps)) is not None:
        start, at = match.span()
        # The key under which a text stands names what it begins with.
        prefix = f"{path[-1] if path else ''}: {text[:start]}" if start < _BEFORE else text[start - _BEFORE : start]
        content: tuple[bytes, str] | None = None
        quote = ""
        if (escaped := match["svg"]) is not None:
            if (end := max(escaped.rfind(closing) + len(closing) for closing in ("svg%3E", "svg%3e", "svg>"))) > _LEAST:
                at -= len(escaped) - end
                content = unquote_to_bytes(escaped[:end]), "image/svg+xml"
        elif numbers := match["list"] or match["row"] or match["pairs"]:
            pairs = [f"0x{pair}" for pair in re.findall(r"[\da-fA-F]{2}", match["pairs"] or "")]
            content = _of_numbers(pairs or re.findall(r"[\w.+-]+(?<!\\[nrt])", numbers), match[0], prefix[-60:])
            quote = key[1] if (key := _KEY.search(prefix)) is not None else ""
        elif dump := match["dump"]:
            at -= dump.endswith("\n")
            lines = [(int(line[1], 16), bytes.fromhex(line[2])) for line in _DUMPED.finditer(dump)]
            step = lines[1][0] - lines[0][0]
            dumped = b"".join(line[:step] for _, line in lines)
            # Each line begins with its offset; what letters stand behind the bytes may look like more of them.
            if step > 0 and all(offset == lines[0][0] + step * row for row, (offset, _) in enumerate(lines)):
                content = dumped, typed("", dumped)
        elif literal := match["literal"]:
            with suppress(SyntaxError, ValueError):
                data = ast.literal_eval(literal)
                if sniffed(data) or (len(data) >= _LEAST_BYTES and typed("", data) != "text/plain"):
                    content = data, typed("", data)
        else:
            media_type = match["uri"] and match["uri"].replace("\\", "")
            at, data = _of_run(text, start if match["run"] else at, prefix, is_uri=media_type is not None)
            if data is not None:
                near = _NEAR_TYPE.search(text, at, at + 80) or _NEAR_TYPE.search(prefix)
                content = data, typed(sniffed(data) or media_type or (near and near[1]), data)
        if content is not None:
            written = text[start:at]
            yield Medium(*content, path, written, (start, at) if written != text else None, quote)


def _may_hold(text: str, start: int) -> bool:
    """Tells whether data may begin in the step that begins at a place."""
    end = start + _STEP + _OVERLAP
    is_marked = any(text.find(mark, start, end) >= 0 for mark in ("data:", "\\x"))
    return is_marked or any(signs.match(text, start, end) for signs in _SIGNS)


def _next_data(text: str, at: int, steps: deque[int]) -> re.Match[str] | None:
    """The next place from ``at`` on where data may begin; steps in which there is no more of it go."""
    while steps:
        end = steps[0] + _STEP + _OVERLAP
        match = _ENCODED.search(text, max(at, steps[0]), end)
        if match is None or match.start() >= steps[0] + _STEP:
            steps.popleft()
            continue
        at = match.start() + 1
        if match.end() > end - _LONGEST_PIECE:  # it may go on
            match = _ENCODED.match(text, match.start())
        if match is None or (match["list"] and match[0][-1] not in "])}"):
            continue
        if not match["literal"] or match[0][-1] == match[0][1]:  # else it ends with the text, not with its mark
            return match
    return None


def _of_run(text: str, start: int, preceding_text: str, *, is_uri: bool) -> tuple[int, bytes | None]:
    """Finds the end of base64 or hexadecimal that begins at a place, over its line breaks, and its bytes; None where it
    is none.

    A line after the last full one may be a word, so it is looked at with it and without.
    """
    if (line := _RUN.match(text, start)) is None:
        return start + 1, None
    width, full, gap = len(line[0]), line.end(), ""
    if _LEAST <= width <= _LONGEST_LINE and (line_end := _LINE_END.match(text, full)) is not None:
        gap = line_end[0]
    while gap and text.startswith(gap, full) and (line := _RUN.match(text, full + len(gap))) is not None:
        if len(line[0]) != width:
            break
        full = line.end()
    ends, last = [full], line.end() if line is not None else full
    if start + width < full < last < full + len(gap) + width and _ENDS.match(text, last):
        ends = [last, full]
    for end in () if "PRIVATE KEY" in preceding_text else ends:
        written = unquote(text[start:end].replace(gap, "").replace("\\", ""))
        if (data := _decoded(written)) is None:
            continue
        padded = _PADDING.match(text, end)
        end = padded.end() if padded is not None else end
        kinds, least_kinds = set(written), 11 if _HEX.fullmatch(written) else 40
        is_mixed = len(written) >= _LEAST_UNKNOWN and len(kinds) > least_kinds and not kinds.isdisjoint("abcdefABCDEF")
        is_list = len(written) > width and len(written) % width == 0 and width not in _USUAL_WIDTHS
        is_copied = _COPIED.search(preceding_text) is not None or text.startswith(".", end)
        is_list = is_list and "-----BEGIN" not in preceding_text
        if is_uri or sniffed(data) or (is_mixed and not is_list and not is_copied):
            return end, data
    return full, None


def _decoded(written: str) -> bytes | None:
    """The bytes of hexadecimal, else of base64 in either alphabet, padded or not; None where it is neither."""
    if (digits := _HEX.fullmatch(written)) is not None:
        return bytes.fromhex(digits[1])
    for marks in (b"+/", b"-_"):
        with suppress(binascii.Error, ValueError):
            return base64.b64decode(written + "=" * (-len(written) % 4), altchars=marks, validate=True)
    return None


def _of_numbers(items: Sequence[str], written: str, names: str) -> tuple[bytes, str] | None:
    """The bytes that a list of numbers stands for, or the list as it is written where it is a vector, with the media
    type; None where people read it.

    Args:
        names: what names the list.
    """
    is_sure, is_quantized = len(items) >= _LEAST_NUMBERS and _IS_VECTOR.search(names) is not None, False
    with suppress(ValueError):
        values = [int(item, 0) for item in items]
        if len(items) >= _LEAST_NUMBERS and min(values) >= -128 and max(values) < 256:
            data = bytes(value & 255 for value in values)
            is_mixed = len(data) >= _LEAST_BYTES and len(set(data)) >= _LEAST_VALUES
            is_words = typed("", data) == "text/plain" and 30 * sum(map(data.count, b" \n")) >= len(data)
            if is_mixed or is_words or sniffed(data):
                return data, typed("", data)
            is_quantized = is_sure
    is_named = _VECTOR.search(names) is not None and len(items) >= _LEAST_NUMBERS
    is_vector = is_named or (len(items) >= _LEAST_VECTOR and len(items) % _VECTOR_STEP == 0)
    decimals = sum(len(item.partition(".")[2]) >= (1 if is_sure else 4) or "e-" in item for item in items)
    is_signed = is_sure or any(item[0] == "-" for item in items)
    if is_quantized or (is_vector and 10 * decimals >= 9 * len(items) and is_signed):
        return written.encode(), "application/json" if written[0] == "[" and "," in written else "text/plain"
    return None
