"""The hybrid index: what it finds, forgets and masks."""

from __future__ import annotations

import numpy as np
import pytest

from aether_context.errors import EmbeddingError, PolicyError, SearchIndexError
from aether_context.pack import RECALLED, Candidate
from aether_context.policy import PackPolicy
from aether_context.redaction import masker
from aether_context.retrieval import Entry, HybridIndex, ranked, retrieve
from aether_context.retrieval.embedders import unit

DAY = 86_400.0


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
    entries = [Entry(id=str(n), text=text, thread="talk") for n, text in enumerate(talk)]
    index = HybridIndex([*entries, Entry(id="alone", text="Soup of the day")], "none")
    assert ids(index.search("keys")) == ["0", "1", "2", "3"]


def test_threads_do_not_lend_to_each_other():
    index = HybridIndex([Entry(id="a", text="keys", thread="one"), Entry(id="b", text="soup", thread="two")], "none")
    assert ids(index.search("keys")) == ["a"]


def test_a_speaker_is_found_by_name():
    index = HybridIndex.from_texts(["a", "b"], ["I like soup"] * 2, embedder="none", speakers=["Ann", "Ben"])
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


def test_an_unknown_embedder_is_named_with_the_nearest():
    with pytest.raises(PolicyError, match="did you mean 'static'"):
        HybridIndex([], "statik")


def test_an_embedder_that_fails_says_so(index):
    index._embedder.fails = True
    with pytest.raises(EmbeddingError, match="embedder fake: EmbeddingError"):
        index.search("crimson")
    with pytest.raises(EmbeddingError, match="1 vectors came back for 2 texts"):
        HybridIndex.from_texts(["a", "b"], ["red", "blue"], embedder=TooFew())


class TooFew(Fake):
    """Forgets a text."""

    def embed(self, texts, *, purpose="entry"):
        return super().embed(texts[1:], purpose=purpose)


FILLER = "Nothing here is about it. " * 30
LONG = f"A house\n{FILLER}The crimson entrance is locked at night.\n{FILLER}"
OTHER = f"A garden\n{FILLER}Trees grow.\n{FILLER}An entrance. {FILLER}A crimson rose. {FILLER}"


def test_a_long_text_is_found_by_one_place():
    """By its whole either page says the same of both words, and the shorter one less of others."""
    texts = [LONG + 4 * FILLER, OTHER]
    whole = HybridIndex(map(entry, "ab", texts), "none", passages=False)
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
    by_passages, whole = (HybridIndex(map(entry, texts, texts.values()), Fake(), passages=cut) for cut in (True, False))
    for query in ("crimson entrance", "note word", "car"):
        assert by_passages.search(query) == whole.search(query)


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
        scored = ranked([candidate], "example", asked=0.0, embedder=None, redact=patterns)
        chosen = retrieve(scored, k=5, settings=PackPolicy().retrieval).chosen
        assert len(chosen) == found


def test_what_is_masked_is_neither_embedded_nor_found():
    embedder = Fake()
    index = HybridIndex([entry("a", "ann@example.com has the red door")], embedder, redact=masker(["email"]))
    assert ids(index.search("ann@example.com")) == ["a"]  # by the mask, which any address finds
    assert index.search("ann example") == []
    assert not any("@" in text for text in embedder.seen)
