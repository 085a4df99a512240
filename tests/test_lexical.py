"""Terms, BM25, pools of texts, and dates in questions."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_bm25 import BM25Plus

from aether_context.retrieval import Entry
from aether_context.retrieval import pool as pools
from aether_context.retrieval.embedders import StaticEmbedder, quantized, vectors_of
from aether_context.retrieval.pool import Pool, bm25, packed
from aether_context.retrieval.terms import (
    asks_for_recent,
    closeness,
    hash_of,
    hashed,
    identifiers,
    named_times,
    query_terms,
    terms,
)


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


STEMS = """at=at sky=sky news=news early=earli dying=die tied=tie cries=cri misses=miss gas=gas gaps=gap status=status
    agreed=agre feed=feed succeed=succeed evening=evening hopping=hop hoping=hope adding=add luxuriated=luxuri owed=owe
    cry=cri by=by youth=youth conditional=condit valency=valenc authorization=author operator=oper feudalism=feudal
    analogously=analog analogist=analog geology=geolog fearlessly=fearless quickly=quick triplicate=triplic paste=paste
    formalize=formal goodness=good replacement=replac adoption=adopt communion=communion rate=rate cease=ceas
    controlled=control roll=roll"""


@pytest.mark.parametrize("pair", STEMS.split())
def test_stems_of_english(pair):
    word, stem = pair.split("=")
    assert terms(word) == [stem]


@given(st.text(st.one_of(st.characters(max_codepoint=127), st.sampled_from("aB1_./:-@# "))))
def test_ascii_has_the_terms_that_it_has_beside_other_letters(text):
    assert [*terms(text), "é"] == terms(f"{text} é")


def test_an_underscored_name_is_found_by_its_parts_and_by_itself():
    assert set(query_terms("input tokens")) <= set(terms("max_input_tokens"))
    assert "max_input_tokens" in query_terms("what is max_input_tokens?")


def test_a_query_drops_stop_words_unless_there_is_nothing_else():
    assert query_terms("When did I go to the parks?") == ["go", "park"]
    assert query_terms("what is it") == ["is", "it", "what"]


def test_identifiers():
    assert identifiers("call getUserName in foo.py for order-1234, well-known, 123") == [
        "getUserName",
        "foo.py",
        "order-1234",
    ]


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


def test_bm25_agrees_with_rank_bm25_for_long_queries():
    texts = [[f"w{at * step % 97}" for step in range(1, 30)] for at in range(50)]
    query = sorted({word for text in texts for word in text})
    assert len(query) > 90
    assert scores(texts, query) == pytest.approx(reference(texts, query), abs=1e-9)


def test_texts_of_no_words_score_nothing_and_nor_does_no_text():
    assert scores([], ["a"]).tolist() == []
    assert scores([[]], ["a"]).tolist() == [0.0]
    first, second, third = scores([[], ["a", "b"], []], ["a", "c"])
    assert (first, third) == (0, 0) < (second, 1)


@given(documents, st.data())
def test_a_pool_is_the_same_however_it_came_to_be(texts, data):
    def extend(pool, some):
        said = [" ".join(text) for text in some]
        times, threads = [float(len(text)) for text in some], [len(text) % 3 - 1 for text in some]
        pool.extend(list(map(hashed, said)), vectors_of(StaticEmbedder(), said), times, threads)

    pool, fresh = Pool(), Pool()
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(texts), max_size=len(texts))))
    extend(pool, texts)
    pool.keep(kept)
    extend(pool, texts[:3])
    extend(fresh, [text for text, is_kept in zip(texts, kept, strict=True) if is_kept] + texts[:3])
    asked = vectors_of(StaticEmbedder(), ["w1 w2 w3"], "query")

    def found(pool):
        alone, parts = pool.answers("w1 w2 w3", asked)
        return pool.ranked("w1 w2 w3", 5, lambda at: [Entry(id=str(one), text="") for one in at], alone, parts)

    assert found(pool) == found(fresh)


vectors = st.lists(st.lists(st.floats(-1, 1, allow_nan=False), min_size=6, max_size=6), min_size=1, max_size=20).map(
    lambda rows: np.array(rows, dtype=np.float32)
)


def cosines(rows, query):
    pool = Pool()
    pool.extend([b""] * len(rows), quantized(rows), [None] * len(rows), [-1] * len(rows))
    _, parts = pool.answers("", quantized(query[None, :]))
    return parts["cosine"]


@given(vectors)
def test_similarities_are_near_the_cosine(rows):
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    found = cosines(rows, rows[0])
    for row, length, similarity in zip(rows, lengths, found, strict=True):
        if length > 1e-30 and lengths[0] > 1e-30:
            cosine = float(row.astype(np.float64) @ rows[0] / length / lengths[0])
            assert similarity == pytest.approx(cosine, abs=0.03)
        else:
            assert abs(similarity) <= 1.0000001


def test_similarities_do_not_depend_on_the_order_of_dimensions():
    rows = np.random.default_rng(0).normal(size=(500, 384)).astype(np.float32)
    assert (cosines(rows, rows[0]) == cosines(rows[:, ::-1], rows[0][::-1])).all()


def seconds(*date):
    return datetime.datetime(*date, tzinfo=datetime.UTC).timestamp()


@pytest.mark.parametrize(
    ("question", "start", "end"),
    [
        ("dinner on May 3, 2023?", (2023, 5, 3), (2023, 5, 4)),
        ("on the 7th of May 2023", (2023, 5, 7), (2023, 5, 8)),
        ("since 2023-02-28", (2023, 2, 28), (2023, 3, 1)),
        ("in July?", (2023, 7, 1), (2023, 8, 1)),
        ("in December", (2022, 12, 1), (2023, 1, 1)),
        ("during summer of 2022", (2022, 6, 1), (2022, 9, 1)),
        ("the winter of 2022", (2022, 12, 1), (2023, 3, 1)),
        ("what happened in 2021", (2021, 1, 1), (2022, 1, 1)),
        ("yesterday", (2023, 10, 21), (2023, 10, 22)),
        ("today", (2023, 10, 22), (2023, 10, 23)),
        ("last week", (2023, 10, 15), (2023, 10, 22)),
        ("where was I in may?", (2023, 5, 1), (2023, 6, 1)),
        ("In May I moved. Where to?", (2023, 5, 1), (2023, 6, 1)),
        ("what did we say last May about the car", (2023, 5, 1), (2023, 6, 1)),
        ("the trip of early-march, the long one", (2023, 3, 1), (2023, 4, 1)),
        ("what was planned for 5 may", (2023, 5, 5), (2023, 5, 6)),
        ("the 5th of may we met", (2023, 5, 5), (2023, 5, 6)),
        ("on may 5th somebody came", (2023, 5, 5), (2023, 5, 6)),
        ("may 2022", (2022, 5, 1), (2022, 6, 1)),
        ("in Dec I was ill", (2022, 12, 1), (2023, 1, 1)),
    ],
)
def test_times_that_a_question_names(question, start, end):
    (span,) = named_times(question, asked=seconds(2023, 10, 22, 15))
    assert (span.start, span.end) == (seconds(*start), seconds(*end))


@pytest.mark.parametrize(
    "question",
    [
        "May I ask?",
        "march on",
        "who?",
        "call 555",
        f"{'9' * 5_000} days ago",
        "Which of these 5 may leave?",
        "this may be wrong",
        "you may 3 times retry",
        "May 3 people come along?",
        "If I arrive late may I still come?",
        "the room that I am in may be too small",
        "march or bus?",
        "march 5 miles a day",
        "a scratch may mar 2 doors",
        "hex 0c, dec 12 bytes",
        "a second on sat and sun",
        "they march 10 abreast",
        "prices fall, sales spring up",
    ],
)
def test_questions_without_a_time(question):
    assert named_times(question, asked=seconds(2023, 10, 22)) == ()


def test_what_is_said_after_a_time_agrees_less_the_later_it_is():
    (span,) = named_times("on May 3, 2023", asked=seconds(2023, 10, 22))
    times = np.array([seconds(2023, 5, 2), seconds(2023, 5, 3), seconds(2023, 5, 18), seconds(2023, 9, 1), np.nan])
    found = closeness(times, [span])
    assert found[0] == found[4] == 0
    assert found[1] == 1
    assert found[2] == pytest.approx(0.5)
    assert 0.5 > found[3] > 0


def test_questions_for_the_latest():
    assert asks_for_recent("What is the latest price?")
    assert not asks_for_recent("What was the first price?")
