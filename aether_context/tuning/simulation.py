"""Simulates ("plays") a recorded session under another policy, call by call, with the recorded answers.

Cuts depend on earlier cuts, so a session is played from its first call on: each pack is built from what the host sent
then, on the epoch that the packs before it left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from aether_context.conversation.turns import align, live_positions, reset, torn
from aether_context.pack import Calibration, Content, Epoch, Pack, PackInput
from aether_context.packing import build_pack, extend_pack
from aether_context.policy import PackPolicy
from aether_context.redaction import masker
from aether_context.retrieval import Entry, query_for
from aether_context.retrieval.call_indexes import MORE_HITS, SessionIndexes, recalled
from aether_context.retrieval.passages import passages
from aether_context.retrieval.ranking import LEAST_TOKENS, room_for_turns
from aether_context.tokens import counter_for
from aether_context.tokens.cache import TokenCache
from aether_context.tokens.model_limits import model_window
from aether_context.tuning.recordings import RecordedCall, RecordedSession
from aether_context.tuning.retention import Used, kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of a session under one policy.

    Attributes:
        tokens: counted tokens of all requests.
        cost: these tokens, with those that a prefix cache could serve weighted by its price.
        over: number of requests larger than the window.
        cuts: number of cuts of the conversation.
        needed: number of texts that answers used, and of calls that read a shortened result again.
        kept: for each call, the number of these texts that were in its request.
        same: number of requests that are equal to the recorded ones, byte for byte.
    """

    tokens: int
    cost: float
    over: int
    cuts: int
    needed: int
    kept: tuple[int, ...]
    same: int

    @property
    def retention(self) -> float | None:
        """The share of needed texts that were in the requests, in percent; None where none were needed."""
        return 100 * sum(self.kept) / self.needed if self.needed else None


def play(
    session: RecordedSession,
    needs: Sequence[Used],
    policy_of: Callable[[RecordedCall], PackPolicy],
    profile: str,
) -> Played:
    """Plays a session.

    Args:
        needs: what the answer to each call used.
        policy_of: returns the policy of a call; equal policies must be the same object.
        profile: the profile whose calls count.
    """
    packs = _packs(session, policy_of)
    counted_calls = [
        (call, need, pack)
        for call, need, pack in zip(session.calls, needs, packs, strict=True)
        if call.profile == profile
    ]
    tokens = sum(pack.counted_tokens for _, _, pack in counted_calls)
    spared = sum((1 - call.price) * (pack.prefix.shared_tokens or 0) for call, _, pack in counted_calls)
    return Played(
        tokens=tokens,
        cost=round(tokens - spared, 1),
        over=sum(pack.over_window > 0 for _, _, pack in counted_calls),
        cuts=sum(any(event.stage == "cut" for event in pack.events) for _, _, pack in counted_calls),
        needed=sum(len(need.uses) + need.read_back for _, need, _ in counted_calls),
        kept=tuple(kept(need, pack) for _, need, pack in counted_calls),
        same=sum(pack.checksum == call.checksum for call, _, pack in counted_calls),
    )


def _packs(session: RecordedSession, policy_of: Callable[[RecordedCall], PackPolicy]) -> list[Pack]:
    cache, turns = TokenCache(), _Turns(session)
    packs: list[Pack] = []
    name = ""
    previous_pack: Pack | None = None
    previous_call: RecordedCall | None = None
    policy: PackPolicy | None = None
    for call in session.calls:
        call = replace(call, source=call.source._replace(calibration=_calibration(call, previous_call, previous_pack)))
        counter = counter_for(call.source.request.model)
        call_policy = policy_of(call)
        pack: Pack | None = None
        if (
            previous_pack is not None
            and previous_call is not None
            and call_policy is policy
            and _only_grew(previous_call, call)
        ):
            pack = extend_pack(
                previous_pack, _grown(call, previous_pack, name), call_policy, counter=counter, cache=cache
            )
        if pack is None:
            source = _source(call, call_policy, previous_pack, name)

            build = partial(build_pack, policy=call_policy, counter=counter, cache=cache, recorded=session.counts)

            if source.first_call and source.epoch.cut_count:
                source = turns.added(call, source, call_policy, frozenset(source.request.positions))
            pack = build(source)
            cut = pack.epoch.cut_count > (source.epoch.cut_count if source.first_call else 0)
            if pack.chose and (cut or pack.stands_in) and source.searched is None:
                budget = pack.allocation.budget
                token_limit = None if cut else max(budget // 10, (budget - pack.request_tokens) // 2)
                whole = frozenset(source.request.positions[at] for at in pack.whole)
                extended_source = turns.added(call, source, call_policy, whole, token_limit)
                pack = build(extended_source) if extended_source.searched is not None else pack
        packs.append(pack)
        previous_pack, previous_call, policy, name = pack, call, call_policy, call.pack_id
    return packs


def _calibration(
    call: RecordedCall, previous_call: RecordedCall | None, previous_pack: Pack | None
) -> Calibration | None:
    """The calibration of a call: the recorded one, scaled by the size of the simulated request before it relative to
    the recorded one."""
    known = call.source.calibration
    if (
        known is None
        or previous_call is None
        or previous_pack is None
        or previous_pack.counted_tokens == previous_call.counted
    ):
        return known
    scale = previous_pack.counted_tokens / max(1, previous_call.counted)
    beyond = None if known.beyond is None else round(known.beyond * scale)
    return replace(
        known,
        offset=round(known.offset * scale, 2),
        beyond=beyond,
        overcounted=round(known.overcounted * scale),
    )


def _only_grew(previous_call: RecordedCall, call: RecordedCall) -> bool:
    """Whether a request only appends contents to the one before it."""
    previous_source, current_source = previous_call.source, call.source
    return (
        previous_call.history is call.history
        and previous_call.length < call.length
        and previous_source.identity.invocation == current_source.identity.invocation
        and not current_source.first_call
        and not current_source.rewritten
        and not current_source.passthrough_reason
        and previous_source.request == current_source.request
        and previous_source.step == current_source.step
        and previous_source.anchors == current_source.anchors
        and previous_source.asked == current_source.asked
    )


def _grown(call: RecordedCall, previous_pack: Pack, name: str) -> PackInput:
    source, request = previous_pack.source, previous_pack.source.request
    positions = range(request.positions[-1] + 1, call.length)
    return source._replace(
        identity=call.source.identity,
        request=request._replace(
            contents=(*request.contents, *(call.history[place] for place in positions)),
            positions=(*request.positions, *positions),
        ),
        epoch=previous_pack.epoch,
        first_call=False,
        rewritten=False,
        previous=previous_pack.sent,
        previous_pack=name,
        problems=call.source.problems,
        summaries={},
        calibration=call.source.calibration,
    )


def _source(call: RecordedCall, policy: PackPolicy, previous_pack: Pack | None, name: str) -> PackInput:
    """The input of a call's pack, after the packs before it."""
    source, history = call.source, call.history
    epoch = Epoch(number=0) if previous_pack is None or source.passthrough_reason else previous_pack.epoch
    aligned = align(epoch, call.length, lambda place: history[place].digest)
    positions = live_positions(aligned.epoch, call.length)
    if aligned.epoch.cut_count and torn([history[place] for place in positions]):
        aligned = reset(epoch, "")
        positions = tuple(range(call.length))
    if call.human is not None and call.human not in positions:
        positions = tuple(sorted({*positions, call.human}))
    request = source.request._replace(
        contents=tuple(history[place] for place in positions),
        positions=positions,
        human=None if call.human is None else positions.index(call.human),
    )
    recorded, model, window = call.policy, request.model, source.window
    if (policy.max_input_tokens, policy.windows) != (recorded.max_input_tokens, recorded.windows):
        window = policy.max_input_tokens or policy.windows.get(model) or model_window(model)
    return source._replace(
        window=window,
        request=request,
        epoch=aligned.epoch,
        rewritten=source.rewritten or aligned.rewritten,
        previous=None if previous_pack is None else previous_pack.sent,
        previous_pack=name,
    )


class _Turns:
    """Recalls turns of a session without calls and responses that a policy has cut."""

    def __init__(self, session: RecordedSession) -> None:
        self._agent = session.name[-1]
        self._indexes = SessionIndexes()
        self._read: dict[int, tuple[Sequence[Content], list[tuple[int, int, tuple[Entry, ...]]]]] = {}

    def added(
        self, call: RecordedCall, source: PackInput, policy: PackPolicy, sent: frozenset[int], most: int | None = None
    ) -> PackInput:
        """The input with the most relevant turns that were cut; unchanged where none were cut."""
        settings, query, human = policy.retrieval, query_for(source), call.human
        if not settings.recall or not settings.memory_k or source.passthrough_reason or human is None or not query:
            return source
        sizes_and_turns = self._sizes_and_turns(call)[:human]
        turn_characters, all_characters = (
            sum(size for size, _, turns in sizes_and_turns if turns),
            sum(size + 1 for size, _, _ in sizes_and_turns),
        )
        room = room_for_turns(turn_characters, all_characters, source.window - source.kept_free)
        room = room if most is None else min(room, max(most, LEAST_TOKENS))
        entries = [entry for _, _, turns in sizes_and_turns for entry in turns] if room else []
        if all(place in sent for _, place, turns in sizes_and_turns if turns) or not entries:
            return source
        limit, redact = settings.most_memories(source.window), policy.redact
        embedder = settings.embedder if settings.embedder in ("static", "none") else "static"
        hits = self._indexes.search(
            (id(call.history), redact, embedder),
            entries,
            query,
            MORE_HITS * limit,
            asked=source.identity.last_event_time,
            embedder=embedder,
            redact=masker(redact),
        )
        candidates = recalled(hits, lambda place: call.history[place], most=limit, tokens=room)
        return source._replace(candidates=(*source.candidates, *candidates), searched=len(entries))

    def _sizes_and_turns(self, call: RecordedCall) -> list[tuple[int, int, tuple[Entry, ...]]]:
        """For each content its number of characters, its index, and its passages where it is a turn."""
        history, sizes_and_turns = self._read.setdefault(id(call.history), (call.history, []))
        for place in range(len(sizes_and_turns), call.length):
            content = history[place]
            words = content.words.strip()
            turns: tuple[Entry, ...] = ()
            if words and not content.calls and not content.responses:
                pieces = passages(words)
                speaker = content.agent or ("user" if content.role == "user" else self._agent)
                turns = tuple(
                    Entry(
                        id=str(place) if len(pieces) == 1 else f"{place}#{number}",
                        text=piece,
                        time=call.times[place],
                        speaker=speaker,
                        thread="",
                    )
                    for number, piece in enumerate(pieces, start=1)
                )
            sizes_and_turns.append(
                (sum(len(part.text) for part in content.parts if part.kind != "thought"), place, turns)
            )
        return sizes_and_turns
