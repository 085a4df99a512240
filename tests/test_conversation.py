"""Exchanges stay whole, cuts take the oldest, and what stays begins with a human message."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from packs import answers, calls, said, torn

from aether_context.conversation import units
from aether_context.conversation.content_json import part_of
from aether_context.conversation.turns import cut, protected
from aether_context.pack import Content


def shape(contents: list[Content]) -> list[tuple[str, tuple[int, ...], int]]:
    return [(unit.kind, unit.indices, unit.turn) for unit in units(contents)]


def test_a_turn_is_a_human_message_up_to_the_next():
    contents = [said("hello"), said("well", "model"), said("hello"), calls("a"), answers("a"), said("well", "model")]
    assert shape(contents) == [
        ("human", (0,), 0),
        ("message", (1,), 0),
        ("human", (2,), 1),
        ("exchange", (3, 4), 1),
        ("message", (5,), 1),
    ]


def test_parallel_calls_answered_apart_stay_one_exchange():
    contents = [said("hello"), calls("a", "b"), answers("b"), answers("a")]
    assert shape(contents)[1] == ("exchange", (1, 2, 3), 0)


def test_calls_of_the_same_name_pair_by_id():
    contents = [
        said("hello"),
        calls("a", ids=("1",)),
        calls("a", ids=("2",)),
        answers("a", ids=("2",)),
        answers("a", ids=("1",)),
    ]
    assert [unit[1] for unit in shape(contents)] == [(0,), (1, 4), (2, 3)]


def test_without_ids_the_earliest_waiting_call_of_that_name_is_answered():
    contents = [said("hello"), calls("a"), calls("a"), answers("a"), answers("a")]
    assert [unit[1] for unit in shape(contents)] == [(0,), (1, 3), (2, 4)]


def test_a_cut_takes_the_oldest_turns_first():
    contents = [
        said("1"),
        said("well", "model"),
        said("2"),
        said("well", "model"),
        said("3"),
        said("well", "model"),
        said("4"),
    ]
    assert cut(units(contents), [10] * 7, target=40).indices == (0, 1, 2, 3)


def test_the_final_request_and_the_last_exchange_always_stay():
    contents = [said("1"), said("well", "model"), said("2"), calls("a"), answers("a"), calls("b"), answers("b")]
    made = cut(units(contents), [10] * 7, target=0, stay=protected(units(contents), 2))
    assert made.indices == (0, 1, 3, 4)


def test_neighbours_of_the_final_request_leave_last_and_only_where_the_rest_does_not_fit():
    contents = [said("1"), said("well", "model"), said("context"), said("question")]
    stay = protected(units(contents), 3)
    assert stay == {3}
    assert cut(units(contents), [10] * 4, target=0, max_tokens=20, stay=stay).indices == (0, 1)
    assert cut(units(contents), [10] * 4, target=0, max_tokens=19, stay=stay).indices == (0, 1, 2)


def test_the_first_and_the_last_stay_while_they_find_room_the_first_longer():
    contents = [
        said("1"),
        said("well", "model"),
        said("well", "model"),
        said("well", "model"),
        said("well", "model"),
        said("well", "model"),
        said("2"),
    ]
    ends = {"target": 10, "keep_first": 2, "keep_last": 3}
    assert cut(units(contents), [10] * 7, room=50, **ends).indices == (2, 3)
    assert cut(units(contents), [10] * 7, room=40, **ends).indices == (2, 3, 4)
    assert cut(units(contents), [10] * 7, room=20, **ends).indices == (2, 3, 4, 5, 6)


def test_a_turns_human_message_outlives_its_answers():
    contents = [said("1"), calls("a"), answers("a"), calls("b"), answers("b"), said("2")]
    assert cut(units(contents), [5, 20, 20, 20, 20, 5], target=55).indices == (1, 2)


kinds = st.lists(st.sampled_from(["human", "says", "calls", "calls2"]), max_size=25)


def history(names: list[str]) -> list[Content]:
    """A valid history that begins and ends with a human message."""
    contents = [said("first")]
    for at, name in enumerate(names):
        if name == "human":
            contents.append(said(f"m{at}"))
        elif name == "says":
            contents.append(said(f"m{at}", "model"))
        else:
            tools = ("a", "b") if name == "calls2" else ("a",)
            contents += [calls(*tools), answers(*tools)]
    return [*contents, said("last")]


@given(kinds, st.integers(0, 600), st.data())
def test_a_cut_leaves_a_valid_history_and_never_more_than_it_can(names, target, data):
    contents = history(names)
    tokens = [data.draw(st.integers(1, 60)) for _ in contents]
    parts = units(contents)
    stay = protected(parts, len(contents) - 1)
    gone = set(cut(parts, tokens, target=target, max_tokens=sum(tokens), stay=stay).indices)
    kept = [content for at, content in enumerate(contents) if at not in gone]
    assert kept[0].role == "user"
    assert not kept[0].responses
    assert torn(kept) == []
    for unit in parts:
        assert len(gone.intersection(unit.indices)) in (0, len(unit.indices))
    left = sum(cost for at, cost in enumerate(tokens) if at not in gone)
    if left > target:
        free = [unit for at, unit in enumerate(parts) if at not in stay]
        assert all(set(unit.indices) <= gone for unit in free if unit.kind != "human")
    if sum(tokens) <= target:
        assert not gone


def test_a_content_keeps_what_it_does_not_know():
    part = part_of({"executable_code": {"code": "1+1"}})
    assert part.kind == "other"
    assert json.loads(part.wire) == {"executable_code": {"code": "1+1"}}


def test_what_is_signed_is_told_by_the_field_and_not_by_a_name_in_it() -> None:
    call = {"name": "verify", "args": {"thought_signature": "c2ln", "inner": {"thought_signature": "c2ln"}}}
    assert not part_of({"function_call": call}).is_signed
    assert not part_of({"function_response": {"name": "verify", "response": call["args"]}}).is_signed
    assert not part_of({"text": '"thought_signature":'}).is_signed
    assert part_of({"function_call": call, "thought_signature": "c2ln"}).is_signed
    assert part_of({"text": "so", "thought": True, "thought_signature": "c2ln"}).is_signed
