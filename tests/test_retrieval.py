"""Embedders, terms, BM25, and dates in questions."""

from __future__ import annotations

import datetime
import importlib
import random
import re
import sys
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_bm25 import BM25Plus
from timing import lines_of

from aether_context.errors import MissingExtra, PolicyError
from aether_context.retrieval import HybridIndex, register_embedder
from aether_context.retrieval.embedders import (
    CachedEmbedder,
    StaticEmbedder,
    _Model,
    _model,
    embedder_for,
    identity,
    unit,
)
from aether_context.retrieval.terms import named_times, query_terms, terms

ROOT = Path(__file__).parents[1]
static = StaticEmbedder()


def alike(*texts):
    vectors = static.embed(texts).astype(np.float64)
    return float(vectors[0] @ vectors[1])


def test_vectors_have_length_one_or_zero():
    vectors = static.embed(["how to renew a passport", "", "a\ud800b"])
    assert vectors.shape == (3, 256)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 0, 1], abs=1e-6)
    assert static.embed([]).shape == (0, 256)


def test_what_means_the_same_is_nearer_than_what_does_not():
    assert alike("the car is broken", "my automobile does not work") > 0.35
    assert alike("the car is broken", "a recipe for tomato soup") < 0.2
    assert alike("How old are you?", "What is your age?") > alike("How old are you?", "Where is the station?")


def test_the_same_bits_on_every_machine():
    vector = static.embed(["Same input, same bytes."])[0]
    assert static.name == "static-9289aead77ec"
    assert vector.tobytes() == static.embed(["other", "Same input, same bytes."])[1].tobytes()
    assert vector[:4].tolist() == [0.29898306727409363, 0.06013067439198494, 0.2438632994890213, 0.08685541898012161]


class Counting:
    name = "counting"

    def __init__(self):
        self.asked = []

    def embed(self, texts, *, purpose="entry"):
        self.asked.append((tuple(texts), purpose))
        return unit(np.array([[len(text), 1.0] for text in texts]).reshape(len(texts), 2))


def test_what_was_embedded_is_remembered():
    inner = Counting()
    cached = CachedEmbedder(inner, max_texts=2)
    first = cached.embed(["a", "bb", "a"])
    assert (first == cached.embed(["a", "bb", "a"])).all()
    cached.embed(["a"], purpose="query")
    assert inner.asked == [(("a", "bb"), "entry"), (("a",), "query")]
    cached.embed(["a"])  # forgotten: room for two, and "bb" and the query came after it
    assert inner.asked[-1] == (("a",), "entry")


def test_an_index_finds_the_same_by_vectors_that_were_remembered():
    texts = ["a red door", "the tax law of 1971", "a dog is called Rex"]
    cached = CachedEmbedder(static)
    plain, first, again = (
        HybridIndex.from_texts(["a", "b", "c"], texts, embedder=embedder).search("What is my dog called?", every=True)
        for embedder in (static, cached, cached)
    )
    assert plain == first == again
    assert plain[0].scores["cosine"] > 0


def test_embedders_by_name():
    assert embedder_for("none") is None
    assert embedder_for(None).name == embedder_for("static").name == static.name
    register_embedder("mine", Counting())
    assert embedder_for("mine").name == "counting"
    register_embedder("mine", SimpleNamespace(embed=static.embed))
    assert embedder_for("mine").name == "mine"
    for name in ("", "static", "sentence-transformers:my/model"):
        with pytest.raises(PolicyError, match="empty or taken"):
            register_embedder(name, static)


def test_a_model_in_a_folder_is_known_by_what_is_in_it(tmp_path):
    folders = [tmp_path / place / "mini" for place in ("a", "b", "c")]
    for folder, end in zip(folders, (b"1", b"1", b"2"), strict=True):
        (folder / "pooling").mkdir(parents=True)
        (folder / "pooling" / "config.json").write_text("{}")
        (folder / "weights").write_bytes(bytes(3 * 2**20) + end)
    names = [identity(str(folder)) for folder in folders]
    assert names[0] == names[1] != names[2]
    assert re.fullmatch(r"mini@[0-9a-f]{12}", names[0])
    assert identity("some/model") == "some/model"


@pytest.mark.skipif(find_spec("sentence_transformers") is not None, reason="it is installed")
def test_a_missing_library_says_how_to_install_it():
    with pytest.raises(MissingExtra, match=r"aether-context-adk\[sentence-transformers\]"):
        embedder_for("sentence-transformers:some/model")


VOCABULARY = ["[UNK]", "[PAD]", "the", "car", "automobile", "is", "broken", "soup", "##s", "["]


@pytest.fixture
def distill(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "tables"))
    return importlib.import_module("distill")


def test_the_table_that_is_written_is_the_model_that_is_read(distill: ModuleType, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(len(VOCABULARY), 8)).astype(np.float32)
    distill.write(table, VOCABULARY, tmp_path / "out" / "static.npz")
    model = _Model((tmp_path / "out" / "static.npz").read_bytes())
    assert model.rows.dtype == np.int8
    assert not model.rows[:2].any(), "special entries say nothing"
    assert model.rows[VOCABULARY.index("[")].any()
    (sums,) = model.sums(["The soups"])
    assert (sums == model.rows[[2, 7, 8]].astype(int).sum(axis=0)).all()
    wanted = table[[2, 7, 8]].sum(axis=0)
    assert sums @ wanted / np.linalg.norm(sums) / np.linalg.norm(wanted) == pytest.approx(1, abs=0.02)


@pytest.fixture(scope="module")
def library_tokens():
    """The numbers of a text's tokens by the library that the teacher was read with."""
    tokenizers = pytest.importorskip("tokenizers", reason="needs the extra tokenizers")
    numbers = {token: number for number, token in enumerate(_model().vocabulary)}
    reader = tokenizers.Tokenizer(tokenizers.models.WordPiece(numbers, unk_token="[UNK]"))
    reader.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    reader.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return lambda texts: [found.ids for found in reader.encode_batch_fast(texts, add_special_tokens=False)]


@given(st.lists(st.text(st.one_of(st.characters(), st.sampled_from("aé,- \t\n\r\f\x1c\x85\xa0\u0301\u2028\u3000中")))))
def test_a_text_has_the_vector_of_its_tokens_whatever_stands_between_its_words(library_tokens, texts):
    model = _model()
    sound = [re.sub("[\ud800-\udfff]", "\ufffd", text) for text in texts]
    sums = [model.rows[ids].sum(axis=0, dtype=np.int64) for ids in library_tokens(sound)]
    assert model.sums(texts).tolist() == [row.tolist() for row in sums]


def test_words_are_taken_apart_as_by_the_library(library_tokens):
    rng, characters = random.Random(0), [*map(chr, range(0xD800)), *map(chr, range(0xE000, 0x32000))]
    letters = "etaoin shrdlu .,'-0189ÄÖéñßΣσ\t\r\n\x0b\x1c\u3000\ufffd"
    texts = [
        "".join(rng.choice(letters if at % 3 else characters) for at in range(rng.randrange(30))) for _ in range(3_000)
    ]
    words = " ".join(path.read_text("utf-8") for path in sorted(ROOT.glob("docs/*.md"))).split()
    texts += [" ".join(rng.choices(words, k=8)) for _ in range(500)] + ["x" * 99, "x" * 101, "Ⅷ’İstanbul"]
    assert [ids.tolist() for ids in _model().tokens(texts)] == library_tokens(texts)


@pytest.mark.slow
def test_every_character_is_read_as_by_the_library(library_tokens):
    words = [f"a{chr(point)}b" for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]
    texts = [" ".join(words[at : at + 64]) for at in range(0, len(words), 64)]
    assert [ids.tolist() for ids in _model().tokens(texts)] == library_tokens(texts)


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
        ("東京タワー", ["東京", "京タ", "タワ", "ワー", "東", "京"]),
        ("한국어 책", ["한국", "국어", "국", "책", "책", "책"]),
        ("차는 기차", ["차는", "차", "차", "차", "기차", "기", "차"]),
        ("この車は火車", ["この", "の車", "車は", "は火", "火車", "車", "火", "車", "車", "車"]),
        ("книги книга", ["книг", "книг"]),
        ("", []),
    ],
)  # fmt: skip
def test_terms(text, expected):
    assert terms(text) == expected


words = st.sampled_from(
    ["anvil", "bucket", "dagger", "ember", "falcon", "garnet", "harbor", "island", "jacket", "lantern"]
)
documents = st.lists(st.lists(words, min_size=1, max_size=12), min_size=1, max_size=30)


def scores(texts, query):
    """What BM25 gives each text for a query."""
    ids = [f"{at:04}" for at in range(len(texts))]
    hits = HybridIndex.from_texts(ids, list(map(" ".join, texts)), embedder="none").search(
        " ".join(query), len(texts), every=True
    )
    return [hit.scores["bm25"] for hit in sorted(hits, key=lambda hit: hit.id)]


@given(documents, st.lists(words, min_size=1, max_size=6, unique=True))
def test_bm25_agrees_with_rank_bm25(texts, query):
    known = [word for word in query if any(word in text for text in texts)]
    reference = BM25Plus(texts, k1=2.5, b=0.75, delta=0).get_scores(known)
    assert scores(texts, query) == pytest.approx(reference, abs=1e-5)


def test_words_that_a_question_repeats_count_more_but_less_and_less():
    texts = [["leave", "x"], ["court", "x"], ["gym", "x"]]
    once, twice, often = (scores(texts, ["court", *["leave"] * times])[0] for times in (1, 2, 100))
    assert once < twice < 2 * once
    assert often < 9 * once


@pytest.mark.parametrize(
    ("question", "alone", "inside"),
    [
        ("车", "我的 车 很大", "火车 很大"),
        ("차", "차는 크다", "기차는 크다"),
        ("茶", "I like 茶 very much", "I like 茶叶 very"),
    ],
)
def test_a_sign_that_is_a_word_is_found_before_one_inside_a_word(question, alone, inside):
    index = HybridIndex.from_texts(["inside", "alone"], [inside, alone])
    assert index.search(question)[0].id == "alone"


@pytest.mark.parametrize(
    ("noun", "question"),
    [
        ("Clause", "What does clause {} of the proposal say about the payment?"),
        ("Klausel", "Was sagt Klausel {} zur Zahlung?"),
        ("Статья", "Что говорится в статье {} о платежах?"),
    ],
)
def test_a_number_is_found_with_its_noun_and_not_as_one_of_days(noun, question):
    clauses = [f"{noun} {at}: party {at * 7 % 97} pays within {at * 3 % 41 + 5} days." for at in range(1, 91)]
    index = HybridIndex.from_texts([str(at) for at in range(1, 91)], clauses)
    for at in (3, 17, 29, 44):
        assert index.search(question.format(at))[0].id == str(at)


def test_a_query_that_is_a_document_takes_few_steps_for_each_of_its_words():
    query = ["".join(letters) for letters in product("bdfgklmnprstvz", repeat=3)]
    index = HybridIndex.from_texts(["all", "few"], [" ".join(query), " ".join(query[:9])], embedder="none")
    steps = lines_of(lambda: index.search(" ".join(query)))
    assert steps < 40 * len(query)


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
    (span,) = named_times(question, now=seconds(2023, 10, 22, 15))
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
    assert named_times(question, now=seconds(2023, 10, 22)) == ()


SPOKEN = {
    "zh": (
        [
            "灯坏了，要换灯泡。", "我妹妹住在杭州。", "刀在抽屉第二层。", "鞋是三十八号的。", "奶奶不能吃糖。",
            "表是爷爷送的。",
        ],
        {"刀在哪里？": 2, "鞋多大？": 3, "表是谁送的？": 5, "灯怎么了？": 0, "妹妹住在哪？": 1},
    ),
    "ja": (
        [
            "灯りが切れました。", "妹は京都に住んでいます。", "包丁は二段目です。", "靴は二十四センチです。",
            "海の写真は棚の上。",
        ],
        {"靴のサイズは？": 3, "妹はどこに住んでいる？": 1, "海の写真はどこにある？": 4, "包丁はどこですか？": 2},
    ),
    "ko": (
        [
            "불이 나갔어요.", "여동생은 부산에 살아요.", "칼은 서랍에 있어요.", "시계는 선물이에요.",
            "물은 베란다에 있어요.",
        ],
        {"칼은 어디 있나요?": 2, "여동생은 어디 살아?": 1, "물 어디 있어?": 4},
    ),
    "th": (
        ["หมาของฉันชื่อบราวนี่", "กุญแจอยู่ใต้โซฟา", "รถจอดอยู่หลังโรงพยาบาล", "ยาอยู่ในตู้เย็น"],
        {"หมาชื่ออะไร": 0, "กุญแจอยู่ที่ไหน": 1, "รถอยู่ไหน": 2, "ยาอยู่ที่ไหน": 3},
    ),
    "hi": (
        ["मेरे कुत्ते का नाम शेरू है।", "चाबी सोफे के नीचे है।", "दवा फ्रिज में है।", "छाता रवि को दिया है।"],
        {"कुत्ते का नाम क्या है?": 0, "चाबी कहाँ है?": 1, "दवा कहाँ है?": 2, "छाता किसके पास है?": 3},
    ),
    "ru": (
        ["Мою собаку зовут Рекс.", "Ключи лежат под диваном.", "Машина стоит за больницей.", "Зонт я одолжил Ивану."],
        {"Как зовут собаку?": 0, "Где мои ключи?": 1, "Где стоит машина?": 2, "У кого зонт?": 3},
    ),
    "ar": (
        ["اسم كلبي ركس.", "المفاتيح تحت الأريكة.", "السيارة خلف المستشفى.", "الدواء في الثلاجة."],
        {"ما اسم الكلب؟": 0, "أين المفاتيح؟": 1, "أين السيارة؟": 2, "أين الدواء؟": 3},
    ),
    "el": (
        ["Ο σκύλος μου λέγεται Ρεξ.", "Τα κλειδιά είναι κάτω από τον καναπέ.", "Το φάρμακο είναι στο ψυγείο."],
        {"Πώς λέγεται ο σκύλος;": 0, "Πού είναι τα κλειδιά;": 1, "Πού είναι το φάρμακο;": 2},
    ),
    "de": (
        ["Mein Hund heißt Rex.", "Die Schlüssel liegen unter dem Sofa.", "Das Auto steht hinter dem Krankenhaus."],
        {"Wie heißt der Hund?": 0, "Wo ist der Schlüssel?": 1, "Wo steht das Auto?": 2},
    ),
    "es": (
        ["Mi perro se llama Rex.", "Las llaves están debajo del sofá.", "Le presté el paraguas a Juan."],
        {"¿Cómo se llama el perro?": 0, "¿Dónde están las llaves?": 1, "¿Quién tiene el paraguas?": 2},
    ),
}  # fmt: skip


@pytest.mark.parametrize("language", SPOKEN)
def test_a_question_finds_its_answer_in_its_language(language):
    texts, questions = SPOKEN[language]
    index = HybridIndex.from_texts([str(place) for place in range(len(texts))], texts)
    assert {question: index.search(question)[0].id for question in questions} == {
        question: str(place) for question, place in questions.items()
    }


def test_a_word_of_grammar_alone_is_still_searched_by():
    assert query_terms("什么") == ["什么"]
    assert query_terms("猫叫什么") == ["叫", "叫什", "猫", "猫叫"]
