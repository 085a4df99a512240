"""What a recap holds of results: small ones as lines, and numbers with the record that they belong to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from packs import answered, called, said
from scripted import Chat, call, was_cut

from aether_context import PackPolicy
from aether_context.conversation.summary import is_lookup, lookup_lines, recap
from aether_context.pack import Content
from aether_context.text.entities import is_entry, mentions, parse
from aether_context.text.json_lines import leaves
from aether_context.tokens import counter_for

COUNTER = counter_for("gemini-2.5-flash")
NAMES = ["Ada Reyes", "Bo Lindqvist", "Chidi Okafor", "Dana Petrov", "Eun-ji Park", "Farid Aziz", "Gwen Morgan"]


def asked(name: str, result: str, call_id: str = "", **arguments: object) -> list[Content]:
    return [called(name, call_id, **arguments), answered(name, call_id, result)]


def looked_up(names: list[str] = NAMES) -> list[Content]:
    found = (asked("find", f"### {name}\nborn: {1950 + at}", id=f"pers-{at:04}") for at, name in enumerate(names))
    return [*chain.from_iterable(found)]


def lines(contents, room=1_000, earlier=()):
    return lookup_lines(contents, max_tokens=room, counter=COUNTER, earlier=earlier)


def test_a_line_says_what_was_asked_and_all_values_of_what_came() -> None:
    found = lines(looked_up())
    assert found[0] == "- found by find pers-0000: ### Ada Reyes; born: 1950"
    assert len(found) == len(NAMES)
    assert all(map(is_lookup, found))


def test_few_small_results_and_long_ones_are_no_table() -> None:
    assert lines(looked_up(NAMES[:3])) == []
    long = asked("find", "word " * 400) * 12
    assert lines(long) == []
    assert lines([*long, *looked_up(NAMES[:4])]) == []
    assert lines([*long[:8], *looked_up(NAMES[:4])])


def test_the_latest_stay_where_room_is_short_in_their_order() -> None:
    found = lines(looked_up(), room=60)
    assert 0 < len(found) < len(NAMES)
    assert found == lines(looked_up())[-len(found) :]
    assert sum(COUNTER.count(line) + 1 for line in found) <= 60


def test_results_belong_to_their_own_calls() -> None:
    contents = [called("find", "1", id="a"), called("find", "2", id="b")]
    contents += [answered("find", "2", "second"), answered("find", "1", "first"), *looked_up()]
    assert lines(contents)[:2] == ["- found by find b: second", "- found by find a: first"]


def test_an_earlier_recap_goes_on_and_says_nothing_twice() -> None:
    first = recap(looked_up(), [], max_tokens=900, counter=COUNTER)
    later = asked("find", "### Hana Sato\nborn: 1980", id="pers-0009")
    second = recap([said("go on"), *later * 5], [], max_tokens=900, counter=COUNTER, earlier=first)
    held = [line for line in second.splitlines() if is_lookup(line)]
    assert len(held) == len(set(held)) == len(NAMES) + 1
    tight = recap(looked_up(), [], max_tokens=400, counter=COUNTER, earlier=second)
    assert any(map(is_lookup, tight.splitlines()))
    assert COUNTER.count(tight) <= 400


def find(key: str) -> dict[str, str]:
    """Finds a person."""
    return {"result": f"### {NAMES[int(key) % len(NAMES)]} the {key}th\nborn: {1900 + int(key)}"}


def test_an_agent_that_looks_much_up_still_has_every_value_after_cuts() -> None:
    script = [*(call("find", key=str(at)) for at in range(60)), "done"]
    chat = Chat(script=script, tools=[find], policy=PackPolicy(max_input_tokens=3_000))
    chat.say("Who of them is the oldest? Find them one by one.")
    assert any(map(was_cut, chat.manifests()))
    told = [line for line in chat.sent[-1].text.splitlines() if is_lookup(line)]
    assert len(told) >= 4
    for line in told:
        key = line.removeprefix("- found by find ").partition(":")[0]
        assert f"the {key}th; born: {1900 + int(key)}" in line
    chat.replays()


ORDERS = [{"id": "O-41", "total": 19.5, "status": "open"}, {"id": "O-42", "total": 7.25}]


def numbers(value: Any, record: str = "") -> list[str]:
    return [f"{leaf.record} {leaf.key}: {leaf.text}".lstrip() for leaf in leaves(value, record) if leaf.key]


def seen(text: str) -> list[str]:
    return [entity for entity, _ in mentions(answered("look_up", "1", text))]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"orders": ORDERS}, ["O-41 total: 19.5", "O-42 total: 7.25"]),
        ({"result": json.dumps(ORDERS)}, ["O-41 total: 19.5", "O-42 total: 7.25"]),
        ([{"id": "O-41", "total": "19.50"}], ["O-41 total: 19.50"]),
        ([{"id": "O-41", "total": "19.50 EUR"}], ["O-41 total: 19.50 EUR"]),
        (
            {"orders": [{"customer_id": "C-7", "order_id": f"O-{at}", "total": 19.5 + at} for at in (1, 2)]},
            ["O-1 total: 20.5", "O-2 total: 21.5"],
        ),
        ([{"number": 4101, "total": 19.5}], ["number: 4101", "number 4101 total: 19.5"]),
        (
            {"invoice": "INV-1", "lines": [{"number": 1, "amount": 50.5}, {"number": 2, "amount": 60.5}]},
            ["INV-1 number 1 amount: 50.5", "INV-1 number 2 amount: 60.5"],
        ),
        (
            {"id": "O-41", "items": [{"name": "Hat", "price": 19.5}, {"name": "Coat", "price": 99.5}]},
            ["O-41 Hat price: 19.5", "O-41 Coat price: 99.5"],
        ),
        ({"id": "O-41", "items": [{"sku": "A-1", "price": 19.5}]}, ["A-1 price: 19.5"]),
        ({"id": "O-41", "shipping": {"cost": 4.99}}, ["O-41 cost: 4.99"]),
        ({"id": "S-1", "readings": [20.5, 21.5]}, []),
        ({"customer": "C-7", "order_ids": [4101, 4102]}, ["C-7 order_ids: 4101", "C-7 order_ids: 4102"]),
        ({"O-41": {"total": 19.5}, "O-42": {"total": 7.25}}, ["O-41 total: 19.5", "O-42 total: 7.25"]),
        ({"columns": ["id", "total"], "rows": [["O-41", 19.5]]}, []),
        ({"total": {"0": 19.5, "1": 7.25}}, []),
        ({"total": 19.5}, ["total: 19.5"]),
        ({"open": True, "left": None, "seats": 2}, []),
    ],
)
def test_a_number_stands_with_the_nearest_record_that_has_a_name(value: Any, found: list[str]) -> None:
    assert numbers(value) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Order O-41\ntotal: 19.50\nOrder O-42\ntotal: 7.25", ["O-41 total: 19.50", "O-42 total: 7.25"]),
        ("- id: O-41\n  total: 19.50\n- id: O-42\n  total: 7.25", ["O-41 total: 19.50", "O-42 total: 7.25"]),
        ("order_id: 4101\nuser_id: U-7\ntotal: 19.50\n\ncost: 7.25", ["order_id 4101 total: 19.50", "cost: 7.25"]),
        ("O-41 total: 19.50, O-42 total: 7.25", ["O-41 total: 19.50", "O-42 total: 7.25"]),
        ("id,total\nO-41,19.50\nO-42,7.25", ["O-41 19.50", "O-42 7.25"]),
        ('"state": "open-2", "total": 19.50, …', ["total: 19.50"]),
        ('[\n {"id": "O-41", "total": 19.50},\n[… 8 lines left out]\n', ["O-41 total: 19.50"]),
        ("rows 0.1234 0.5678\n1024.5", []),
        ('{"amount": 5.00, "id": "O-41"}, {"amount": 6.00, "id": "O-42"}, …', ["amount: 5.00", "amount: 6.00"]),
    ],
)
def test_a_number_in_a_text_stands_with_the_label_before_it(text: str, found: list[str]) -> None:
    assert [entity for entity in seen(text) if re.search(r"\d\.\d", entity)] == found


def amount(at: int) -> float:
    return 1000 + at * 7 + 0.25


def as_records(at: int) -> Any:
    return {"orders": [{"id": f"O-{at}{n}", "total": amount(at * 10 + n), "status": "open"} for n in range(3)]}


def as_text(at: int) -> Any:
    return json.dumps(as_records(at)["orders"])


def as_invoices(at: int) -> Any:
    lines = [{"position": n, "name": f"Item {n}", "net": amount(at * 10 + n)} for n in range(3)]
    return {"invoice": {"customer_id": "C-7", "invoice_number": f"O-{at}", "lines": lines}}


def as_a_table(at: int) -> Any:
    return {"columns": ["id", "total"], "rows": [[f"O-{at}{n}", amount(at * 10 + n)] for n in range(3)]}


@pytest.mark.parametrize("shape", [as_records, as_text, as_invoices, as_a_table])
def test_no_number_of_a_recap_stands_without_its_record(shape: Callable[[int], Any]) -> None:
    def look_up(reference: str) -> Any:
        """Looks a reference up."""
        return {"result": shape(int(reference.removeprefix("O-"))), "note": "as of today " * 120}

    script = [one for at in range(1, 15) for one in (call("look_up", reference=f"O-{at}"), f"answer {at}")]
    chat = Chat(script, tools=[look_up], policy=PackPolicy(max_input_tokens=4_000))
    chat.say(*(f"question {'abcdefghijklmnopqrstuvwxyz'[at]}" for at in range(1, 15)))
    entries = [line.strip() for sent in chat.sent for line in sent.text.splitlines() if is_entry(line.strip())]
    entities = {entity for found in parse("\n".join(entries)).values() for entity in found}
    assert entries
    with_numbers = [entity for entity in entities if re.search(r"\d{4}\.\d", entity)]
    assert with_numbers or shape is as_a_table
    assert [entity for entity in with_numbers if not re.search(r"\bO-\d", entity)] == []
