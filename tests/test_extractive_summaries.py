"""Summaries are the conversation's own words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packs import answers, calls, said
from scripted import Chat

from aether_context import PackPolicy
from aether_context.conversation.summary import summarize, summary_message
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
    third = summarize([said("Thanks!")], max_tokens=100, counter=COUNTER, earlier=f"{second}\n- messages left out: 7")
    assert third == f"{second}\n- messages left out: 8"


def test_the_beginning_of_a_long_answer_finds_room_beside_long_quotes():
    quotes = [said(f"I want the {mill} mill repaired, and not sold. " * 40) for mill in ("old", "new")]
    answer = said("The mill needs a new roof. " * 40, "model")
    summary = summarize([*quotes, answer], max_tokens=360, counter=COUNTER)
    assert summary.count("- user: I want the ") == 2
    assert "- model: The mill needs a new roof." in summary


@given(st.lists(st.text(min_size=1, max_size=200), max_size=20), st.integers(0, 200))
def test_a_summary_stays_inside_its_budget(texts, budget):
    summary = summarize([said(text) for text in texts], max_tokens=budget, counter=COUNTER)
    assert not summary or COUNTER.count(summary) <= budget


@pytest.mark.parametrize(
    "text",
    [
        "Hi, how are you?",
        "Thanks!",
        "Hey Mel! Good to see you! How have you been?",
        "Wow, Caroline, that's amazing! Glad it helped.",
        "Thanks, Maria! You too! Stay safe!",
        "ok, go on please",
    ],
)
def test_greetings_thanks_and_praise_are_no_bullets(text: str) -> None:
    contents = [said(text), said(text, "model"), said("Book a table for four.")]
    summary = summarize(contents, max_tokens=100, counter=COUNTER)
    assert summary.splitlines() == ["- user: Book a table for four.", "- messages left out: 2"]


@pytest.mark.parametrize("text", ["Yes, Bern.", "5", "Make it blue.", "Undo that!", "Отмени заказ!", "取消订单"])
def test_a_short_answer_or_wish_is_a_bullet(text: str) -> None:
    assert summarize([said(text)], max_tokens=100, counter=COUNTER) == f"- user: {text}"


def test_a_bullet_begins_with_what_a_message_tells() -> None:
    made = summarize([said("Hey Ann! Good to see you. I moved to Bern. Nice!")], max_tokens=100, counter=COUNTER)
    assert made == "- user: I moved to Bern. Nice!"


def test_where_room_is_short_what_tells_a_number_a_name_a_date_or_a_wish_comes_first() -> None:
    telling = ["The rent is 1200.", "We met Priya there.", "I leave next week.", "We decided to wait.", "I want a dog."]
    chatter = "It rained and the street was empty and everybody was inside"
    contents = [said(text) for fact in telling for text in (fact, *[chatter] * 4)]
    summary = summarize(contents, max_tokens=100, counter=COUNTER)
    assert [f"- user: {fact}" for fact in telling] == [line for line in summary.splitlines() if chatter not in line][:5]


def test_what_is_sent_beside_a_summary_is_not_in_it() -> None:
    contents = [said("My dog is called Rex."), said("I live in Bern.")]
    beside = "- 8 May 2023, user: My dog is called Rex."
    summary = summarize(contents, max_tokens=100, counter=COUNTER, sent_text=beside)
    assert summary.splitlines() == ["- user: I live in Bern.", "- messages left out: 1"]


@pytest.mark.slow
def test_a_cut_quotes_no_turn_that_is_recalled_at_that_call() -> None:
    chat = Chat(script=["Noted."] * 200, policy=PackPolicy(max_input_tokens=4_000))
    for number in range(120):
        chat.say(f"Room {number} is painted in colour {number}. Is it like room {number - 1} and room {number - 9}?")
    bullets = []
    for manifest, sent in zip(chat.manifests(), chat.sent, strict=True):
        if any(event.stage == "cut" for event in manifest.truncation_events):
            summary, _, memory = sent.text.partition(summary_message(""))[2].partition("MEMORY:\n")
            bullets += (new := [line[8:] for line in summary.splitlines() if line.startswith("- user: ")])
            assert "Room" in memory.partition("USER REQUEST")[0]
            assert not [line for line in new if line in memory]
    assert bullets
    chat.replays()
