"""What a provider reports decides over what is counted; and what strategies do where counts and estimates differ."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from scripted import Chat, Scripted, call

from aether_context import PackPolicy
from aether_context.usage import CallUsage, TokenLedger

WINDOW = 16_000


def rows(start: int) -> dict[str, Any]:
    """Reads rows of numbers and ids."""
    return {"rows": [f"{at * 7919 % 100_003:06}-{at * 104_729 % 1_000_003:07}" for at in range(start, start + 60)]}


class Frugal(Scripted):
    """Reports a token for every four bytes of what it was sent, which for digits is far less than is counted."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        size = sum(len(content.model_dump_json(exclude_none=True)) for content in llm_request.contents) // 4
        async for response in super().generate_content_async(llm_request, stream):
            usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=size, candidates_token_count=5)
            yield response.model_copy(update={"usage_metadata": usage})


def frugal(calls: int, **settings: Any) -> Chat:
    llm = Frugal(script=[*(call("rows", start=at * 60) for at in range(calls)), "done"], sent=[])
    agent = LlmAgent(name="clerk", model=llm, instruction="You help.", tools=[rows])
    chat = Chat(agent=agent, policy=PackPolicy(max_input_tokens=WINDOW, **settings))
    chat.say("Read all of it")
    return chat


@pytest.mark.parametrize("strategy", ["epochs", "stable_prefix", "heads_tails", "summarize"])
def test_nothing_is_cut_while_reports_and_growth_leave_most_of_the_window_free(strategy: str) -> None:
    chat = frugal(20, conversation={"strategy": strategy})
    counted = 0
    for manifest in chat.manifests():
        acted = [event for event in manifest.truncation_events if event.layer == "conversation"]
        known = manifest.calibration
        if known is None or known.report_minus_count is None:
            continue
        used = sum(layer.used for layer in manifest.allocation.values())
        counted = max(counted, used)
        if acted:
            before = used + acted[0].tokens_before - acted[-1].tokens_after
            assert before + known.report_minus_count >= 0.6 * WINDOW, strategy
    assert counted > 0.9 * WINDOW, "the count alone passes the budget"
    chat.replays()


@pytest.mark.parametrize(
    ("of_one_call", "reports"),
    [
        (False, (1_000, -900, 100)),
        (False, (1_000, -5_000)),
        (False, (-900, 1_000)),
        (False, (1_000, 100, -1)),
        (True, (1_000, 100, -900)),
    ],
)
def test_no_report_takes_anything_off_an_account(of_one_call: bool, reports: tuple[int, ...]) -> None:
    ledger = TokenLedger()
    if of_one_call:
        ledger.begin(ledger.estimate(1_000, output_limit=None), invocation="i0", agent="a")
    for at, tokens in enumerate(reports):
        number = 0 if of_one_call else at
        ledger.track(CallUsage(input_tokens=tokens, output_tokens=0), invocation=f"i{number}", agent="a")
    expected = max(reports) if of_one_call else sum(max(0, one) for one in reports)
    assert ledger.budget("session", "", PackPolicy().limits).input.used == expected
