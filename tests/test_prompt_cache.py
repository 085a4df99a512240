"""What Claude's prompt cache serves of a session, by the rules that Anthropic documents, over ADK's own client."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.context_cache_config import ContextCacheConfig
from google.adk.models import FallbackModel
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from scripted import Chat, Scripted, look_up

from aether_context import PackPolicy

LOOK_BACK, LEAST_TOKENS, MOST_MARKS = 20, 1_024, 4

# the request


class Keeping(Scripted):
    """A model that keeps what it is to cache by."""

    model: str = "claude-sonnet-4-5"
    configs: list[Any] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.configs.append(llm_request.cache_config)
        async for response in super().generate_content_async(llm_request, stream):
            yield response


class AnthropicLlm(Keeping):
    """By its class ADK's client of Claude."""


class Claude(AnthropicLlm):
    """By its class ADK's client of Claude on Vertex AI."""


class LiteLlm(Keeping):
    """By its class ADK's client of LiteLLM."""


class Gemini(Keeping):
    """By its class ADK's client of Gemini."""


def marked(llm: Any, turns: int = 3, tools: Any = (look_up,), **settings: Any) -> list[bool]:
    """Which of the calls of a session have a cache configuration."""
    configs: list[Any] = []
    for model in getattr(llm, "models", [llm]):
        model.configs = configs
    chat = Chat(agent=LlmAgent(name="clerk", model=llm, instruction="You help.", tools=list(tools)), **settings)
    chat.say(*(f"Question {number}?" for number in range(turns)))
    return [config is not None for config in configs]


@pytest.mark.parametrize(
    "llm",
    [
        AnthropicLlm(),
        Claude(model="projects/p/locations/us-east5/publishers/anthropic/models/claude-sonnet-4-5"),
        LiteLlm(model="anthropic/claude-sonnet-4-5"),
        LiteLlm(model="bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
        LiteLlm(model="vertex_ai/claude-sonnet-4@20250514"),
        LiteLlm(model="openrouter/anthropic/claude-sonnet-4.5"),
    ],
    ids=lambda llm: f"{type(llm).__name__}-{llm.model}",
)
def test_requests_of_claude_are_marked(llm: Any) -> None:
    assert marked(llm) == [True, True, True]


@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL:UserWarning")
@pytest.mark.parametrize(
    "llm",
    [
        Gemini(model="gemini-2.5-flash"),
        LiteLlm(model="gemini/gemini-2.5-flash"),
        LiteLlm(model="openai/gpt-4o"),
        LiteLlm(model="openai/claude-at-a-proxy"),
        FallbackModel(models=[AnthropicLlm(), Gemini(model="gemini-2.5-flash")]),
    ],
    ids=lambda llm: f"{type(llm).__name__}-{llm.model}",
)
def test_requests_that_another_model_may_get_are_not(llm: Any) -> None:
    assert marked(llm) == [False, False, False]


def test_the_setting_and_the_apps_own_configuration_come_first() -> None:
    assert marked(AnthropicLlm(), policy=PackPolicy(cache="off")) == [False, False, False]
    own = ContextCacheConfig(ttl_seconds=7_200)
    llm = AnthropicLlm()
    assert marked(llm, app_settings={"context_cache_config": own}) == [True, True, True]
    assert llm.configs == [own] * 3


# the provider


class Claudes(ThreadingHTTPServer):
    """Answers like Anthropic's messages API, and tells what its cache would have served."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Messages)
        self.entries: set[str] = set()
        self.usage: list[dict[str, int]] = []
        self.marks: list[int] = []
        self.calls: list[str] = []

    def read(self, body: dict[str, Any]) -> dict[str, int]:
        """Usage by the documented rule: what ends at a mark is written, and a request is served the longest prefix
        that was, where that ends at most twenty blocks before a mark of its own and has 1,024 tokens."""
        blocks = [*body.get("tools", ())]
        system = body.get("system", ())
        blocks += [{"type": "text", "text": system}] if isinstance(system, str) else system
        for message in body["messages"]:
            content = message["content"]
            blocks += [{"type": "text", "text": content}] if isinstance(content, str) else content
        marks, prefixes, sizes = [], [], []
        text = ""
        for at, block in enumerate(blocks):
            plain = {name: value for name, value in block.items() if name != "cache_control"}
            text += json.dumps(plain, sort_keys=True)
            prefixes.append(text)
            sizes.append(len(text) // 4)
            if "cache_control" in block:
                marks.append(at)
        self.marks.append(len(marks))
        read = 0
        for mark in marks:
            for at in range(mark, max(-1, mark - LOOK_BACK), -1):
                if prefixes[at] in self.entries:
                    read = max(read, sizes[at])
                    break
        kept = [mark for mark in marks if sizes[mark] >= LEAST_TOKENS]
        written = max([0, *(sizes[mark] - read for mark in kept)])
        self.entries |= {prefixes[mark] for mark in kept}
        return {
            "input_tokens": sizes[-1] - read - written,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": 9,
        }


class Messages(BaseHTTPRequestHandler):
    server: Claudes

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        usage = self.server.read(body)
        self.server.usage.append(usage)
        content: list[dict[str, Any]] = [{"type": "text", "text": f"Noted as number {len(self.server.usage)}."}]
        stop = "end_turn"
        if self.server.calls:
            name, stop = self.server.calls.pop(0), "tool_use"
            if name:
                content = [{"type": "tool_use", "id": f"toolu_{len(self.server.usage)}", "name": "look_up"}]
                content[0]["input"] = {"key": name}
            else:
                stop = "end_turn"
        answer = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": content,
            "stop_reason": stop, "stop_sequence": None, "usage": usage,
        }  # fmt: skip
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def claudes() -> Iterator[Claudes]:
    with Claudes() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def session(server: Claudes, *, tools: bool, **settings: Any) -> Chat:
    """Ten turns through ADK's own client of Claude."""
    anthropic = pytest.importorskip("anthropic")
    from google.adk.models.anthropic_llm import AnthropicLlm as Client

    url = f"http://127.0.0.1:{server.server_address[1]}"
    client = anthropic.AsyncAnthropic(api_key="test", base_url=url, max_retries=0)
    agent = LlmAgent(
        name="clerk",
        model=Client(model="claude-sonnet-4-5", client=client),
        instruction="You look after the library of a river authority. " * 120,
        tools=[look_up] if tools else [],
    )
    chat = Chat(agent=agent, **settings)
    server.calls = ["a", "b", ""] * 10 if tools else []
    for number in range(10):
        chat.say(f"Question {number}: " + f"what does report {number} say of the gauge at bridge {number}? " * 20)
    return chat


def share(server: Claudes) -> float:
    """The share of all input that the cache served."""
    total = sum(usage["input_tokens"] + usage["cache_read_input_tokens"] for usage in server.usage)
    total += sum(usage["cache_creation_input_tokens"] for usage in server.usage)
    return sum(usage["cache_read_input_tokens"] for usage in server.usage) / total


@pytest.mark.parametrize("tools", [pytest.param(False, marks=pytest.mark.slow), True])
def test_ten_turns_of_claude_are_served_from_the_cache(tools: bool) -> None:
    with claudes() as server:
        session(server, tools=tools)
    assert max(server.marks) <= MOST_MARKS
    assert share(server) >= 0.7
    with claudes() as server:
        session(server, tools=tools, policy=PackPolicy(cache="off"))
    assert share(server) == 0
