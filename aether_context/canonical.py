"""Canonical JSON and tagged hashes: the same value gives the same bytes on every machine.

Canonical JSON here has sorted keys, no white space, non-ASCII characters as themselves in UTF-8, and no NaN or
infinity. A lone surrogate, which UTF-8 cannot hold, is written as its escape, ``\\u`` and four digits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

JSON: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""

Path: TypeAlias = tuple[str | int, ...]
"""The keys and indices that lead to a value inside a JSON value."""

HASH_TAG = "sha256:"

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_READABLE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def strings(value: JSON, path: Path = ()) -> list[tuple[Path, str]]:
    """Every text in a JSON value, with the path to it."""
    if isinstance(value, str):
        return [(path, value)]
    if isinstance(value, dict):
        return [entry for key in value for entry in strings(value[key], (*path, key))]
    if isinstance(value, list):
        return [entry for index, item in enumerate(value) for entry in strings(item, (*path, index))]
    return []


def replaced(value: JSON, path: Path, text: str) -> JSON:
    """A copy of a JSON value with a text in the place that a path leads to."""
    if not path:
        return text
    copied: Any = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], text)
    return copied


def canonical_json(value: JSON) -> str:
    """The canonical text of a JSON value; `ValueError` where it holds NaN or infinity, see `plain`."""
    return without_surrogates(in_pieces(value, _ENCODER.encode, sort=True))


_MOST_AT_ONCE, _FEW, _NESTED = 2_048, 64, 4
"""Entries that are written by one call; of objects and lists, those that are looked into, and how deep."""


def in_pieces(value: JSON, encode: Callable[[JSON], str], *, sort: bool = False) -> str:
    """The JSON of a value without white space, of a large one piece by piece: no other thread runs while the standard
    library writes, which takes .1 s for 200,000 values.

    Args:
        sort: whether ``encode`` sorts keys.
    """
    if not _is_large(value):
        return encode(value)
    opening, ending = "{}" if isinstance(value, dict) else "[]"
    entries: list[Any] = (sorted(value) if sort else list(value)) if isinstance(value, dict) else value
    if len(entries) > _FEW:
        batches = (entries[at : at + _MOST_AT_ONCE] for at in range(0, len(entries), _MOST_AT_ONCE))
        wholes = ({key: value[key] for key in batch} if isinstance(value, dict) else batch for batch in batches)
        pieces = [encode(whole)[1:-1] for whole in wholes]
    elif isinstance(value, dict):  # before the 0 stands the key as the encoder writes it, and a colon
        pieces = [encode({key: 0})[1:-2] + in_pieces(value[key], encode, sort=sort) for key in entries]
    else:
        pieces = [in_pieces(item, encode, sort=sort) for item in value]
    return opening + ",".join(pieces) + ending


def _is_large(value: JSON, depth: int = 0) -> bool:
    """Tells whether a value has very many entries, or few and a large one among them."""
    if not isinstance(value, (dict, list)):
        return False
    if len(value) > _FEW or depth == _NESTED:
        return len(value) > _MOST_AT_ONCE
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, (dict, list)) and _is_large(item, depth + 1):
            return True
    return False


def readable_json(value: Mapping[str, JSON]) -> str:
    """An object for people, with a line for each entry down to the second level; errors as for `canonical_json`."""
    lines = []
    for name, item in value.items():
        text, entries = _READABLE(item), list[str]()
        if isinstance(item, dict):
            entries = [f"{_READABLE(key)}: {_READABLE(inner)}" for key, inner in item.items()]
        elif isinstance(item, list):
            entries = [_READABLE(inner) for inner in item]
        if entries:
            text = f"{text[0]}\n  " + ",\n  ".join(entries) + f"\n {text[-1]}"
        lines.append(f" {_READABLE(name)}: {text}")
    return without_surrogates("{\n" + ",\n".join(lines) + "\n}\n")


def without_surrogates(text: str) -> str:
    """A text with escapes for lone surrogates, which UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def is_writable(number: int) -> bool:
    """Tells whether Python surely writes an integer in decimal digits, of which it takes 4,300 by default."""
    return number.bit_length() < 14_000


def plain(value: object) -> JSON:
    """The nearest JSON value: what JSON cannot hold (NaN, bytes, objects, keys that are not strings) becomes text."""
    if isinstance(value, int) and not is_writable(value):
        return hex(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=canonical_json)
    if isinstance(value, (bytes, bytearray)):
        return hash_bytes(bytes(value))
    return str(value)


def utf8_size(text: str) -> int:
    """Bytes of a text in UTF-8; lone surrogates count, too."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def hash_bytes(data: bytes) -> str:
    """``sha256:`` and 64 hexadecimal digits."""
    return HASH_TAG + hashlib.sha256(data).hexdigest()


def hash_text(text: str) -> str:
    """The tagged hash of a text's UTF-8 bytes; lone surrogates hash as themselves."""
    return hash_bytes(text.encode("utf-8", "surrogatepass"))


def hash_json(value: JSON) -> str:
    """The tagged hash of a value's canonical JSON."""
    return hash_text(canonical_json(value))


def fold(pieces: Iterable[str], start: str = "") -> str:
    """One hash over a sequence, which can be continued: ``fold(a + b) == fold(b, start=fold(a))``."""
    digest = start
    for text in pieces:
        digest = hashlib.sha256(f"{digest}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()
    return digest


def digest_of(text: str) -> bytes:
    """A hash of 16 bytes that identifies a text in memory and in indexes; faster than the tagged hashes."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def short(digest: str, length: int = 8) -> str:
    """The first digits of a tagged hash, for names that people read."""
    return digest.removeprefix(HASH_TAG)[:length]
