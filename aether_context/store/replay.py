"""Rebuilds packs from their manifests, with what those before them in their chains hold, and compares the requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from cachetools import LRUCache
from pydantic import TypeAdapter

from aether_context.canonical import JSON, canonical_json, hash_text, short
from aether_context.conversation.content_json import content_from_wire
from aether_context.conversation.epoch import is_live
from aether_context.conversation.quotes import attributed
from aether_context.errors import AetherContextError, PackNotFound, ReplayError, ReplayIncomplete, ReplayMismatch
from aether_context.pack import (
    Candidate,
    Content,
    Host,
    Identity,
    Pack,
    PackInput,
    Request,
    Row,
    Search,
    Usage,
    content_place,
    values_of,
)
from aether_context.packing import build_pack
from aether_context.policy import PackPolicy
from aether_context.store.manifest import Manifest
from aether_context.store.packs import PackStore
from aether_context.store.recording import (
    OF_HOST,
    OF_REQUEST,
    SETTING,
    Setting,
    is_content,
    request_json,
    row_key,
    stage_hashes,
)

_CANDIDATES = TypeAdapter(tuple[Candidate, ...])
_MOST_CONTENTS = 1_000_000
_MOST_RESOLVED = 16
"""The most resolved manifests that are kept in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A manifest with what those before it in its chain hold: the hashes of the contents that went in, rows by id, and
    counts; ``log`` are the hashes of all contents that the chain has recorded so far."""

    manifest: Manifest
    contents: tuple[str, ...]
    rows: Mapping[str, Row]
    counts: Mapping[str, int]
    log: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A pack built again; ``matches`` says whether it is the recorded request.

    That is the masked form of what was sent where the manifest has a ``masked_checksum``.
    """

    manifest: Manifest
    pack: Pack
    matches: bool

    @property
    def request(self) -> str:
        """The request as canonical JSON."""
        return request_json(self.pack)


class Replayer:
    """Replays manifests of one store, and keeps what they share from one replay to the next."""

    def __init__(self, store: PackStore) -> None:
        self.store = store
        self._links: dict[str, Manifest] = {}
        self._resolved: LRUCache[str, Resolved] = LRUCache(_MOST_RESOLVED)
        self._texts: dict[str, dict[str, JSON]] = {}
        """The texts of packs by the hash of their replay file; with ``_contents``, those of what is in them."""
        self._contents: dict[str, dict[str, Content]] = {}  # by pack: chains may have masked forms under the same hash
        self._epoch_texts: dict[str, str] = {}
        self._policies: dict[str, PackPolicy] = {}
        self._settings: dict[str, Setting] = {}

    def resolve(self, manifest: Manifest) -> Resolved:
        """The manifest with what those before it in its chain hold.

        Raises:
            PackNotFound: one of them is missing.
            ReplayError: it extends itself, or names contents that they do not hold.
        """
        if manifest.pack_id in self._resolved:
            return self._resolved[manifest.pack_id]
        waiting, names = [manifest], {manifest.pack_id}
        while (extended := waiting[-1].extends) is not None and extended not in self._resolved:
            link = self._links.get(extended) or self.store.extended(waiting[-1])
            if link.pack_id in names:
                raise ReplayError(f"{link.pack_id} extends itself: its manifest is not what was written")
            waiting.append(link)
            names.add(link.pack_id)
        self._links |= {link.pack_id: link for link in waiting}
        resolved = _resolved(self._resolved.get(waiting[-1].extends or ""), waiting[::-1])
        self._resolved[manifest.pack_id] = resolved
        return resolved

    def line(self, manifest: Manifest) -> Iterator[Manifest]:
        """The manifest and those before it in its chain, the oldest last."""
        self.resolve(manifest)
        link: Manifest | None = self._links[manifest.pack_id]
        while link is not None:
            yield link
            link = self._links[link.extends] if link.extends is not None else None

    def pack_input(self, manifest: Manifest) -> PackInput:
        """The input that the pack was built from; `ReplayIncomplete` where texts were not recorded, or are gone."""
        resolved = self.resolve(manifest)
        missing, by_digest = list[str](), dict[str, Content]()
        recorded: JSON = None
        setting_digest = next((link.setting for link in self.line(manifest) if link.setting), "")
        for link in self.line(manifest):
            if not link.texts:
                missing.append(f"the texts of {link.pack_id}: the policy recorded hashes only")
                break
            texts = self._read_texts(link, missing)
            by_digest |= self._contents.get(link.replay_text, {})
            if link.setting == setting_digest:
                recorded = texts.get("setting", recorded)
        missing += [f"content {digest}" for digest in resolved.contents if digest not in by_digest]
        if recorded is None:
            missing.append("system instruction, declarations and step")
        if missing:
            raise ReplayIncomplete(missing)
        if setting_digest not in self._settings:
            self._settings[setting_digest] = SETTING.validate_python(recorded)
        setting = self._settings[setting_digest]
        other_agents = set(_indices(manifest.others, len(resolved.contents)))
        contents = enumerate(by_digest[digest] for digest in resolved.contents)
        request = Request(
            **values_of(setting, *OF_REQUEST),
            **values_of(manifest, "model", "first_call", "rewritten", "request_index"),
            contents=tuple(attributed(content) if index in other_agents else content for index, content in contents),
            positions=tuple(_indices(manifest.positions, len(resolved.contents))),
        )
        epoch = manifest.epoch_before
        if epoch is None:
            epoch = self._links[manifest.extends].epoch if manifest.extends is not None else manifest.epoch
        epoch = replace(
            epoch,
            summary=self._epoch_texts[epoch.summary] if epoch.summary else "",
            payloads=tuple(replace(message, text=self._epoch_texts[message.text]) for message in epoch.payloads),
        )
        texts = self._texts[manifest.replay_text]
        return PackInput(
            identity=Identity(**values_of(manifest, *Identity._fields)),
            request=request,
            **values_of(manifest, "window", "output_tokens"),
            step=setting.step,
            validity=manifest.plan_validity or manifest.validity,
            invalid_reason="" if manifest.plan_validity is not None else manifest.invalid_reason,
            candidates=_CANDIDATES.validate_python(texts.get("candidates", ())),
            instructions=setting.instructions,
            epoch=epoch,
            host=Host(**values_of(manifest, *OF_HOST)),
            usage=Usage(calibration=manifest.calibration, growth=manifest.growth),
            search=Search(manifest.searched, manifest.embedder, manifest.memory_embedder),
            problems=tuple(texts.get("problems", ())),
            summaries=texts.get("summaries", {}),
            wording=dict(setting.wording),
        )

    def _read_texts(self, manifest: Manifest, missing: list[str]) -> dict[str, JSON]:
        """The texts that are new with a pack, each of which is known from then on."""
        if manifest.replay_text not in self._contents:
            try:
                self.take(manifest, self._texts.get(manifest.replay_text) or self.store.texts(manifest))
            except PackNotFound:
                missing.append(f"the texts of {manifest.pack_id}")
                return {}
        return self._texts[manifest.replay_text]

    def take(self, manifest: Manifest, texts: dict[str, JSON]) -> None:
        """Takes in the texts of a pack, which need not be read again then."""
        self._texts[manifest.replay_text] = texts
        self._contents[manifest.replay_text] = {
            name: replace(content_from_wire(wire), digest=name) for name, wire in contents_of(texts).items()
        }
        self._epoch_texts.update(texts.get("epoch", {}))

    def ahead(self, manifests: Sequence[Manifest]) -> Iterator[Manifest]:
        """The manifests, with the texts of several of them read at once; those that cannot be read are read again."""

        def read_texts(manifest: Manifest) -> dict[str, JSON] | None:
            with suppress(AetherContextError):
                return self.store.texts(manifest)
            return None

        for manifest, texts in zip(manifests, self.store.files.ahead(read_texts, manifests), strict=True):
            if texts is not None:
                self.take(manifest, texts)
            yield manifest

    def policy(self, manifest: Manifest) -> PackPolicy:
        """The policy that the pack was built with."""
        if manifest.policy in self._policies:
            return self._policies[manifest.policy]
        links = (link for link in self.line(manifest) if link.policy == manifest.policy)
        settings = next((link.settings for link in links if link.settings is not None), None)
        if settings is None:
            raise ReplayIncomplete([f"the settings of policy {manifest.policy}"])
        try:
            policy = self._policies[manifest.policy] = PackPolicy.from_recorded(settings)
        except AetherContextError as error:
            raise ReplayIncomplete([f"a policy that this version can read: {error}"]) from error
        return policy

    def replay(self, manifest: Manifest, policy: PackPolicy | None = None, *, window: int | None = None) -> Replayed:
        """Builds the pack again, as `replay` does, with another policy or in another window where given."""
        try:
            source = self.pack_input(manifest)
            source = source if window is None else source._replace(window=window)
            resolved = self.resolve(manifest)
            pack = build_pack(source, policy or self.policy(manifest), recorded=resolved.counts)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            # A value that cannot be read was changed since it was written, or written by another version.
            problem = f"{type(error).__name__}: {error}"
            raise ReplayError(f"{manifest.pack_id} could not be replayed: {problem}") from error
        masked = manifest.masked_checksum
        matches = hash_text(request_json(pack)) == masked if masked else pack.checksum == manifest.checksum
        if policy is None and window is None and not matches:
            hashes = stage_hashes(pack, pack.checksum)
            stage = next((name for name, digest in hashes.items() if manifest.stages.get(name) != digest), "write")
            raise ReplayMismatch(stage, manifest.stages.get(stage, "nothing"), hashes[stage])
        if policy is None and window is None:
            _compare(resolved, pack)
        return Replayed(manifest=manifest, pack=pack, matches=matches)


def _compare(resolved: Resolved, pack: Pack) -> None:
    """Raises `ReplayMismatch` where the rows or the layers' tokens are others than the recorded ones."""
    manifest, new = resolved.manifest, {row.id for row in resolved.manifest.rows}
    rows = {row.id: row for row in pack.rows}
    # Where no candidate was ranked, the rows of those before hold, and the pack has none but those of instructions.
    rows_before = resolved.rows.items()
    recorded = {name: row for name, row in rows_before if manifest.chose or is_content(row) or row.layer == "system"}
    for name in {**recorded, **rows}:
        old_row, new_row = recorded.get(name), rows.get(name)
        is_same = old_row == new_row if name in new else old_row and new_row and row_key(old_row) == row_key(new_row)
        if not is_same:
            raise ReplayMismatch(f"rows, at {name}", repr(old_row), repr(new_row))
    if dict(manifest.allocation) != dict(pack.allocation.layers):
        raise ReplayMismatch("layers", repr(manifest.allocation), repr(pack.allocation.layers))


def _resolved(base: Resolved | None, manifests: Sequence[Manifest]) -> Resolved:
    """The last of some manifests, each of which extends the one in front of it, with what ``base`` and these hold."""
    log, rows, counts = (list(base.log), base.rows, dict(base.counts)) if base is not None else ([], {}, {})
    contents: tuple[str, ...] = ()
    for manifest in manifests:
        log += manifest.contents.added
        numbers = _indices(manifest.contents.ranges, _MOST_CONTENTS)
        if any(not 0 <= number < len(log) for number in numbers):
            raise ReplayError(f"{manifest.pack_id} names contents that its chain does not hold")
        contents = tuple(log[number] for number in numbers)
        content_rows = [row for row in manifest.rows if is_content(row)]
        counts.update(manifest.counts)
        counts.update({short(row.hash, 16): row.tokens for row in content_rows})
        # A content's row holds while the content goes in, a candidate's until candidates are ranked again; rows of
        # instructions are in each pack.
        new_rows = {row.id: row for row in manifest.rows}
        unmatched = Counter(contents)
        unmatched.subtract(row.hash for row in content_rows)
        live_rows: dict[str, Row] = {}
        for row in rows.values():
            if not is_content(row):
                if not manifest.chose and row.layer != "system":
                    live_rows[row.id] = row
            elif is_live(manifest.epoch, content_place(row.id)) and row.id not in new_rows and unmatched[row.hash] > 0:
                unmatched[row.hash] -= 1
                live_rows[row.id] = row
        rows = live_rows | new_rows
    return Resolved(manifest=manifests[-1], contents=contents, rows=rows, counts=counts, log=tuple(log))


def contents_of(texts: Mapping[str, JSON]) -> dict[str, str]:
    """The wires of the contents among a pack's texts, by the hashes of what was sent."""
    wires = [canonical_json(value) for value in texts.get("contents", ())]
    return dict(zip(texts.get("digests") or map(hash_text, wires), wires, strict=True))


def _indices(ranges: Sequence[tuple[int, int]], limit: int) -> list[int]:
    """The indices in ranges; `ValueError` where there are more than ``limit``."""
    if sum(max(0, stop - start) for start, stop in ranges) > limit:
        raise ValueError(f"its ranges hold more than its {limit:,} contents")
    return [index for start, stop in ranges for index in range(start, stop)]


def replay(manifest: Manifest, store: PackStore | str, policy: PackPolicy | None = None) -> Replayed:
    """Builds a recorded pack again. To replay many of a session, keep a `Replayer`.

    Args:
        store: holds the pack and those before it in its chain; a store, or its URL.
        policy: another policy to build it with; None takes the recorded one.

    Raises:
        ReplayError: what is recorded cannot be built from.
        ReplayIncomplete: the recording lacks texts.
        ReplayMismatch: with the recorded policy, a stage gave another result; it is named.
    """
    return Replayer(store if isinstance(store, PackStore) else PackStore(store)).replay(manifest, policy)
