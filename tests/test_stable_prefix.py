"""`stable_prefix`: the goals, rules, estimates and edge cases of budget-aware trimming with a prefix that
stays the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import answered, called, lines, pack_input, rendered, said, tool, trim
from scripted import Chat, call

from aether_context import PackPolicy
from aether_context.conversation import Conversation, Decision, normalize
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.pack import Content
from aether_context.packing import build_pack
from aether_context.policy import ConversationSettings

BOUNDARY = "trimmed_up_to_message_index"
"""The key of the boundary in a session's state."""
ROUNDED = 40
"""Tokens by which sums of rounded pieces may differ."""


def estimate_tokens(contents: Sequence[Content]) -> int:
    """The estimate of messages of text, calls and results alone."""
    tokens = 0
    for content in contents:
        is_text = len(content.parts) == 1 and content.parts[0].kind == "text"
        tokens += 8 + (0 if is_text else 3 * len(content.parts))
        for part in content.parts:
            named = len(part.name) if part.kind == "call" else 0
            tokens += math.ceil((len(part.text.encode()) + (0 if part.kind == "text" else 30 + named)) / 3.5)
    return math.ceil(tokens * 1.05)


def talk(exchanges: int, size: int = 12, opening: str = "Please look into all of it.") -> list[Content]:
    """A message and so many exchanges, each answered by so many lines."""
    contents = [said(opening)]
    for at in range(exchanges):
        contents += [called("look_up", f"c{at}", key=f"k{at}"), answered("look_up", f"c{at}", lines(f"r{at}", size))]
    return contents


def trimmed(contents: Sequence[Content], window: int, state: Any = None, **settings: Any) -> Decision:
    conversation = Conversation.of(contents, window=window, state={"stable_prefix": state} if state else None)
    return trim(conversation, ConversationSettings(strategy=("stable_prefix",), stable_prefix=settings))


def boundary(result: Decision) -> int:
    return (result.state or {}).get(BOUNDARY, 0)


def limit(window: int, threshold: float = 0.8) -> float:
    """What the messages may come to: slack is what is kept for the answer in a window this small."""
    return threshold * (window - window // 10)


def test_the_trimmed_prefix_is_identical_across_calls() -> None:
    contents = talk(60)
    state: Any = None
    before: tuple[Content, ...] = ()
    end = 0
    for count in range(3, len(contents) + 1, 2):
        result = trimmed(contents[:count], 4_000, state)
        left = rendered(Conversation.of(contents[:count], window=4_000), result)
        assert left[:end] == before[:end]
        state = result.state or state
        before, end = left, state[BOUNDARY] if state else 0
    assert end > 0


def test_the_boundary_continues_on_resume() -> None:
    contents = talk(40)
    state = trimmed(contents, 4_000).state
    resumed = trimmed(contents, 100_000, state)
    assert resumed.state is None
    assert list(resumed.forms) == [at for at in range(1, state[BOUNDARY]) if contents[at].responses]


def test_nothing_happens_under_the_threshold() -> None:
    contents = talk(3)
    result = trimmed(contents, 100_000)
    assert result == Decision()
    left = rendered(Conversation.of(contents, window=100_000), result)
    assert all(one is other for one, other in zip(left, contents, strict=True))


def test_the_output_reserve_is_16000_but_never_more_than_a_quarter_of_the_window() -> None:
    contents = [said("Please look into all of it.")]
    contents += [said("the shop is open today " * 30, "model") for _ in range(30)]
    window = math.ceil(estimate_tokens(contents) / 0.8 / 0.8)
    assert trimmed(contents, window, keep_last_messages=2).forms
    assert not trimmed(contents, math.ceil(1.2 * window), keep_last_messages=2).forms


def test_the_last_ten_messages_of_the_model_stay_while_they_fit() -> None:
    contents = talk(30)
    window = math.ceil(estimate_tokens(contents) / 0.8 / 0.9) - 50
    result = trimmed(contents, window)
    models = [at for at, content in enumerate(contents) if content.role == "model"]
    assert boundary(result) == models[-10]


def test_fewer_messages_than_are_to_be_kept_are_trimmed_only_for_the_budget() -> None:
    contents = talk(5, size=60)
    window = math.ceil(estimate_tokens(contents) / 0.8 / 0.9) - 50
    result = trimmed(contents, window)
    assert boundary(result) == 3
    assert len(result.forms) == 1


def test_the_budget_outranks_the_last_messages() -> None:
    contents = talk(12, size=40)
    result = trimmed(contents, 3_000, keep_last_messages=10)
    models = [at for at, content in enumerate(contents) if content.role == "model"]
    assert boundary(result) > models[-10]
    assert estimate_tokens(rendered(Conversation.of(contents, window=3_000), result)) <= limit(3_000) + ROUNDED


def test_the_exchange_that_the_model_has_yet_to_read_is_never_trimmed() -> None:
    contents = talk(3, size=400)
    result = trimmed(contents, 1_000)
    assert set(result.forms) == {2, 4}


def test_where_nothing_more_can_go_the_boundary_stays() -> None:
    contents = talk(12, size=40)
    state: Any = None
    for at in range(3):
        contents.append(said(f"note {at}: {lines('plan', 120)}"))
        result = trimmed(contents, 3_000, state)
        state = result.state or state
    assert estimate_tokens(rendered(Conversation.of(contents, window=3_000), result)) > limit(3_000)
    assert result.state is None
    assert list(result.forms) == [at for at in range(1, state[BOUNDARY]) if contents[at].responses]


def test_a_moved_history_keeps_its_boundary_by_the_hash() -> None:
    contents = talk(40)
    state = trimmed(contents, 4_000).state
    moved = trimmed(contents[4:], 100_000, state)
    assert moved.note == "the boundary of the placeholders was found again"
    assert boundary(moved) == state[BOUNDARY] - 4


def test_where_only_people_spoke_nothing_is_trimmed_whatever_the_budget() -> None:
    contents = [said(f"note {at}: {lines('plan', 20)}") for at in range(20)]
    result = trimmed(contents, 1_000)
    assert estimate_tokens(contents) > limit(1_000)
    assert not result.forms


IMAGE = part_of({"inline_data": {"data": "sha256:0", "mime_type": "image/png"}}, size_bytes=10**7, media_tokens=258)
TEXT = part_of({"text": "x" * 35})
DENSE = [said("=" * 896, "model") for _ in range(30)]
"""Messages of 256 tokens each by their bytes, and of far fewer as they are counted."""


def test_texts_and_results_in_a_list_become_placeholders_and_calls_and_images_stay() -> None:
    call_part = called("look_up", "c", key="k" * 90).parts[0]
    mixed = content_of_parts("model", [part_of({"text": "I look that up now."}), call_part, IMAGE])
    contents = [said("go"), mixed, answered("look_up", "c", "r" * 90), said("ok", "model"), *DENSE, said("and?")]
    result = trimmed(contents, 4_000)
    _, first, answer, short, *_ = rendered(Conversation.of(contents, window=4_000), result)
    assert first.parts[0].text == "[trimmed]"
    assert first.parts[1:] == (call_part, IMAGE)
    (part,) = answer.parts
    assert (part.text, part.call_id, part.name) == ('{"result":"[trimmed]"}', "c", "look_up")
    assert short is contents[3], "it is no longer than the placeholder"


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        (said("x" * 35), 10),
        (said("x" * 36), 11),
        (said("é" * 35), 20),
        (content_of_parts("user", [TEXT, TEXT]), 10 + 10 + 2 * 3),
        (called("look_up", "c", key="k"), math.ceil((len('look_up{"key":"k"}') + 30) / 3.5) + 3),
        (answered("look_up", "c", "x" * 100), math.ceil((len('{"result":""}') + 100 + 30) / 3.5) + 3),
        (content_of_parts("user", [IMAGE]), 2_000 + 3),
        (None, 0),
    ],
    ids=["text", "a byte more", "bytes of UTF-8", "parts of a list", "call", "result", "image", "declarations"],
)
def test_a_message_counts_its_bytes_its_parts_and_8_and_the_sum_5_percent_more(
    content: Content | None, tokens: int
) -> None:
    """Placeholders begin with the token that passes 0.8 of the window less the instruction, the declarations (a fifth
    more, and 8 each) and a reserve for the answer."""
    system, tools = "You help. " * 7, [] if content else [tool("look_up", "Looks a key up")] * 2
    size = len("look_up") + len("Looks a key up") + len("{}")
    fixed, declared = len(system) / 3.5, len(tools) * (math.ceil(size * 1.2 / 3.5) + 8)
    contents = [said("x" * 35), *([content] if content else []), *DENSE, said("x" * 35)]
    needed = 2 * 18 + len(DENSE) * (256 + 8) + (tokens + 8 if content else 0)

    def fits(window: int) -> bool:
        return needed <= int((int(0.8 * (window - fixed - window // 4)) - declared) / 1.05)

    def acts(window: int) -> bool:
        conversation = Conversation.of(contents, window=window, system=system, tools=tools)
        return bool(trim(conversation, ConversationSettings(strategy=("stable_prefix",))).forms)

    least = next(window for window in range(10_000, 30_000) if fits(window) and fits(window + 1))
    assert not acts(least)
    assert acts(next(window for window in range(least, 0, -1) if not fits(window)))


def test_neighbours_of_one_role_are_merged() -> None:
    contents = [said("a"), said("b"), said("c", "model"), said("d", "model"), said("e")]
    made = normalize(contents)
    assert [(one.content.role, [part.text for part in one.content.parts]) for one in made] == [
        ("user", ["a", "b"]),
        ("model", ["c", "d"]),
        ("user", ["e"]),
    ]


def test_results_in_a_row_become_one_message_with_all_of_them() -> None:
    asks = content_of_parts("model", [*called("a", "1").parts, *called("b", "2").parts])
    made = normalize([said("go"), asks, answered("a", "1", "x"), answered("b", "2", "y"), said("and?")])
    assert [len(one.content.parts) for one in made] == [1, 2, 2, 1]
    assert [part.call_id for part in made[2].content.responses] == ["1", "2"]


def test_of_results_with_one_id_the_last_stays() -> None:
    made = normalize([said("go"), called("a", "1"), answered("a", "1", "old"), answered("a", "1", "new")])
    (response,) = made[-1].content.responses
    assert "new" in response.text


def test_results_without_ids_are_told_apart_by_name_and_position() -> None:
    calls = content_of_parts("model", [*called("a", "", n=1).parts, *called("a", "", n=2).parts])
    made = normalize([said("go"), calls, answered("a", "", "one"), answered("a", "", "two"), answered("a", "", "late")])
    assert [part.text for part in made[-1].content.responses] == ['{"result":"late"}', '{"result":"two"}']


def test_tags_are_stripped_with_what_they_hold_line_breaks_included() -> None:
    content = said("before <checkpoint_id>12\n34</checkpoint_id>after")
    (made,) = normalize([content])
    assert made.content.text == "before after"


def test_normalizing_without_a_budget_is_the_strategy_none() -> None:
    contents = [said("a <checkpoint_id>1</checkpoint_id>"), said("b"), *talk(50, size=40)[1:]]
    assert trim(Conversation.of(contents, window=1_000), ConversationSettings(strategy=("none",))) == Decision()
    packed = build_pack(pack_input(contents, window=90_000), PackPolicy(conversation={"strategy": "none"}))
    assert packed.contents[0].content.text == "a \nb"
    assert len(packed.contents) == len(contents) - 1
    assert packed.acts == ()


sizes = st.lists(st.integers(0, 60), min_size=1, max_size=25)


@given(sizes, st.integers(300, 6_000), st.integers(0, 12))
@settings(max_examples=30)
def test_whatever_the_history_the_boundary_is_monotonic_and_people_are_whole(
    results: list[int], window: int, keep: int
) -> None:
    contents = [said("start")]
    for at, size in enumerate(results):
        contents += [called("a", f"c{at}", n=at), answered("a", f"c{at}", "line of words\n" * size)]
        if size % 7 == 0:
            contents += [said(f"well {at}", "model"), said(f"and then? {at} " * 5)]
    state: Any = None
    last = 0
    for count in range(1, len(contents) + 1):
        part = contents[:count]
        result = trimmed(part, window, state, keep_last_messages=keep)
        state = result.state or state
        now = state[BOUNDARY] if state else 0
        assert now >= last
        last = now
        left = rendered(Conversation.of(part, window=window), result)
        assert [one.digest for one in left if one.role == "user" and not one.responses] == [
            one.digest for one in part if one.role == "user" and not one.responses
        ]
        assert estimate_tokens(left) <= estimate_tokens(part)


def photograph(bridge: int) -> dict[str, Any]:
    """Shows a bridge."""
    photo = types.Part.from_bytes(data=b"\x89PNG\r\n\x1a\n%d" % bridge, mime_type="image/png")
    return {"seen": f"bridge {bridge}, " + "dry boards " * 30, "photo": photo}


def test_a_replay_estimates_the_images_of_results_as_the_call_did() -> None:
    conversation = {"strategy": ("stable_prefix",), "stable_prefix": {"keep_last_messages": 2}}
    policy = PackPolicy(max_input_tokens=9_000, conversation=conversation)
    chat = Chat(script=[call("photograph", bridge=at) for at in range(6)], tools=[photograph], policy=policy)
    chat.llm.usage = False
    chat.say("How are the bridges?", "And now?")
    assert any(event.stage == "replace" for manifest in chat.manifests() for event in manifest.truncation_events)
    chat.replays()
