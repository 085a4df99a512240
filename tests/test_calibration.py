"""Usage teaches the estimate: quickly, robustly, within bounds, and alike in every process."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from packs import Session, lines, pack_input, said
from pydantic import TypeAdapter
from scripted import Chat, call, look_up, new_store

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.pack import Calibration, valid
from aether_context.packing import build_pack
from aether_context.store.replay import Replayer
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


# the ratio


def test_a_ratio_is_learned_from_growth_within_ten_calls():
    ratio = learned(TokenRatio(), random.Random(7), 0.75, 10)
    assert ratio.value == pytest.approx(0.75, rel=0.04)
    assert ratio.samples == 10


def test_a_few_wild_reports_barely_move_what_was_learned():
    source = random.Random(7)
    before = learned(TokenRatio(), source, 0.75, 40)
    after = before
    for wild in (50_000, 0, 40_000):
        after = after.learned(growth(source), wild)
    assert after.samples == before.samples + 3
    assert after.value == pytest.approx(before.value, rel=0.05)


def test_a_change_of_the_providers_counting_is_followed():
    source = random.Random(3)
    ratio = TokenRatio()
    for factor in (1.0, 1.35):
        ratio = learned(ratio, source, factor, 120)
        assert ratio.value == pytest.approx(factor, rel=0.03)


@given(st.lists(st.tuples(st.integers(-50, 90_000), st.integers(-10, 200_000))))
def test_a_ratio_stays_inside_its_bounds_whatever_is_reported(reports):
    ratio = TokenRatio()
    for counted, reported in reports:
        ratio = ratio.learned(counted, reported)
    assert 0.6 <= ratio.value <= 1.7
    assert valid(RATIO, json.loads(json.dumps(RATIO.dump_python(ratio)))) == ratio


@pytest.mark.parametrize(("counted", "reported"), [(-1, 10), (0, 10), (90_000, 50_000), (900, 70_000), (900, -1)])
def test_growth_that_is_none_teaches_nothing(counted: int, reported: int):
    ratio = TokenRatio()
    assert ratio.learned(counted, reported) is ratio


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "x",
        [],
        {"value": "1", "counted_tokens": 2_000, "samples": 3},
        {"value": float("nan"), "counted_tokens": 2_000, "samples": 3},
        {"value": 90.0, "counted_tokens": 2_000, "samples": 3},
        {"value": 1.0, "counted_tokens": 10**9, "samples": 3},
        {"value": 1.0, "counted_tokens": 0, "samples": 3},
        {"value": 1.0, "counted_tokens": 2_000, "samples": -3},
    ],
)
def test_what_is_not_a_calibration_is_none(value: Any):
    assert valid(RATIO, value) is None


# the anchor


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


def test_room_in_the_window_is_what_reports_fall_short_of_the_count():
    short = anchored(800, 1_000)
    assert short.spare_tokens(epoch=1) == 200
    assert short.spare_tokens(epoch=2) == 100
    assert anchored(1_200, 1_000).spare_tokens(epoch=1) == 0
    assert anchored(500, 1_000).spare_tokens(epoch=1) == 0, "a report of uncached tokens alone"
    known = calibration(short, TokenRatio(), model=MODEL, epoch=1, here=False, uncounted_tokens=0)
    assert known is not None
    assert known.spare_tokens == 200
    other = calibration(short, TokenRatio(), model="gpt-4o", epoch=1, here=False, uncounted_tokens=0)
    assert other is not None
    assert other.spare_tokens == 0


def test_more_is_sent_where_less_is_reported_than_counted():
    contents = [said(f"{at}: {lines('refunds', 10)}", "user" if at % 2 == 0 else "model") for at in range(41)]
    known = Calibration(ratio=1.0, anchored=True, spare_tokens=1_000)
    plain = build_pack(pack_input(contents, window=4_000), PackPolicy())
    more = build_pack(pack_input(contents, window=4_000, calibration=known), PackPolicy())
    assert more.allocation.budget == plain.allocation.budget + 1_000
    assert len(more.contents) > len(plain.contents)


def test_a_cut_moves_the_anchor_and_teaches_nothing():
    anchor = anchored(9_000, 8_000)
    after, ratio = report(anchor, TokenRatio(), model=MODEL, epoch=2, counted=3_000, reported=4_400)
    assert (after.reported, after.epoch, ratio.samples) == (4_400, 2, 0)


def test_another_model_takes_the_offset_over_and_is_not_anchored():
    anchor = anchored(1_500, 1_000)
    known = calibration(anchor, TokenRatio(), model="gpt-4o", epoch=1, here=True, uncounted_tokens=0)
    assert known is not None
    assert not known.anchored
    assert known.report_minus_count is None
    assert estimated(known, 900) == 1_400


@pytest.mark.parametrize("jump", [90_000, 100])
def test_a_jump_is_believed_only_when_the_next_report_confirms_it(jump: int):
    anchor, ratio = report(anchored(20_000, 20_000), TokenRatio(), model=MODEL, epoch=1, counted=20_000, reported=jump)
    assert anchor.reported == 20_000
    once, _ = report(anchor, ratio, model=MODEL, epoch=1, counted=20_500, reported=20_480)
    assert (once.reported, once.doubted) == (20_480, None)
    twice, _ = report(anchor, ratio, model=MODEL, epoch=1, counted=20_500, reported=jump + 510)
    assert twice.reported == jump + 510


def test_an_anchor_survives_json():
    anchor, adapter = anchored(5, 3, doubted=(90_000, 1)), TypeAdapter(UsageBaseline)
    recorded = json.loads(adapter.dump_json(anchor))
    assert valid(adapter, recorded) == anchor
    for broken in (None, [], {}, [*recorded[:2], -1, 5], [*recorded[:3], "many"]):
        assert valid(adapter, broken) is None


# in packs


def test_the_gate_holds_a_cut_back_while_usage_says_there_is_room():
    contents = [said(f"{at}: {lines('refunds', 20)}", "user" if at % 2 == 0 else "model") for at in range(21)]
    counted = build_pack(pack_input(contents, window=64_000), PackPolicy()).counted_tokens
    window = int(counted / 0.9 / 0.9)
    known = Calibration(ratio=1.0, anchored=True, report_minus_count=int(0.5 * window) - counted)

    def cut(policy: PackPolicy, calibration: Calibration | None) -> bool:
        policy = policy.changed(conversation={"compact_at": 0.8})
        source = pack_input(contents, window=window, calibration=calibration, cached_price=1.0)
        pack = build_pack(source, policy)
        return any(event.stage == "cut" for event in pack.events)

    assert cut(PackPolicy(), None)
    assert not cut(PackPolicy(), known)
    assert cut(PackPolicy(usage={"gate": 0}), known)
    assert cut(PackPolicy(), Calibration(ratio=1.0, anchored=True, report_minus_count=int(0.7 * window) - counted))
    assert cut(PackPolicy(), Calibration(ratio=1.0, report_minus_count=None))


def test_the_gate_never_lets_the_count_pass_the_input_budget():
    contents = [said(f"{at}: {lines('refunds', 20)}", "user" if at % 2 == 0 else "model") for at in range(41)]
    known = Calibration(ratio=1.0, anchored=True, report_minus_count=-1_000_000)
    pack = build_pack(pack_input(contents, window=4_000, calibration=known), PackPolicy())
    assert pack.counted_tokens <= pack.allocation.budget


def test_the_byte_net_cuts_what_the_count_lets_pass_where_nothing_was_reported():
    contents = [said("=" * 600, "user" if at % 2 == 0 else "model") for at in range(41)]
    source = pack_input(contents, window=4_000)
    free = build_pack(source, PackPolicy(usage={"gate": 0}, conversation={"compact_to": 0.1}))
    netted = build_pack(source, PackPolicy(conversation={"compact_to": 0.1}))
    assert not free.events
    assert [event.stage for event in netted.events] == ["cut"]
    reported = Calibration(ratio=1.0, anchored=True, report_minus_count=0)
    assert not build_pack(pack_input(contents, window=4_000, calibration=reported), PackPolicy()).events


@pytest.mark.parametrize("strategy", ["epochs", "heads_tails", "summarize", "sliding_turns", "stable_prefix", "none"])
def test_a_cut_of_the_byte_net_brings_contents_under_it_under_every_strategy(strategy: str):
    contents = [said("=" * 900, "user" if at % 2 == 0 else "model") for at in range(41)]
    settings = {"strategy": strategy, "heads_tails": {"head": 1, "tail": 2}}
    pack = build_pack(pack_input(contents, window=8_000), PackPolicy(conversation=settings))
    # `stable_prefix` estimates by bytes, so it acts before the net has to.
    reasons = [event.reason for event in pack.events if event.stage == "cut"]
    assert reasons == ([] if strategy == "stable_prefix" else ["byte_net"])
    assert sum(len(item.content.wire.encode()) for item in pack.contents) < 3.6 * 8_000


def test_unseen_tokens_take_room_from_the_window():
    contents = [said(f"{at}: {lines('refunds', 10)}", "user" if at % 2 == 0 else "model") for at in range(21)]
    known = Calibration(ratio=1.0, offset=2_000.0, anchored=True, uncounted_tokens=2_000)
    pack = build_pack(pack_input(contents, window=5_000, calibration=known), PackPolicy())
    assert pack.allocation.layers["system"].used >= 2_000
    assert pack.counted_tokens + 2_000 <= pack.allocation.budget
    assert pack.request_tokens == pack.counted_tokens + 2_000


def test_replay_uses_the_recorded_calibration():
    store = new_store()
    known = Calibration(ratio=0.9, offset=77.5, samples=9, anchored=True, report_minus_count=70, uncounted_tokens=3)
    session = Session(store, calibration=known)
    session.ask("Who approves refunds?")
    manifest = session.use("search", lines("result", 5))
    replayed = Replayer(PackStore(store.url)).replay(manifest)
    assert replayed.matches
    assert replayed.pack.request_tokens == manifest.request_tokens != manifest.counted_tokens
    assert manifest.request_tokens_method == "anchored"


# through ADK


def provider(ratio: float = 1.3, hidden: int = 700) -> Any:
    """Reports this ratio of what was counted, and hidden tokens on top."""

    def make(chat: Chat) -> None:
        plugin: Any = chat.plugin
        answer = chat.llm._response

        def respond(reply: Any, reported: int) -> LlmResponse:
            *_, last = plugin._packer._last._entries.values()
            return answer(reply, round(ratio * last.pack.counted_tokens) + hidden)

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


def test_calls_without_usage_leave_the_anchor_where_it_is():
    chat = talk(6)
    chat.say("question 0", "question 1")
    before = chat.manifests()[-1]
    chat.llm.usage = False
    chat.say("question 2")
    after = chat.manifests()[-1]
    assert after.request_tokens_method == "anchored"
    assert after.request_tokens > before.request_tokens
    assert error_free(chat)


def error_free(chat: Chat) -> bool:
    return all(not manifest.degradations for manifest in chat.manifests())


def test_a_new_session_of_the_same_user_starts_calibrated():
    store = new_store()
    first = talk(10, store=store)
    first.say(*[f"question {at}" for at in range(10)])
    again = talk(2, store=PackStore(store.url), session="s2")
    again.say("question 0")
    start = again.manifests()[-2].calibration
    assert start is not None
    assert start.samples > 5
    assert not start.anchored
    stranger = talk(2, store=PackStore(store.url), session="s3", user="bob")
    stranger.say("question 0")
    assert stranger.manifests()[-2].calibration is None


def test_another_process_goes_on_from_the_same_anchor(tmp_path: Path):
    store = new_store()
    path = str(tmp_path / "sessions.db")
    first = talk(6, store=store, sessions=SqliteSessionService(db_path=path))
    first.say(*[f"question {at}" for at in range(5)])
    anchor = calibration_of(first)
    second = talk(6, store=store, sessions=SqliteSessionService(db_path=path))
    second.say("question 5")
    resumed = second.manifests()[-2].calibration
    assert resumed is not None
    assert resumed.anchored
    assert resumed.offset == pytest.approx(anchor.offset, abs=120)
    assert error(second, -1) < 0.02


@pytest.mark.parametrize("ratio", [0.7, 1.3])
def test_workers_that_take_turns_send_what_one_alone_sends(ratio: float):
    def sent(workers: int) -> list[Any]:
        sessions = InMemorySessionService()
        policy = PackPolicy(max_input_tokens=3_000)
        chats = [talk(0, sessions=sessions, policy=policy, make=provider(ratio, hidden=0)) for _ in range(workers)]
        requests: list[Any] = []
        for turn in range(14):
            chat = chats[(turn // 2 if turn % 3 else turn) % workers]
            chat.llm.script = [*chat.llm.script, call("look_up", key=f"k{turn}"), f"answer {turn}"]
            before = len(chat.sent)
            chat.say(f"question {turn} " + "about this and that " * (5 + turn % 4))
            requests += [one.wires for one in chat.sent[before:]]
        return requests

    alone = sent(1)
    assert sent(2) == alone
    assert sent(3) == alone


def calibration_of(chat: Chat) -> Any:
    return chat.manifests()[-1].calibration


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


def test_a_failed_call_does_not_move_the_anchor():
    chat = talk(6)
    chat.say("question 0", "question 1")
    held = asyncio.run(chat.held())
    usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=99_999)
    chat.llm.script = [LlmResponse(error_code="500", error_message="down", usage_metadata=usage), "ok"]
    chat.say("question 2", "question 3")
    manifest = chat.manifests()[-1]
    assert manifest.request_tokens < 20_000
    assert len(held.events) > 3
