"""The usage gate: the input tokens that a provider last reported decide whether anything is cut at all; and what usage
teaches the estimate.

A net of bytes stands behind it for calls before which nothing was reported.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from matrix import but_slow
from packs import pack_input as usual_input
from packs import said, turns
from plans import cached_input_costs
from scripted import Chat, Scripted, call, look_up, new_store, was_cut

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.pack import Calibration, Content, Pack
from aether_context.packing import build_pack
from aether_context.store import Manifest
from aether_context.usage import CallUsage, TokenLedger

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
    return Calibration(ratio=1.0, offset=beyond or 0, anchored=True, report_minus_count=beyond)


def packed(known: Calibration | None, policy: PackPolicy = POLICY, **more: Any) -> Pack:
    return build_pack(pack_input(more.pop("contents", TALK), window=WINDOW, calibration=known, **more), policy)


def is_cut(pack: Pack) -> bool:
    return any(event.stage == "cut" for event in pack.events)


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_cached() -> Iterator[None]:
    with cached_input_costs(1.0):
        yield


@pytest.mark.parametrize("gate", [0.3, 0.5, 0.7])
def test_the_threshold_is_a_share_of_the_window_to_the_token(gate: float) -> None:
    policy = POLICY.changed(conversation={"strategy": ("summarize",)}, usage={"gate": gate})
    under, at = int(gate * WINDOW) - 1, int(gate * WINDOW) + 1
    assert not is_cut(packed(last_reported(under), policy))
    assert is_cut(packed(last_reported(at), policy))


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_mark_is_a_share_of_the_budget_in_expected_tokens_to_the_token(share: float) -> None:
    policy = POLICY.changed(conversation={"compact_at": share, "compact_to": 0.2})
    mark = int(share * packed(None).allocation.budget)
    assert not is_cut(packed(last_reported(mark - 1), policy))
    assert is_cut(packed(last_reported(mark + 1), policy))


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


def sent_bytes(contents: Iterable[Content]) -> int:
    return sum(len(content.wire.encode()) for content in contents)


def test_the_first_call_runs_the_byte_net() -> None:
    assert sent_bytes(DENSE) > NET * DENSE_WINDOW
    assert netted().acts
    free = POLICY.changed(usage={"gate": 0})
    assert not build_pack(pack_input(DENSE, window=DENSE_WINDOW), free).acts


@pytest.mark.parametrize("compact_to", [0.42, 0.8])
@pytest.mark.parametrize("strategy", ["epochs", "heads_tails", "summarize", "sliding_turns", "none"])
def test_no_request_is_over_the_net_whatever_its_bytes_a_token(strategy: str, compact_to: float) -> None:
    chance = random.Random(7)
    texts = ["=" * 3_000, "ä" * 900, "harbour fee " * 60, ("x" + " " * 60) * 40, "short"]
    contents = [said(chance.choice(texts), "user" if at % 2 == 0 else "model") for at in range(40)]
    contents.append(said("and now?"))
    policy = PackPolicy(conversation={"strategy": (strategy,), "compact_to": compact_to}, offload={"mode": "off"})
    for window in (2_000, 6_000):
        pack = build_pack(pack_input(contents, window=window), policy)
        assert sent_bytes(item.content for item in pack.contents) <= NET * window
        assert pack.contents[-1].content.words == "and now?"
        assert pack.acts


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


@cache
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
    assert told.latest().counted_tokens > 0.8 * 0.9 * 8_000
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
    assert chat.latest().calibration.report_minus_count is not None
    chat.llm.script = [reply("fine", 1_800)]
    chat.say("and now?")
    last = chat.latest()
    assert last.calibration.report_minus_count is None
    assert cuts([last]) == [0]
    chat.replays()


ROOMY = 200_000
"""A window in which nothing is cut."""


def known_after(*reports: int) -> list[Manifest]:
    """The packs of a loop, whose requests are the same whatever is reported of them."""
    chat = working([*reports, 0], ROOMY)
    chat.say("read")
    return chat.manifests()


@pytest.fixture(scope="module")
def counted() -> list[int]:
    """Tokens that are counted of the requests of that loop."""
    return [manifest.counted_tokens for manifest in known_after(*[0] * 5)]


def test_the_next_estimate_is_the_last_report_plus_what_was_added(counted: list[int]) -> None:
    _, then, *_ = known_after(counted[0] + 400, *[0] * 4)
    assert then.request_tokens_method == "anchored"
    assert then.calibration.report_minus_count == 400
    assert then.request_tokens == counted[1] + 400


def test_a_jump_is_believed_only_when_the_next_report_confirms_it(counted: list[int]) -> None:
    jump, growth = int(1.9 * counted[1]), counted[2] - counted[1]
    doubted = known_after(counted[0], jump, counted[2], 0)
    assert [one.calibration.report_minus_count for one in doubted[1:4]] == [0, 0, 0]
    confirmed = known_after(counted[0], jump, jump + growth, 0)
    assert confirmed[3].calibration.report_minus_count == jump - counted[1]


def test_reports_of_another_model_say_nothing_of_this_one(counted: list[int]) -> None:
    reported = int(1.8 * counted[1])
    chat = working([counted[0], reported, 0], ROOMY)

    def alter(context: Any, request: LlmRequest) -> None:
        request.model = "gemini-2.5-pro" if len(request.contents) > 1 else request.model

    chat.before.alter = alter
    chat.say("read")
    first, second, third = chat.manifests()
    assert first.model != second.model == third.model
    assert third.calibration.report_minus_count == reported - counted[1], "it is believed, since none came before"


def test_a_ratio_stays_inside_its_bounds_whatever_is_reported() -> None:
    chance = random.Random(7)
    packs = known_after(*(chance.randint(0, 2_000 * at) for at in range(12)))
    ratios = {pack.calibration.ratio for pack in packs if pack.calibration is not None}
    assert len(ratios) > 1
    assert all(0.6 <= ratio <= 1.7 for ratio in ratios)


def provider(ratio: float = 1.3, hidden: int = 700) -> Any:
    """Reports this ratio of what was counted, and hidden tokens on top."""

    def make(chat: Chat) -> None:
        plugin: Any = chat.plugin
        answer = chat.llm._response

        def respond(reply: Any, reported: int) -> LlmResponse:
            last = plugin._packer._parts.sessions._sessions.values()[-1].agents.values()[-1].last
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


@pytest.mark.parametrize("ratio", [0.75, 1.3])
def test_estimates_close_in_on_what_a_provider_reports(ratio: float):
    chat = talk(8, make=provider(ratio))
    chat.say(*[f"question {at}" for at in range(8)])
    assert error(chat, 0) > 0.2
    assert error(chat, 1) < 0.1
    assert error(chat, -1) < 0.01
    manifests = chat.manifests()
    assert manifests[0].calibration is None
    assert manifests[-1].request_tokens_method == "anchored"
    assert manifests[-1].calibration is not None
    assert manifests[-1].calibration.samples > 5
    assert manifests[-1].calibration.ratio == pytest.approx(ratio, rel=0.1)
    chat.replays()


@pytest.fixture(scope="module")
def taught() -> Chat:
    chat = talk(8)
    chat.say(*[f"question {at}" for at in range(8)])
    return chat


@pytest.mark.parametrize(("written", "used"), [(9e9, 1.0), (1.7, 1.7)])
def test_a_tool_that_writes_calibration_into_state_moves_nothing_beyond_its_bounds(
    taught: Chat, written: float, used: float
):
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
    assert other.latest().calibration.ratio == used


ROOM = 3_000


def reading(usage: Callable[[int], int | None], *, calls: int = 7, instruction: str = "", **settings: Any) -> Chat:
    """Two messages, each with a loop that reads page by page; ``usage`` is the report by the tokens that were
    counted."""
    pages = [call("read_page", name=f"page {at}") for at in range(calls)]
    script = [*pages, pages[:2], "done", *pages[:2], "fine"]
    policy = PackPolicy(max_input_tokens=ROOM, **settings)
    chat = Chat(script=script, tools=[read_page], policy=policy, instruction=instruction)
    answer, plugin = chat.llm._response, chat.plugin

    def respond(reply: Any, _: int) -> LlmResponse:
        last = plugin._packer._parts.sessions._sessions.values()[-1].agents.values()[-1].last
        tokens = usage(last.pack.tokens.counted)
        return answer(reply, tokens) if tokens else answer(reply, 0).model_copy(update={"usage_metadata": None})

    object.__setattr__(chat.llm, "_response", respond)
    chat.say("Read all of it", "and again, please")
    return chat


@pytest.mark.parametrize("strategy", ["epochs", "none"])
def test_no_request_passes_the_window_by_its_own_estimate(strategy: str) -> None:
    chat = reading(lambda counted: round(1.37 * counted), conversation={"strategy": strategy})
    packs = chat.manifests()
    assert cuts(packs)
    assert all(pack.request_tokens <= ROOM and not pack.over_window for pack in packs)
    assert max(pack.counted_tokens for pack in packs) < 0.9 * ROOM / 1.3
    chat.replays()


@pytest.fixture(scope="module")
def silent() -> list[Manifest]:
    return reading(lambda _: None).manifests()


def test_lower_reports_bring_no_cut_forward(silent: list[Manifest]) -> None:
    frugal = reading(lambda counted: round(0.8 * counted)).manifests()
    assert cuts(silent)[0] < cuts(frugal)[0]
    assert all(early < late for early, late in zip(cuts(silent), cuts(frugal), strict=False))


def test_sums_over_calls_are_not_believed(silent: list[Manifest]) -> None:
    for first in (0, 9_000):  # what was read before the plugin came is in the first sum
        total = [first]
        summing = reading(lambda counted, total=total: total.append(total[-1] + counted) or total[-1])
        assert cuts(summing.manifests()) == cuts(silent)
        assert all(pack.request_tokens <= 1.1 * pack.counted_tokens + 50 for pack in summing.manifests())


def test_what_cannot_be_cut_is_said_to_pass_the_window() -> None:
    chat = reading(lambda counted: round(1.37 * counted), calls=1, instruction="Rule of the harbour. " * 450)
    pack = chat.latest()
    assert pack.counted_tokens < ROOM < pack.request_tokens
    assert pack.over_window == pack.request_tokens - ROOM
    assert pack.degradations


FRUGAL_WINDOW = 16_000


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
    chat = Chat(agent=agent, policy=PackPolicy(max_input_tokens=FRUGAL_WINDOW, **settings))
    chat.say("Read all of it")
    return chat


@pytest.mark.parametrize(
    "strategy", but_slow(["epochs", "stable_prefix", "heads_tails", "summarize"], "heads_tails", "summarize")
)
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
            assert before + known.report_minus_count >= 0.6 * FRUGAL_WINDOW, strategy
    assert counted > 0.9 * FRUGAL_WINDOW, "the count alone passes the budget"
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


MARK = "above compact_at"


@pytest.mark.parametrize("reports", [True, False], ids=["reported", "silent"])
@pytest.mark.parametrize("mark", but_slow([0.3, 0.5, 0.8], 0.5))
def test_a_mark_holds_whatever_a_cut_costs(mark: float, reports: bool) -> None:
    settings = {"compact_at": mark, "compact_to": 0.2}
    chat = Chat(
        script=[*(call("read_page", name=f"page {at}") for at in range(12)), "done", "fine"],
        tools=[read_page],
        instruction="Rule. " * 900,
        policy=PackPolicy(max_input_tokens=8_000, conversation=settings, offload={"mode": "off"}),
    )
    chat.llm.usage = reports
    with cached_input_costs(0.1):
        chat.say("read", "and now?")
    packs = chat.manifests()
    assert cuts(packs)
    budget = packs[0].window - packs[0].layer_budgets["slack_min"].tokens
    above = [one.request_tokens > mark * budget for one in packs]
    assert above == [any(MARK in note for note in one.degradations) for one in packs]
    assert any(above) is (mark == 0.3), "the instruction alone takes more"
    chat.replays()


def test_without_a_mark_a_cut_is_made_once_it_pays() -> None:
    def calls_until_cut(price: float, mark: float | None = None) -> int:
        policy = PackPolicy(conversation={"compact_at": mark}, offload={"mode": "off"})
        for at in range(2, 80):
            source = usual_input(turns(at, 20), window=6_000, cached_price=price)
            if build_pack(source, policy).acts:
                return at
        raise AssertionError

    assert calls_until_cut(1.0) < calls_until_cut(0.3) < calls_until_cut(0.3, mark=1.0) == calls_until_cut(0.01)
