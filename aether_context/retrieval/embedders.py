"""What turns texts into vectors: the port, the model inside the package, and others by name."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from aether_context.canonical import digest_of
from aether_context.errors import EmbeddingError, MissingExtra, PolicyError, near_names
from aether_context.tokens.counters import sound

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors: TypeAlias = NDArray[np.float32]
"""Of shape ``(texts, dimensions)``; a row has length 1, or 0 where the text says nothing that the model knows."""

Purpose: TypeAlias = Literal["entry", "query"]
"""Whether a text is found or finds; some models want to know."""


class Embedder(Protocol):
    """Turns texts into vectors whose products say how alike the texts are."""

    @property
    def name(self) -> str:
        """What an index and a manifest record: equal names give equal vectors."""

    @property
    def local(self) -> bool:
        """Whether texts stay in this process."""

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        """The vectors of the texts, in their order.

        Raises:
            EmbeddingError: the model failed, could not be reached or took too long.
        """


def unit(vectors: NDArray[np.generic]) -> Vectors:
    """The rows at length 1, rows of zeros as they are. The division is of doubles, so that machines agree."""
    doubles = vectors.astype(np.float64)
    lengths = np.sqrt((doubles * doubles).sum(axis=1, keepdims=True))
    result: Vectors = np.divide(doubles, lengths, out=np.zeros_like(doubles), where=lengths > 0).astype(np.float32)
    return result


def quantized(vectors: Vectors) -> NDArray[np.int8]:
    """Each row as whole numbers from -127 to 127, the largest of them at an end."""
    doubles = vectors.astype(np.float64)
    largest = np.abs(doubles).max(axis=1, keepdims=True, initial=0.0)
    scaled = np.divide(doubles * 127, largest, out=np.zeros_like(doubles), where=largest > 0)
    rows: NDArray[np.int8] = np.rint(scaled).astype(np.int8)
    return rows


class CachedEmbedder:
    """An embedder that remembers vectors by content, the least recently used forgotten first. Threads may share it.

    Args:
        max_texts: so many are kept; of 384 dimensions, 10,000 take 15 MB.
    """

    def __init__(self, embedder: Embedder, *, max_texts: int = 10_000) -> None:
        self.embedder = embedder
        self.name, self.local = embedder.name, embedder.local
        self._cache: LRUCache[bytes, Vectors] = LRUCache(max_texts)
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        if not texts:
            return self.embedder.embed(texts, purpose=purpose)
        keys = [digest_of(f"{purpose}\n{text}") for text in texts]
        with self._lock:
            known = {key: self._cache[key] for key in dict.fromkeys(keys) if key in self._cache}
        if new := {key: text for key, text in zip(keys, texts, strict=True) if key not in known}:
            known |= dict(zip(new, self.embedder.embed(list(new.values()), purpose=purpose), strict=True))
            with self._lock:
                self._cache.update((key, known[key].copy()) for key in new)
        return np.stack([known[key] for key in keys])


_MOST_CHARACTERS = 8_000
_MOST_TOKENS = 1_024
_BATCH = 1_024
_BLANKS = str.maketrans("\t\n\r", "   ")
"""What a tokenizer's normalizer takes for blanks; other white space is a control character to it, and no end."""


class StaticEmbedder:
    """The model inside the package: one vector a token, summed. Threads may share it.

    It makes thousands of vectors a second with nothing but numpy and a tokenizer. Of a text the first 8,000 characters
    and 1,024 tokens count.
    """

    local = True

    @property
    def name(self) -> str:
        return f"static-{_model().digest[:12]}"

    @property
    def dimensions(self) -> int:
        return int(_model().rows.shape[1])

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        model = _model()
        sums = [model.sums(texts[first : first + _BATCH]) for first in range(0, len(texts) or 1, _BATCH)]
        return unit(np.concatenate(sums))


class _Model:
    """A table of vectors and its teacher's tokenizer: lower case, accents off, WordPiece.

    The table is distilled from all-MiniLM-L6-v2 (Apache-2.0) by ``tests/tables/distill.py``. A token's weight is the
    length of its row, and rows are whole numbers, so that the sum is exact and every machine gives the same vector.
    """

    def __init__(self, data: bytes) -> None:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        self.digest = hashlib.sha256(data).hexdigest()
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            vocabulary = archive["vocabulary"].tobytes().decode().split("\n")
            self.rows: NDArray[np.int8] = archive["rows"]
        pieces = models.WordPiece({token: number for number, token in enumerate(vocabulary)}, unk_token="[UNK]")
        self._tokenizer = Tokenizer(pieces)
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def sums(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """The sum of the rows of each text's tokens, of shape ``(texts, dimensions)``."""
        # No token reaches across a blank, so that a word is taken apart once, however often it is said.
        words = [sound(text[:_MOST_CHARACTERS]).translate(_BLANKS).split(" ") for text in texts]
        different = list(dict.fromkeys(chain.from_iterable(words)))
        encoded = self._tokenizer.encode_batch_fast(different, add_special_tokens=False)
        tokens = {word: encoding.ids for word, encoding in zip(different, encoded, strict=True)}
        result = np.zeros((len(texts), self.rows.shape[1]), dtype=np.int64)
        for number, text_words in enumerate(words):
            ids = islice(chain.from_iterable(map(tokens.__getitem__, text_words)), _MOST_TOKENS)
            rows = self.rows.take(np.fromiter(ids, dtype=np.intp), axis=0)
            result[number] = rows.sum(axis=0, dtype=np.int32)
        return result


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

    local = True

    def __init__(self, model: str) -> None:
        if find_spec("sentence_transformers") is None:
            raise MissingExtra("sentence-transformers", f"the embedder sentence-transformers:{model}")
        self.name = f"sentence-transformers:{identity(model)}"
        self._model = model
        self._loaded: SentenceTransformer | None = None
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        if not texts:
            return np.zeros((0, 0), dtype=np.float32)
        try:
            with self._lock:
                if self._loaded is None:
                    from sentence_transformers import SentenceTransformer

                    self._loaded = SentenceTransformer(self._model)
                encode = self._loaded.encode_query if purpose == "query" else self._loaded.encode_document
                found = encode(
                    list(texts), batch_size=_TRANSFORMER_BATCH, show_progress_bar=False, convert_to_numpy=True
                )
        except Exception as error:  # whatever the library, its backend or the hub raises
            raise EmbeddingError(self.name, f"{type(error).__name__}: {error}") from error
        return unit(np.asarray(found))


def identity(model: str) -> str:
    """What a model is told from others by: its name or, of a folder, the folder's name and a hash of what is in it.

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


Make = Callable[[str], Embedder]
"""The embedder of a model, whose name is what stands behind the colon, empty where nothing does."""

KINDS: dict[str, Make] = {
    "static": lambda model: StaticEmbedder(),
    "sentence-transformers": lambda model: CachedEmbedder(TransformerEmbedder(model or _TRANSFORMER)),
}
"""By what stands before the colon."""


def register(kind: str, make: Make) -> None:
    """Puts a kind of embedder on offer, in place of one of the same name."""
    KINDS[kind] = make


def embedder_for(name: str | Embedder | None = None) -> Embedder | None:
    """The embedder of a name: ``static`` where there is none, ``KIND`` or ``KIND:MODEL``; None for ``none``.

    An embedder is taken as it is.

    Raises:
        PolicyError: nobody has registered the kind.
        MissingExtra: it needs a package that is not installed.
    """
    if name is not None and not isinstance(name, str):
        return name
    kind, _, model = (name or "static").partition(":")
    if kind == "none":
        return None
    if kind not in KINDS:
        raise PolicyError(f"embedder {name!r} is unknown: {near_names(kind, ['none', *KINDS])}", field="embedder")
    return KINDS[kind](model)
