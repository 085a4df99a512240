"""Terms, BM25, pools of texts, and dates in questions."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_bm25 import BM25Plus

from aether_context.retrieval import pool as pools
from aether_context.retrieval.pool import bm25, packed
from aether_context.retrieval.terms import hash_of, named_times, terms


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The doors were running", ["the", "door", "were", "run"]),
        ("getUserName()", ["getusername", "get", "user", "name"]),
        ("HTTPServer", ["httpserver", "http", "server"]),
        ("max_input_tokens", ["max_input_tokens", "max", "input", "token"]),
        ("src/auth/store.py", ["src/auth/store.py", "src", "auth", "store", "py"]),
        ("well-known", ["well", "known"]),
        ("ann@example.com", ["ann@example.com", "ann", "exampl", "com"]),
        ("8f14e45f-ceea-467f-a8e1-0123456789ab", ["8f14e45f-ceea-467f-a8e1-0123456789ab", "8f14e45f", "ceea", "467f",
                                                  "a8e1", "0123456789ab"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("한국어 책", ["한국", "국어", "책"]),
        ("книги книга", ["книг", "книг"]),
        ("", []),
    ],
)  # fmt: skip
def test_terms(text, expected):
    assert terms(text) == expected


words = st.sampled_from([f"w{n}" for n in range(12)])
documents = st.lists(st.lists(words, min_size=1, max_size=12), min_size=1, max_size=30)


def reference(texts, query):
    return BM25Plus(texts, k1=pools.K1, b=pools.B, delta=0).get_scores(query)


def scores(texts, query):
    found, _ = bm25(query, *packed([b"".join(map(hash_of, text)) for text in texts]))
    return found


@given(documents, st.lists(words, min_size=1, max_size=6, unique=True))
def test_bm25_agrees_with_rank_bm25(texts, query):
    known = [word for word in query if any(word in text for text in texts)]
    assert scores(texts, query) == pytest.approx(reference(texts, known), abs=1e-9)


def seconds(*date):
    return datetime.datetime(*date, tzinfo=datetime.UTC).timestamp()


@pytest.mark.parametrize(
    ("question", "start", "end"),
    [
        ("dinner on May 3, 2023?", (2023, 5, 3), (2023, 5, 4)),
        ("on the 7th of May 2023", (2023, 5, 7), (2023, 5, 8)), ("since 2023-02-28", (2023, 2, 28), (2023, 3, 1)),
        ("in July?", (2023, 7, 1), (2023, 8, 1)), ("in December", (2022, 12, 1), (2023, 1, 1)),
        ("during summer of 2022", (2022, 6, 1), (2022, 9, 1)), ("the winter of 2022", (2022, 12, 1), (2023, 3, 1)),
        ("what happened in 2021", (2021, 1, 1), (2022, 1, 1)), ("yesterday", (2023, 10, 21), (2023, 10, 22)),
        ("today", (2023, 10, 22), (2023, 10, 23)), ("last week", (2023, 10, 15), (2023, 10, 22)),
        ("where was I in may?", (2023, 5, 1), (2023, 6, 1)),
        ("In May I moved. Where to?", (2023, 5, 1), (2023, 6, 1)),
        ("what did we say last May about the car", (2023, 5, 1), (2023, 6, 1)),
        ("the trip of early-march, the long one", (2023, 3, 1), (2023, 4, 1)),
        ("what was planned for 5 may", (2023, 5, 5), (2023, 5, 6)),
        ("the 5th of may we met", (2023, 5, 5), (2023, 5, 6)),
        ("on may 5th somebody came", (2023, 5, 5), (2023, 5, 6)), ("may 2022", (2022, 5, 1), (2022, 6, 1)),
        ("in Dec I was ill", (2022, 12, 1), (2023, 1, 1)),
    ],
)  # fmt: skip
def test_times_that_a_question_names(question, start, end):
    (span,) = named_times(question, asked=seconds(2023, 10, 22, 15))
    assert (span.start, span.end) == (seconds(*start), seconds(*end))


@pytest.mark.parametrize(
    "question",
    [
        "May I ask?", "march on", "who?", "call 555", f"{'9' * 5_000} days ago", "Which of these 5 may leave?",
        "this may be wrong", "you may 3 times retry", "May 3 people come along?",
        "If I arrive late may I still come?", "the room that I am in may be too small", "march or bus?",
        "march 5 miles a day", "a scratch may mar 2 doors", "hex 0c, dec 12 bytes", "a second on sat and sun",
        "they march 10 abreast", "prices fall, sales spring up",
    ],
)  # fmt: skip
def test_questions_without_a_time(question):
    assert named_times(question, asked=seconds(2023, 10, 22)) == ()
