"""Token counts: what holds for every text, what a table promises, and what media cost."""

from __future__ import annotations

import base64
import hashlib
import random
import struct
import subprocess
import sys
import threading
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aether_context.tokens import EstimateCounter, counter_for, family_of, media_tokens
from aether_context.tokens import estimate as tables

MODELS = ("gemini-2.5-flash", "gpt-4o", "claude-sonnet-4-5", "claude-opus-5", "some-unknown-model")
FAMILIES = ("gemini", "gemini-3", "openai", "claude", "claude-4.7", "generic")

any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=300)
lively_text = st.one_of(
    any_text,
    st.text("ab AB\n\t=-_./0123é的あ한яπ😀\u200d\u0301\ud800", max_size=200),
    st.builds(lambda piece, times: piece * times, st.text(min_size=1, max_size=4), st.integers(1, 300)),
)

ENGLISH = (
    "The harbour master keeps a ledger of every boat that enters, its owner, its cargo and the day it left again. "
)
PYTHON = 'def area(width: int, height: int) -> int:\n    """Square metres."""\n    return width * height\n\n\n'


def estimate(family: str = "gemini", max_texts: int = 100) -> EstimateCounter:
    return EstimateCounter(family, (family,), accuracy="approximate", max_texts=max_texts)


@given(st.text(st.sampled_from("ab \n.1…—’“日本語한ก🎉é"), max_size=30))
def test_a_few_strange_characters_cost_what_they_cost_among_many(text):
    many = [f"{text}…", *["日本語 한국어 — …" * 5] * 2]
    assert tables.text_costs(many, ("gemini",))[:1] == tables.text_costs(many[:1], ("gemini",))


@pytest.mark.parametrize("model", MODELS)
@given(text=lively_text)
@settings(max_examples=60)
def test_counts_every_text_and_only_the_empty_one_as_nothing(model: str, text: str) -> None:
    counted = counter_for(model).count(text)
    assert (counted == 0) == (text == "")
    assert counted <= 8 * len(text)


sentence = st.lists(st.sampled_from([*ENGLISH.split(" "), *PYTHON.split(" "), "港务长", "лодка", "12", "🙂"])).map(
    " ".join
)


@given(first=sentence, second=sentence)
@settings(max_examples=200)
def test_parts_add_up_to_the_whole(first: str, second: str) -> None:
    counter = estimate()
    apart = counter.count(first) + counter.count(second)
    assert abs(counter.count(first + second) - apart) <= 6


@given(first=lively_text, second=lively_text)
@settings(max_examples=200)
def test_a_join_changes_no_more_than_the_characters_near_it(first: str, second: str) -> None:
    counter = estimate()
    apart = counter.count(first) + counter.count(second)
    assert abs(counter.count(first + second) - apart) <= 4 * 34


@given(text=lively_text)
@settings(max_examples=100)
def test_a_longer_text_does_not_count_markedly_less(text: str) -> None:
    counter = estimate("openai")
    assert counter.count(text + text) >= counter.count(text) - 9


@given(texts=st.lists(lively_text, max_size=12))
def test_remembered_counts_equal_fresh_ones(texts: list[str]) -> None:
    cached = estimate(max_texts=3)
    assert [cached.count(text) for text in texts * 2] == [estimate().count(text) for text in texts * 2]


@given(text=st.text(st.characters(max_codepoint=127), min_size=1, max_size=400))
@settings(max_examples=200)
def test_the_short_way_for_ascii_gives_what_the_long_way_gives(text: str) -> None:
    table = tables.load_table(("gemini",))
    for chunk in tables.padded_chunks(text):
        buckets, starts, ends = tables.scan(chunk, table.known, table.letters)
        inside = [place for start, end in zip(starts, ends, strict=True) for place in range(start + 1, end)]
        costs = table.costs[buckets]
        assert tables._costs([chunk], table) == [int(costs.sum()) - int(costs[inside].sum())]


batches = st.lists(
    st.one_of(lively_text, sentence, st.builds(lambda piece, times: piece * times, lively_text, st.integers(1, 400))),
    max_size=9,
)


@pytest.mark.parametrize("family", ["gemini", "openai"])
@given(texts=batches)
@settings(max_examples=150)
def test_counting_many_at_once_gives_what_counting_one_by_one_gives(family: str, texts: list[str]) -> None:
    counter = estimate(family)
    assert counter.count_all(texts) == [counter.count(text) for text in texts]


def test_many_texts_across_the_borders_of_chunks_and_passes() -> None:
    counter = estimate()
    words = "harbour " * 5_000
    texts = [words[at : at + size] for at, size in ((3, 32_768), (0, 32_767), (1, 33_000), (5, 9), (2, 32_769))]
    texts += ["港务长" * 12_000 + ENGLISH, "", ENGLISH * 700, "é" + words, " ", "\n", "harbour"]
    assert counter.count_all(texts) == [counter.count(text) for text in texts]
    assert counter.count_all([]) == []


def test_counts_are_the_same_in_another_process() -> None:
    texts = [ENGLISH, PYTHON, "日本語のテキスト", "Привет, мир", "a" * 99, "\ud800\x00", '{"id": 17}']
    program = (
        "from aether_context.tokens import counter_for\n"
        f"print([counter_for(model).count(text) for model in {MODELS!r} for text in {texts!r}])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([counter_for(model).count(text) for model in MODELS for text in texts])


def test_importing_loads_neither_numpy_nor_google() -> None:
    program = (
        "import sys, aether_context.tokens as t\n"
        "t.counter_for('gemini-2.5-flash').accuracy\n"
        "assert not {'numpy', 'google', 'google.genai', 'genai_prices'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("text", "gemini", "openai"),
    [
        (ENGLISH * 40, 961, 961),
        (PYTHON * 40, 1_080, 960),
        ("Die Kapitänin trägt jedes Schiff in ein großes Buch ein, mit Ladung und Datum. " * 40, 761, 801),
        ("港务长把每一艘进港的船都记在账本上。" * 60, 1_020, 1_140),
        ("港長は入港するすべての船を帳簿に記録しています。" * 60, 900, 1_200),
        ("Капитан порта записывает в книгу каждое судно, его груз и день отплытия. " * 40, 801, 881),
        ('{"vessel": "Aurora", "berth": 12, "cargo": ["grain", "timber"]}\n' * 40, 1_000, 1_000),
    ],
)
def test_counts_are_near_those_of_the_vocabularies(text: str, gemini: int, openai: int) -> None:
    assert counter_for("gemini-2.5-flash").count(text) == pytest.approx(gemini, rel=0.2)
    assert counter_for("gpt-4o").count(text) == pytest.approx(openai, rel=0.2)


@pytest.mark.parametrize("family", ["gemini", "openai"])
def test_encoded_bytes_cost_what_their_short_pieces_cost(family: str) -> None:
    noise = random.Random(5).randbytes(6_000)
    for text in (base64.b64encode(noise).decode(), noise.hex()):
        assert len(text) / 2.4 < estimate(family).count(text) < len(text) / 1.1


@pytest.mark.parametrize("character", list(" =-*#_.\n"))
def test_long_repetitions_cost_little_but_not_nothing(character: str) -> None:
    assert 20 <= estimate("openai").count(character * 10_000) <= 2_500


def test_one_very_long_word_and_a_very_long_text_are_counted_in_proportion() -> None:
    counter = estimate()
    word = "".join(random.Random(3).choices("abcdefghijklmnopqrstuvwxyz", k=2_000))
    assert 600 < counter.count(word) < 1_500
    assert counter.count(ENGLISH * 1_000) == pytest.approx(1_000 * counter.count(ENGLISH), rel=0.08)


def test_a_chunk_border_moves_a_count_by_a_token_or_two() -> None:
    counter = estimate()
    text = (ENGLISH * 700)[:70_000]
    assert counter.count(text) == pytest.approx(
        sum(counter.count(text[at : at + 7_000]) for at in range(0, 70_000, 7_000)), abs=20
    )


@pytest.mark.parametrize(
    "text", [ENGLISH, PYTHON, "日本語のテキストです。", "Привет, мир", '{"a": [1, 2]}', "🙂👍🏽 fine"]
)
def test_an_unknown_model_is_not_counted_below_any_known_one(text: str) -> None:
    unknown = counter_for("unknown").count(text * 20)
    assert unknown >= 0.97 * max(estimate(family).count(text * 20) for family in ("gemini", "openai", "claude"))


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gemini-2.5-flash", "gemini"),
        ("models/gemini-2.0-flash", "gemini"),
        ("projects/p/locations/l/publishers/google/models/gemini-3-pro-preview", "gemini-3"),
        ("gemini/gemini-3.5-flash", "gemini-3"),
        ("gemini-flash-latest", "gemini-3"),
        ("gemma-3-27b-it", "gemini"),
        ("openai/gpt-4o-mini", "openai"),
        ("GPT-5.1", "openai"),
        ("o3", "openai"),
        ("azure/gpt-4.1", "openai"),
        ("gpt-4", "generic"),
        ("claude-3-5-sonnet@20241022", "claude"),
        ("anthropic/claude-sonnet-4-5-20250929", "claude"),
        ("claude-sonnet-4-20250514", "claude"),
        ("bedrock/us.anthropic.claude-sonnet-4-6-v1:0", "claude"),
        ("claude-opus-4-7", "claude-4.7"),
        ("claude-sonnet-5-5", "claude-4.7"),
        ("openrouter/meta-llama/llama-3.3-70b-instruct:free", "generic"),
        ("", "generic"),
    ],
)
def test_models_are_known_in_every_spelling(model: str, family: str) -> None:
    assert family_of(model) == family


def test_counters_are_shared_by_a_family_and_name_their_tables() -> None:
    assert counter_for("models/gemini-2.5-pro") is counter_for("gemini-2.0-flash")
    names = {counter_for(model).name for model in MODELS}
    assert len(names) == len(MODELS)
    digest = hashlib.sha256(tables.table_bytes("gemini")).hexdigest()[:12]
    assert counter_for("gemini-2.5-flash").name == f"estimate/gemini@100%-{digest}"
    assert [counter_for(model).accuracy for model in MODELS] == ["approximate"] * 2 + ["heuristic"] * 3


def test_the_cache_forgets_the_least_recently_used_and_keeps_no_long_text() -> None:
    counter, long = estimate(max_texts=2), "x" * 2_000
    kept = []
    for text in ("a", long, "a", "b", "a", long):
        counter.count(text)
        kept.append([key if isinstance(key, str) else len(key) for key in counter._counts._entries])
    assert kept == [["a"], ["a", 16], [16, "a"], ["a", "b"], ["b", "a"], ["a", 16]]


def test_threads_share_a_cache() -> None:
    cached = estimate(max_texts=4)
    texts = [ENGLISH[:size] for size in range(1, 40)]
    expected = [estimate().count(text) for text in texts]
    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: results.append([cached.count(text) for text in texts])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8


def png(width: int, height: int) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(head)) + chunk + struct.pack(">I", zlib.crc32(chunk))


def jpeg(width: int, height: int, thumbnail: bytes = b"") -> bytes:
    body = b"JFIF\0" + thumbnail
    first = b"\xff\xe0" + struct.pack(">H", 2 + len(body)) + body
    return b"\xff\xd8" + first + b"\xff\xff\xc2" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height)


def webp(form: bytes, width: int, height: int) -> bytes:
    sizes = {
        b"VP8X": bytes(8) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"),
        b"VP8L": bytes(4) + b"\x2f" + ((width - 1) | (height - 1) << 14).to_bytes(4, "little"),
        b"VP8 ": bytes(10) + struct.pack("<HH", width, height),
    }
    return b"RIFF" + bytes(4) + b"WEBP" + form + sizes[form]


@pytest.mark.parametrize(
    "data",
    [
        png(1_000, 600),
        jpeg(1_000, 600, thumbnail=b"\xff\xc0" * 40),
        gif(1_000, 600),
        webp(b"VP8X", 1_000, 600),
        webp(b"VP8L", 1_000, 600),
        webp(b"VP8 ", 1_000, 600),
    ],
)
def test_images_count_by_their_pixels_in_every_format(data: bytes) -> None:
    def count(family: str) -> int:
        return media_tokens(None, len(data), family=family, data=data)

    assert count("gemini") == 6 * 258
    assert count("gemini-3") == 1_120
    assert count("openai") == 85 + 170 * 4
    assert count("claude") == count("claude-4.7") == 36 * 22
    assert count("generic") == 6 * 258


@pytest.mark.parametrize(
    ("size", "family", "tokens"),
    [
        ((384, 384), "gemini", 258),
        ((960, 540), "gemini", 6 * 258),
        ((385, 100), "gemini", 2 * 258),
        ((1_024, 1_024), "openai", 765),
        ((2_048, 4_096), "openai", 1_105),
        ((1_000, 1_000), "claude", 1_296),
        ((8_000, 8_000), "claude", 1_568),
        ((3_840, 2_160), "claude-4.7", 4_784),
        ((1, 1), "claude", 1),
    ],
)
def test_images_count_as_the_providers_examples_say(size: tuple[int, int], family: str, tokens: int) -> None:
    assert media_tokens("image/png", 10, family=family, data=png(*size)) == tokens


@pytest.mark.parametrize(
    ("size", "model", "tokens"),
    [
        ((1_024, 1_024), "openai/gpt-4o", 765),
        ((2_048, 4_096), "gpt-4.1-2025-04-14", 1_105),
        ((1_024, 1_024), "gpt-4o-mini", 2_833 + 4 * 5_667),
        ((1_024, 1_024), "gpt-5-chat-latest", 70 + 4 * 140),
        ((1_024, 1_024), "o3", 75 + 4 * 150),
        ((1_024, 1_024), "gpt-5-mini", 1_659),
        ((1_800, 2_400), "gpt-4.1-mini", 2_353),
        ((1_800, 2_400), "o4-mini", 2_498),
        ((1_600, 1_600), "gpt-5.4", 3_000),
        ((640, 480), "gpt-6", 360),
        ((1_280, 720), "gpt-5.5-pro", 1_104),
        ((20_000, 1), "gpt-5-nano", 158),
    ],
)
def test_images_count_by_the_rule_of_openais_model(size: tuple[int, int], model: str, tokens: int) -> None:
    """1,452 patches for 1,800 by 2,400 pixels is OpenAI's own example."""
    assert media_tokens("image/png", 10, family="openai", model=model, data=png(*size)) == tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_a_photograph_counts_far_less_than_its_base64(family: str) -> None:
    photograph = jpeg(4_000, 3_000) + bytes(129_000)
    assert media_tokens("image/jpeg", len(photograph), family=family, data=photograph) < 5_000
    assert media_tokens("image/jpeg", len(photograph), family=family) == 2_000


@given(data=st.binary(max_size=60), mime=st.sampled_from([None, "", "image/png", "application/pdf", "video/mp4", "x"]))
@settings(max_examples=200)
def test_media_of_any_bytes_count_something(data: bytes, mime: str | None) -> None:
    starts = (
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"GIF89a",
        b"RIFF1234WEBPVP8 ",
        b"RIFF1234WEBPVP8L",
        b"%PDF-1.7 ",
    )
    for start in starts:
        for family in FAMILIES:
            assert media_tokens(mime, len(start + data), family=family, data=start + data) > 0


def test_sound_and_video_count_by_time() -> None:
    assert media_tokens("audio/mpeg", 240_000, family="gemini") == 1_920
    assert media_tokens("audio/wav", 1_920_000, family="gemini") == 1_920
    assert media_tokens("video/mp4; codecs=avc1", 625_000, family="gemini") == 3_000
    assert media_tokens("video/mp4", 0, family="gemini-3") == 6_600
    assert media_tokens("audio/mpeg", 1, family="openai") == 1


def test_documents_count_by_page() -> None:
    data = b"%PDF-1.7 <</Type /Pages /Count 3>>" + b"<</Type/Page>>" * 2 + b"<< /Type /Page /Parent 1 0 R>>"
    assert media_tokens("application/pdf", len(data), family="gemini", data=data) == 3 * 258
    assert media_tokens(None, len(data), family="gemini-3", data=data) == 3 * 560
    assert media_tokens("application/pdf", 100_000, family="claude") == 4 * 3_000
    assert media_tokens("application/pdf", 10**9, family="gemini") == 1_000 * 258


def test_text_files_count_by_size_and_unknown_data_by_the_default() -> None:
    assert media_tokens("text/csv", 3_000, family="openai") == 1_001
    assert media_tokens("application/octet-stream", 10**7, family="openai") == 2_000
