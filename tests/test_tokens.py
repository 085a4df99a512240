"""Token counts: what holds for every text, what a table promises, and what media cost."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aether_context.tokens import EstimateCounter, counter_for, family_of, media_tokens

MODELS = ("gemini-2.5-flash", "gpt-4o", "claude-sonnet-4-5", "claude-opus-5", "some-unknown-model")

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


@pytest.mark.parametrize(
    "text", [ENGLISH, PYTHON, "日本語のテキストです。", "Привет, мир", '{"a": [1, 2]}', "🙂👍🏽 fine"]
)
def test_an_unknown_model_is_not_counted_below_any_known_one(text: str) -> None:
    unknown = counter_for("unknown").count(text * 20)
    assert unknown >= 0.97 * max(estimate(family).count(text * 20) for family in ("gemini", "openai", "claude"))


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("gemini-2.5-flash", "gemini"), ("models/gemini-2.0-flash", "gemini"),
        ("projects/p/locations/l/publishers/google/models/gemini-3-pro-preview", "gemini-3"),
        ("gemini/gemini-3.5-flash", "gemini-3"), ("gemini-flash-latest", "gemini-3"), ("gemma-3-27b-it", "gemini"),
        ("openai/gpt-4o-mini", "openai"), ("GPT-5.1", "openai"), ("o3", "openai"), ("azure/gpt-4.1", "openai"),
        ("gpt-4", "generic"), ("claude-3-5-sonnet@20241022", "claude"),
        ("anthropic/claude-sonnet-4-5-20250929", "claude"), ("claude-sonnet-4-20250514", "claude"),
        ("bedrock/us.anthropic.claude-sonnet-4-6-v1:0", "claude"), ("claude-opus-4-7", "claude-4.7"),
        ("claude-sonnet-5-5", "claude-4.7"), ("openrouter/meta-llama/llama-3.3-70b-instruct:free", "generic"),
        ("", "generic"),
    ],
)  # fmt: skip
def test_models_are_known_in_every_spelling(model: str, family: str) -> None:
    assert family_of(model) == family


def test_the_cache_forgets_the_least_recently_used_and_keeps_no_long_text() -> None:
    counter, long = estimate(max_texts=2), "x" * 2_000
    kept = []
    for text in ("a", long, "a", "b", "a", long):
        counter.count(text)
        kept.append([key if isinstance(key, str) else len(key) for key in counter._counts._entries])
    assert kept == [["a"], ["a", 16], [16, "a"], ["a", "b"], ["b", "a"], ["a", 16]]


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
        png(1_000, 600), jpeg(1_000, 600, thumbnail=b"\xff\xc0" * 40), gif(1_000, 600), webp(b"VP8X", 1_000, 600),
        webp(b"VP8L", 1_000, 600), webp(b"VP8 ", 1_000, 600),
    ],
)  # fmt: skip
def test_images_count_by_their_pixels_in_every_format(data: bytes) -> None:
    def count(family: str) -> int:
        return media_tokens(None, len(data), family=family, data=data)

    assert count("gemini") == 6 * 258
    assert count("gemini-3") == 1_120
    assert count("openai") == 85 + 170 * 4
    assert count("claude") == count("claude-4.7") == 36 * 22
    assert count("generic") == 6 * 258


@pytest.mark.parametrize(
    ("size", "family", "model", "tokens"),
    [
        ((384, 384), "gemini", "", 258), ((960, 540), "gemini", "", 6 * 258), ((385, 100), "gemini", "", 2 * 258),
        ((1_000, 1_000), "claude", "", 1_296), ((8_000, 8_000), "claude", "", 1_568), ((1, 1), "claude", "", 1),
        ((3_840, 2_160), "claude-4.7", "", 4_784), ((1_024, 1_024), "openai", "", 765),
        ((1_024, 1_024), "openai", "openai/gpt-4o", 765), ((2_048, 4_096), "openai", "gpt-4.1-2025-04-14", 1_105),
        ((1_024, 1_024), "openai", "gpt-4o-mini", 2_833 + 4 * 5_667),
        ((1_024, 1_024), "openai", "gpt-5-chat-latest", 70 + 4 * 140), ((1_024, 1_024), "openai", "o3", 75 + 4 * 150),
        ((1_024, 1_024), "openai", "gpt-5-mini", 1_659), ((1_800, 2_400), "openai", "gpt-4.1-mini", 2_353),
        ((1_800, 2_400), "openai", "o4-mini", 2_498), ((1_600, 1_600), "openai", "gpt-5.4", 3_000),
        ((640, 480), "openai", "gpt-6", 360), ((1_280, 720), "openai", "gpt-5.5-pro", 1_104),
        ((20_000, 1), "openai", "gpt-5-nano", 158),
    ],
)  # fmt: skip
def test_images_count_as_the_providers_examples_and_rules_say(
    size: tuple[int, int], family: str, model: str, tokens: int
) -> None:
    """1,452 patches for 1,800 by 2,400 pixels is OpenAI's own example."""
    assert media_tokens("image/png", 10, family=family, model=model, data=png(*size)) == tokens


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
