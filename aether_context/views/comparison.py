"""The input of a session's calls with their packs and without, computed from the recorded manifests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal

from aether_context.canonical import canonical_json, strings
from aether_context.conversation.content_json import content_from_wire
from aether_context.errors import AetherContextError, ManifestError
from aether_context.evidence import ARTIFACT_KEY, evidence_key
from aether_context.evidence.record import READ, SEARCH
from aether_context.packing.payload import SYSTEM_CONTRACT
from aether_context.store import Manifest, PackStore
from aether_context.store.recording import SETTING, Setting
from aether_context.store.replay import contents_of
from aether_context.text.entities import artifact_uris
from aether_context.tokens import TokenCounter, counter_for, framing_of
from aether_context.tokens.cache import PackCounter
from aether_context.usage.calibration import estimated
from aether_context.usage.prices import prices_of
from aether_context.views.difference import place_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The input of one call, or of several.

    Attributes:
        tokens: input tokens as the provider is expected to count them.
        shared: those of the prefix in common with the call before, the most that a provider's cache can serve.
        largest: input tokens of the largest call.
        over_window: number of calls whose input is larger than the window.
        cost_usd: list price of the input, as if a cache had served all shared tokens; None where no price is known.
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
    """The same calls with their packs and without.

    Without packs, a call reads the host's whole request: the whole history, all declarations but those of the tools
    that read evidence, and whole results in the place of extracts. It is assumed that the model would have given the
    same answers and made the same calls.

    Attributes:
        unknown: number of the host's contents that are in no recorded pack, and of results whose record is gone. They
            are missing in the numbers without packs, which are then too low.
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
"""The most contents that a host's list can have; a manifest with more is not valid."""


@dataclass(slots=True)
class _Host:
    """The host's requests to one agent.

    ``contents`` are the hash and the tokens of each content, in the order of the host's list; ``ends`` the sums of the
    tokens up to each; ``unknown`` the indices of contents that are in no recorded pack; ``fixed`` identifies the system
    instruction and the declarations.
    """

    contents: list[tuple[str, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    unknown: set[int] = field(default_factory=set)
    fixed: tuple[str, ...] = ()

    def take(self, length: int, known: Mapping[int, tuple[str, int]]) -> int:
        """Updates the list to a length and to the known contents; returns how many are unchanged from the beginning."""
        previous_count = len(self.contents)
        self.unknown = {place for place in self.unknown if place < length} | set(range(previous_count, length))
        del self.contents[length:]
        self.contents += [("", 0)] * (length - previous_count)
        unchanged = recount_from = min(previous_count, length)
        for place, content in sorted(known.items()):
            if self.contents[place] != content:
                recount_from = min(recount_from, place)
                unchanged = unchanged if place in self.unknown else min(unchanged, place)
                self.contents[place] = content
            self.unknown.discard(place)
        del self.ends[recount_from:]
        for _, tokens in self.contents[recount_from:]:
            self.ends.append(self.upto(len(self.ends)) + tokens)
        return unchanged

    def upto(self, count: int) -> int:
        """Tokens of the first ``count`` contents."""
        return self.ends[count - 1] if count else 0


class Unpacked:
    """Compares packs, given in the order in which they were built, with calls without packs.

    The host's contents are known from the rows of the packs: each was a candidate once, with its tokens. System
    instruction and declarations are read from the store, and so are the extracts of results that are kept elsewhere.

    Args:
        priced_as: the model whose prices are used; None uses that of each pack.
    """

    def __init__(self, store: PackStore, *, priced_as: str | None = None) -> None:
        self._store = store
        self._priced_as = priced_as
        self._hosts: dict[tuple[str, ...], _Host] = {}
        self._settings: dict[tuple[str, ...], Setting] = {}
        self._wholes: dict[tuple[str, str, str], dict[str, int]] = {}
        self._left_out: dict[str, int] = {}
        self._gone: set[str] = set()

    def compare(self, manifest: Manifest) -> Comparison:
        """The comparison for one call; `ManifestError` where its manifest has more contents than a host can have."""
        length = manifest.positions[-1][1] if manifest.positions else 0
        if not 0 <= length <= _MOST_CONTENTS:
            raise ManifestError(f"{manifest.pack_id}: not a manifest: positions: up to {length:,} contents")
        self._read_extracts(manifest)
        rows = {place: row for row in manifest.rows if 0 <= (place := place_of(row)) < length}
        host = self._hosts.setdefault((*manifest.session_key, manifest.agent, manifest.branch), _Host())
        tokens_of = {row.hash: row.tokens + self._left_out.get(row.hash, 0) for row in rows.values()}
        unchanged = host.take(length, {place: (row.hash, tokens_of[row.hash]) for place, row in rows.items()})
        fixed, identity = self._fixed(manifest)
        shared = fixed + host.upto(unchanged) if identity == host.fixed else 0
        host.fixed = identity
        counted = fixed + host.upto(length)
        expected_tokens = estimated(manifest.calibration, counted) if manifest.calibration is not None else counted
        packed = manifest.request_tokens, manifest.prefix.shared_tokens or 0, manifest.counted_tokens
        return Comparison(
            packed=self._reading(manifest, *packed),
            unpacked=self._reading(manifest, expected_tokens, shared, counted),
            unknown=len(host.unknown) + len(self._gone),
        )

    def _reading(self, manifest: Manifest, tokens: int, shared: int, counted: int) -> Reading:
        """The input of a call; shared tokens are scaled from counted to expected ones."""
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
        """Tokens of the host's system instruction and declarations, and values that identify these."""
        counter = counter_for(manifest.model)
        system, tools = manifest.allocation["system"].used, manifest.allocation["tools"].used
        system -= manifest.calibration.unseen if manifest.calibration is not None else 0
        if manifest.epoch.contract:
            system -= counter.count(SYSTEM_CONTRACT)
        setting = self._setting(manifest)
        if setting is None:
            return system + tools, (*manifest.tools.sent, *manifest.tools.left_out)
        host_tools = [tool for tool in setting.tools if tool.name not in (READ, SEARCH)]
        if manifest.tools.left_out or manifest.epoch.trimmed or len(host_tools) < len(setting.tools):
            pack_counter = PackCounter(counter, framing=framing_of(manifest.model))
            tools = sum(pack_counter.tools(host_tools)) + sum(pack_counter.count_all(setting.other_tools))
        return system + tools, (setting.system, *(tool.digest for tool in host_tools), *setting.other_tools)

    def _setting(self, manifest: Manifest) -> Setting | None:
        """System instruction and declarations as the host gave them; None where they are not recorded."""
        key = (*manifest.session_key, manifest.agent, manifest.branch)
        if manifest.extends is None:
            self._settings.pop(key, None)
        with suppress(AetherContextError, ValueError):
            recorded = self._store.texts(manifest).get("setting")
            if recorded is not None:
                self._settings[key] = SETTING.validate_python(recorded)
        return self._settings.get(key)

    def _read_extracts(self, manifest: Manifest) -> None:
        """Notes how many tokens the extracts among a pack's new texts leave out, by the hashes of their contents."""
        if not manifest.texts or not any(map(evidence_key, manifest.artifact_uris)):
            return
        counter = counter_for(manifest.model)
        try:
            texts = contents_of(self._store.texts(manifest))
        except (AetherContextError, ValueError):
            self._gone.add(manifest.pack_id)
            return
        for name, wire in texts.items():
            content, left_out = content_from_wire(wire), 0
            for part in content.responses:
                for uri in _extracted(part.text):
                    whole_tokens = self._whole(manifest, uri)
                    if whole_tokens is None:
                        self._gone.add(uri)
                    else:
                        left_out += max(0, int(whole_tokens * _escaping(part.text, counter)) - counter.count(part.text))
            if left_out:
                self._left_out[name] = left_out

    def _whole(self, manifest: Manifest, uri: str) -> int | None:
        """Tokens of the whole result behind an extract; None where its record is gone."""
        tokens_by_uri = self._wholes.setdefault(manifest.session_key, {})
        if uri not in tokens_by_uri:
            with suppress(AetherContextError):
                tokens_by_uri |= {record.uri: record.tokens for record in self._store.evidence(*manifest.session_key)}
        return tokens_by_uri.get(uri)


def _escaping(response: str, counter: TokenCounter) -> float:
    """By what a response's JSON lengthens the one text that makes up most of it, in tokens; 1 where there is none."""
    text = max((text for _, text in strings(json.loads(response))), key=len, default="")
    return counter.count(canonical_json(text)) / counter.count(text) if 2 * len(text) > len(response) else 1.0


def _extracted(response: str) -> Iterator[str]:
    """The addresses of whole results and media in a response that was replaced by an extract."""
    value = json.loads(response)
    for key, values in value.items() if isinstance(value, dict) else ():
        if key.rstrip("_") in (ARTIFACT_KEY, _MEDIA_KEY):
            for text in values if isinstance(values, list) else [values]:
                yield from artifact_uris(str(text))[:1]
