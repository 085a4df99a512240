"""Extracts are verbatim and inside their budget; summaries are the conversation's own words."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from pack_inputs import answers, calls, human, says

from aether_context.text.compression import extract, summarize
from aether_context.tokens import counter_for

COUNTER = counter_for("gemini-2.5-flash")
COUNTER.count("warm")
NOTE = re.compile(r"\[… lines? (\d+)(?:-(\d+))? of (\d+) left out …\]")
ALL = re.compile(r"\[\d+ lines left out\]")


@given(st.text(max_size=4_000), st.integers(1, 300), st.text(max_size=40))
def test_an_extract_never_exceeds_its_budget_nor_its_text(text, budget, query):
    found = extract(text, max_tokens=budget, counter=COUNTER, query=query)
    if not ALL.fullmatch(found):
        assert COUNTER.count(found) <= max(budget, 0)
    if COUNTER.count(text) <= budget:
        assert found == text


def test_every_line_of_an_extract_is_the_texts_own_and_gaps_are_numbered():
    lines = [f"line {at}: value {at * 7}" for at in range(1, 401)]
    found = extract("\n".join(lines), max_tokens=300, counter=COUNTER, query="value 1400")
    missing = 0
    kept = 0
    for line in found.split("\n"):
        gap = NOTE.fullmatch(line)
        if gap:
            missing += int(gap.group(2) or gap.group(1)) - int(gap.group(1)) + 1
        else:
            assert line in lines
            kept += 1
    assert kept + missing == 400
    assert lines[0] in found
    assert lines[-1] in found


def test_lines_with_the_querys_rare_words_are_kept():
    lines = [f"nothing to see in row {at}" for at in range(500)]
    lines[250] = "the password policy is rotated by kestrel"
    found = extract("\n".join(lines), max_tokens=150, counter=COUNTER, query="who rotates the kestrel policy")
    assert lines[250] in found


def test_one_endless_line_is_taken_in_pieces():
    text = "x1y2" * 20_000
    found = extract(text, max_tokens=400, counter=COUNTER)
    assert "x1y2" in found
    assert COUNTER.count(found) <= 400


def test_a_summary_keeps_what_people_said_before_what_the_model_said():
    contents = [
        human("My dog is called Rex."),
        says("Noted. " * 30),
        calls("search"),
        answers("search"),
        human("I live in Bern."),
    ]
    summary = summarize(contents, max_tokens=45, counter=COUNTER)
    assert "- user: My dog is called Rex." in summary
    assert "- user: I live in Bern." in summary
    assert "messages left out" in summary


def test_a_summary_carries_the_one_before_it():
    first = summarize([human("My dog is called Rex.")], max_tokens=100, counter=COUNTER)
    second = summarize([human("I live in Bern.")], max_tokens=100, counter=COUNTER, earlier=first)
    assert second.splitlines() == ["- user: My dog is called Rex.", "- user: I live in Bern."]


class Told:
    """A counter that keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def count(self, text):
        self.asked.append(text)
        return COUNTER.count(text)


def test_what_has_more_words_than_there_is_room_for_is_not_counted():
    counter = Told()
    contents = [
        human("My dog is called Rex."),
        *(says(f"Answer {at} is long. " * 15) for at in range(50)),
        says("Yes."),
    ]
    summary = summarize(contents, max_tokens=30, counter=counter)
    assert summary == "- user: My dog is called Rex.\n- model: Yes.\n- messages left out: 50"
    assert len(counter.asked) == 3


@given(st.lists(st.text(min_size=1, max_size=200), max_size=20), st.integers(0, 200))
def test_a_summary_stays_inside_its_budget(texts, budget):
    summary = summarize([human(text) for text in texts], max_tokens=budget, counter=COUNTER)
    assert not summary or COUNTER.count(summary) <= budget
