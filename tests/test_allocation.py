"""The allocator: sums, ranges, signals, lending, refusal."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aether_context.errors import StepTooLarge
from aether_context.pack import FLEXIBLE_LAYERS, LAYERS, Signals
from aether_context.packing.allocation import allocate, project, weigh
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
    lent = allocate(10_000, measured=measured, wanted=wanted, signals=NEUTRAL, settings=budget())
    assert lent.layers["conversation"].final == 10_000 - 1_000 - 350
    assert lent.layers["conversation"].nominal < 2_000
    assert lent.layers["evidence"].lent == -lent.layers["evidence"].nominal


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
