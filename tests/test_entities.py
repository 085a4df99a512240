"""The entity table: what of a text can be known but not composed, who it is known from, and in which order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packs import answered, called, said

from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.text.entities import entity_table, mentions, parse
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
    ],
)  # fmt: skip
def test_an_entity_holds_a_digit_a_slash_an_underscore_or_an_at_sign(text, found):
    assert [entity for entity, _ in mentions(said(text))] == found


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
