"""The pipeline as a whole, on pure values: the allocation, what is kept and dropped, and what ended the prefix."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import packs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import MEMORIES, Session, evidence, lines, memory, pack_input, said, tool, torn
from packs import said as message
from scripted import was_cut

from aether_context import PackPolicy, build_pack
from aether_context.canonical import hash_text
from aether_context.errors import StepTooLarge
from aether_context.pack import FLEXIBLE_LAYERS, LAYERS, AcceptanceItem, Content, Pack, Signals, Step, Tool
from aether_context.packing.allocation import allocate, project, weigh
from aether_context.policy import PROFILES, BudgetSettings, Range
from aether_context.store import PackStore
from aether_context.tokens.cache import TokenCache

STEP = Step(
    task_id="42",
    step_id="3",
    text="Compare the two suppliers",
    acceptance=(AcceptanceItem(id="a1", text="Prices are cited", needs_evidence=True),),
)


def accounted(pack: Pack) -> None:
    """What must hold of every pack."""
    assert sum(layer.final for layer in pack.allocation.layers.values()) <= pack.allocation.window
    assert torn([one.content for one in pack.contents]) == []
    names = [fate.id for fate in pack.rows]
    assert len(names) == len(set(names))
    assert len(names) == len(pack.source.request.contents) + len(pack.source.candidates)
    assert all(fate.reason is not None for fate in pack.rows if fate.form == "left_out")


@pytest.mark.parametrize("enabled", [True, False])
def test_where_nothing_may_be_shortened_all_is_verbatim_or_left_out(enabled):
    known = [memory(f"m{at}", f"The supplier's price of item {at} is {at} euros. " * 9) for at in range(9)]
    known += [evidence(f"e{at}", f"supplier figure {at}. " * 60, time=float(at), kind="app_note") for at in range(9)]
    source = pack_input([*packs.turns(8, 12), message("compare the suppliers")], window=2_000, candidates=known)
    pack = build_pack(source, PackPolicy(compress={"enabled": enabled}))
    shorter = {fate.layer for fate in pack.rows if fate.form == "extract"}
    assert shorter == ({"memory", "evidence", "conversation"} if enabled else set())
    accounted(pack)


def test_wishes_have_a_tenth_of_the_window_and_a_layer_borrows_no_more_than_it_wants():
    wishes = [
        memory(f"w{at}", f"Report {at}: " + "in grey " * 45, kind="preference", time=float(at)) for at in range(8)
    ]
    source = pack_input([message("Which supplier sells brass?")], window=2_000, candidates=wishes)
    pack = build_pack(source, PackPolicy())
    memories = [fate.id for fate in pack.rows if fate.layer == "memory"]
    assert memories == ["w7", *(f"w{at}" for at in range(7))], "the newest has a place, the others are like any memory"
    layers = pack.allocation.layers
    assert layers["memory"].lent > 0
    assert layers["memory"].final == layers["memory"].used
    assert layers["conversation"].final > 0
    accounted(pack)


def test_what_has_expired_is_left_out_and_says_so():
    source = pack_input([message("What does brass cost?")])
    now = source.identity.last_event_time
    known = [memory(f"brass_{add}", f"Brass costs {add + 5} euros.", expires=now + add) for add in (-1, 1)]
    fates = {fate.id: fate for fate in build_pack(source._replace(candidates=tuple(known)), PackPolicy()).rows}
    assert (fates["brass_-1"].form, fates["brass_-1"].reason) == ("left_out", "expired")
    assert fates["brass_1"].form == "whole"


def test_an_oversized_request_keeps_its_ends_and_is_stored():
    text = "START " + "\n".join(f"row {at}" for at in range(20_000)) + " END"
    pack = build_pack(pack_input([message(text)], window=4_000), PackPolicy())
    assert pack.tokens.expected <= 3_600
    assert "START" in pack.contents[-1].content.text
    assert pack.contents[-1].content.text.endswith("END")
    (uri, saved), *_ = pack.to_store.saved.items()
    assert uri in pack.contents[-1].content.text
    assert saved == text
    accounted(pack)


def tools(*names: str) -> tuple[Tool, ...]:
    return tuple(
        Tool(name=name, signature=f"{name}()", wire="{}", digest=hash_text(name), essential=name == "transfer_to_agent")
        for name in names
    )


@pytest.mark.parametrize(
    ("scope", "sent", "allowed"),
    [
        ("auto", ["a", "transfer_to_agent"], None),
        ("prune", ["a", "transfer_to_agent"], None),
        ("off", ["a", "b", "transfer_to_agent"], None),
        ("mask", ["a", "b", "transfer_to_agent"], ("a", "transfer_to_agent")),
    ],
)
def test_tools_are_narrowed_to_the_step(scope, sent, allowed):
    step = replace(STEP, tools=("a", "nowhere"))
    given_source = pack_input([message("x")], step=step, validity="valid", tools=tools("a", "b", "transfer_to_agent"))
    pack = build_pack(given_source, PackPolicy(tools={"scope": scope}))
    assert [tool.name for tool in pack.tools.sent] == sent
    assert pack.tools.allowed == allowed


words = st.sampled_from(["dog", "Rex", "tax", "law", "supplier", "price", "river", "blue"])
texts = st.lists(words, min_size=1, max_size=12).map(" ".join)


@settings(max_examples=40)
@given(
    st.lists(texts, min_size=1, max_size=12, unique=True), st.integers(600, 6_000), st.randoms(use_true_random=False)
)
def test_the_order_of_candidates_does_not_change_the_pack(said, window, shuffle):
    found = [memory(f"m{at}", text, time=float(at)) for at, text in enumerate(said)]
    found += [evidence(f"e{at}", text * 9, time=float(at % 3)) for at, text in enumerate(said)]
    first = build_pack(pack_input([message("dog price law")], window=window, candidates=tuple(found)), PackPolicy())
    shuffle.shuffle(found)
    second = build_pack(pack_input([message("dog price law")], window=window, candidates=tuple(found)), PackPolicy())
    assert first.checksum == second.checksum
    assert {fate.id: fate.form for fate in first.rows} == {fate.id: fate.form for fate in second.rows}
    accounted(first)


NEUTRAL = Signals()
tokens = st.integers(0, 200_000)


def budget(profile: str = "research", **changes: object) -> BudgetSettings:
    return PackPolicy.load(profile, budget=changes).budget


@given(
    window=st.integers(256, 2_000_000),
    fixed=st.tuples(tokens, tokens, tokens),
    wanted=st.tuples(tokens, tokens, tokens),
    profile=st.sampled_from(sorted(PROFILES)),
    output=st.none() | st.integers(0, 100_000),
)
def test_the_finals_never_exceed_the_window(window, fixed, wanted, profile, output):
    measured = dict(zip(("system", "task", "tools"), fixed, strict=True))
    asked = dict(zip(FLEXIBLE_LAYERS, wanted, strict=True))
    settings = budget(profile)
    try:
        result = allocate(
            window, measured=measured, demand=asked, signals=NEUTRAL, settings=settings, output_tokens=output
        )
    except StepTooLarge as error:
        assert error.needed > error.budget
        return
    assert sum(layer.final for layer in result.layers.values()) <= window
    assert sum(layer.used for layer in result.layers.values()) <= result.budget
    assert set(result.layers) == set(LAYERS)
    for name, layer in result.layers.items():
        assert 0 <= layer.used <= layer.final, name
        assert layer.nominal + layer.lent == layer.final, name


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=3),
)
def test_projected_shares_sum_to_one_inside_their_ranges(shares, ends):
    ranges = [Range(low=min(pair), high=max(pair)) for pair in ends]
    if sum(one.low for one in ranges) > 1 or sum(one.high for one in ranges) < 1:
        return
    projected = project(shares, ranges)
    assert sum(projected) == pytest.approx(1)
    for value, allowed in zip(projected, ranges, strict=True):
        assert allowed.low - 1e-9 <= value <= allowed.high + 1e-9


@pytest.mark.parametrize(
    ("signal", "low", "high", "layer", "up"),
    [
        ("checklist_evidence_ratio", 0.0, 1.0, "evidence", True), ("expected_tool_calls", 0, 20, "evidence", True),
        ("risk", "low", "high", "evidence", True), ("retrieval_hit_rate", 0.0, 1.0, "memory", True),
        ("similarity", 0.0, 1.0, "memory", True), ("freshness_days", 0.0, 365.0, "memory", False),
        ("unresolved_questions", 0, 20, "conversation", True), ("dialogue_depth", 0, 50, "conversation", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_each_signal_alone_moves_its_layer(profile, signal, low, high, layer, up):
    wide = {name: {"low": 0.0, "high": 1.0} for name in FLEXIBLE_LAYERS}
    free = weigh_with(budget(profile, shares=wide), signal, low, high, layer)
    assert (free[1] > free[0]) is up
    inside = weigh_with(budget(profile), signal, low, high, layer)
    assert (inside[1] >= inside[0]) if up else (inside[1] <= inside[0])


def weigh_with(settings, signal, low, high, layer):
    return [weigh(NEUTRAL._replace(**{signal: value}), settings)[layer] for value in (low, high)]


def test_lending_gives_what_nobody_uses_to_who_wants_it():
    measured = {"system": 100, "task": 200, "tools": 50}
    wanted = {"evidence": 0, "memory": 0, "conversation": 100_000}
    lent = allocate(10_000, measured=measured, demand=wanted, signals=NEUTRAL, settings=budget())
    assert lent.layers["conversation"].final == 10_000 - 1_000 - 350
    assert lent.layers["conversation"].nominal < 2_000
    assert lent.layers["evidence"].lent == -lent.layers["evidence"].nominal


@pytest.mark.parametrize(("task", "needed"), [(2_000, 2_800), (1_001, 1_801)])
def test_a_step_that_cannot_fit_is_refused_with_every_number(task, needed):
    with pytest.raises(StepTooLarge, match="split the step") as caught:
        allocate(
            2_000,
            measured={"system": 500, "task": task, "tools": 300},
            demand=dict.fromkeys(FLEXIBLE_LAYERS, 0),
            signals=NEUTRAL,
            settings=budget(),
        )
    assert (caught.value.needed, caught.value.budget, caught.value.largest) == (needed, 1_800, "task")
    assert f"task {task}" in str(caught.value)


def known(rng: random.Random) -> Signals:
    return Signals(
        checklist_evidence_ratio=rng.random(),
        expected_tool_calls=rng.randint(0, 20),
        risk=rng.choice(["low", "medium", "high"]),
        retrieval_hit_rate=rng.random(),
        similarity=rng.random() * 0.4,
        freshness_days=rng.random() * 60,
        unresolved_questions=rng.randint(0, 10),
        dialogue_depth=rng.randint(1, 40),
    )


@pytest.mark.parametrize(
    ("profile", "documented"),
    [
        ("research", [(0.55, 0.65), (0.20, 0.25), (0.10, 0.15)]),
        ("requirements", [(0.45, 0.55), (0.25, 0.30), (0.15, 0.20)]),
        ("test_cases", [(0.50, 0.60), (0.20, 0.25), (0.10, 0.15)]),
    ],
)
def test_where_nothing_is_known_shares_are_inside_the_documented_ranges(
    profile: str, documented: list[tuple[float, float]]
) -> None:
    shares = weigh(NEUTRAL, PackPolicy.load(profile).budget)
    for layer, (low, high) in zip(("evidence", "memory", "conversation"), documented, strict=True):
        assert low - 1e-9 <= shares[layer] <= high + 1e-9


@pytest.mark.parametrize("profile", sorted(PROFILES))
@pytest.mark.rows(1, slow=1)
def test_signals_give_a_real_spread(profile):
    rng = random.Random(7)
    found = [weigh(known(rng), budget(profile)) for _ in range(4_000)]
    splits = Counter(tuple(round(shares[layer], 2) for layer in FLEXIBLE_LAYERS) for shares in found)
    assert splits.most_common(1)[0][1] < 400
    for layer in FLEXIBLE_LAYERS:
        ordered = sorted(shares[layer] for shares in found)
        assert ordered[3_800] - ordered[200] > 0.03, layer


POLICY = PackPolicy()
TALK = (said("Who approves refunds?"), said("The manager.", "model"), said("Above which sum?"))


def pack(
    contents: Sequence[Content] = TALK, before: Pack | None = None, policy: PackPolicy = POLICY, **given: Any
) -> Pack:
    carried = {} if before is None else {"epoch": before.epoch, "sent": before.sent, "first_call": False}
    return build_pack(pack_input(contents, **{**carried, **given}), policy)


def test_a_request_before_that_is_not_known_is_unknown_not_nothing() -> None:
    second = pack(TALK, pack(TALK[:1]), sent=None)
    assert second.prefix.broken_by == "unknown"
    assert second.prefix.shared_tokens is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"system": "You help with something else."}, "system_changed"),
        ({"tools": [tool("search"), tool("read_file")]}, "tools_changed"),
        ({"rewritten": True, "contents": [said("Other"), *TALK[1:]]}, "history_rewritten"),
        ({"step": replace(packs.STEP, text="Describe another thing"), "validity": "valid"}, "payload_changed"),
    ],
)
def test_what_ended_the_prefix_is_named(changes: dict[str, Any], reason: str) -> None:
    given = {"tools": [tool("search")], "step": packs.STEP, "validity": "valid"}
    first = pack(**given)
    contents = changes.pop("contents", TALK)
    second = pack(contents, first, **{**given, **changes})
    assert second.prefix.broken_by == reason
    assert second.prefix.shared_tokens is not None
    assert second.prefix.shared_tokens < first.tokens.expected


def test_an_earlier_message_that_returns_to_its_own_text_is_a_new_invocation() -> None:
    first = pack(TALK[:1], candidates=MEMORIES, cached_price=1.0)
    assert first.contents[0].form == "payload"
    identity = packs.IDENTITY._replace(invocation="i2")
    second = pack(TALK, first, candidates=MEMORIES, first_call=True, identity=identity, cached_price=1.0)
    assert second.prefix.broken_by == "new_invocation"


def test_a_cut_is_named_and_a_summary_that_grew_counts_as_shared() -> None:
    session = Session(PackStore("memory://prefix-cut"), window=2_000)
    for turn in range(40):
        session.ask(f"Question {turn} about report_{turn}: {lines('refunds', 3)}")
        session.answer(f"Answer {turn}: {lines('approval', 6)}")
    made = list(filter(was_cut, session.manifests))
    assert len(made) > 3
    assert {one.prefix.broken_by for one in made} == {"cut"}
    assert all(one.epoch_reason == "high_water" for one in made)
    fixed = made[0].prefix.shared_tokens
    assert fixed is not None
    grown = [one.prefix.shared_tokens for one in made[1:] if (one.prefix.shared_tokens or 0) > fixed]
    assert grown


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=2, max_size=8), st.sampled_from([700, 16_000]))
@settings(max_examples=20)
def test_what_earlier_calls_derived_changes_no_pack(changes: list[tuple[int, bool]], window: int) -> None:
    """A history grows, loses its end, and has contents in its middle edited; a cache knows each state before."""
    cache, contents, packs_compared = TokenCache(), list(packs.turns(3)), 0
    for number, (at, edits) in enumerate(changes):
        if edits:
            contents[at % len(contents)] = said(f"edited {number}: {lines('refunds', 2)}", "model")
        elif at % 3 == 0:
            del contents[max(1, at) :]
        contents += [said(f"question {number}"), said(f"answer {number}: {lines('approval', at)}", "model")]
        source = pack_input([*contents, said("And now?")], window=window)
        pack, fresh = build_pack(source, PackPolicy(), cache=cache), build_pack(source, PackPolicy())
        assert pack == fresh
        packs_compared += 1
    assert packs_compared == len(changes)
