"""Entries of an index without their texts, as arrays and as bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aether_context.retrieval.lexical import Postings

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What an index knows of some entries, in their order.

    Attributes:
        vectors: by each embedder, of shape ``(entries, dimensions)``; None where it gave none.
        times: seconds since 1970, NaN where unknown.
        threads: the names of their threads.
        thread_of: each entry's place in ``threads``, -1 where it has none.
    """

    postings: Postings
    vectors: Sequence[NDArray[np.int8] | None]
    times: NDArray[np.float64]
    threads: Sequence[str]
    thread_of: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.times)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it by name, whole numbers in the smallest type that holds them."""
        said = self.postings
        numbers = {"sizes": said.sizes, "slots": said.slots, "counts": said.counts, "lengths": said.lengths}
        vectors = {f"vectors{number}": rows for number, rows in enumerate(self.vectors) if rows is not None}
        return {
            **{name: values.astype(np.min_scalar_type(values.max(initial=0))) for name, values in numbers.items()},
            **vectors,
            "terms": said.terms,
            "times": self.times,
            "threads": np.frombuffer(json.dumps(list(self.threads)).encode(), dtype=np.uint8),
            "thread_of": self.thread_of,
        }

    @classmethod
    def from_arrays(cls, arrays: Arrays, embedders: int) -> Part:
        """The part that gave these arrays.

        Raises:
            KeyError, ValueError: they are not those of a part.
        """
        postings = Postings(
            terms=arrays["terms"],
            sizes=arrays["sizes"],
            slots=arrays["slots"],
            counts=arrays["counts"],
            lengths=arrays["lengths"],
        )
        return cls(
            postings=postings,
            vectors=[arrays.get(f"vectors{number}") for number in range(embedders)],
            times=arrays["times"],
            threads=json.loads(arrays["threads"].tobytes()),
            thread_of=arrays["thread_of"],
        )


def packed(arrays: Arrays) -> bytes:
    """Arrays as bytes, the same for the same arrays: a line of JSON with their names, types and shapes, then each.

    Opening a hundred ``.npz`` files takes longer than reading what is in them.
    """
    laid = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    head = [[name, values.dtype.str, list(values.shape)] for name, values in laid.items()]
    return b"".join([json.dumps(head).encode(), b"\n", *(values.tobytes() for values in laid.values())])


def unpacked(data: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that were packed, to be read only.

    Raises:
        ValueError, TypeError: the bytes are others.
    """
    head, _, _ = data.partition(b"\n")
    at = len(head) + 1
    found = {}
    for name, kind, shape in json.loads(head):
        count = math.prod(shape)
        found[name] = np.frombuffer(data, dtype=np.dtype(kind), count=count, offset=at).reshape(shape)
        at += found[name].nbytes
    return found
