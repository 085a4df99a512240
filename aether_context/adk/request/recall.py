"""Turns that are not sent whole any more, looked for again when a user asks, and the ranking of other candidates."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from aether_context.adk.bounds import LeftOut, Waits, failure, in_thread, off_loop
from aether_context.adk.request.entries import Entries, turns_of
from aether_context.adk.request.reader import Reader
from aether_context.adk.request.sessions import AgentSession, PreparedCall
from aether_context.canonical import utf8_size
from aether_context.pack import RECALLED, Candidate, turn_place
from aether_context.plans import without_plan
from aether_context.retrieval import query_for
from aether_context.retrieval.ranking import recalls, room_for_turns

if TYPE_CHECKING:
    from aether_context.retrieval import Entry
    from aether_context.retrieval.embedders import Embedder

_INSTANT = ("static", "none")
"""Embedders that need no deadline."""


class Recall:
    """Ranks candidates by words and meaning. Safe to share between sessions and event loops."""

    def __init__(self, waits: Waits, reader: Reader) -> None:
        self._waits = waits
        self._reader = reader

    def check(self, name: str) -> None:
        """Raises what is wrong with an embedder's name, or with what it needs."""
        if name not in _INSTANT:
            _embedder(name)

    async def rank(self, prepared: PreparedCall) -> PreparedCall:
        """The input with scores for the candidates that have none."""
        source = prepared.source
        query = query_for(source, prepared.call.policy.redact)
        scored = all("similarity" in candidate.scores for candidate in source.candidates)
        if source.host.passthrough_reason or not query or scored:
            return prepared

        def rank(embedder: Embedder | None) -> tuple[Candidate, ...]:
            from aether_context.retrieval.call_indexes import ranked

            now, redact = source.identity.last_event_time, prepared.call.policy.redact
            return ranked(source.candidates, query, asked=now, embedder=embedder, redact=redact)

        return await self._compared(prepared, rank)

    def with_room(self, prepared: PreparedCall) -> PreparedCall:
        """The input with the room that turns have which answer the request, none where none may come back."""
        entries, source = _before_request(prepared), prepared.source
        sizes = [(utf8_size(entry.words), entry.sizes[0], entry.sizes[2]) for entry in entries if entry is not None]
        room = room_for_turns(sizes, source)
        if room == source.search.room:
            return prepared
        return prepared.with_source(search=source.search._replace(room=room))

    async def turns(
        self, prepared: PreparedCall, session: AgentSession, whole: Collection[int], room: int
    ) -> PreparedCall:
        """The input with the turns that answer the request best, of those that are not sent whole.

        Args:
            session: the agent's, with the indexes of its turns.
            whole: positions of the contents that are sent whole, neither as a placeholder nor as an extract.
            room: tokens for those turns; 0 where it was not measured, since the call adds little.
        """
        if not room:
            prepared = self.with_room(prepared)
            room = prepared.source.search.room
        call, source, history, entries = prepared.call, prepared.source, prepared.history, _before_request(prepared)

        def read_turns() -> list[Entry]:
            turns = turns_of(entries, call.policy.mask) if room else []
            if call.policy.sees == "own":
                turns = [turn for turn in turns if turn.speaker in ("user", call.context.agent_name)]
            return turns

        def digest_of(at: int) -> str:
            entry = entries[at]
            return entry.digest if entry and entry.digest else self._reader.content(history.raw(at), "").digest

        turns = await off_loop(read_turns)
        if unknown := [*entries[: history.first]].count(None):
            note = f"{unknown:,} contents before the loaded events are not searched: {session.problem}"
            if note not in source.problems:  # of the search at the invocation's first call
                prepared = prepared.with_source(problems=(*source.problems, note))
        if all(int(turn.id.partition("#")[0]) in whole for turn in turns):
            return prepared

        planners = source.host.planners if source.validity == "valid" else ()

        def is_plan(turn: Candidate) -> bool:
            """Tells whether a planner wrote in this turn the plan of which the payload is made."""
            words = self._reader.content(history.raw(turn_place(turn)[0]), prepared.call.model).words
            return turn.speaker in planners and any(without_plan(text) != text for text in (turn.text, words))

        def with_turns(embedder: Embedder | None) -> tuple[Candidate, ...]:
            from aether_context.retrieval.call_indexes import TurnIndex, recalled

            candidates = recalled(
                turns,
                source,
                call.policy,
                digest_of,
                tokens=room,
                embedder=embedder,
                whole=whole,
                index=session.indexes.setdefault(embedder.name if embedder is not None else "", TurnIndex()),
            )
            found_elsewhere = (candidate for candidate in source.candidates if candidate.source != RECALLED)
            return (*found_elsewhere, *(turn for turn in candidates if not is_plan(turn)))

        search = source.search._replace(turns=len(turns))
        return await self._compared(prepared.with_source(search=search), with_turns)

    async def _compared(
        self, prepared: PreparedCall, act: Callable[[Embedder | None], tuple[Candidate, ...]]
    ) -> PreparedCall:
        """The input with the candidates that an act gives with the policy's embedder, or with the packaged one where
        that fails or takes too long.

        What takes too long goes on behind the calls: a model is loaded and a history embedded for those to come, which
        do not ask again meanwhile.
        """
        name, invocation = prepared.call.policy.retrieval.embedder, prepared.call.invocation.invocation_id
        embedder = named = _embedder(name)
        candidates: tuple[Candidate, ...] | None = None

        def act_in_time() -> tuple[Candidate, ...]:
            result = act(named)  # which the thread may come to when another one has taken its place here
            self._waits.answered(name)
            return result

        if embedder is not None and name not in _INSTANT:
            try:
                candidates = await self._waits.within(name, invocation, in_thread(act_in_time), most_late=1)
            except BaseException as raised:  # whatever an embedder raises
                problem = f"failed ({type(failure(raised)).__name__})"
                if isinstance(raised, TimeoutError):
                    problem = f"takes longer than {self._waits.seconds:g} s"
                if isinstance(raised, LeftOut):
                    problem = "is left out for a while"
                note = f"the embedder {name} {problem}: ranked by the model in the package"
                prepared = prepared.with_source(problems=(*prepared.source.problems, note))
                embedder = _embedder("static")
        if candidates is None:
            candidates = await off_loop(partial(act, embedder))
        search = prepared.source.search
        search = search._replace(embedder=embedder.name if embedder is not None else search.embedder)
        return prepared.with_source(candidates=candidates, search=search)


def _embedder(name: str) -> Embedder | None:
    from aether_context.retrieval.embedders import embedder_for

    return embedder_for(name)


def _before_request(prepared: PreparedCall) -> Entries:
    """The entries before the message that is answered; none where no turn may come back."""
    request = prepared.source.request
    if request.request_index is None or not recalls(prepared.source, prepared.call.policy):
        return []
    return prepared.history.entries[: request.positions[request.request_index]]
