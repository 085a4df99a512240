"""Working sessions at every window from 2,000 to 64,000 tokens: what gives way, in which order, and what never does.

The rules are stated here once more, apart from the code, as tables: compress memory,
evidence, tool examples and the step, then drop memory by score, evidence by coverage and age, conversation by age.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import pytest
import scenarios
from packs import is_human
from scenarios import NAMES, PRESETS, TURNS, WINDOWS

from aether_context import build_pack
from aether_context.errors import StepTooLarge
from aether_context.pack import Layer, Pack, Row, TruncationEvent
from aether_context.tokens.cache import TokenCache

ORDER = (
    ("compress", "memory"), ("compress", "evidence"), ("compress", "tools"), ("compress", "task"),
    ("drop", "memory"), ("drop", "evidence"), ("cut", "conversation"),
)  # fmt: skip
SESSIONS = [(name, preset) for name in NAMES for preset in PRESETS]
every_session = pytest.mark.parametrize(("name", "preset"), SESSIONS)
_cache = TokenCache()


@cache
def built(name: str, preset: str, window: int, turns: int = TURNS) -> Pack:
    """The pack of a session at a window; one that does not fit is made to."""
    scenario = scenarios.load(name)
    policy = scenario.policy(preset)
    return build_pack(scenario.pack_input(window, turns=turns), policy, cache=_cache)


def refusal(name: str, preset: str, window: int) -> StepTooLarge | None:
    """Why a session's step is refused at a window, None where it is not."""
    scenario = scenarios.load(name)
    try:
        build_pack(scenario.pack_input(window), scenario.policy(preset, on_invalid="raise"), cache=_cache)
    except StepTooLarge as error:
        return error
    return None


@cache
def least(name: str, preset: str) -> int:
    """Tokens of what is always sent when all of it that can be shortened is: as a hopeless window measures it."""
    error = refusal(name, preset, 600)
    assert error is not None
    return error.needed


def budget(window: int) -> int:
    """What is left beside the tenth that is kept for the answer."""
    return window - math.ceil(0.1 * window)


def holds(name: str, preset: str, window: int) -> bool:
    return least(name, preset) <= budget(window)


def sent_text(pack: Pack) -> str:
    return "\n".join(part.text for one in pack.contents for part in one.content.parts)


def act(pack: Pack, stage: str, layer: str) -> TruncationEvent | None:
    return next((one for one in pack.events if (one.stage, one.layer) == (stage, layer)), None)


def rows(pack: Pack, layer: Layer, *states: str) -> list[Row]:
    return [fate for fate in pack.rows if fate.layer == layer and fate.form in states]


def chosen(pack: Pack, layer: Layer) -> list[Row]:
    """What retrieval let in, whatever became of it for want of room."""
    return [one for one in rows(pack, layer, "whole", "extract", "left_out") if one.reason in (None, "over_allocation")]


def cost(outcomes: Iterable[Row]) -> int:
    """Tokens of what is sent of candidates."""
    return sum(one.tokens if one.sent_tokens is None else one.sent_tokens for one in outcomes)


def worth(pack: Pack, fate: Row) -> tuple[object, ...]:
    """What sorts the candidates of a layer from the last to go to the first, by the tables."""
    if fate.layer == "memory":
        return (-fate.scores["similarity"], fate.id)
    items = {item.id for item in pack.source.step.acceptance}
    assert fate.time is not None
    return (-len(items.intersection(fate.covers)), -fate.time, fate.id)


# the order


@every_session
@pytest.mark.rows(1)
def test_things_give_way_in_the_order_of_the_tables(name: str, preset: str) -> None:
    for window in WINDOWS:
        events = built(name, preset, window).events
        assert all(one.tokens_after < one.tokens_before for one in events)
        assert {one.reason for one in events if one.stage in ("compress", "drop")} <= {"over_allocation"}
        acts = [(one.stage, one.layer) for one in events]
        if not holds(name, preset, window):
            assert acts.pop() == ("emergency", "task")
        assert acts == [one for one in ORDER if one in acts], window


@pytest.mark.slow
def test_every_rung_of_both_ladders_is_used_somewhere() -> None:
    acts = {
        (one.stage, one.layer) for session in SESSIONS for window in WINDOWS for one in built(*session, window).events
    }
    assert acts >= set(ORDER)


@every_session
@pytest.mark.parametrize("layer", ["memory", "evidence"])
def test_the_least_worth_is_dropped_first(name: str, preset: str, layer: Layer) -> None:
    for window in WINDOWS:
        pack = built(name, preset, window)
        ranked = [one.id for one in sorted(chosen(pack, layer), key=lambda one: worth(pack, one))]
        kept = {one.id for one in rows(pack, layer, "whole", "extract")}
        dropped = act(pack, "drop", layer)
        assert kept == set(ranked[: len(kept)])
        assert (dropped.item_ids if dropped is not None else ()) == tuple(reversed(ranked[len(kept) :]))


@every_session
def test_the_conversation_goes_from_its_oldest_turn(name: str, preset: str) -> None:
    """Answers and exchanges in order of age; the latest turns after all others; a question outlives its answers."""
    for window in WINDOWS:
        pack = built(name, preset, window)
        turn = -1
        gone: dict[int, list[bool]] = {}
        for content, fate in zip(pack.source.request.contents, pack.rows, strict=False):
            turn += is_human(content)
            gone.setdefault(turn, []).append(fate.form in ("left_out", "summarized"))
        question = {at: states[0] for at, states in gone.items()}
        answers = [states[1:] for at, states in sorted(gone.items()) if at < TURNS]
        assert not question[TURNS]
        for at, states in enumerate(answers):
            assert states == sorted(states, reverse=True), "the oldest of a turn goes first"
            assert question[at] == all(states)
        assert [any(states) for states in answers] == sorted((any(states) for states in answers), reverse=True)


# what is not touched


@every_session
@pytest.mark.parametrize("layer", ["memory", "evidence"])
def test_a_layer_inside_its_allocation_is_never_touched(name: str, preset: str, layer: Layer) -> None:
    for window in WINDOWS:
        pack = built(name, preset, window)
        asked = sum(one.tokens for one in chosen(pack, layer))
        touched = [one for one in pack.events if one.layer == layer]
        if asked > pack.allocation.layers[layer].final:
            assert touched, window
            continue
        assert touched == []
        texts = {one.id: one.text for one in pack.source.candidates}
        assert chosen(pack, layer) == rows(pack, layer, "whole")
        assert all(texts[one.id] in sent_text(pack) for one in chosen(pack, layer))


# what always stands


@every_session
def test_checklist_and_request_stand_word_for_word_wherever_they_fit(name: str, preset: str) -> None:
    request = scenarios.load(name).request
    for window in WINDOWS:
        if not holds(name, preset, window):
            continue
        pack = built(name, preset, window)
        message = pack.contents[-1].content.text
        assert message.endswith(f"USER REQUEST:\n{request}"), window
        for item in pack.source.step.acceptance:
            mark = " (needs evidence)" if item.needs_evidence else ""
            assert f"\n- [ ] {item.id}: {item.text}{mark}\n" in message, (window, item.id)


@every_session
@pytest.mark.rows(1)
def test_a_step_is_refused_exactly_where_it_cannot_fit(name: str, preset: str) -> None:
    for window in WINDOWS:
        assert (refusal(name, preset, window) is None) == holds(name, preset, window)
    smallest = next(window for window in range(1_000, 4_000) if holds(name, preset, window))
    assert refusal(name, preset, smallest) is None
    assert refusal(name, preset, smallest - 1) is not None
    pack = built(name, preset, smallest)
    assert pack.tokens.expected <= budget(smallest)
    assert all(item.text in sent_text(pack) for item in pack.source.step.acceptance)


# the window grows


@every_session
@pytest.mark.parametrize("windows", [WINDOWS, range(2_000, 7_000, 125)], ids=["wide", "narrow"])
@pytest.mark.rows(1, slow=4)
def test_a_larger_window_never_loses_what_a_smaller_one_keeps(name: str, preset: str, windows: Iterable[int]) -> None:
    """Whole or shortened; a memory that stands in the conversation word for word need not be repeated."""
    kept: set[str] = set()
    for window in windows:
        now = {
            fate.id
            for fate in built(name, preset, window).rows
            if fate.form in ("whole", "extract") or fate.reason == "already_in_conversation"
        }
        assert kept <= now, (window, kept - now)
        kept = now


# the account


@every_session
def test_everything_is_accounted_for_and_nothing_is_overspent(name: str, preset: str) -> None:
    for window in WINDOWS:
        pack = built(name, preset, window)
        source, layers = pack.source, pack.allocation.layers
        assert sum(account.final for account in layers.values()) <= window
        assert pack.tokens.expected <= budget(window)
        assert sum(account.used for account in layers.values()) <= budget(window)
        for layer in ("memory", "evidence"):
            assert layers[layer].used <= layers[layer].final
            assert layers[layer].used == cost(rows(pack, layer, "whole", "extract"))
        names = [fate.id for fate in pack.rows]
        assert len(set(names)) == len(names) == len(source.request.contents) + len(source.candidates)
        assert {one.id for one in source.candidates} <= set(names)
        assert all(fate.reason for fate in pack.rows if fate.form != "whole")
        assert {fate.reason for fate in pack.rows} <= {
            None, "over_allocation", "below_floor", "beyond_k", "duplicate", "expired", "high_water", "window"
        }  # fmt: skip
