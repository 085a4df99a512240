"""The one place where packs meet ADK: read, enrich, build, write, record, and catch whatever fails."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachetools import LRUCache
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.acceptance import ACCEPTANCE, AcceptanceCheck, Review, Reviewer
from aether_context.adk.bounds import Failures, OnError
from aether_context.adk.builder import Builder
from aether_context.adk.call import METADATA, AgentKey, Call, Last, ReadCall, agent_key_of, session_key
from aether_context.adk.evidence import Library, Offloader, ReadArtifact, SearchArtifact, conceal, declare
from aether_context.adk.models.texts import ModelSummarizer
from aether_context.adk.request.inputs import Gatherer
from aether_context.adk.request.marks import last_unread
from aether_context.adk.request.recall import Recall, Shelves
from aether_context.adk.request.writer import write
from aether_context.adk.services.recorder import Mirror, Recorder
from aether_context.adk.session import epochs
from aether_context.adk.session.records import SessionRecords
from aether_context.adk.usage import Ledgers, Meters, note, reported
from aether_context.conversation import strategies_of
from aether_context.errors import BudgetExceededError, PolicyError, StepTooLarge, TokenCountingError
from aether_context.pack import Pack, PackInput
from aether_context.packing import build_pack
from aether_context.policy import LimitSettings, PackPolicy
from aether_context.state import Planned
from aether_context.store import PackStore, pack_id
from aether_context.store.packs import DEFAULT_STORE
from aether_context.tokens import Pick, counter_for

logger = logging.getLogger("aether_context")

_MOST_CALLS = 512
_MOST_TOLD = 8
READ_TOKENS = 2_000
"""The most that one call of ``read_artifact`` or ``search_artifact`` answers with."""
_SIMPLE = ("epochs",)
"""The strategy where another one, or what else a pack consists of, failed."""
_SLIDING_TOKENS = "AETHER_CONTEXT_SLIDING_TOKENS"


class InvalidPlan(PolicyError):
    """The session's plan lacks what a pack needs, and the policy's ``on_invalid`` is ``raise``."""


class Policies:
    """The policies that a plugin packs with. Equal questions get the same object.

    Args:
        policy: a policy, a profile's name or the path of a TOML file; None takes ``AETHER_CONTEXT_POLICY``, else
            ``chat``. ``AETHER_CONTEXT_SLIDING_TOKENS`` comes before what it says.
        summarizer, critic: the plugin's own models, whose names take the place of those that the policy names.

    Raises:
        PolicyError: the policy is wrong, or the environment names no whole number of tokens.
    """

    def __init__(
        self, policy: PackPolicy | str | Path | None, summarizer: BaseLlm | None = None, critic: BaseLlm | None = None
    ) -> None:
        if not isinstance(policy, PackPolicy):
            policy = PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None)
        sliding = os.environ.get(_SLIDING_TOKENS, "").strip()
        if sliding and not sliding.isdecimal():
            raise PolicyError(
                f"{_SLIDING_TOKENS} = {sliding!r}: give a number of tokens, or 0 for off",
                field="conversation.sliding_turns.tokens",
                source=_SLIDING_TOKENS,
            )
        if sliding:
            policy = policy.changed(conversation={"sliding_turns": {"tokens": int(sliding)}})
        if summarizer is not None:
            policy = policy.changed(compress={"summarizer": summarizer.model})
        if critic is not None:
            policy = policy.changed(acceptance={"critic": critic.model})
        self.own = policy
        self._profiles: dict[str, PackPolicy] = {}
        self._economical: dict[tuple[str, int], PackPolicy] = {}

    def of(self, profile: str | None, agent: str) -> PackPolicy:
        """The policy for a plan's profile, else for the one that the own policy gives an agent, else the own."""
        wanted = profile or self.own.agents.get(agent)
        if wanted is None or wanted == self.own.profile:
            return self.own
        if wanted not in self._profiles:
            self._profiles[wanted] = self.own.for_profile(wanted)
        return self._profiles[wanted]

    def economical(self, policy: PackPolicy, level: int) -> PackPolicy:
        key = (policy.digest, level)
        if key not in self._economical:
            self._economical[key] = policy.economical(level)
        return self._economical[key]


class RequestPacker:
    """Packs the requests of one plugin or one set of callbacks. Safe to share between sessions and event loops.

    Args:
        policy: a policy, a profile's name or the path of a TOML file; None takes ``AETHER_CONTEXT_POLICY``, else
            ``chat``.
        store: a store or an fsspec URL; None takes ``AETHER_CONTEXT_STORE``, else ``artifacts``.
        on_error: ``passthrough`` sends the request on whatever fails here, ``raise`` does not.
        summarizer: a model that writes summaries; None takes the one that the policy names, if any.
        recorder: writes to the store; None makes one.
        checks: asked of final answers, see `AcceptanceCheck`.
        critic: a model that judges final answers; None takes the one that the policy names, if any.
        mirror_artifacts: also saves manifests to the app's own artifact service.
        asks_models: whether a model writes summaries; where none does, the extractive ones stand.
    """

    def __init__(
        self,
        policy: PackPolicy | str | Path | None = None,
        store: PackStore | str | None = None,
        on_error: OnError = "passthrough",
        summarizer: BaseLlm | None = None,
        recorder: Recorder | None = None,
        checks: Sequence[AcceptanceCheck] = (),
        critic: BaseLlm | None = None,
        mirror_artifacts: bool = False,
        asks_models: bool = True,
    ) -> None:
        self._failures = Failures(on_error)
        self._policies = Policies(policy, summarizer, critic)
        if not isinstance(store, PackStore):
            store = PackStore(store or os.environ.get("AETHER_CONTEXT_STORE") or DEFAULT_STORE)
        self.policy = policy = self._policies.own
        self.store = store
        strategies_of(policy.conversation)
        self._mirror = Mirror(self._failures.warn_once) if mirror_artifacts else None
        self._recorder = recorder or Recorder(store, self._mirror.put if self._mirror is not None else None)
        self._meters = Meters(self._recorder.store, self._recorder.calibration)
        self._asks_models = asks_models
        self._summarizer = ModelSummarizer(self._recorder.store, self._recorder.summary, summarizer)
        self._summarizer.check(policy.compress.summarizer)
        self._reviewer = Reviewer(checks, critic)
        self._reviewer.check(policy.acceptance)
        self.ledgers = Ledgers(policy.limits)
        self._records = SessionRecords()
        self._gatherer = Gatherer(self._records)
        self._recall = Recall(Shelves(self._recorder.store, self._recorder.later))
        self._recall.check(policy.retrieval.embedder)
        self._offloader = Offloader(policy, store, self._recorder, self._records, self._failures.warn_once, self._step)
        library = Library(self._recorder.store, self._records, policy.retrieval.redact_before_retrieval)
        self._readers = (ReadArtifact(library, self._room), SearchArtifact(library, self._room))
        self._builder = Builder(policy.tokens)
        self._last: LRUCache[AgentKey, Last] = LRUCache(_MOST_CALLS)
        self._lock = threading.Lock()

    def set_limits(
        self, limits: LimitSettings | Mapping[str, Any] | None, session: tuple[str | None, str | None, str | None]
    ) -> None:
        """Limits of one session, or of all that have none of their own; see `ContextPackPlugin.set_limits`."""
        if limits is not None and not isinstance(limits, LimitSettings):
            limits = PackPolicy(limits=limits).limits
        app, user, name = session
        if app is not None and user is not None and name is not None:
            self.ledgers.set_limits(limits, (app, user, name))
        elif session == (None, None, None):
            self.ledgers.limits = limits or self.policy.limits
        else:
            raise PolicyError(f"app = {app!r}, user = {user!r}, session = {name!r}: give all three or none")

    def last(self, context: CallbackContext) -> Last | None:
        """The latest pack of an agent in its session, by the contexts of ADK's callbacks."""
        with self._lock:
            return self._last.get(agent_key_of(context))

    async def flush(self, timeout_seconds: float = 10.0, invocation: InvocationContext | None = None) -> None:
        """Waits, off the event loop, until every pack so far is in the store, and those of an invocation mirrored."""
        if not await asyncio.to_thread(self._recorder.flush, timeout_seconds):
            self._failures.warn_once(f"packs are still waiting for {self.store.url}")
        if self._mirror is not None and invocation is not None:
            await self._mirror.finish(invocation)

    # the callbacks: whatever fails below them, the call goes on

    async def before_model(self, context: CallbackContext, request: LlmRequest) -> LlmResponse | None:
        """Packs one request in place. Returns an answer only where the policy gives one in the model's place.

        That is where a plan is invalid, or where a limit would be passed.
        """
        self._go_on_mirroring(context)
        try:
            return await self._pack(context, request)
        except (InvalidPlan, BudgetExceededError):
            raise
        except StepTooLarge as error:
            if self.policy.on_invalid != "respond":
                raise
            return _answer("step_too_large", f"This step does not fit the model's window: {error}.")
        except Exception as error:
            self._failures.caught(error)
            return await self._pack_plainly(context, request, type(error).__name__)

    async def after_model(self, context: CallbackContext, response: LlmResponse) -> None:
        """Records what became of the call, and names the pack in the event's metadata."""
        self._go_on_mirroring(context)
        try:
            await self._after(context, response)
        except Exception as error:
            self._failures.caught(error)

    async def after_tool(
        self, tool: BaseTool, arguments: Mapping[str, Any], context: ToolContext, result: object
    ) -> dict[str, Any] | None:
        """What takes a tool's result's place in the session; None where it stays."""
        try:
            return await self._offloader.after_tool(tool, arguments, context, result)
        except Exception as error:
            self._failures.caught(error)
            return None

    def _go_on_mirroring(self, context: CallbackContext) -> None:
        if (mirror := self._mirror) is not None:
            self._failures.guarded(lambda: mirror.go_on(context), None)

    # the way of a model call

    async def _pack(self, context: CallbackContext, request: LlmRequest) -> LlmResponse | None:
        call = self._read(context, request)
        if call.planned.validity == "invalid" and call.policy.on_invalid != "warn" and not call.passthrough_reason:
            return _invalid(call)
        call = self._within_limits(call)
        enriched: ReadCall | None = None
        while True:
            pick = await self._builder.pick(call.model)
            try:
                packed = await self._extend(call, pick)
                if packed is None:
                    enriched = enriched or await self._enrich(call)
                    read, pack = await self._build(enriched, pick)
                    packed = await self._summarize(read, pack, pick)
                break
            except TokenCountingError as error:  # the next best counter then
                self._builder.failed(call.model, pick, error)
                self._failures.report(str(error))
        # To free ADK's copies of contents that are not sent takes as long as to extend a pack: the event loop lets go
        # of them when it waits for the model.
        asyncio.get_running_loop().call_soon(len, packed[0].history)
        return self._settle(*packed)

    def _read(self, context: CallbackContext, request: LlmRequest) -> Call:
        """The call with its plan and policy; extracts stand in its request, and the readers of what they are of."""
        invocation = context.get_invocation_context()
        call = Call(context=context, request=request, invocation=invocation, policy=self.policy)
        with self._lock:
            last = self._last.get(call.key)
        call = replace(call, last=last, planned=self._gatherer.planned(call))
        keeps = bool(self._records.of(context).readings())
        if not call.passthrough_reason and (self.policy.offload.mode != "off" or keeps):
            self._offloader.show(context, request)
            if not declare(request, self._readers) and keeps:
                conceal(request)
            call = call.noting(*self._offloader.take_problems(session_key(context)))
        for problem in call.planned.problems:
            if problem.startswith("state "):
                self._failures.warn_once(problem)
        if call.planned.invalid_reason:
            self._failures.warn_once(f"the plan is invalid: {call.planned.invalid_reason}")
        return replace(call, policy=self._policies.of(call.planned.profile, context.agent_name))

    def _within_limits(self, call: Call) -> Call:
        """The call under an economical policy, with a note, where a limit is near."""
        pressure = self._failures.guarded(lambda: self.ledgers.enter(call), None)
        if pressure is None:
            return call
        return replace(call, policy=self._policies.economical(call.policy, pressure.level)).noting(note(pressure))

    async def _extend(self, call: Call, pick: Pick) -> tuple[ReadCall, Pack] | None:
        """The last pack with what was appended since, where nothing else happened."""
        last = call.last
        if last is None or last.counter != pick.counter.name:
            return None
        grown = self._gatherer.grown(call)
        if grown is None:
            return None
        grown = self._calibrated(grown, pick)
        pack = await self._builder.extend(last.pack, grown.source, call.policy, pick)
        return None if pack is None else (grown, pack)

    async def _enrich(self, call: Call) -> ReadCall:
        """The call with all that a pack is built from: candidates ranked, turns that earlier cuts took among them."""
        read = await self._gatherer.gather(call)
        read = await self._recall.rank(read)
        if not read.source.first_call or not read.source.epoch.cut_count:
            return read
        return await self._recall.turns(read, frozenset(read.source.request.positions), self._gatherer.read)

    async def _build(self, read: ReadCall, pick: Pick) -> tuple[ReadCall, Pack]:
        """The pack; where it cuts turns, it is built again with those of them that answer the request."""
        policy, last = read.call.policy, read.call.last
        await self._meters.begin(read.source, pick.counter.name, read.call.state)
        if last is None or last.counter != pick.counter.name:
            read = read.with_source(problems=(*read.source.problems, *pick.problems))
        read = self._calibrated(read, pick)
        pack = await self._builder.build(read.source, policy, pick)
        cut = pack.epoch.cut_count > (read.source.epoch.cut_count if read.source.first_call else 0)
        if pack.chose and (cut or pack.stands_in) and read.source.searched is None:
            whole = {read.source.request.positions[at] for at in pack.whole}
            # A cut makes room; a strategy that puts placeholders has to find it among what it still sends.
            budget = pack.allocation.budget
            free = None if cut else max(budget // 10, (budget - pack.request_tokens) // 2)
            read = await self._recall.turns(read, whole, self._gatherer.read, most=free)
            if read.source.searched is not None:
                pack = await self._builder.build(read.source, policy, pick)
        return read, pack

    async def _summarize(self, read: ReadCall, pack: Pack, pick: Pick) -> tuple[ReadCall, Pack]:
        """The pack with what a model writes for it, where the policy names one."""
        if not self._asks_models:
            return read, pack

        async def build(source: PackInput) -> Pack:
            return await self._builder.build(source, read.call.policy, pick)

        pack, cost = await self._summarizer.summarize(pack, read.call.policy, build)
        return replace(read, summary_cost=cost), pack

    def _calibrated(self, read: ReadCall, pick: Pick) -> ReadCall:
        """The call with what its counts are corrected by."""
        read = replace(read, counter=pick.counter.name)
        events = read.call.context.session.events
        known = self._meters.calibration(read.source, read.counter, read.call.policy.usage, events)
        return read if known is None else read.with_source(calibration=known)

    def _settle(self, read: ReadCall, pack: Pack) -> LlmResponse | None:
        """Writes a pack into the request, and keeps what the next call and the record need of it.

        Returns an answer in the model's place where a limit stands against the call.
        """
        call, source = read.call, pack.source
        refused = self._failures.guarded(lambda: self.ledgers.admit(call, pack), None)
        if refused is not None:
            return refused
        stored: Mapping[str, Any] | None = None
        if not source.passthrough_reason:
            contents = [read.history[at] for at in read.source.request.positions]
            write(pack, call.request, contents, call.policy.retrieval.redact_before_retrieval)
            if pack.appended is not None and call.last is not None:
                stored = call.last.stored
            else:
                stored = epochs.save(call.context.state, source.identity, read.epoch, pack.epoch)
            if source.first_call:
                self._meters.save(source, read.counter, call.context.state, store=call.policy.record != "off")
        name = pack_id(source.identity, source.step)
        last = Last(
            name=name,
            pack=pack,
            policy=call.policy,
            planned=call.planned,
            stored=stored,
            seen=read.seen,
            counter=read.counter,
            summarizer=read.summary_cost,
        )
        with self._lock:
            self._last[call.key] = last
        if call.policy.record != "off":
            self._recorder.pack(pack, call.policy, read.counter)
        self._failures.guarded(lambda: self._log(pack, name), None)
        return None

    async def _pack_plainly(self, context: CallbackContext, request: LlmRequest, reason: str) -> LlmResponse | None:
        """The request without plan and candidates, fitted by the default strategy; as it came where that fails, too."""
        with self._lock:
            self._last.pop(agent_key_of(context), None)
        try:
            call = Call(
                context=context,
                request=request,
                invocation=context.get_invocation_context(),
                policy=self.policy.changed(
                    on_invalid="warn", conversation={"strategy": _SIMPLE}, tools={"scope": "off"}
                ),
                planned=Planned(problems=(f"packed plainly after {reason}",)),
            )
            read = await Gatherer(SessionRecords()).gather(call)
            counter = counter_for("")
            pack = build_pack(read.source, call.policy, counter=counter)
            return self._settle(replace(read, counter=counter.name), pack)
        except BudgetExceededError:
            raise
        except Exception as error:
            self._failures.report(f"as it came: {type(error).__name__}: {error}", error)
        return None

    def _log(self, pack: Pack, name: str) -> None:
        if pack.over_window:
            logger.warning(
                "%s passes the window of %d tokens by %d: system instruction and declarations leave no room for less",
                name,
                pack.source.window,
                pack.over_window,
            )
        if not logger.isEnabledFor(logging.INFO):
            return
        identity = pack.identity
        place = self.store.uri_of(identity.app, identity.user, identity.session, name)
        place = place if self.policy.record != "off" else "not recorded"
        used = " ".join(f"{layer}={share.used}" for layer, share in pack.allocation.layers.items() if layer != "slack")
        logger.info("%s: %s, %d events, %s", name, used, len(pack.events), place)

    # what tools ask of the latest pack

    def _step(self, context: CallbackContext) -> str:
        """The key of the step that an agent's latest request was for; empty where it was for none."""
        last = self.last(context)
        if last is None or last.pack.source.validity == "unplanned":
            return ""
        return last.pack.source.step.key

    def _room(self, context: ToolContext) -> int:
        """Tokens for what one reader call answers: half of what the window has left, and a tenth of it at least."""
        last = self.last(context)
        most = READ_TOKENS
        if last is None:
            return most
        budget = last.pack.allocation.budget
        free = budget - last.pack.request_tokens
        calls = sum(len(event.get_function_calls()) for event in context.session.events[-1:]) or 1
        return max(1, min(most, max(free // 2, budget // 10) // calls))

    # after the call

    async def _after(self, context: CallbackContext, response: LlmResponse) -> None:
        if response.partial is True:
            return
        metadata: dict[str, Any] = self._failures.guarded(lambda: self.ledgers.track(context, response), {})
        last = self.last(context)
        if last is not None and last.pack.identity.invocation != context.invocation_id:
            last = None
        usage = reported(response.usage_metadata)
        review = await self._reviewed(last, response) if last is not None else None
        if last is not None:
            if usage.input_tokens is not None and not usage.tool_use_tokens and response.error_code is None:
                self._meters.reported(last.pack, last.counter, usage.input_tokens)
            # Where the model began to read: the last event that it did not.
            model = last.pack.source.request.model
            unread = last_unread(last.pack, context.session.events, lambda one: self._gatherer.read(one, model))
            cutoff = {"cutoff": unread.id} if unread is not None else {}
            metadata = {"pack_id": last.name, **self._meters.note(last.pack), **cutoff, **metadata}
            if review is not None and last.pack.source.step.acceptance:
                verdict = review.verdict
                metadata[ACCEPTANCE] = {"passed": verdict.passed, "missing": list(verdict.missing)}
        if metadata:
            response.custom_metadata = {**(response.custom_metadata or {}), METADATA: metadata}
        if last is None or self.policy.record == "off":
            return
        self._recorder.outcome(
            last.pack.identity,
            {
                "input_tokens": usage.input_tokens,
                "cached_tokens": usage.cached_tokens,
                "cache_write_tokens": usage.cache_write_tokens,
                "tool_use_tokens": usage.tool_use_tokens,
                "output_tokens": usage.output_tokens,
                "finish_reason": response.finish_reason.value if response.finish_reason is not None else None,
                "error_code": str(response.error_code) if response.error_code is not None else None,
                "model_version": response.model_version,
                **({"summarizer": last.summarizer} if last.summarizer else {}),
                **({ACCEPTANCE: review.to_json()} if review is not None else {}),
            },
        )

    async def _reviewed(self, last: Last, response: LlmResponse) -> Review | None:
        """The review of a final answer; none where it fails, so that the rest is recorded all the same."""
        try:
            return await self._reviewer.review(last.pack, response, last.policy.acceptance, last.planned.candidates)
        except Exception as error:
            self._failures.caught(error, "acceptance: ")
            return None


def _invalid(call: Call) -> LlmResponse:
    """The answer that names what a plan lacks.

    Raises:
        InvalidPlan: the policy's ``on_invalid`` is ``raise``.
    """
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
