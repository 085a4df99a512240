"""Simulates ("plays") recorded sessions under other policies, call by call, with the recorded answers.

Cuts depend on earlier cuts, so a session is played from its first call on: each pack is built from what the host sent
then, on the epoch that the packs before it left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from aether_context.errors import AetherContextError, PolicyError
from aether_context.lab.exam.recordings import RecordedCall, RecordedSession, SessionFolder, recorded_sessions
from aether_context.lab.tuning.retention import Used, used
from aether_context.pack import Epoch, Pack, PackInput, Previous
from aether_context.packing import build_pack, next_input, turns_to_find
from aether_context.policy import PackPolicy, differing, merged
from aether_context.retrieval import Entry, query_for
from aether_context.retrieval.call_indexes import recalled, turn_entries
from aether_context.retrieval.embedders import embedder_for
from aether_context.retrieval.ranking import room_for_turns
from aether_context.tokens import counter_for
from aether_context.tokens.cache import TokenCache
from aether_context.tokens.model_limits import model_window
from aether_context.usage.prices import working_window

_PlayedCall: TypeAlias = tuple[RecordedCall, Pack]
"""A recorded call, and the pack that was built for it instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of a session under one policy.

    Attributes:
        cost: counted tokens of all requests, those that a prefix cache could serve weighted by its price.
        over: number of requests larger than the window.
        needed: number of texts that answers used, and of calls that read a shortened result again.
        kept: for each call, the number of these texts that were in its request.
        same: number of requests that are equal to the recorded ones, byte for byte.
    """

    cost: float = 0.0
    over: int = 0
    needed: int = 0
    kept: tuple[int, ...] = ()
    same: int = 0

    @property
    def retention(self) -> float | None:
        """The share of needed texts that were in the requests, in percent; None where none were needed."""
        return 100 * sum(self.kept) / self.needed if self.needed else None

    def adding(self, call: RecordedCall, pack: Pack, need: Used) -> Played:
        manifest, shared_tokens = call.manifest, pack.prefix.shared_tokens or 0
        return Played(
            cost=self.cost + pack.tokens.counted - (1 - manifest.cached_price) * shared_tokens,
            over=self.over + (pack.tokens.over_window > 0),
            needed=self.needed + need.count,
            kept=(*self.kept, need.kept(pack)),
            same=self.same + (pack.checksum == manifest.checksum),
        )


def play(
    folder: SessionFolder,
    profile: str,
    policies: Sequence[PackPolicy],
    others: Sequence[PackPolicy] | None = None,
) -> list[Played | str]:
    """Plays a session under each policy; a text says why it cannot be played.

    The policies are those of the profile's calls, which alone count; other calls keep the recorded ones. An agent that
    has a table in a policy is played under that.

    Args:
        policies: the first is the base, which the others vary.
        others: other policies that were recorded beside the base: a setting that differs in any of them is an agent's
            own, and stays as recorded. None plays all calls under the policies as they are.
    """
    try:
        recorded = recorded_sessions(folder)
        sessions = [_Session(each) for each in recorded if any(call.manifest.profile == profile for call in each.calls)]
    except AetherContextError as error:
        return [f"{type(error).__name__}: {error}"] * len(policies)
    results: list[Played | str] = []
    for policy in policies:
        played = Played()
        try:
            for session in sessions:
                played = session.play(played, policy, profile, policies[0], others)
            results.append(played)
        except AetherContextError as error:
            results.append(f"{type(error).__name__}: {error}")
    return results


class _Session:
    """A recorded session with what all policies share: what its answers used, token counts, and indexes of turns."""

    def __init__(self, recorded: RecordedSession) -> None:
        self._recorded = recorded
        self._needs, self._cache = used(recorded), TokenCache()
        self._of_base: list[Pack] = []

    def play(
        self,
        played: Played,
        policy: PackPolicy,
        profile: str,
        base: PackPolicy,
        others: Sequence[PackPolicy] | None,
    ) -> Played:
        """Adds the session's calls of a profile to a result."""
        own_policy, own_base = (each.for_agent(self._recorded.agent, profile) for each in (policy, base))
        varied: dict[str, PackPolicy] = {}
        shares = policy is not base and _is_grid_step(own_policy, own_base)
        if policy is base:
            self._of_base.clear()
        previous: _PlayedCall | None = None
        for number, (call, need) in enumerate(zip(self._recorded.calls, self._needs, strict=True)):
            counts, digest = call.manifest.profile == profile, call.policy.digest
            if digest not in varied:
                varied[digest] = own_policy
                if others is not None:
                    varied[digest] = _varied(call.policy, own_policy, (own_base, *others))
            shares = shares and number < len(self._of_base) and _is_far_from_cuts(self._of_base[number])
            pack = (
                self._of_base[number]
                if shares
                else self._pack(call, varied[digest] if counts else call.policy, previous)
            )
            if policy is base:
                self._of_base.append(pack)
            played = played.adding(call, pack, need) if counts else played
            previous = call, pack
        return played

    def _pack(self, call: RecordedCall, policy: PackPolicy, previous: _PlayedCall | None) -> Pack:
        counter, counts = counter_for(call.source.request.model), self._recorded.counts
        build = partial(build_pack, policy=policy, counter=counter, cache=self._cache, recorded=counts)
        source = _source(call, policy, previous)
        if source.request.first_call and source.epoch.cut_count:
            source = self._recalling(call, source, policy, frozenset(source.request.positions), None)
        pack = build(source)
        if (turn_search := turns_to_find(pack)) is not None:
            recalling = self._recalling(call, source, policy, *turn_search)
            pack = build(recalling) if recalling.search.turns is not None else pack
        return pack

    def _recalling(
        self, call: RecordedCall, source: PackInput, policy: PackPolicy, skip: frozenset[int], max_tokens: int | None
    ) -> PackInput:
        """The input with the most relevant turns that were cut; unchanged where none were cut.

        Turns are the texts without calls and responses. ``max_tokens`` limits them.
        """
        settings, query, asked_at = policy.retrieval, query_for(source, policy.redact), call.request_index
        if not (settings.recall and settings.memory_k and query) or source.host.passthrough_reason or asked_at is None:
            return source
        entries: list[Entry] = []
        turn_characters = all_characters = 0
        for position, (content, time) in enumerate(zip(call.history[:asked_at], call.times, strict=False)):
            size = sum(len(part.text) for part in content.parts if part.kind != "thought")
            all_characters += size + 1
            words = "" if content.calls or content.responses else content.words.strip()
            if words:
                turn_characters += size
                speaker = content.agent or ("user" if content.role == "user" else self._recorded.agent)
                entries += turn_entries(position, words, time=time, speaker=speaker)
        room = room_for_turns(turn_characters, all_characters, source, max_tokens)
        if not room or all(int(entry.id.partition("#")[0]) in skip for entry in entries):
            return source
        embedder = embedder_for("none" if settings.embedder == "none" else "static")
        digests = [content.digest for content in call.history]
        candidates = recalled(entries, source, policy, digests.__getitem__, tokens=room, embedder=embedder)
        search = source.search._replace(turns=len(entries))
        return source._replace(candidates=(*source.candidates, *candidates), search=search)


_LEAST_MARK = 0.5
"""The share of the budget up to which no policy of the grid cuts, or leaves anything out."""


_GRID = {"budget": {"shares"}, "conversation": {"compact_at", "compact_to"}, "retrieval": {"memory_k"}}
"""The settings of the grid, by their sections."""


def _is_grid_step(policy: PackPolicy, base: PackPolicy) -> bool:
    """Tells whether a policy differs from the base in what plays no part far from a cut: shares, marks, memories."""
    moved = differing(policy.model_dump(), base.model_dump())
    is_late = all((each.conversation.compact_at or 0) >= _LEAST_MARK for each in (policy, base))
    return is_late and all(section in _GRID and changes.keys() <= _GRID[section] for section, changes in moved.items())


def _is_far_from_cuts(pack: Pack) -> bool:
    """Tells whether a request is whole and small, so that another policy of the grid would send the same."""
    is_bare = not pack.source.candidates and pack.source.step is None and not pack.epoch.cut_count
    return is_bare and pack.tokens.counted <= _LEAST_MARK * pack.allocation.budget


def _varied(recorded: PackPolicy, policy: PackPolicy, others: Sequence[PackPolicy]) -> PackPolicy:
    """A policy in the place of a recorded one, of which the settings stay that any of some others has otherwise."""
    settings = recorded.model_dump()
    own: Mapping[str, Any] = {}
    for other in others:
        own = merged(own, differing(settings, other.model_dump()))
    try:
        return PackPolicy(**merged(policy.model_dump(), own)) if own else policy
    except PolicyError:  # they leave no room for each other
        return recorded


def _source(call: RecordedCall, policy: PackPolicy, previous: _PlayedCall | None) -> PackInput:
    """The input of a call's pack, after the packs before it."""
    source = call.source
    model, window, calibration = source.request.model, source.window, source.usage.calibration
    if policy.max_input_tokens != call.policy.max_input_tokens:
        window = policy.window_of(model) or (model_window if policy.takes_all(model) else working_window)(model)
    request_before, epoch = Previous(), Epoch(number=0)
    if previous is not None:
        recorded_call, pack = previous
        request_before, epoch = Previous(pack.sent, recorded_call.manifest.pack_id), pack.epoch
        if calibration is not None:
            # What was reported was for the recorded request: in the proportion of the sizes it is for the simulated.
            scale = pack.tokens.counted / max(1, recorded_call.manifest.counted_tokens)
            reported = calibration.report_minus_count
            calibration = replace(
                calibration,
                offset=round(calibration.offset * scale, 2),
                report_minus_count=None if reported is None else round(reported * scale),
                spare_tokens=round(calibration.spare_tokens * scale),
            )
    usage = source.usage._replace(calibration=calibration)
    source = source._replace(window=window, usage=usage, previous=request_before)
    return next_input(source, call.length, call.history.__getitem__, epoch, request_index=call.request_index)
