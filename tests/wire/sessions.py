"""Sessions through ADK's own clients, each against the server of its provider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps.app import EventsCompactionConfig
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.google_llm import Gemini as GeminiLlm
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from pydantic import BaseModel
from restarting import Restarting
from scripted import Chat, new_store
from terminal import told
from wire.servers import Claude, Gemini, Ollama, OpenAI, Provider, Refusal, Reply, serving

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

Way: TypeAlias = Literal["plugin", "alone", "compaction", "both", "observe"]
Message: TypeAlias = str | types.Content | Callable[[list[Event]], types.Content]
Turn: TypeAlias = tuple[Message, Sequence[Reply | Refusal]]


# clients


def _claude(url: str) -> BaseLlm:
    # At its first use: to load it takes a process two seconds.
    anthropic = pytest.importorskip("anthropic", reason="the extra dev brings anthropic")
    from google.adk.models.anthropic_llm import AnthropicLlm

    client = anthropic.AsyncAnthropic(api_key="test", base_url=url, max_retries=0)
    return AnthropicLlm(model="claude-sonnet-4-5", client=client)


def _lite(model: str, path: str = "", **settings: Any) -> Callable[[str], BaseLlm]:
    def made(url: str) -> BaseLlm:
        from google.adk.models.lite_llm import LiteLlm

        return LiteLlm(model=model, api_base=url + path, api_key="test", num_retries=0, **settings)

    return made


class Client(NamedTuple):
    """One of ADK's clients, and the provider that it talks to."""

    server: type[Provider]
    model: Callable[[str], BaseLlm]


THINKING = {"type": "enabled", "budget_tokens": 1_024}
CLIENTS: Mapping[str, Client] = {
    "gemini": Client(
        Gemini, lambda url: GeminiLlm(model="gemini-2.5-flash", base_url=url, client_kwargs={"api_key": "test"})
    ),
    "claude": Client(Claude, _claude),
    "litellm-openai": Client(OpenAI, _lite("openai/gpt-4.1", "/v1")),
    "litellm-claude": Client(Claude, _lite("anthropic/claude-sonnet-4-5", thinking=THINKING)),
    "litellm-ollama": Client(Ollama, _lite("ollama_chat/llama3.1")),
}
NATIVE = ("gemini", "claude")


# agents


def words(name: str, tokens: int) -> str:
    """A text of so many tokens by `servers.tokens_of`, about something."""
    line, lines, at = "", [], 0
    while sum(map(len, lines)) < tokens * 4:
        at += 1
        line = f"{name}, entry {at}: gauge {at * 37 % 101} stood at {at * 53 % 997} mm near bridge {at * 7 % 23}.\n"
        lines.append(line)
    return "".join(lines)[: tokens * 4]


def look_up(key: str) -> dict[str, Any]:
    """Looks up a report by its key."""
    return {"key": key, "report": words(f"report {key}", 300)}


def save(name: str, body: str) -> dict[str, Any]:
    """Saves a text under a name."""
    return {"saved": name, "characters": len(body)}


def approve(amount: int) -> dict[str, Any]:
    """Asks a person to approve an amount. The answer comes later."""
    return {"status": "pending", "amount": amount}


class Finding(BaseModel):
    """A finding in two fields."""

    summary: str
    count: int


INSTRUCTION = "You look after the library of a river authority. " + words("the handbook", 1_100)
BRIEF = "You look after the library of a river authority, and answer from its reports."


def clerk(llm: BaseLlm, thinks: bool = False, **settings: Any) -> LlmAgent:
    config = None
    if thinks and not type(llm).__name__.startswith("LiteLlm"):
        is_gemini = isinstance(llm, GeminiLlm)
        config = types.GenerateContentConfig(
            thinking_config=types.ThinkingConfig(thinking_budget=1_024, include_thoughts=True if is_gemini else None)
        )
    tools = settings.pop("tools", [look_up, save])
    return LlmAgent(
        **{"name": "clerk", "model": llm, "instruction": INSTRUCTION, "generate_content_config": config}
        | {"tools": tools}
        | settings
    )


class Scenario(NamedTuple):
    agent: Callable[[BaseLlm], LlmAgent]
    turns: Sequence[Turn]


def asks(number: int, tokens: int = 250) -> str:
    return f"Question {number}: what do the reports say of bridge {number}? " + words(f"note {number}", tokens)


def answers(number: int) -> Reply:
    return Reply(f"Finding {number}: the gauge at bridge {number} is sound. " + words(f"finding {number}", 80))


def calls(*names: str, thought: str = "") -> Reply:
    return Reply(calls=[("look_up", {"key": name}) for name in names], thought=thought)


def _single() -> Scenario:
    return Scenario(clerk, [(asks(at), [calls(f"k{at}"), answers(at)]) for at in range(10)])


def _parallel() -> Scenario:
    return Scenario(
        clerk, [(asks(at), [calls(*(f"k{at}{letter}" for letter in "abc")), answers(at)]) for at in range(6)]
    )


def _steps() -> Scenario:
    return Scenario(
        clerk, [(asks(at), [*(calls(f"k{at}-{step}") for step in range(6)), answers(at)]) for at in range(3)]
    )


def _agent_tool() -> Scenario:
    def agent(llm: BaseLlm) -> LlmAgent:
        expert = LlmAgent(name="expert", model=llm, instruction=BRIEF, description="Knows all.", tools=[look_up])
        return clerk(llm, tools=[AgentTool(expert), look_up])

    def turn(at: int) -> Turn:
        ask = Reply(calls=[("expert", {"request": f"say all of bridge {at}"})])
        return asks(at), [ask, calls(f"k{at}"), answers(at), answers(at)]

    return Scenario(agent, [turn(at) for at in range(4)])


def _transfer() -> Scenario:
    def agent(llm: BaseLlm) -> LlmAgent:
        second = LlmAgent(name="second", model=llm, instruction=BRIEF, description="Knows bridges.", tools=[look_up])
        return clerk(llm, sub_agents=[second])

    go = Reply(calls=[("transfer_to_agent", {"agent_name": "second"})])
    back = Reply(calls=[("transfer_to_agent", {"agent_name": "clerk"})])
    return Scenario(
        agent,
        [
            (asks(0), [calls("k0"), answers(0)]),
            (asks(1), [go, calls("k1"), answers(1)]),
            (asks(2), [calls("k2"), answers(2)]),
            (asks(3), [back, calls("k3"), answers(3)]),
            (asks(4), [answers(4)]),
        ],
    )


def _schema() -> Scenario:
    def agent(llm: BaseLlm) -> LlmAgent:
        return clerk(llm, output_schema=Finding)

    def turn(at: int) -> Turn:
        final = {"summary": f"finding {at}", "count": at}
        return asks(at), [calls(f"k{at}"), Reply(calls=[("set_model_response", final)])]

    return Scenario(agent, [turn(at) for at in range(4)])


def _long_running() -> Scenario:
    def agent(llm: BaseLlm) -> LlmAgent:
        return clerk(llm, tools=[look_up, LongRunningFunctionTool(approve)])

    def posted(events: list[Event]) -> types.Content:
        asked = [call for event in events for call in event.get_function_calls() if call.name == "approve"][-1]
        done = {"status": "approved", "note": "by the board"}
        response = types.FunctionResponse(id=asked.id, name="approve", response=done)
        return types.Content(role="user", parts=[types.Part(function_response=response)])

    ask = Reply(calls=[("approve", {"amount": 7})])
    return Scenario(
        agent,
        [
            (asks(0), [calls("k0"), answers(0)]),
            (asks(1), [ask, Reply("It is with the board.")]),
            (posted, [answers(1)]),
            (asks(2), [calls("k2"), answers(2)]),
        ],
    )


_PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001e221bc330000"
    "000049454e44ae426082"
)
_PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n3 0 obj"
    + (b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF")
)


def _with_medium(text: str, data: bytes, kind: str) -> types.Content:
    return types.Content(role="user", parts=[types.Part(text=text), types.Part.from_bytes(data=data, mime_type=kind)])


def _media(data: bytes, kind: str, *turns: int) -> Scenario:
    """Five turns, some of which bring a medium."""
    return Scenario(
        clerk,
        [
            (_with_medium(asks(at), data, kind) if at in turns else asks(at), [calls(f"k{at}"), answers(at)])
            for at in range(5)
        ],
    )


def _code() -> Scenario:
    ran = Reply("It is 42.", code=("print(6 * 7)", "42\n"))
    return Scenario(clerk, [(asks(at), [calls(f"k{at}"), ran]) for at in range(4)])


def thinking(tokens: int = 200, turns: int = 5, steps: int = 2) -> Scenario:
    """Turns whose calls and answers come with signed thoughts of so many tokens."""

    def turn(at: int) -> Turn:
        loop = [calls(f"k{at}-{step}", thought=words(f"thought {at}-{step}", tokens)) for step in range(steps)]
        return asks(at), [*loop, answers(at)._replace(thought=words(f"last thought {at}", tokens))]

    return Scenario(lambda llm: clerk(llm, thinks=True, instruction=BRIEF), [turn(at) for at in range(turns)])


def arguments(tokens: int, turns: int = 5) -> Scenario:
    """Turns that save texts of so many tokens, twice a turn."""

    def turn(at: int) -> Turn:
        loop = [
            Reply(
                calls=[("save", {"name": f"n{at}-{step}", "body": words(f"body {at}-{step}", tokens)})],
                thought="To be saved.",
            )
            for step in range(2)
        ]
        return asks(at), [*loop, answers(at)]

    return Scenario(lambda llm: clerk(llm, thinks=True, instruction=BRIEF), [turn(at) for at in range(turns)])


SCENARIOS: Mapping[str, Callable[[], Scenario]] = {
    "single": _single, "parallel": _parallel, "steps": _steps, "agent as tool": _agent_tool, "transfer": _transfer,
    "output schema": _schema, "long-running": _long_running, "images": lambda: _media(_PNG, "image/png", 0, 2, 4),
    "pdf": lambda: _media(_PDF, "application/pdf", 1), "code": _code, "thinking": thinking,
}  # fmt: skip


def mixed() -> Scenario:
    """Ten turns: single, parallel and longer loops, an agent as a tool, an image and signed thoughts."""

    def agent(llm: BaseLlm) -> LlmAgent:
        expert = LlmAgent(name="expert", model=llm, instruction=BRIEF, description="Knows all.", tools=[look_up])
        return clerk(llm, thinks=True, tools=[look_up, save, AgentTool(expert)])

    thought = words("thought", 60)
    kinds: list[Turn] = [
        (asks(0), [calls("k0", thought=thought), answers(0)]),
        (asks(1), [calls("k1a", "k1b", "k1c", thought=thought), answers(1)]),
        (_with_medium(asks(2), _PNG, "image/png"), [answers(2)._replace(thought=thought)]),
        (asks(3), [*(calls(f"k3{step}", thought=thought) for step in range(6)), answers(3)]),
        (
            asks(4),
            [Reply(calls=[("expert", {"request": "all"})], thought=thought), calls("k4"), answers(4), answers(4)],
        ),
    ]
    more = [(asks(at), [calls(f"k{at}", thought=thought), answers(at)]) for at in range(5, 10)]
    return Scenario(agent, [*kinds, *more])


# runs


class Run(NamedTuple):
    """A session that was run: its provider's record, the turns that failed, the chat."""

    server: Provider
    failed: list[str]
    chat: Chat


@contextmanager
def run(
    client: str,
    scenario: Scenario,
    *,
    window: int = 8_000,
    way: Way = "plugin",
    stream: bool = False,
    limit: int | None = None,
    policy: PackPolicy | None = None,
    restarts: bool = False,
) -> Iterator[Run]:
    """Plays a scenario through a client of ADK's.

    Args:
        restarts: whether each call is that of a new process.
        limit: what the provider takes; where it is given, ``window`` is what the policy says.
    """
    kind = CLIENTS[client]
    with serving(kind.server(limit=limit, window=None if limit else window)) as server:
        llm = kind.model(server.url)
        agent = scenario.agent(llm)
        settings: dict[str, Any] = {}
        if way in ("compaction", "both"):
            from google.adk.apps.llm_event_summarizer import LlmEventSummarizer

            settings["events_compaction_config"] = EventsCompactionConfig(
                summarizer=LlmEventSummarizer(llm=llm), compaction_interval=3, overlap_size=1
            )
        policy = policy or PackPolicy(max_input_tokens=window)
        plugin: BasePlugin | None = None
        if restarts:
            plugin = Restarting(store=new_store(), policy=policy)
        elif way == "observe":
            plugin = ContextPackPlugin(store=new_store(), policy=policy, observe=True)
        chat = Chat(
            agent=agent,
            policy=policy,
            use_plugin=way in ("plugin", "both", "observe"),
            plugin=plugin,
            app_settings=settings,
        )
        failed: list[str] = []

        async def played() -> None:
            for message, replies in scenario.turns:
                server.script[:] = replies
                events = (await chat.held()).events if chat.begun else []
                told = message(events) if callable(message) else message
                try:
                    said = await chat.tell(told, stream=stream)
                except AssertionError:
                    raise
                except Exception as error:
                    failed.append(f"{type(error).__name__}: {error}"[:200])
                else:
                    failed.extend(f"{event.error_code}: {event.error_message}" for event in said if event.error_code)

        asyncio.run(played())
        yield Run(server, failed, chat)


def breakers(chat: Chat) -> set[str]:
    """Who made calls of a chat lose what a cache held, as ``aether-context usage`` tells it."""
    return set(told("usage", store=chat.store)["cache_losses"])
