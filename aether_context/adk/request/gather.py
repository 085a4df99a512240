"""The input of a pack, read off ADK's request, session and services."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from heapq import nsmallest
from itertools import chain, islice, takewhile

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.genai import types
from pydantic import BaseModel, ConfigDict, TypeAdapter

from aether_context.adk.acceptance import REPAIR
from aether_context.adk.bounds import Waits, aside, in_thread
from aether_context.adk.call import AgentKey, Contents, ModelCall, PreparedCall, caller_of, words_of
from aether_context.adk.request.history import History, Row, first_position, live_events, origins_of
from aether_context.adk.request.instructions import active_instructions
from aether_context.adk.request.reader import (
    MOST_MEMORIES,
    Reader,
    authors_of,
    characters,
    found_memories,
    is_answer,
    is_free,
    is_message,
    looks_quoted,
    media_marks,
    memory_candidate,
    preloaded,
    request_index_of,
    structure,
    with_pending,
    without_client_ids,
)
from aether_context.adk.services.memory import HybridMemoryService
from aether_context.adk.session import ANCHORS, Records, SessionRecords, load_epoch
from aether_context.conversation import ranked, registered_anchors, selected
from aether_context.conversation.epoch import live_positions
from aether_context.conversation.turns import is_human
from aether_context.evidence import EvidenceRecord, evidence_key
from aether_context.evidence.record import READ, SEARCH
from aether_context.pack import (
    Anchor,
    Candidate,
    Content,
    Epoch,
    Host,
    Identity,
    Pack,
    PackedMessage,
    PackInput,
    Previous,
    Search,
    Usage,
    noted,
    valid,
)
from aether_context.packing import next_input
from aether_context.packing.payload import answers_in
from aether_context.retrieval.ranking import searched, similarity
from aether_context.state import Plan, Problems, current_step, read_plan, read_state, unique
from aether_context.state.schema import PlanShape
from aether_context.store.files import Files
from aether_context.store.turns import TurnFiles
from aether_context.text.entities import artifact_uris
from aether_context.text.shorten import query_words
from aether_context.text.spellings import is_preference
from aether_context.tokens.counters import SharedLRU
from aether_context.tokens.model_limits import shares_window
from aether_context.usage.prices import cached_share

_MOST_PLANS, _MOST_HISTORIES, _MOST_ROWS = 256, 256, 200_000
"""A content of a history takes about 1,300 bytes, and its text."""
_MOST_RESULTS = 24
"""Stored results that are not in the conversation and are ranked for a pack. With all of 300 a manifest is 137 KB."""
_CHILDS_ARTIFACTS = "ForwardingArtifactService"
"""The artifact service that ADK gives to agents that run as tools, and to nothing else."""
_USUAL_CACHED_PRICE = 0.1
_TICK, _DAY = 1e-5, 86_400
"""Seconds, the first between events while a clock that was set back has not caught up."""
_TOKEN_CHARACTERS = 5
_MOST_GROWTH_EVENTS, _MOST_GROWTH_MESSAGES, _GROWTH_CHARACTERS = 300, 50, 4


class Gatherer:
    """Reads requests; keeps what it has read of contents, declarations and plans, by their content.

    ``records`` are what sessions know of their evidence, ``waits`` what invocations have waited for, ``files`` those of
    the store that keeps what hosts do not load any more.
    """

    def __init__(self, records: SessionRecords, waits: Waits, files: Files | None = None) -> None:
        self.reader = Reader()
        self._histories: SharedLRU[AgentKey, History] = SharedLRU(_MOST_HISTORIES)
        self._files = files
        self._records = records
        self._waits = waits
        self._plans: SharedLRU[object, Plan] = SharedLRU(_MOST_PLANS)

    def history(self, key: AgentKey, rewound: str | None = None) -> History:
        """The contents that an agent was shown in its session and branch."""
        history = self._histories.get(key)
        if history is None or rewound not in (None, history.rewound):
            files = None if self._files is None else TurnFiles(self._files, *key, rewound or "")
            history = History(self.reader, files, rewound or "")
            self._histories.put(key, history)
        self._histories.bound(lambda history: len(history.rows), _MOST_ROWS)
        return history

    def planned(self, call: ModelCall) -> Plan:
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
            plan = read_plan(call.state.get("plan"), Problems()).plan
            step = current_step(plan, agent) if plan is not None else None
            if step is None or step.claimed_by != agent:
                keys = ("knowledge",)
        plans = agent in call.policy.planners or getattr(call.invocation.agent, "output_key", None) == "plan"
        completed, plan_then = ("", None) if plans else _completed(call)
        state = {name: call.state.get(name) for name in keys} | ({"plan": plan_then} if completed else {})
        key = (agent, plans, completed, structure(state))
        found = self._plans.get(key)
        if found is None:
            found = read_state(state, worker=agent, plans=plans, completed=completed)
            self._plans.put(key, found)
        return found

    async def gather(self, call: ModelCall) -> PreparedCall:
        """The input of any request."""
        request, planned, last, model = call.request, call.planned, call.last, call.model
        events, asked, untouched = call.context.session.events, call.context.user_content, call.passthrough_reason
        has_rewind = self._records.of(call.context).has_rewind
        live, is_behind = live_events(events) if has_rewind else (events, False)
        identity = _identity(call)
        config, head = request.config, self.reader.head(request)
        raw = list(request.contents) if untouched else with_pending(request.contents)
        block = preloaded(raw, asked)
        if block is not None:
            del raw[block[0]]
        setting = getattr(call.invocation.run_config, "get_session_config", None)
        loads = _loads(call, setting) if setting is not None else ""
        if loads and is_behind:
            raw = raw[min(origins_of(raw, live), default=request_index_of(raw, asked) or 0) :]
        tracked = _is_tracked(call, raw, loads)
        # What follows the last answer may be of this call alone, like instructions, and results may still change.
        last_answer = next((at for at in range(len(raw), 0, -1) if raw[at - 1].role == "model"), 0)
        contents, begin, unsent = Contents(raw), 0, list[str]()
        loaded_epoch = load_epoch(call.state, identity, lambda message: message.of)
        if tracked:
            history, rewound = await self._followed(call, loaded_epoch.rewound, loads, raw, live)
        else:
            history, rewound = None, _rewound(call, events)
        history = history if loads else None
        if history is not None:
            contents, begin, unsent = await self._place(call, live, history, loaded_epoch, raw, loads, last_answer)
        elif loads:
            begin, unsent = _unloaded(call, raw, loads)
        first = contents.first
        rows = history.rows[:first] if history is not None else []
        authored = authors_of(raw, events, asked)
        stored = load_epoch(call.state, identity, partial(self.original_text, contents=contents, model=model))
        # Where the last cut was made is not looked at before the loaded contents.
        digests = {**dict(stored.anchors), stored.cut_count - 1: stored.cut_hash}

        @cache
        def content_at(at: int) -> Content:
            if at >= first:
                return authored(at - first, self.reader.content(raw[at - first], model))
            content = self.reader.content(contents[at], model)
            if at not in contents.earlier:
                return replace(content, digest=digests.get(at, ""))
            if (row := rows[at]) is None:
                return content
            content = replace(content, digest=row.digest or content.digest)
            return replace(content, agent="", quotes=()) if row.origin and row.origin.author == "user" else content

        request_index = request_index_of(raw, asked)
        if request_index is not None:
            request_index += first
        records, window = self._records.of(call.context), call.window
        price = cached_share(model, int(identity.last_event_time // _DAY))
        # A limit counts cached input in full.
        cached = 1.0 if call.near_limit else _USUAL_CACHED_PRICE if price is None else round(price, 4)
        by_hand = call.state.get(CUT)
        if not isinstance(by_hand, Mapping) or by_hand.get("session") != identity.session:
            by_hand = {}
        given = PackInput(
            identity=identity,
            request=head._replace(
                rewritten=_rewrote(call, stored) or bool(stored.number and stored.rewound != rewound)
            ),
            window=window.tokens,
            output_tokens=config.max_output_tokens if config is not None and shares_window(model) else None,
            step=planned.step,
            validity=planned.validity,
            invalid_reason=planned.invalid_reason,
            previous=Previous(last.pack.sent, last.name) if last is not None else Previous(),
            host=Host(
                passthrough_reason=untouched,
                cached_price=cached,
                can_mask="gemini" in model and (config is None or config.tool_config is None),
                can_find=config is not None and is_free(config),
                can_read=any(tool.essential and tool.name in (READ, SEARCH) for tool in head.tools),
                asked=by_hand["id"][:200] if isinstance(by_hand.get("id"), str) else "",
                window_mark=window.mark,
                most_window=window.most,
                readings={**dict.fromkeys(records.artifacts, ""), **records.readings},
                planners=tuple(sorted({*call.policy.planners, *records.planners})),
            ),
            usage=Usage(growth=_growth(events, rows, identity), offloaded_tokens=call.offloaded_tokens),
            problems=planned.problems,
        )
        alone = getattr(call.invocation.agent, "include_contents", "default") == "none"
        follow = partial(
            next_input,
            given,
            first + len(raw),
            content_at,
            replace(stored, rewound=rewound),
            request_index=request_index,
            sees_own=call.policy.sees == "own" and not untouched,
        )
        source = follow(begin=begin, alone=alone, restored=contents.first, limits=call.limits)
        # Where the boundary is not where it was, everything is live again.
        if history is not None and any(at < first and at not in contents.earlier for at in source.request.positions):
            contents, begin, unsent = await self._filled(call, history, contents, range(first))
            rows = history.rows[:first]
            content_at.cache_clear()
            source = follow(begin=begin, alone=alone, restored=contents.first, limits=call.limits)
        problems = [*source.problems, *unsent]
        loaded = [*contents.earlier.values(), *raw]
        instructions = await active_instructions(call, loaded, self.reader, self._waits, problems)
        anchors = self._anchors(call, source.request.contents, source.request.positions, rows, problems)
        goes_on = last is not None and last.pack.identity.invocation == identity.invocation
        candidates, embedder = planned.candidates + (block[1] if block is not None else ()), ""
        if last is not None and goes_on:
            # What an earlier call of this invocation found.
            before = last.pack.source
            candidates += tuple(candidate for candidate in before.candidates if candidate.source == "memory")
            embedder = before.search.memory_embedder
        is_asked = identity.call == 1 or (source.request.first_call and not goes_on)
        if call.invocation.memory_service is not None and not untouched and is_asked:
            found, found_by = await _memories(call, problems, self._waits, preloaded=block is not None)
            candidates += tuple(found)
            embedder = found_by if block is None else embedder
        recorded = {candidate.uri for candidate in candidates}
        results = [record for record in records.results(call.context) if record.uri not in recorded]
        if call.policy.sees == "own":
            results = [record for record in results if record.agent == call.context.agent_name]
        candidates += _stored_results(call, results, source.request.contents)
        media = {key: mark for content in source.request.contents for key, mark in media_marks(content).items()}
        source = source._replace(
            instructions=instructions,
            candidates=unique(_with_evidence(candidates, records, source.host.can_read)),
            host=source.host._replace(anchors=anchors, media=media),
            search=Search(memory_embedder=embedder),
            problems=tuple(problems),
        )
        if history is not None:
            history.live = {at: contents[at] for at in source.request.positions}
        # Where a result is posted, ADK shows nothing between its call and itself.
        late = bool(events) and events[-1].author == "user" and bool(events[-1].get_function_responses())
        transient = _transient(raw, events, asked) if len(raw) - last_answer > 1 else 0
        length = first + len(raw) - transient if tracked and not late else 0
        settled = first + (len(raw) if late else last_answer) if tracked else 0
        return PreparedCall(call, source, contents, stored, length=length, settled=settled)

    async def _followed(
        self, call: ModelCall, known: str, loads: str, raw: Sequence[types.Content], live: Sequence[Event]
    ) -> tuple[History, str]:
        """The agent's history since the event that last rewrote it, and that event's id.

        Args:
            known: the one that the agent's epoch follows.
        """
        last_history = self._histories.get(call.key) or self.history(call.key, known)
        rewound = _rewound(call, call.context.session.events)
        is_placed = not loads or first_position(raw, live, call.key[4], call.key[3]) is not None
        if not loads or (is_placed and last_history.rewound == rewound):
            return self.history(call.key, rewound), rewound
        # The host loads a part of the events. All are read once, to see what is left of those that are not loaded.
        session, within = call.context.session, partial(self._waits.within, "rewind", call.invocation.invocation_id)
        load = partial(call.invocation.session_service.get_session, app_name=session.app_name)
        try:
            await last_history.look(None, call, self._waits)
            if not last_history.rows:
                return self.history(call.key, rewound), rewound
            session_with_all = await within(load(user_id=session.user_id, session_id=session.id))
            events = session_with_all.events if session_with_all is not None else ()
            rewound = _rewound(call, events)
            history = self.history(call.key, rewound)
            live_ids = {event.id for event in live_events(events)[0]}
            await within(in_thread(partial(last_history.surviving, live_ids, history)))
        except Exception as error:  # nothing from before the loaded events is sent, then
            history = self.history(call.key, rewound)
            history.problem = f"what a rewind left could not be read ({type(error).__name__})"
        return history, rewound

    async def _place(
        self,
        call: ModelCall,
        events: Sequence[Event],
        history: History,
        epoch: Epoch,
        loaded: list[types.Content],
        loads: str,
        end: int,
    ) -> tuple[Contents, int, list[str]]:
        """Aligns loaded contents with the agent's history, which takes in those before ``end``; returns what `_filled`
        gives."""
        told = first_position(loaded, events, call.context.agent_name, call.invocation.branch or "")
        if told is None:
            await history.look(None, call, self._waits)
        contents = Contents(loaded, len(history.rows) if told is None else told)
        placed = (contents, *_unloaded(call, loaded, loads))
        if contents.first or told is not None:
            placed = await self._filled(call, history, contents, live_positions(epoch, contents.first))
        with history.lock:
            history.take(contents, events, contents.first + end)
        return placed

    async def _filled(
        self, call: ModelCall, history: History, contents: Contents, positions: Collection[int]
    ) -> tuple[Contents, int, list[str]]:
        """The contents with those at positions before the loaded ones, as they were sent last or as the store holds
        them; the first that is sent, a user's message where some are lost; and what is lost, in words."""
        await history.look(contents.first, call, self._waits, positions)
        contents = replace(contents, earlier=history.live)
        lost = [at for at in positions if at not in contents.earlier]
        if not lost:
            return contents, 0, []
        begin = max(lost) + 1
        begin = next((at for at in range(begin, len(contents)) if is_message(contents[at])), begin)
        return contents, begin, [f"{len(lost):,} contents before the loaded events are not sent: {history.problem}"]

    def original_text(self, message: PackedMessage, contents: Contents, model: str) -> str:
        """The text of the message that a packed one stands for, mostly still where it was; empty where it is gone."""
        for at in chain((message.place,), range(len(contents) - 1, -1, -1)):
            if 0 <= at < len(contents) and contents[at].role == "user":
                content = self.reader.content(contents[at], model)
                if content.digest == message.of:
                    return content.text
        return ""

    def _anchors(
        self,
        call: ModelCall,
        contents: Sequence[Content],
        positions: Sequence[int],
        rows: Sequence[Row | None],
        problems: list[str],
    ) -> tuple[Anchor, ...]:
        """The contents that the session's state, an event's metadata or a registered rule marks.

        A content is an event's where it holds all of the event's parts; of several the latest. An event whose content
        is not in the request as it was said, another agent's for example, marks nothing. A rule that raises is noted
        among the problems.
        """
        settings, found = call.policy.conversation, list[Anchor]()
        priority = settings.anchor_priority("instruction_anchor")

        def add(mark: _Mark, is_meant: Callable[[Content], bool]) -> None:
            at = next((at for at in range(len(contents) - 1, -1, -1) if is_meant(contents[at])), None)
            if at is not None:
                own = priority if mark.priority is None else mark.priority
                description = mark.description or mark.contains[:80] or "marked message"
                found.append(
                    Anchor(place=positions[at], kind="instruction_anchor", priority=own, description=description)
                )

        values = call.state.get(ANCHORS) if priority else None
        items = values[:_MOST_MARKS] if isinstance(values, (list, tuple)) else [values] if values else []
        read = [valid(_MARK, {"event": item} if isinstance(item, str) else item) for item in items]
        problems += [f"state {ANCHORS}.{at} was ignored: {_FORM}" for at, mark in enumerate(read) if mark is None]
        for mark in filter(None, read):
            if text := mark.contains:
                add(mark, lambda content, text=text: text in content.text)  # type: ignore[misc]
        by_event = {mark.event: mark for mark in filter(None, read) if mark.event}
        marked = by_event.keys() | self._records.of(call.context).marked if priority else ()
        for event in call.context.session.events if marked else ():
            if event.id in marked and event.content is not None and event.content.parts:
                mark_of = by_event.get(event.id) or valid(_MARK, (event.custom_metadata or {}).get(ANCHORS)) or _Mark()
                said = self.reader.content(without_client_ids(event.content), call.model)
                wires = {part.wire for part in said.parts}
                add(mark_of, lambda content, wires=wires: wires.issubset(part.wire for part in content.parts))  # type: ignore[misc]
        for at, place in enumerate(positions if priority else ()):
            row = rows[place] if place < len(rows) else None
            if row and row.origin and (row.origin.event in by_event or row.origin.mark):
                mark_of = by_event.get(row.origin.event) or valid(_MARK, row.origin.mark) or _Mark()
                add(mark_of, lambda content, own=contents[at]: content == own)  # type: ignore[misc]
        for rule in registered_anchors(settings):
            try:
                found += selected(rule, contents, positions)
            except Exception as error:
                problems.append(f"anchor rule {rule.description!r} failed: {type(error).__name__}")
        return ranked(found)


def _completed(call: ModelCall) -> tuple[str, object]:
    """The step that an agent still works under although it is completed, and the plan as that left it; empty and None
    where there is none.

    It is the step of the agent's last answer, where that answer had calls, or a gate did not accept it. Read off the
    events, so that every worker keeps the same step, whatever became of the plan since.
    """
    agent, branch, plan_now = call.context.agent_name, call.invocation.branch or "", call.state.get("plan")
    shown, is_repair, plans = "", False, dict[str, object]()
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
            shown, is_repair = shown or str(metadata.get("step") or ""), False
    plan = plans.get(shown) if shown else None
    current = current_step(read_plan(plan_now, Problems()).plan or PlanShape(), agent) if plan else None
    claims = current is not None and (current.status, current.claimed_by) == ("claimed", agent)
    return (shown, plan) if plan and not claims else ("", None)


def _identity(call: ModelCall) -> Identity:
    """Whose model call this is; the call's number is read off the session's events."""
    invocation, events, last = call.invocation.invocation_id, call.context.session.events, call.last
    app, user, session, branch, agent = call.key
    before = last.pack.identity if last is not None and last.pack.identity.invocation == invocation else None
    number = 1
    for event in reversed(events):
        if before is not None and event.id == before.last_event_id:
            number += before.call - 1  # those up to here were counted for the call before
            break
        if event.invocation_id != invocation:
            break
        number += is_answer(event, agent, branch)
    time, latest = 0.0, events[-1].timestamp + _DAY if events else 0.0
    for event in events:  # ids stand in the order of calls, although a clock may have been set back, by a day at most
        time = event.timestamp if time <= event.timestamp <= latest else time + _TICK
    caller = caller_of((app, user, session))
    return Identity(
        app,
        user,
        session,
        invocation,
        agent,
        branch,
        number + call.is_second_try,
        last_event_id=events[-1].id if events else "",
        last_event_time=time,
        caller=caller.session if caller is not None else None,
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
        if event.actions.compaction or event.actions.rewind_before_invocation_id:
            return True
        if event.author == "user":
            posted |= {response.id for response in event.get_function_responses()}
        posted -= {requested.id for requested in event.get_function_calls()}
        if is_answer(event, agent, branch):
            break
    return bool(posted)


def _growth(events: Sequence[Event], rows: Sequence[Row | None], identity: Identity) -> int | None:
    """Tokens by which a session grew from one human message to the next, but for one time in ten, before an invocation
    began; None where nothing was said before. The latest messages tell, and before the first event ``rows``."""
    sizes: list[int] = []
    size = 0
    earlier = (event for event in reversed(events) if event.invocation_id != identity.invocation)
    told = ((event.content, event.author == "user" and not event.get_function_responses()) for event in earlier)
    shown = ((characters(content) if content else 0, is_users) for content, is_users in told)
    before = (
        (row.sizes[1], bool(row.words and row.origin and row.origin.author == "user")) for row in reversed(rows) if row
    )
    for added, is_users in islice(chain(shown, before), _MOST_GROWTH_EVENTS):
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
    events, most = call.context.session.events, setting.num_recent_events
    # The message that began this invocation is appended to those that were loaded.
    before = sum(event.invocation_id != call.invocation.invocation_id for event in events) if most is not None else 0
    if most is not None and before >= most:
        return f"only the last {most} events"
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


def _rewound(call: ModelCall, events: Sequence[Event]) -> str:
    """The id of the session's last rewind, empty where there was none.

    It is noted in the session's state at the first call that sees it, since it need not be loaded later.
    """
    stored, session = call.state.get(REWOUND), call.key[2]
    known = stored.get("event") if isinstance(stored, Mapping) and stored.get("session") == session else ""
    # An answer to an earlier call came with the state in which that call noted what it saw.
    latest = next(
        (event for event in reversed(events) if event.actions.rewind_before_invocation_id or noted(event)), None
    )
    if latest is None or not latest.actions.rewind_before_invocation_id or latest.id == known:
        return known if isinstance(known, str) else ""
    if not call.passthrough_reason:
        call.context.state[REWOUND] = {"session": session, "event": latest.id}
    return latest.id


def _transient(contents: Sequence[types.Content], events: Sequence[Event], asked: types.Content | None) -> int:
    """Counts the contents that ADK adds for one call alone, such as instructions: they stand among the last users'
    ones."""
    found = 0
    for content in takewhile(lambda content: content.role == "user", reversed(contents)):
        if not looks_quoted(content) and not any(part.function_response for part in content.parts or ()):
            own = chain((asked,), (event.content for event in reversed(events) if event.author == "user"))
            found += not any(said is not None and said.parts == content.parts for said in own)
    return found


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


async def _memories(
    call: ModelCall, problems: list[str], waits: Waits, *, preloaded: bool
) -> tuple[list[Candidate], str]:
    """The app's memories, under one deadline, and what compared their meanings where they have a score.

    They are what the user wants always, as our own service keeps it, since a search for something else would not find
    it; and what a search for request and step finds, where ADK has not preloaded that. A failure is noted and costs
    nothing else. A service of ours gives no more than could enter, and their scores count.
    """
    service, session, settings = call.invocation.memory_service, call.context.session, call.policy.retrieval
    within = partial(waits.within, f"memory {id(service)}", call.invocation.invocation_id)
    found: list[Candidate] = []
    if settings.memory_k == 0:
        return found, ""
    if isinstance(service, HybridMemoryService):
        try:
            for wish in await within(service.preferences(session.app_name, session.user_id)):
                found.append(memory_candidate(wish.text, timestamp=wish.timestamp, name=wish.name, preference=True))
        except Exception as error:
            problems.append(f"preferences could not be read: {type(error).__name__}")
    query = searched(" ".join(filter(None, (words_of(call.context.user_content), call.planned.step.text))))
    if preloaded or not query:
        return found, ""
    query = await aside(len(query), partial(call.policy.mask, query))
    room = call.window.tokens * _TOKEN_CHARACTERS
    try:
        if not isinstance(service, HybridMemoryService):
            entries = (await within(call.context.search_memory(query))).memories
            if len(entries) > MOST_MEMORIES:
                looked = f"only the first {MOST_MEMORIES} of {len(entries)} entries were looked at"
                problems.append(f"memory search: {looked}")
            return [*found, *found_memories(entries, room)], ""
        # One more than can enter says that there are more of them than were found, so that a floor holds.
        hits = await within(service.find(session.app_name, session.user_id, query, settings.memory_k + 1))
        for hit in hits:
            memory = hit.memory
            found.append(
                memory_candidate(
                    memory.text,
                    author=memory.author,
                    timestamp=memory.timestamp,
                    name=memory.name,
                    scores={"similarity": similarity(hit.score), "cosine": round(hit.scores.get("cosine", 0.0), 6)},
                    preference=is_preference(memory.metadata),
                )
            )
        return found, service.memories.embedder if hits else ""
    except Exception as error:
        problems.append(f"memory search failed: {type(error).__name__}")
        return found, ""


def _stored_results(
    call: ModelCall, records: Sequence[EvidenceRecord], contents: Iterable[Content]
) -> tuple[Candidate, ...]:
    """Results of tools as candidates: those in the conversation, which a cut may take, and of the others, of which a
    session can have hundreds, those that have most words of the request, the latest first."""
    sent = {uri for content in contents for answer in answers_in(content) for uri in artifact_uris(answer)}
    words = query_words(f"{words_of(call.context.user_content)} {call.planned.step.text}".casefold())

    def worth(record: EvidenceRecord) -> tuple[int, float, str]:
        text = f"{record.source} {record.query} {record.summary}".casefold()
        return (-sum(word in text for word in words), -(record.time or 0.0), record.uri)

    others = nsmallest(_MOST_RESULTS, (record for record in records if record.uri not in sent), key=worth)
    return tuple(record.candidate for record in (*(record for record in records if record.uri in sent), *others))


def _with_evidence(candidates: Sequence[Candidate], records: Records, can_read: bool) -> tuple[Candidate, ...]:
    """Candidates with what the session's records say of their addresses, and without addresses that only a reader
    resolves where the request declares none."""
    readings, hashes = records.readings, {record.uri: record.digest for record in records.by_digits.values()}
    found: list[Candidate] = []
    for candidate in candidates:
        uri = candidate.uri
        if uri and can_read:
            content_hash = candidate.content_hash or hashes.get(uri, "")
            candidate = replace(candidate, superseded_by=readings.get(uri, ""), content_hash=content_hash)
        elif uri and evidence_key(uri) is not None:
            candidate = replace(candidate, uri="")
        found.append(candidate)
    return tuple(found)


# What people and tools mark in a session: contents that outlive others, and cuts asked for by hand.
#
#     state["aether:anchors"] = ["event-id", {"contains": "Never touch the ledger", "priority": 90}]
#     event.custom_metadata = {"aether:anchors": True}
#     state["aether:cut"] = {"session": "…", "id": "…"}

CUT = "aether:cut"
_MOST_MARKS = 200


class _Mark(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    event: str = ""
    contains: str = ""
    priority: int | None = None
    description: str = ""


_MARK = TypeAdapter(_Mark)
_FORM = "give the id of an event, or contains, and a whole number for priority"


def cut_now(session: Session) -> Event:
    """The event that asks for a cut at the session's next model call, whatever its size.

        await service.append_event(session, cut_now(session))

    Every agent of the session cuts once. Asking twice without an event in between is asking once.
    """
    last = session.events[-1].id if session.events else "start"
    return Event(author="user", actions=EventActions(state_delta={CUT: {"session": session.id, "id": last}}))


def last_unread(pack: Pack, events: Sequence[Event], read: Callable[[types.Content], Content]) -> Event | None:
    """Finds the event before the first human message that a pack sends, where the model begins to read; None where
    nothing before that message is missing.

    Args:
        read: the frozen form of an event's content.
    """
    request = pack.source.request
    sent = {origin for made in pack.contents for origin in (made.origin, *(origin for origin, _ in made.members))}
    first = next((at for at, content in enumerate(request.contents) if at in sent and is_human(content)), None)
    if first is None or (request.positions[first] == first and sent.issuperset(range(first))):
        return None
    digest = request.contents[first].digest
    left = sum(content.digest == digest for content in request.contents[first:])
    for event in reversed(events):
        if event.content is None:
            continue
        if left == 0:
            return event
        is_message = event.author == "user" and not event.get_function_responses()
        left -= is_message and read(event.content).digest == digest
    return None
