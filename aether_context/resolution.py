"""Manifests with their ancestors' part: what a chain leaves out because an earlier link holds it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aether_context.canonical import short
from aether_context.manifest import Manifest, Row, splice
from aether_context.store import PackStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A manifest with what its ancestors hold: contents that went in, rows by id, counts, and texts by hash."""

    manifest: Manifest
    contents: tuple[str, ...]
    rows: Mapping[str, Row]
    counts: Mapping[str, int]


class Resolver:
    """Resolves manifests of one store, keeping what they share between calls."""

    def __init__(self, store: PackStore) -> None:
        self.store = store
        self._resolved: dict[str, Resolved] = {}

    def resolve(self, manifest: Manifest) -> Resolved:
        """The manifest with its ancestors' part.

        Raises:
            PackNotFound: an ancestor is missing.
        """
        waiting = [manifest]
        while waiting[-1].parent is not None and waiting[-1].parent not in self._resolved:
            parent = self.store.parent(waiting[-1])
            assert parent is not None
            waiting.append(parent)
        for one in reversed(waiting):
            self._resolved[one.pack_id] = self._extend(one)
        return self._resolved[manifest.pack_id]

    def line(self, manifest: Manifest) -> Iterator[Manifest]:
        """The manifest and its ancestors, the oldest last."""
        resolved: Resolved | None = self.resolve(manifest)
        while resolved is not None:
            yield resolved.manifest
            parent = resolved.manifest.parent
            resolved = self._resolved[parent] if parent is not None else None

    def _extend(self, manifest: Manifest) -> Resolved:
        if manifest.parent is None:
            contents, counts, rows = manifest.contents.added, dict(manifest.counts), manifest.rows
        else:
            parent = self._resolved[manifest.parent]
            contents = splice(_standing(parent), manifest.contents)
            counts = {**parent.counts, **manifest.counts}
            rows = tuple(_standing_rows(parent, manifest, contents))
        return Resolved(
            manifest=manifest,
            contents=contents,
            rows={row.id: row for row in rows},
            counts={**counts, **_row_counts(manifest.rows)},
        )


def is_content(row: Row) -> bool:
    """Whether a row is one of the host's own contents."""
    return row.layer in ("conversation", "task")


def _standing(resolved: Resolved) -> list[str]:
    """The contents that a pack left standing, in order; a row's name begins with its place in the host's list."""
    places = [at for start, stop in resolved.manifest.positions for at in range(start, stop)]
    rows = (row for row in resolved.manifest.rows if is_content(row) and row.state == "dropped")
    gone = {row.id.split("_")[0] for row in rows}
    return [one for place, one in zip(places, resolved.contents, strict=True) if f"c{place}" not in gone]


def _standing_rows(parent: Resolved, manifest: Manifest, contents: Sequence[str]) -> list[Row]:
    """The rows of a pack: its own, and of its parent's those that still stand.

    A content's stands while the content goes in, a candidate's until candidates are ranked again.
    """
    own = manifest.rows
    left = Counter(contents)
    left.subtract(row.hash for row in own if is_content(row))
    names = {row.id for row in own}
    kept = []
    for row in parent.rows.values():
        if not is_content(row):
            kept += [row] if not manifest.chose else []
        elif row.state != "dropped" and row.id not in names and left[row.hash] > 0:
            left[row.hash] -= 1
            kept.append(row)
    return [*kept, *own]


def _row_counts(rows: tuple[Row, ...]) -> dict[str, int]:
    return {short(row.hash, 16): row.tokens for row in rows if is_content(row)}
