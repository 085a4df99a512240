"""The one place where packs meet ADK: read, enrich, build, write, record, and catch whatever fails."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache, partial

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from aether_context.adk.artifact_tools import declare
from aether_context.adk.bounds import counted_in_time, failure, off_loop, take_turn
from aether_context.adk.call import OFF, ModelCall, Position, PreviousCall, agent_key_of, call_of
from aether_context.adk.failures import InvalidPlan, answer_in_place, invalid_answer, stands_back
from aether_context.adk.learning import Learning
from aether_context.adk.on_cut import UpcomingCut, ask
from aether_context.adk.request.gather import Gatherer
from aether_context.adk.request.reader import Reader
from aether_context.adk.request.sessions import AgentSession, PreparedCall, Sessions
from aether_context.adk.request.write import mark_prefix, rewritten, uploaded_anew, write
from aether_context.adk.second_try import FirstTry, ask_again, copy_of
from aether_context.adk.services.memory import HybridMemoryService
from aether_context.adk.session import save_epoch
from aether_context.adk.tracing import PackSpan
from aether_context.adk.windows import Limits, Window
from aether_context.adk.wiring import PackerParts
from aether_context.conversation import ranked_anchors
from aether_context.conversation.turns import is_human
from aether_context.errors import BudgetExceededError, StepTooLarge, TokenCountingError
from aether_context.pack import OBSERVE, Content, Host, Identity, Pack, PackInput, Request, Step
from aether_context.packing import build_pack, turns_to_find
from aether_context.policy import PackPolicy
from aether_context.state import PlannedCall
from aether_context.store import pack_id
from aether_context.store.masking import masked_input
from aether_context.text.entities import read_mentions
from aether_context.tokens import Pick, counter_for

_INSTANT_CHARACTERS = 100_000
_MOST_POLICIES = 512
_SIGNED_THOUGHT = "redact_prompt: a signed thought holds what is masked, and is sent as the model wrote it"


class RequestPacker:
    """Packs the requests of one plugin or one set of callbacks. Safe to share between sessions and event loops."""

    def __init__(self, parts: PackerParts) -> None:
        self.policy, self.store, self.ledgers = parts.policy, parts.store, parts.ledgers
        self._parts, self._failures, self._learning = parts, parts.failures, Learning(parts)
        self._policy_of = lru_cache(_MOST_POLICIES)(
            lambda agent, profile, level: self.policy.for_agent(agent, profile).economical(level)
        )

    def __deepcopy__(self, memo: object) -> RequestPacker:
        """Itself: the copy of an agent that has its methods as callbacks shares its packer, as ADK's own copies do."""
        return self

    def last(self, context: CallbackContext) -> PreviousCall | None:
        """The latest pack of an agent in its session, by the contexts of ADK's callbacks."""
        return self._session(context).last

    def _session(self, context: CallbackContext) -> AgentSession:
        return self._parts.sessions.agent(agent_key_of(context))

    async def flush(self, timeout_seconds: float = 10.0, invocation: InvocationContext | None = None) -> None:
        """Waits until every pack so far is in the store, and those of an invocation mirrored; what was said in the
        invocation is remembered where the policy says so."""
        writer = self._parts.memory_writer
        if invocation is not None and writer is not None and self._parts.arm != OBSERVE:
            try:
                await writer.add(invocation)
            except BaseException as error:
                self._failures.caught(error)
        if not await self._parts.recorder.flush(timeout_seconds, invocation):
            self._failures.warn_once(f"packs are still waiting for {self.store.url}")
        if invocation is not None:
            await self._parts.mirror.finish(invocation)

    # the callbacks, with ADK's names for what they take: whatever fails below them, the call goes on, since ADK ends a
    # run whose plugin raises

    async def before_model(self, callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
        """Packs one request in place. Returns an answer only where a plan is invalid or a limit would be passed, and
        the policy gives one in the model's place."""
        if stands_back(self._failures, callback_context, llm_request):
            return None
        self._failures.guarded(partial(self._parts.mirror.go_on, callback_context), None)
        session = self._session(callback_context)
        session.is_answering = True
        first = self._failures.guarded(partial(FirstTry, llm_request), None)
        with PackSpan(callback_context.agent_name, llm_request.model or "") as span:
            try:
                answer = await self._pack(callback_context, llm_request, session)
                span.error = answer.error_code or "" if answer is not None else ""
                if first is not None:
                    session.first_try = first.record(llm_request)
            except (InvalidPlan, BudgetExceededError):
                raise
            except StepTooLarge as error:
                if self._policy_of(callback_context.agent_name, "", 0).on_invalid != "respond":
                    raise
                span.error = "step_too_large"
                answer = answer_in_place(span.error, f"This step does not fit the model's window: {error}.")
            except BaseException as error:
                self._failures.caught(error)
                span.error = type(error).__name__
                answer = await self._pack_plainly(callback_context, llm_request, session, span.error)
            if answer is None:
                self._failures.guarded(partial(self._failures.report_pack, session, span), None)
            session.is_answering = answer is None
            return answer

    async def after_model(self, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        """Records what became of the call, and names the pack in the event's metadata."""
        if stands_back(self._failures, callback_context):
            return
        session = self._session(callback_context)
        session.first_try = None  # what is being passed on is not asked for again
        self._failures.guarded(partial(self._parts.mirror.go_on, callback_context), None)
        try:
            if llm_response.partial is not True:
                session.is_answering = False
                await self._learning.learn_answer(callback_context, session, llm_response)
        except BaseException as error:
            self._failures.caught(error)

    async def on_model_error(
        self, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Records a call whose model raised. Where that is since the request was too long, it learns from it, and
        returns what the model answers to a smaller pack."""
        if stands_back(self._failures, callback_context):
            return None
        session = self._session(callback_context)
        first, session.first_try = session.first_try, None
        try:
            limits = await self._learning.learn_failure(callback_context, session, llm_request, error, again=False)
            if limits is None or first is None or session.last is None:
                return None
            return await self._second_try(callback_context, llm_request, session, first, limits)
        except BaseException as raised:
            self._failures.caught(raised)
            return None
        finally:
            session.is_answering = False

    async def _second_try(
        self, context: CallbackContext, sent_request: LlmRequest, session: AgentSession, first: FirstTry, limits: Limits
    ) -> LlmResponse | None:
        """Asks the model again with a smaller pack of a refused call; None where there is no answer."""
        request = first.again(sent_request)
        if request is None and limits:
            self._failures.warn_once(
                "a request was refused as too long and could not be tried again: a callback behind the plugin changed "
                "it; the next call is packed for the smaller window"
            )
            return None
        if request is None:  # refused for its signed thoughts, which can leave whatever the callback did
            request = _without_thoughts(sent_request, self._parts.gatherer.reader)
        else:
            with PackSpan(context.agent_name, request.model or "") as span:
                answer = await self._pack(context, request, session, limits)
                if answer is not None:
                    return answer
                self._failures.guarded(partial(self._failures.report_pack, session, span), None)
        # ADK's own call is over by then. A third one would be a guess that costs money: most refusals name the limit.
        try:
            answer = await ask_again(context.get_invocation_context(), request)
            accept = partial(self._parts.windows.accept, context, session.owner.taught, request.model or "", limits)
            self._failures.guarded(accept, None)
            return answer
        except Exception as error:
            await self._learning.learn_failure(context, session, request, error, again=True)
            return None

    async def on_run_error(self, invocation: InvocationContext) -> None:
        """Keeps what the run learned before it failed."""
        await self._learning.keep_refusal(invocation)
        await self.flush(invocation=invocation)

    # the way of a model call

    async def _pack(
        self, context: CallbackContext, request: LlmRequest, session: AgentSession, refused: Limits | None = None
    ) -> LlmResponse | None:
        """Packs a request, a second try within the limits by which its provider ``refused`` the first."""
        await take_turn()
        call = await self._read_call(context, request, session, refused)
        if call.planned.validity == "invalid" and call.policy.on_invalid != "warn" and not call.passthrough_reason:
            return invalid_answer(call)
        enriched: PreparedCall | None = None
        while True:
            try:
                counters = self._parts.counters
                pick = counters.ready(call.model)
                if pick is None:
                    pick = await counted_in_time(self.policy.tokens.counter, partial(counters.pick, call.model))
                for problem in pick.problems:
                    self._failures.report(problem)
                enriched = enriched or await self._enrich(call, session)
                await take_turn()
                prepared, pack = await self._build(enriched, pick, session)
                break
            except TokenCountingError as error:  # the estimate counts then, all of it: counts of two kinds are no total
                self._parts.counters.fail(call.model, error)
                self._failures.report(str(error))
        # To free ADK's copies of contents that are not sent takes as long as to extend a pack: the event loop lets go
        # of them when it waits for the model.
        asyncio.get_running_loop().call_soon(len, prepared.history.loaded)
        if prepared.stable_end:
            archive = partial(self._parts.gatherer.archive, prepared, session, self._parts.recorder.later)
            self._failures.guarded(archive, None)
        return self._send(prepared, pack, session)

    async def _read_call(
        self, context: CallbackContext, request: LlmRequest, session: AgentSession, refused: Limits | None
    ) -> ModelCall:
        """The call with its plan and policy; extracts stand in its request, and the readers of what they are of.

        The policy is that of the plan's profile, else the one that the own policy gives the agent, else the own; an
        economical one, with a note, where a limit is near.
        """
        call = call_of(context, request, self._policy_of(context.agent_name, "", 0), session.key)
        if self._parts.names.are_given:
            for problem in self._failures.guarded(partial(self._parts.names.unknown, call), list[str]()):
                self._failures.warn_once(problem)
        memories = call.invocation.memory_service
        if self.policy.redact and isinstance(memories, HybridMemoryService) and not memories.memories.mask:
            memories.memories.mask = self.policy.mask
        planned = self._parts.gatherer.planned(call)
        for problem in planned.problems:
            if problem.startswith("state "):
                self._failures.warn_once(problem)
        if planned.invalid_reason:
            self._failures.warn_once(f"the plan is invalid: {planned.invalid_reason}")
        near_limit = self._failures.guarded(partial(self.ledgers.enter, call, session.owner), None)
        level = near_limit.level if near_limit is not None else 0
        call = self._under(call, self._policy_of(context.agent_name, planned.profile or "", level), session, refused)
        call = call._replace(planned=planned, last=session.last, near_limit=level > 0)
        problems, offloaded_tokens = planned.problems, 0
        if call.passthrough_reason in ("", OFF):
            new, offloaded_tokens = await self._parts.offloader.enter(call, self._parts.readers)
            problems += new
        if near_limit is not None:
            problems += (near_limit.note,)
        if uploads := uploaded_anew(call.request, call.models):
            self._failures.warn_once(uploads)
            problems += (uploads,)
        return call._replace(planned=planned._replace(problems=problems), offloaded_tokens=offloaded_tokens)

    def _under(self, call: ModelCall, policy: PackPolicy, session: AgentSession, refused: Limits | None) -> ModelCall:
        """The call under a policy, with the window: the policy's, else the model's own; less where the provider has
        refused as much."""
        window, limits = self._parts.windows.of(call.models, policy, call.state, session.owner.taught)
        if refused:
            window = min(window, Window(refused.get("tokens", window.tokens), "learned"))
            limits = limits._replace(**{kind: limit for kind, limit in refused.items() if kind != "tokens"})
        return call._replace(policy=policy, window=window, limits=limits, is_second_try=refused is not None)

    async def _enrich(self, call: ModelCall, session: AgentSession) -> PreparedCall:
        """The call with all that a pack is built from: candidates ranked, turns that earlier cuts took among them."""
        prepared = await self._parts.offloader.focus(await self._parts.gatherer.gather(call, session))
        prepared = await self._parts.recall.rank(prepared)
        if not _is_little(prepared.source, call.policy, call.last.pack if call.last is not None else None):
            prepared = self._parts.recall.with_room(prepared)
        source = prepared.source
        if not source.request.first_call or not source.epoch.cut_count:
            return prepared
        whole = frozenset(source.request.positions)
        return await self._parts.recall.turns(prepared, session, whole, source.search.room)

    async def _build(self, prepared: PreparedCall, pick: Pick, session: AgentSession) -> tuple[PreparedCall, Pack]:
        """The pack; where it cuts turns, it is built with those of them that answer the request, and once more with
        what a model writes for it, where the policy names one."""
        policy, last, name = prepared.call.policy, prepared.call.last, pick.counter.name
        source = prepared.source
        calibration = await self._parts.calibrations.calibration(source, name, prepared.call, session)
        problems = source.problems if last is not None and last.counter == name else (*source.problems, *pick.problems)
        usage = source.usage._replace(calibration=calibration)
        prepared = prepared.with_source(problems=problems, usage=usage)._replace(counter=name)

        async def build(source: PackInput, *, proposes: bool = False) -> Pack:
            """A pack, off the event loop where that would be felt: for a message, with much that is new, with a cut or
            masks, or with a provider that is asked."""
            previous = last.pack if last is not None else None
            is_instant = _is_little(source, policy, previous) and not policy.redact_prompt

            def build_now() -> Pack:
                sent_input = self._sent_input(source, policy)
                return build_pack(sent_input, policy, counter=pick.counter, cache=session.cache, proposes=proposes)

            if pick.may_wait:
                return await counted_in_time(pick.name, build_now)
            if is_instant:
                return build_now()
            pack = await off_loop(build_now)
            await take_turn()  # else the packs of many sessions, built meanwhile, would be sent in one round
            return pack

        # What a cut takes is known once it is proposed; then it is searched, and the pack built.
        pack, source = await build(prepared.source, proposes=True), prepared.source
        prepared = self._with_readers(prepared, pack)
        if prepared.source is not source:  # with readers less may leave
            pack, source = await build(prepared.source, proposes=True), prepared.source
        prepared = await self._asked_of_cut(prepared, pack)
        if (search := turns_to_find(pack)) is not None:
            prepared = await self._parts.recall.turns(prepared, session, *search)
        if pack.is_proposed or prepared.source is not source:
            prepared = prepared.with_source(search=prepared.source.search._replace(remaining=pack.remaining))
            pack = await build(prepared.source)
        if self._parts.asks_models and pack.to_store.summary_requests:
            pack, cost = await self._parts.summarizer.summarize(pack, policy, build)
            prepared = prepared._replace(summary_cost=cost)
        return prepared, pack

    def _with_readers(self, prepared: PreparedCall, pack: Pack) -> PreparedCall:
        """The call with the tools that read what a pack's cut takes, at the first: it ends the prefix anyway."""
        call, source, parts = prepared.call, prepared.source, self._parts
        host = source.host
        reads = parts.offloader.reads_past(call, bool(host.media)) if pack.epoch.cut_count else False
        if host.can_read or host.passthrough_reason or not reads or not declare(call.request, parts.readers):
            return prepared
        request = source.request._replace(tools=parts.gatherer.reader.head(call.request).tools)
        return prepared.with_source(request=request, host=host._replace(can_read=True))

    async def _asked_of_cut(self, prepared: PreparedCall, pack: Pack) -> PreparedCall:
        """The call with what the app's ``on_cut`` keeps of what a pack's cut takes, and what it says."""
        if self._parts.on_cut is None or all(event.stage != "cut" for event in pack.events):
            return prepared
        notice = await ask(self._parts.on_cut, cut := UpcomingCut(pack), self._failures.warn_once)
        prepared, host = prepared._replace(notice=notice), prepared.source.host
        if anchors := cut.anchors():
            return prepared.with_source(host=host._replace(anchors=ranked_anchors([*host.anchors, *anchors])))
        return prepared

    def _send(self, prepared: PreparedCall, pack: Pack, session: AgentSession) -> LlmResponse | None:
        """Writes a pack into the request, and keeps what the next call and the record need of it.

        Returns an answer in the model's place where a limit stands against the call.
        """
        call, source, epoch, counter = prepared.call, pack.source, prepared.epoch, prepared.counter
        refused = self._failures.guarded(lambda: self.ledgers.admit(call, pack, session), None)
        if refused is not None:
            return refused
        cutoff = self._failures.guarded(partial(self._parts.gatherer.cutoff, prepared, pack), "")
        if not source.host.passthrough_reason:
            contents = prepared.history.as_sent(prepared.source.request.positions)
            if call.policy.redact_prompt:
                values = (self._parts.gatherer.reader.content(content, call.model) for content in contents)
                contents = list(map(rewritten, contents, values, source.request.contents))
            write(pack, call.request, contents, call.policy.redact)
            if call.policy.record == "full":
                self._parts.offloader.keep_media(call, pack, epoch.unseen, contents)
            # Into session state, not into the store: that may be away, slow, or a folder of another worker's.
            save_epoch(call.context.state, source.identity, epoch, pack.epoch, prepared.history.original_text)
            mark_prefix(call, call.models)
            self._parts.windows.keep(call.models, call.context.state, session.owner.taught)
            if source.request.first_call:
                stores = call.policy.record != "off"
                self._parts.calibrations.save(source, counter, call.context.state, store=stores)
        name, position, events = pack_id(source.identity, source.step), Position(), call.context.session.events
        if call.policy.record != "off" and call.policy.enabled:
            position = self._parts.recorder.pack(pack, call.policy, counter, events)
        session.last = PreviousCall(
            name,
            pack,
            call.policy,
            call.planned,
            counter,
            position,
            cutoff,
            prepared.summary_cost,
            prepared.length,
            prepared.notice,
        )
        session.measure(pack)
        self._parts.sessions.bound()
        half = pack.allocation.budget // 2
        # A cut is near, whose call would wait until all are read.
        if pack.tokens.counted > half and not self._parts.recorder.fails:
            read_until = call.last.pack if call.last is not None and call.last.pack.tokens.counted > half else None
            self._parts.recorder.later(partial(read_mentions, _new_contents(source.request, read_until)))
        return None

    def _sent_input(self, source: PackInput, policy: PackPolicy) -> PackInput:
        """Masks a pack's input where the policy masks what the model is sent."""
        if not policy.redact_prompt:
            return source
        parts = (part for content in source.request.contents for part in content.parts)
        if any(part.is_thought and part.is_signed and policy.mask(part.text) != part.text for part in parts):
            self._failures.warn_once(_SIGNED_THOUGHT)
            source = source._replace(problems=(*source.problems, _SIGNED_THOUGHT))
        return masked_input(source, policy.mask, to_send=True)

    async def _pack_plainly(
        self, context: CallbackContext, request: LlmRequest, session: AgentSession, problem: str
    ) -> LlmResponse | None:
        """The request without plan and candidates, fitted by the default strategy; as it came where that fails, too."""
        session.last = None
        session.forget()
        try:
            plain = {"conversation": {"strategy": ("epochs",)}, "tools": {"scope": "off"}}
            policy = self._policy_of(context.agent_name, "", 0).changed(on_invalid="warn", **plain)
            planned = PlannedCall(problems=(f"packed plainly after {problem}",))
            call = call_of(context, request, policy, session.key)._replace(planned=planned)
            call = self._under(call, policy, session, None)
            gatherer = Gatherer(Sessions(session.cache), self._parts.waits, arm=self._parts.arm)
            prepared = await gatherer.gather(call, AgentSession(session.key, session.owner, session.cache))
            counter = counter_for("")
            pack = build_pack(self._sent_input(prepared.source, call.policy), call.policy, counter=counter)
            return self._send(prepared._replace(counter=counter.name), pack, session)
        except BudgetExceededError:
            raise
        except BaseException as raised:
            error = failure(raised)
            self._failures.report(f"as it came: {type(error).__name__}: {error}", error)
        return None


def _without_thoughts(request: LlmRequest, reader: Reader) -> LlmRequest:
    """A request as a callback behind the packer left it, without its signed thoughts: calls of the model's present turn
    that were made with one are told as text, with their results."""
    request = copy_of(request)
    contents = tuple(reader.content(content, "") for content in request.contents)
    human = max((at for at, content in enumerate(contents) if is_human(content)), default=None)
    head = reader.head(request)._replace(contents=contents, positions=tuple(range(len(contents))), request_index=human)
    # Nothing else may leave: a window in which everything fits, and the estimate of no model.
    source = PackInput(Identity("", "", "", "", ""), head, window=1 << 30, step=Step(), host=Host(binds_thoughts=True))
    write(build_pack(source, PackPolicy(), counter=counter_for("")), request, request.contents)
    return request


def _new_contents(request: Request, previous: Pack | None) -> Sequence[Content]:
    """The contents of a request behind those of the pack before."""
    known = previous.source.request.positions if previous is not None else ()
    return request.contents[bisect_right(request.positions, max(known, default=-1)) :]


def _is_little(source: PackInput, policy: PackPolicy, previous: Pack | None) -> bool:
    """Tells whether a pack goes on from the one before with little that is new, and with no cut, as far as one sees."""
    if previous is None or source.request.first_call:  # a message comes with memories and recalled turns
        return False
    new = sum(len(part.text) for content in _new_contents(source.request, previous) for part in content.parts)
    room = (policy.conversation.compact_at or 1) * previous.allocation.budget - previous.tokens.counted
    return new <= min(_INSTANT_CHARACTERS, 2 * room)
