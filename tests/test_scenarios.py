"""Working sessions at every window from 2,000 to 64,000 tokens: what gives way, in which order, and what never does.

The rules are stated here once more, apart from the code, as tables: compress memory,
evidence, tool examples and the step, then drop memory by score, evidence by coverage and age, conversation by age.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import cache

import packs
import pytest
import scenarios
from google.adk.tools.base_tool import BaseTool
from google.genai import types
from scenarios import NAMES, PRESETS, TURNS, WINDOWS
from scripted import Chat, new_store

from aether_context import PackStore, build_pack
from aether_context.conversation.turns import is_human
from aether_context.errors import StepTooLarge
from aether_context.pack import CandidateOutcome, Layer, Pack, Previous, TruncationEvent
from aether_context.store.replay import Replayer
from aether_context.tokens.cache import TokenCache

ORDER = (
    ("compress", "memory"),
    ("compress", "evidence"),
    ("compress", "tools"),
    ("compress", "task"),
    ("drop", "memory"),
    ("drop", "evidence"),
    ("cut", "conversation"),
)
FLOORS = {"task": 0.08, "tools": 0.05}
HIGH_WATER = {"quality_first": 0.95, "cost_first": 0.6}
LAST_TURNS = 3
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


def rows(pack: Pack, layer: Layer, *states: str) -> list[CandidateOutcome]:
    return [fate for fate in pack.outcomes if fate.layer == layer and fate.form in states]


def chosen(pack: Pack, layer: Layer) -> list[CandidateOutcome]:
    """What retrieval let in, whatever became of it for want of room."""
    return [one for one in rows(pack, layer, "whole", "extract", "left_out") if one.reason in (None, "over_allocation")]


def cost(outcomes: Iterable[CandidateOutcome]) -> int:
    """Tokens of what is sent of candidates."""
    return sum(one.tokens if one.sent_tokens is None else one.sent_tokens for one in outcomes)


def worth(pack: Pack, fate: CandidateOutcome) -> tuple[object, ...]:
    """What sorts the candidates of a layer from the last to go to the first, by the tables."""
    if fate.layer == "memory":
        return (-fate.scores["similarity"], fate.id)
    items = {item.id for item in pack.source.step.acceptance}
    assert fate.time is not None
    return (-len(items.intersection(fate.covers)), -fate.time, fate.id)


# the sessions themselves


@pytest.mark.parametrize("name", NAMES)
def test_a_session_is_as_large_and_as_mixed_as_it_says(name: str) -> None:
    source = scenarios.load(name).pack_input(64_000)
    step, contents = source.step, source.request.contents
    memories = [one for one in source.candidates if one.layer == "memory"]
    evidence = [one for one in source.candidates if one.layer == "evidence"]
    assert source.problems == ()
    assert (len(step.acceptance), sum(item.needs_evidence for item in step.acceptance)) == (6, 3)
    assert (len(memories), len(evidence), len(source.request.tools)) == (30, 20, 15)
    assert sum(map(is_human, contents)) == TURNS + 1
    assert sum(bool(content.calls) for content in contents) >= TURNS / 2
    assert any(one.expires is not None and one.expires < source.identity.last_event_time for one in memories)
    assert len({one.digest for one in memories}) < len(memories)
    assert len({one.time for one in evidence}) > 10
    assert {covered for one in evidence for covered in one.covers} >= {item.id for item in step.acceptance}
    sizes = [len(one.text) for one in evidence]
    assert max(sizes) > 6 * min(sizes)
    assert sum("Example:" in tool.wire for tool in source.request.tools) >= 4


# the order


@every_session
def test_things_give_way_in_the_order_of_the_tables(name: str, preset: str) -> None:
    for window in WINDOWS:
        acts = [(one.stage, one.layer) for one in built(name, preset, window).events]
        if not holds(name, preset, window):
            assert acts.pop() == ("emergency", "task")
        assert acts == [one for one in ORDER if one in acts], window


def test_every_rung_of_both_ladders_is_used_somewhere() -> None:
    acts = {
        (one.stage, one.layer) for session in SESSIONS for window in WINDOWS for one in built(*session, window).events
    }
    assert acts >= set(ORDER)


@every_session
def test_an_act_names_what_it_touched_and_frees_tokens(name: str, preset: str) -> None:
    for window in WINDOWS:
        for one in built(name, preset, window).events:
            assert one.item_ids
            assert one.tokens_after < one.tokens_before


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
def test_older_evidence_is_shortened_before_newer(name: str, preset: str) -> None:
    """What is whole is newer than what is not, or has hardly more than its address and a line."""
    for window in WINDOWS:
        pack = built(name, preset, window)
        whole = [one.time for one in rows(pack, "evidence", "whole") if one.tokens > 80]
        short = [one.time for one in rows(pack, "evidence", "extract")]
        assert not (whole and short) or max(short) <= min(whole), window


@every_session
def test_declarations_and_step_are_brief_before_anything_is_dropped(name: str, preset: str) -> None:
    for window in WINDOWS:
        pack = built(name, preset, window)
        if not (act(pack, "drop", "memory") or act(pack, "drop", "evidence")):
            continue
        if pack.allocation.layers["tools"].used > FLOORS["tools"] * window:
            for tool in pack.tools:
                about = json.loads(tool.wire)["description"]
                assert len(about) <= 200
                assert "Example" not in about
        step = pack.source.step
        assert act(pack, "compress", "task") is not None
        assert f"- {step.step_id}: {step.text}" not in sent_text(pack)


def test_declarations_are_shortened_only_as_far_as_needed() -> None:
    """From window to window fewer are, and where some are and some are not, nothing was dropped."""
    before = len(scenarios.load("booking_requirements").declarations)
    partly = 0
    for window in range(2_600, 3_600, 50):
        pack = built("booking_requirements", "cost_first", window)
        trimmed = act(pack, "compress", "tools")
        count = len(trimmed.item_ids) if trimmed is not None else 0
        assert count <= before
        if 0 < count < 5:
            partly += 1
            assert act(pack, "drop", "memory") is None
            assert act(pack, "drop", "evidence") is None
        before = count
    assert before == 0
    assert partly > 1


def test_an_epoch_under_way_keeps_its_declarations() -> None:
    """They stand at the head of what a provider has cached; a memory is dropped rather than that broken."""
    scenario = scenarios.load("refund_research")
    policy = scenario.policy("quality_first")
    first = build_pack(scenario.pack_input(64_000, turns=0), policy)
    again = scenario.pack_input(3_000, turns=0)._replace(epoch=first.epoch, previous=Previous(first.sent))
    pack = build_pack(again, policy)
    assert act(pack, "drop", "memory") is not None
    assert pack.tools == first.tools
    assert pack.epoch_reason is None


@every_session
def test_the_conversation_goes_from_its_oldest_turn(name: str, preset: str) -> None:
    """Answers and exchanges in order of age; the latest turns after all others; a question outlives its answers."""
    for window in WINDOWS:
        pack = built(name, preset, window)
        turn = -1
        gone: dict[int, list[bool]] = {}
        for content, fate in zip(pack.source.request.contents, pack.outcomes, strict=False):
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


@every_session
def test_declarations_and_step_inside_their_floor_are_never_touched(name: str, preset: str) -> None:
    for window in WINDOWS:
        pack = built(name, preset, window)
        for layer, share in FLOORS.items():
            touched = act(pack, "compress", layer)
            if touched is None:
                continue
            assert touched.tokens_before > share * window or not holds(name, preset, window)
        if act(pack, "compress", "tools") is None:
            assert set(pack.tools) <= set(pack.source.request.tools)
        if act(pack, "compress", "task") is None and holds(name, preset, window):
            assert pack.source.step.text in sent_text(pack)


@every_session
def test_the_conversation_is_whole_below_its_high_water_mark(name: str, preset: str) -> None:
    for window in WINDOWS:
        pack = built(name, preset, window)
        whole = sum(fate.tokens for fate in pack.outcomes[: len(pack.source.request.contents)] if fate.layer != "task")
        others = sum(
            account.used for layer, account in pack.allocation.layers.items() if layer not in ("conversation", "slack")
        )
        if act(pack, "cut", "conversation") is None:
            assert [one.content for one in pack.contents[:-1]] == list(pack.source.request.contents[:-1])
        else:
            assert others + whole > HIGH_WATER[preset] * budget(window)


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
def test_a_step_is_refused_exactly_where_it_cannot_fit(name: str, preset: str) -> None:
    for window in WINDOWS:
        assert (refusal(name, preset, window) is None) == holds(name, preset, window)
    smallest = next(window for window in range(1_000, 4_000) if holds(name, preset, window))
    assert refusal(name, preset, smallest) is None
    assert refusal(name, preset, smallest - 1) is not None
    pack = built(name, preset, smallest)
    assert pack.request_tokens <= budget(smallest)
    assert all(item.text in sent_text(pack) for item in pack.source.step.acceptance)


@every_session
def test_a_step_that_does_not_fit_leaves_inside_the_window_with_checklist_and_request(name: str, preset: str) -> None:
    """While there is room for these beside system and tools, whatever else of the plan has to go."""
    window = next(window for window in range(1_000, 4_000) if holds(name, preset, window)) - 150
    pack = built(name, preset, window)
    assert pack.request_tokens <= budget(window)
    assert any(note.startswith("step_too_large: ") for note in pack.degradations)
    assert sent_text(pack).endswith(scenarios.load(name).request)
    assert all(item.text in sent_text(pack) for item in pack.source.step.acceptance)


def test_a_refusal_names_what_is_largest_and_what_to_split() -> None:
    tools = refusal("booking_requirements", "cost_first", 2_000)
    assert tools is not None
    assert tools.largest == "tools"
    assert {f"tool {one['name']}" for one in scenarios.load("booking_requirements").declarations} <= set(tools.texts)
    largest = max(tools.texts, key=lambda text: tools.texts[text])
    assert f"largest are {largest} {tools.texts[largest]}" in str(tools)
    assert f"{tools.needed - tools.budget} too many" in str(tools)
    assert "split the step into steps that each name fewer tools" in str(tools)
    assert "acceptance item source" in tools.texts
    assert sum(tools.texts.values()) <= tools.needed


class Declared(BaseTool):
    """A tool of a session that is never called."""

    def __init__(self, declaration: Mapping[str, object]) -> None:
        super().__init__(name=str(declaration["name"]), description=str(declaration["description"]))
        self.declaration = types.FunctionDeclaration.model_validate(declaration)

    def _get_declaration(self) -> types.FunctionDeclaration:
        return self.declaration


def test_the_answer_in_the_models_place_says_what_to_split() -> None:
    scenario = scenarios.load("booking_requirements")
    chat = Chat(
        tools=[Declared(one) for one in scenario.declarations],
        instruction=scenario.system,
        state=scenario.state,
        policy=scenario.policy("cost_first", max_input_tokens=2_000, on_invalid="respond", tools={"scope": "off"}),
    )
    events = chat.say(scenario.request)
    assert chat.llm.sent == []
    answer = events[-1].content.parts[0].text
    assert events[-1].error_code == "step_too_large"
    assert answer.startswith("This step does not fit the model's window")
    assert "tool read_minutes" in answer
    assert "split the step into steps that each name fewer tools" in answer


# the window grows


@every_session
@pytest.mark.parametrize("windows", [WINDOWS, range(2_000, 7_000, 125)], ids=["wide", "narrow"])
def test_a_larger_window_never_loses_what_a_smaller_one_keeps(name: str, preset: str, windows: Iterable[int]) -> None:
    """Whole or shortened; a memory that stands in the conversation word for word need not be repeated."""
    kept: set[str] = set()
    for window in windows:
        now = {
            fate.id
            for fate in built(name, preset, window).outcomes
            if fate.form in ("whole", "extract") or fate.reason == "already_in_conversation"
        }
        assert kept <= now, (window, kept - now)
        kept = now


def covered(pack: Pack) -> tuple[int, int]:
    """Pieces and tokens of the evidence that is sent and covers an item of the checklist."""
    items = {item.id for item in pack.source.step.acceptance}
    sent = [one for one in rows(pack, "evidence", "whole", "extract") if items.intersection(one.covers)]
    return len(sent), cost(sent)


# the account


@every_session
def test_everything_is_accounted_for_and_nothing_is_overspent(name: str, preset: str) -> None:
    for window in WINDOWS:
        pack = built(name, preset, window)
        source, layers = pack.source, pack.allocation.layers
        assert sum(account.final for account in layers.values()) <= window
        assert pack.request_tokens <= budget(window)
        assert sum(account.used for account in layers.values()) <= budget(window)
        for layer in ("memory", "evidence"):
            assert layers[layer].used <= layers[layer].final
            assert layers[layer].used == cost(rows(pack, layer, "whole", "extract"))
        names = [fate.id for fate in pack.outcomes]
        assert len(set(names)) == len(names) == len(source.request.contents) + len(source.candidates)
        assert {one.id for one in source.candidates} <= set(names)
        assert all(fate.reason for fate in pack.outcomes if fate.form != "whole")
        assert {fate.reason for fate in pack.outcomes} <= {
            None, "over_allocation", "below_floor", "beyond_k", "duplicate", "expired", "high_water", "window"
        }  # fmt: skip


@every_session
def test_every_pack_replays_to_its_checksum(name: str, preset: str) -> None:
    url = new_store().url
    written = PackStore(url)
    policy = scenarios.load(name).policy(preset)
    packs_by_id = {}
    for window in WINDOWS:
        pack = built(name, preset, window)
        session = pack.source.identity._replace(session=f"{window}")
        pack = pack._replace(source=pack.source._replace(identity=session))
        packs_by_id[packs.write(written, pack, policy).session] = pack
    replayer = Replayer(PackStore(url))
    found = list(replayer.store.manifests())
    assert len(found) == len(WINDOWS)
    for manifest in found:
        manifest.verify()
        replayed = replayer.replay(manifest)
        assert replayed.pack.checksum == packs_by_id[manifest.session].checksum == manifest.checksum
        assert replayed.pack.outcomes == packs_by_id[manifest.session].outcomes
