"""The allocator: sums, ranges, signals, lending, refusal."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aether_context.errors import StepTooLarge
from aether_context.pack import FLEXIBLE_LAYERS, LAYERS, Signals
from aether_context.packing.allocation import allocate, project, strengths, weigh, whole
from aether_context.policy import PROFILES, BudgetSettings, PackPolicy, Range

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
            window, measured=measured, wanted=asked, signals=NEUTRAL, settings=settings, output_tokens=output
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


def test_a_projection_leaves_shares_that_fit_alone():
    ranges = [Range(low=0.5, high=0.7), Range(low=0.1, high=0.3), Range(low=0.1, high=0.3)]
    assert project([0.6, 0.2, 0.2], ranges) == pytest.approx([0.6, 0.2, 0.2])


@given(st.integers(0, 10**7), st.lists(st.floats(0, 10), min_size=1, max_size=6))
def test_whole_parts_sum_to_the_total(total, shares):
    parts = whole(total, shares)
    assert sum(parts) == (total if sum(shares) else min(total, len(shares)))
    assert min(parts) >= 0


@pytest.mark.parametrize(
    ("signal", "low", "high", "layer", "up"),
    [
        ("checklist_evidence_ratio", 0.0, 1.0, "evidence", True),
        ("expected_tool_calls", 0, 20, "evidence", True),
        ("risk", "low", "high", "evidence", True),
        ("retrieval_hit_rate", 0.0, 1.0, "memory", True),
        ("similarity", 0.0, 1.0, "memory", True),
        ("freshness_days", 0.0, 365.0, "memory", False),
        ("unresolved_questions", 0, 20, "conversation", True),
        ("dialogue_depth", 0, 50, "conversation", True),
    ],
)
@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_each_signal_alone_moves_its_layer(profile, signal, low, high, layer, up):
    wide = {name: {"low": 0.0, "high": 1.0} for name in FLEXIBLE_LAYERS}
    free = weigh_with(budget(profile, shares=wide), signal, low, high, layer)
    assert (free[1] > free[0]) is up
    inside = weigh_with(budget(profile), signal, low, high, layer)
    assert (inside[1] >= inside[0]) if up else (inside[1] <= inside[0])


def weigh_with(settings, signal, low, high, layer):
    return [weigh(NEUTRAL._replace(**{signal: value}), settings)[layer] for value in (low, high)]


def test_unknown_signals_weigh_one_half():
    assert set(strengths(NEUTRAL).values()) == {0.5}


@pytest.mark.parametrize("profile", ["research", "requirements", "test_cases"])
def test_weights_stay_inside_the_ranges_of_the_profile(profile):
    settings = budget(profile)
    for ratio in (0.0, 1.0):
        for depth in (0, 100):
            shares = weigh(Signals(checklist_evidence_ratio=ratio, dialogue_depth=depth), settings)
            assert sum(shares.values()) == pytest.approx(1)
            for layer in FLEXIBLE_LAYERS:
                allowed = getattr(settings.shares, layer)
                assert allowed.low - 1e-9 <= shares[layer] <= allowed.high + 1e-9


def test_lending_gives_what_nobody_uses_to_who_wants_it():
    measured = {"system": 100, "task": 200, "tools": 50}
    wanted = {"evidence": 0, "memory": 0, "conversation": 100_000}
    lent = allocate(10_000, measured=measured, wanted=wanted, signals=NEUTRAL, settings=budget())
    assert lent.layers["conversation"].final == 10_000 - 1_000 - 350
    assert lent.layers["conversation"].nominal < 2_000
    assert lent.layers["evidence"].lent == -lent.layers["evidence"].nominal


@given(st.integers(0, 50_000), st.integers(0, 50_000), st.integers(0, 50_000))
def test_lending_never_takes_what_a_layer_wants(evidence, memory, conversation):
    wanted = {"evidence": evidence, "memory": memory, "conversation": conversation}
    measured = {"system": 500, "task": 500, "tools": 500}
    result = allocate(20_000, measured=measured, wanted=wanted, signals=NEUTRAL, settings=budget())
    for layer in FLEXIBLE_LAYERS:
        account = result.layers[layer]
        assert account.final >= min(account.nominal, wanted[layer])
    if sum(wanted.values()) >= result.budget - 1_500:
        assert sum(result.layers[layer].final for layer in FLEXIBLE_LAYERS) == result.budget - 1_500


def test_a_step_that_cannot_fit_is_refused_with_every_number():
    with pytest.raises(StepTooLarge, match="split the step") as caught:
        allocate(
            2_000,
            measured={"system": 500, "task": 2_000, "tools": 300},
            wanted=dict.fromkeys(FLEXIBLE_LAYERS, 0),
            signals=NEUTRAL,
            settings=budget(),
        )
    assert caught.value.needed == 2_800
    assert caught.value.budget == 1_800
    assert "task 2000" in str(caught.value)


def test_the_answers_limit_raises_the_slack_where_it_shares_the_window():
    measured = {"system": 10, "task": 10, "tools": 10}
    wanted = dict.fromkeys(FLEXIBLE_LAYERS, 10_000)
    result = allocate(10_000, measured=measured, wanted=wanted, signals=NEUTRAL, settings=budget(), output_tokens=4_000)
    assert result.slack == 4_000
    assert sum(layer.used for layer in result.layers.values()) == 6_000


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


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_signals_give_a_real_spread(profile):
    rng = random.Random(7)
    found = [weigh(known(rng), budget(profile)) for _ in range(4_000)]
    splits = Counter(tuple(round(shares[layer], 2) for layer in FLEXIBLE_LAYERS) for shares in found)
    assert splits.most_common(1)[0][1] < 400
    for layer in FLEXIBLE_LAYERS:
        ordered = sorted(shares[layer] for shares in found)
        assert ordered[3_800] - ordered[200] > 0.03, layer


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_a_step_of_proof_and_one_of_talk_differ(profile):
    proof = Signals(checklist_evidence_ratio=0.8, expected_tool_calls=6, risk="high", dialogue_depth=1)
    talk = Signals(checklist_evidence_ratio=0.0, expected_tool_calls=0, risk="low", unresolved_questions=4)
    shares = [weigh(signals, budget(profile)) for signals in (proof, talk._replace(dialogue_depth=7))]
    assert shares[0]["evidence"] - shares[1]["evidence"] >= 0.05
    assert shares[1]["conversation"] > shares[0]["conversation"]


@pytest.mark.parametrize(
    ("profile", "middles"),
    [("research", (0.60, 0.225, 0.125)), ("requirements", (0.50, 0.275, 0.175)), ("test_cases", (0.55, 0.225, 0.125))],
)
def test_without_signals_the_middles_decide(profile, middles):
    settings = budget(profile)
    shares = settings.shares
    assert (shares.evidence.middle, shares.memory.middle, shares.conversation.middle) == pytest.approx(middles)
    assert list(weigh(NEUTRAL, settings).values()) == pytest.approx([one / sum(middles) for one in middles])


@given(st.floats(0, 1))
def test_a_similarity_that_was_found_counts_at_least_as_much_as_an_unknown_one(similarity):
    found = strengths(Signals(similarity=similarity))["similarity"]
    assert found >= strengths(NEUTRAL)["similarity"]
    if similarity >= 0.4:
        assert found == 1
