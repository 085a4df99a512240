"""The hybrid index: what it finds, forgets and masks."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aether_context.errors import EmbeddingError, PolicyError, SearchIndexError
from aether_context.pack import RECALLED, Candidate
from aether_context.policy import PackPolicy
from aether_context.redaction import masker
from aether_context.retrieval import Entry, HybridIndex, retrieve
from aether_context.retrieval.embedders import unit

DAY = 86_400.0


class Fake:
    """Each word is a dimension; words of one group are the same one."""

    name = "fake"
    groups = ("red crimson", "door entrance", "blue azure", "car automobile")

    def __init__(self, *, local=True):
        self.local = local
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


@pytest.fixture(scope="module")
def many():
    """Three thousand texts in threads, some of them forgotten."""
    rng = np.random.default_rng(0)
    words = re.findall(
        r"\w+",
        """garden river bridge market winter letter engine doctor music history window forest silver kitchen travel
        lesson paper ocean candle village number painter summer bread captain mirror battle friend""",
    )
    texts = [" ".join(rng.choice(words, size=rng.integers(4, 9))) + f" {at}" for at in range(3_000)]
    index = HybridIndex()
    index.add(Entry(id=str(at), text=text, thread=f"t{at // 15}") for at, text in enumerate(texts))
    index.remove([str(at) for at in range(0, 3_000, 7)])
    return index, texts


def test_what_was_removed_from_a_large_index_takes_nobodys_place(many):
    index, texts = many
    fresh = HybridIndex()
    fresh.add(Entry(id=str(at), text=text, thread=f"t{at // 15}") for at, text in enumerate(texts) if at % 7)
    for query in texts[::199]:
        assert index.search(query) == fresh.search(query)


def ids(hits):
    return [hit.id for hit in hits]


TEXTS = {"a": "the red door", "b": "the blue door", "c": "a fast car", "d": "nothing of note"}


@pytest.fixture
def index():
    return HybridIndex.from_texts(list(TEXTS), list(TEXTS.values()), embedder=Fake())


def test_meaning_finds_what_words_do_not(index):
    assert ids(index.search("crimson entrance"))[0] == "a"
    assert ids(HybridIndex.from_texts(list(TEXTS), list(TEXTS.values()), embedder="none").search("crimson")) == []


def test_words_find_what_meaning_does_not(index):
    (hit,) = index.search("note", limit=1)
    assert (hit.id, hit.text) == ("d", "nothing of note")
    assert hit.scores["semantic"] == 0 < hit.scores["lexical"]


def test_scores_add_up(index):
    for hit in index.search("red automobile door"):
        made = 0.6 * hit.scores["lexical"] + 0.4 * hit.scores["semantic"]
        assert hit.score == pytest.approx(made + hit.scores["neighbours"], abs=1e-5)


def test_equal_scores_are_ordered_by_id():
    index = HybridIndex.from_texts(["z", "y", "x"], ["same text"] * 3, embedder="none")
    assert ids(index.search("same", limit=2)) == ["x", "y"]


def test_a_query_of_identifiers_leans_on_words():
    index = HybridIndex.from_texts(["a", "b"], ["red_door.py", "crimson entrance"], embedder=Fake())
    hits = index.search("red_door.py")
    assert ids(hits) == ["a"]
    assert hits[0].score == pytest.approx(hits[0].scores["lexical"], abs=1e-6)


def test_what_either_words_or_meaning_find_is_found(index):
    assert set(ids(index.search("note crimson"))) >= {"a", "d"}


def test_neighbours_lend_their_scores():
    talk = ["Did you find the keys?", "Yes, under the sofa.", "Good.", "What about lunch?", "Soup."]
    index = HybridIndex("none")
    index.add(Entry(id=str(n), text=text, thread="talk") for n, text in enumerate(talk))
    index.add([Entry(id="alone", text="Soup of the day")])
    assert ids(index.search("keys"))[:2] == ["0", "1"]
    index.remove(["1"])
    assert ids(index.search("keys"))[:2] == ["0", "2"]


def test_threads_do_not_lend_to_each_other():
    index = HybridIndex("none")
    index.add([Entry(id="a", text="keys", thread="one"), Entry(id="b", text="soup", thread="two")])
    assert ids(index.search("keys")) == ["a"]


def test_a_speaker_is_found_by_name():
    index = HybridIndex("none")
    index.add([Entry(id="a", text="I like soup", speaker="Ann"), Entry(id="b", text="I like soup", speaker="Ben")])
    assert ids(index.search("What does Ben like?"))[0] == "b"


def test_a_named_time_decides_among_equals():
    index = HybridIndex.from_texts(["a", "b"], ["we had soup"] * 2, [0.0, 40 * DAY], embedder="none")
    (first, second) = index.search("soup in February 1970", asked=365 * DAY)
    assert (first.id, second.id) == ("b", "a")
    assert first.scores["time"] > second.scores["time"]


def test_a_question_for_the_latest_finds_it():
    index = HybridIndex.from_texts(["a", "b"], ["the price is 3", "the price is 4"], [0.0, 90 * DAY], embedder="none")
    assert ids(index.search("price")) == ["a", "b"]
    assert ids(index.search("latest price")) == ["b", "a"]


def test_what_is_removed_is_not_found(index):
    index.remove(["a", "unknown"])
    assert len(index) == 3
    assert "a" not in ids(index.search("red door"))


def test_an_id_that_is_there_is_replaced(index):
    index.add_texts(["a"], ["a green window"])
    assert len(index) == 4
    assert "a" not in ids(index.search("red"))
    assert [(hit.id, hit.text) for hit in index.search("window")] == [("a", "a green window")]


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (lambda index: index.add_texts(["x", "x"], ["1", "2"]), "'x' is there twice"),
        (lambda index: index.add_texts(["x"], ["1", "2"]), "1, 2 and 1 items"),
        (lambda index: index.add_texts(["x"], ["1"], [float("nan")]), "time nan of entry 'x'"),
    ],
)
def test_what_an_index_does_not_take(index, add, says):
    with pytest.raises(SearchIndexError, match=says):
        add(index)
    assert len(index) == 4


def test_an_unknown_embedder_is_named_with_the_nearest():
    with pytest.raises(PolicyError, match="did you mean 'static'"):
        HybridIndex("statik")


def test_a_service_that_is_down_gives_way_to_static_vectors():
    service = Fake(local=False)
    index = HybridIndex(service)
    index.add_texts(["a"], ["the red door"])
    service.fails = True
    index.add_texts(["b"], ["an automobile on the street"])
    assert ids(index.search("vehicle", limit=1)) == ["b"]
    service.fails = False
    assert ids(index.search("crimson", limit=1)) == ["a"]
    assert ids(index.search("car", limit=1)) == ["b"]


def test_a_local_embedder_that_fails_adds_nothing():
    broken = Fake()
    index = HybridIndex(broken)
    broken.fails = True
    with pytest.raises(EmbeddingError):
        index.add_texts(["a"], ["red"])
    assert len(index) == 0


FILLER = "Nothing here is about it. " * 30
LONG = f"A house\n{FILLER}The crimson entrance is locked at night.\n{FILLER}"
OTHER = f"A garden\n{FILLER}Trees grow.\n{FILLER}An entrance. {FILLER}A crimson rose. {FILLER}"
operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove"]), st.integers(0, 8), st.sampled_from(["red door", "car", "blue", "", LONG])
    ),
    max_size=40,
)


def test_a_long_text_is_found_by_one_place():
    """By its whole either page says the same of both words, and the shorter one less of others."""
    texts = [LONG + 4 * FILLER, OTHER]
    whole = HybridIndex("none", passages=False)
    whole.add_texts(["a", "b"], texts)
    assert ids(whole.search("crimson entrance")) == ["b", "a"]
    hits = HybridIndex.from_texts(["a", "b"], texts, embedder="none").search("crimson entrance")
    assert ids(hits) == ["a", "b"]
    for hit in hits:
        made = 0.5 * hit.scores["lexical"] + 0.5 * hit.scores["passages"]
        assert hit.score == pytest.approx(made, abs=1e-5)


def test_a_title_belongs_to_each_passage():
    texts = [f"Gold card\n{FILLER}The fee is 3 euros.", f"Silver card\n{FILLER}The fee is 4 euros."]
    index = HybridIndex.from_texts(["gold", "silver"], [f"{text}\n{FILLER}" for text in texts], embedder="none")
    for name in ("gold", "silver"):
        first, second = index.search(f"fee of the {name} card")
        assert first.id == name
        assert first.scores["passages"] > 1.3 * second.scores["passages"]


def test_short_texts_score_as_they_do_without_passages():
    texts = {**TEXTS, "e": "word " * 120}
    by_passages, whole = HybridIndex(Fake()), HybridIndex(Fake(), passages=False)
    for index in (by_passages, whole):
        index.add_texts(list(texts), list(texts.values()))
    for query in ("crimson entrance", "note word", "car"):
        assert by_passages.search(query) == whole.search(query)


def test_an_embedder_that_fails_at_passages_leaves_the_index_as_it_was():
    class FailsLater(Fake):
        fails_at = 0

        def embed(self, texts, *, purpose="entry"):
            self.fails_at -= 1
            self.fails = self.fails_at == 0
            return super().embed(texts, purpose=purpose)

    embedder = FailsLater()
    index = HybridIndex.from_texts(["a"], ["red door"], embedder=embedder)
    before = index.search("crimson door")
    embedder.fails_at = 2
    with pytest.raises(EmbeddingError):
        index.add_texts(["a", "b"], [LONG, OTHER])
    assert index.search("crimson door") == before
    index.add_texts(["a", "b"], [LONG, OTHER])
    fresh = HybridIndex.from_texts(["a", "b"], [LONG, OTHER], embedder=Fake())
    assert index.search("crimson door") == fresh.search("crimson door")


@settings(max_examples=60)
@given(operations)
def test_an_index_is_the_same_however_it_came_to_be(steps):
    index, held = HybridIndex(Fake()), {}
    for act, number, text in steps:
        name = f"e{number}"
        held.pop(name, None)
        if act == "add":
            held[name] = text
            index.add_texts([name], [text])
        else:
            index.remove([name])
    fresh = HybridIndex.from_texts(list(held), list(held.values()), embedder=Fake())
    for query in ("crimson car", "door", "azure"):
        assert index.search(query) == fresh.search(query)


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


@pytest.mark.parametrize(("wrong", "told"), [("[", "neither a name nor"), ("emial", "is no name"), ("x*", "empty")])
def test_a_pattern_that_is_none_is_named(wrong, told):
    with pytest.raises(PolicyError, match=told) as raised:
        PackPolicy(redact=[wrong])
    assert raised.value.field == "redact"
    assert repr(wrong) in str(raised.value)
    with pytest.raises(PolicyError, match=r"redact_prompt = true needs redact"):
        PackPolicy(redact_prompt=True)


def test_a_policy_masks_what_a_pack_is_ranked_by():
    candidate = Candidate(id="a", layer="memory", source=RECALLED, text="ann@example.com has the door", digest="d")
    for patterns, found in (((), 1), (("email",), 0)):
        chosen = retrieve([candidate], "example", k=5, settings=PackPolicy().retrieval, redact=patterns).chosen
        assert len(chosen) == found


def test_what_is_masked_is_neither_embedded_nor_found(tmp_path):
    embedder = Fake()
    index = HybridIndex(embedder, redact=masker(["email"]))
    index.add_texts(["a"], ["ann@example.com has the red door"])
    assert ids(index.search("ann@example.com")) == ["a"]  # by the mask, which any address finds
    assert index.search("ann example") == []
    assert not any("@" in text for text in embedder.seen)
    index.remove(["a"])
    assert index.search("red door") == []
