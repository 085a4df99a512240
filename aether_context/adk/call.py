"""One model call at the edge: whose it is, what ADK hands over for it, and what the next call knows of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from aether_context.adk.windows import ServedModel, Window, served_models
from aether_context.conversation.quotes import opens
from aether_context.errors import near_names
from aether_context.pack import NOTHING, Identity, Pack
from aether_context.policy import PackPolicy
from aether_context.state import PlannedCall
from aether_context.tokens.model_limits import RequestLimits

ESSENTIAL = frozenset({"transfer_to_agent", "set_model_response", "finish_task"})
"""ADK's own tools, which are never narrowed away."""
ESSENTIAL_MARK = "aether_context.essential"
"""A key of a tool's ``custom_metadata``: a tool that has it is never narrowed away."""

OFF = "enabled = false: the request was left alone"

SessionKey: TypeAlias = tuple[str, str, str]
"""App, user, session."""
AgentKey: TypeAlias = tuple[str, str, str, str, str]
"""App, user, session, branch, agent: what a process keeps things by."""


class Caller(NamedTuple):
    """The session and the invocation whose tool is running, and whether that tool is an agent; and the session that all
    of this began in."""

    session: SessionKey
    invocation: str
    is_agent: bool
    origin: SessionKey


_CALLER: ContextVar[Caller | None] = ContextVar("aether_context_caller", default=None)


def calling(tool: BaseTool, context: CallbackContext) -> None:
    """A tool of this context's invocation is about to run: sessions that begin inside it are its."""
    from google.adk.tools.agent_tool import AgentTool  # ADK loads it with an app's first agent

    key = session_key(context)
    _CALLER.set(Caller(key, context.invocation_id, isinstance(tool, AgentTool), origin_of(key)))


def caller_of(key: SessionKey) -> Caller | None:
    """Whose tool a session runs in; None where it runs in none."""
    caller = _CALLER.get()
    return caller if caller is not None and caller.session != key else None


def origin_of(key: SessionKey) -> SessionKey:
    """The session in whose tools, or those of whose tools' agents, a session runs; itself where it runs in none."""
    caller = _CALLER.get()
    return caller.origin if caller is not None else key


def session_key(context: CallbackContext | InvocationContext) -> SessionKey:
    session = context.session
    return (session.app_name, session.user_id, session.id)


def agent_key(identity: Identity) -> AgentKey:
    return (identity.app, identity.user, identity.session, identity.branch, identity.agent)


def agent_key_of(context: CallbackContext) -> AgentKey:
    return (*session_key(context), context.branch or "", context.agent_name)


def words_of(content: types.Content | None) -> str:
    """The texts of a message, in one line."""
    return " ".join(part.text for part in (content.parts if content is not None else None) or () if part.text)


def looks_quoted(content: types.Content) -> bool:
    """Tells whether a content opens as ADK lets another agent's turn open."""
    return content.role == "user" and bool(content.parts) and opens((content.parts or [])[0].text)


def time_of(context: CallbackContext) -> float | None:
    """The time of the session's last event, seconds since 1970 UTC, by which notes expire, too."""
    events = context.session.events
    return events[-1].timestamp if events else None


class Position(NamedTuple):
    """The place of a pack in its session: the number of the call and that of the turn, from 1; 0 where it is not
    recorded."""

    number: int = 0
    turn: int = 0


class PreviousCall(NamedTuple):
    """The latest pack of one agent in one session; nothing of ADK's is kept with it.

    ``counter`` is the identity of the token counter; ``position`` is the pack's in its session;
    ``cutoff`` is the id of the last event that the model does not read, empty where it reads all of them;
    ``summarizer`` is what a model's summaries for it cost: requests and tokens; ``length`` and ``notice`` are those of
    a `PreparedCall`.
    """

    name: str
    pack: Pack
    policy: PackPolicy
    planned: PlannedCall
    counter: str
    position: Position = Position()
    cutoff: str = ""
    summarizer: Mapping[str, int] = NOTHING
    length: int = 0
    notice: str = ""


class ModelCall(NamedTuple):
    """One model call: ADK's request and contexts, and what packs it.

    ``state`` is the session's as it is; ADK's own view copies every value that is read. ``passthrough_reason`` says why
    the request must not be touched, and is empty where it may be. ``models`` are those that it may go to, ``caller`` is
    that of the session. ``last`` is the call before it of the same agent and branch, where this process packed that.
    ``limits`` are the provider's beside tokens. ``offloaded_tokens`` are those that extracts leave out of its history.
    ``near_limit`` is set where a limit of the policy is near or reached, ``is_second_try`` where the provider refused
    the pack before it as too long.
    """

    context: CallbackContext
    request: LlmRequest
    invocation: InvocationContext
    policy: PackPolicy
    key: AgentKey
    model: str
    state: Mapping[str, Any]
    passthrough_reason: str
    models: Sequence[ServedModel]
    caller: Caller | None = None
    window: Window = Window(0)
    limits: RequestLimits = RequestLimits()
    planned: PlannedCall = PlannedCall()
    last: PreviousCall | None = None
    offloaded_tokens: int = 0
    near_limit: bool = False
    is_second_try: bool = False


def call_of(context: CallbackContext, request: LlmRequest, policy: PackPolicy, key: AgentKey) -> ModelCall:
    """A call as ADK hands it over, without window, plan and predecessor."""
    # ADK copies the invocation at each look, so one is kept.
    invocation, reason = context.get_invocation_context(), ""
    if invocation.live_request_queue is not None:
        # ADK runs the callbacks on a copy of the contents, but on the connection's own configuration and tools.
        reason = "live mode: the request was left alone"
    elif request.previous_interaction_id:
        reason = "interactions API: only the current turn is sent, the request was left alone"
    elif not policy.enabled:
        reason = OFF
    return ModelCall(
        context=context,
        request=request,
        invocation=invocation,
        policy=policy,
        key=key,
        model=request.model or "",
        state=context.session.state,
        passthrough_reason=reason,
        models=served_models(invocation.agent, request.model or ""),
        caller=caller_of(key[:3]),
    )


class NamedInPolicy:
    """The agents and tools that policies name, compared with those that apps turn out to have.

    Args:
        own_tools: names of tools that the plugin adds.
    """

    def __init__(self, policies: Sequence[PackPolicy], own_tools: Iterable[str]) -> None:
        agents = {name for policy in policies for name in (*policy.agents, *policy.planners, *policy.limits.agents)}
        tools = {name for policy in policies for name in (*policy.tools.always, *policy.offload.tools)}
        self._names = {"agent": agents - {"*"}, "tool": tools.difference(own_tools)}
        self._tools_seen: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        """The tools in requests, by app and agent: only these tell what a toolset has."""

    @property
    def are_given(self) -> bool:
        """Whether there are names that no app is known to have, and of which nothing was told."""
        return any(self._names.values())

    def unknown(self, call: ModelCall) -> list[str]:
        """Tells each name that the call's app lacks, as far as its calls so far show what it has; each name once.

        Where toolsets give tools, which may be others at each call, only names that are like one of the app's are told.
        """
        from google.adk.tools.agent_tool import AgentTool

        agent: Any = call.invocation.agent
        app, root, seen = call.key[0], agent.root_agent, self._tools_seen[call.key[0]]
        seen[agent.name].update(call.request.tools_dict)
        # From a node of a workflow, and from an agent that runs as a tool, the whole app is not to be seen.
        if call.caller is not None or not (call.invocation.node_path or "").startswith(f"{root.name}@"):
            return []
        listed, waiting = dict[str, set[str]](), [root]
        for agent in waiting:
            tools = getattr(agent, "tools", ())
            listed[agent.name] = {
                tool.name if isinstance(tool, BaseTool) else getattr(tool, "__name__", "") for tool in tools
            }
            called = (tool.agent for tool in tools if isinstance(tool, AgentTool))
            waiting += [other for other in (*agent.sub_agents, *called) if other.name not in listed]
        toolsets = {name for name, tools in listed.items() if "" in tools}
        known = {"agent": {*listed}, "tool": set[str]().union(*listed.values(), *seen.values()) - {""}}
        told = list[str]()
        for kind in ("agent", "tool") if toolsets <= seen.keys() else ("agent",):
            self._names[kind] -= known[kind]
            for name in sorted(self._names[kind]):
                hint = near_names(name, sorted(known[kind]))
                if not toolsets or hint.startswith("did you mean"):
                    self._names[kind].discard(name)
                    told.append(f"the policy names the {kind} {name!r}, which app {app!r} lacks: {hint}")
        return told
