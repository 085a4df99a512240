"""The cache witness: losses are planted in a run whose model serves the longest beginning it has, while it keeps it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import Any
from unittest.mock import patch

import pytest
from browsing import Browser
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.platform import time as adk_time
from google.genai import types
from scripted import Chat, Scripted, look_up, send_mail
from terminal import run, told
from traces import Traces

from aether_context import PackPolicy
from aether_context.adk import learning

PRICES = (0.3, 0.03, 2.5)
"""Of gemini-2.5-flash: US dollars for a million tokens of input, of cached input, and of output."""
MANUAL = "Rule {}: a berth at the harbour is let for {} nights at most, and its price is paid before.\n"
INSTRUCTION = "You let berths.\n" + "".join(MANUAL.format(at, at * 7 % 31) for at in range(90))


class Caching(Scripted):
    """Reports a token for every four characters, and of its requests the longest beginning that it keeps as cached."""

    clock: list[float] = [0.0]
    kept: list[Any] = []
    forgets_at: int = -1
    bill: list[float] = []

    def reported(self, llm_request: LlmRequest) -> int:
        config = llm_request.config
        tools = [one.model_dump_json() for tool in config.tools or () for one in tool.function_declarations or ()]
        texts = [str(config.system_instruction), *sorted(tools)]
        texts += [content.model_dump_json(exclude_none=True) for content in llm_request.contents]
        begins = [
            sum(len(text) for text, _ in takewhile(lambda pair: pair[0] == pair[1], zip(texts, other, strict=False)))
            for time, other in self.kept
            if self.clock[0] - time <= 300 and len(self.kept) != self.forgets_at
        ]
        self.cached = max(begins, default=0) // 4
        self.kept.append((self.clock[0], texts))
        return sum(map(len, texts)) // 4

    def _response(self, reply: Any, reported: int) -> LlmResponse:
        cached = self.cached if self.cached >= 1_024 else 0
        whole, less, answer = PRICES
        self.bill.append(((reported - cached) * whole + cached * less + 7 * answer) / 1e6)
        response = super()._response(reply, reported)
        response.usage_metadata.cached_content_token_count = cached
        return response

    cached: int = 0


@pytest.fixture
def clock() -> list[float]:
    return [1_790_000_000.0]


class Planted:
    """Sixteen calls of one session; what is planted happens before a call, by its number."""

    def __init__(self, clock: list[float], *acts: tuple[int, str], policy: PackPolicy | None = None) -> None:
        self.acts, self.clock, self.rewrites = dict(acts), clock, False
        self.llm = Caching(model="gemini-2.5-flash", kept=[], bill=[], sent=[])
        self.llm.clock = clock
        self.agent = LlmAgent(name="clerk", model=self.llm, instruction=INSTRUCTION, tools=[look_up])
        self.chat = Chat(agent=self.agent, alter=self._alter, policy=policy or PackPolicy())

    def _alter(self, context: Any, request: LlmRequest) -> None:
        if self.rewrites:
            request.contents[0] = types.UserContent(parts=[types.Part(text="It was rewritten by a callback.")])

    async def _talk(self) -> None:
        adk_time.set_time_provider(lambda: self.clock[0])
        for number in range(1, 17):
            self.clock[0] += 20
            match self.acts.get(number):
                case "instruction":
                    self.agent.instruction = f"It is day {number}. {INSTRUCTION}"
                case "tools":
                    self.agent.tools = [look_up, send_mail]
                case "callback":
                    self.rewrites = True
                case "time":
                    self.clock[0] += 600
                case "provider":
                    self.llm.forgets_at = number - 1
            text = " ".join(f"word{at * number}" for at in range(60))
            await self.chat.tell(f"Question {number}: {text}?")

    def run(self) -> dict[int, str]:
        """Who broke the cache, by the numbers of calls."""
        asyncio.run(self._talk())
        listed = told("list", store=self.chat.store)
        assert len(listed) == 16
        self.losses = {one["number"]: one["cache_loss"] for one in listed if one["cache_loss"]}
        return {number: loss["breaker"] for number, loss in self.losses.items()}


PLANTED = [(5, "instruction"), (9, "tools"), (13, "callback")]


def test_planted_losses_of_sixteen_calls_are_named_exactly(clock: list[float], caplog: Any) -> None:
    planted = Planted(clock, *PLANTED)
    assert planted.run() == dict(PLANTED)
    assert caplog.text.count("session 's1': the provider's cache did not serve what it had") == 1


def test_a_pause_is_called_a_pause_and_a_provider_that_forgets_is_named(clock: list[float], caplog: Any) -> None:
    assert Planted(clock, (6, "time"), (11, "provider")).run() == {6: "time", 11: "provider"}
    assert "the provider's cache" not in caplog.text, "the app cannot mend these"


def test_where_nothing_is_lost_nobody_is_named(clock: list[float]) -> None:
    assert Planted(clock).run() == {}


@pytest.mark.parametrize("tools", [[look_up], []], ids=["tools", "no tools but readers, later"])
def test_a_cut_is_called_a_cut(clock: list[float], tools: list[Any]) -> None:
    planted = Planted(clock, policy=PackPolicy(max_input_tokens=4_000))
    planted.agent.tools = tools
    cutting = planted.run()
    assert "cut" in cutting.values()
    assert set(cutting.values()) <= {"cut", "pack"}, "nobody of the app is named"


def test_losses_and_what_was_served_add_up_to_the_bill(clock: list[float]) -> None:
    planted = Planted(clock, *PLANTED, (15, "time"))
    planted.run()
    lost = sum(loss["cost_usd"] for loss in planted.losses.values())
    calls = [one.usage(planted.chat.store.outcome(one)) for one in planted.chat.manifests()]
    ideal = [
        replace(call, cached_tokens=min(call.input_tokens, before.input_tokens)).priced("gemini-2.5-flash", 0)
        for before, call in pairwise(calls)
    ]
    could = sum(float(call.cost_usd) for call in (calls[0], *ideal))
    assert could + lost == pytest.approx(sum(planted.llm.bill), rel=0.01)
    assert lost > 0.1 * could


def test_usage_list_and_viewer_show_them(clock: list[float]) -> None:
    planted = Planted(clock, *PLANTED)
    planted.run()
    store, marks = planted.chat.store, planted.losses
    sums = told("usage", store=store)["cache_losses"]
    assert {name: one["calls"] for name, one in sums.items()} == {"instruction": 1, "tools": 1, "callback": 1}
    assert sum(mark["tokens"] for mark in marks.values()) == sum(one["tokens"] for one in sums.values())
    page = Browser(store).open("/session?app=shop&user=ann&session=s1").text
    lines = run("list", store=store).stdout
    for mark in marks.values():
        assert f"{mark['tokens']:,} to {mark['breaker']}" in lines
        assert f"cache lost {mark['tokens']:,} to {mark['breaker']}" in page
    assert "cache lost to" in run("usage", store=store).stdout


def test_the_span_of_the_model_call_has_the_loss(clock: list[float], traces: Traces) -> None:
    planted = Planted(clock, PLANTED[0])
    planted.run()
    attributes = [dict(span.attributes) for span in traces.all if "aether_context.cache.lost_to" in span.attributes]
    assert [one["aether_context.cache.lost_to"] for one in attributes] == ["instruction"]
    assert attributes[0]["aether_context.cache.lost_tokens"] == pytest.approx(planted.losses[5]["tokens"], abs=1)


def test_several_answers_of_one_call_lose_nothing_to_each_other(traces: Traces) -> None:
    usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=4_000, cached_content_token_count=0)
    answers = [LlmResponse(content=types.ModelContent(text), usage_metadata=usage) for text in ("one", "two")]
    Chat(script=["ok", tuple(answers)]).say("Hello?", "Again?")
    assert not any("aether_context.cache.lost_to" in span.attributes for span in traces.all)


def test_it_remembers_sessions_of_which_little_else_is_kept() -> None:
    chat = Chat(policy=PackPolicy(max_input_tokens=20_000))
    with (
        patch("aether_context.adk.request.sessions._MOST_BYTES", 1),
        patch.object(learning, "cache_loss", wraps=learning.cache_loss) as judged,
    ):
        for at in range(3):
            for session in ("s1", "s2"):
                chat.say(f"message {at}", session=session)
    assert judged.call_count == 4
