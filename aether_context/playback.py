"""Replay: the same request again from a manifest and its blobs, byte for byte, or the first stage that differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from aether_context.build import build_pack
from aether_context.canonical import JSON, canonical_json, short
from aether_context.errors import BlobNotFound, ReplayIncomplete, ReplayMismatch
from aether_context.manifest import Manifest, Row, epoch_of, splice, stage_hashes
from aether_context.pack import (
    AcceptanceItem,
    Candidate,
    Content,
    Identity,
    Ingredients,
    Pack,
    Request,
    Step,
    Tool,
)
from aether_context.policy import PackPolicy
from aether_context.store import PackStore
from aether_context.wire import content_from_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A manifest with what its ancestors hold: contents that went in, rows by id, counts, and texts by hash."""

    manifest: Manifest
    contents: tuple[str, ...]
    rows: Mapping[str, Row]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A pack built again. ``request`` is its canonical JSON; ``matches`` says whether it is the recorded request."""

    manifest: Manifest
    pack: Pack
    request: str
    matches: bool


class Replayer:
    """Replays manifests of one store, keeping what they share between calls."""

    def __init__(self, store: PackStore) -> None:
        self.store = store
        self._resolved: dict[str, Resolved] = {}
        self._texts: dict[str, dict[str, JSON]] = {}
        self._contents: dict[str, Content] = {}
        self._said: dict[str, str] = {}

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

    def _extend(self, manifest: Manifest) -> Resolved:
        own = {row.id: row for row in manifest.rows}
        if manifest.parent is None:
            counts = {**manifest.counts, **_row_counts(manifest.rows)}
            return Resolved(manifest=manifest, contents=manifest.contents.added, rows=own, counts=counts)
        parent = self._resolved[manifest.parent]
        standing = _standing(parent)
        rows = {name: row for name, row in parent.rows.items() if is_content(row) and row.state != "dropped"} | own
        return Resolved(
            manifest=manifest,
            contents=splice(standing, manifest.contents),
            rows=rows,
            counts={**parent.counts, **manifest.counts, **_row_counts(manifest.rows)},
        )

    def ingredients(self, manifest: Manifest) -> Ingredients:
        """What the pack was built from.

        Raises:
            ReplayIncomplete: texts were not recorded, or are gone.
            PackNotFound: an ancestor is missing.
        """
        resolved = self.resolve(manifest)
        missing: list[str] = []
        setting = self._json(manifest, manifest.setting, "system instruction, declarations and step", missing)
        ancestors = self._gather(manifest, missing)
        missing += [f"content {digest}" for digest in resolved.contents if digest not in self._contents]
        if missing:
            raise ReplayIncomplete(missing)
        before = manifest.epoch_before or ancestors.epoch
        request = Request(
            model=manifest.model,
            system=setting["system"],
            system_is_text=setting["system_is_text"],
            tools=tuple(Tool(**tool) for tool in setting["tools"]),
            other_tools=tuple(setting["other_tools"]),
            contents=tuple(self._contents[digest] for digest in resolved.contents),
            positions=tuple(at for start, stop in manifest.positions for at in range(start, stop)),
            human=manifest.human,
        )
        held = self._texts[manifest.texts[0]]
        return Ingredients(
            identity=Identity(**{name: getattr(manifest, name) for name in Identity.__slots__}),
            request=request,
            window=manifest.window,
            output_tokens=manifest.output_tokens,
            step=_step(setting["step"]),
            validity=manifest.validity,
            invalid_reason=manifest.invalid_reason,
            candidates=tuple(_candidate(one) for one in held["candidates"]),
            epoch=epoch_of(before, self._said),
            first_call=manifest.first_call,
            rewritten=manifest.rewritten,
            problems=tuple(held["problems"]),
        )

    def _gather(self, manifest: Manifest, missing: list[str]) -> Manifest:
        """Reads the texts of a manifest and its ancestors; returns the parent, or the manifest itself."""
        one: Manifest | None = manifest
        while one is not None:
            if not one.texts:
                missing.append(f"the texts of {one.pack_id}: the policy recorded hashes only")
                break
            if one.texts[0] in self._texts:
                break
            for digest in reversed(one.texts):
                self._read_texts(one, digest, missing)
            one = self._resolved[one.parent].manifest if one.parent is not None else None
        return self._resolved[manifest.parent].manifest if manifest.parent is not None else manifest

    def _read_texts(self, manifest: Manifest, digest: str, missing: list[str]) -> None:
        if digest in self._texts:
            return
        held = self._json(manifest, digest, f"texts of {manifest.pack_id}", missing)
        self._texts[digest] = held
        for name, value in held.get("contents", {}).items():
            if name not in self._contents:
                self._contents[name] = content_from_wire(canonical_json(value))
        self._said.update(held.get("epoch", {}))

    def _json(self, manifest: Manifest, digest: str, what: str, missing: list[str]) -> dict[str, JSON]:
        try:
            value: dict[str, JSON] = json.loads(self.store.blob(manifest, digest))
        except BlobNotFound:
            missing.append(f"{what} ({digest})")
            return {}
        return value

    def policy(self, manifest: Manifest) -> PackPolicy:
        """The policy that the pack was built with."""
        return PackPolicy.model_validate_json(self.store.blob(manifest, manifest.policy))

    def replay(self, manifest: Manifest, policy: PackPolicy | None = None) -> Replayed:
        """Builds the pack again, with another policy where one is given.

        Raises:
            ReplayIncomplete: the recording lacks texts.
            ReplayMismatch: with the recorded policy, a stage gave another result; it is named.
        """
        source = self.ingredients(manifest)
        counts = self.resolve(manifest).counts
        pack = build_pack(source, policy or self.policy(manifest), recorded=counts)
        matches = pack.checksum == manifest.checksum
        if policy is None and not matches:
            hashes = stage_hashes(pack)
            stage = next((name for name, found in hashes.items() if manifest.stages.get(name) != found), "write")
            raise ReplayMismatch(stage, manifest.stages.get(stage, "nothing"), hashes[stage])
        return Replayed(manifest=manifest, pack=pack, request=request_json(pack), matches=matches)


def replay(manifest: Manifest, store: PackStore, policy: PackPolicy | None = None) -> Replayed:
    """Builds a recorded pack again; see `Replayer.replay`. To replay many of a session, keep a `Replayer`."""
    return Replayer(store).replay(manifest, policy)


def request_json(pack: Pack) -> str:
    """The canonical JSON of the request that a pack stands for: system, tools, contents."""
    return canonical_json(
        {
            "system": pack.system,
            "tools": [
                json.loads(wire) for wire in (*(tool.wire for tool in pack.tools), *pack.source.request.other_tools)
            ],
            "contents": [json.loads(one.content.wire) for one in pack.contents],
            "allowed_tools": pack.allowed_tools,
        }
    )


def is_content(row: Row) -> bool:
    """Whether a row is one of the host's own contents."""
    return row.layer in ("conversation", "task")


def _standing(resolved: Resolved) -> list[str]:
    """The contents that a pack left standing, in order."""
    rows = [row for row in resolved.rows.values() if is_content(row)]
    gone = [row.hash for row in rows if row.state == "dropped"]
    kept = list(resolved.contents)
    for digest in gone:
        kept.remove(digest)
    return kept


def _row_counts(rows: tuple[Row, ...]) -> dict[str, int]:
    return {short(row.hash, 16): row.tokens for row in rows if is_content(row)}


def _step(value: Mapping[str, JSON]) -> Step:
    lists = {
        name: tuple(value[name])
        for name in ("constraints", "next", "stop_when", "tools", "open_questions")
        if value[name] is not None
    }
    acceptance = tuple(AcceptanceItem(**item) for item in value["acceptance"])
    return Step(**{**value, **lists, "acceptance": acceptance})


def _candidate(value: Mapping[str, JSON]) -> Candidate:
    return Candidate(**{**value, "covers": tuple(value["covers"])})
