"""Counters by a model's own vocabulary, read from a file."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from aether_context.errors import MissingExtra, TokenCountingError
from aether_context.pack import Accuracy
from aether_context.windows import bare_model_name

Lengths: TypeAlias = Callable[[Sequence[str]], list[int]]
"""The number of tokens of each text. The texts hold no lone surrogates."""

O200K = "o200k_base"

PATTERNS = {
    O200K: (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
        r"|\s+(?!\S)|\s"
    ),
}
"""How tiktoken parts a text before it looks into the vocabulary, which its files do not say. From `tiktoken_ext`."""

_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
_SURROGATES = re.compile("[\ud800-\udfff]")


class TokenizerCounter:
    """Counts by a tokenizer that encodes many texts at once; whatever it raises becomes a `TokenCountingError`."""

    def __init__(self, name: str, lengths: Lengths, *, accuracy: Accuracy) -> None:
        self.name = name
        self.accuracy: Accuracy = accuracy
        self._lengths = lengths

    def count(self, text: str) -> int:
        return self.count_all((text,))[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        try:
            counts = self._lengths([sound(text) for text in texts])
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic in a tokenizer written in Rust is no Exception
            raise TokenCountingError(self.name, f"{type(error).__name__}: {error}") from error
        return [max(1, tokens) if text else 0 for text, tokens in zip(texts, counts, strict=True)]


def sound(text: str) -> str:
    """The text with U+FFFD for each lone surrogate, which no tokenizer takes."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def file_counter(path: str, model: str) -> TokenizerCounter:
    """The counter of a vocabulary file: a Hugging Face ``tokenizer.json``, a tiktoken file or a SentencePiece model.

    Args:
        model: decides how a text is parted before it is looked up, where the file is tiktoken's.

    Raises:
        MissingExtra: the package that reads such a file is not installed.
        TokenCountingError: the file cannot be read, or is none of the three.
    """
    place = Path(path).expanduser()
    try:
        stamp = place.stat()
        return _file_counter(place, encoding_name(model), stamp.st_size, stamp.st_mtime_ns)
    except OSError as error:
        reason = f"{path} cannot be read ({error.strerror or error}): set tokens.files to the path of a vocabulary file"
        raise TokenCountingError("file", reason) from error


def encoding_name(model: str) -> str:
    """tiktoken's name for how the model parts a text."""
    return "cl100k_base" if re.match(r"gpt-(?:4(?:-|$)|3)", bare_model_name(model)) else O200K


@functools.lru_cache(maxsize=8)
def _file_counter(place: Path, encoding: str, size_bytes: int, changed_ns: int) -> TokenizerCounter:
    """The counter of a file as it was at that size and time."""
    data = place.read_bytes()
    mark = hashlib.sha256(data).hexdigest()[:12]
    try:
        if data.lstrip()[:1] == b"{":
            return TokenizerCounter(f"tokenizer.json-{mark}", _tokenizer_json(data), accuracy="exact")
        if _TIKTOKEN_LINE.match(data):
            return TokenizerCounter(f"{encoding}-{mark}", _tiktoken(data, encoding), accuracy="exact")
        return TokenizerCounter(f"sentencepiece-{mark}", _sentencepiece(data), accuracy="exact")
    except (ValueError, RuntimeError, binascii.Error) as error:
        reason = f"{place} is no tokenizer.json, tiktoken file or SentencePiece model: {error}"
        raise TokenCountingError("file", reason) from error


def _tokenizer_json(data: bytes) -> Lengths:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as error:  # the package raises no narrower class
        raise ValueError(error) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def lengths(texts: Sequence[str]) -> list[int]:
        if len(texts) == 1:
            return [len(tokenizer.encode(texts[0], add_special_tokens=False))]
        return [len(one) for one in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    return lengths


def _tiktoken(data: bytes, encoding: str) -> Lengths:
    try:
        from tiktoken import Encoding
    except ImportError as error:
        raise MissingExtra("tiktoken", "counting by a tiktoken file") from error
    lines = (line.split() for line in data.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    tokenizer = Encoding(encoding, pat_str=PATTERNS[encoding], mergeable_ranks=ranks, special_tokens={})
    return lambda texts: [len(one) for one in tokenizer.encode_ordinary_batch(list(texts))]


def _sentencepiece(data: bytes) -> Lengths:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise MissingExtra("sentencepiece", "counting by a SentencePiece model") from error
    if not data:
        raise ValueError("it is empty")
    tokenizer = SentencePieceProcessor(model_proto=data)
    return lambda texts: [len(one) for one in tokenizer.encode(list(texts), out_type=int)]
