"""The plugin, and the same as agent callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from aether_context.adk.acceptance import AcceptanceCheck
from aether_context.adk.arms import Arms
from aether_context.adk.call import calling
from aether_context.adk.failures import OnError
from aether_context.adk.on_cut import OnCut
from aether_context.errors import PolicyError
from aether_context.policy import PRESETS, PROFILES, LimitSettings, PackPolicy
from aether_context.store import PackStore
from aether_context.usage import LedgerReport


class ContextPackPlugin(BasePlugin):
    """Packs the request of every model call of an app, and records it.

        App(name="…", root_agent=agent, plugins=[ContextPackPlugin()])

    Put it last in the list of plugins: what it counts is then what is sent. One instance serves many sessions.

    Args:
        name: the plugin's name in ADK; a policy that is given by position is taken for what it is.
        policy: a policy, a profile's name or the path of a TOML file; None takes the environment variable
            ``AETHER_CONTEXT_POLICY``, else the profile ``chat``.
        store: a store or an fsspec URL; None takes ``AETHER_CONTEXT_STORE``, else the folder ``artifacts``.
        on_error: ``passthrough`` (default) sends a request on whatever fails here and says so in the log; ``raise``
            ends the run, for tests.
        summarizer: a model, or its name in ADK's registry, that writes summaries in place of the extractive way; None
            takes the one that the policy's ``compress.summarizer`` names, if any.
        checks: asked of every final answer, item by item of its step's checklist; see `AcceptanceCheck`.
        critic: a model, or its name, that judges final answers by the same checklist; None takes the one that the
            policy's ``acceptance.critic`` names, if any.
        mirror_artifacts: also saves each manifest as an artifact ``packs/{pack_id}.json`` of its session, in whatever
            artifact service the app has. Not for agents with ADK's ``load_artifacts``, which tells the model all names.
        on_cut: is handed an `UpcomingCut`, of which it may keep entries; a text that it returns is for the user.
        observe: records what would be sent, and leaves every request as it is.
        arms: compares policies on what users do: the share of sessions by a profile's name or a TOML file's path, or by
            ``observe``. They sum to 1. A hash of its id says which one a session has; agents as tools have their
            caller's. `aether-context compare` tells them apart.

    Raises:
        PolicyError: the policy does not exist or is wrong, or the shares of the arms do not sum to 1.
        MissingExtra: the store's protocol needs a package that is not installed.
    """

    def __init__(
        self,
        name: str | PackPolicy | Path = "context_pack",
        policy: PackPolicy | str | Path | None = None,
        store: PackStore | str | None = None,
        on_error: OnError = "passthrough",
        summarizer: BaseLlm | str | None = None,
        checks: Sequence[AcceptanceCheck] = (),
        critic: BaseLlm | str | None = None,
        mirror_artifacts: bool = False,
        on_cut: OnCut | None = None,
        observe: bool = False,
        arms: Mapping[str, float] | None = None,
    ) -> None:
        if not isinstance(name, str):  # the policy was given by position
            if policy is not None:
                raise PolicyError(f"name = {name!r}: it is the plugin's name in ADK, a text", field="name")
            name, policy = "context_pack", name
        if name in (*PROFILES, *PRESETS):
            raise PolicyError(f"name = {name!r} is a policy's: write policy={name!r}", field="name")
        super().__init__(name=name)
        self._arms = Arms(
            policy,
            observe=observe,
            arms=arms,
            store=PackStore.of(store),
            on_error=on_error,
            summarizer=summarizer,
            checks=checks,
            critic=critic,
            mirror_artifacts=mirror_artifacts,
            on_cut=on_cut,
        )
        self._packer = self._arms.first

    def __deepcopy__(self, memo: object) -> ContextPackPlugin:
        """Itself: the copy of an agent that has its methods as callbacks shares its packers, as ADK's own copies do."""
        return self

    @property
    def policy(self) -> PackPolicy:
        """The settings of every call that no profile of a step, a plan or an agent changes."""
        return self._packer.policy

    @property
    def store(self) -> PackStore:
        """The store of packs, evidence and what was learned."""
        return self._packer.store

    # limits and usage

    @property
    def limits(self) -> LimitSettings:
        """The limits of every session that has none of its own: the policy's, or what `set_limits` put there."""
        return self._packer.ledgers.limits

    def set_limits(
        self,
        limits: LimitSettings | Mapping[str, Any] | None,
        *,
        app: str | None = None,
        user: str | None = None,
        session: str | None = None,
    ) -> None:
        """Changes limits while the app runs; they hold from the next model call on.

        Args:
            limits: all of them, as in a policy's section; None returns to the policy's, or, for one session, to those
                of all.
            app: the application of one session, which all three together name; without them, the limits of all
                sessions that have none of their own.
            user: the session's user.
            session: its id.

        Raises:
            PolicyError: a limit is wrong, or the session is named in part.
        """
        if limits is not None and not isinstance(limits, LimitSettings):
            limits = PackPolicy(limits=limits).limits
        for packer in self._arms.packers.values():
            if app is not None and user is not None and session is not None:
                packer.ledgers.set_limits(limits, (app, user, session))
            elif (app, user, session) == (None, None, None):
                packer.ledgers.limits = limits or packer.policy.limits
            else:
                raise PolicyError(f"app = {app!r}, user = {user!r}, session = {session!r}: give all three or none")

    def usage(self, *, app: str, user: str, session: str) -> LedgerReport | None:
        """A session's use so far, in all, by invocation and by agent; None before this process serves it."""
        reports = (packer.ledgers.report((app, user, session)) for packer in self._arms.packers.values())
        return next(filter(None, reports), None)

    # callbacks

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        return await self._arms.of(callback_context).before_model(callback_context, llm_request)

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        await self._arms.of(callback_context).after_model(callback_context, llm_response)
        return None

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        return await self._arms.of(callback_context).on_model_error(callback_context, llm_request, error)

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        calling(tool, tool_context)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        await self._arms.of(invocation_context).flush(invocation=invocation_context)

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        await self._arms.of(invocation_context).on_run_error(invocation_context)

    async def close(self) -> None:
        await asyncio.gather(*(packer.flush(timeout_seconds=4.0) for packer in self._arms.packers.values()))


def context_pack_callbacks(
    policy: PackPolicy | str | Path | None = None,
    store: PackStore | str | None = None,
    on_error: OnError = "passthrough",
    summarizer: BaseLlm | str | None = None,
    checks: Sequence[AcceptanceCheck] = (),
    critic: BaseLlm | str | None = None,
    mirror_artifacts: bool = False,
    on_cut: OnCut | None = None,
    observe: bool = False,
    arms: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The plugin's work as callbacks of a single agent.

        LlmAgent(name="…", model="…", **context_pack_callbacks(policy="research"))

    The arguments are those of `ContextPackPlugin`. An agent that runs as a tool of this one is packed, and its usage
    booked here too, where it has the same callbacks: make them once and give them to both.

    Raises:
        PolicyError: the policy does not exist or is wrong.
        MissingExtra: the store's protocol needs a package that is not installed.
    """
    plugin = ContextPackPlugin(
        policy=policy,
        store=store,
        on_error=on_error,
        summarizer=summarizer,
        checks=checks,
        critic=critic,
        mirror_artifacts=mirror_artifacts,
        on_cut=on_cut,
        observe=observe,
        arms=arms,
    )

    async def after_agent(callback_context: CallbackContext) -> None:
        await plugin.after_run_callback(invocation_context=callback_context.get_invocation_context())

    return {
        "before_model_callback": plugin.before_model_callback,
        "after_model_callback": plugin.after_model_callback,
        "on_model_error_callback": plugin.on_model_error_callback,
        "before_tool_callback": lambda tool, args, tool_context: calling(tool, tool_context),
        "after_agent_callback": after_agent,
    }
