"""Summaries are the conversation's own words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from packs import answers, calls, said

from aether_context.conversation.summary import summarize
from aether_context.tokens import counter_for

COUNTER = counter_for("gemini-2.5-flash")
COUNTER.count("warm")


def test_a_summary_keeps_what_people_said_before_what_the_model_said():
    contents = [
        said("My dog is called Rex."),
        said("Noted. " * 30, "model"),
        calls("search"),
        answers("search"),
        said("I live in Bern."),
    ]
    summary = summarize(contents, max_tokens=45, counter=COUNTER)
    assert "- user: My dog is called Rex." in summary
    assert "- user: I live in Bern." in summary
    assert "messages left out" in summary


def test_a_summary_carries_the_one_before_it():
    first = summarize([said("My dog is called Rex.")], max_tokens=100, counter=COUNTER)
    second = summarize([said("I live in Bern.")], max_tokens=100, counter=COUNTER, earlier=first)
    assert second.splitlines() == ["- user: My dog is called Rex.", "- user: I live in Bern."]


@given(st.lists(st.text(min_size=1, max_size=200), max_size=20), st.integers(0, 200))
def test_a_summary_stays_inside_its_budget(texts, budget):
    summary = summarize([said(text) for text in texts], max_tokens=budget, counter=COUNTER)
    assert not summary or COUNTER.count(summary) <= budget
