"""The one place where packs meet ADK: read, gather, build, write back, record, and catch whatever fails."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from aether_context.adk import epochs
from aether_context.adk.gathering import Call, Gatherer, Last, scope_of
from aether_context.adk.recorder import Recorder
from aether_context.adk.usage import METADATA, Ledgers, note, reported
from aether_context.adk.writing import write
from aether_context.build import build_pack, extend_pack
from aether_context.counting import Memo
from aether_context.errors import BudgetExceededError, PolicyError, StepTooLarge
from aether_context.manifest import pack_id
from aether_context.pack import Ingredients, Pack
from aether_context.policy import LimitSettings, PackPolicy
from aether_context.state import Planned
from aether_context.store import PackStore
from aether_context.tokens import TokenCounter, counter_for
from aether_context.windows import model_window

_T = TypeVar("_T")

logger = logging.getLogger("aether_context")

OnError: TypeAlias = Literal["passthrough", "raise"]
_MOST_SCOPES = 512
_INSTANT_CHARACTERS = 500_000


class InvalidPlan(PolicyError):
    """The session's plan lacks what a pack needs, and the policy's ``on_invalid`` is ``raise``."""


class Edge:
    """Packs the requests of one plugin or one set of callbacks. Safe to share between sessions and event loops.

    Args:
        policy: a policy, a profile's name or the path of a TOML file; None takes ``AETHER_CONTEXT_POLICY``, else
            ``chat``.
        store: a store or an fsspec URL; None takes ``AETHER_CONTEXT_STORE``, else ``artifacts``.
        on_error: ``passthrough`` sends the request on whatever fails here, ``raise`` does not.
    """

    def __init__(
        self,
        policy: PackPolicy | str | Path | None = None,
        store: PackStore | str | None = None,
        on_error: OnError = "passthrough",
    ) -> None:
        if on_error not in ("passthrough", "raise"):
            raise PolicyError(f"on_error = {on_error!r}: it is 'passthrough' or 'raise'", field="on_error")
        if not isinstance(policy, PackPolicy):
            policy = PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None)
        if not isinstance(store, PackStore):
            store = PackStore(store or os.environ.get("AETHER_CONTEXT_STORE") or "artifacts")
        self.policy = policy
        self.store = store
        self.on_error = on_error
        self.ledgers = Ledgers(policy.limits)
        self._recorder = Recorder(store)
        self._gatherer = Gatherer()
        self._memo = Memo()
        self._last: OrderedDict[epochs.Scope, Last] = OrderedDict()
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
        try:
            return await self._pack(context, request)
        except (InvalidPlan, BudgetExceededError):
            raise
        except StepTooLarge as error:
            return self._refuse(error)
        except Exception as error:
            if self.on_error == "raise":
                raise
            self._tell(f"{type(error).__name__}: {error}", error)
            return await self._pack_plainly(context, request, type(error).__name__)

    async def after_model(self, context: CallbackContext, response: LlmResponse) -> None:
        """Records what became of the call, and names the pack in the event's metadata."""
        try:
            self._after(context, response)
        except Exception as error:
            if self.on_error == "raise":
                raise
            self._tell(f"{type(error).__name__}: {error}", error)

    async def flush(self, timeout_seconds: float = 10.0) -> None:
        """Waits, off the event loop, until every pack so far is in the store."""
        if not await asyncio.to_thread(self._recorder.flush, timeout_seconds):
            self._tell(f"packs are still waiting for {self.store.url}")

    # packing

    async def _pack(self, context: CallbackContext, request: LlmRequest) -> LlmResponse | None:
        call = Call.of(context, request)
        planned = self._gatherer.planned(call)
        policy = self._policy_for(planned.profile, context.agent_name)
        if planned.validity == "invalid" and policy.on_invalid != "warn" and not call.hands_off:
            return self._invalid(planned, policy)
        policy, planned = self._within_limits(call, policy, planned)
        scope = scope_of(context, call.invocation.branch)
        counter = counter_for(request.model or "")
        last = self._last.get(scope)
        gathered = self._gatherer.grown(call, planned, policy, last) if last is not None else None
        pack = None
        if gathered is not None and last is not None:
            pack = extend_pack(last.pack, gathered.source, policy, counter=counter, memo=self._memo)
        if gathered is None or pack is None:
            gathered = await self._gatherer.gather(call, planned, policy, last)
            pack = await self._build(gathered.source, policy, counter)
        refused = self._guarded(lambda: self.ledgers.admit(call, pack, policy), None)
        if refused is not None:
            return refused
        source = gathered.source
        stored: Mapping[str, Any] | None = None
        if not source.hands_off:
            write(pack, request, gathered.contents)
            stored = epochs.save(context.state, source.identity, gathered.epoch, pack.epoch)
        name = pack_id(source.identity, source.step)
        self._remember(
            scope, Last(name=name, pack=pack, policy=policy, planned=planned, stored=stored, seen=gathered.seen)
        )
        if policy.record != "off":
            self._recorder.pack(pack, policy, counter.name)
        self._log(pack, name)
        return None

    async def _pack_plainly(self, context: CallbackContext, request: LlmRequest, reason: str) -> LlmResponse | None:
        """The request without plan and candidates, fitted into the window; as it came where that fails, too."""
        try:
            planned = Planned(problems=(f"packed plainly after {reason}",))
            policy = PackPolicy(**{**self.policy.model_dump(), "on_invalid": "warn"})
            call = Call.of(context, request)
            gathered = await Gatherer().gather(call, planned, policy, None)
            counter = counter_for("")
            pack = build_pack(gathered.source, policy, counter=counter)
            refused = self._guarded(lambda: self.ledgers.admit(call, pack, policy), None)
            if refused is not None:
                return refused
            if not gathered.source.hands_off:
                write(pack, request, gathered.contents)
                epochs.save(context.state, gathered.source.identity, gathered.epoch, pack.epoch)
            if policy.record != "off":
                self._recorder.pack(pack, policy, counter.name)
        except BudgetExceededError:
            raise
        except Exception as error:
            self._tell(f"as it came: {type(error).__name__}: {error}", error)
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
            self._tell(f"{type(error).__name__}: {error}", error)
            return otherwise

    async def _build(self, source: Ingredients, policy: PackPolicy, counter: TokenCounter) -> Pack:
        """Builds a pack; off the event loop where the latest contents are so large that it would be felt."""
        latest = source.request.contents[-8:]
        if sum(len(part.text) for content in latest for part in content.parts) > _INSTANT_CHARACTERS:
            return await asyncio.to_thread(build_pack, source, policy, counter=counter, memo=self._memo)
        return build_pack(source, policy, counter=counter, memo=self._memo)

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
        return _answer("invalid_plan", f"This step cannot start: {planned.invalid_reason}. Restate the plan with it.")

    def _refuse(self, error: StepTooLarge) -> LlmResponse | None:
        if self.policy.on_invalid == "respond":
            return _answer("step_too_large", f"This step does not fit the model's window: {error}.")
        raise InvalidPlan(str(error), field="plan") from error

    # after the call

    def _after(self, context: CallbackContext, response: LlmResponse) -> None:
        if response.partial is True:
            return
        said: dict[str, Any] = self._guarded(lambda: self.ledgers.track(context, response), {})
        last = self._last.get(scope_of(context, context.get_invocation_context().branch))
        if last is not None and last.pack.identity.invocation != context.invocation_id:
            last = None
        if last is not None:
            said = {"pack_id": last.name, **said}
        if said:
            response.custom_metadata = {**(response.custom_metadata or {}), METADATA: said}
        if last is None or self.policy.record == "off":
            return
        usage = reported(response.usage_metadata)
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
            },
        )

    def _remember(self, scope: epochs.Scope, last: Last) -> None:
        with self._lock:
            self._last[scope] = last
            self._last.move_to_end(scope)
            if len(self._last) > _MOST_SCOPES:
                self._last.popitem(last=False)

    def _log(self, pack: Pack, name: str) -> None:
        if logger.isEnabledFor(logging.INFO):
            used = " ".join(f"{layer}={one.used}" for layer, one in pack.allocation.layers.items() if layer != "slack")
            logger.info("%s in %s: %s, %d events", name, self.store.url, used, len(pack.events))

    def _tell(self, reason: str, error: Exception | None = None) -> None:
        """Logs a failure, each kind of it once."""
        if reason not in self._told and len(self._told) < 1_000:
            self._told.add(reason)
            logger.warning("a request could not be packed in full: %s", reason, exc_info=error)


def _warm() -> None:
    """Loads what the first model call would otherwise wait for: numpy, the token table, the list of models."""
    counter_for("gemini").count("warm")
    model_window("gemini-2.5-flash")


def _answer(code: str, text: str) -> LlmResponse:
    return LlmResponse(
        content=types.Content(role="model", parts=[types.Part(text=text)]), error_code=code, error_message=text
    )
