"""Rebuilds packs from their manifests and their session's log, and compares the requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cachetools import LRUCache
from pydantic import TypeAdapter

from aether_context.canonical import JSON, hash_text, short
from aether_context.conversation.content_json import content_from_wire
from aether_context.conversation.epoch import is_live
from aether_context.conversation.quotes import attributed
from aether_context.errors import AetherContextError, ReplayError, ReplayIncomplete, ReplayMismatch
from aether_context.pack import (
    NOTHING,
    Candidate,
    Content,
    Epoch,
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
from aether_context.store.log import Log
from aether_context.store.manifest import Manifest, Record
from aether_context.store.pack_file import TEXT_DIGITS, parse_json
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
_MOST_LOGS, _MOST_RESOLVED, _MOST_RECORDS, _MOST_PARSED = 4, 16, 1_000, 20_000
"""So many logs, resolved records, records and contents are kept in memory."""


class Resolved(NamedTuple):
    """A record with what those before it in its chain hold: the hashes of the contents that went in, rows by id,
    counts, the names of masked contents by their hashes, and the epoch before; ``log`` are the hashes of all contents
    that the chain has recorded so far."""

    record: Record
    epoch_before: Epoch
    contents: tuple[str, ...] = ()
    rows: Mapping[str, Row] = NOTHING
    counts: Mapping[str, int] = NOTHING
    masked: Mapping[str, str] = NOTHING
    log: tuple[str, ...] = ()

    def text_names(self) -> Iterator[str]:
        """The names of the texts that a replay needs, but for the policy."""
        for epoch in (self.epoch_before, self.record.epoch):
            yield from filter(None, (epoch.summary, *(message.text for message in epoch.payloads)))
        yield from filter(None, (self.record.setting, self.record.offered, *self.record.summaries.values()))
        yield from (self.masked.get(digest, digest) for digest in self.contents)


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
        self._logs: LRUCache[str, Log] = LRUCache(_MOST_LOGS)
        self._records: LRUCache[str, Record] = LRUCache(_MOST_RECORDS)
        self._resolved: LRUCache[str, Resolved] = LRUCache(_MOST_RESOLVED)
        self._contents: LRUCache[tuple[str, str], Content] = LRUCache(_MOST_PARSED)
        self._policies: dict[str, PackPolicy] = {}
        self._settings: dict[str, Setting] = {}

    def log(self, manifest: Manifest) -> Log:
        """The log of a manifest's session, with all read that the manifest names of it."""
        folder = self.store.files.place(*manifest.session_key)
        log = self._logs.setdefault(folder, Log(self.store.files, folder))
        return log.load([manifest.number, *_indices(manifest.segments, _MOST_CONTENTS)])

    def resolve(self, manifest: Manifest) -> Resolved:
        """The record of a manifest with what those before it in its chain hold.

        Raises:
            PackNotFound: one of them is missing.
            ManifestError: one of them is damaged.
            ReplayError: it names contents that they do not hold.
        """
        log, name, waiting = self.log(manifest), manifest.record, dict[str, Record]()
        while name and name not in self._resolved:
            waiting[name] = self._record(log, name)
            name = waiting[name].extends or ""
        for name, record in reversed(waiting.items()):
            self._resolved[name] = _resolved(self._resolved.get(record.extends or ""), record)
        resolved = self._resolved[manifest.record]
        manifest.fill(resolved.record)
        return resolved

    def line(self, manifest: Manifest) -> Iterator[Record]:
        """The records of a manifest's chain, the oldest last; errors as for `resolve`."""
        log, name = self.log(manifest), manifest.record
        while name:
            yield (record := self._record(log, name))
            name = record.extends or ""

    def _record(self, log: Log, name: str) -> Record:
        if name not in self._records:
            self._records[name] = Record.from_line(log.text(name))
        return self._records[name]

    def setting(self, manifest: Manifest) -> Setting:
        """The system instruction, declarations and step of a pack; `PackNotFound` where they are not there."""
        name = self.resolve(manifest).record.setting
        if name not in self._settings:
            self._settings[name] = SETTING.validate_json(self.log(manifest).text(name))
        return self._settings[name]

    def offered(self, manifest: Manifest) -> Mapping[str, JSON]:
        """The ``candidates`` that were ranked last for a pack's chain, and the ``problems`` that were met then."""
        name = next((record.offered for record in self.line(manifest) if record.chose), "")
        return parse_json(self.log(manifest).text(name), TEXT_DIGITS) if name else {}

    def missing(self, manifest: Manifest) -> list[str]:
        """The texts that a replay of a pack lacks; errors as for `resolve`."""
        resolved, texts = self.resolve(manifest), self.log(manifest).texts
        names = resolved.text_names() if manifest.texts else ()
        return [name for name in (manifest.policy, *names) if name not in texts]

    def content(self, manifest: Manifest, digest: str) -> Content:
        """A content of a pack's chain as it was recorded, by its hash; `PackNotFound` where its text is not there."""
        name = self.resolve(manifest).masked.get(digest, digest)
        if (digest, name) not in self._contents:
            content = content_from_wire(self.log(manifest).text(name))
            self._contents[digest, name] = replace(content, digest=digest)
        return self._contents[digest, name]

    def pack_input(self, manifest: Manifest) -> PackInput:
        """The input that the pack was built from; `ReplayIncomplete` where texts were not recorded, or are gone."""
        resolved, texts = self.resolve(manifest), self.log(manifest).texts
        if not manifest.texts:
            raise ReplayIncomplete([f"the texts of {manifest.pack_id}: the policy recorded hashes only"])
        if missing := self.missing(manifest):
            raise ReplayIncomplete(missing)
        setting = self.setting(manifest)
        other_agents = set(_indices(manifest.others, len(resolved.contents)))
        contents = enumerate(self.content(manifest, digest) for digest in resolved.contents)
        request = Request(
            **values_of(setting, *OF_REQUEST),
            **values_of(manifest, "model", "first_call", "rewritten", "request_index"),
            contents=tuple(attributed(content) if index in other_agents else content for index, content in contents),
            positions=tuple(_indices(manifest.positions, len(resolved.contents))),
        )
        epoch = resolved.epoch_before
        epoch = replace(
            epoch,
            summary=texts[epoch.summary] if epoch.summary else "",
            payloads=tuple(replace(message, text=texts[message.text]) for message in epoch.payloads),
        )
        remaining = manifest.remaining
        offered = parse_json(texts[manifest.offered], TEXT_DIGITS) if manifest.offered else {}
        return PackInput(
            identity=Identity(**values_of(manifest, *Identity._fields)),
            request=request,
            **values_of(manifest, "window", "output_tokens"),
            step=setting.step,
            validity=manifest.plan_validity or manifest.validity,
            invalid_reason="" if manifest.plan_validity is not None else manifest.invalid_reason,
            candidates=_CANDIDATES.validate_python(offered.get("candidates", ())),
            instructions=setting.instructions,
            epoch=epoch,
            host=Host(**values_of(manifest, *OF_HOST)),
            usage=Usage(calibration=manifest.calibration, growth=manifest.growth),
            search=Search(
                turns=manifest.searched,
                embedder=manifest.embedder,
                memory_embedder=manifest.memory_embedder,
                room=manifest.recall_room,
                remaining=None if remaining is None else frozenset(_indices(remaining, len(request.positions))),
            ),
            problems=tuple(offered.get("problems", ())),
            summaries={key: texts[name] for key, name in manifest.summaries.items()},
            wording=dict(setting.wording),
        )

    def policy(self, manifest: Manifest) -> PackPolicy:
        """The policy that the pack was built with."""
        if manifest.policy in self._policies:
            return self._policies[manifest.policy]
        if (settings := self.log(manifest).texts.get(manifest.policy)) is None:
            raise ReplayIncomplete([f"the settings of policy {manifest.policy}"])
        try:
            policy = self._policies[manifest.policy] = PackPolicy.from_recorded(parse_json(settings))
        except AetherContextError as error:
            raise ReplayIncomplete([f"a policy that this version can read: {error}"]) from error
        return policy

    def replay(self, manifest: Manifest, policy: PackPolicy | None = None, *, window: int | None = None) -> Replayed:
        """Builds the pack again, as `replay` does, with another policy or in another window where given."""
        try:
            source = self.pack_input(manifest)
            source = source if window is None else source._replace(window=window)
            if policy is not None or window is not None:  # another cut leaves something else
                source = source._replace(search=source.search._replace(remaining=None))
            resolved = self.resolve(manifest)
            pack = build_pack(source, policy or self.policy(manifest), recorded=resolved.counts)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
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
            _compare(manifest, resolved, pack)
        return Replayed(manifest=manifest, pack=pack, matches=matches)


def _compare(manifest: Manifest, resolved: Resolved, pack: Pack) -> None:
    """Raises `ReplayMismatch` where the rows or the layers' tokens are others than the recorded ones."""
    new = {row.id for row in manifest.rows}
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


def _resolved(base: Resolved | None, record: Record) -> Resolved:
    """A record with what the one that it extends holds."""
    earlier = base or Resolved(record=record, epoch_before=record.epoch)
    log = (*earlier.log, *record.contents.added)
    numbers = _indices(record.contents.ranges, _MOST_CONTENTS)
    if any(not 0 <= number < len(log) for number in numbers):
        raise ReplayError(f"pack {record.number:,} names contents that its chain does not hold")
    contents = tuple(log[number] for number in numbers)
    content_rows = [row for row in record.rows if is_content(row)]
    # A content's row holds while the content goes in, a candidate's until candidates are ranked again; rows of
    # instructions are in each pack.
    new_rows = {row.id: row for row in record.rows}
    unmatched = Counter(contents)
    unmatched.subtract(row.hash for row in content_rows)
    live_rows: dict[str, Row] = {}
    for row in earlier.rows.values():
        if not is_content(row):
            if not record.chose and row.layer != "system":
                live_rows[row.id] = row
        elif is_live(record.epoch, content_place(row.id)) and row.id not in new_rows and unmatched[row.hash] > 0:
            unmatched[row.hash] -= 1
            live_rows[row.id] = row
    return Resolved(
        record=record,
        contents=contents,
        rows=live_rows | new_rows,
        counts={**earlier.counts, **record.counts, **{short(row.hash, 16): row.tokens for row in content_rows}},
        masked={**earlier.masked, **record.masked},
        epoch_before=record.epoch_before or earlier.record.epoch,
        log=log,
    )


def _indices(ranges: Sequence[tuple[int, int]], limit: int) -> list[int]:
    """The indices in ranges; `ReplayError` where there are more than ``limit``."""
    if sum(max(0, stop - start) for start, stop in ranges) > limit:
        raise ReplayError(f"its ranges hold more than its {limit:,} contents")
    return [index for start, stop in ranges for index in range(start, stop)]


def replay(manifest: Manifest, store: PackStore | str, policy: PackPolicy | None = None) -> Replayed:
    """Builds a recorded pack again. To replay many of a session, keep a `Replayer`.

    Args:
        store: holds the pack and its session's log; a store, or its URL.
        policy: another policy to build it with; None takes the recorded one.

    Raises:
        ReplayError: what is recorded cannot be built from.
        ReplayIncomplete: the recording lacks texts.
        ReplayMismatch: with the recorded policy, a stage gave another result; it is named.
    """
    return Replayer(store if isinstance(store, PackStore) else PackStore(store)).replay(manifest, policy)
