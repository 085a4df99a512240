"""What a pack is built from, read off ADK's request, session and services."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.session import Session
from google.genai import types
from pydantic import BaseModel, ConfigDict, TypeAdapter

from aether_context.adk.bounds import Waits
from aether_context.adk.call import Known, ModelCall, PreparedCall, caller_of, masked_aside, words_of
from aether_context.adk.request.reader import (
    MOST_MEMORIES,
    Reader,
    attributed_to,
    declared_tools,
    essential_names,
    found_memories,
    human_index,
    is_free,
    memory_candidate,
    preloaded,
    structure,
    system_text,
)
from aether_context.adk.request.spoken import characters
from aether_context.adk.services.memory import HybridMemoryService
from aether_context.adk.session import ANCHORS, Records, SessionRecords, load_epoch
from aether_context.conversation import ranked, registered_anchors, selected
from aether_context.conversation.turns import align, is_human, live_positions, reset, torn
from aether_context.evidence import evidence_key
from aether_context.evidence.record import READ, SEARCH
from aether_context.pack import (
    Anchor,
    Candidate,
    Content,
    Epoch,
    Identity,
    Pack,
    PackedMessage,
    PackInput,
    Request,
    valid,
)
from aether_context.retrieval.ranking import similarity
from aether_context.state import Plan, Problems, current_step, read_plan, read_state, unique
from aether_context.text.spellings import is_preference
from aether_context.tokens.counters import SharedLRU
from aether_context.tokens.model_limits import shares_window
from aether_context.usage.prices import cached_share

_MOST_PLANS = 256
_CHILDS_ARTIFACTS = "ForwardingArtifactService"
"""The artifact service that ADK gives to agents that run as tools, and to nothing else."""
_USUAL_CACHED_PRICE = 0.1
_TOKEN_CHARACTERS, _LINE_CHARACTERS = 5, 8
_MOST_GROWTH_EVENTS, _MOST_GROWTH_MESSAGES, _GROWTH_CHARACTERS = 300, 50, 4


class Gatherer:
    """Reads requests; keeps what it has read of contents, declarations and plans, by their content.

    ``records`` are what sessions know of their evidence, ``waits`` what invocations have waited for.
    """

    def __init__(self, records: SessionRecords, waits: Waits) -> None:
        self.reader = Reader()
        self._records = records
        self._waits = waits
        self._plans: SharedLRU[object, Plan] = SharedLRU(_MOST_PLANS)

    def planned(self, call: ModelCall) -> Plan:
        """The plan, tools and knowledge in the session's state.

        A plan that ADK copied there for an agent that runs as a tool is its caller's, and so are its tools, until it
        makes one of its own, or claims the step that the plan is at.
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
        state = {name: call.state.get(name) for name in keys}
        key = (agent, structure(state))
        found = self._plans.get(key)
        if found is None:
            found = read_state(state, worker=agent)
            self._plans.put(key, found)
        return found

    async def gather(self, call: ModelCall) -> PreparedCall:
        """The input of any request."""
        request, planned, last, model = call.request, call.planned, call.last, call.model
        events, asked, untouched = call.context.session.events, call.context.user_content, call.passthrough_reason
        identity = _identity(call)
        config, essential = request.config, essential_names(request)
        block = preloaded(request.contents, asked)
        raw = list(request.contents)
        if block is not None:
            del raw[block.position]

        sent: Mapping[int, Known] = {}
        if last is not None and last.pack.source.request.model == model:
            sent = dict(zip(last.pack.source.request.positions, last.known, strict=True))

        def read(positions: Sequence[int]) -> tuple[tuple[Known, ...], tuple[Content, ...]]:
            """Contents as they were read, and as their authors'."""
            contents = [raw[at] for at in positions]
            known = tuple(
                self.reader.known(content, model, sent.get(at)) for at, content in zip(positions, contents, strict=True)
            )
            return known, attributed_to(contents, [content.frozen for content in known], events, asked)

        stored = load_epoch(call.state, identity, partial(self.original_text, contents=raw, model=model))
        epoch = Epoch(number=0) if untouched else stored
        human = human_index(raw, asked)
        answered = read([human])[1][0] if human is not None else None
        # An agent that ADK shows nothing but what it answers: its epochs last no longer than that.
        alone = getattr(call.invocation.agent, "include_contents", "default") == "none"
        if alone and epoch.number and _opens(identity, stored, answered):
            aligned = reset(epoch, "")
        else:
            aligned = align(epoch, len(raw), lambda at: self.reader.content(raw[at], model).digest)
        positions = live_positions(aligned.epoch, len(raw))
        known, live = read(positions)
        # Where the host took contents away so that an exchange would be torn, everything is live again.
        if aligned.epoch.cut_count and torn(live):
            aligned = reset(epoch, "the host rewrote history inside an exchange")
            positions = tuple(range(len(raw)))
            known, live = read(positions)
        opens = identity.call == 1 if untouched else _opens(identity, aligned.epoch, answered)
        headless, unloaded = _unloaded(call, raw)
        if headless or (human is not None and human not in positions):
            positions = tuple(at for at in sorted({*positions, *([] if human is None else [human])}) if at >= headless)
            known, live = read(positions)
        problems = [*planned.problems, *filter(None, (aligned.note,)), *unloaded]
        anchors = self._anchors(call, live, positions, problems)
        can_read = not {READ, SEARCH}.isdisjoint(essential)
        records = self._records.of(call.context)
        goes_on = last is not None and last.pack.identity.invocation == identity.invocation
        candidates, encoder = planned.candidates, ""
        if block is not None:
            candidates += block.memories
        if last is not None and goes_on:
            # What an earlier call of this invocation found.
            before = last.pack.source
            candidates += tuple(candidate for candidate in before.candidates if candidate.source == "memory")
            encoder = before.memory_embedder
        is_asked = identity.call == 1 or (opens and not goes_on)
        if call.invocation.memory_service is not None and not untouched and is_asked:
            found, found_by = await _memories(call, problems, self._waits, preloaded=block is not None)
            candidates += found
            encoder = found_by if block is None else encoder
        candidates = _with_evidence(candidates, records, can_read)
        system, is_text = system_text(request.config)
        tools, other_tools = self.reader.tools(declared_tools(request), essential)
        price = cached_share(model, int(identity.last_event_time // 86_400))
        # A limit counts cached input in full.
        cached = 1.0 if call.near_limit else _USUAL_CACHED_PRICE if price is None else round(price, 4)
        by_hand = call.state.get(CUT)
        if not isinstance(by_hand, Mapping) or by_hand.get("session") != identity.session:
            by_hand = {}
        window = call.window
        source = PackInput(
            identity=identity,
            request=Request(
                model=model,
                system=system,
                system_is_text=is_text,
                tools=tools,
                other_tools=other_tools,
                contents=live,
                positions=positions,
                human=positions.index(human) if human is not None else None,
            ),
            window=window.tokens,
            window_mark=window.mark,
            output_tokens=config.max_output_tokens if config is not None and shares_window(model) else None,
            step=planned.step,
            validity=planned.validity,
            invalid_reason=planned.invalid_reason,
            candidates=unique(candidates),
            memory_embedder=encoder,
            epoch=aligned.epoch,
            first_call=opens,
            rewritten=aligned.rewritten or _rewrote(call, stored),
            previous=last.pack.sent if last is not None else None,
            previous_pack=last.name if last is not None else "",
            cached_price=cached,
            can_mask="gemini" in model and (config is None or config.tool_config is None),
            can_find=config is not None and is_free(config),
            can_read=can_read,
            passthrough_reason=untouched,
            problems=tuple(problems),
            anchors=anchors,
            asked=by_hand["id"][:200] if isinstance(by_hand.get("id"), str) else "",
            evidence=records.readings(),
            offloaded_tokens=call.offloaded_tokens,
            growth=_growth(events, identity.invocation),
        )
        return PreparedCall(call=call, source=source, history=raw, epoch=stored, known=known)

    def original_text(self, message: PackedMessage, contents: Sequence[types.Content], model: str) -> str:
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
        problems: list[str],
    ) -> tuple[Anchor, ...]:
        """The contents that the session's state, an event's metadata or a registered rule marks.

        A content is an event's where it holds all of the event's parts; of several the latest. An event whose content
        is not in the request as it was said, another agent's for example, marks nothing. A rule that raises is noted
        among the problems.
        """
        settings, latest_first = call.policy.conversation, range(len(contents) - 1, -1, -1)
        places: list[tuple[_Mark, int | None]] = []
        if priority := settings.anchor_priority("instruction_anchor"):
            values = call.state.get(ANCHORS)
            items = values[:_MOST_MARKS] if isinstance(values, (list, tuple)) else []
            read = (valid(_MARK, {"event": item} if isinstance(item, str) else item) for item in items)
            marks = [mark for mark in read if mark is not None]
            for mark in marks:
                if mark.contains:
                    places.append((mark, next((at for at in latest_first if mark.contains in contents[at].text), None)))
            by_event = {mark.event: mark for mark in marks if mark.event}
            marked = by_event.keys() | self._records.of(call.context).marked
            for event in call.context.session.events if marked else ():
                if event.id not in marked:
                    continue
                value = (event.custom_metadata or {}).get(ANCHORS)
                mark_of = by_event.get(event.id) or valid(_MARK, value) or _Mark()
                if event.content is not None and event.content.parts:
                    sent = self.reader.content(_without_client_ids(event.content), call.model)
                    wires = {part.wire for part in sent.parts}
                    holding = (at for at in latest_first if wires.issubset(part.wire for part in contents[at].parts))
                    places.append((mark_of, next(holding, None)))
        found = [
            Anchor(
                place=positions[at],
                kind="instruction_anchor",
                priority=priority if mark.priority is None else mark.priority,
                description=mark.description or mark.contains[:80] or "marked message",
            )
            for mark, at in places
            if at is not None
        ]
        for rule in registered_anchors(settings):
            try:
                found += selected(rule, contents, positions)
            except Exception as error:
                problems.append(f"anchor rule {rule.description!r} failed: {type(error).__name__}")
        return ranked(found)


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
        number += _is_answer(event, agent, branch)
    latest = events[-1] if events else None
    caller = caller_of((app, user, session))
    return Identity(
        app=app,
        user=user,
        session=session,
        invocation=invocation,
        agent=agent,
        branch=branch,
        call=number + call.is_second_try,
        last_event_id=latest.id if latest is not None else "",
        last_event_time=latest.timestamp if latest is not None else 0.0,
        caller=caller.session if caller is not None else None,
    )


def _is_answer(event: Event, agent: str, branch: str) -> bool:
    """Whether an event is what a model call of this agent gave."""
    if event.content is not None:
        spoke = event.content.role == "model"
    else:
        spoke = event.error_code is not None or event.usage_metadata is not None or event.finish_reason is not None
    return spoke and event.author == agent and (event.branch or "") == branch and not event.partial


def _opens(identity: Identity, epoch: Epoch, answered: Content | None) -> bool:
    """Whether a request is the first one to what it answers.

    That is an invocation's first one, and each that answers what another agent has handed over since: an agent in a
    loop may be shown nothing but the last turn of the agent before it.

    Args:
        answered: the final human message.
    """
    if identity.call == 1 or answered is None or not answered.agent:
        return identity.call == 1
    return not any(
        (payload.of, payload.invocation) == (answered.digest, identity.invocation) for payload in epoch.payloads
    )


def _rewrote(call: ModelCall, epoch: Epoch) -> bool:
    """Whether the host changed contents that this agent's last answer was given to.

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
        if _is_answer(event, agent, branch):
            break
    return bool(posted)


def _growth(events: Sequence[Event], invocation: str) -> int | None:
    """Tokens by which a session grew from one human message to the next, but for one time in ten, before an invocation
    began; None where nothing was said before. The latest messages tell."""
    sizes: list[int] = []
    size = 0
    earlier = (event for event in reversed(events) if event.invocation_id != invocation)
    for event in islice(earlier, _MOST_GROWTH_EVENTS):
        size += characters(event.content) if event.content is not None else 0
        if event.author == "user" and not event.get_function_responses():
            sizes.append(size)
            size = 0
            if len(sizes) == _MOST_GROWTH_MESSAGES:
                break
    if size:
        sizes.append(size)
    return sorted(sizes)[9 * len(sizes) // 10] // _GROWTH_CHARACTERS if sizes else None


def _unloaded(call: ModelCall, contents: Sequence[types.Content]) -> tuple[int, list[str]]:
    """What is missing where the host loads a part of a session's events, in words; and how many contents, which are not
    sent then, stand first without the user message that they answer.

    Strict providers refuse a request that begins with them. What ADK compacted stands first by right.
    """
    loads, events = getattr(call.invocation.run_config, "get_session_config", None), call.context.session.events
    most, after = getattr(loads, "num_recent_events", None), getattr(loads, "after_timestamp", None)
    # The message that began this invocation is appended to those that were loaded.
    before = sum(event.invocation_id != call.invocation.invocation_id for event in events) if most is not None else 0
    if most is not None and before >= most:
        part = f"only the last {most} events"
    elif after is not None:
        part = "only later events"
    else:
        return 0, []
    problems = [f"the host loaded {part}: nothing before them is sent or recalled"]
    if call.passthrough_reason or any(event.actions.compaction for event in events):
        return 0, problems
    headless = 0
    for at, content in enumerate(contents):
        if content.role == "user" and not any(part.function_response for part in content.parts or ()):
            headless = at
            break
    if headless:
        problems.append(f"{headless} contents are not sent: the host did not load the user message before them")
    return headless, problems


async def _memories(
    call: ModelCall, problems: list[str], waits: Waits, *, preloaded: bool
) -> tuple[tuple[Candidate, ...], str]:
    """The app's memories, under one deadline, and what compared their meanings where they have a score.

    They are what the user wants always, as our own service keeps it, since a search for something else would not find
    it; and what a search for request and step finds, where ADK has not preloaded that. A failure is noted and costs
    nothing else. A service of ours gives the best, as many as their room could take were a token five characters long,
    and ``memory_k`` at least; their scores count.
    """
    service, session, settings = call.invocation.memory_service, call.context.session, call.policy.retrieval
    within = partial(waits.within, f"memory {id(service)}", call.invocation.invocation_id)
    candidates: list[Candidate] = []
    if settings.memory_k == 0:
        return (), ""
    if isinstance(service, HybridMemoryService):
        try:
            for memory in await within(service.preferences(session.app_name, session.user_id)):
                candidates.append(
                    memory_candidate(memory.text, timestamp=memory.timestamp, name=memory.name, standing=True)
                )
        except Exception as error:
            problems.append(f"preferences could not be read: {type(error).__name__}")
    query = " ".join(filter(None, (words_of(call.context.user_content), call.planned.step.text)))
    if preloaded or not query:
        return tuple(candidates), ""
    query = await masked_aside(call.policy.mask, query)
    room = call.window.tokens * _TOKEN_CHARACTERS
    found: list[Candidate] = []
    try:
        if not isinstance(service, HybridMemoryService):
            entries = (await within(call.context.search_memory(query))).memories
            if len(entries) > MOST_MEMORIES:
                looked = f"only the first {MOST_MEMORIES} of {len(entries)} entries were looked at"
                problems.append(f"memory search: {looked}")
            return (*candidates, *found_memories(entries, room, preferences=True)), ""
        most = settings.most_memories(call.window.tokens)
        for remembered in await within(service.find(session.app_name, session.user_id, query, most)):
            if room <= 0 and len(found) >= settings.memory_k:
                break
            memory = remembered.memory
            room -= len(memory.text) + len(memory.author or "") + _LINE_CHARACTERS
            found.append(
                memory_candidate(
                    memory.text,
                    author=memory.author,
                    timestamp=memory.timestamp,
                    name=memory.name,
                    similarity=similarity(remembered.score),
                    standing=is_preference(memory.metadata),
                )
            )
        return (*candidates, *found), service.memories.embedder if found else ""
    except Exception as error:
        problems.append(f"memory search failed: {type(error).__name__}")
        return tuple(candidates), ""


def _with_evidence(candidates: Sequence[Candidate], records: Records, can_read: bool) -> tuple[Candidate, ...]:
    """Candidates with what the session's records say of their addresses, and without addresses that only a reader
    resolves where the request declares none."""
    readings, hashes = records.readings(), {record.uri: record.digest for record in records.by_digits().values()}
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
#
# What does not fit these forms is ignored.

CUT = "aether:cut"
_MOST_MARKS = 200
_CLIENT_ID = "adk-"


class _Mark(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    event: str = ""
    contains: str = ""
    priority: int | None = None
    description: str = ""


_MARK = TypeAdapter(_Mark)


def cut_now(session: Session) -> Event:
    """The event that asks for a cut at the session's next model call, whatever its size.

        await service.append_event(session, cut_now(session))

    Every agent of the session cuts once. Asking twice without an event in between is asking once.
    """
    last = session.events[-1].id if session.events else "start"
    return Event(author="user", actions=EventActions(state_delta={CUT: {"session": session.id, "id": last}}))


def _without_client_ids(content: types.Content) -> types.Content:
    """The content as most models are sent it: without the ids that ADK itself gave to calls."""
    parts = []
    for part in content.parts or ():
        for name in ("function_call", "function_response"):
            inside = getattr(part, name)
            if inside is not None and (inside.id or "").startswith(_CLIENT_ID):
                part = part.model_copy(update={name: inside.model_copy(update={"id": None})})
        parts.append(part)
    return types.Content(role=content.role, parts=parts)


def last_unread(pack: Pack, events: Sequence[Event], read: Callable[[types.Content], Content]) -> Event | None:
    """Where the model begins to read: the event before the first human message that a pack sends; None where nothing
    before that message is missing.

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
