"""Summaries are the conversation's own words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pack_inputs import answers, calls, human, says

from aether_context.conversation.summary import summarize
from aether_context.tokens import counter_for

COUNTER = counter_for("gemini-2.5-flash")
COUNTER.count("warm")


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
