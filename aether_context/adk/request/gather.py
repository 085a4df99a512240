"""The input of a pack: what a call shows, with all that has to be awaited for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice

from google.adk.events.event import Event

from aether_context.adk.acceptance import REPAIR
from aether_context.adk.bounds import Waits, aside
from aether_context.adk.call import ModelCall
from aether_context.adk.request.archive import Archive, may_change_earlier
from aether_context.adk.request.entries import Entries
from aether_context.adk.request.host_request import host_of, transient_contents
from aether_context.adk.request.instructions import active_instructions
from aether_context.adk.request.marks import CUT, anchors_of, first_read
from aether_context.adk.request.memories import search_memories, stored_results, with_evidence
from aether_context.adk.request.read import (
    CHILDS_ARTIFACTS,
    CONTENT_CHARACTERS,
    CallReading,
    HistoryReader,
    rewrote,
    session_note,
)
from aether_context.adk.request.reader import Reader, characters, is_answer, media_marks, structure
from aether_context.adk.request.sessions import AgentSession, PreparedCall, Sessions
from aether_context.adk.session import Records
from aether_context.conversation.epoch import live_positions
from aether_context.pack import Candidate, Identity, Pack, PackInput, Previous, Search, Usage, noted
from aether_context.packing import next_input
from aether_context.plans import PlanShape, parse_plan
from aether_context.state import PlannedCall, current_step, read_state, unique
from aether_context.store.files import Files
from aether_context.tokens.counters import SharedLRU
from aether_context.tokens.model_limits import shares_window

_MOST_PLANS, _MOST_UNARCHIVED = 256, 20
_MOST_GROWTH_EVENTS, _MOST_GROWTH_MESSAGES, _GROWTH_CHARACTERS = 300, 50, 4


class Gatherer:
    """Reads requests; keeps what it has read of contents, declarations and plans, by their content.

    ``sessions`` know their evidence, ``waits`` what invocations have waited for, ``files`` those of
    the store that keeps what hosts do not load any more, and ``arm`` is the name of the packer's arm.
    """

    def __init__(self, sessions: Sessions, waits: Waits, files: Files | None = None, arm: str = "") -> None:
        self.reader = Reader()
        self._arm, self._sessions, self._waits = arm, sessions, waits
        self._archive = Archive(self.reader, waits, files)
        self._history_reader = HistoryReader(self.reader, self._archive, waits)
        self._plans: SharedLRU[object, PlannedCall] = SharedLRU(_MOST_PLANS)

    def planned(self, call: ModelCall) -> PlannedCall:
        """The plan, tools and knowledge in the session's state.

        A plan that ADK copied there for an agent that runs as a tool is its caller's, and so are its tools, until it
        makes one of its own, or claims the step that the plan is at. An agent that writes the plan carries out none.
        An agent whose step is completed keeps it until it has answered, or claims another.
        """
        agent = call.context.agent_name
        keys: Sequence[str] = ("plan", "tools", "knowledge")
        if (
            type(call.invocation.artifact_service).__name__ == CHILDS_ARTIFACTS
            and call.state.get("plan") is not None
            and not any({"plan", "tools"} & event.actions.state_delta.keys() for event in call.context.session.events)
        ):
            plan = parse_plan(call.state.get("plan")).plan
            step = current_step(plan, agent) if plan is not None else None
            if step is None or step.claimed_by != agent:
                keys = ("knowledge",)
        plans = agent in call.policy.planners or getattr(call.invocation.agent, "output_key", None) == "plan"
        completed, plan_then = ("", None) if plans else _completed(call)
        state = {name: call.state.get(name) for name in keys} | ({"plan": plan_then} if completed else {})
        key = (agent, plans, completed, structure(state))
        planned_call = self._plans.get(key)
        if planned_call is None:
            planned_call = read_state(state, worker=agent, plans=plans, completed=completed)
            self._plans.put(key, planned_call)
        return planned_call

    async def gather(self, call: ModelCall, session: AgentSession) -> PreparedCall:
        """The input of any request of an agent; its session takes in what was read."""
        if call.passthrough_reason:  # nothing of it is kept
            session = AgentSession(session.key, session.owner, session.cache)
        records = self._sessions.records(call.context)
        reading = await self._history_reader.read(call, session, records)
        history, base = reading.history, self._base(call, session, records, reading)
        # Off the event loop where many contents are read for the first time.
        unread = history.count - (call.last.length if call.last is not None else 0)
        source = await aside(CONTENT_CHARACTERS * unread, partial(_followed, call, reading, base))
        # Where the boundary is not where it was, everything is live again.
        if reading.loads and any(at < history.first and at not in history.earlier for at in source.request.positions):
            reading.begin, reading.unsent = await self._history_reader.load(
                call, session, history, range(history.first)
            )
            source = _followed(call, reading, base)
        request, problems = source.request, [*source.problems, *reading.unsent]
        loaded = [*history.earlier.values(), *history.loaded]
        instructions = await active_instructions(call, loaded, self.reader, self._waits, problems)
        earlier = history.entries[: history.first]
        anchors = anchors_of(call, records, self.reader, request.contents, request.positions, earlier, problems)
        candidates, embedder = await self._candidates(call, records, reading, source, problems)
        source = source._replace(
            instructions=instructions,
            candidates=unique(with_evidence(candidates, records, source.host.can_read)),
            host=source.host._replace(anchors=anchors, media=media_marks(*request.contents)),
            search=Search(memory_embedder=embedder),
            problems=tuple(problems),
        )
        if reading.is_tracked or not reading.loads:  # else its places are no later call's
            session.keep(history, reading.last_answer, request.positions if reading.loads else ())
            session.is_placed = reading.is_tracked
        length, stable_end = _lengths(call, reading)
        return PreparedCall(call, source, history, reading.epoch, length=length, stable_end=stable_end)

    def _base(self, call: ModelCall, session: AgentSession, records: Records, reading: CallReading) -> PackInput:
        """The input but for what depends on the history."""
        identity, host, planned, last = reading.identity, reading.host, call.planned, call.last
        by_hand = session_note(call.state, CUT, identity.session)
        rewritten = rewrote(call, reading.epoch) or bool(
            reading.epoch.number and reading.epoch.rewound != reading.rewound
        )
        config = call.request.config
        output_limit = config.max_output_tokens if config is not None else None
        # How a session grew before an invocation is the same at each of its calls.
        if reading.history.first or session.growth[0] != identity.invocation:
            earlier = reading.history.entries[: reading.history.first]
            session.growth = (identity.invocation, _growth(call.context.session.events, earlier, identity))
        return PackInput(
            identity=identity,
            request=host.head._replace(rewritten=rewritten),
            window=call.window.tokens,
            # The limit of the answer counts where that shares the window with the request.
            output_tokens=output_limit if output_limit is not None and shares_window(call.model) else None,
            step=planned.step,
            validity=planned.validity,
            invalid_reason=planned.invalid_reason,
            previous=Previous(last.pack.sent, last.name) if last is not None else Previous(),
            host=host_of(call, host.head, records, identity, by_hand)._replace(arm=self._arm),
            usage=Usage(growth=session.growth[1], offloaded_tokens=call.offloaded_tokens),
            problems=planned.problems,
        )

    async def _candidates(
        self, call: ModelCall, records: Records, reading: CallReading, source: PackInput, problems: list[str]
    ) -> tuple[Sequence[Candidate], str]:
        """All that could enter the pack beside the conversation, and the embedder that memories were found by."""
        last, host, identity, request = call.last, reading.host, reading.identity, source.request
        goes_on = last is not None and last.pack.identity.invocation == identity.invocation
        candidates, embedder = call.planned.candidates + (host.preloaded or ()), ""
        if last is not None and goes_on:
            # What an earlier call of this invocation found.
            previous = last.pack.source
            candidates += tuple(candidate for candidate in previous.candidates if candidate.source == "memory")
            embedder = previous.search.memory_embedder
        is_asked = identity.call == 1 or (request.first_call and not goes_on)
        if call.invocation.memory_service is not None and not call.passthrough_reason and is_asked:
            was_preloaded = host.preloaded is not None
            # What a compaction of ADK's took is recalled from memory alone, and so is all where only a part is shown.
            events = call.context.session.events
            sees_session = reading.is_tracked and not any(event.actions.compaction for event in events)
            search = partial(search_memories, preloaded=was_preloaded, sees_session=sees_session)
            memories, found_by = await search(call, problems, self._waits)
            candidates += tuple(memories)
            embedder = embedder if was_preloaded else found_by
        recorded = {candidate.uri for candidate in candidates}
        results = [record for record in records.results(call) if record.uri not in recorded]
        if call.policy.sees == "own":
            results = [record for record in results if record.agent == call.context.agent_name]
        return candidates + stored_results(call, results, request.contents), embedder

    def archive(
        self, prepared: PreparedCall, session: AgentSession, later: Callable[[Callable[[], object]], None]
    ) -> None:
        """Queues for the store what the host may not load any more: at an invocation's first call where it loads a part
        of the events, and whenever much of it waits."""
        call, source, end, limit = prepared.call, prepared.source, prepared.stable_end, _MOST_UNARCHIVED
        if (loads := getattr(call.invocation.run_config, "get_session_config", None)) is not None:
            limit = 1 if source.identity.call == 1 else max(1, min(limit, (loads.num_recent_events or 0) // 2))
        is_little = session.archived_end <= end < session.archived_end + limit and not source.request.rewritten
        if call.policy.record != "full" or is_little or session.files is None:
            return
        session.archived_end = end
        events = self._sessions.records(call.context).live(call.context.session.events)[0]
        later(
            partial(
                self._archive.save,
                session.files,
                prepared.history,
                end,
                call.policy.mask,
                call.model,
                changes_earlier=any(map(may_change_earlier, events)),
            )
        )

    def cutoff(self, prepared: PreparedCall, pack: Pack) -> str:
        """The id of the last event that the model does not read, empty where it reads all of them."""
        last = prepared.call.last
        if last is not None and not pack.source.request.first_call and last.pack.epoch == pack.epoch:
            return last.cutoff  # nothing came or went where the model begins to read
        if (first := first_read(pack)) is None:
            return ""
        unread = prepared.history.entries[: pack.source.request.positions[first]]
        return next((entry.origin.event for entry in reversed(unread) if entry and entry.origin), "")


def _followed(call: ModelCall, reading: CallReading, base: PackInput) -> PackInput:
    """The input with what of the history is sent."""
    history, epoch = reading.history, reading.epoch
    history.take_over(live_positions(epoch, history.count))
    return next_input(
        base,
        history.count,
        history.__getitem__,
        replace(epoch, rewound=reading.rewound),
        request_index=reading.request_index,
        begin=reading.begin,
        request_only=getattr(call.invocation.agent, "include_contents", "default") == "none",
        restored=history.first,
        limits=call.limits,
        sees_own=call.policy.sees == "own" and not call.passthrough_reason,
    )


def _lengths(call: ModelCall, reading: CallReading) -> tuple[int, int]:
    """The number of contents that are not this call's alone, and of those that stay as they are; 0 where it is not
    known."""
    if not reading.is_tracked:
        return 0, 0
    events, history, last_answer = call.context.session.events, reading.history, reading.last_answer
    # Where a result is posted, ADK shows nothing between its call and itself.
    if events and events[-1].author == "user" and events[-1].get_function_responses():
        return 0, history.count
    loaded, transient = history.loaded, 0
    if len(loaded) - last_answer > 1:
        transient = transient_contents(loaded, events, call.context.user_content)
    return history.count - transient, history.first + last_answer


def _completed(call: ModelCall) -> tuple[str, object]:
    """The step that an agent still works under although it is completed, and the plan as that left it; empty and None
    where there is none.

    It is the step of the agent's last answer, where that answer had calls, or a gate did not accept it. Read off the
    events, so that every worker keeps the same step, whatever became of the plan since.
    """
    agent, branch, plan_now = call.context.agent_name, call.invocation.branch or "", call.state.get("plan")
    step_id, is_repair, plans = "", False, dict[str, object]()
    for event in reversed(call.context.session.events if plan_now is not None else ()):
        actions, metadata, responses = event.actions, noted(event), event.get_function_responses()
        is_message = event.author == "user" and event.content is not None and not responses
        ends = event.author == agent and (actions.escalate or actions.skip_summarization or actions.transfer_to_agent)
        if ends or (is_message and REPAIR not in metadata):
            break
        is_repair = is_repair or is_message
        for response in (response for response in responses if response.name == "complete_step"):
            plans.setdefault(str((response.response or {}).get("done") or ""), actions.state_delta.get("plan"))
        if is_answer(event, agent, branch):
            calls = {requested.name for requested in event.get_function_calls()}
            if "finish_task" in calls or not (calls or is_repair):
                break
            step_id, is_repair = step_id or str(metadata.get("step") or ""), False
    plan = plans.get(step_id) if step_id else None
    current = current_step(parse_plan(plan_now).plan or PlanShape(), agent) if plan else None
    claims = current is not None and (current.status, current.claimed_by) == ("claimed", agent)
    return (step_id, plan) if plan and not claims else ("", None)


def _growth(events: Sequence[Event], entries: Entries, identity: Identity) -> int | None:
    """Tokens by which a session grew from one human message to the next, but for one time in ten, before an invocation
    began; None where nothing was said before. The latest messages tell, and before the first event ``entries``."""
    sizes: list[int] = []
    size = 0
    earlier = (event for event in reversed(events) if event.invocation_id != identity.invocation)
    messages = ((event.content, event.author == "user" and not event.get_function_responses()) for event in earlier)
    loaded_sizes = ((characters(content) if content else 0, is_users) for content, is_users in messages)
    earlier_sizes = (
        (entry.sizes[1], bool(entry.words and entry.origin and entry.origin.author == "user"))
        for entry in reversed(entries)
        if entry
    )
    for added, is_users in islice(chain(loaded_sizes, earlier_sizes), _MOST_GROWTH_EVENTS):
        size += added
        if is_users:
            sizes.append(size)
            size = 0
            if len(sizes) == _MOST_GROWTH_MESSAGES:
                break
    if size:
        sizes.append(size)
    return sorted(sizes)[9 * len(sizes) // 10] // _GROWTH_CHARACTERS if sizes else None
