"""Which packer a session has: one for all, one that only observes, or several arms that are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse

from aether_context.adk.call import origin_of, session_key
from aether_context.adk.failures import InvalidPlan, stands_back
from aether_context.adk.packer import RequestPacker
from aether_context.adk.second_try import copy_of
from aether_context.adk.wiring import PackerParts
from aether_context.canonical import hash_text, short
from aether_context.errors import BudgetExceededError, PolicyError, StepTooLarge
from aether_context.pack import OBSERVE
from aether_context.policy import PackPolicy

_DIGITS = 12


class Observer(RequestPacker):
    """Records what it would have sent, packed from a copy, and leaves every request as it is."""

    async def before_model(self, callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
        if stands_back(self._failures, callback_context, llm_request):
            return None
        escalate = callback_context.actions.escalate
        try:
            await super().before_model(callback_context, copy_of(llm_request))
        except (InvalidPlan, BudgetExceededError, StepTooLarge) as error:
            self._failures.report(f"as it would have ended the run: {type(error).__name__}: {error}")
        callback_context.actions.escalate = escalate  # a limit of the policy ends no run
        # So that a packer behind it knows this very request again.
        stands_back(self._failures, callback_context, llm_request)
        self._session(callback_context).first_try = None  # what is refused is not asked for again
        return None


def _packer(name: str, policy: PackPolicy | str | Path | None, options: Mapping[str, Any]) -> RequestPacker:
    if name == OBSERVE:
        options = {**options, "mirror_artifacts": False, "asks_models": False, "on_cut": None}
        return Observer(PackerParts(policy, **options, arm=name))
    return RequestPacker(PackerParts(policy, **options, arm=name))


class Arms:
    """The packers of a plugin, and which of them a session has.

    Args:
        arms: the share of sessions by policy, or by ``observe``.
        options: the arguments of `PackerParts`.
    """

    def __init__(
        self, policy: PackPolicy | str | Path | None, *, observe: bool, arms: Mapping[str, float] | None, **options: Any
    ) -> None:
        if arms is not None and (
            observe or not arms or min(arms.values()) <= 0 or not math.isclose(sum(arms.values()), 1)
        ):
            raise PolicyError(f"arms = {arms!r}: give shares above 0 that sum to 1, without observe=True", field="arms")
        if arms is not None and policy is not None and OBSERVE not in arms:
            raise PolicyError(f"policy = {policy!r} goes with no arm: each key of arms is a policy", field="policy")
        self._shares: Mapping[str, float] = arms or {}
        named = {name: policy if name == OBSERVE else name for name in arms or ()}
        named = named or {OBSERVE if observe else "": policy}
        self.packers = {name: _packer(name, arm_policy, options) for name, arm_policy in named.items()}

    @property
    def first(self) -> RequestPacker:
        return next(iter(self.packers.values()))

    def of(self, context: CallbackContext | InvocationContext) -> RequestPacker:
        """The packer of a session: by a hash of its id; of one that a tool of another runs that one's."""
        return self.packers[arm_of(origin_of(session_key(context))[2], self._shares)] if self._shares else self.first


def arm_of(session: str, shares: Mapping[str, float]) -> str:
    """The arm to which a session falls by its id."""
    point = int(short(hash_text(session), _DIGITS), 16) / 16**_DIGITS
    ends = zip(shares, accumulate(shares.values()), strict=True)
    return next((name for name, end in ends if point < end), list(shares)[-1])  # the sum may be a little below 1
