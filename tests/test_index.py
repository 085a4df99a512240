"""The hybrid index: what it finds, forgets and masks."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest

from aether_context.errors import EmbeddingError, SearchIndexError
from aether_context.redaction import masker
from aether_context.retrieval import Entry, HybridIndex
from aether_context.retrieval.embedders import unit, word_by_word


class Fake:
    """Each word is a dimension; words of one group are the same one."""

    name = "fake"
    groups = ("red crimson", "door entrance", "blue azure", "car automobile")

    def __init__(self):
        self.fails = False
        self.seen = []

    def embed(self, texts, *, purpose="entry"):
        self.seen += texts
        if self.fails:
            raise EmbeddingError(self.name, "it is down")
        rows = [
            [sum(word in group.split() for word in text.lower().split()) for group in self.groups] for text in texts
        ]
        return unit(np.array(rows, dtype=np.float64).reshape(len(texts), len(self.groups)))


def ids(hits):
    return [hit.id for hit in hits]


def entry(id, text):
    return Entry(id=id, text=text)


TEXTS = {"a": "the red door", "b": "the blue door", "c": "a fast car", "d": "nothing of note"}


@pytest.fixture
def index():
    return HybridIndex.from_texts(list(TEXTS), list(TEXTS.values()), embedder=Fake())


def test_meaning_finds_what_words_do_not(index):
    assert ids(index.search("crimson entrance"))[0] == "a"
    assert ids(HybridIndex.from_texts(list(TEXTS), list(TEXTS.values()), embedder="none").search("crimson")) == []


def test_an_embedder_needs_no_name():
    class Nameless:
        embed = Fake().embed

    index = HybridIndex.from_texts(list(TEXTS), list(TEXTS.values()), embedder=Nameless())
    assert ids(index.search("crimson entrance"))[0] == "a"


def test_meaning_counts_more_by_a_model_than_by_the_packaged_table(index):
    table = Fake()
    table.name = "static-table"
    of_table = HybridIndex.from_texts(list(TEXTS), list(TEXTS.values()), embedder=table)
    asked = "fast crimson entrance"
    scores = [{hit.id: hit.score for hit in found.search(asked)} for found in (index, of_table)]
    assert scores[0]["a"] > scores[1]["a"], "what is near in meaning"
    assert scores[0]["c"] < scores[1]["c"], "what has a word in common"


def test_words_find_what_meaning_does_not(index):
    (hit,) = index.search("note", limit=1)
    assert (hit.id, hit.text) == ("d", "nothing of note")
    assert hit.scores["semantic"] == 0 < hit.scores["lexical"]


def test_a_query_of_identifiers_leans_on_words():
    index = HybridIndex.from_texts(["a", "b"], ["red_door.py", "crimson entrance"], embedder=Fake())
    hits = index.search("red_door.py")
    assert ids(hits) == ["a"]
    assert hits[0].score == pytest.approx(hits[0].scores["lexical"], abs=1e-6)


def test_what_either_words_or_meaning_find_is_found(index):
    assert set(ids(index.search("note crimson"))) >= {"a", "d"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((["x", "x"], ["1", "2"]), "'x' is there twice"),
        ((["x"], ["1", "2"]), "1, 2, 1 and 1 items"),
        ((["x"], ["1"], [float("nan")]), "time nan of entry 'x'"),
    ],
)
def test_what_an_index_does_not_take(given, says):
    with pytest.raises(SearchIndexError, match=says):
        HybridIndex.from_texts(*given)


DOORS = ["Lock the door.", "An entrance, and a vehicle.", "We had soup.", "", "?!"]


def test_each_word_of_a_query_is_looked_for_on_its_own():
    near = word_by_word("which car by the doors", DOORS).tolist()
    assert min(near[:2]) > near[2] >= 0 == near[3] == near[4], "nobody says car or doors"
    assert word_by_word("door", DOORS)[0] > 0.9
    assert word_by_word("what is it?", DOORS).tolist() == [0.0] * 5, "words that say too little"
    assert word_by_word("door", []).tolist() == []
    assert word_by_word("ᚠᚢᚦ", ["ᚠᚢᚦ"]).tolist() == [0.0], "letters that the model does not know"


def test_a_word_counts_the_more_the_fewer_have_it():
    texts = ["a red apple", "a green car", "a red house", "red bread", "red wine"]
    near = word_by_word("red apple car", texts).tolist()
    assert near[1] > max(near[2:])


def test_what_answers_word_by_word_comes_first():
    texts = [f"The report of week {week} went out." for week in range(40)]
    index = HybridIndex.from_texts(
        ["a", "b", *map(str, range(40))], ["The physician came.", "The plumber came.", *texts]
    )
    hits = index.search("Has a doctor come?")
    assert hits[0].id == "a"
    assert hits[0].scores["words"] > hits[1].scores["words"]
    (identifier,) = HybridIndex.from_texts(["a"], ["net-0340 is up"]).search("net-0340")
    assert identifier.score == pytest.approx(identifier.scores["lexical"]), "identifiers are compared as they are"


@pytest.mark.parametrize(
    ("patterns", "text", "masked"),
    [
        (["email"], "write to ann.b+c@mail.example.com today", "write to [email] today"),
        (["phone"], "call +1 415-555-0123 now, or 2 of us", "call [phone] now, or 2 of us"),
        (["card"], "card 4111 1111 1111 1111.", "card [card]."),
        (["iban"], "to DE89 3704 0044 0532 0130 00", "to [iban]"),
        (["ip"], "host 10.0.0.12 is up", "host [ip] is up"),
        (["key"], "use sk-abcdefghijklmnop1234", "use [key]"),
        ([r"ACME-\d+", "email"], "ACME-12 of a@b.co", "[redacted] of [email]"),
        (["personal"], "call +49 170 1234567", "call [phone]"),
        (["secrets"], "postgres://ann:hunter2@db/x", "postgres://ann:[password]@db/x"),
        ([], "a@b.co", "a@b.co"),
    ],
)
def test_masks(patterns, text, masked):
    assert masker(patterns)(text) == masked


TALK = {
    "q": ("Ben", "Where did you go on holiday, Ann?"),
    "a": ("Ann", "To the mountains, for a week."),
    "b": ("Ben", "I went to the mountains, too."),
}


def spoken(times=None):
    texts, speakers = [text for _, text in TALK.values()], [speaker for speaker, _ in TALK.values()]
    return HybridIndex.from_texts(list(TALK), texts, times, embedder="none", speakers=speakers)


def test_who_is_named_in_a_question_said_the_answer():
    assert ids(spoken().search("Which mountains did ann's week have?"))[0] == "a"
    assert ids(spoken().search("Who was in the mountains, Ben?"))[0] == "b"


def test_a_question_about_oneself_asks_for_what_the_user_said():
    texts = ["My sister keeps bees.", "Your sister keeps bees, you say."]
    index = HybridIndex.from_texts(["u", "a"], texts, embedder="none", speakers=["user", "agent"])
    assert ids(index.search("What does my sister keep?"))[0] == "u"


def test_names_of_agents_that_are_plain_words_stay_words():
    texts = ["A search of the web found nothing.", "The plan is to wait."]
    index = HybridIndex.from_texts(["s", "p"], texts, embedder="none", speakers=["planner", "search"])
    hits = index.search("search the plan")
    assert set(ids(hits)) == {"s", "p"}
    assert {hit.scores["weight"] for hit in hits} == {1}


def test_lines_lend_to_each_other_in_one_talk_alone():
    near, far = spoken(), spoken([0.0, 86_400.0, 86_430.0])
    assert "a" in ids(near.search("holiday"))
    assert "a" not in ids(far.search("holiday"))


def test_a_question_for_a_time_favours_what_tells_one():
    texts = ["We saw the comet in the garden.", "We saw the comet last Tuesday."]
    index = HybridIndex.from_texts(["g", "t"], texts, embedder="none")
    assert ids(index.search("When did you see the comet?"))[0] == "t"


def test_an_index_that_grows_finds_as_one_that_is_made_at_once():
    names, speakers, threads = ("crimson", "a", "blue"), ("Ann", "Bob", "user"), (None, "a", "b")
    texts = [f"{names[at % 3]} {('entrance', 'car', 'door')[at % 7 % 3]} {at}" for at in range(30)]
    entries = [
        Entry(id=str(at), text=text, time=60.0 * at, speaker=speakers[at % 3], thread=threads[at // 2 % 3])
        for at, text in enumerate(texts)
    ]
    whole, growing = HybridIndex(entries, Fake()), HybridIndex(entries[:2], Fake())
    for entry in entries[2:]:
        growing.extend([entry])
        growing.search("crimson door")
    for query in ("crimson entrance", "the first car", "blue automobile", "Ann's entrance 7"):
        assert growing.search(query, 40) == whole.search(query, 40) != []
    with pytest.raises(SearchIndexError, match="there twice"):
        growing.extend([entries[0], entries[0]])
    assert len(growing) == len(texts)


def test_what_is_added_does_not_copy_what_is_there(index):
    index.extend(entry(f"{number}", f"door {number}") for number in range(100))
    room = index._texts.vectors.base
    index.extend([entry("last", "the entrance")])
    assert index._texts.vectors.base is room
    assert ids(index.search("entrance", 1)) == ["last"]


def test_an_index_that_grows_keeps_less_than_a_kilobyte_of_each_text():
    words = [f"{first}{second}" for first in ("mer", "tal", "vos", "kin") for second in ("an", "os", "ra", "lim")]
    draw, index = random.Random(1), HybridIndex.from_texts([], [])
    texts = [" ".join(draw.choices(words, k=20)) for _ in range(2_000)]
    entries = [entry(f"{number}", text) for number, text in enumerate(texts)]
    index.extend(entries[:100])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for start in range(100, len(entries), 100):
            index.extend(entries[start : start + 100])
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(index) == len(texts)
    assert kept < 1_000 * (len(texts) - 100), "texts and entries aside"
