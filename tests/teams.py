"""Teams of agents whose models count what they get, and a run of one through ADK's Runner."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.workflow import Workflow
from google.genai import types
from scripted import Chat, Scripted, call

from aether_context import PackPolicy
from aether_context.tokens import counter_for

COUNTER = counter_for("gemini-2.5-flash")
WINDOWS = [4_000, 8_000]
DEPRECATED = pytest.mark.filterwarnings("ignore:.*is deprecated in favor of Workflow:DeprecationWarning")
REQUEST = "Please settle claim Q-7719 for customer Ödegård before Friday."


def counted(request: LlmRequest) -> int:
    """Tokens of a request, from its own parts: texts, arguments, responses, code, the system, the declarations."""
    config = request.config
    texts = [str(config.system_instruction or "")]
    for tool in config.tools or ():
        for one in getattr(tool, "function_declarations", None) or ():
            texts.append(compact(one.model_dump(exclude_none=True, mode="json")))
    media = 0
    for content in request.contents:
        for part in content.parts or ():
            if part.function_call:
                texts.append(f"{part.function_call.name} {compact(part.function_call.args)}")
            elif part.function_response:
                texts.append(f"{part.function_response.name} {compact(part.function_response.response)}")
                media += 258 * len(part.function_response.parts or ())
            elif part.text is not None:
                texts.append(part.text)
            elif part.inline_data is not None:
                media += 258
            else:
                texts.append(compact(part.model_dump(exclude_none=True, mode="json", exclude={"thought_signature"})))
    return sum(COUNTER.count_all(texts)) + media + 3 * len(request.contents)


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class Counting(Scripted):
    """A scripted model that keeps what each request counts, and everything that stood in it as text."""

    usage: bool = False
    tokens: list[int] = []
    texts: list[str] = []

    def see(self, llm_request: LlmRequest) -> None:
        super().see(llm_request)
        self.tokens.append(counted(llm_request))
        said = [part.text for content in llm_request.contents for part in content.parts or () if part.text]
        said += [
            json.dumps((part.function_call or part.function_response).model_dump(mode="json"), ensure_ascii=False)
            for content in llm_request.contents
            for part in content.parts or ()
            if part.function_call or part.function_response
        ]
        self.texts.append("\n".join(said))


def query_orders(page: str) -> dict[str, Any]:
    """Reads a page of orders."""
    return {"rows": [{"order": f"{page}-{at}", "status": "open", "total": at * 37 % 997} for at in range(60)]}


def agent(name: str, script: Sequence[Any], **settings: Any) -> LlmAgent:
    model = Counting(script=list(script), sent=[], tokens=[], texts=[])
    settings = {"tools": [query_orders], "instruction": f"You are {name}.", **settings}
    return LlmAgent(name=name, description=f"Does {name}.", model=model, **settings)


def calls(name: str, count: int, *last: Any) -> list[Any]:
    return [*(call("query_orders", page=f"{name}{at}") for at in range(count)), *last]


def findings(name: str, lines: int = 12) -> str:
    return "\n".join(f"Finding {at} of {name}: order {name}-{at} owes {at * 613} crowns." for at in range(lines))


def passing(text: str, to: str) -> list[Any]:
    return [types.Part(text=text), call("transfer_to_agent", agent_name=to)]


@dataclass
class Team:
    """A root agent, all agents by name, and what must stand in every request of an agent from a call on."""

    root: BaseAgent | Workflow
    agents: dict[str, LlmAgent]
    handed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    messages: Sequence[str] = (REQUEST,)
    first: Mapping[str, int] = field(default_factory=dict)


def team(root: BaseAgent | Workflow, *agents: LlmAgent, **settings: Any) -> Team:
    return Team(root=root, agents={one.name: one for one in agents}, **settings)


def run(made: Team, policy: PackPolicy, **settings: Any) -> Chat:
    chat = Chat(agent=made.root, policy=policy, **settings)
    for message in made.messages:
        chat.say(message)
    return chat


def within(made: Team, window: int) -> None:
    for name, one in made.agents.items():
        assert one.model.tokens, name
        assert max(one.model.tokens) <= window, (name, one.model.tokens)
