"""The input of a pack, read off ADK's request, session and services."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.state import State
from google.genai import types

from aether_context.adk.acceptance import REPAIR
from aether_context.adk.bounds import Waits, aside, in_thread
from aether_context.adk.call import Contents, ModelCall, PreparedCall, looks_quoted
from aether_context.adk.request.contents import AgentContents, AgentState, CallContents
from aether_context.adk.request.history import AgentHistory, HistoryRow, first_position, origins_of
from aether_context.adk.request.host_request import host_of, host_request, request_index_of, transient_contents
from aether_context.adk.request.instructions import active_instructions
from aether_context.adk.request.marks import CUT, anchors_of, last_unread
from aether_context.adk.request.memories import search_memories, stored_results, with_evidence
from aether_context.adk.request.reader import Authors, Reader, characters, is_answer, is_message, media_marks, structure
from aether_context.adk.session import Records, SessionRecords, live_events, load_epoch
from aether_context.conversation.epoch import live_positions
from aether_context.pack import (
    NOTHING,
    Content,
    Epoch,
    Identity,
    Pack,
    PackedMessage,
    PackInput,
    Previous,
    Search,
    Usage,
    noted,
)
from aether_context.packing import next_input
from aether_context.plans import PlanShape, parse_plan
from aether_context.state import PlannedCall, current_step, read_state, unique
from aether_context.store.files import Files
from aether_context.store.turns import TurnFiles
from aether_context.tokens.counters import SharedLRU
from aether_context.tokens.model_limits import shares_window

_MOST_PLANS, _MOST_UNARCHIVED = 256, 20
_CHILDS_ARTIFACTS = "ForwardingArtifactService"
"""The artifact service that ADK gives to agents that run as tools, and to nothing else."""
_CONTENT_CHARACTERS = 500
"""What a content is taken to have."""
_MOST_GROWTH_EVENTS, _MOST_GROWTH_MESSAGES, _GROWTH_CHARACTERS = 300, 50, 4


class Gatherer:
    """Reads requests; keeps what it has read of contents, declarations and plans, by their content.

    ``records`` are what sessions know of their evidence, ``waits`` what invocations have waited for, ``files`` those of
    the store that keeps what hosts do not load any more, and ``arm`` is the name of the packer's arm.
    """

    def __init__(self, records: SessionRecords, waits: Waits, files: Files | None = None, arm: str = "") -> None:
        self.reader = Reader()
        self._arm = arm
        self._files = files
        self._records = records
        self._waits = waits
        self._plans: SharedLRU[object, PlannedCall] = SharedLRU(_MOST_PLANS)

    def history(self, state: AgentState, rewound: str | None = None) -> AgentHistory:
        """The contents that an agent was shown in its session and branch."""
        history = state.history
        if history is None or rewound not in (None, history.rewound):
            files = None if self._files is None else TurnFiles(self._files, *state.key, rewound or "")
            history = state.history = AgentHistory(self.reader, files, rewound or "")
        return history

    def planned(self, call: ModelCall) -> PlannedCall:
        """The plan, tools and knowledge in the session's state.

        A plan that ADK copied there for an agent that runs as a tool is its caller's, and so are its tools, until it
        makes one of its own, or claims the step that the plan is at. An agent that writes the plan carries out none.
        An agent whose step is completed keeps it until it has answered, or claims another.
        """
        agent = call.context.agent_name
        keys: Sequence[str] = ("plan", "tools", "knowledge")
        if (
            type(call.invocation.artifact_service).__name__ == _CHILDS_ARTIFACTS
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

    async def gather(self, call: ModelCall, state: AgentState) -> PreparedCall:
        """The input of any request of an agent; its state takes in what was read."""
        planned, last, model, untouched = call.planned, call.last, call.model, call.passthrough_reason
        events, records = call.context.session.events, self._records.of(call.context)
        live, is_behind = records.live(events)
        identity = _identity(call, records)
        setting = getattr(call.invocation.run_config, "get_session_config", None)
        loads = _loads(call, setting) if setting is not None else ""
        agent_contents = AgentContents() if untouched else state.contents
        # Where the host loads a part of the events, an index says nothing.
        indexed = AgentContents() if loads else agent_contents
        is_trusted = indexed.answered_until > 0
        host = host_request(call, self.reader, indexed)
        raw, request_index, last_answer = host.contents, host.request_index, host.last_answer
        if loads and is_behind:
            begin = min(origins_of(raw, live), default=request_index or 0)
            raw, last_answer = raw[begin:], max(0, last_answer - begin)
            request_index = request_index_of(raw, call.context.user_content)
        tracked = _is_tracked(call, raw, loads)
        contents, begin, unsent, history = Contents(raw), 0, list[str](), None
        if loads and tracked:
            loaded_epoch = load_epoch(call.state, identity, lambda message: message.of)
            history, rewound = await self._followed(call, state, loaded_epoch, raw, live)
            # The loaded contents have their places in the agent's history, which takes in those that are new.
            first_loaded = first_position(raw, live, identity.agent, identity.branch)
            if first_loaded is None:
                await history.load(None, call, self._waits)
            contents = Contents(raw, len(history.rows) if first_loaded is None else first_loaded)
            begin, unsent = _unloaded(call, raw, loads)
            if contents.first or first_loaded is not None:
                positions = live_positions(loaded_epoch, contents.first)
                contents, begin, unsent = await self._load_missing(call, history, contents, positions)
            with history.lock:
                history.take(contents, live, contents.first + last_answer)
        else:
            rewound = _rewound(call, events)
            if loads:
                begin, unsent = _unloaded(call, raw, loads)
            elif tracked:
                self.history(state, rewound)
        first, count = contents.first, contents.first + len(raw)
        if request_index is not None:
            request_index += first
        rows = history.rows[:first] if history is not None else []
        digests: dict[int, str] = {}

        def earlier(at: int) -> Content:
            content = self.reader.content(contents[at], model)
            if at not in contents.earlier:
                return replace(content, digest=digests.get(at, ""))
            if (row := rows[at]) is None:
                return content
            content = replace(content, digest=row.digest or content.digest)
            return replace(content, agent="", quotes=()) if row.origin and row.origin.author == "user" else content

        frozen = CallContents(agent_contents, self.reader, model, contents, _authors(call, records).authored, earlier)
        stored = load_epoch(call.state, identity, partial(original_text, contents=contents, frozen=frozen))
        # Where the last cut was made is not looked at before the loaded contents.
        digests |= {**dict(stored.anchors), stored.cut_count - 1: stored.cut_hash}
        by_hand = session_note(call.state, CUT, identity.session)
        rewritten = _rewrote(call, stored) or bool(stored.number and stored.rewound != rewound)
        config = call.request.config
        output_limit = config.max_output_tokens if config is not None else None
        # How a session grew before an invocation is the same at each of its calls.
        if rows or state.growth[0] != identity.invocation:
            state.growth = (identity.invocation, _growth(events, rows, identity))
        base = PackInput(
            identity=identity,
            request=host.head._replace(rewritten=rewritten),
            window=call.window.tokens,
            # The limit of the answer counts where that shares the window with the request.
            output_tokens=output_limit if output_limit is not None and shares_window(model) else None,
            step=planned.step,
            validity=planned.validity,
            invalid_reason=planned.invalid_reason,
            previous=Previous(last.pack.sent, last.name) if last is not None else Previous(),
            host=host_of(call, host.head, records, identity, by_hand)._replace(arm=self._arm),
            usage=Usage(growth=state.growth[1], offloaded_tokens=call.offloaded_tokens),
            problems=planned.problems,
        )
        follow = partial(
            next_input,
            base,
            count,
            frozen.__getitem__,
            replace(stored, rewound=rewound),
            request_index=request_index,
            request_only=getattr(call.invocation.agent, "include_contents", "default") == "none",
            limits=call.limits,
            sees_own=call.policy.sees == "own" and not untouched,
        )
        frozen.take_over(live_positions(stored, count))
        # Off the event loop where many contents are read for the first time.
        unread = count - (last.length if last is not None else 0)
        source = await aside(_CONTENT_CHARACTERS * unread, partial(follow, begin=begin, restored=contents.first))
        if frozen.has_changed and is_trusted:
            # The host rewrote what was read before, so that nothing about it is taken for granted.
            state.contents = AgentContents()
            return await self.gather(call, state)
        # Where the boundary is not where it was, everything is live again.
        if history is not None and any(at < first and at not in contents.earlier for at in source.request.positions):
            contents, begin, unsent = await self._load_missing(call, history, contents, range(first))
            rows = history.rows[:first]
            frozen.clear()
            source = follow(begin=begin, restored=contents.first)
        problems = [*source.problems, *unsent]
        loaded = [*contents.earlier.values(), *raw]
        instructions = await active_instructions(call, loaded, self.reader, self._waits, problems)
        request = source.request
        anchors = anchors_of(call, records, self.reader, request.contents, request.positions, rows, problems)
        goes_on = last is not None and last.pack.identity.invocation == identity.invocation
        candidates, embedder = planned.candidates + (host.preloaded or ()), ""
        if last is not None and goes_on:
            # What an earlier call of this invocation found.
            previous = last.pack.source
            candidates += tuple(candidate for candidate in previous.candidates if candidate.source == "memory")
            embedder = previous.search.memory_embedder
        is_asked = identity.call == 1 or (request.first_call and not goes_on)
        if call.invocation.memory_service is not None and not untouched and is_asked:
            was_preloaded = host.preloaded is not None
            # What a compaction of ADK's took is recalled from memory alone, and so is all where only a part is shown.
            sees_session = tracked and not any(event.actions.compaction for event in events)
            search = partial(search_memories, preloaded=was_preloaded, sees_session=sees_session)
            memories, found_by = await search(call, problems, self._waits)
            candidates += tuple(memories)
            embedder = embedder if was_preloaded else found_by
        recorded = {candidate.uri for candidate in candidates}
        results = [record for record in records.results(call) if record.uri not in recorded]
        if call.policy.sees == "own":
            results = [record for record in results if record.agent == call.context.agent_name]
        candidates += stored_results(call, results, request.contents)
        media = media_marks(*request.contents)
        source = source._replace(
            instructions=instructions,
            candidates=unique(with_evidence(candidates, records, source.host.can_read)),
            host=source.host._replace(anchors=anchors, media=media),
            search=Search(memory_embedder=embedder),
            problems=tuple(problems),
        )
        if history is not None:
            history.live = {at: contents[at] for at in request.positions}
        indexed.answered_until = last_answer
        frozen.forget_others()
        # Where a result is posted, ADK shows nothing between its call and itself.
        has_posted_result = bool(events) and events[-1].author == "user" and bool(events[-1].get_function_responses())
        transient = 0
        if len(raw) - last_answer > 1:
            transient = transient_contents(raw, events, call.context.user_content)
        length = first + len(raw) - transient if tracked and not has_posted_result else 0
        stable_end = first + (len(raw) if has_posted_result else last_answer) if tracked else 0
        sent_of = partial(frozen.sent_of, contents)
        original_of = partial(original_text, contents=contents, frozen=frozen)
        return PreparedCall(call, source, contents, stored, sent_of, original_of, length=length, stable_end=stable_end)

    def archive(self, prepared: PreparedCall, state: AgentState, later: Callable[[Callable[[], object]], None]) -> None:
        """Queues for the store what the host may not load any more: at an invocation's first call where it loads a part
        of the events, and whenever much of it waits."""
        call, source, end, limit = prepared.call, prepared.source, prepared.stable_end, _MOST_UNARCHIVED
        if (loads := getattr(call.invocation.run_config, "get_session_config", None)) is not None:
            limit = 1 if source.identity.call == 1 else max(1, min(limit, (loads.num_recent_events or 0) // 2))
        is_little = state.archived_end <= end < state.archived_end + limit and not source.request.rewritten
        if call.policy.record != "full" or is_little:
            return
        state.archived_end = end
        history, records = self.history(state), self._records.of(call.context)
        events = tuple(records.live(call.context.session.events)[0])
        history.newest = id(prepared.history.loaded)
        later(partial(history.save, prepared.history, events, end, call.policy.mask, call.model))

    def cutoff(self, prepared: PreparedCall, pack: Pack, state: AgentState) -> str:
        """The id of the last event that the model does not read, empty where it reads all of them."""
        last = prepared.call.last
        if last is not None and not pack.source.request.first_call and last.pack.epoch == pack.epoch:
            return last.cutoff  # nothing came or went where the model begins to read
        unread = last_unread(
            pack, prepared.call.context.session.events, partial(self.reader.content, model=prepared.call.model)
        )
        if unread is not None or not prepared.history.first:
            return unread.id if unread is not None else ""
        cut = self.history(state).rows[: pack.epoch.cut_count]  # that event is not loaded any more
        return next((row.origin.event for row in reversed(cut) if row and row.origin), "")

    async def _followed(
        self, call: ModelCall, state: AgentState, epoch: Epoch, raw: Sequence[types.Content], live: Sequence[Event]
    ) -> tuple[AgentHistory, str]:
        """The agent's history since the event that last rewrote it, and that event's id."""
        last_history = state.history or self.history(state, epoch.rewound)
        rewound = _rewound(call, call.context.session.events)
        is_placed = first_position(raw, live, call.key[4], call.key[3]) is not None
        if is_placed and last_history.rewound == rewound:
            return self.history(state, rewound), rewound
        # The host loads a part of the events. All are read once, to see what is left of those that are not loaded.
        session, within = call.context.session, partial(self._waits.within, "rewind", call.invocation.invocation_id)
        load = partial(call.invocation.session_service.get_session, app_name=session.app_name)
        try:
            await last_history.load(None, call, self._waits)
            if not last_history.rows:
                return self.history(state, rewound), rewound
            session_with_all = await within(load(user_id=session.user_id, session_id=session.id))
            events = session_with_all.events if session_with_all is not None else ()
            rewound = _rewound(call, events)
            history = self.history(state, rewound)
            every = live_events(events)[0]
            compactions = [event.actions.compaction for event in every if event.actions.compaction]
            until = max((compaction.end_timestamp for compaction in compactions), default=0.0)
            live_ids = {event.id for event in every if event.timestamp > until}
            await within(in_thread(partial(last_history.surviving, live_ids, history)))
        except Exception as error:  # nothing from before the loaded events is sent, then
            history = self.history(state, rewound)
            history.problem = f"what a rewind or a compaction left could not be read ({type(error).__name__})"
        return history, rewound

    async def _load_missing(
        self, call: ModelCall, history: AgentHistory, contents: Contents, positions: Collection[int]
    ) -> tuple[Contents, int, list[str]]:
        """The contents with those at positions before the loaded ones, as they were sent last or as the store holds
        them; the first that is sent, a user's message where some are lost; and what is lost, in words."""
        await history.load(contents.first, call, self._waits, positions)
        contents = replace(contents, earlier=history.live)
        missing = [at for at in positions if at not in contents.earlier]
        begin = max(missing, default=-1) + 1
        # A history that few events began may open in the middle of a turn.
        if missing or (contents.first and 0 in positions):
            begin = next((at for at in range(begin, len(contents)) if is_message(contents[at])), begin)
        problem = f"{len(missing):,} contents before the loaded events are not sent: {history.problem}"
        return contents, begin, [problem] if missing else []


def original_text(message: PackedMessage, contents: Contents, frozen: CallContents) -> str:
    """The text of the message that a packed one stands for, mostly still where it was; empty where it is gone."""
    count = len(contents)
    for at in chain((message.place,), range(count - 1, -1, -1)):
        if 0 <= at < count and contents[at].role == "user":
            content = frozen[at]
            if content.digest == message.of:
                return content.text
    return ""


def _authors(call: ModelCall, records: Records) -> Authors:
    message = call.context.user_content
    quotes = [*records.user_quotes, *([message] if message is not None and looks_quoted(message) else ())]
    return Authors(records.authors, [content.parts for content in quotes])


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


def _identity(call: ModelCall, records: Records) -> Identity:
    """Whose model call this is; the call's number is read off the session's events."""
    invocation, events, last = call.invocation.invocation_id, call.context.session.events, call.last
    app, user, session, branch, agent = call.key
    previous = last.pack.identity if last is not None and last.pack.identity.invocation == invocation else None
    number = 1
    for event in reversed(events):
        if previous is not None and event.id == previous.last_event_id:
            number += previous.call - 1  # those up to here were counted for the call before
            break
        if event.invocation_id != invocation:
            break
        number += is_answer(event, agent, branch)
    return Identity(
        app,
        user,
        session,
        invocation,
        agent,
        branch,
        number + call.is_second_try,
        last_event_id=events[-1].id if events else "",
        last_event_time=records.time(events),
        caller=call.caller.session if call.caller is not None else None,
    )


def _rewrote(call: ModelCall, epoch: Epoch) -> bool:
    """Tells whether the host changed contents that this agent's last answer was given to.

    Compaction and rewinds do, and results that come late, which ADK puts in the place of earlier ones. Read off the
    events, so that every worker comes to the same epoch, whether or not the last request is known there.
    """
    agent, branch = call.context.agent_name, call.invocation.branch or ""
    if not epoch.number or call.passthrough_reason:
        return False
    posted: set[str | None] = set()
    for event in reversed(call.context.session.events):
        if _rewrites(event):
            return True
        if event.author == "user":
            posted |= {response.id for response in event.get_function_responses()}
        posted -= {requested.id for requested in event.get_function_calls()}
        if is_answer(event, agent, branch):
            break
    return bool(posted)


def _growth(events: Sequence[Event], rows: Sequence[HistoryRow | None], identity: Identity) -> int | None:
    """Tokens by which a session grew from one human message to the next, but for one time in ten, before an invocation
    began; None where nothing was said before. The latest messages tell, and before the first event ``rows``."""
    sizes: list[int] = []
    size = 0
    earlier = (event for event in reversed(events) if event.invocation_id != identity.invocation)
    messages = ((event.content, event.author == "user" and not event.get_function_responses()) for event in earlier)
    loaded_sizes = ((characters(content) if content else 0, is_users) for content, is_users in messages)
    earlier_sizes = (
        (row.sizes[1], bool(row.words and row.origin and row.origin.author == "user")) for row in reversed(rows) if row
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


def _loads(call: ModelCall, setting: GetSessionConfig) -> str:
    """Names the part of a session's events that the host loaded; empty where it loaded all."""
    events, limit = call.context.session.events, setting.num_recent_events
    # The message that began this invocation is appended to those that were loaded.
    count = sum(event.invocation_id != call.invocation.invocation_id for event in events) if limit is not None else 0
    if limit is not None and count >= limit:
        return f"only the last {limit} events"
    return "only later events" if setting.after_timestamp is not None else ""


def _is_tracked(call: ModelCall, contents: Sequence[types.Content], loads: str) -> bool:
    """Tells whether contents are numbered from the session's beginning on.

    Not where the agent is shown a part of the session alone, nor where the host took some of it away: those that are
    shown without a user's message before them may stand behind a compaction's summary.
    """
    agent, events = call.invocation.agent, call.context.session.events
    if call.passthrough_reason or getattr(agent, "include_contents", "default") != "default":
        return False
    if getattr(call.invocation, "isolation_scope", None) is not None:
        return False
    looks_whole = not loads and (not contents or contents[0].role == "user")
    return looks_whole or not any(event.actions.compaction for event in events)


REWOUND = "aether:rewound"


def session_note(state: Mapping[str, Any] | State, key: str, session: str) -> Mapping[str, Any]:
    """A note of this session's in its state; empty where there is none, or it came along from another session."""
    note = state.get(key)
    return note if isinstance(note, Mapping) and note.get("session") == session else NOTHING


def turns_begin(state: Mapping[str, Any] | State, session: str) -> str:
    """The id of the event with which the turns begin that the store keeps of a session; empty where none is noted."""
    return str(session_note(state, REWOUND, session).get("event") or "")


def _rewound(call: ModelCall, events: Sequence[Event]) -> str:
    """The id of the session's last rewind or compaction; of its first event where there was none and the host may load
    a part of the events, else empty.

    It is noted in the session's state at the first call that sees it, since it need not be loaded later. What a
    compaction of the host's replaced by a summary is then as little sent again as what a rewind took back, or as the
    turns of a session that had the same id and was deleted, which the store still holds.
    """
    session = call.key[2]
    noted_id = turns_begin(call.state, session)
    # An answer to an earlier call came with the state in which that call noted what it saw.
    latest = next((event for event in reversed(events) if _rewrites(event) or noted(event)), None)
    setting = getattr(call.invocation.run_config, "get_session_config", None)
    is_child = type(call.invocation.artifact_service).__name__ == _CHILDS_ARTIFACTS  # its id is new at each call
    is_new = latest is None and not noted_id and bool(events) and not (is_child or call.passthrough_reason)
    if is_new and setting is not None and not _loads(call, setting):
        call.context.state[REWOUND] = {"session": session, "event": events[0].id, "is_first": True}
        return events[0].id
    if latest is None or not _rewrites(latest) or latest.id == noted_id:
        return noted_id
    if not call.passthrough_reason:
        call.context.state[REWOUND] = {"session": session, "event": latest.id}
    return latest.id


def _rewrites(event: Event) -> bool:
    return bool(event.actions.rewind_before_invocation_id or event.actions.compaction)


def _unloaded(call: ModelCall, contents: Sequence[types.Content], loads: str) -> tuple[int, list[str]]:
    """Counts the first contents whose user message the host did not load, which are not sent; and says in words what is
    missing.

    Strict providers refuse a request that begins with them. What ADK compacted stands first by right.
    """
    problems = [f"the host loaded {loads}: nothing before them is sent or recalled"]
    if call.passthrough_reason or any(event.actions.compaction for event in call.context.session.events):
        return 0, problems
    headless = next((at for at, content in enumerate(contents) if is_message(content)), 0)
    if headless:
        problems.append(f"{headless} contents are not sent: the host did not load the user message before them")
    return headless, problems
