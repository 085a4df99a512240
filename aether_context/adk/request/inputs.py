"""What a pack is built from, read off ADK's request, session and services."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cachetools import LRUCache
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from aether_context.adk.bounds import within
from aether_context.adk.request.marks import asked_of, has_rules, is_marked, marked, marks_of, ruled
from aether_context.adk.request.reader import (
    MOST_MEMORIES,
    Authors,
    Known,
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
)
from aether_context.adk.request.tool_search import can_find
from aether_context.adk.services.memory import HybridMemoryService
from aether_context.adk.session import epochs
from aether_context.adk.session.records import Records, SessionRecords
from aether_context.canonical import hash_text
from aether_context.conversation import ranked
from aether_context.conversation.turns import torn
from aether_context.evidence import EvidenceRecord, evidence_key
from aether_context.evidence.record import READ, SEARCH, size_words
from aether_context.memory import Remembered
from aether_context.pack import Anchor, Candidate, Content, Epoch, Identity, Pack, PackInput, Request
from aether_context.packing.payload import TOOL
from aether_context.policy import MEMORY_FILL, PackPolicy, RetrievalSettings
from aether_context.retrieval.call_indexes import similarity
from aether_context.state import Planned, Problems, current_step, read_plan, read_state, unique
from aether_context.text.spellings import is_preference
from aether_context.tokens.model_limits import model_window
from aether_context.usage.prices import cached_share

_KEYS = ("plan", "tools", "knowledge")
_MOST_PLANS = 256
_CHILDS_ARTIFACTS = "ForwardingArtifactService"
"""The artifact service that ADK gives to agents that run as tools, and to nothing else."""
_USUAL_CACHED_PRICE = 0.1
_TOKEN_CHARACTERS, _LINE_CHARACTERS = 5, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One model call: ADK's request and contexts. ADK copies the invocation context at each look, so one is kept."""

    context: CallbackContext
    request: LlmRequest
    invocation: InvocationContext

    @classmethod
    def of(cls, context: CallbackContext, request: LlmRequest) -> Call:
        return cls(context=context, request=request, invocation=context.get_invocation_context())

    @property
    def state(self) -> Mapping[str, Any]:
        """The session's state as it is; ADK's own view copies every value that is read."""
        return self.context.session.state

    @property
    def tools(self) -> list[Any]:
        """The tools that the request declares."""
        return (self.request.config.tools if self.request.config is not None else None) or []

    @property
    def is_live(self) -> bool:
        return self.invocation.live_request_queue is not None

    @property
    def passthrough_reason(self) -> str:
        """Why the request must not be touched; empty where it may be."""
        if self.is_live:
            return "live mode: the request was left alone"
        if self.request.previous_interaction_id:
            return "interactions API: only the current turn is sent, the request was left alone"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What of ADK's objects the next call is compared with.

    ``events`` is the session's number of events, ``contents`` the number of contents without preloaded memories.
    ``known`` are those that are sent, as they were read. ``marks`` stands for what the session's state says of anchors
    and cuts by hand. ``tools`` mirrors the tools that the request came with, ``essential`` names those that are never
    narrowed away.
    """

    events: int
    contents: int
    marks: object
    essential: frozenset[str]
    known: tuple[Known, ...] = ()
    tools: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Last:
    """The latest pack of one agent in one session.

    ``stored`` is the epoch as it was put into the session's state; ``counter`` is the identity of the token counter;
    ``summarizer`` is what a model's summaries for it cost: requests and tokens.
    """

    name: str
    pack: Pack
    policy: PackPolicy
    planned: Planned
    stored: Mapping[str, Any] | None
    seen: Seen
    counter: str
    summarizer: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The input, ADK's contents in their order, and the epoch as the session's state holds it.

    ``history`` are all contents, those that are not sent any more included, preloaded memories aside.
    """

    source: PackInput
    contents: list[types.Content]
    history: Sequence[types.Content]
    epoch: Epoch
    seen: Seen


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
        return self._reader.content(content, model)

    def planned(self, call: Call) -> Planned:
        """The plan, tools and knowledge in the session's state.

        A plan that ADK copied there for an agent that runs as a tool is its caller's, and so are its tools.
        """
        agent = call.context.agent_name
        keys = ("knowledge",) if _has_callers_plan(call, agent) else _KEYS
        state = {key: call.state.get(key) for key in keys}
        key = (agent, structure(state))
        with self._lock:
            found = self._plans.get(key)
            if found is None:
                found = self._plans[key] = read_state(state, worker=agent)
        return found

    def grown(self, call: Call, planned: Planned, policy: PackPolicy, last: Last) -> Gathered | None:
        """The input where this request is the last one with contents appended, None where that is not certain.

        It is certain where the session has only gained plain events of this invocation whose responses answer calls
        among them, nothing else of the request has changed, and the contents that were sent are what they were.
        Declarations are compared by what they say: ADK wraps a plain function in a new tool at each call.
        """
        before, pack, request = last.seen, last.pack, call.request
        source = pack.source
        raw = request.contents
        if (
            last.policy is not policy
            or last.planned != planned
            or source.request.model != (request.model or "")
            or source.request.system != system_text(request.config)[0]
            or source.output_tokens != _output_limit(request)
            or source.can_mask != _can_mask(request)
            or source.can_find != can_find(request)
            or call.passthrough_reason
            or not epochs.holds(call.state, source.identity, last.stored)
        ):
            return None
        identity = _next_identity(call, source.identity, before.events)
        seen, block = self._seen(call)
        if identity is None:
            return None
        if seen.essential != before.essential or before.tools != call.tools:
            return None
        if seen.marks != before.marks or has_rules():
            return None
        if seen.contents <= before.contents or (block is not None and block.position < before.contents):
            return None
        held = source.request
        if held.positions[-1:] != (before.contents - 1,):
            return None
        if not all(known.stands(raw[at]) for known, at in zip(before.known, held.positions, strict=True)):
            return None
        positions = range(before.contents, seen.contents)
        added = tuple(self._reader.known(raw[at], held.model) for at in positions)
        seen = replace(seen, known=before.known + added, tools=before.tools)
        grown = replace(
            source,
            identity=identity,
            request=replace(
                source.request,
                contents=source.request.contents + tuple(one.frozen for one in added),
                positions=source.request.positions + tuple(positions),
            ),
            epoch=pack.epoch,
            first_call=False,
            rewritten=False,
            previous=pack.sent,
            previous_pack=last.name,
            problems=(*planned.problems, *_unloaded(call, raw)),
            summaries={},
            evidence=(records := self._records.of(call.context)).readings(),
            tools_kept=records.tools(),
        )
        contents = [raw[at] for at in grown.request.positions]
        return Gathered(source=grown, contents=contents, history=raw, epoch=pack.epoch, seen=seen)

    async def gather(self, call: Call, planned: Planned, policy: PackPolicy, last: Last | None) -> Gathered:
        """The input of any request."""
        request = call.request
        identity = identity_of(call)
        untouched = call.passthrough_reason
        seen, block = self._seen(call)
        raw = [content for at, content in enumerate(request.contents) if block is None or at != block.position]
        stored = epochs.load(call.state, identity)
        authors = Authors(call.context.session.events, call.context.user_content)
        model = request.model or ""
        human = human_index(raw, call.context.user_content)
        answered = None
        if human is not None:
            answered = authors.attributed(raw[human], self._reader.content(raw[human], model))
        alone = _shown_alone(call) and _opens(identity, stored, answered)
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
        remembers = call.invocation.memory_service is not None
        problems = [*planned.problems, aligned.note] if aligned.note else list(planned.problems)
        problems += _unloaded(call, raw)
        anchors = self._anchors(call, live, positions, policy, problems)
        before, encoder = _found_before(identity, last)
        candidates = planned.candidates + (block.memories if block is not None else ()) + before
        searches = identity.call == 1 or (opens and not _goes_on(identity, last))
        if searches and remembers and not untouched:
            candidates += await _preferences(call, policy, problems)
        if searches and remembers and block is None and not untouched:
            found = await _search(call, planned, policy, problems)
            candidates, encoder = candidates + found, _memory_encoder(call, found)
        records = self._records.of(call.context)
        readings = records.readings()
        candidates += _tool_results(records, planned)
        reads = not {READ, SEARCH}.isdisjoint(seen.essential)
        hashes = {record.uri: record.digest for record in records.by_digits().values()}
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
            candidates=unique(_known(one, readings, hashes) if reads else _unaddressed(one) for one in candidates),
            memory_encoder=encoder,
            epoch=aligned.epoch,
            first_call=opens,
            rewritten=aligned.rewritten or _rewrote(call, stored),
            previous=last.pack.sent if last is not None else None,
            previous_pack=last.name if last is not None else "",
            cached_price=_cached_price(model, identity.last_event_time),
            can_mask=_can_mask(request),
            can_find=can_find(request),
            can_read=reads,
            passthrough_reason=untouched,
            problems=tuple(problems),
            anchors=anchors,
            asked=asked_of(call.state, identity.session),
            evidence=readings,
            tools_kept=records.tools(),
        )
        contents = [raw[at] for at in positions]
        seen = replace(seen, known=known, tools=mirror(call.tools))
        return Gathered(source=source, contents=contents, history=raw, epoch=stored, seen=seen)

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
            aligned = epochs.align(epoch, len(raw), lambda at: self._reader.content(raw[at], model).digest)
        known, live = self._read(raw, aligned.positions, model, authors)
        if not aligned.epoch.cut_count or not torn(live):
            return aligned, known, live
        reset = epochs.reset(epoch, len(raw), "the host rewrote history inside an exchange")
        return reset, *self._read(raw, range(len(raw)), model, authors)

    def _read(
        self, raw: Sequence[types.Content], positions: Sequence[int], model: str, authors: Authors
    ) -> tuple[tuple[Known, ...], tuple[Content, ...]]:
        known = tuple(self._reader.known(raw[at], model) for at in positions)
        return known, tuple(authors.attributed(raw[at], one.frozen) for at, one in zip(positions, known, strict=True))

    def _anchors(
        self,
        call: Call,
        contents: tuple[Content, ...],
        positions: Sequence[int],
        policy: PackPolicy,
        problems: list[str],
    ) -> tuple[Anchor, ...]:
        """The contents that marks and registered rules make anchors."""
        settings = policy.conversation.anchors
        model = call.request.model or ""
        found = marked(call.context.session, contents, positions, settings, lambda one: self.read(one, model))
        return ranked([*found, *ruled(contents, positions, settings, problems)])

    def _seen(self, call: Call) -> tuple[Seen, Preloaded | None]:
        request = call.request
        block = preloaded(request.contents, call.context.user_content)
        seen = Seen(
            events=len(call.context.session.events),
            contents=len(request.contents) - (block is not None),
            marks=marks_of(call.state),
            essential=essential_names(request),
        )
        return seen, block


def scope_of(context: CallbackContext, branch: str | None) -> epochs.AgentKey:
    """What a process keeps things by: app, user, session, branch, agent."""
    session = context.session
    return (session.app_name, session.user_id, session.id, branch or "", context.agent_name)


def identity_of(call: Call) -> Identity:
    """Whose model call this is; the call's number is read off the session's events."""
    invocation, events = call.invocation.invocation_id, call.context.session.events
    app, user, session, branch, agent = scope_of(call.context, call.invocation.branch)
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


def _has_callers_plan(call: Call, agent: str) -> bool:
    """Whether the session is that of an agent that runs as a tool, with the plan of the agent that called it.

    The plan is its own where it made one, or has claimed the step that the plan is at.
    """
    if type(call.invocation.artifact_service).__name__ != _CHILDS_ARTIFACTS or call.state.get("plan") is None:
        return False
    if any(key in event.actions.state_delta for event in call.context.session.events for key in ("plan", "tools")):
        return False
    plan = read_plan(call.state.get("plan"), Problems()).plan
    step = current_step(plan, agent) if plan is not None else None
    return step is None or step.claimed_by != agent


def _loads_part(call: Call) -> str:
    """How much the host loads of a session's events, in words; empty where it has them all."""
    config = call.invocation.run_config
    loads = getattr(config, "get_session_config", None)
    if loads is None:
        return ""
    most, after = getattr(loads, "num_recent_events", None), getattr(loads, "after_timestamp", None)
    # The message that began this invocation is appended to those that were loaded.
    before = sum(one.invocation_id != call.invocation.invocation_id for one in call.context.session.events)
    if most is not None and before >= most:
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


def _shown_alone(call: Call) -> bool:
    """Whether ADK shows an agent nothing but what it answers: its epochs last no longer than that."""
    return getattr(call.invocation.agent, "include_contents", "default") == "none"


def _opens(identity: Identity, epoch: Epoch, answered: Content | None) -> bool:
    """Whether a request is the first one to what it answers.

    That is an invocation's first one, and each that answers what another agent has handed over since: an agent in a
    loop may be shown nothing but the last turn of the agent before it.

    Args:
        answered: the final human message.
    """
    if identity.call == 1 or answered is None or not answered.agent:
        return identity.call == 1
    return not any((one.of, one.invocation) == (answered.digest, identity.invocation) for one in epoch.payloads)


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
            posted |= {one.id for one in event.get_function_responses()}
        posted -= {one.id for one in event.get_function_calls()}
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
        asked |= {one.id for one in event.get_function_calls()}
        if not asked.issuperset(one.id for one in event.get_function_responses()):
            return None
        number += _is_answer(event, before.agent, before.branch)
    last = session.events[-1]
    return replace(before, call=number, last_event_id=last.id, last_event_time=last.timestamp)


async def _preferences(call: Call, policy: PackPolicy, problems: list[str]) -> tuple[Candidate, ...]:
    """What the user wants always, as our own service keeps it: a search for something else would not find it."""
    service, session = call.invocation.memory_service, call.context.session
    if not isinstance(service, HybridMemoryService) or policy.retrieval.memory_k == 0:
        return ()
    try:
        found = await within(
            policy.retrieval.memory_timeout_seconds, service.preferences(session.app_name, session.user_id)
        )
    except Exception as error:
        problems.append(f"preferences could not be read: {type(error).__name__}")
        return ()
    return tuple(
        memory_candidate(one.text, author=None, timestamp=one.timestamp, name=one.name, standing=True) for one in found
    )


async def _search(call: Call, planned: Planned, policy: PackPolicy, problems: list[str]) -> tuple[Candidate, ...]:
    """The app's memories for request and step, under a deadline; a failure is noted and costs nothing else."""
    asked = call.context.user_content
    wish = " ".join(part.text for part in (asked.parts if asked is not None else None) or () if part.text)
    query = " ".join(piece for piece in (wish, planned.step.text) if piece)
    if not query or policy.retrieval.memory_k == 0:
        return ()
    try:
        return await within(policy.retrieval.memory_timeout_seconds, _found(call, query, policy, problems))
    except Exception as error:
        problems.append(f"memory search failed: {type(error).__name__}")
        return ()


async def _found(call: Call, query: str, policy: PackPolicy, problems: list[str]) -> tuple[Candidate, ...]:
    """What the app's memory service finds; one of ours gives as many as may enter, and its scores count."""
    service, session = call.invocation.memory_service, call.context.session
    if not isinstance(service, HybridMemoryService):
        found = await call.context.search_memory(query)
        entries = found.memories
        if len(entries) > MOST_MEMORIES:
            problems.append(f"memory search: only the first {MOST_MEMORIES} of {len(entries)} entries were looked at")
        room = int(MEMORY_FILL * _window(policy, call.request.model or "")) * _TOKEN_CHARACTERS
        return tuple(found_memories(entries, room, preferences=True))
    window = _window(policy, call.request.model or "")
    most = policy.retrieval.most_memories(window)
    ours = await service.find(session.app_name, session.user_id, query, most)
    return tuple(map(_scored, _fitting(ours, policy.retrieval, window)))


def _fitting(found: Iterable[Remembered], settings: RetrievalSettings, window: int) -> Iterator[Remembered]:
    """The best, as many as their room could take were a token five characters long, and ``memory_k`` at least."""
    room = int(MEMORY_FILL * window) * _TOKEN_CHARACTERS
    for at, one in enumerate(found):
        if room <= 0 and at >= settings.memory_k:
            return
        room -= len(one.memory.text) + len(one.memory.author or "") + _LINE_CHARACTERS
        yield one


def _scored(found: Remembered) -> Candidate:
    memory = found.memory
    return memory_candidate(
        memory.text,
        author=memory.author,
        timestamp=memory.timestamp,
        name=memory.name,
        similarity=similarity(found.score),
        standing=is_preference(memory.metadata),
    )


def _window(policy: PackPolicy, model: str) -> int:
    """The policy's word where it has one, else what is known of the model."""
    return policy.max_input_tokens or policy.windows.get(model) or model_window(model).input_tokens


def _output_limit(request: LlmRequest) -> int | None:
    """The answer's limit where answer and input share one window."""
    limit = request.config.max_output_tokens if request.config is not None else None
    return limit if limit and model_window(request.model).shared else None


def _cached_price(model: str, time: float) -> float:
    """What cached input costs as a share of other input; where no list says, what most providers take."""
    found = cached_share(model, time)
    return _USUAL_CACHED_PRICE if found is None else round(found, 4)


def _can_mask(request: LlmRequest) -> bool:
    return "gemini" in (request.model or "") and (request.config is None or request.config.tool_config is None)


def _memory_encoder(call: Call, found: Sequence[Candidate]) -> str:
    """What compared the meanings of memories that came with a score."""
    service = call.invocation.memory_service
    return service.memories.encoder if found and isinstance(service, HybridMemoryService) else ""


def _known(candidate: Candidate, readings: Mapping[str, str], hashes: Mapping[str, str]) -> Candidate:
    """A candidate with what the session's records say of its address: a later reading, and the hash of the whole."""
    if not candidate.uri:
        return candidate
    whole = candidate.content_hash or hashes.get(candidate.uri, "")
    return replace(candidate, superseded_by=readings.get(candidate.uri, ""), content_hash=whole)


def _unaddressed(candidate: Candidate) -> Candidate:
    """A candidate for a request that declares no reader: without an address that only a reader resolves."""
    return replace(candidate, uri="") if evidence_key(candidate.uri) is not None else candidate


def _tool_results(records: Records, planned: Planned) -> tuple[Candidate, ...]:
    """What tools gave to the current step and is kept whole elsewhere, as evidence of that step."""
    if planned.validity == "unplanned":
        return ()
    recorded = {one.uri for one in planned.candidates}
    return tuple(_tool_result(record) for record in records.of_step(planned.step.key) if record.uri not in recorded)


def _tool_result(record: EvidenceRecord) -> Candidate:
    said = record.summary or f"{record.media_type}, {size_words(record.size_bytes)}"
    text = f"{record.source}: {said}"
    return Candidate(
        id=f"result_{evidence_key(record.uri)}",
        layer="evidence",
        source=f"{TOOL}{record.source}",
        text=text,
        digest=hash_text(f"{record.uri}\n{text}"),
        time=record.time,
        uri=record.uri,
        content_hash=record.digest,
    )


def _goes_on(identity: Identity, last: Last | None) -> bool:
    """Whether the request before was one of the same invocation."""
    return last is not None and last.pack.identity.invocation == identity.invocation


def _found_before(identity: Identity, last: Last | None) -> tuple[tuple[Candidate, ...], str]:
    """The memories that an earlier call of this invocation found, and what compared their meanings."""
    if last is None or not _goes_on(identity, last):
        return (), ""
    source = last.pack.source
    return tuple(one for one in source.candidates if one.source == "memory"), source.memory_encoder
