"""Learning from a model's answer, or an error in its place: usage, limits, the verdict on it; and its record."""

from __future__ import annotations

import logging
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from aether_context.adk.acceptance import ACCEPTANCE
from aether_context.adk.call import PreviousCall, session_key
from aether_context.adk.overflow import Overflow, overflow_of
from aether_context.adk.request.entries import LENGTH
from aether_context.adk.request.sessions import AgentSession
from aether_context.adk.session import distrust_thoughts
from aether_context.adk.tracing import count_cached, trace_loss
from aether_context.adk.usage import Reported, reported
from aether_context.adk.windows import STATE_KEY as WINDOWS
from aether_context.adk.windows import Limits
from aether_context.adk.wiring import PackerParts
from aether_context.evidence.record import READERS
from aether_context.pack import METADATA, OBSERVE, Pack
from aether_context.packing.compaction import mark_tokens
from aether_context.policy import PackPolicy
from aether_context.store.layout import manifest_uri
from aether_context.usage import CallUsage
from aether_context.usage.cache import MENDABLE, CachedCall, cache_loss
from aether_context.usage.calibration import estimated

logger = logging.getLogger("aether_context")

_CACHE_LOST = "session {!r}: the provider's cache did not serve what it had: `aether-context list` says at which calls"


def _sent_text(last: PreviousCall | None) -> str:
    """All that a request said, which a refusal may repeat."""
    if last is None:
        return ""
    tools = (tool.wire for tool in last.pack.source.request.tools)
    parts = (part.text or part.wire for outgoing in last.pack.contents for part in outgoing.content.parts)
    return "\n".join([last.pack.system, *tools, *parts])


def _meter(pack: Pack, policy: PackPolicy) -> dict[str, Any]:
    """How full the window was, in tokens as the provider is expected to count them: the window, those that may be sent,
    those of each layer that were, and those that are left before the next cut, as far as the policy's mark tells."""
    allocation, calibration, tokens = pack.allocation, pack.source.usage.calibration, pack.tokens
    budget = allocation.window - allocation.slack
    mark = mark_tokens(calibration, policy.conversation.compact_at or 1, allocation.budget, budget)
    until_cut = max(0, estimated(calibration, mark) - estimated(calibration, tokens.counted))
    share = tokens.expected / max(1, tokens.counted)
    used = {layer: round(share * row.used) for layer, row in allocation.layers.items() if row.used}
    return {"window": pack.source.window, "budget": budget, "used": used, "until_cut": until_cut}


class Learning:
    """Learns from the answers of models, and records them. Safe to share between sessions and event loops."""

    def __init__(self, parts: PackerParts) -> None:
        self._parts = parts

    async def learn_answer(self, context: CallbackContext, session: AgentSession, response: LlmResponse) -> None:
        """Learns from an answer, which may be a refusal, and records it."""
        error = f"{response.error_code} {response.error_message}" if response.error_code is not None else ""
        refused = overflow_of(error, _sent_text(session.last)) if error else None
        await self._learn(context, session, response, refused)

    async def learn_failure(
        self, context: CallbackContext, session: AgentSession, request: LlmRequest, error: Exception, again: bool
    ) -> Limits | None:
        """Records an error in the place of an answer; returns what a second try has to keep to, None where that would
        not help.

        Args:
            again: whether it ended a second try.
        """
        refused = overflow_of(error, _sent_text(session.last))
        code = type(error).__name__ if refused is None or refused.of_thoughts else "context_window_exceeded"
        response = LlmResponse(error_code=code, error_message=str(error))
        return await self._learn(context, session, response, refused, request.model, again)

    async def _learn(
        self,
        context: CallbackContext,
        session: AgentSession,
        response: LlmResponse,
        refused: Overflow | None,
        model: str | None = None,
        again: bool = False,
    ) -> Limits | None:
        """Learns from an answer, or from an error in its place, and records it; returns the limits for a second try.

        Args:
            refused: what the error says of a request that was too long.
            model: the one that raised it, by name.
            again: whether it ended a second try.
        """
        limits: Limits | None = None
        last = session.last
        usage, verdict = reported(response.usage_metadata, response.model_version), None
        metadata: dict[str, Any] = self._parts.failures.guarded(
            lambda: self._parts.ledgers.track(context, response, usage, session), {}
        )
        if last is not None and (last.pack.identity.invocation != context.invocation_id or not last.policy.enabled):
            last = None
        if last is not None:
            pack, owner, learns = last.pack, session.owner, self._parts.arm != OBSERVE  # else it was not sent
            try:
                verdict = await self._parts.reviewer.review(last, response, context.session.events)
            except BaseException as error:  # the rest is recorded all the same
                self._parts.failures.caught(error, "acceptance: ")
            if refused is not None and refused.of_thoughts:
                owner.refused = context.invocation_id, distrust_thoughts(context.state, pack.identity)
                limits = {} if any(item.content.signed_thoughts for item in pack.contents) else None
            elif refused is not None and learns:
                windows_before = context.state.get(WINDOWS)
                limits = self._parts.windows.learn(context, owner.taught, pack, last.policy, refused, model, again)
                limits = limits or None
                if (learned := context.state.get(WINDOWS)) != windows_before:
                    owner.refused = context.invocation_id, {WINDOWS: learned}
                if refused.sent_tokens is not None:  # by so much the estimate of the request was wrong
                    self._parts.calibrations.reported(session, pack, last.counter, refused.sent_tokens, refused=True)
            if learns and usage.input_tokens is not None and not usage.tool_use_tokens and response.error_code is None:
                self._parts.calibrations.reported(session, pack, last.counter, usage.input_tokens)
            count_cached(pack, usage.cached_tokens)
            self._parts.failures.guarded(lambda: self._watch_cache(session, last, usage), None)
            metadata = {**self._facts(session, last), **metadata}
            if verdict is not None and pack.source.step.acceptance:
                metadata[ACCEPTANCE] = {"passed": verdict.passed, "missing": list(verdict.missing)}
        # With the event, so that whoever serves the session next decides as this process would. Tools and models write
        # session state; the metadata is written by callbacks alone, and not sent to the model.
        if metadata:
            response.custom_metadata = {**(response.custom_metadata or {}), METADATA: metadata}
        if last is None or self._parts.policy.record == "off":
            return limits
        outcome = {
            **usage._asdict(),
            "finish_reason": response.finish_reason.value if response.finish_reason is not None else None,
            "error_code": str(response.error_code) if response.error_code is not None else None,
            "model_version": response.model_version,
            **({"summarizer": last.summarizer} if last.summarizer else {}),
            **({ACCEPTANCE: verdict.to_json()} if verdict is not None else {}),
        }
        self._parts.recorder.outcome(last.pack.identity, self._parts.policy.mask.json(outcome))
        return limits

    def _facts(self, session: AgentSession, last: PreviousCall) -> dict[str, Any]:
        """What an answer's event says of its request."""
        details = {"cutoff": last.cutoff, LENGTH: last.length, "step": last.planned.step.step_id, "notice": last.notice}
        manifest = {"manifest": manifest_uri(last.name)} if last.position.number else {}
        return {
            "pack_id": last.name,
            **last.position._asdict(),
            **self._parts.calibrations.note(session, last.pack),
            **{name: value for name, value in details.items() if value},
            "meter": _meter(last.pack, last.policy),
            **manifest,
        }

    def _watch_cache(self, session: AgentSession, last: PreviousCall, usage: Reported) -> None:
        """Tells the trace what a provider's cache had of a call and did not serve, and once a session also the log,
        where the app can mend it."""
        pack, name = last.pack, last.name
        identity, tokens = pack.identity, pack.tokens
        shared_tokens = tokens.expected * (pack.prefix.shared_tokens or 0) // max(1, tokens.counted)
        call = CallUsage.of_outcome(usage._asdict(), tokens.expected, shared_tokens)
        if call is None or call.input_estimated:
            return
        tools = tuple(tool.name for tool in pack.tools.sent)
        cached = CachedCall(pack.source.request.model, identity.last_event_time, tools, call)
        answered, earlier = session.cached or ("", cached)
        session.cached = name, cached
        loss = cache_loss(earlier, cached, pack.prefix, READERS) if answered not in ("", name) else None
        if loss is not None:
            trace_loss(loss)
        if loss is not None and loss.breaker in MENDABLE and usage.cached_tokens is not None:
            self._parts.failures.warn_once(_CACHE_LOST.format(identity.session))

    async def keep_refusal(self, invocation: InvocationContext) -> None:
        """Keeps what the run learned before it failed: ADK has dropped the state of the call that did."""
        session = self._parts.sessions.get(session_key(invocation))
        invocation_id, learned = session.refused if session is not None else ("", {})
        try:
            if session is not None and invocation_id == invocation.invocation_id:
                session.refused = "", {}
                # By the user, since ADK resumes a session with the agent that spoke last.
                actions = EventActions(state_delta=dict(learned))
                event = Event(author="user", invocation_id=invocation.invocation_id, actions=actions)
                await invocation.session_service.append_event(invocation.session, event)
        except Exception as error:  # the next call keeps it, then
            logger.info("what a refusal taught is not in the session yet: %s", type(error).__name__)
