"""What sessions read with their packs, beside what they would have read without, told from the records alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal

from aether_context.conversation.content_json import content_from_wire
from aether_context.errors import AetherContextError, ManifestError
from aether_context.evidence import ARTIFACT_KEY, evidence_key
from aether_context.evidence.record import READ, SEARCH
from aether_context.packing.payload import SYSTEM_CONTRACT
from aether_context.store import Manifest, PackStore
from aether_context.store.recording import SETTING, Setting
from aether_context.store.replay import wires
from aether_context.text.entities import artifact_uris
from aether_context.tokens import counter_for, framing_of
from aether_context.tokens.cache import PackCounter
from aether_context.usage.calibration import estimated
from aether_context.usage.prices import prices_of
from aether_context.views.difference import place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The input of one call, or of several.

    Attributes:
        tokens: as the provider is expected to count them.
        shared: of these, what begins as the call before did, and a provider's cache can serve at best.
        largest: those of the largest call.
        over_window: calls whose input is larger than the window.
        cost_usd: of the input by its list price, as if a cache had served all that is shared; None where no call has a
            known price.
    """

    calls: int = 0
    tokens: int = 0
    shared: int = 0
    largest: int = 0
    over_window: int = 0
    cost_usd: Decimal | None = None

    def plus(self, other: Reading) -> Reading:
        """The sum of both."""
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Reading(
            calls=self.calls + other.calls,
            tokens=self.tokens + other.tokens,
            shared=self.shared + other.shared,
            largest=max(self.largest, other.largest),
            over_window=self.over_window + other.over_window,
            cost_usd=sum(costs, Decimal(0)) if costs else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The same calls with their packs and without: then each reads all that the host made of its request.

    That is the whole history, every declaration but those that read what is kept elsewhere, and the results of tools
    that an extract stands for. That the model would have answered and called the same is taken for granted.

    Attributes:
        unknown: contents of the host that no pack on record tells of, and results whose record is gone: what is said
            of the calls without packs is then too little.
    """

    packed: Reading = field(default_factory=Reading)
    unpacked: Reading = field(default_factory=Reading)
    unknown: int = 0

    def plus(self, other: Comparison) -> Comparison:
        """The sum of both."""
        return Comparison(
            packed=self.packed.plus(other.packed),
            unpacked=self.unpacked.plus(other.unpacked),
            unknown=max(self.unknown, other.unknown),
        )


_MEDIA_KEY = "media"
_MOST_CONTENTS = 200_000
"""Contents of a host's list that are compared: a manifest that names more is not what was written."""


@dataclass(slots=True)
class _Host:
    """What the host's requests to one agent consist of.

    ``contents`` are the hash and the tokens of each content by its place, ``ends`` their sums up to there, ``unknown``
    the places of which no pack tells.
    """

    contents: list[tuple[str, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    unknown: set[int] = field(default_factory=set)
    fixed: tuple[str, ...] = ()

    def take(self, length: int, known: Mapping[int, tuple[str, int]]) -> int:
        """Takes a list of so many contents, of which some are told; how many stay as they were, from the beginning."""
        before = len(self.contents)
        self.unknown = {place for place in self.unknown if place < length} | set(range(before, length))
        del self.contents[length:]
        self.contents += [("", 0)] * (length - before)
        same = stale = min(before, length)
        for place, content in sorted(known.items()):
            if self.contents[place] != content:
                stale = min(stale, place)
                same = same if place in self.unknown else min(same, place)
                self.contents[place] = content
            self.unknown.discard(place)
        del self.ends[stale:]
        for _, tokens in self.contents[stale:]:
            self.ends.append(self.upto(len(self.ends)) + tokens)
        return same

    def upto(self, count: int) -> int:
        """Tokens of the first contents."""
        return self.ends[count - 1] if count else 0


class Unpacked:
    """Tells of one pack after another, in the order in which they were built, what its call would have read without.

    The host's contents are known from the rows of the packs: each was a candidate once, with its tokens. Settings are
    read from the store, and so are texts where a result is kept elsewhere.

    Args:
        priced_as: the model whose prices are taken; None for each pack's own.
    """

    def __init__(self, store: PackStore, *, priced_as: str | None = None) -> None:
        self._store = store
        self._priced_as = priced_as
        self._hosts: dict[tuple[str, ...], _Host] = {}
        self._settings: dict[str, Setting | None] = {}
        self._wholes: dict[tuple[str, str, str], dict[str, int]] = {}
        self._left_out: dict[str, int] = {}
        self._gone: set[str] = set()

    def compare(self, manifest: Manifest) -> Comparison:
        """The comparison for one call; `ManifestError` where its manifest names more contents than a host has."""
        length = manifest.positions[-1][1] if manifest.positions else 0
        if not 0 <= length <= _MOST_CONTENTS:
            raise ManifestError(f"{manifest.pack_id}: not a manifest: positions: up to {length:,} contents")
        self._read_extracts(manifest)
        rows = {place: row for row in manifest.rows if 0 <= (place := place_of(row)) < length}
        host = self._hosts.setdefault((*manifest.session_key, manifest.agent, manifest.branch), _Host())
        tokens_of = {row.hash: row.tokens + self._left_out.get(row.hash, 0) for row in rows.values()}
        same = host.take(length, {place: (row.hash, tokens_of[row.hash]) for place, row in rows.items()})
        fixed, marks = self._fixed(manifest)
        shared = fixed + host.upto(same) if marks == host.fixed else 0
        host.fixed = marks
        counted = fixed + host.upto(length)
        expected = estimated(manifest.calibration, counted) if manifest.calibration is not None else counted
        packed = manifest.request_tokens, manifest.prefix.shared_tokens or 0, manifest.counted_tokens
        return Comparison(
            packed=self._reading(manifest, *packed),
            unpacked=self._reading(manifest, expected, shared, counted),
            unknown=len(host.unknown) + len(self._gone),
        )

    def _reading(self, manifest: Manifest, tokens: int, shared: int, counted: int) -> Reading:
        """What a call reads, the tokens that were counted as shared in proportion to all that were."""
        cached = min(tokens, shared * tokens // counted) if counted else 0
        prices = prices_of(self._priced_as or manifest.model, manifest.last_event_time)
        return Reading(
            calls=1,
            tokens=tokens,
            shared=cached,
            largest=tokens,
            over_window=int(tokens > manifest.window),
            cost_usd=prices.cost(input_tokens=tokens, cached_tokens=cached) if prices is not None else None,
        )

    def _fixed(self, manifest: Manifest) -> tuple[int, tuple[str, ...]]:
        """Tokens of the host's system instruction and declarations, and what tells them from others."""
        counter = counter_for(manifest.model)
        system, tools = manifest.allocation["system"].used, manifest.allocation["tools"].used
        system -= manifest.calibration.unseen if manifest.calibration is not None else 0
        if manifest.epoch.contract:
            system -= counter.count(SYSTEM_CONTRACT)
        setting = self._setting(manifest)
        if setting is None:
            return system + tools, (*manifest.tools.sent, *manifest.tools.left_out)
        own = [tool for tool in setting.tools if tool.name not in (READ, SEARCH)]
        if manifest.tools.left_out or manifest.epoch.trimmed or len(own) < len(setting.tools):
            counted = PackCounter(counter, framing=framing_of(manifest.model))
            tools = sum(counted.tools(own)) + sum(counted.count_all(setting.other_tools))
        return system + tools, (setting.system, *(tool.digest for tool in own), *setting.other_tools)

    def _setting(self, manifest: Manifest) -> Setting | None:
        """System instruction and declarations as the host gave them; None where they are not recorded."""
        if manifest.setting not in self._settings:
            found = None
            with suppress(AetherContextError, ValueError):
                found = SETTING.validate_json(self._store.blob(manifest, manifest.setting)) if manifest.texts else None
            self._settings[manifest.setting] = found
        return self._settings[manifest.setting]

    def _read_extracts(self, manifest: Manifest) -> None:
        """Notes what the extracts among a pack's new texts leave out, in tokens, by the hashes of their contents."""
        if not manifest.texts or not any(map(evidence_key, manifest.artifact_uris)):
            return
        counter = counter_for(manifest.model)
        try:
            texts = wires(json.loads(self._store.blob(manifest, manifest.texts[0])))
        except (AetherContextError, ValueError):
            self._gone.add(manifest.pack_id)
            return
        for content in map(content_from_wire, texts):
            left_out = 0
            for part in content.responses:
                for uri in _extracted(part.text):
                    whole = self._whole(manifest, uri)
                    if whole is None:
                        self._gone.add(uri)
                    else:
                        left_out += max(0, whole - counter.count(part.text))
            if left_out:
                self._left_out[content.digest] = left_out

    def _whole(self, manifest: Manifest, uri: str) -> int | None:
        """Tokens of a result that is kept elsewhere; None where its record is gone."""
        wholes = self._wholes.setdefault(manifest.session_key, {})
        if uri not in wholes:
            with suppress(AetherContextError):
                wholes |= {record.uri: record.tokens for record in self._store.evidence(*manifest.session_key)}
        return wholes.get(uri)


def _extracted(response: str) -> Iterator[str]:
    """The addresses of what an extract or marks stand for."""
    value = json.loads(response)
    for key, found in value.items() if isinstance(value, dict) else ():
        if key.rstrip("_") in (ARTIFACT_KEY, _MEDIA_KEY):
            for text in found if isinstance(found, list) else [found]:
                yield from artifact_uris(str(text))[:1]
