"""Usage teaches the estimate, quickly, robustly and within bounds, and decides over what is counted."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from hypothesis import given
from hypothesis import strategies as st
from scripted import Chat, Scripted, call, look_up, new_store

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.pack import valid
from aether_context.usage import CallUsage, TokenLedger
from aether_context.usage.calibration import RATIO, TokenRatio, UsageBaseline, calibration, estimated, report

MODEL = "gemini-2.5-flash"


def growth(source: random.Random) -> int:
    """Counted tokens of one step of a tool loop."""
    return source.randint(30, 3_400)


def learned(ratio: TokenRatio, source: random.Random, factor: float, steps: int) -> TokenRatio:
    """After so many steps of a provider who counts by this factor, give or take a tenth."""
    for _ in range(steps):
        counted = growth(source)
        ratio = ratio.learned(counted, round(factor * counted * source.uniform(0.9, 1.1)))
    return ratio


def test_a_ratio_is_learned_from_growth_within_ten_calls():
    ratio = learned(TokenRatio(), random.Random(7), 0.75, 10)
    assert ratio.value == pytest.approx(0.75, rel=0.04)
    assert ratio.samples == 10


@given(st.lists(st.tuples(st.integers(-50, 90_000), st.integers(-10, 200_000))))
def test_a_ratio_stays_inside_its_bounds_whatever_is_reported(reports):
    ratio = TokenRatio()
    for counted, reported in reports:
        ratio = ratio.learned(counted, reported)
    assert 0.6 <= ratio.value <= 1.7
    assert valid(RATIO, json.loads(json.dumps(RATIO.dump_python(ratio)))) == ratio


def anchored(reported: int, counted: int, **more: Any) -> UsageBaseline:
    return UsageBaseline(model=MODEL, epoch=1, counted=counted, reported=reported, **more)


def test_the_next_estimate_is_the_last_report_plus_what_was_added():
    anchor, ratio = report(None, TokenRatio(), model=MODEL, epoch=1, counted=1_000, reported=1_400)
    known = calibration(anchor, ratio, model=MODEL, epoch=1, here=True, uncounted_tokens=0)
    assert known is not None
    assert known.anchored
    assert known.report_minus_count == 400
    assert estimated(known, 1_300) == 1_700
    assert estimated(known, 600) == 1_000


@pytest.mark.parametrize("jump", [90_000, 100])
def test_a_jump_is_believed_only_when_the_next_report_confirms_it(jump: int):
    anchor, ratio = report(anchored(20_000, 20_000), TokenRatio(), model=MODEL, epoch=1, counted=20_000, reported=jump)
    assert anchor.reported == 20_000
    once, _ = report(anchor, ratio, model=MODEL, epoch=1, counted=20_500, reported=20_480)
    assert (once.reported, once.doubted) == (20_480, None)
    twice, _ = report(anchor, ratio, model=MODEL, epoch=1, counted=20_500, reported=jump + 510)
    assert twice.reported == jump + 510


def provider(ratio: float = 1.3, hidden: int = 700) -> Any:
    """Reports this ratio of what was counted, and hidden tokens on top."""

    def make(chat: Chat) -> None:
        plugin: Any = chat.plugin
        answer = chat.llm._response

        def respond(reply: Any, reported: int) -> LlmResponse:
            *_, last = plugin._packer._last._entries.values()
            return answer(reply, round(ratio * last.pack.tokens.counted) + hidden)

        object.__setattr__(chat.llm, "_response", respond)

    return make


def talk(count: int, *, store: PackStore | None = None, make: Any = None, **more: Any) -> Chat:
    script: list[Any] = [item for at in range(count) for item in (call("look_up", key=f"k{at}"), f"found {at}")]
    chat = Chat(script=script, tools=[look_up], store=store or new_store(), **more)
    (make or provider())(chat)
    return chat


def error(chat: Chat, at: int) -> float:
    manifest = chat.manifests()[at]
    outcome = chat.store.outcome(manifest)
    assert outcome is not None
    return abs(manifest.request_tokens - outcome["input_tokens"]) / outcome["input_tokens"]


def test_estimates_close_in_on_what_a_provider_reports():
    chat = talk(8)
    chat.say(*[f"question {at}" for at in range(8)])
    assert error(chat, 0) > 0.2
    assert error(chat, 1) < 0.1
    assert error(chat, -1) < 0.01
    manifests = chat.manifests()
    assert manifests[0].calibration is None
    assert manifests[-1].request_tokens_method == "anchored"
    assert manifests[-1].calibration is not None
    assert manifests[-1].calibration.samples > 5
    chat.replays()


@pytest.mark.parametrize(("written", "used"), [(9e9, 1.0), (1.7, 1.7)])
def test_a_tool_that_writes_calibration_into_state_moves_nothing_beyond_its_bounds(written: float, used: float):
    taught = talk(8)
    taught.say(*[f"question {at}" for at in range(8)])
    (key,) = asyncio.run(taught.held()).state["aether:calibration"]

    def poison(tool_context: ToolContext) -> str:
        """Writes a ratio."""
        tool_context.state["aether:calibration"] = {key: {"value": written, "counted_tokens": 50_000, "samples": 10**9}}
        return "done"

    chat = Chat(script=[call("poison"), "ok", "ok"], tools=[poison])
    chat.llm.usage = False
    chat.say("go", "again")
    plugin = ContextPackPlugin(store=chat.store, on_error="raise")
    other = Chat(plugin=plugin, sessions=chat.sessions, tools=[poison], script=["ok", "ok"])
    other.say("more", "and more")
    assert other.manifests()[-1].calibration.ratio == used


WINDOW = 16_000


def rows(start: int) -> dict[str, Any]:
    """Reads rows of numbers and ids."""
    return {"rows": [f"{at * 7919 % 100_003:06}-{at * 104_729 % 1_000_003:07}" for at in range(start, start + 60)]}


class Frugal(Scripted):
    """Reports a token for every four bytes of what it was sent, which for digits is far less than is counted."""

    def reported(self, llm_request: LlmRequest) -> int:
        return sum(len(content.model_dump_json(exclude_none=True)) for content in llm_request.contents) // 4


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
