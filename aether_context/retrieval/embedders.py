"""Models that turn texts into vectors: the port, the model inside the package, and others by name."""

from __future__ import annotations

import hashlib
import io
import re
import threading
import unicodedata
from bisect import bisect
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aether_context.canonical import digest_of
from aether_context.errors import EmbeddingError, MissingExtra, PolicyError, near_names
from aether_context.retrieval.terms import STOP_WORDS
from aether_context.tokens.counters import SharedLRU

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors: TypeAlias = NDArray[np.float32]
"""Of shape ``(texts, dimensions)``; a row has length 1, or 0 where the text says nothing that the model knows."""

Rows: TypeAlias = NDArray[np.int8]
"""Vectors in one byte a dimension, as `quantized` gives them; a row of zeros is none."""

Purpose: TypeAlias = Literal["entry", "query"]
"""Whether a text is found or finds; some models want to know."""


class EmbedsTexts(Protocol):
    """All that an embedder of an app's own has to have."""

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        """The vectors of the texts, in their order; their products say how alike the texts are."""


class Embedder(EmbedsTexts, Protocol):
    """Turns texts into vectors, under a name."""

    @property
    def name(self) -> str:
        """The name that manifests and memories record: equal names give equal vectors."""


def unit(vectors: NDArray[np.generic]) -> Vectors:
    """The rows at length 1, rows of zeros as they are. The division is of doubles, so that machines agree."""
    doubles = vectors.astype(np.float64)
    lengths = np.sqrt((doubles * doubles).sum(axis=1, keepdims=True))
    result: Vectors = np.divide(doubles, lengths, out=np.zeros_like(doubles), where=lengths > 0).astype(np.float32)
    return result


def quantized(vectors: Vectors) -> Rows:
    """Each row as whole numbers from -127 to 127, the largest of them at an end; such rows stay as they are."""
    if not np.isfinite(vectors).all():
        raise ValueError("there are numbers that are not finite")
    doubles = vectors.astype(np.float64)
    largest = np.abs(doubles).max(axis=1, keepdims=True, initial=0.0)
    scaled = np.divide(doubles * 127, largest, out=np.zeros_like(doubles), where=largest > 0)
    rows: Rows = np.rint(scaled).astype(np.int8)
    return rows


_CACHED_ROWS = 256
"""So many rows, as floats, stay in a processor's cache, and are multiplied by one thread."""


def products(rows: Rows, query: NDArray[np.int8]) -> NDArray[np.float64]:
    """The products of each row with each of some vectors, of shape ``(vectors, rows)``.

    Sums of products of whole numbers from -127 to 127 stay below 2**24, so that 32-bit floats hold them exactly in
    whatever order a machine's linear algebra adds them up.
    """
    columns = query.astype(np.float32)
    products = np.empty((len(columns), len(rows)), dtype=np.float32)
    room = np.empty((min(len(rows), _CACHED_ROWS), rows.shape[1]), dtype=np.float32)
    for first in range(0, len(rows), _CACHED_ROWS):
        some = rows[first : first + _CACHED_ROWS]
        floats = room[: len(some)]
        np.copyto(floats, some)
        for column, of_column in zip(columns, products, strict=True):  # as a matrix, more threads would multiply it
            np.dot(floats, column, out=of_column[first : first + len(some)])
    return products.astype(np.float64)


def lengths_of(rows: Rows) -> NDArray[np.float64]:
    """The length of each row."""
    lengths: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.int32))
    return lengths


def vectors_of(embedder: Embedder | None, texts: Sequence[str], purpose: Purpose = "entry") -> Rows:
    """A vector for each text, of no dimensions without an embedder.

    Raises:
        EmbeddingError: the embedder failed, or gave something else.
    """
    if embedder is None or not texts:
        return np.zeros((len(texts), 0), dtype=np.int8)
    try:
        rows = quantized(np.asarray(embedder.embed(texts, purpose=purpose), dtype=np.float32))
        if len(rows) != len(texts):
            raise ValueError(f"{len(rows)} vectors came back for {len(texts)} texts")
        return rows
    except Exception as error:  # whatever a model or a service raises
        raise EmbeddingError(embedder.name, f"{type(error).__name__}: {error}") from error


class CachedEmbedder:
    """An embedder that remembers vectors by content, the least recently used forgotten first. Threads may share it.

    Its vectors are those of the embedder in direction, their numbers whole, from -127 to 127.

    Args:
        name: stands for a name that the embedder has not.
        max_texts: so many are kept, as whole numbers; of 384 dimensions, 20,000 take 12 MB.
    """

    def __init__(self, embedder: EmbedsTexts, name: str = "", *, max_texts: int = 20_000) -> None:
        self._embedder, self._name = embedder, name
        self._rows: SharedLRU[bytes, bytes] = SharedLRU(max_texts)

    @property
    def name(self) -> str:
        return str(getattr(self._embedder, "name", self._name))

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        keys = [digest_of(f"{purpose}\n{text}") for text in texts]
        rows = {key: row for key in dict.fromkeys(keys) if (row := self._rows.get(key)) is not None}
        if new := {key: text for key, text in zip(keys, texts, strict=True) if key not in rows}:
            fresh = np.asarray(self._embedder.embed(list(new.values()), purpose=purpose), dtype=np.float32)
            rows |= zip(new, map(np.ndarray.tobytes, quantized(fresh)), strict=True)
            for key in new:
                self._rows.put(key, rows[key])
        return np.stack([np.frombuffer(rows[key], np.int8) for key in keys]).astype(np.float32)


_MOST_CHARACTERS = 8_000
_MOST_TOKENS = 1_024
_BATCH = 1_024
_MOST_WORDS, _LONGEST_WORD = 100_000, 30
_LONGEST_PART = 100
"""Longer parts of words are unknown."""


class StaticEmbedder:
    """The model inside the package: one vector a token, summed. Threads may share it.

    It makes thousands of vectors a second with nothing but numpy. Of a text the first 8,000 characters and 1,024 tokens
    count.
    """

    @property
    def name(self) -> str:
        return f"static-{_model().digest[:12]}"

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        model = _model()
        sums = [model.sums(texts[first : first + _BATCH]) for first in range(0, len(texts) or 1, _BATCH)]
        return unit(np.concatenate(sums))


def _bounds(ranges: str) -> list[int]:
    """The code points at which ranges begin, and those behind their ends, in turn."""
    return [int(bound, 16) + at % 2 for at, bound in enumerate(re.split(r"[-\s]", ranges))]


_IDEOGRAPHS = _bounds("3400-4dbf 4e00-9fff f900-faff 20000-2a6df 2a700-2b81f 2b920-2ceaf 2f800-2fa1f")
_LETTERS_OF_OLD = _bounds(
    """5c8-5f2 61d-61d 7fa-815 85f-8e2 9e4-a00 a76-a80 af1-b00 b4e-b55 c01-c3d c64-c80 c82-cbb ce4-d00 d02-d40 d64-dc9
eba-eba ece-f03 180f-18a8 1abe-1aff 1b43-1b59 1b74-1b7f 1df6-1dfb 2e43-3000 a827-a873 a8c5-a8cd a8fd-a925 a9bd-a9c0
10b9d-11000 1104e-1107e 110c2-110ff 111ce-111da 1123e-112a8 11302-1133b 11375-114b2 11644-116aa 116b8-1171c 1173f-1246f
12475-16a6d 16b45-16f8e 16f93-1bc9c 1bca4-1d166 1d245-1d9ff 1dab0-1e8cf 1e8d7-e0000"""
)
"""Code points between which Unicode 8, by which the teacher read, has neither marks, punctuation nor controls: what
later versions put there is a letter to it, so that every Python splits alike."""
_RECLASSIFIED = {0x166D: " \u166d ", 0x1734: "", 0x1171E: "", 0x111C9: " \U000111c9 "}
"""Characters that were of another kind then."""


class _Characters(dict[int, str]):
    """A character's part in words, by its code point: lower case, without accents, blanks around what is a word.

    It does as BERT's normalizer does (``BertNormalizer`` and ``BertPreTokenizer`` of the package `tokenizers`).
    """

    def __missing__(self, point: int) -> str:
        result = "".join(map(self._plain, unicodedata.normalize("NFD", chr(point))))
        return self.setdefault(point, f" {result} " if bisect(_IDEOGRAPHS, point) % 2 else result)

    def _plain(self, char: str) -> str:
        kind = unicodedata.category(char)
        if char in "\t\n\r" or kind[0] == "Z":
            return " "
        is_known = not bisect(_LETTERS_OF_OLD, ord(char)) % 2
        if char == "\ufffd" or (kind in ("Cc", "Cf", "Co", "Cs", "Mn") and is_known):
            return ""
        is_mark = (kind[0] == "P" and is_known) or (char.isascii() and not char.isalnum())
        return f" {char} " if is_mark else char.lower()


class _Model:
    """A table of vectors and its teacher's tokenizer: lower case, accents off, WordPiece.

    The table is distilled from all-MiniLM-L6-v2 (Apache-2.0) by ``tests/tables/distill.py``. A token's weight is the
    length of its row, and rows are whole numbers, so that the sum is exact and every machine gives the same vector.
    """

    def __init__(self, data: bytes) -> None:
        self.digest = hashlib.sha256(data).hexdigest()
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            self.vocabulary = archive["vocabulary"].tobytes().decode().split("\n")
            self.rows: Rows = np.ascontiguousarray(archive["rows"])
        self.numbers = {token: number for number, token in enumerate(self.vocabulary)}
        self._longest = max(map(len, self.vocabulary))
        self._characters = _Characters(_RECLASSIFIED)
        self._pieces: dict[str, bytes] = {}
        self._texts: dict[str, NDArray[np.uint16]] = {}

    def tokens(self, texts: Sequence[str]) -> list[NDArray[np.uint16]]:
        """The numbers of each text's tokens, in their order."""
        # No token reaches across a blank, so that a word is taken apart once, however often it is said.
        starts = (text[:_MOST_CHARACTERS] for text in texts)
        words = [text.replace("\t", " ").replace("\n", " ").replace("\r", " ").split(" ") for text in starts]
        different = set().union(*words)
        if len(ids_of := self._pieces) > _MOST_WORDS:
            self._pieces = ids_of = {}
        pieces = {word: ids_of[word] for word in different & ids_of.keys()}
        pieces |= {word: np.array(self._word_ids(word), np.uint16).tobytes() for word in different - pieces.keys()}
        ids_of.update((word, ids) for word, ids in pieces.items() if len(word) <= _LONGEST_WORD)
        joined = (b"".join(map(pieces.__getitem__, of_text)) for of_text in words)
        return [np.frombuffer(of_text, np.uint16)[:_MOST_TOKENS] for of_text in joined]

    def _word_ids(self, word: str) -> list[int]:
        """The numbers of the longest pieces from the left; a part of which any has none is the unknown token."""
        numbers, result = self.numbers, list[int]()
        for part in word.translate(self._characters).split():
            start, mark, ids = 0, "", list[int]()
            while start < len(part) <= _LONGEST_PART:
                ends = range(min(len(part), start + self._longest), start, -1)
                end = next((end for end in ends if mark + part[start:end] in numbers), _LONGEST_PART + 1)
                ids.append(numbers.get(mark + part[start:end], -1))
                start, mark = end, "##"
            result += ids if start == len(part) else [numbers["[UNK]"]]
        return result

    def tokens_once(self, texts: Sequence[str]) -> list[NDArray[np.uint16]]:
        """The same for texts that searches compare again and again: those of the latest 2,000 are kept."""
        cached = self._texts
        if len(cached) > _MOST_TEXTS:
            self._texts = cached = {}
        new = [text for text in texts if text not in cached]
        cached.update(zip(new, self.tokens(new), strict=True))
        return [cached[text] for text in texts]

    def sums(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """The sum of the rows of each text's tokens, of shape ``(texts, dimensions)``."""
        result = np.zeros((len(texts), self.rows.shape[1]), dtype=np.int64)
        for number, ids in enumerate(self.tokens(texts)):
            result[number] = self.rows.take(ids, axis=0).sum(axis=0, dtype=np.int32)
        return result


_MOST_TEXTS = 2_000
_ALIKE = 0.35
"""The cosine of two tokens under which they have nothing in common; anything from 0.25 to 0.45 finds as much."""
_STRETCH = 64
"""Tokens: of a longer text the stretch counts that answers best."""


def word_by_word(query: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """Scores texts against a query in which every word counts for itself, 0 to 1, by the model in the package.

    Each token of the query is as near to a text as the token there that is nearest to it (MaxSim of ColBERT, Khattab
    and Zaharia, 2020), and counts the more the fewer of these texts have anything near it.
    """
    model, result = _model(), np.zeros(len(texts))
    (query_ids,), text_ids = model.tokens([query]), model.tokens_once(texts)
    words = {number: model.vocabulary[number].removeprefix("##") for number in set(query_ids.tolist())}
    query_ids = np.array(sorted(number for number, word in words.items() if word.isalnum() and word not in STOP_WORDS))
    if not query_ids.size or not any(ids.size for ids in text_ids):
        return result
    # Each token once a stretch of a text, then each once.
    many = len(model.vocabulary)
    stretches = [at * _MOST_TOKENS + np.arange(len(ids)) // _STRETCH for at, ids in enumerate(text_ids)]
    stretch, ids = np.divmod(np.unique(np.concatenate(stretches) * many + np.concatenate(text_ids)), many)
    different, at = np.unique(ids, return_inverse=True)
    rows = model.rows[different]
    lengths = np.outer(lengths_of(model.rows[query_ids]), lengths_of(rows))
    alike = products(rows, model.rows[query_ids])
    cosines = np.divide(alike, lengths, out=np.zeros(lengths.shape), where=lengths > 0)
    near = np.maximum(0.0, cosines - _ALIKE) / (1 - _ALIKE)
    begins = np.flatnonzero(np.diff(stretch, prepend=-1))
    nearest = np.maximum.reduceat(near[:, at], begins, axis=1)
    rare = np.log((len(begins) + 1) / np.maximum(1.0, nearest.sum(axis=1)))
    np.maximum.at(result, stretch[begins] // _MOST_TOKENS, np.round(rare @ nearest / rare.sum(), 6))
    return result


def known_words(text: str) -> bool:
    """Tells whether the model in the package knows most words of a text whole, as it does of English."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    return 2 * sum(word in _model().numbers for word in words) > len(words)


@lru_cache(maxsize=1)
def _model() -> _Model:
    return _Model((files("aether_context.retrieval") / "static.npz").read_bytes())


_TRANSFORMER = "sentence-transformers/all-MiniLM-L6-v2"
_TRANSFORMER_BATCH = 64
_READ_BYTES = 2**20


class TransformerEmbedder:
    """A sentence-transformers model, loaded at the first text. Threads may share it; one embeds at a time.

    Args:
        model: a name on the hub, or the path of a folder.

    Raises:
        MissingExtra: the library is not installed.
    """

    def __init__(self, model: str) -> None:
        if find_spec("sentence_transformers") is None:
            raise MissingExtra("sentence-transformers", f"the embedder sentence-transformers:{model}")
        self.name = f"sentence-transformers:{identity(model)}"
        self._model = model
        self._loaded: SentenceTransformer | None = None
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        with self._lock:
            if self._loaded is None:
                from sentence_transformers import SentenceTransformer

                self._loaded = SentenceTransformer(self._model)
            encode = self._loaded.encode_query if purpose == "query" else self._loaded.encode_document
            vectors = encode(list(texts), batch_size=_TRANSFORMER_BATCH, show_progress_bar=False, convert_to_numpy=True)
        return unit(np.asarray(vectors))


def identity(model: str) -> str:
    """The identity of a model: its name or, of a folder, the folder's name and a hash of what is in it.

    Of each file its path, its length, its beginning and its end count, so that weights need not be read whole.
    """
    folder = Path(model).expanduser()
    if not folder.is_dir():
        return model
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()} {size}\n".encode())
        with path.open("rb") as file:
            digest.update(file.read(_READ_BYTES))
            file.seek(max(_READ_BYTES, size - _READ_BYTES))
            digest.update(file.read(_READ_BYTES))
    return f"{folder.resolve().name}@{digest.hexdigest()[:12]}"


_KINDS = ("none", "static", "sentence-transformers")
"""Names, and the kind of those with a model behind a colon."""
_REGISTERED: dict[str, CachedEmbedder] = {}


def register_embedder(name: str, embedder: EmbedsTexts) -> None:
    """Makes an embedder available to policies as ``retrieval.embedder``, and to indexes; one of that name is replaced.

    It is called from any thread, and its vectors are remembered. Where a call's embedder raises or is late, `static`
    ranks the call, and the manifest says so.

    Args:
        embedder: has ``embed(texts, *, purpose)``. It may have a ``name``, which manifests record and which changes
            when vectors do; else its name here is recorded.

    Raises:
        PolicyError: the name is empty or one of the package's own.
    """
    if not name.strip() or name.partition(":")[0] in _KINDS:
        raise PolicyError(f"embedder name {name!r} is empty or taken: choose another one", field="name")
    _REGISTERED[name] = CachedEmbedder(embedder, name)


def embedder_for(name: str | Embedder | None = None) -> Embedder | None:
    """The embedder of a name, ``static`` where there is none; None for ``none``. An embedder is taken as it is.

    Raises:
        PolicyError: nobody has registered the name.
        MissingExtra: it needs a package that is not installed.
    """
    if name is not None and not isinstance(name, str):
        return name
    name = name or "static"
    if name == "none" or name in _REGISTERED:
        return _REGISTERED.get(name)
    kind, _, model = name.partition(":")
    if name != "static" and kind != "sentence-transformers":
        hint = near_names(name, [*_KINDS, *_REGISTERED])
        raise PolicyError(f"embedder {name!r} is unknown: {hint}", field="embedder")
    return _packaged(kind, model or _TRANSFORMER)


@lru_cache(maxsize=8)
def _packaged(kind: str, model: str) -> CachedEmbedder:
    if kind == "static":  # an index keeps the vectors of its own texts, and this model makes one in 30 microseconds
        return CachedEmbedder(StaticEmbedder(), max_texts=500)
    return CachedEmbedder(TransformerEmbedder(model))
