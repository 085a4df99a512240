"""The next request of a session, without a model and without touching the session.

    pack, manifest = preview(read_session("session.json"), policy="research", message="Please go on.")
    print(pack.tokens.expected, pack.contents[-1].content.text)

ADK itself assembles the request, from a copy of the session and a stand-in for the agent; the plugin's packer packs it,
and the call ends before the model. Memory and artifact services are not asked.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, Unpack

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.plugin_manager import PluginManager
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.base_toolset import BaseToolset
from google.genai import types
from pydantic import ValidationError
from typing_extensions import override

from aether_context.adk.call import PreviousCall
from aether_context.adk.failures import InvalidPlan
from aether_context.adk.packer import RequestPacker
from aether_context.adk.services.recorder import CallKey, Recorder
from aether_context.adk.wiring import PackerParts
from aether_context.conversation import strategy_names
from aether_context.errors import SessionError, listed
from aether_context.pack import Pack
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore, record

if TYPE_CHECKING:
    from google.adk.evaluation.eval_case import EvalCase

logger = logging.getLogger("aether_context")

_Tool: TypeAlias = Callable[..., Any] | BaseTool | BaseToolset
_Policy: TypeAlias = PackPolicy | str | Path | None

PLACEHOLDER = "(the next message)"
"""Stands for the user's message where a session waits for one and none is given."""


class AgentOptions(TypedDict, total=False):
    """Names the agent that is called."""

    agent_name: str | None
    """The session's last agent by default."""
    model: str | BaseLlm
    """A name. A model object of ADK's, which is not called, is needed only where its class decides how calls are
    written: LiteLLM's, Anthropic's and OpenAI's keep ids that others do not send."""
    system: str
    """The agent's instruction."""
    tools: Sequence[_Tool]
    """The agent's tools. They are declared, not called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyPreview:
    """The effect that strategies would have on a session's next request.

    ``removed`` and ``replaced`` are numbers of contents. ``freed_tokens`` is what the request is shorter by, and
    ``lost_tokens`` what a prefix cache held and has to read anew.
    """

    strategy: tuple[str, ...]
    pack: Pack
    removed: int
    replaced: int
    freed_tokens: int
    lost_tokens: int


def preview(
    session: Session,
    *,
    policy: _Policy = None,
    message: str | types.Content | None = None,
    **agent: Unpack[AgentOptions],
) -> tuple[Pack, Manifest]:
    """The pack that a session's next model call would be sent, recorded nowhere, and the manifest that it would have.

    Where the session ends with a message or a tool's result that no model has answered, and no message is given, it is
    the call that would answer it. The time is that of the session's last event, so equal arguments give equal packs.

    Args:
        policy: as for the plugin.
        message: the user's next message; `PLACEHOLDER` where one is needed and none is given.
        agent: who is called, see `AgentOptions`.

    Raises:
        PolicyError: the policy is wrong, or under it no request would be sent.
        BudgetExceededError: the call would pass a limit of the policy that raises.
        SessionError: ADK takes no agent of that name, or the instruction asks for state that is not there.
    """
    last = _previewed(session, policy, message, **agent)
    return last.pack, record(last.pack, last.policy, last.counter, None).manifest


def _previewed(
    session: Session,
    policy: _Policy = None,
    message: str | types.Content | None = None,
    agent_name: str | None = None,
    model: str | BaseLlm = "gemini-flash-latest",
    system: str = "",
    tools: Sequence[_Tool] = (),
) -> PreviousCall:
    """The call of `preview`, as if it had been made."""
    copy = session.model_copy(deep=True)
    if agent_name is None:
        # Hosts write state updates, and what an operator says, under names that are no agent's.
        spoke = (event for event in reversed(copy.events) if event.content and event.content.role == "model")
        names = (event.author for event in spoke if event.author.isidentifier() and event.author != "user")
        agent_name = next(names, "agent")
    llm = _NoModel(model=model) if isinstance(model, str) else model
    try:
        agent = LlmAgent(name=agent_name, model=llm, instruction=system, tools=list(tools))
    except ValidationError as error:
        raise SessionError(f"ADK takes no agent named {agent_name!r}: {error.errors()[0]['msg']}") from error
    if isinstance(message, str):
        message = types.UserContent(parts=[types.Part(text=message)])
    plugin = _Packing(policy)
    try:
        with ThreadPoolExecutor(max_workers=1) as thread:  # where no event loop is running yet
            thread.submit(asyncio.run, _call(copy, agent, plugin, message)).result()
    except KeyError as error:
        raise SessionError(f"the instruction asks for what the session's state lacks: {error}") from error
    last = plugin.last
    if last is None:
        raise plugin.error
    return last


def preview_strategies(
    session: Session,
    *,
    policy: _Policy = None,
    strategies: Sequence[str | Sequence[str]] | None = None,
    message: str | types.Content | None = None,
    **agent: Unpack[AgentOptions],
) -> tuple[StrategyPreview, ...]:
    """Compares the effects that several strategies would have on a session's next request.

    Args:
        policy: as for the plugin; its other settings hold for every strategy.
        strategies: names, or lists of names that work together; by default the policy's own, then all others.
        message: the user's next message; a stand-in where one is needed and none is given.
        agent: who is called: ``agent_name``, by default the session's last agent; ``model``, a name or a model;
            ``system``, the instruction; ``tools``.

    Raises:
        PolicyError: the policy is wrong, or a strategy is unknown.
        SessionError: ADK takes no agent of that name, or the instruction asks for state that is not there.
    """
    base_policy = policy if isinstance(policy, PackPolicy) else PackPolicy.load(policy)
    base = base_policy.conversation.strategy
    names = strategies if strategies is not None else [base, *(name for name in strategy_names() if (name,) != base)]
    previews = []
    for named in names:
        strategy = (named,) if isinstance(named, str) else tuple(named)
        trial = base_policy.changed(conversation={"strategy": strategy})
        pack, _ = preview(session, policy=trial, message=message, **agent)
        previews.append(
            StrategyPreview(
                strategy=strategy,
                pack=pack,
                removed=sum(act.removed for act in pack.acts),
                replaced=sum(act.replaced for act in pack.acts),
                freed_tokens=sum(act.freed_tokens for act in pack.acts),
                lost_tokens=max((act.lost_tokens for act in pack.acts), default=0),
            )
        )
    return tuple(previews)


def cutoff(session: Session, policy: _Policy = None, **agent: Unpack[AgentOptions]) -> Event | None:
    """The last event that the model does not read any more; None where it reads from the beginning.

    It follows from session and policy and is stored nowhere, so any reader comes to the same event.

    Args:
        policy: as for the plugin.
        agent: who is called, as for `preview_strategies`: model, instruction and declarations decide how much is read.

    Raises:
        PolicyError: the policy is wrong.
        SessionError: ADK takes no agent of that name.
    """
    unread = _previewed(session, policy, **agent).cutoff
    return next((event for event in session.events if event.id == unread), None)


def read_session(path: str | os.PathLike[str], case: str | None = None) -> Session:
    """A session from a file with what ``Session.model_dump_json()`` or ADK's web page wrote, or from a case of an ADK
    evalset.

    Args:
        case: the id of the case; None takes the first.

    Raises:
        SessionError: the file is not there, is neither, or has no such case.
    """
    name = os.fspath(path)
    try:
        data = Path(path).read_bytes()
        fields = json.loads(data)
        if not isinstance(fields, dict) or "eval_cases" not in fields:
            return Session.model_validate_json(data)
        from google.adk.evaluation.eval_set import EvalSet

        cases = [one for one in EvalSet.model_validate_json(data).eval_cases if one.conversation]
    except OSError as error:
        raise SessionError(f"{name} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise SessionError(f"{name} is neither an exported ADK session nor an evalset: {why}") from error
    if not cases:
        raise SessionError(f"{name} has no case with a conversation")
    matching = next((one for one in cases if case in (None, one.eval_id)), None)
    if matching is None:
        raise SessionError(
            f"{name} has no case {case!r} with a conversation: it has {listed(one.eval_id for one in cases)}"
        )
    return _session_of(matching)


def _session_of(case: EvalCase) -> Session:
    """The conversation of a case as the events that its invocations would have left."""
    from google.adk.evaluation.eval_case import IntermediateData, InvocationEvents

    session_input, events = case.session_input, list[Event]()
    app, user = (session_input.app_name, session_input.user_id) if session_input is not None else ("eval", "user")
    for number, invocation in enumerate(case.conversation or ()):
        data, contents = invocation.intermediate_data, [("user", invocation.user_content)]
        if isinstance(data, InvocationEvents):
            contents += [(event.author, event.content) for event in data.invocation_events if event.content is not None]
        elif isinstance(data, IntermediateData):
            responses = list(data.tool_responses)
            for place, call in enumerate(data.tool_uses):
                # Somebody who wrote the case may have left an id out.
                by_id = (one for one in responses if one.id and one.id == call.id)
                by_name = (one for one in responses if one.name == call.name and not (one.id and call.id))
                response = next(by_id, None) or next(by_name, None)
                ids = {"id": call.id or f"{number}-{place}"}
                contents.append(("agent", types.ModelContent(types.Part(function_call=call.model_copy(update=ids)))))
                if response is not None:
                    responses.remove(response)
                    part = types.Part(function_response=response.model_copy(update=ids))
                    contents.append(("agent", types.UserContent(part)))
            if responses:
                logger.warning("case %s: %d tool results have no call and are left out", case.eval_id, len(responses))
        if invocation.final_response is not None and contents[-1][1] != invocation.final_response:
            contents.append(("agent" if contents[-1][0] == "user" else contents[-1][0], invocation.final_response))
        turn, time = invocation.invocation_id or f"invocation-{number}", invocation.creation_timestamp
        events += [
            Event(invocation_id=turn, author=author, content=content, timestamp=time) for author, content in contents
        ]
    state = dict(session_input.state) if session_input is not None else {}
    return Session(id=case.eval_id, app_name=app, user_id=user, events=events, state=state)


class _Unwritten(Recorder):
    """Takes recordings and lets them go."""

    @override
    def later(self, job: Callable[[], object], of_call: CallKey | None = None) -> None:
        return None


class _NoStore(PackStore):
    """Takes evidence and lets it go."""

    @override
    def write_evidence(self, *arguments: object) -> None:
        return None


class _Packing(BasePlugin):
    """Packs the first request and answers it in the model's place, so that no model is called."""

    def __init__(self, policy: _Policy) -> None:
        super().__init__(name="preview")
        store = _NoStore("memory://aether-context-preview")
        self.packer = RequestPacker(PackerParts(policy, store, "raise", recorder=_Unwritten(store), asks_models=False))
        self.last: PreviousCall | None = None
        self.error: Exception = InvalidPlan("no request would be sent: ADK calls no model", field="plan")

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse:
        try:
            refused = await self.packer.before_model(callback_context, llm_request)
            self.last = self.packer.last(callback_context)
            if refused is not None:
                answer = refused.error_message or "the plugin answers in the model's place"
                self.error = InvalidPlan(f"no request would be sent: {answer}", field="plan")
        except Exception as error:  # ADK would wrap it and log it as a failure of the run
            self.error = error
        return LlmResponse(content=types.Content(role="model", parts=[types.Part(text="…")]))


class _NoModel(BaseLlm):
    """A model's name."""

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> Any:
        raise SessionError("a preview calls no model")
        yield


async def _call(session: Session, agent: LlmAgent, plugin: BasePlugin, message: types.Content | None) -> None:
    """The next model call of a session, as a runner would make it."""
    spoken_events = (event for event in reversed(session.events) if event.content is not None and not event.partial)
    last = next(spoken_events, None) if message is None else None
    parts = (last.content and last.content.parts if last else None) or ()
    if last is not None and (last.author == "user" or any(part.function_response for part in parts)):
        # The last event waits for a model's answer.
        invocation, branch = last.invocation_id, last.branch
        users = (event for event in session.events if event.invocation_id == invocation and event.author == "user")
        user_content = next((event.content for event in users), None)
    else:
        invocation, branch = f"preview-{len(session.events)}", None
        user_content = message or types.UserContent(parts=[types.Part(text=PLACEHOLDER)])
        now = max([session.last_update_time, *(event.timestamp for event in session.events[-1:])])
        session.events.append(
            Event(id=invocation, invocation_id=invocation, author="user", content=user_content, timestamp=now)
        )
    context = InvocationContext(
        session_service=InMemorySessionService(),
        plugin_manager=PluginManager(plugins=[plugin]),
        run_config=RunConfig(),
        invocation_id=invocation,
        agent=agent,
        session=session,
        user_content=user_content,
        branch=branch,
    )
    async for _ in agent.run_async(context):
        pass
