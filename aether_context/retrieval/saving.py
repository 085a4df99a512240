"""An index in a folder.

    {folder}/index.json           what is in the folder, with the hash of each file; written last
    {folder}/{hash}/entries.jsonl one entry a line
    {folder}/{hash}/part.bin      terms, postings, vectors, times and threads

A new state goes into a folder of its own, and ``index.json`` is replaced in one act: a process that is killed leaves
the old state or the new one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aether_context.canonical import JSON, canonical_json, fold, hash_bytes, short
from aether_context.errors import SearchIndexError
from aether_context.retrieval.parts import Part, packed, unpacked

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
