"""The model inside the package: one vector a token, summed.

The table is distilled from all-MiniLM-L6-v2 (Apache-2.0) by ``tests/bench/distill.py``. A token's weight is the length
of its row, and rows are whole numbers, so that the sum is exact and every machine gives the same vector.
"""

from __future__ import annotations

import functools
import hashlib
import io
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from aether_context.embedding.embedder import Purpose, Vectors, unit
from aether_context.tokens.counters import sound

_MOST_CHARACTERS = 8_000
_MOST_TOKENS = 1_024
_BATCH = 1_024


class StaticEmbedder:
    """Thousands of texts a second with nothing but numpy and a tokenizer. Threads may share it.

    Of a text the first 8,000 characters and 1,024 tokens count.
    """

    local = True

    @property
    def name(self) -> str:
        return f"static-{_model().digest[:12]}"

    def embed(self, texts: Sequence[str], *, purpose: Purpose = "entry") -> Vectors:
        model = _model()
        batches = [texts[first : first + _BATCH] for first in range(0, len(texts), _BATCH)]
        sums = [model.sums(batch) for batch in batches] or [np.zeros((0, model.rows.shape[1]), dtype=np.int64)]
        return unit(np.concatenate(sums))


class _Model:
    """The table and the teacher's tokenizer: lower case, accents off, WordPiece."""

    def __init__(self, data: bytes) -> None:
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        self.digest = hashlib.sha256(data).hexdigest()
        with np.load(io.BytesIO(data), allow_pickle=False) as held:
            self.rows: NDArray[np.int8] = held["rows"]
            vocabulary = held["vocabulary"].tobytes().decode().split("\n")
        pieces = models.WordPiece({token: number for number, token in enumerate(vocabulary)}, unk_token="[UNK]")
        self._tokenizer = Tokenizer(pieces)
        self._tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()

    def sums(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """The sum of the rows of each text's tokens, of shape ``(texts, dimensions)``."""
        beginnings = [sound(text[:_MOST_CHARACTERS]) for text in texts]
        encoded = self._tokenizer.encode_batch_fast(beginnings, add_special_tokens=False)
        tokens = [one.ids[:_MOST_TOKENS] for one in encoded]
        result = np.zeros((len(texts), self.rows.shape[1]), dtype=np.int64)
        said = [number for number, one in enumerate(tokens) if one]
        if said:
            together = np.concatenate([np.array(tokens[number], dtype=np.int32) for number in said])
            starts = np.cumsum([0, *(len(tokens[number]) for number in said[:-1])])
            result[said] = np.add.reduceat(self.rows[together], starts, axis=0, dtype=np.int32)
        return result


@functools.lru_cache(maxsize=1)
def _model() -> _Model:
    return _Model((files("aether_context.embedding") / "static.npz").read_bytes())
