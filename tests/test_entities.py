"""The entity table: what of a text can be known but not composed; a number stands with its record, or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packs import answered, called, said
from scripted import Chat, call

from aether_context import PackPolicy
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.text.entities import entities_of, entity_table, is_entry, mentions, parse
from aether_context.text.json_lines import is_number, leaves
from aether_context.tokens import counter_for

COUNTER = counter_for("gemini-2.5-flash")
COUNTER.count("warm")


def table(*contents, room=1_000, **more):
    return entity_table(contents, max_tokens=room, counter=COUNTER, **more)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see src/theme/dark.json, please.", ["src/theme/dark.json"]),
        ("order ZFA04Y for ada_lovelace@example.org", ["ZFA04Y", "ada_lovelace@example.org"]),
        ("the colour is #ff8800", ["#ff8800"]), ("it took place in Bern", []),
        ("open C:\\work\\plan.md", ["C:\\work\\plan.md"]), ('{"total": 1250.50, "seats": 2}', ["total: 1250.50"]),
        ("quoted\\nserver_name: next", ["server_name"]), ("a1", []), ("x" * 100 + "_" + "y" * 100, []),
        ("<li>Room B-12</li><td>/srv/app</td></table>", ["B-12", "/srv/app"]),
        ("the networkPolicy of DeepFloyd, in HTML of Bern", ["networkPolicy", "DeepFloyd"]),
    ],
)  # fmt: skip
def test_an_entity_holds_a_digit_a_slash_an_underscore_an_at_sign_or_a_capital_inside(text, found):
    assert [entity for entity, _ in mentions(said(text))] == found


def test_a_key_of_json_in_camel_case_is_no_entity_and_its_value_is() -> None:
    assert [*entities_of('{"foreColor": "skyBlue", "fore_colour": 1}')] == ["skyBlue", "fore_colour"]


def test_a_value_with_a_name_in_camel_case_stands_with_its_record() -> None:
    records = [{"id": "K-1", "skill": "JavaScript daily"}, {"id": "K-2", "skill": "C"}]
    assert "K-1 skill: JavaScript daily" in table(answered("find", "1", json.dumps(records)))


def test_who_mentioned_it_decides_the_line():
    made = table(
        said("refund order_77"),
        said("I will read a/plan.md", "model"),
        called("read", "1", path="b/notes.md", text="c/long.md " * 40),
        answered("read", "1", "it names d/other.md"),
    )
    assert made.splitlines() == [
        "- used: b/notes.md; order_77",
        "- written: a/plan.md",
        "- seen: d/other.md; c/long.md",
    ]


def test_the_latest_mention_comes_first_and_a_stronger_one_wins():
    contents = [said("aa/1 bb/2"), answered("read", "1", "aa/1"), answered("read", "2", "cc/3")]
    assert table(*contents).splitlines() == ["- used: aa/1; bb/2", "- seen: cc/3"]
    assert table(called("read", "1", path="cc/3"), earlier="- seen: cc/3; dd/4").splitlines()[0] == "- used: cc/3"


def test_a_table_carries_the_ones_before_it_in_the_order_of_their_last_mention():
    tables = "- used: aa/1; bb/2\n- seen: dd/4\n- used: cc/3"
    assert parse(tables) == {"used": ["cc/3", "aa/1", "bb/2"], "written": [], "seen": ["dd/4"]}
    assert table(said("bb/2 ee/5"), earlier=tables).splitlines() == ["- used: bb/2; ee/5; cc/3; aa/1", "- seen: dd/4"]


def test_addresses_take_room_beside_the_entities_and_push_none_out():
    names = said(" ".join(f"item_{at:03}" for at in range(40)))
    kept = [answered("read", str(at), f"artifact://evidence/{at:016x}.txt") for at in range(40)]
    alone, beside = table(names, room=200), table(names, *kept, room=200)
    items = set(parse(alone)["used"])
    addresses = [name for name in parse(beside)["used"] if "artifact://" in name]
    assert items == {name for name in parse(beside)["used"] if "artifact://" not in name}
    assert addresses[0] == f"read: artifact://evidence/{39:016x}.txt", "the latest comes first"
    assert 0 < COUNTER.count(", ".join(addresses)) <= 0.34 * 200


@given(st.lists(st.text(max_size=200), max_size=12), st.integers(0, 200))
def test_a_table_stays_inside_its_budget_and_reads_back(texts, room):
    contents = [said(text, "user" if at % 2 else "model") for at, text in enumerate(texts)]
    made = table(*contents, room=room)
    assert not made or COUNTER.count(made) <= room + 4
    known = {entity for content in contents for entity, _ in mentions(content)}
    assert {entity for found in parse(made).values() for entity in found} <= known


def test_what_an_extract_says_of_itself_names_nothing() -> None:
    text = "src/first.py\n[… lines 2-238 …]\nsrc/last.py"
    address = "artifact://evidence/0123456789abcdef.txt"
    whole = f"{address} has all 1389 lines; read_artifact and search_artifact read it"
    response = {"name": "read", "response": {"artifact": whole, "result": text}}
    found = table(called("read", ""), content_of_parts("user", [part_of({"function_response": response})]))
    assert "src/first.py" in found
    assert "src/last.py" in found
    assert f"read: {address}" in found
    assert not any(word in found for word in ("2-238", "1389", "read_artifact"))


# numbers, and the records that they belong to


ORDERS = [{"id": "O-41", "total": 19.5, "status": "open"}, {"id": "O-42", "total": 7.25}]


def numbers(value: Any, record: str = "") -> list[str]:
    return [f"{leaf.record} {leaf.key}: {leaf.text}".lstrip() for leaf in leaves(value, record) if is_number(leaf.text)]


def seen(text: str) -> list[str]:
    return [entity for entity, _ in mentions(answered("look_up", "1", text))]


# JSON


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
            ["INV-1 number: 1", "INV-1 number 1 amount: 50.5", "INV-1 number: 2", "INV-1 number 2 amount: 60.5"],
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


# text


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


# values that are no numbers


def answer_to(text: str, **arguments: str) -> list[str]:
    return table(called("look_up", "1", **arguments), answered("look_up", "1", text), room=400).splitlines()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ({"name": "Ada Berg", "mass": "71 kg"}, "- seen: pers-0165 name: Ada Berg, mass: 71 kg"),
        ({"result": json.dumps({"name": "Ada Berg", "mass": 71})}, "- seen: pers-0165 name: Ada Berg, mass: 71"),
        ({"mass": 71.5, "net": "net-0340"}, "- seen: pers-0165 mass: 71.5, net: net-0340"),
        ({"id": "net-0340", "mass": 71.5}, "- seen: pers-0165 id: net-0340; net-0340 mass: 71.5"),
        ("mass: 71.5\nnet: net-0340", "- seen: pers-0165 mass: 71.5, net: net-0340"),
        ("### acct-15 (owner: pers-0434)\nbalance: 19.5", "- seen: acct-15 owner: pers-0434, balance: 19.5"),
        (
            "### Ada Berg (ID: pers-0007)\nBorn: 1958-03-26 | Email: ada@example.org | Phone: 001-718-889",
            "- seen: pers-0165 ID: pers-0007; "
            "pers-0007 name: Ada Berg, Born: 1958-03-26, Email: ada@example.org, Phone: 001-718-889",
        ),
        ("it names d/other.md", "- seen: d/other.md"),
    ],
)
def test_a_value_stands_with_the_record_that_it_was_returned_with(text: Any, found: str) -> None:
    lines = answer_to(text if isinstance(text, str) else json.dumps(text), person="pers-0165")
    assert lines == ["- used: pers-0165", found]


def test_a_call_that_names_two_records_says_of_neither_what_came() -> None:
    assert answer_to('{"km": 815.5}', start="A-100", end="B-200") == ["- used: B-200; A-100", "- seen: km: 815.5"]


def test_words_give_way_to_names_numbers_and_identifiers() -> None:
    people = [{"id": f"P-{at}", "remark": "it holds for all of Bern", "net": f"net-{at:04}"} for at in range(40)]
    made = table(called("look_up", "1"), answered("look_up", "1", json.dumps(people)), room=300)
    assert "net-0009" in made
    assert "Bern" not in made


def test_long_names_give_way_to_short_ones_of_a_weaker_rank() -> None:
    paths = [f"/home/ada/projects/claims/extracted/claim_{at:03}/form.pdf" for at in range(9)]
    contents = [*(called("read", str(at), path=path) for at, path in enumerate(paths))]
    made = table(*contents, answered("list", "9", "EMP004\nEMP006\n2024-12-16"), room=70)
    used, seen = made.splitlines()
    assert seen == "- seen: EMP004; EMP006; 2024-12-16"
    assert used.startswith(f"- used: {paths[-1]}")
    assert paths[0] not in used


def test_other_fields_give_way_to_the_one_that_the_user_asks_about() -> None:
    def with_request(request: str, count: int) -> str:
        accounts = [{"id": f"A-{at}", "routing": 70_100 + at, "balance": 81_200 + at} for at in range(count)]
        answer = answered("look_up", "1", json.dumps(accounts))
        return table(called("look_up", "1"), answer, present=[said(request)], room=200)

    asked = with_request("Sum up the balance of all accounts.", 12)
    assert [f"{81_200 + at}" in asked for at in range(12)] == [True] * 12
    assert with_request("Sum them all up.", 12).count("routing") > 2
    few = with_request("Sum up the balance of all accounts.", 4)
    assert few.index("routing") < few.index("A-3"), "of few records each stands with all of its fields"


# through a runner


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
@pytest.mark.rows(2)
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


def test_the_latest_number_of_a_record_holds_wherever_it_stands_in_its_content() -> None:
    first = answered("look_up", "c1", json.dumps({"id": "ORD-7", "total": 512.5}))
    others = {f"item_{at}": f"SKU-{at}" for at in range(8)}
    latest = answered("look_up", "c2", json.dumps({**others, "order": {"id": "ORD-7", "total": 634.5}}))
    listed = table(first, latest)
    assert "634.5" in listed
    assert "512.5" not in listed
