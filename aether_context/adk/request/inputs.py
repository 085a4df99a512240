"""What a pack is built from, read off ADK's request, session and services."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from cachetools import LRUCache
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from aether_context.adk.bounds import within
from aether_context.adk.call import Call, Known, ReadCall, Seen, words_of
from aether_context.adk.request.marks import asked_of, has_rules, is_marked, marked, marks_of, ruled
from aether_context.adk.request.reader import (
    MOST_MEMORIES,
    Authors,
    Preloaded,
    Reader,
    essential_names,
    found_memories,
    human_index,
    memory_candidate,
    mirror,
    other_tools,
    preloaded,
    structure,
    system_text,
    unchanged,
)
from aether_context.adk.request.writer import can_find
from aether_context.adk.services.memory import HybridMemoryService
from aether_context.adk.session import epochs
from aether_context.adk.session.records import Records, SessionRecords
from aether_context.canonical import hash_text
from aether_context.conversation import ranked
from aether_context.conversation.turns import torn
from aether_context.evidence import evidence_key
from aether_context.evidence.record import READ, SEARCH, size_words
from aether_context.pack import Candidate, Content, Epoch, Identity, PackInput, Request
from aether_context.packing.payload import TOOL
from aether_context.policy import MEMORY_FILL, PackPolicy
from aether_context.retrieval.call_indexes import similarity
from aether_context.state import Planned, Problems, current_step, read_plan, read_state, unique
from aether_context.text.spellings import is_preference
from aether_context.tokens.model_limits import model_window, shares_window
from aether_context.usage.prices import cached_share

_KEYS = ("plan", "tools", "knowledge")
_MOST_PLANS = 256
_CHILDS_ARTIFACTS = "ForwardingArtifactService"
"""The artifact service that ADK gives to agents that run as tools, and to nothing else."""
_USUAL_CACHED_PRICE = 0.1
_TOKEN_CHARACTERS, _LINE_CHARACTERS = 5, 8


class Gatherer:
    """Reads requests; keeps what it has read of contents, declarations and plans, by their content.

    ``records`` are what sessions know of their evidence.
    """

    def __init__(self, records: SessionRecords) -> None:
        self._records = records
        self._reader = Reader()
        self._plans: LRUCache[object, Planned] = LRUCache(_MOST_PLANS)
        self._lock = threading.Lock()

    def read(self, content: types.Content, model: str) -> Content:
        """The frozen form of a content, as it would be sent to a model."""
        return self._reader.known(content, model).frozen

    def planned(self, call: Call) -> Planned:
        """The plan, tools and knowledge in the session's state.

        A plan that ADK copied there for an agent that runs as a tool is its caller's, and so are its tools.
        """
        agent = call.context.agent_name
        state = {key: call.state.get(key) for key in (("knowledge",) if _has_callers_plan(call) else _KEYS)}
        key = (agent, structure(state))
        with self._lock:
            found = self._plans.get(key)
            if found is None:
                found = self._plans[key] = read_state(state, worker=agent)
        return found

    def grown(self, call: Call) -> ReadCall | None:
        """The input where this request is the last one with contents appended, None where that is not certain.

        It is certain where the session has only gained plain events of this invocation whose responses answer calls
        among them, nothing else of the request has changed, and the contents that were sent are what they were.
        Declarations are compared by what they say: ADK wraps a plain function in a new tool at each call.
        """
        last, raw = call.last, call.request.contents
        if last is None:
            return None
        before, source = last.seen, last.pack.source
        previous = source.request
        if (
            last.policy is not call.policy
            or last.planned != call.planned
            or previous.model != call.model
            or previous.system != system_text(call.request.config)[0]
            or source.output_tokens != _output_limit(call.request)
            or source.can_mask != _can_mask(call.request)
            or source.can_find != can_find(call.request)
            or call.passthrough_reason
            or not epochs.holds(call.state, source.identity, last.stored)
        ):
            return None
        identity = _next_identity(call, source.identity, before.events)
        seen, block = _seen(call)
        if (
            identity is None
            or seen.essential != before.essential
            or before.tools != call.tools
            or seen.marks != before.marks
            or has_rules()
            or seen.contents <= before.contents
            or (block is not None and block.position < before.contents)
            or previous.positions[-1:] != (before.contents - 1,)
            or not unchanged(before.known, [raw[at] for at in previous.positions])
        ):
            return None
        positions = range(before.contents, seen.contents)
        added = tuple(self._reader.known(raw[at], previous.model) for at in positions)
        records = self._records.of(call.context)
        grown = replace(
            source,
            identity=identity,
            request=replace(
                previous,
                contents=previous.contents + tuple(known.frozen for known in added),
                positions=previous.positions + tuple(positions),
            ),
            epoch=last.pack.epoch,
            first_call=False,
            rewritten=False,
            previous=last.pack.sent,
            previous_pack=last.name,
            problems=(*call.planned.problems, *_unloaded(call, raw)),
            summaries={},
            evidence=records.readings(),
            tools_kept=records.tools(),
        )
        seen = replace(seen, known=before.known + added, tools=before.tools)
        return ReadCall(call=call, source=grown, history=raw, epoch=last.pack.epoch, seen=seen)

    async def gather(self, call: Call) -> ReadCall:
        """The input of any request."""
        request, planned, last, policy = call.request, call.planned, call.last, call.policy
        model, asked = call.model, call.context.user_content
        identity = identity_of(call)
        untouched = call.passthrough_reason
        seen, block = _seen(call)
        raw = [content for at, content in enumerate(request.contents) if block is None or at != block.position]
        stored = epochs.load(call.state, identity)
        authors = Authors(call.context.session.events, asked)
        human = human_index(raw, asked)
        answered = authors.attributed(raw[human], self.read(raw[human], model)) if human is not None else None
        # An agent that ADK shows nothing but what it answers: its epochs last no longer than that.
        alone = getattr(call.invocation.agent, "include_contents", "default") == "none"
        alone = alone and _opens(identity, stored, answered)
        aligned, known, live = self._live(raw, Epoch(number=0) if untouched else stored, model, authors, alone=alone)
        opens = identity.call == 1 if untouched else _opens(identity, aligned.epoch, answered)
        positions = aligned.positions
        if human is not None and human not in positions:
            positions = tuple(sorted((*positions, human)))
            known, live = self._read(raw, positions, model, authors)
        if (headless := _headless(call, raw)) and not untouched:
            positions = tuple(at for at in positions if at >= headless)
            known, live = self._read(raw, positions, model, authors)
        system, is_text = system_text(request.config)
        problems = [*planned.problems, *filter(None, (aligned.note,)), *_unloaded(call, raw)]
        settings = policy.conversation.anchors
        marks = marked(call.context.session, live, positions, settings, lambda content: self.read(content, model))
        anchors = ranked([*marks, *ruled(live, positions, settings, problems)])
        goes_on = last is not None and last.pack.identity.invocation == identity.invocation
        candidates, encoder = planned.candidates + (block.memories if block is not None else ()), ""
        if last is not None and goes_on:
            # What an earlier call of this invocation found.
            before = last.pack.source
            candidates += tuple(candidate for candidate in before.candidates if candidate.source == "memory")
            encoder = before.memory_encoder
        if (
            call.invocation.memory_service is not None
            and not untouched
            and (identity.call == 1 or (opens and not goes_on))
        ):
            candidates += await _preferences(call, problems)
            if block is None:
                found, encoder = await _search(call, problems)
                candidates += found
        records = self._records.of(call.context)
        readings = records.readings()
        candidates += _tool_results(records, planned)
        can_read = not {READ, SEARCH}.isdisjoint(seen.essential)
        hashes = {record.uri: record.digest for record in records.by_digits().values()}

        def addressed(candidate: Candidate) -> Candidate:
            """With what the session's records say of its address; without one that only a reader resolves where the
            request declares none."""
            uri = candidate.uri
            if not can_read:
                return replace(candidate, uri="") if evidence_key(uri) is not None else candidate
            if not uri:
                return candidate
            content_hash = candidate.content_hash or hashes.get(uri, "")
            return replace(candidate, superseded_by=readings.get(uri, ""), content_hash=content_hash)

        cached = cached_share(model, identity.last_event_time)
        source = PackInput(
            identity=identity,
            request=Request(
                model=model,
                system=system,
                system_is_text=is_text,
                tools=self._reader.tools(request.config, seen.essential),
                other_tools=other_tools(request.config),
                contents=live,
                positions=positions,
                human=positions.index(human) if human is not None else None,
            ),
            window=_window(policy, model),
            output_tokens=_output_limit(request),
            step=planned.step,
            validity=planned.validity,
            invalid_reason=planned.invalid_reason,
            candidates=unique(map(addressed, candidates)),
            memory_encoder=encoder,
            epoch=aligned.epoch,
            first_call=opens,
            rewritten=aligned.rewritten or _rewrote(call, stored),
            previous=last.pack.sent if last is not None else None,
            previous_pack=last.name if last is not None else "",
            cached_price=_USUAL_CACHED_PRICE if cached is None else round(cached, 4),
            can_mask=_can_mask(request),
            can_find=can_find(request),
            can_read=can_read,
            passthrough_reason=untouched,
            problems=tuple(problems),
            anchors=anchors,
            asked=asked_of(call.state, identity.session),
            evidence=readings,
            tools_kept=records.tools(),
        )
        seen = replace(seen, known=known, tools=mirror(call.tools))
        return ReadCall(call=call, source=source, history=raw, epoch=stored, seen=seen)

    def _live(
        self, raw: Sequence[types.Content], epoch: Epoch, model: str, authors: Authors, *, alone: bool
    ) -> tuple[epochs.Aligned, tuple[Known, ...], tuple[Content, ...]]:
        """The epoch with its boundary found again, and the contents that are still sent, as they were read and as their
        authors'.

        Where the host took contents away so that an exchange would be torn, everything is live again.

        Args:
            alone: whether none of the contents were in a request before; no boundary is looked for then.
        """
        if alone and epoch.number:
            aligned = epochs.reset(epoch, len(raw), "")
        else:
            aligned = epochs.align(epoch, len(raw), lambda at: self.read(raw[at], model).digest)
        known, live = self._read(raw, aligned.positions, model, authors)
        if not aligned.epoch.cut_count or not torn(live):
            return aligned, known, live
        reset = epochs.reset(epoch, len(raw), "the host rewrote history inside an exchange")
        return reset, *self._read(raw, range(len(raw)), model, authors)

    def _read(
        self, raw: Sequence[types.Content], positions: Sequence[int], model: str, authors: Authors
    ) -> tuple[tuple[Known, ...], tuple[Content, ...]]:
        read = tuple(self._reader.known(raw[at], model) for at in positions)
        return read, tuple(authors.attributed(raw[at], one.frozen) for at, one in zip(positions, read, strict=True))


def _seen(call: Call) -> tuple[Seen, Preloaded | None]:
    contents = call.request.contents
    block = preloaded(contents, call.context.user_content)
    seen = Seen(
        events=len(call.context.session.events),
        contents=len(contents) - (block is not None),
        marks=marks_of(call.state),
        essential=essential_names(call.request),
    )
    return seen, block


def identity_of(call: Call) -> Identity:
    """Whose model call this is; the call's number is read off the session's events."""
    invocation, events = call.invocation.invocation_id, call.context.session.events
    app, user, session, branch, agent = call.key
    number = 1
    for event in reversed(events):
        if event.invocation_id != invocation:
            break
        number += _is_answer(event, agent, branch)
    last = events[-1] if events else None
    return Identity(
        app=app,
        user=user,
        session=session,
        invocation=invocation,
        agent=agent,
        branch=branch,
        call=number,
        last_event_id=last.id if last is not None else "",
        last_event_time=last.timestamp if last is not None else 0.0,
    )


def _has_callers_plan(call: Call) -> bool:
    """Whether the session is that of an agent that runs as a tool, with the plan of the agent that called it.

    The plan is its own where it made one, or has claimed the step that the plan is at.
    """
    if type(call.invocation.artifact_service).__name__ != _CHILDS_ARTIFACTS or call.state.get("plan") is None:
        return False
    if any(key in event.actions.state_delta for event in call.context.session.events for key in ("plan", "tools")):
        return False
    plan = read_plan(call.state.get("plan"), Problems()).plan
    step = current_step(plan, call.context.agent_name) if plan is not None else None
    return step is None or step.claimed_by != call.context.agent_name


def _loads_part(call: Call) -> str:
    """How much the host loads of a session's events, in words; empty where it has them all."""
    loads = getattr(call.invocation.run_config, "get_session_config", None)
    most, after = getattr(loads, "num_recent_events", None), getattr(loads, "after_timestamp", None)
    if most is not None:
        # The message that began this invocation is appended to those that were loaded.
        before = sum(event.invocation_id != call.invocation.invocation_id for event in call.context.session.events)
        if before >= most:
            return f"only the last {most} events"
    return "only later events" if after is not None else ""


def _headless(call: Call, contents: Sequence[types.Content]) -> int:
    """How many contents stand first without the user message that they answer, since the host did not load it.

    Strict providers refuse a request that begins with them. What ADK compacted stands first by right.
    """
    if not _loads_part(call) or any(event.actions.compaction for event in call.context.session.events):
        return 0
    asked = (
        at
        for at, content in enumerate(contents)
        if content.role == "user" and not any(part.function_response for part in content.parts or ())
    )
    return next(asked, 0)


def _unloaded(call: Call, contents: Sequence[types.Content]) -> list[str]:
    """What is missing where the host loads a part of a session's events."""
    part = _loads_part(call)
    if not part:
        return []
    missing = [f"the host loaded {part}: nothing before them is sent or recalled"]
    if (headless := _headless(call, contents)) and not call.passthrough_reason:
        missing.append(f"{headless} contents are not sent: the host did not load the user message before them")
    return missing


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


def _rewrote(call: Call, epoch: Epoch) -> bool:
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


def _is_answer(event: Event, agent: str, branch: str) -> bool:
    """Whether an event is what a model call of this agent gave."""
    if event.content is not None:
        spoke = event.content.role == "model"
    else:
        spoke = event.error_code is not None or event.usage_metadata is not None or event.finish_reason is not None
    return spoke and event.author == agent and (event.branch or "") == branch and not event.partial


def _next_identity(call: Call, before: Identity, events: int) -> Identity | None:
    """The identity of a call that follows another, None where anything but plain events came between."""
    session = call.context.session
    if call.invocation.invocation_id != before.invocation or len(session.events) <= events:
        return None
    asked: set[str | None] = set()
    number = before.call
    for event in session.events[events:]:
        actions = event.actions
        plain = event.invocation_id == before.invocation and event.author == before.agent and not event.partial
        if (
            not plain
            or (event.branch or "") != before.branch
            or actions.compaction
            or actions.rewind_before_invocation_id
            or is_marked(event)
        ):
            return None
        asked |= {requested.id for requested in event.get_function_calls()}
        if not asked.issuperset(response.id for response in event.get_function_responses()):
            return None
        number += _is_answer(event, before.agent, before.branch)
    last = session.events[-1]
    return replace(before, call=number, last_event_id=last.id, last_event_time=last.timestamp)


async def _preferences(call: Call, problems: list[str]) -> tuple[Candidate, ...]:
    """What the user wants always, as our own service keeps it: a search for something else would not find it."""
    service, session, settings = call.invocation.memory_service, call.context.session, call.policy.retrieval
    if not isinstance(service, HybridMemoryService) or settings.memory_k == 0:
        return ()
    try:
        found = await within(settings.memory_timeout_seconds, service.preferences(session.app_name, session.user_id))
    except Exception as error:
        problems.append(f"preferences could not be read: {type(error).__name__}")
        return ()
    return tuple(
        memory_candidate(memory.text, author=None, timestamp=memory.timestamp, name=memory.name, standing=True)
        for memory in found
    )


async def _search(call: Call, problems: list[str]) -> tuple[tuple[Candidate, ...], str]:
    """The app's memories for request and step, under a deadline, and what compared their meanings where they have a
    score. A failure is noted and costs nothing else."""
    query = " ".join(filter(None, (words_of(call.context.user_content), call.planned.step.text)))
    settings = call.policy.retrieval
    if not query or settings.memory_k == 0:
        return (), ""
    try:
        return await within(settings.memory_timeout_seconds, _found(call, query, problems))
    except Exception as error:
        problems.append(f"memory search failed: {type(error).__name__}")
        return (), ""


async def _found(call: Call, query: str, problems: list[str]) -> tuple[tuple[Candidate, ...], str]:
    """What the app's memory service finds; one of ours gives as many as may enter, and its scores count.

    Those are the best, as many as their room could take were a token five characters long, and ``memory_k`` at least.
    """
    service, session, settings = call.invocation.memory_service, call.context.session, call.policy.retrieval
    window = _window(call.policy, call.model)
    room = int(MEMORY_FILL * window) * _TOKEN_CHARACTERS
    if not isinstance(service, HybridMemoryService):
        entries = (await call.context.search_memory(query)).memories
        if len(entries) > MOST_MEMORIES:
            problems.append(f"memory search: only the first {MOST_MEMORIES} of {len(entries)} entries were looked at")
        return tuple(found_memories(entries, room, preferences=True)), ""
    best = await service.find(session.app_name, session.user_id, query, settings.most_memories(window))
    candidates: list[Candidate] = []
    for remembered in best:
        if room <= 0 and len(candidates) >= settings.memory_k:
            break
        memory = remembered.memory
        room -= len(memory.text) + len(memory.author or "") + _LINE_CHARACTERS
        candidates.append(
            memory_candidate(
                memory.text,
                author=memory.author,
                timestamp=memory.timestamp,
                name=memory.name,
                similarity=similarity(remembered.score),
                standing=is_preference(memory.metadata),
            )
        )
    return tuple(candidates), service.memories.encoder if candidates else ""


def _window(policy: PackPolicy, model: str) -> int:
    """The policy's word where it has one, else what is known of the model."""
    return policy.max_input_tokens or policy.windows.get(model) or model_window(model)


def _output_limit(request: LlmRequest) -> int | None:
    """The answer's limit where answer and input share one window."""
    limit = request.config.max_output_tokens if request.config is not None else None
    return limit if limit and shares_window(request.model) else None


def _can_mask(request: LlmRequest) -> bool:
    return "gemini" in (request.model or "") and (request.config is None or request.config.tool_config is None)


def _tool_results(records: Records, planned: Planned) -> tuple[Candidate, ...]:
    """What tools gave to the current step and is kept whole elsewhere, as evidence of that step."""
    if planned.validity == "unplanned":
        return ()
    recorded = {candidate.uri for candidate in planned.candidates}
    results: list[Candidate] = []
    for record in records.of_step(planned.step.key):
        if record.uri in recorded:
            continue
        text = f"{record.source}: {record.summary or f'{record.media_type}, {size_words(record.size_bytes)}'}"
        results.append(
            Candidate(
                id=f"result_{evidence_key(record.uri)}",
                layer="evidence",
                source=f"{TOOL}{record.source}",
                text=text,
                digest=hash_text(f"{record.uri}\n{text}"),
                time=record.time,
                uri=record.uri,
                content_hash=record.digest,
            )
        )
    return tuple(results)
