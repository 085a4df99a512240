"""Failures while a call is packed: reported once, raised where the caller wants it, or answered for the model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Literal, TypeAlias, TypeVar

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from aether_context.adk.bounds import failure
from aether_context.adk.call import ModelCall, agent_key_of
from aether_context.adk.request.sessions import AgentSession
from aether_context.adk.tracing import PackSpan
from aether_context.errors import BudgetExceededError, PolicyError
from aether_context.store.layout import manifest_uri

logger = logging.getLogger("aether_context")

OnError: TypeAlias = Literal["passthrough", "raise"]
_T = TypeVar("_T")

_MOST_TOLD = 8
_MOST_WARNINGS = 1_000


_First: TypeAlias = tuple[tuple[str, ...], LlmRequest | None, "Failures | None"]
_FIRST: ContextVar[_First] = ContextVar("aether_context_first", default=((), None, None))
"""Which agent is at work in which invocation, its latest request, and the packer that came to that first, by
its failures."""


class InvalidPlan(PolicyError):
    """The session's plan lacks what a pack needs, and the policy's ``on_invalid`` is ``raise``."""


class Failures:
    """Reports the failures of one packer, each kind of it once; under ``raise`` they are the caller's. ``url`` is that
    of the packer's store."""

    def __init__(self, on_error: OnError, url: str) -> None:
        if on_error not in ("passthrough", "raise"):
            raise PolicyError(f"on_error = {on_error!r}: it is 'passthrough' or 'raise'", field="on_error")
        self.url = url
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

    def report_pack(self, session: AgentSession, span: PackSpan) -> None:
        """Tells the log and the trace what an agent's latest pack came to."""
        if (last_call := session.last) is None:
            return
        pack, name = last_call.pack, last_call.name
        identity, uri = pack.identity, manifest_uri(name) if last_call.position.number else ""
        span.record_pack(pack, name, uri)
        source, mark = pack.source, pack.source.host.window_mark
        if mark.startswith("default") and mark not in session.logged_marks:
            session.logged_marks.add(mark)
            logger.info("%s: the window is %d tokens (%s), see max_input_tokens", name, source.window, mark)
        for problem in pack.verdict.problems:
            if problem.startswith(("strategy ", "offload.tools: ")):
                self.report(problem)
        if pack.tokens.over_window and not source.host.passthrough_reason:
            self.warn_once(
                f"the window of {source.window:,} tokens is too small for agent {identity.agent!r}: instruction,"
                " declarations and current message are never cut; raise max_input_tokens, or give it less of them"
            )
        if logger.isEnabledFor(logging.INFO):
            shares = pack.allocation.layers.items()
            used = " ".join(f"{layer}={share.used}" for layer, share in shares if layer != "slack")
            logger.info("%s: %s, %d events, %s", name, used, len(pack.events), uri or "not recorded")


def invalid_answer(call: ModelCall) -> LlmResponse:
    """The answer that names what a plan lacks, or the error where the policy's ``on_invalid`` is ``raise``."""
    planned = call.planned
    if call.policy.on_invalid == "raise":
        raise InvalidPlan(f"{planned.invalid_reason}: restate it in state['plan']", field="plan")
    problems = [f"- {problem.removeprefix('state ')}" for problem in planned.problems if problem.startswith("state ")]
    text = f"This step cannot start: {planned.invalid_reason}. Restate the plan with it."
    return answer_in_place("invalid_plan", "\n".join([text, *problems[:_MOST_TOLD]]))


def answer_in_place(code: str, text: str) -> LlmResponse:
    return LlmResponse(
        content=types.Content(role="model", parts=[types.Part(text=text)]), error_code=code, error_message=text
    )


def stands_back(failures: Failures, context: CallbackContext, request: LlmRequest | None = None) -> bool:
    """Tells whether another packer came first to an agent in an invocation: two would undo each other's prefix, which
    they keep in the same session state."""
    key = (*agent_key_of(context), context.invocation_id)
    previous_key, previous_request, first = _FIRST.get()
    if previous_key != key or (request is not None and previous_request is not request):
        _FIRST.set((key, request, failures))
    elif first is not None and first is not failures:
        failures.warn_once(
            f"agent {context.agent_name!r} has two packers, ContextPackPlugin or context_pack_callbacks: the "
            f"one for {failures.url} does nothing, since that for {first.url} came first; remove one of the two"
        )
        return True
    return False
