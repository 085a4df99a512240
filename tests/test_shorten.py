"""Excerpts are verbatim and inside their budget, on lines of their own or on one."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from aether_context.text.shorten import shorten, shorten_line
from aether_context.tokens import counter_for

COUNTER = counter_for("gemini-2.5-flash")
COUNTER.count("warm")
NOTE = re.compile(r"\[… lines? (\d+)(?:-(\d+))? …\]")


def extract(text, *, max_tokens, query=""):
    return shorten(text, max_tokens, counter=COUNTER, query=query).text


@given(st.text(max_size=4_000), st.integers(1, 300), st.text(max_size=40))
def test_an_excerpt_never_exceeds_its_budget_nor_its_text(text, budget, query):
    for found in (
        extract(text, max_tokens=budget, query=query),
        shorten_line(text, budget, counter=COUNTER, query=query),
    ):
        assert COUNTER.count(found) <= budget or len(found) <= 2
        if COUNTER.count(text) <= budget:
            assert found == text


def test_an_excerpt_of_an_excerpt_counts_the_lines_of_the_text():
    first = extract("\n".join(f"line {at}: value {at * 7}" for at in range(1, 401)), max_tokens=400)
    second = extract(first, max_tokens=120)
    ranges = [(int(gap[1]), int(gap[2] or gap[1])) for gap in NOTE.finditer(second)]
    gone = {at for start, stop in ranges for at in range(start, stop + 1)}
    kept = {int(found) for found in re.findall(r"line (\d+): ", second)}
    assert kept | gone == set(range(1, 401))
    assert not kept & gone


def test_the_names_of_lines_that_are_left_out_find_room_beside_it():
    text = "\n".join(f"part {at} of the report is about account ACC-{at * 37:05} and nothing else" for at in range(60))
    found = shorten(text, 300, counter=COUNTER, names=True)
    assert len(set(re.findall(r"ACC-\d+", found.text + found.names))) > found.kept
    assert COUNTER.count(found.text) + COUNTER.count(found.names) <= 300


def test_a_name_is_not_shown_by_a_longer_one():
    lines = [f"the account ACC-{at}" for at in (1000, 1001, 1002, 1003)]
    text = "\n".join([*lines, *(f"nothing to see here {at}" for at in "abcdefgh" * 40), "it is about ACC-100 as well"])
    found = shorten(text, 60, counter=COUNTER, query="account", names=True)
    assert "ACC-1000" in found.text
    assert "ACC-100 " not in found.text
    assert "ACC-100" in found.names.split(", ")


def test_sentences_about_the_query_stand_on_one_line():
    text = "The sky is grey. The kestrel policy is rotated monthly. Nobody was there.\nIt rained."
    found = shorten_line(text, 12, counter=COUNTER, query="kestrel policy")
    assert found.strip("… ") == "The kestrel policy is rotated monthly."


def test_a_stop_inside_a_number_or_an_address_ends_no_sentence() -> None:
    text = "Welcome to all of you here. The price is 19.50 at shop.example.com today. So long then."
    found = shorten_line(text, 20, counter=COUNTER, query="price")
    assert found == "… The price is 19.50 at shop.example.com today. …"


def test_an_ideographic_stop_needs_no_space_behind_it() -> None:
    text = "欢迎各位来到这里参加会议。价格是十九元五角。今天就到这里再见了各位。"
    assert shorten_line(text, 12, counter=COUNTER, query="价格是十九元五角") == "… 价格是十九元五角。 …"
