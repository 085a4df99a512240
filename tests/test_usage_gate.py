"""The usage gate: the input tokens that a provider last reported decide whether anything is cut at all.

A net of bytes stands behind it for calls before which nothing was reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from packs import pack_input as usual_input
from packs import said, turns
from plans import cached_input_costs
from scripted import Chat, call, was_cut

from aether_context import PackPolicy
from aether_context.pack import Calibration, Content, Pack
from aether_context.packing import build_pack
from aether_context.packing.compaction import sent_bytes
from aether_context.store import Manifest

pack_input = partial(usual_input, cached_price=1.0)
EAGER = {"compact_at": 0.8}
"""A mark well under the input budget, and no cache that a cut could break, so that every cut pays."""

POLICY = PackPolicy(conversation=EAGER, offload={"mode": "off"})

NET = 3.6
"""Bytes that the net takes for each token of the window."""

TALK = turns(16, 20)
COUNTED = build_pack(pack_input(TALK, window=200_000), POLICY).tokens.counted
WINDOW = int(COUNTED / 0.9 / 0.9)
"""One that the talk fills to between the high-water mark and the input budget."""


def last_reported(tokens: int | None, counted: int = COUNTED) -> Calibration:
    """What is known where a request was estimated at ``tokens`` from the last report; None where there was none."""
    beyond = None if tokens is None else tokens - counted
    return Calibration(ratio=1.0, anchored=True, report_minus_count=beyond)


def packed(known: Calibration | None, policy: PackPolicy = POLICY, **more: Any) -> Pack:
    return build_pack(pack_input(more.pop("contents", TALK), window=WINDOW, calibration=known, **more), policy)


def is_cut(pack: Pack) -> bool:
    return any(event.stage == "cut" for event in pack.events)


@pytest.fixture(autouse=True)
def _nothing_is_cached() -> Iterator[None]:
    with cached_input_costs(1.0):
        yield


@pytest.mark.parametrize("gate", [0.3, 0.5, 0.7])
def test_the_threshold_is_a_share_of_the_window_to_the_token(gate: float) -> None:
    policy = POLICY.changed(usage={"gate": gate})
    mark = min(gate * WINDOW, 0.8 * packed(None).allocation.budget)
    under, at = int(mark) - 1, int(mark) + 1
    assert not is_cut(packed(last_reported(under), policy))
    assert is_cut(packed(last_reported(at), policy))


@pytest.mark.parametrize("strategy", ["epochs", "heads_tails", "summarize", "stable_prefix"])
def test_the_gate_stands_in_front_of_every_strategy_with_a_mark(strategy: str) -> None:
    policy = POLICY.changed(conversation={**EAGER, "strategy": (strategy,), "stable_prefix": {"threshold": 0.5}})
    known = last_reported(int(0.4 * WINDOW))
    assert packed(None, policy).acts
    assert not packed(known, policy).acts


def test_however_little_is_reported_the_count_never_passes_the_input_budget() -> None:
    pack = build_pack(pack_input(turns(60, 20), window=WINDOW, calibration=last_reported(1)), POLICY)
    assert pack.tokens.counted <= pack.allocation.budget


DENSE = [said("=" * 900, "user" if at % 2 == 0 else "model") for at in range(41)]
"""Many bytes of few tokens: only the net can see how large this is."""

DENSE_WINDOW = 6_000


def netted(known: Calibration | None = None, contents: Sequence[Content] = DENSE, **more: Any) -> Pack:
    return build_pack(pack_input(contents, window=DENSE_WINDOW, calibration=known, **more), POLICY)


def test_the_first_call_runs_the_byte_net() -> None:
    assert sent_bytes(DENSE) > NET * DENSE_WINDOW
    assert netted().acts
    free = POLICY.changed(usage={"gate": 0})
    assert not build_pack(pack_input(DENSE, window=DENSE_WINDOW), free).acts


def test_it_does_not_run_once_usage_was_reported() -> None:
    assert not netted(Calibration(ratio=1.0, anchored=True, report_minus_count=0)).acts


def read_page(name: str) -> str:
    """Reads a page."""
    return "\n".join(f"{name} line {at}: rivers rise and fall with rain" for at in range(40))


def reply(value: Any, tokens: int | None) -> LlmResponse:
    """An answer with the input tokens that a provider reports; None for a provider that reports nothing."""
    part = value if isinstance(value, types.Part) else types.Part(text=value)
    usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=tokens)
    return LlmResponse(
        content=types.Content(role="model", parts=[part]), usage_metadata=usage if tokens is not None else None
    )


def working(tokens: Sequence[int | None], window: int = 8_000) -> Chat:
    """An invocation in which the model reads a page at each call but the last; ``tokens`` are the reports."""
    script = [reply(call("read_page", name=f"page {at}"), one) for at, one in enumerate(tokens[:-1])]
    return Chat(
        script=[*script, reply("done", tokens[-1])],
        tools=[read_page],
        policy=PackPolicy(max_input_tokens=window, conversation=EAGER, offload={"mode": "off"}),
    )


def cuts(manifests: Sequence[Manifest]) -> list[int]:
    """The numbers, from 0, of the packs that were cut."""
    return [at for at, one in enumerate(manifests) if was_cut(one)]


def working_silently(calls: int) -> list[Manifest]:
    """The same without any report."""
    chat = working([None] * calls)
    chat.say("read")
    chat.replays()
    return chat.manifests()


def test_in_a_loop_the_reports_decide() -> None:
    calls = 11
    told = working([500 + 100 * at for at in range(calls)])
    told.say("read")
    assert cuts(working_silently(calls))
    assert cuts(told.manifests()) == []
    assert told.manifests()[-1].counted_tokens > 0.8 * 0.9 * 8_000
    told.replays()


def test_once_the_reports_reach_the_threshold_the_loop_is_cut() -> None:
    reports = [440 * (at + 1) for at in range(16)]
    chat = working(reports)
    chat.say("read")
    first = cuts(chat.manifests())[0]
    page = chat.manifests()[2].counted_tokens - chat.manifests()[1].counted_tokens
    assert chat.manifests()[first - 1].counted_tokens + page > 0.8 * 0.9 * 8_000
    assert reports[first - 1] + page >= 0.6 * 8_000
    before = [at for at in range(first) if chat.manifests()[at].counted_tokens > 0.8 * 0.9 * 8_000]
    assert all(reports[at - 1] + page < 0.8 * 0.9 * 8_000 for at in before)
    assert cuts(working_silently(len(reports)))[0] < first
    chat.replays()


@pytest.mark.parametrize("nothing", [None, 0])
def test_a_report_of_nothing_is_no_report(nothing: int | None) -> None:
    chat = working([nothing] * 11)
    chat.say("read")
    assert cuts(chat.manifests()) == cuts(working_silently(11)) != []


def test_a_new_message_begins_without_a_report() -> None:
    """Usage of the invocation before decides nothing: the count does, and the byte net."""
    chat = working([500 + 100 * at for at in range(11)])
    chat.say("read")
    assert cuts(chat.manifests()) == []
    assert chat.manifests()[-1].calibration.report_minus_count is not None
    chat.llm.script = [reply("fine", 1_800)]
    chat.say("and now?")
    last = chat.manifests()[-1]
    assert last.calibration.report_minus_count is None
    assert cuts([last]) == [0]
    chat.replays()
