"""Entries of an index as arrays, as bytes, and in a folder."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aether_context.canonical import JSON, canonical_json, fold, hash_bytes, short
from aether_context.errors import SearchIndexError
from aether_context.retrieval.lexical import Postings

# Entries of an index without their texts, as arrays and as bytes.

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


# An index in a folder.
#
#     {folder}/index.json           what is in the folder, with the hash of each file; written last
#     {folder}/{hash}/entries.jsonl one entry a line
#     {folder}/{hash}/part.bin      terms, postings, vectors, times and threads
#
# A new state goes into a folder of its own, and ``index.json`` is replaced in one act: a process that is killed
# leaves the old state or the new one.

FORMAT = 3
_HEAD = "index.json"


def write(folder: str | os.PathLike[str], embedders: Sequence[str], rows: Sequence[JSON], part: Part) -> None:
    """Saves an index in the place of what the folder held.

    Args:
        embedders: the names of what made the vectors.
        rows: of each entry one JSON object.
        part: what the index knows of them.

    Raises:
        SearchIndexError: the folder cannot be written.
    """
    root = Path(folder).expanduser()
    try:
        root.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=root, prefix=".draft-"))
        try:
            lines = "".join(f"{canonical_json(row)}\n" for row in rows).encode("utf-8", "surrogatepass")
            (draft / "entries.jsonl").write_bytes(lines)
            (draft / "part.bin").write_bytes(packed(part.arrays()))
            hashes = {path.name: hash_bytes(path.read_bytes()) for path in sorted(draft.iterdir())}
            name = short(hash_bytes(fold(sorted(hashes.values())).encode()), 16)
            if not (root / name).exists():
                os.replace(draft, root / name)
            head = {"format": FORMAT, "embedders": list(embedders), "state": name, "files": hashes}
            _replace(root / _HEAD, canonical_json(head).encode())
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        for other in root.iterdir():
            if other.is_dir() and other.name != name and (other / "entries.jsonl").exists():
                shutil.rmtree(other, ignore_errors=True)
    except OSError as error:
        raise SearchIndexError(f"the index cannot be saved in {root}: {error}") from error


def read(folder: str | os.PathLike[str]) -> tuple[tuple[str, ...], list[Any], Part]:
    """Embedders, rows and part of the index in a folder, as `write` took them.

    Raises:
        SearchIndexError: there is none, it is of another format, or a byte changed since it was written.
    """
    root = Path(folder).expanduser()
    try:
        head = json.loads((root / _HEAD).read_bytes())
        if head["format"] != FORMAT:
            raise SearchIndexError(f"the index in {root} has format {head['format']}, and this version reads {FORMAT}")
        data = {name: _checked(root / head["state"] / name, digest) for name, digest in head["files"].items()}
        rows = json.loads(b"[" + b",".join(data["entries.jsonl"].split(b"\n")[:-1]) + b"]")
        embedders = tuple(head["embedders"])
        return embedders, rows, Part.from_arrays(unpacked(data["part.bin"]), len(embedders))
    except FileNotFoundError as error:
        raise SearchIndexError(f"there is no index in {root}: give a folder that one was saved in") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SearchIndexError(f"the index in {root} cannot be read: {error}") from error


def _checked(path: Path, digest: str) -> bytes:
    data = path.read_bytes()
    if hash_bytes(data) != digest:
        raise SearchIndexError(f"{path} is not what was written: build the index anew")
    return data


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
