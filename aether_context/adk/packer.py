"""The one place where packs meet ADK: read, enrich, build, write, record, and catch whatever fails."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.acceptance import ACCEPTANCE, AcceptanceCheck, Reviewer
from aether_context.adk.artifact_tools import Readers, declare
from aether_context.adk.bounds import Ended, Waits, failure, in_thread, take_turn, within
from aether_context.adk.call import (
    AgentKey,
    FirstTry,
    ModelCall,
    Position,
    PreparedCall,
    PreviousCall,
    agent_key_of,
    call_of,
)
from aether_context.adk.evidence import Offloader
from aether_context.adk.models.gemini import local_tokenizer
from aether_context.adk.models.texts import ModelSummarizer
from aether_context.adk.overflow import Overflow, overflow_of
from aether_context.adk.request.gather import Gatherer, last_unread
from aether_context.adk.request.history import LENGTH, live_events
from aether_context.adk.request.reader import shown
from aether_context.adk.request.recall import Recall
from aether_context.adk.request.writer import mark_prefix, rewritten, uploaded_anew, write
from aether_context.adk.services.memory import HybridMemoryService
from aether_context.adk.services.recorder import Mirror, Recorder
from aether_context.adk.session import SessionRecords, save_epoch
from aether_context.adk.tracing import PackSpan, count_cached
from aether_context.adk.usage import Calibrations, Ledgers, note, reported
from aether_context.adk.windows import STATE_KEY as WINDOWS
from aether_context.adk.windows import Limits, Window, Windows, served_models
from aether_context.conversation import strategies_of
from aether_context.conversation.turns import is_human
from aether_context.errors import BudgetExceededError, PolicyError, StepTooLarge, TokenCountingError
from aether_context.pack import METADATA, Pack, PackInput, is_unseen, medium_place
from aether_context.packing import build_pack, turns_to_find
from aether_context.policy import PackPolicy
from aether_context.redaction import MaskedLogs
from aether_context.state import Plan
from aether_context.store import PackStore, pack_id
from aether_context.store.layout import manifest_uri
from aether_context.store.masking import MaskedContents, masked_input
from aether_context.store.packs import DEFAULT_STORE
from aether_context.tokens import Counters, Pick, counter_for
from aether_context.tokens.cache import TokenCache
from aether_context.tokens.counters import SharedLRU
from aether_context.tokens.model_limits import model_window

logger = logging.getLogger("aether_context")

OnError: TypeAlias = Literal["passthrough", "raise"]
_T = TypeVar("_T")

_MOST_CALLS = 512
_MOST_TOLD = 8
_MOST_UNKEPT = 20
_MOST_WARNINGS = 1_000
_INSTANT_CHARACTERS = 100_000
_INSTANT_TOOLS = 50
_COUNTING_SECONDS = 10.0
_MOST_FORK_SECONDS = 5.0
READ_TOKENS = 2_000
"""The most that one call of ``read_artifact`` or ``search_artifact`` answers with."""
_First: TypeAlias = tuple[tuple[str, ...], LlmRequest | None, "RequestPacker | None"]
_FIRST: ContextVar[_First] = ContextVar("aether_context_first", default=((), None, None))
"""Which agent is at work in which invocation, its latest request, and the packer that came to that first."""
_SIGNED_THOUGHT = "redact_prompt: a signed thought holds what is masked, and is sent as the model wrote it"
_SLIDING_TOKENS = "AETHER_CONTEXT_SLIDING_TOKENS"


class InvalidPlan(PolicyError):
    """The session's plan lacks what a pack needs, and the policy's ``on_invalid`` is ``raise``."""


class Failures:
    """Reports failures, each kind of it once; under ``raise`` they are the caller's."""

    def __init__(self, on_error: OnError) -> None:
        if on_error not in ("passthrough", "raise"):
            raise PolicyError(f"on_error = {on_error!r}: it is 'passthrough' or 'raise'", field="on_error")
        self._raises = on_error == "raise"
        self._warnings: set[str] = set()

    def caught(self, raised: BaseException, about: str = "") -> None:
        """Reports an error that was caught, or raises it again; called where it is handled."""
        error = failure(raised)
        if self._raises:
            raise error
        self.report(f"{about}{type(error).__name__}: {error}", error)

    def guarded(self, act: Callable[[], _T], otherwise: _T) -> _T:
        """Returns the result of accounting; where that fails, ``otherwise``, and the request is packed all the same."""
        try:
            return act()
        except BudgetExceededError:
            raise
        except Exception as error:
            self.caught(error)
            return otherwise

    def report(self, reason: str, error: Exception | None = None) -> None:
        self.warn_once(f"a request could not be packed in full: {reason}", error)

    def warn_once(self, message: str, error: Exception | None = None) -> None:
        if message not in self._warnings and len(self._warnings) < _MOST_WARNINGS:
            self._warnings.add(message)
            # Names of tools and texts of errors come from others: none may begin a line of its own.
            line = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in message)
            logger.warning("%s", line, exc_info=error)


class RequestPacker:
    """Packs the requests of one plugin or one set of callbacks. Safe to share between sessions and event loops.

    Its arguments are those of `ContextPackPlugin`, and:

    Args:
        recorder: writes to the store; None makes one.
        asks_models: whether a model writes summaries; where none does, the extractive ones stand.
    """

    def __init__(
        self,
        policy: PackPolicy | str | Path | None = None,
        store: PackStore | str | None = None,
        on_error: OnError = "passthrough",
        summarizer: BaseLlm | None = None,
        checks: Sequence[AcceptanceCheck] = (),
        critic: BaseLlm | None = None,
        mirror_artifacts: bool = False,
        recorder: Recorder | None = None,
        asks_models: bool = True,
    ) -> None:
        self._failures = Failures(on_error)
        self.policy = policy = _own_policy(policy, summarizer, critic)
        self._policy_of = lru_cache(_MOST_CALLS)(
            lambda agent, profile, level: policy.for_agent(agent, profile).economical(level)
        )
        if not isinstance(store, PackStore):
            store = PackStore(store or os.environ.get("AETHER_CONTEXT_STORE") or DEFAULT_STORE)
        self.store = store
        for agent in ("", *policy.agents):
            strategies_of(policy.for_agent(agent).conversation)
        self._mirror = Mirror(self._failures.warn_once)
        self._recorder = recorder or Recorder(store, self._mirror.put if mirror_artifacts else None)
        self._calibrations = Calibrations(self._recorder.store, self._recorder.later)
        self._asks_models = asks_models
        self._sent_contents = MaskedContents(to_send=True)
        if policy.redact and not any(getattr(known, "mask", None) is policy.mask for known in logger.filters):
            logger.addFilter(MaskedLogs(policy.mask))
        self._summarizer = ModelSummarizer(self._recorder.store, self._recorder.later, summarizer)
        for agent in ("", *policy.agents):
            self._summarizer.check(policy.for_agent(agent).compress.summarizer)
        self._reviewer = Reviewer(checks, critic)
        self._reviewer.check(policy.acceptance.critic)
        self.ledgers = Ledgers(policy.limits)
        self._records = SessionRecords()
        self._waits = waits = Waits()
        self._gatherer = Gatherer(self._records, waits, self._recorder.store.files if policy.record == "full" else None)
        self._recall = Recall(waits, self._gatherer.reader, self._gatherer.history)
        for agent in ("", *policy.agents):
            self._recall.check(policy.for_agent(agent).retrieval.embedder)
        self._offloader = Offloader(
            policy, self._recorder.store, self._records, self._failures.warn_once, self._failures.caught
        )
        self._readers = Readers(
            self._recorder.store,
            self._records,
            self._room,
            policy.redact,
            lambda context: self._policy_of(context.agent_name, "", 0).sees == "own",
        ).tools
        tokenizers = {"gemini-local": local_tokenizer}
        self._counters = Counters(policy.tokens, clock=time.monotonic, tokenizers=tokenizers)
        self._cache = TokenCache()
        self._windows = Windows()
        self._last: SharedLRU[AgentKey, PreviousCall] = SharedLRU(_MOST_CALLS)
        self._kept: SharedLRU[AgentKey, int] = SharedLRU(_MOST_CALLS)
        self._refused: SharedLRU[str, object] = SharedLRU(_MOST_CALLS)
        self._told: SharedLRU[tuple[str, ...], bool] = SharedLRU(_MOST_CALLS)
        self._first_tries: SharedLRU[AgentKey, FirstTry] = SharedLRU(_MOST_CALLS)
        _warm_up(policy.record != "off", policy.retrieval.recall)

    def __deepcopy__(self, memo: object) -> RequestPacker:
        """Itself: the copy of an agent that has its methods as callbacks shares its packer, as ADK's own copies do."""
        return self

    def last(self, context: CallbackContext) -> PreviousCall | None:
        """The latest pack of an agent in its session, by the contexts of ADK's callbacks."""
        return self._last.get(agent_key_of(context))

    async def flush(self, timeout_seconds: float = 10.0, invocation: InvocationContext | None = None) -> None:
        """Waits until every pack so far is in the store, and those of an invocation mirrored."""
        if not await self._recorder.flush(timeout_seconds):
            self._failures.warn_once(f"packs are still waiting for {self.store.url}")
        if invocation is not None:
            await self._mirror.finish(invocation)

    def _stands_back(self, context: CallbackContext, request: LlmRequest | None = None) -> bool:
        """Tells whether another packer came first to an agent in an invocation: two would undo each other's prefix,
        which they keep in the same session state."""
        key = (*agent_key_of(context), context.invocation_id)
        known, packed, first = _FIRST.get()
        if known != key or (request is not None and packed is not request):
            _FIRST.set((key, request, self))
        elif first is not None and first is not self:
            self._failures.warn_once(
                f"agent {context.agent_name!r} has two packers, ContextPackPlugin or context_pack_callbacks: the "
                f"one for {self.store.url} stands back behind that for {first.store.url}; remove one of the two"
            )
            return True
        return False

    # the callbacks, with ADK's names for what they take: whatever fails below them, the call goes on, since ADK ends a
    # run whose plugin raises

    async def before_model(self, callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
        """Packs one request in place. Returns an answer only where a plan is invalid or a limit would be passed, and
        the policy gives one in the model's place."""
        if self._stands_back(callback_context, llm_request):
            return None
        self._failures.guarded(partial(self._mirror.go_on, callback_context), None)
        first = self._failures.guarded(partial(FirstTry, llm_request), None)
        with PackSpan(callback_context.agent_name, llm_request.model or "") as span:
            try:
                answer = await self._pack(callback_context, llm_request)
                span.error = answer.error_code or "" if answer is not None else ""
                if first is not None:
                    self._first_tries.put(agent_key_of(callback_context), first.packed(llm_request))
            except (InvalidPlan, BudgetExceededError):
                raise
            except StepTooLarge as error:
                if self.policy.on_invalid != "respond":
                    raise
                span.error = "step_too_large"
                answer = _answer(span.error, f"This step does not fit the model's window: {error}.")
            except BaseException as error:
                self._failures.caught(error)
                span.error = type(error).__name__
                answer = await self._pack_plainly(callback_context, llm_request, span.error)
            if answer is None:
                self._failures.guarded(partial(self._report, callback_context, span), None)
            return answer

    async def after_model(self, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        """Records what became of the call, and names the pack in the event's metadata."""
        if self._stands_back(callback_context):
            return
        self._first_tries.pop(agent_key_of(callback_context))  # what is being passed on is not asked for again
        self._failures.guarded(partial(self._mirror.go_on, callback_context), None)
        try:
            if llm_response.partial is not True:
                code, said = llm_response.error_code, llm_response.error_message
                refused = overflow_of(f"{code} {said}", self._sent_text(callback_context)) if code is not None else None
                await self._after(callback_context, llm_response, refused)
        except BaseException as error:
            self._failures.caught(error)

    async def on_model_error(
        self, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Records a call whose model raised. Where that is since the request was too long, it learns from it, and
        returns what the model answers to a smaller pack."""
        if self._stands_back(callback_context):
            return None
        first = self._first_tries.pop(agent_key_of(callback_context))
        try:
            limits = await self._failed(callback_context, llm_request, error)
            if limits is None or first is None or self.last(callback_context) is None:
                return None
            return await self._second_try(callback_context, llm_request, first, limits)
        except BaseException as raised:
            self._failures.caught(raised)
            return None

    def _sent_text(self, context: CallbackContext) -> str:
        """All that the latest request of an agent said, which a refusal may repeat."""
        last = self.last(context)
        if last is None:
            return ""
        tools = (tool.wire for tool in last.pack.source.request.tools)
        parts = (part.text for outgoing in last.pack.contents for part in outgoing.content.parts)
        return "\n".join([last.pack.system, *tools, *parts])

    async def _failed(
        self, context: CallbackContext, request: LlmRequest, error: Exception, *, is_second_try: bool = False
    ) -> Limits | None:
        """Records an error in the place of an answer; returns what a second try has to keep to, None where that would
        not help."""
        refused = overflow_of(error, self._sent_text(context))
        code = "context_window_exceeded" if refused is not None else type(error).__name__
        response = LlmResponse(error_code=code, error_message=str(error))
        return await self._after(context, response, refused, request.model, is_second_try=is_second_try)

    async def _second_try(
        self, context: CallbackContext, sent: LlmRequest, first: FirstTry, limits: Limits
    ) -> LlmResponse | None:
        """Asks the model again with a smaller pack of a refused call; None where there is no answer."""
        request = first.again(sent)
        if request is None:
            self._failures.warn_once(
                "a request was refused as too long and could not be tried again: a callback behind the plugin changed "
                "it; the next call is packed for the smaller window"
            )
            return None
        with PackSpan(context.agent_name, request.model or "") as span:
            answer = await self._pack(context, request, limits)
            if answer is not None:
                return answer
            self._failures.guarded(partial(self._report, context, span), None)
        # ADK's own call is over by then. A third one would be a guess that costs money: most refusals name the limit.
        try:
            return await _asked(context.get_invocation_context(), request)
        except Exception as error:
            await self._failed(context, request, error, is_second_try=True)
            return None

    async def on_run_error(self, invocation: InvocationContext) -> None:
        """Keeps what the run learned before it failed: ADK has dropped the state of the call that did."""
        learned = self._refused.pop(invocation.invocation_id)
        try:
            if learned is not None:
                # By the user, since ADK resumes a session with the agent that spoke last.
                actions = EventActions(state_delta={WINDOWS: learned})
                event = Event(author="user", invocation_id=invocation.invocation_id, actions=actions)
                await invocation.session_service.append_event(invocation.session, event)
        except Exception as error:  # the next call keeps it, then
            logger.info("a learned window is not in the session yet: %s", type(error).__name__)
        await self.flush(invocation=invocation)

    # the way of a model call

    async def _pack(
        self, context: CallbackContext, request: LlmRequest, refused: Limits | None = None
    ) -> LlmResponse | None:
        """Packs a request, a second try within the limits by which its provider ``refused`` the first."""
        await take_turn()
        call = await self._read(context, request, refused)
        if call.planned.validity == "invalid" and call.policy.on_invalid != "warn" and not call.passthrough_reason:
            return _invalid(call)
        enriched: PreparedCall | None = None
        while True:
            try:
                pick = self._counters.ready(call.model)
                if pick is None:
                    pick = await _waited(self.policy.tokens.counter, partial(self._counters.pick, call.model))
                enriched = enriched or await self._enrich(call)
                await take_turn()
                packed = await self._build(enriched, pick)
                break
            except TokenCountingError as error:  # the estimate counts then, all of it: counts of two kinds are no total
                self._counters.fail(call.model, error)
                self._failures.report(str(error))
        # To free ADK's copies of contents that are not sent takes as long as to extend a pack: the event loop lets go
        # of them when it waits for the model.
        asyncio.get_running_loop().call_soon(len, packed[0].history.loaded)
        if packed[0].settled:
            self._failures.guarded(partial(self._keep, packed[0]), None)
        return self._send(*packed)

    def _keep(self, read: PreparedCall) -> None:
        """Queues for the store what the host may not load any more: at an invocation's first call where it loads a part
        of the events, and whenever much of it waits."""
        call, end, kept, most = read.call, read.settled, self._kept.get(read.call.key) or 0, _MOST_UNKEPT
        if (loads := getattr(call.invocation.run_config, "get_session_config", None)) is not None:
            most = 1 if read.source.identity.call == 1 else max(1, min(most, (loads.num_recent_events or 0) // 2))
        if call.policy.record != "full" or (kept <= end < kept + most and not read.source.request.rewritten):
            return
        self._kept.put(call.key, end)
        history, events = self._gatherer.history(call.key), live_events(call.context.session.events)[0]
        history.newest = id(read.history.loaded)
        self._recorder.later(partial(history.save, read.history, events, end, call.policy.mask))

    async def _read(self, context: CallbackContext, request: LlmRequest, refused: Limits | None) -> ModelCall:
        """The call with its plan and policy; extracts stand in its request, and the readers of what they are of.

        The policy is that of the plan's profile, else the one that the own policy gives the agent, else the own; an
        economical one, with a note, where a limit is near.
        """
        call = call_of(context, request, self.policy)
        memories = call.invocation.memory_service
        if self.policy.redact and isinstance(memories, HybridMemoryService) and not memories.memories.mask:
            memories.memories.mask = self.policy.mask
        planned = self._gatherer.planned(call)
        for problem in planned.problems:
            if problem.startswith("state "):
                self._failures.warn_once(problem)
        if planned.invalid_reason:
            self._failures.warn_once(f"the plan is invalid: {planned.invalid_reason}")
        near_limit = self._failures.guarded(partial(self.ledgers.enter, call), None)
        level = near_limit.level if near_limit is not None else 0
        call = self._under(call, self._policy_of(context.agent_name, planned.profile or "", level), refused)
        call = call._replace(planned=planned, last=self.last(context), near_limit=level > 0)
        problems, offloaded_tokens = planned.problems, 0
        if not call.passthrough_reason:
            new, offloaded_tokens = await self._offloader.enter(call, self._readers)
            problems += new
        if near_limit is not None:
            problems += (note(near_limit),)
        if uploads := uploaded_anew(call.request, served_models(call.invocation.agent, call.model)):
            self._failures.warn_once(uploads)
            problems += (uploads,)
        return call._replace(planned=planned._replace(problems=problems), offloaded_tokens=offloaded_tokens)

    def _under(self, call: ModelCall, policy: PackPolicy, refused: Limits | None = None) -> ModelCall:
        """The call under a policy, with the window: the policy's, else the model's own; less where the provider has
        refused as much."""
        agent, session = call.invocation.agent, call.key[:3]
        window = self._windows.window(agent, call.model, policy, call.state, session)
        limits = self._windows.limits(agent, call.model, call.state, session)
        if refused:
            window = min(window, Window(refused.get("tokens", window.tokens), "learned"))
            limits = limits._replace(**{kind: limit for kind, limit in refused.items() if kind != "tokens"})
        return call._replace(policy=policy, window=window, limits=limits, is_second_try=refused is not None)

    async def _enrich(self, call: ModelCall) -> PreparedCall:
        """The call with all that a pack is built from: candidates ranked, turns that earlier cuts took among them."""
        read = await self._offloader.focus(await self._gatherer.gather(call))
        read = await self._recall.rank(read)
        if not read.source.request.first_call or not read.source.epoch.cut_count:
            return read
        return await self._recall.turns(read, read.source.request.positions)

    async def _build(self, read: PreparedCall, pick: Pick) -> tuple[PreparedCall, Pack]:
        """The pack; where it cuts turns, it is built again with those of them that answer the request, and once more
        with what a model writes for it, where the policy names one."""
        policy, last, name = read.call.policy, read.call.last, pick.counter.name
        await self._calibrations.begin(read.source, name, read.call.state)
        if last is None or last.counter != name:
            read = read.with_source(problems=(*read.source.problems, *pick.problems))
        known = self._calibrations.calibration(read.source, name, read.call.context.session.events)
        read = read.with_source(usage=read.source.usage._replace(calibration=known))._replace(counter=name)

        async def build(source: PackInput) -> Pack:
            """A pack, off the event loop where that would be felt: with large contents, with many tools to choose from
            for the first time, or with a provider that is asked."""
            large = sum(len(part.text) for content in source.request.contents[-8:] for part in content.parts)
            many = len(source.request.tools) > _INSTANT_TOOLS and not source.epoch.tools
            is_instant = large <= _INSTANT_CHARACTERS and not many and not policy.redact_prompt

            def made() -> Pack:
                sent = self._sent_input(source, policy)
                return build_pack(sent, policy, counter=pick.counter, cache=self._cache)

            if pick.may_wait:
                return await _waited(pick.name, made)
            return made() if is_instant else await asyncio.to_thread(made)

        # What a cut would leave out is known only once a pack is built; then it is searched, and the pack built again.
        pack = await build(read.source)
        call, source = read.call, read.source
        is_first_cut = pack.epoch.cut_count and not source.host.can_read and not source.host.passthrough_reason
        if (
            is_first_cut
            and self._offloader.reads_past(call, bool(source.host.media))
            and declare(call.request, self._readers)
        ):
            # A cut ends the prefix anyway, so the tools that read what it takes come with it.
            tools = self._gatherer.reader.head(call.request).tools
            read = read.with_source(
                request=source.request._replace(tools=tools), host=source.host._replace(can_read=True)
            )
            pack = await build(read.source)
        if (wanted := turns_to_find(pack)) is not None:
            read = await self._recall.turns(read, *wanted)
            if read.source.search.turns is not None:
                pack = await build(read.source)
        if self._asks_models and pack.to_store.summary_requests:
            pack, cost = await self._summarizer.summarize(pack, policy, build)
            read = read._replace(summary_cost=cost)
        return read, pack

    def _send(self, read: PreparedCall, pack: Pack) -> LlmResponse | None:
        """Writes a pack into the request, and keeps what the next call and the record need of it.

        Returns an answer in the model's place where a limit stands against the call.
        """
        call, source = read.call, pack.source
        refused = self._failures.guarded(lambda: self.ledgers.admit(call, pack), None)
        if refused is not None:
            return refused
        before = call.last
        if before is not None and not source.request.first_call and before.pack.epoch == pack.epoch:
            cutoff = before.cutoff  # nothing came or went where the model begins to read
        else:
            reader = self._gatherer.reader
            content_of = partial(reader.content, model=call.model)
            unread = self._failures.guarded(partial(last_unread, pack, call.context.session.events, content_of), None)
            cutoff = unread.id if unread is not None else ""
            if not cutoff and read.history.first:  # that event is not loaded any more
                cut = self._gatherer.history(call.key).rows[: pack.epoch.cut_count]
                cutoff = next((row.origin.event for row in reversed(cut) if row and row.origin), "")
        if not source.host.passthrough_reason:
            contents = [shown(read.history[at]) for at in read.source.request.positions]
            if call.policy.redact_prompt:
                known = (self._gatherer.reader.content(content, call.model) for content in contents)
                contents = list(map(rewritten, contents, known, source.request.contents))
            write(pack, call.request, contents, call.policy.redact)
            if source.host.unseen != read.epoch.unseen and call.policy.record == "full":
                new_media = [
                    part
                    for position, content in zip(source.request.positions, contents, strict=True)
                    for at, part in enumerate(content.parts or ())
                    if is_unseen(place := medium_place(position, at), source.host.unseen)
                    and not is_unseen(place, read.epoch.unseen)
                ]
                self._offloader.keep_media(call.context, new_media, self._recorder.later)
            if source.host.media and call.policy.record == "full":
                rows = zip(source.request.contents, contents, pack.rows, strict=False)
                cut = [raw for content, raw, row in rows if row.form != "whole" and is_human(content)]
                self._offloader.keep_media(
                    call.context, [part for raw in cut for part in raw.parts or ()], self._recorder.later
                )
            original_of = partial(self._gatherer.original_text, contents=read.history, model=call.model)
            # Into session state, not into the store: that may be away, slow, or a folder of another worker's.
            save_epoch(call.context.state, source.identity, read.epoch, pack.epoch, original_of)
            models = served_models(call.invocation.agent, call.model)
            mark_prefix(call, models)
            self._windows.keep(models, call.context.state, call.key[:3])
            if source.request.first_call:
                self._calibrations.save(source, read.counter, call.context.state, store=call.policy.record != "off")
        name, mark = pack_id(source.identity, source.step), source.host.window_mark
        if mark.startswith("default") and self._told.get((*call.key[:3], mark)) is None:
            self._told.put((*call.key[:3], mark), True)
            logger.info("%s: the window is %d tokens (%s), see max_input_tokens", name, source.window, mark)
        records = call.policy.record != "off"
        events = call.context.session.events
        position = self._recorder.pack(pack, call.policy, read.counter, events) if records else Position()
        cost = read.summary_cost
        made = PreviousCall(name, pack, call.policy, call.planned, read.counter, position, cutoff, cost, read.length)
        self._last.put(call.key, made)
        return None

    def _sent_input(self, source: PackInput, policy: PackPolicy) -> PackInput:
        """Masks a pack's input where the policy masks what the model is sent."""
        if not policy.redact_prompt:
            return source
        parts = (part for content in source.request.contents for part in content.parts)
        if any(part.is_thought and part.is_signed and policy.mask(part.text) != part.text for part in parts):
            self._failures.warn_once(_SIGNED_THOUGHT)
            source = source._replace(problems=(*source.problems, _SIGNED_THOUGHT))
        return masked_input(source, policy.mask, self._sent_contents)

    def _report(self, context: CallbackContext, span: PackSpan) -> None:
        """Tells the log and the trace what a pack came to."""
        made = self.last(context)
        if made is None:
            return
        pack, name = made.pack, made.name
        identity, uri = pack.identity, manifest_uri(name) if made.position.number else ""
        span.packed(pack, name, uri)
        for problem in pack.verdict.problems:
            if problem.startswith("strategy "):
                self._failures.report(problem)
        if pack.tokens.over_window:
            self._failures.warn_once(
                f"the window of {pack.source.window:,} tokens is too small for agent {identity.agent!r}: instruction,"
                " declarations and current message are never cut; raise max_input_tokens, or give it less of them"
            )
        if logger.isEnabledFor(logging.INFO):
            shares = pack.allocation.layers.items()
            used = " ".join(f"{layer}={share.used}" for layer, share in shares if layer != "slack")
            logger.info("%s: %s, %d events, %s", name, used, len(pack.events), uri or "not recorded")

    async def _pack_plainly(self, context: CallbackContext, request: LlmRequest, problem: str) -> LlmResponse | None:
        """The request without plan and candidates, fitted by the default strategy; as it came where that fails, too."""
        self._last.pop(agent_key_of(context))
        try:
            policy = self._policy_of(context.agent_name, "", 0).changed(
                on_invalid="warn", conversation={"strategy": ("epochs",)}, tools={"scope": "off"}
            )
            planned = Plan(problems=(f"packed plainly after {problem}",))
            call = self._under(call_of(context, request, policy), policy)._replace(planned=planned)
            read = await Gatherer(SessionRecords(), self._waits).gather(call)
            counter = counter_for("")
            pack = build_pack(self._sent_input(read.source, call.policy), call.policy, counter=counter)
            return self._send(read._replace(counter=counter.name), pack)
        except BudgetExceededError:
            raise
        except BaseException as raised:
            error = failure(raised)
            self._failures.report(f"as it came: {type(error).__name__}: {error}", error)
        return None

    def _room(self, context: ToolContext) -> int:
        """Tokens for what one reader call answers: half of what the window has left, and a tenth of it at least."""
        last = self.last(context)
        if last is None:
            return READ_TOKENS
        budget = last.pack.allocation.budget
        free = budget - last.pack.tokens.expected
        calls = sum(len(event.get_function_calls()) for event in context.session.events[-1:]) or 1
        return max(1, min(READ_TOKENS, max(free // 2, budget // 10) // calls))

    # after the call

    async def _after(
        self,
        context: CallbackContext,
        response: LlmResponse,
        refused: Overflow | None,
        model: str | None = None,
        *,
        is_second_try: bool = False,
    ) -> Limits | None:
        """Learns from an answer, or from an error in its place, and records it; returns the limits for a second try.

        Args:
            refused: what the error says of a request that was too long.
            model: the one that raised it, by name.
        """
        limits: Limits | None = None
        usage, verdict = reported(response.usage_metadata, response.model_version), None
        metadata: dict[str, Any] = self._failures.guarded(lambda: self.ledgers.track(context, response, usage), {})
        last = self.last(context)
        if last is not None and last.pack.identity.invocation != context.invocation_id:
            last = None
        if last is not None:
            pack = last.pack
            try:
                verdict = await self._reviewer.review(
                    pack,
                    response,
                    last.policy.acceptance,
                    last.planned.candidates,
                    context.session.events,
                )
            except BaseException as error:  # the rest is recorded all the same
                self._failures.caught(error, "acceptance: ")
            if refused is not None:
                agent, before = context.get_invocation_context().agent, context.state.get(WINDOWS)
                limits = self._windows.learn(
                    agent, pack, refused, model, last.policy, context.state, is_second_try=is_second_try
                )
                if (learned := context.state.get(WINDOWS)) != before:
                    self._refused.put(context.invocation_id, learned)
                if refused.sent is not None:  # by so much the estimate of the request was wrong
                    self._calibrations.reported(pack, last.counter, refused.sent)
            if usage.input_tokens is not None and not usage.tool_use_tokens and response.error_code is None:
                self._calibrations.reported(pack, last.counter, usage.input_tokens)
            count_cached(pack, usage.cached_tokens)
            about = (("cutoff", last.cutoff), (LENGTH, last.length), ("step", last.planned.step.step_id))
            told = {name: value for name, value in about if value}
            noted = {"pack_id": last.name, **last.position._asdict(), **self._calibrations.note(pack), **told}
            if last.position.number:
                noted["manifest"] = manifest_uri(last.name)
            metadata = {**noted, **metadata}
            if verdict is not None and pack.source.step.acceptance:
                metadata[ACCEPTANCE] = {"passed": verdict.passed, "missing": list(verdict.missing)}
        # With the event, so that whoever serves the session next decides as this process would. Tools and models write
        # session state; the metadata is written by callbacks alone, and not sent to the model.
        if metadata:
            response.custom_metadata = {**(response.custom_metadata or {}), METADATA: metadata}
        if last is None or self.policy.record == "off":
            return limits
        outcome = {
            **usage._asdict(),
            "finish_reason": response.finish_reason.value if response.finish_reason is not None else None,
            "error_code": str(response.error_code) if response.error_code is not None else None,
            "model_version": response.model_version,
            **({"summarizer": last.summarizer} if last.summarizer else {}),
            **({ACCEPTANCE: verdict.to_json()} if verdict is not None else {}),
        }
        self._recorder.outcome(last.pack.identity, self.policy.mask.json(outcome))
        return limits


async def _waited(counter: str, act: Callable[[], _T]) -> _T:
    """Returns the result of an act that a counter may hold up.

    Raises:
        TokenCountingError: it is late.
    """
    try:
        return await within(_COUNTING_SECONDS, in_thread(act))
    except (TimeoutError, Ended) as error:
        raise TokenCountingError(counter, str(error)) from error


def _own_policy(
    policy: PackPolicy | str | Path | None, summarizer: BaseLlm | None, critic: BaseLlm | None
) -> PackPolicy:
    """The policy that a packer begins with, with the names of the packer's own models, where it has any.

    Raises:
        PolicyError: the policy is wrong, or ``AETHER_CONTEXT_SLIDING_TOKENS`` is no whole number.
    """
    if not isinstance(policy, PackPolicy):
        policy = PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None)
    sliding = os.environ.get(_SLIDING_TOKENS, "").strip()
    if sliding and not sliding.isdecimal():
        raise PolicyError(
            f"{_SLIDING_TOKENS} = {sliding!r}: give a number of tokens, or 0 for off",
            field="conversation.sliding_turns.tokens",
        )
    if sliding:
        policy = policy.changed(conversation={"sliding_turns": {"tokens": int(sliding)}})
    if summarizer is not None:
        policy = policy.changed(compress={"summarizer": summarizer.model})
    if critic is not None:
        policy = policy.changed(acceptance={"critic": critic.model})
    return policy


@cache
def _warm_up(records: bool, recalls: bool) -> None:
    """Loads, once in a process and beside what the app does, what the first model call would otherwise wait for.

    It is numpy and a token table, the list of models with their prices, the models of manifests, and what indexes turns
    that are recalled, but for the model that compares their meanings. A fork waits for it: a module that another thread
    is loading stays locked in the child for ever.
    """

    def load() -> None:
        counter_for("gemini").count("warm")
        model_window("gemini-2.5-flash")
        if records:
            import_module("aether_context.store.manifest")
        if recalls:
            import_module("aether_context.retrieval.call_indexes")

    thread = threading.Thread(target=load, name="aether-context-warm-up", daemon=True)
    thread.start()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=partial(thread.join, _MOST_FORK_SECONDS))


def _invalid(call: ModelCall) -> LlmResponse:
    """The answer that names what a plan lacks, or the error where the policy's ``on_invalid`` is ``raise``."""
    planned = call.planned
    if call.policy.on_invalid == "raise":
        raise InvalidPlan(f"{planned.invalid_reason}: restate it in state['plan']", field="plan")
    told = [f"- {problem.removeprefix('state ')}" for problem in planned.problems if problem.startswith("state ")]
    text = f"This step cannot start: {planned.invalid_reason}. Restate the plan with it."
    return _answer("invalid_plan", "\n".join([text, *told[:_MOST_TOLD]]))


def _answer(code: str, text: str) -> LlmResponse:
    return LlmResponse(
        content=types.Content(role="model", parts=[types.Part(text=text)]), error_code=code, error_message=text
    )


async def _asked(invocation: InvocationContext, request: LlmRequest) -> LlmResponse | None:
    """Asks the agent's model and returns its answer in one piece; ADK counts the call. None where the agent has no
    model to ask."""
    llm = getattr(invocation.agent, "canonical_model", None)
    if not isinstance(llm, BaseLlm):
        return None
    invocation.increment_llm_call_count()
    answer = None
    async for response in llm.generate_content_async(request, stream=False):
        answer = response
    return answer
