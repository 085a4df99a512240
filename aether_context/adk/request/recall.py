"""Turns that are not sent whole any more, looked for again when a user asks, and the ranking of other candidates."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types
from pydantic import ValidationError

from aether_context.adk.bounds import LeftOut, Waits, failure, in_thread
from aether_context.adk.call import PreparedCall
from aether_context.adk.request.reader import found_memories
from aether_context.adk.request.spoken import LOADER, read_spoken
from aether_context.pack import Candidate, Content
from aether_context.retrieval import query_for
from aether_context.retrieval.ranking import LEAST_TOKENS
from aether_context.state import unique

if TYPE_CHECKING:
    from aether_context.retrieval.embedders import Embedder

_INSTANT = ("static", "none")
"""Embedders that need no deadline."""


class Recall:
    """Ranks candidates by words and meaning. Safe to share between sessions and event loops.

    Args:
        waits: what invocations have waited for.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits

    def check(self, name: str) -> None:
        """Raises what is wrong with an embedder's name, or with what it needs."""
        if name not in _INSTANT:
            _embedder(name)

    async def rank(self, read: PreparedCall) -> PreparedCall:
        """The input with scores for the candidates that have none."""
        source = read.source
        query = query_for(source)
        scored = all("similarity" in candidate.scores for candidate in source.candidates)
        if source.passthrough_reason or not query or scored:
            return read

        def rank(embedder: Embedder | None) -> tuple[Candidate, ...]:
            from aether_context.retrieval.call_indexes import ranked

            asked, redact = source.identity.last_event_time, read.call.policy.redact
            return ranked(source.candidates, query, asked=asked, embedder=embedder, redact=redact)

        candidates, read = await self._compared(read, rank)
        return read.with_source(candidates=candidates)

    async def turns(
        self,
        read: PreparedCall,
        sent: Collection[int],
        frozen: Callable[[types.Content, str], Content],
        *,
        most: int | None = None,
    ) -> PreparedCall:
        """The input with the turns that answer the request best, as they are where no turn was cut.

        Their room is as the square of the share that turns have in the history: where most of it is calls and their
        results, a search among turns brings little of it back, and the tail is worth more than they are. A room of
        little more than a payload's own words is none.

        Args:
            sent: positions of the contents that are sent whole, neither as a placeholder nor as an extract.
            frozen: the frozen form of a content, as it would be sent to a model.
            most: tokens for those turns where they are to have less than the policy's share of the window.
        """
        source, settings, model = read.source, read.call.policy.retrieval, read.call.model
        human, query = source.request.human, query_for(source)
        if not settings.recall or not settings.memory_k or source.passthrough_reason or human is None or not query:
            return read
        history, events, mask = read.history, tuple(read.call.context.session.events), read.call.policy.mask
        end, most_tokens = source.request.positions[human], source.window - source.growth_reserve
        spoken = await asyncio.to_thread(read_spoken, history, events, end, most=most_tokens, mask=mask)
        room = spoken.room if most is None else min(spoken.room, max(most, LEAST_TOKENS))
        is_whole = all(int(entry.id.partition("#")[0]) in sent for entry in spoken.turns)
        entries = () if is_whole else spoken.turns
        gone = [frozen(history[at], model) for at in spoken.loading if at not in sent]
        known = {candidate.id for candidate in source.candidates}
        memories = [memory for memory in unique(loaded(gone)) if memory.id not in known]
        if not entries and not memories:
            return read
        asked, redact = source.identity.last_event_time, read.call.policy.redact

        def found(embedder: Embedder | None) -> tuple[Candidate, ...]:
            from aether_context.retrieval.call_indexes import ranked, recalled

            turns = recalled(
                entries,
                query,
                lambda place: frozen(history[place], model),
                most=settings.most_memories(source.window),
                tokens=room,
                asked=asked,
                embedder=embedder,
                redact=redact,
            )
            return (*ranked(memories, query, asked=asked, embedder=embedder, redact=redact), *turns)

        candidates, read = await self._compared(read, found)
        return read.with_source(candidates=(*source.candidates, *candidates), searched=len(entries))

    async def _compared(
        self, read: PreparedCall, act: Callable[[Embedder | None], tuple[Candidate, ...]]
    ) -> tuple[tuple[Candidate, ...], PreparedCall]:
        """What an act gives with the policy's embedder, or with the packaged one where that fails or takes too long.

        What takes too long goes on behind the calls: a model is loaded and a history embedded for those to come, which
        do not ask again meanwhile.

        Returns:
            It, and the input with what compared the meanings and what failed.
        """
        name, invocation = read.call.policy.retrieval.embedder, read.call.invocation.invocation_id
        embedder = named = _embedder(name)

        def act_in_time() -> tuple[Candidate, ...]:
            found = act(named)  # which the thread may come to when another one has taken its place here
            self._waits.answered(name)
            return found

        if embedder is not None and name not in _INSTANT:
            try:
                candidates = await self._waits.within(name, invocation, in_thread(act_in_time), most_late=1)
                return candidates, read.with_source(embedder=embedder.name)
            except LeftOut:
                problem = "is left out for a while"
            except TimeoutError:
                problem = f"takes longer than {self._waits.seconds:g} s"
            except BaseException as error:  # whatever an embedder raises
                problem = f"failed ({type(failure(error)).__name__})"
            note = f"the embedder {name} {problem}: ranked by the model in the package"
            embedder, read = _embedder("static"), read.with_source(problems=(*read.source.problems, note))
        candidates = await asyncio.to_thread(act, embedder)
        return candidates, read if embedder is None else read.with_source(embedder=embedder.name)


def _embedder(name: str) -> Embedder | None:
    from aether_context.retrieval.embedders import embedder_for

    return embedder_for(name)


def loaded(contents: Iterable[Content]) -> Iterator[Candidate]:
    """The memories that ADK's ``load_memory`` brought into a conversation."""

    def entries() -> Iterator[MemoryEntry]:
        for content in contents:
            for response in content.responses:
                result = json.loads(response.text) if response.name == LOADER else None
                result = result.get("result", result) if isinstance(result, dict) else None
                memories = result.get("memories") if isinstance(result, dict) else None
                for memory in memories if isinstance(memories, list) else ():
                    with contextlib.suppress(ValidationError):
                        yield MemoryEntry.model_validate(memory)

    return found_memories(entries())  # which looks at the first ones alone
