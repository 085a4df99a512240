"""The one place where packs meet ADK: read, gather, build, write back, record, and catch whatever fails."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from cachetools import LRUCache
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.acceptance import ACCEPTANCE, AcceptanceCheck, Review, Reviewer, noted
from aether_context.adk.evidence.offload import Offloader
from aether_context.adk.evidence.readback import Library, ReadArtifact, SearchArtifact, conceal, declare
from aether_context.adk.models.gemini import register_counters
from aether_context.adk.models.texts import ModelSummarizer, SummaryResult
from aether_context.adk.request.inputs import Call, Gathered, Gatherer, Last, scope_of
from aether_context.adk.request.marks import last_unread
from aether_context.adk.request.recall import Recall, Shelves
from aether_context.adk.request.tool_search import finder
from aether_context.adk.request.writer import write
from aether_context.adk.services.recorder import Mirror, Recorder
from aether_context.adk.session import epochs
from aether_context.adk.session.records import SessionRecords
from aether_context.adk.usage import METADATA, Ledgers, Meters, note, reported
from aether_context.conversation import strategies_of
from aether_context.errors import BudgetExceededError, PolicyError, StepTooLarge, TokenCountingError
from aether_context.pack import Pack, PackInput
from aether_context.packing import build_pack, extend_pack
from aether_context.policy import LimitSettings, PackPolicy
from aether_context.state import Planned
from aether_context.store import PackStore, pack_id
from aether_context.tokens import Counters, Pick, counter_for
from aether_context.tokens.cache import TokenCache
from aether_context.tokens.model_limits import model_window

_T = TypeVar("_T")

logger = logging.getLogger("aether_context")

OnError: TypeAlias = Literal["passthrough", "raise"]
_MOST_SCOPES = 512
_SUMMARY_ROUNDS = 2
_MOST_TOLD = 8
READ_TOKENS = 2_000
"""The most that one call of ``read_artifact`` or ``search_artifact`` answers with."""
_INSTANT_CHARACTERS = 500_000
_INSTANT_TOOLS = 50
_SIMPLE = ("epochs",)
"""The strategy where another one, or what else a pack consists of, failed."""


class InvalidPlan(PolicyError):
    """The session's plan lacks what a pack needs, and the policy's ``on_invalid`` is ``raise``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """A pack with what it came from. ``counter`` is the counter's identity, ``cost`` what a model's summaries cost."""

    gathered: Gathered
    pack: Pack
    policy: PackPolicy
    planned: Planned
    counter: str
    cost: Mapping[str, int] = field(default_factory=dict)


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
    ) -> None:
        if on_error not in ("passthrough", "raise"):
            raise PolicyError(f"on_error = {on_error!r}: it is 'passthrough' or 'raise'", field="on_error")
        if not isinstance(policy, PackPolicy):
            policy = PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None)
        if not isinstance(store, PackStore):
            store = PackStore(store or os.environ.get("AETHER_CONTEXT_STORE") or "artifacts")
        policy = with_environment(policy)
        if summarizer is not None:
            policy = policy.changed(compress={"summarizer": summarizer.model})
        if critic is not None:
            policy = policy.changed(acceptance={"critic": critic.model})
        strategies_of(policy.conversation)
        self.policy = policy
        self.store = store
        self.on_error = on_error
        self._mirror = Mirror(self._report) if mirror_artifacts else None
        self._recorder = recorder or Recorder(store, self._mirror.put if self._mirror is not None else None)
        self._meters = Meters(store, self._recorder.calibration)
        self._summarizer = ModelSummarizer(store, self._recorder.summary, summarizer)
        self._summarizer.check(policy.compress.summarizer)
        self._reviewer = Reviewer(checks, critic)
        self._reviewer.check(policy.acceptance)
        self.ledgers = Ledgers(policy.limits)
        records = SessionRecords()
        self._records = records
        self._gatherer = Gatherer(records)
        self._recall = Recall(Shelves(self._recorder.store, self._recorder.later))
        self._recall.check(policy.retrieval.embedder)
        self._offloader = Offloader(policy, store, self._recorder, records, self._report, self._step)
        library = Library(self._recorder.store, records, policy.retrieval.redact_before_retrieval)
        self._readers = (ReadArtifact(library, self._room), SearchArtifact(library, self._room))
        register_counters()
        self._counters = Counters(policy.tokens, clock=time.monotonic)
        self._cache = TokenCache()
        self._last: LRUCache[epochs.AgentKey, Last] = LRUCache(_MOST_SCOPES)
        self._profiles: dict[str, PackPolicy] = {}
        self._economical: dict[tuple[str, int], PackPolicy] = {}
        self._told: set[str] = set()
        self._lock = threading.Lock()
        threading.Thread(target=_warm, name="aether-context-warm-up", daemon=True).start()

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

    async def before_model(self, context: CallbackContext, request: LlmRequest) -> LlmResponse | None:
        """Packs one request in place. Returns an answer only where the policy gives one in the model's place.

        That is where a plan is invalid, or where a limit would be passed.
        """
        self._mirrored(context)
        try:
            return await self._pack(context, request)
        except (InvalidPlan, BudgetExceededError):
            raise
        except StepTooLarge as error:
            return self._refuse(error)
        except Exception as error:
            if self.on_error == "raise":
                raise
            self._report(f"{type(error).__name__}: {error}", error)
            return await self._pack_plainly(context, request, type(error).__name__)

    async def after_model(self, context: CallbackContext, response: LlmResponse) -> None:
        """Records what became of the call, and names the pack in the event's metadata."""
        self._mirrored(context)
        try:
            await self._after(context, response)
        except Exception as error:
            if self.on_error == "raise":
                raise
            self._report(f"{type(error).__name__}: {error}", error)

    async def after_tool(
        self, tool: BaseTool, arguments: Mapping[str, Any], context: ToolContext, result: object
    ) -> dict[str, Any] | None:
        """What takes a tool's result's place in the session; None where it stays."""
        try:
            return await self._offloader.after_tool(tool, arguments, context, result)
        except Exception as error:
            if self.on_error == "raise":
                raise
            self._report(f"{type(error).__name__}: {error}", error)
            return None

    async def flush(self, timeout_seconds: float = 10.0, invocation: InvocationContext | None = None) -> None:
        """Waits, off the event loop, until every pack so far is in the store, and those of an invocation mirrored."""
        if not await asyncio.to_thread(self._recorder.flush, timeout_seconds):
            self._report(f"packs are still waiting for {self.store.url}")
        if self._mirror is not None and invocation is not None:
            await self._mirror.finish(invocation)

    def _mirrored(self, context: CallbackContext) -> None:
        mirror = self._mirror
        if mirror is not None:
            self._guarded(lambda: mirror.go_on(context), None)

    # packing

    async def _pack(self, context: CallbackContext, request: LlmRequest) -> LlmResponse | None:
        call = Call.of(context, request)
        planned = self._with_evidence(call, self._gatherer.planned(call))
        policy = self._policy_for(planned.profile, context.agent_name)
        self._tell_of(planned)
        if planned.validity == "invalid" and policy.on_invalid != "warn" and not call.passthrough_reason:
            return self._invalid(planned, policy)
        policy, planned = self._within_limits(call, policy, planned)
        built = await self._built(call, planned, policy)
        return self._settle(call, built)

    def _with_evidence(self, call: Call, planned: Planned) -> Planned:
        """Shows extracts, declares the readers of what the session keeps, and notes what could not be offloaded."""
        keeps = bool(self._records.of(call.context).readings())
        if call.passthrough_reason or (self.policy.offload.mode == "off" and not keeps):
            return planned
        self._offloader.show(call.context, call.request)
        if not declare(call.request, self._readers) and keeps:
            conceal(call.request)
        session = call.context.session
        problems = self._offloader.take_problems((session.app_name, session.user_id, session.id))
        return replace(planned, problems=(*planned.problems, *problems)) if problems else planned

    def _step(self, context: CallbackContext) -> str:
        """The key of the step that an agent's latest request was for; empty where it was for none."""
        last = self._last.get(scope_of(context, context.get_invocation_context().branch))
        if last is None or last.pack.source.validity == "unplanned":
            return ""
        return last.pack.source.step.key

    def _room(self, context: ToolContext) -> int:
        """Tokens for what one reader call answers: half of what the window has left, and a tenth of it at least."""
        last = self._last.get(scope_of(context, context.get_invocation_context().branch))
        most = READ_TOKENS
        if last is None:
            return most
        budget = last.pack.allocation.budget
        free = budget - last.pack.request_tokens
        calls = sum(len(event.get_function_calls()) for event in context.session.events[-1:]) or 1
        return max(1, min(most, max(free // 2, budget // 10) // calls))

    async def _built(self, call: Call, planned: Planned, policy: PackPolicy) -> _Built:
        """The pack by the best counter that works; one that fails gives way to the next."""
        model = call.request.model or ""
        last = self._last.get(scope_of(call.context, call.invocation.branch))
        gathered: Gathered | None = None
        while True:
            pick = self._counters.ready(model)
            if pick is None:
                pick = await asyncio.to_thread(self._counters.pick, model)
            counter = pick.counter.name
            before = last if last is not None and last.counter == counter else None
            try:
                grown = self._gatherer.grown(call, planned, policy, before) if before is not None else None
                if grown is not None and before is not None:
                    grown = self._calibrated(call, grown, policy, counter)
                    pack = await self._extend(before.pack, grown.source, policy, pick)
                    if pack is not None:
                        return _Built(gathered=grown, pack=pack, policy=policy, planned=planned, counter=counter)
                gathered = gathered or await self._gathered(call, planned, policy, last)
                await self._meters.begin(gathered.source, counter, call.state)
                told = gathered if before is not None else _with_problems(gathered, pick.problems)
                told = self._calibrated(call, told, policy, counter)
                pack = await self._build(told.source, policy, pick)
                looked_at = told.source.epoch.cut_count if told.source.first_call else 0
                cut = pack.epoch.cut_count > looked_at
                if pack.chose and (cut or pack.stands_in) and told.source.searched is None:
                    whole = {told.source.request.positions[at] for at in pack.whole}
                    # A cut makes room; a strategy that puts placeholders has to find it among what it still sends.
                    budget = pack.allocation.budget
                    free = None if cut else max(budget // 10, (budget - pack.request_tokens) // 2)
                    told = await self._recalled(call, told, policy, whole, most=free)
                    if told.source.searched is not None:
                        pack = await self._build(told.source, policy, pick)
                pack, result = await self._written(pack, policy, pick)
                return _Built(
                    gathered=told,
                    pack=pack,
                    policy=policy,
                    planned=planned,
                    counter=counter,
                    cost=result.cost.to_json(),
                )
            except TokenCountingError as error:
                self._counters.fail(model, pick, error)
                self._report(str(error))

    async def _gathered(self, call: Call, planned: Planned, policy: PackPolicy, last: Last | None) -> Gathered:
        """The input with their candidates ranked, turns that earlier cuts took among them."""
        gathered = await self._gatherer.gather(call, planned, policy, last)
        source = await self._recall.rank(gathered.source, policy)
        gathered = replace(gathered, source=source)
        if not source.first_call or not source.epoch.cut_count:
            return gathered
        return await self._recalled(call, gathered, policy, frozenset(source.request.positions))

    async def _recalled(
        self, call: Call, gathered: Gathered, policy: PackPolicy, sent: Collection[int], *, most: int | None = None
    ) -> Gathered:
        """The input with turns that answer the request and are not sent whole any more.

        Args:
            sent: positions of the contents that are sent whole.
            most: as of `Recall.turns`.
        """
        model = call.request.model or ""
        source = await self._recall.turns(
            gathered.source,
            policy,
            gathered.history,
            call.context.session.events,
            sent,
            lambda content: self._gatherer.read(content, model),
            most=most,
        )
        return replace(gathered, source=source)

    def _calibrated(self, call: Call, gathered: Gathered, policy: PackPolicy, counter: str) -> Gathered:
        known = self._meters.calibration(gathered.source, counter, policy.usage, call.context.session.events)
        return gathered if known is None else replace(gathered, source=replace(gathered.source, calibration=known))

    async def _written(self, pack: Pack, policy: PackPolicy, pick: Pick) -> tuple[Pack, SummaryResult]:
        """The pack with the summaries that a model writes for it by the deadline.

        A summary may be shorter than what stood in its place and so change what else fits, hence a second round.
        """
        result = SummaryResult()
        problems = pack.source.problems
        for _ in range(_SUMMARY_ROUNDS):
            if not pack.summary_requests or result.problems:
                break
            await self._summarizer.answer(pack.summary_requests, pack.identity, policy, result)
            told = (*problems, *dict.fromkeys(result.problems))
            pack = await self._build(replace(pack.source, summaries=dict(result.texts), problems=told), policy, pick)
        return pack, result

    def _settle(self, call: Call, built: _Built) -> LlmResponse | None:
        """Writes a pack into the request, and keeps what the next call and the record need of it.

        Returns an answer in the model's place where a limit stands against the call.
        """
        pack, policy, context = built.pack, built.policy, call.context
        refused = self._guarded(lambda: self.ledgers.admit(call, pack), None)
        if refused is not None:
            return refused
        source = pack.source
        stored: Mapping[str, Any] | None = None
        if not source.passthrough_reason:
            write(pack, call.request, built.gathered.contents, finder(pack, policy.retrieval.redact_before_retrieval))
            stored = epochs.save(context.state, source.identity, built.gathered.epoch, pack.epoch)
            if source.first_call:
                self._meters.save(source, built.counter, context.state, store=policy.record != "off")
        name = pack_id(source.identity, source.step)
        last = Last(
            name=name,
            pack=pack,
            policy=policy,
            planned=built.planned,
            stored=stored,
            seen=built.gathered.seen,
            counter=built.counter,
            summarizer=built.cost,
        )
        self._remember(epochs.agent_key(source.identity), last)
        if policy.record != "off":
            self._recorder.pack(pack, policy, built.counter)
        self._guarded(lambda: self._log(pack, name), None)
        return None

    async def _pack_plainly(self, context: CallbackContext, request: LlmRequest, reason: str) -> LlmResponse | None:
        """The request without plan and candidates, fitted by the default strategy; as it came where that fails, too."""
        self._last.pop(scope_of(context, context.get_invocation_context().branch), None)
        try:
            planned = Planned(problems=(f"packed plainly after {reason}",))
            policy = self.policy.changed(on_invalid="warn", conversation={"strategy": _SIMPLE}, tools={"scope": "off"})
            call = Call.of(context, request)
            gathered = await Gatherer(SessionRecords()).gather(call, planned, policy, None)
            counter = counter_for("")
            pack = build_pack(gathered.source, policy, counter=counter)
            built = _Built(gathered=gathered, pack=pack, policy=policy, planned=planned, counter=counter.name)
            return self._settle(call, built)
        except BudgetExceededError:
            raise
        except Exception as error:
            self._report(f"as it came: {type(error).__name__}: {error}", error)
        return None

    def _within_limits(self, call: Call, policy: PackPolicy, planned: Planned) -> tuple[PackPolicy, Planned]:
        """The policy to pack with, and the plan with a note, where a limit is near."""
        pressure = self._guarded(lambda: self.ledgers.enter(call), None)
        if pressure is None:
            return policy, planned
        key = (policy.digest, pressure.level)
        if key not in self._economical:
            self._economical[key] = policy.economical(pressure.level)
        return self._economical[key], replace(planned, problems=(*planned.problems, note(pressure)))

    def _guarded(self, act: Callable[[], _T], otherwise: _T) -> _T:
        """What accounting gives; where it fails, the request is packed all the same."""
        try:
            return act()
        except BudgetExceededError:
            raise
        except Exception as error:
            if self.on_error == "raise":
                raise
            self._report(f"{type(error).__name__}: {error}", error)
            return otherwise

    async def _build(self, source: PackInput, policy: PackPolicy, pick: Pick) -> Pack:
        """Builds a pack; off the event loop where that would be felt: large contents, many tools to choose from for the
        first time, or a provider that is asked."""
        latest = source.request.contents[-8:]
        large = sum(len(part.text) for content in latest for part in content.parts) > _INSTANT_CHARACTERS
        many = len(source.request.tools) > _INSTANT_TOOLS and not source.epoch.tools
        if large or many or pick.remote:
            return await asyncio.to_thread(build_pack, source, policy, counter=pick.counter, cache=self._cache)
        return build_pack(source, policy, counter=pick.counter, cache=self._cache)

    async def _extend(self, before: Pack, source: PackInput, policy: PackPolicy, pick: Pick) -> Pack | None:
        """Extends a pack where that is possible; off the event loop where a provider is asked."""
        if pick.remote:
            return await asyncio.to_thread(extend_pack, before, source, policy, counter=pick.counter, cache=self._cache)
        return extend_pack(before, source, policy, counter=pick.counter, cache=self._cache)

    def _policy_for(self, profile: str | None, agent: str) -> PackPolicy:
        wanted = profile or self.policy.agents.get(agent)
        if wanted is None or wanted == self.policy.profile:
            return self.policy
        if wanted not in self._profiles:
            self._profiles[wanted] = self.policy.for_profile(wanted)
        return self._profiles[wanted]

    # answers in the model's place

    def _invalid(self, planned: Planned, policy: PackPolicy) -> LlmResponse:
        if policy.on_invalid == "raise":
            raise InvalidPlan(f"{planned.invalid_reason}: restate it in state['plan']", field="plan")
        told = [f"- {problem.removeprefix('state ')}" for problem in planned.problems if problem.startswith("state ")]
        text = f"This step cannot start: {planned.invalid_reason}. Restate the plan with it."
        return _answer("invalid_plan", "\n".join([text, *told[:_MOST_TOLD]]))

    def _refuse(self, error: StepTooLarge) -> LlmResponse | None:
        if self.policy.on_invalid == "respond":
            return _answer("step_too_large", f"This step does not fit the model's window: {error}.")
        raise error

    # after the call

    async def _after(self, context: CallbackContext, response: LlmResponse) -> None:
        if response.partial is True:
            return
        said: dict[str, Any] = self._guarded(lambda: self.ledgers.track(context, response), {})
        last = self._last.get(scope_of(context, context.get_invocation_context().branch))
        if last is not None and last.pack.identity.invocation != context.invocation_id:
            last = None
        usage = reported(response.usage_metadata)
        review = await self._reviewed(last, response) if last is not None else None
        if last is not None:
            if usage.input_tokens is not None and not usage.tool_use_tokens and response.error_code is None:
                self._meters.reported(last.pack, last.counter, usage.input_tokens, last.policy.usage)
            said = {"pack_id": last.name, **self._meters.note(last.pack), **self._cutoff(context, last.pack), **said}
            if review is not None and last.pack.source.step.acceptance:
                said[ACCEPTANCE] = noted(review)
        if said:
            response.custom_metadata = {**(response.custom_metadata or {}), METADATA: said}
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
            if self.on_error == "raise":
                raise
            self._report(f"acceptance: {type(error).__name__}: {error}", error)
            return None

    def _cutoff(self, context: CallbackContext, pack: Pack) -> dict[str, str]:
        """The last event that the model did not read, where there is one."""
        model = pack.source.request.model
        event = last_unread(pack, context.session.events, lambda content: self._gatherer.read(content, model))
        return {"cutoff": event.id} if event is not None else {}

    def _remember(self, scope: epochs.AgentKey, last: Last) -> None:
        with self._lock:
            self._last[scope] = last

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
        used = " ".join(f"{layer}={one.used}" for layer, one in pack.allocation.layers.items() if layer != "slack")
        logger.info("%s: %s, %d events, %s", name, used, len(pack.events), place)

    def _tell_of(self, planned: Planned) -> None:
        """Logs what of a session's state was ignored, and why a plan is invalid, each once."""
        reasons = [problem for problem in planned.problems if problem.startswith("state ")]
        reasons += [f"the plan is invalid: {planned.invalid_reason}"] if planned.invalid_reason else []
        for reason in reasons:
            self._warn_once(reason)

    def _report(self, reason: str, error: Exception | None = None) -> None:
        """Logs a failure, each kind of it once."""
        self._warn_once(f"a request could not be packed in full: {reason}", error)

    def _warn_once(self, message: str, error: Exception | None = None) -> None:
        if message not in self._told and len(self._told) < 1_000:
            self._told.add(message)
            logger.warning("%s", message, exc_info=error)


def with_environment(policy: PackPolicy) -> PackPolicy:
    """A policy with what ``AETHER_CONTEXT_SLIDING_TOKENS`` says.

    Raises:
        PolicyError: it is not a whole number of tokens.
    """
    said = os.environ.get("AETHER_CONTEXT_SLIDING_TOKENS", "").strip()
    if not said:
        return policy
    if not said.isdecimal():
        raise PolicyError(
            f"AETHER_CONTEXT_SLIDING_TOKENS = {said!r}: give a number of tokens, or 0 for off",
            field="conversation.sliding_turns.tokens",
            source="AETHER_CONTEXT_SLIDING_TOKENS",
        )
    return policy.changed(conversation={"sliding_turns": {"tokens": int(said)}})


def _with_problems(gathered: Gathered, problems: tuple[str, ...]) -> Gathered:
    source = gathered.source
    return replace(gathered, source=replace(source, problems=(*source.problems, *problems)))


def _warm() -> None:
    """Loads what the first model call would otherwise wait for: numpy, the token table, the list of models."""
    counter_for("gemini").count("warm")
    model_window("gemini-2.5-flash")


def _answer(code: str, text: str) -> LlmResponse:
    return LlmResponse(
        content=types.Content(role="model", parts=[types.Part(text=text)]), error_code=code, error_message=text
    )
