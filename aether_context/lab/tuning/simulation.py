"""Simulates ("plays") recorded sessions under other policies, call by call, with the recorded answers.

Cuts depend on earlier cuts, so a session is played from its first call on: each pack is built from what the host sent
then, on the epoch that the packs before it left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple, TypeAlias

from aether_context.errors import AetherContextError, PolicyError
from aether_context.lab.exam.marking import examined
from aether_context.lab.exam.questions import parsed
from aether_context.lab.exam.recordings import (
    RecordedCall,
    RecordedSession,
    SessionFolder,
    recorded_sessions,
    stored_texts,
)
from aether_context.lab.tuning.retention import Used, used
from aether_context.pack import NOTHING, RECALLED, Content, Epoch, Pack, PackInput, Part, Previous, Usage, with_content
from aether_context.packing import build_pack, next_input, turns_to_find
from aether_context.policy import PackPolicy, differing, merged
from aether_context.retrieval import Entry
from aether_context.retrieval.call_indexes import recalled, turn_entries
from aether_context.retrieval.embedders import embedder_for
from aether_context.retrieval.ranking import recalls, room_for_turns
from aether_context.store import Manifest
from aether_context.store.replay import Replayer
from aether_context.tokens import counter_for
from aether_context.tokens.cache import TokenCache
from aether_context.usage.prices import cached_share, prices_of, window_under, working_window

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
        questions: number of the exam's questions, where a change is checked.
        answered: those whose text stands in their request.
    """

    cost: float = 0.0
    over: int = 0
    needed: int = 0
    kept: tuple[int, ...] = ()
    same: int = 0
    questions: int = 0
    answered: int = 0

    @property
    def retention(self) -> float | None:
        """The share of needed texts that were in the requests, in percent; None where none were needed."""
        return 100 * sum(self.kept) / self.needed if self.needed else None

    def adding(self, call: RecordedCall, pack: Pack, need: Used, cost: float, *is_answered: bool) -> Played:
        """This with another call; ``is_answered`` says of each question whether it is answered."""
        return Played(
            cost=self.cost + cost,
            over=self.over + (pack.tokens.over_window > 0),
            needed=self.needed + need.count,
            kept=(*self.kept, need.kept(pack)),
            same=self.same + (pack.checksum == call.manifest.checksum),
            questions=self.questions + len(is_answered),
            answered=self.answered + sum(is_answered),
        )


def cost_of(manifest: Manifest, pack: Pack | None = None) -> float:
    """The tokens of a recorded pack, or of one in its place, those of the shared prefix at the cache's price."""
    tokens = manifest.counted_tokens if pack is None else pack.tokens.counted
    return tokens - (1 - manifest.cached_price) * ((pack or manifest).prefix.shared_tokens or 0)


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
        of_profile = [each for each in recorded if any(call.manifest.profile == profile for call in each.calls)]
        sessions = [(Simulation(each), used(each)) for each in of_profile]
    except AetherContextError as error:
        return [f"{type(error).__name__}: {error}"] * len(policies)
    results: list[Played | str] = []
    for policy in policies:
        played = Played()
        try:
            for simulation, needs in sessions:
                played = simulation.play(played, needs, policy, profile, policies[0], others)
            results.append(played)
        except AetherContextError as error:
            results.append(f"{type(error).__name__}: {error}")
    return results


_OF_ADK = "\n\nYou are an agent. Your internal name is "
"""The beginning of the lines that ADK writes behind an agent's instruction."""
_DAY = 86_400


class Change(NamedTuple):
    """A change of what calls are built from; what is None stays as recorded.

    ``agent`` is the one that instruction, model and tools change for; all where it is None. The ``instruction`` takes
    the place of all in front of the lines that ADK writes behind it; ``without`` are the tools that go.
    """

    policy: PackPolicy | None = None
    instruction: str | None = None
    model: str | None = None
    without: tuple[str, ...] = ()
    agent: str | None = None

    def packs(self, session: RecordedSession, policy_of: Callable[[RecordedCall], PackPolicy]) -> list[_PlayedCall]:
        """Plays a session as it would be after the change, with this version's own wording."""
        change = self if self.agent in (None, session.agent) else Change()
        counts = session.counts if change.model in (None, session.calls[-1].manifest.model) else NOTHING
        altered_session = replace(session, counts=counts, calls=tuple(map(change._call, session.calls)))
        return list(Simulation(altered_session).packs(policy_of))

    def _call(self, call: RecordedCall) -> RecordedCall:
        source, manifest = call.source, call.manifest
        system, model = source.request.system, self.model or source.request.model
        if self.instruction is not None:
            system = self.instruction.strip() + "".join(system.partition(_OF_ADK)[1:])
        tools = tuple(tool for tool in source.request.tools if tool.name not in self.without)
        request = source.request._replace(model=model, system=system, tools=tools)
        source = source._replace(wording=NOTHING, request=request)
        if model != manifest.model:
            source = source._replace(window=window_under(call.policy, model, working_window(model)), usage=Usage())
            share = cached_share(model, int(manifest.last_event_time) // _DAY) or manifest.cached_price
            manifest = manifest.model_copy(update={"model": model, "cached_price": share})
        return replace(call, source=source, manifest=manifest)


def percent_more(base_value: float, new_value: float) -> float:
    """The relative difference in percent."""
    return 100 * (new_value / base_value - 1) if base_value else 0.0


def _price(manifest: Manifest) -> float:
    """The price of a million input tokens; `PolicyError` where it is unknown."""
    if (prices := prices_of(manifest.model, manifest.last_event_time)) is None:
        raise PolicyError(f"no price is known of {manifest.model!r}", field="model")
    return float(prices.cost(input_tokens=1_000_000))


def _size(request: Manifest | Pack) -> str:
    tokens = request.counted_tokens if isinstance(request, Manifest) else request.tokens.counted
    return f"{tokens:,} tokens ({request.prefix.shared_tokens or 0:,} cached)"


class ChangedCall(NamedTuple):
    """A call that a change alters: by how much its cost, in tokens at the price of the recorded model's input, the
    texts that the request no longer answers a question with, and both as words."""

    pack_id: str
    cost: float
    lost_texts: tuple[str, ...]
    words: str


def play_change(
    folder: SessionFolder, change: Change, profile: str, base: PackPolicy, other_policies: Sequence[PackPolicy] | None
) -> tuple[Played, Played, list[ChangedCall]] | str:
    """A session's calls of a profile before and after a change; as recorded and by this version where nothing changes.

    Other arguments and results are those of `play`. What a request held that was recorded by another version is not
    stored, but what it cost: this version builds it behind the recorded cuts.
    """
    is_bare, policy = change == Change(), change.policy.over(base).for_profile(profile) if change.policy else base
    old, new, changes = Played(), Played(), list[ChangedCall]()
    try:
        replayer, stored = Replayer(folder.store), stored_texts(folder)
        for recorded in recorded_sessions(folder, replayer):
            own_base, own_policy = (each.for_agent(recorded.agent, profile) for each in (base, policy))
            as_base, as_own = (policies_of(each, own_base, profile, other_policies) for each in (own_base, own_policy))
            replays = ((call, replayer.replay(call.manifest, call.policy).pack) for call in recorded.calls)
            played = replays if is_bare else Change().packs(recorded, as_base), change.packs(recorded, as_own)
            rows = zip(*played, used(recorded), examined(recorded, stored), strict=True)
            for (call, old_pack), (new_call, pack), need, (_, marker) in rows:
                if (manifest := call.manifest).profile != profile:
                    continue
                cost, new_cost = cost_of(manifest, None if is_bare else old_pack), cost_of(new_call.manifest, pack)
                if new_call.manifest.model != manifest.model:
                    new_cost *= _price(new_call.manifest) / _price(manifest)
                marks = [dict(marker(each)) if marker else {} for each in (old_pack, pack)]
                questions = list(marks[0] | marks[1])  # what stands whole in one of them is answered there
                old_answers, new_answers = (
                    [it.get(each, "answered") == "answered" for each in questions] for it in marks
                )
                old = old.adding(call, old_pack, need, cost, *old_answers)
                new = new.adding(call, pack, need, new_cost, *new_answers)
                answer_pairs = zip(questions, old_answers, new_answers, strict=True)
                lost_texts = tuple(question.need for question, was, is_now in answer_pairs if was and not is_now)
                if lost_texts or cost != new_cost:
                    loss = f"; lost: {', '.join(map(repr, lost_texts))}" if lost_texts else ""
                    sizes = f"{_size(manifest if is_bare else old_pack)} → {_size(pack)}{loss}"
                    words = f"call {manifest.number} of session {manifest.session}, {manifest.agent}: "
                    words += f"cost {percent_more(cost, new_cost):+.1f}%, {sizes}"
                    changes.append(ChangedCall(manifest.pack_id, new_cost - cost, lost_texts, words))
    except AetherContextError as error:
        return f"{type(error).__name__}: {error}"
    return old, new, changes


class Simulation:
    """A recorded session with what all policies share, its token counts."""

    def __init__(self, recorded: RecordedSession) -> None:
        self._recorded, self._cache = recorded, TokenCache()
        self._of_base: list[Pack] = []

    def packs(
        self, policy_of: Callable[[RecordedCall], PackPolicy], known: Sequence[Pack] = ()
    ) -> Iterator[_PlayedCall]:
        """Plays the session's calls, each under a policy; the first ones have the packs that are ``known``."""
        previous: _PlayedCall | None = None
        for number, call in enumerate(self._recorded.calls):
            is_known = number < len(known)
            previous = call, known[number] if is_known else self._pack(call, policy_of(call), previous)
            yield previous

    def play(
        self,
        played: Played,
        needs: Sequence[Used],
        policy: PackPolicy,
        profile: str,
        base: PackPolicy,
        others: Sequence[PackPolicy] | None,
    ) -> Played:
        """Adds the session's calls of a profile to a result; ``needs`` are what the answers to all calls used."""
        own_policy, own_base = (each.for_agent(self._recorded.agent, profile) for each in (policy, base))
        policy_of = policies_of(own_policy, own_base, profile, others)
        shares = policy is not base and _is_grid_step(own_policy, own_base)
        packs = list(self.packs(policy_of, list(takewhile(_is_far_from_cuts, self._of_base)) if shares else ()))
        if policy is base:
            self._of_base = [pack for _, pack in packs]
        for (call, pack), need in zip(packs, needs, strict=True):
            if call.manifest.profile == profile:
                played = played.adding(call, pack, need, cost_of(call.manifest, pack))
        return played

    def _pack(self, call: RecordedCall, policy: PackPolicy, previous: _PlayedCall | None) -> Pack:
        counter, counts = counter_for(call.source.request.model), self._recorded.counts
        build = partial(build_pack, policy=policy, counter=counter, cache=self._cache, recorded=counts)
        source = _source(call, policy, previous)
        sizes = [_sizes(content) for content in call.history[: call.request_index]] if recalls(source, policy) else []
        room = room_for_turns(sizes, source)
        source = source._replace(search=source.search._replace(room=room))
        if source.request.first_call and source.epoch.cut_count:
            source = self._recalling(call, source, policy, frozenset(source.request.positions), room)
        pack = build(source, proposes=True)
        recalling = source
        if (turn_search := turns_to_find(pack)) is not None:
            recalling = self._recalling(call, source, policy, *turn_search)
        if recalling is source and not pack.is_proposed:
            return pack
        return build(recalling._replace(search=recalling.search._replace(remaining=pack.remaining)))

    def _recalling(
        self, call: RecordedCall, source: PackInput, policy: PackPolicy, whole: frozenset[int], room: int
    ) -> PackInput:
        """The input with the most relevant turns that are not sent whole, in so many tokens; unchanged where all are.

        Turns are the texts without calls and responses.
        """
        entries: list[Entry] = []
        for position, (content, time) in enumerate(zip(call.history[: call.request_index], call.times, strict=False)):
            speaker = content.agent or ("user" if content.role == "user" else self._recorded.agent)
            if words := _turn(content):
                entries += turn_entries(position, words, time=time, speaker=speaker)
        if not room or all(int(entry.id.partition("#")[0]) in whole for entry in entries):
            return source
        embedder = embedder_for("none" if policy.retrieval.embedder == "none" else "static")
        digests = [content.digest for content in call.history]
        candidates = recalled(entries, source, policy, digests.__getitem__, tokens=room, embedder=embedder, whole=whole)
        found_elsewhere = (candidate for candidate in source.candidates if candidate.source != RECALLED)
        search = source.search._replace(turns=len(entries))
        return source._replace(candidates=(*found_elsewhere, *candidates), search=search)


@with_content
def _turn(content: Content) -> str:
    """The words of a turn; none where a content is none, since it calls, answers, or tells of calls."""
    is_turn = not (content.calls or content.responses) and all(quote.kind == "said" for quote in content.quotes)
    return content.words.strip() if is_turn else ""


@with_content
def _sizes(content: Content) -> tuple[int, int, int]:
    """The characters of a content as room for turns is measured: as a turn, of its words, and of all of it."""
    words = 0 if content.calls or content.responses else len(content.text.strip())
    return len(_turn(content)), words, 1 + sum(map(_written_characters, content.parts))


def _written_characters(part: Part) -> int:
    """The characters of a part, written out as they are where room for turns is measured."""
    if part.kind not in ("call", "response"):
        return len(part.text)
    return len(repr(values)) if (values := parsed(part.text)) else 0


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


def policies_of(
    policy: PackPolicy, base: PackPolicy, profile: str, other_policies: Sequence[PackPolicy] | None
) -> Callable[[RecordedCall], PackPolicy]:
    """The policy of each call of an agent, where the calls of a profile are built under one in the place of the base;
    ``other_policies`` as `play` takes them."""
    varied: dict[str, PackPolicy] = {}

    def policy_of(call: RecordedCall) -> PackPolicy:
        digest = call.policy.digest
        if call.manifest.profile != profile or other_policies is None:
            return policy if call.manifest.profile == profile else call.policy
        if digest not in varied:
            varied[digest] = _varied(call.policy, policy, (base, *other_policies))
        return varied[digest]

    return policy_of


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
        window = window_under(policy, model, window)
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
