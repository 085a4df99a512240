"""Token counts: the estimate, vocabularies and counters of an app's own, media, and what becomes of one that fails."""

from __future__ import annotations

import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Chat, call, look_up, new_store

from aether_context import PackPolicy, replay
from aether_context.canonical import canonical_json, hash_text
from aether_context.errors import PolicyError, TokenCountingError
from aether_context.pack import Accuracy, Tool
from aether_context.policy import TokenSettings
from aether_context.tokens import (
    Counters,
    EstimateCounter,
    Pick,
    TokenCounter,
    choice,
    counter_for,
    family_of,
    framing_of,
    media_tokens,
    register_counter,
)
from aether_context.tokens.cache import PackCounter, TokenCache

TEXTS = (
    "The quick brown fox jumps over the lazy dog.", "def f(x):\n    return x\n", "港务长 🙂", "", " ", "\ud800 lone",
)  # fmt: skip


class Words(TokenCounter):
    """Counts words; fails while it is told to."""

    accuracy: Accuracy = "exact"

    def __init__(self, name: str = "words", *, error: BaseException | None = None) -> None:
        self._name = name
        self.error = error
        self.asked: list[tuple[str, ...]] = []

    @property
    def name(self) -> str:
        return self._name

    def count(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return len(text.split()) + 1 if text else 0

    def count_all(self, texts: Sequence[str]) -> list[int]:
        self.asked.append(tuple(texts))
        return super().count_all(texts)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def registered() -> Iterator[Callable[..., None]]:
    """Registers counters for one test."""
    held = dict(choice._REGISTERED)
    yield register_counter
    choice._REGISTERED.clear()
    choice._REGISTERED.update(held)


def tokenizer_json(folder: Path) -> tuple[Path, Callable[[str], int]]:
    """A small tokenizer.json that would cut texts short and add a token of its own, were it let."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    made.train_from_iterator(["the harbour and the boats of the harbour"] * 9, trainer)

    def length(text: str) -> int:
        return len(made.encode(text, add_special_tokens=False))

    path = folder / "tokenizer.json"
    expected = {text: length(text.replace("\ud800", "\ufffd")) for text in TEXTS}
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $0", special_tokens=[("<s>", 0)])
    made.enable_truncation(4)
    made.enable_padding(length=4)
    made.save(str(path))
    return path, expected.__getitem__


def by(model: str = "gpt-4o", *, clock: Callable[[], float] | None = None, **settings: Any) -> Pick:
    """What counts for a model by settings of the policy's section `tokens`."""
    return Counters(TokenSettings(**settings), clock=clock or Clock()).pick(model)


def test_a_vocabulary_file_counts_exactly(tmp_path: Path) -> None:
    path, length = tokenizer_json(tmp_path)
    pick = by("gemini-2.5-flash", files={"gemini": str(path)})
    expected = [max(1, length(text)) if text else 0 for text in TEXTS]
    assert pick.counter.count_all(TEXTS) == expected
    assert [pick.counter.count(text) for text in TEXTS] == expected
    assert (pick.name, pick.counter.accuracy, pick.may_wait) == ("file", "exact", False)
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes())
    assert by(files={"gpt-4o": str(other)}).counter.name == pick.counter.name
    assert by("gemini-flash-latest", files={"gemini": str(path)}).counter.name == pick.counter.name


def test_a_vocabulary_file_without_its_extra_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    pick = by(files={"gpt-4o": str(tmp_path / "tokenizer.json")})
    assert pick.name == "estimate"
    assert pick.problems[0].endswith('is not installed: pip install "aether-context-adk[tokenizers]"')


@pytest.mark.parametrize(
    ("model", "encoding", "accuracy"),
    [
        ("openai/gpt-4o", "o200k_base", "exact"),
        ("gpt-5.1", "o200k_base", "exact"),
        ("gpt-4-turbo", "cl100k_base", "exact"),
        ("gpt-3.5-turbo", "cl100k_base", "exact"),
        ("grok-4", "o200k_base", "heuristic"),
    ],
)
def test_tiktoken_counts_by_the_model_name(
    model: str, encoding: str, accuracy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)}
    monkeypatch.setattr(
        tiktoken,
        "get_encoding",  # the real one downloads
        lambda name: tiktoken.Encoding(name, pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={}),
    )
    pick = by(model, counter="tiktoken")
    assert (pick.name, pick.counter.name, pick.problems) == ("tiktoken", f"tiktoken/{encoding}", ())
    assert pick.counter.accuracy == accuracy
    assert pick.counter.count_all(["ab c", "", "\ud800"]) == [4, 0, 3]


class LocalTokenizer:
    """As google-genai's, of a model that it knows."""

    def __init__(self, model_name: str) -> None:
        if model_name != "gemini-2.5-flash":
            raise ValueError(f"Model {model_name} is not supported")

    def count_tokens(self, contents: str) -> Any:
        return SimpleNamespace(total_tokens=len(contents.split()))


def test_googles_tokenizer_counts_the_models_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.genai.local_tokenizer", SimpleNamespace(LocalTokenizer=LocalTokenizer))
    found = counted_by("gemini-local", "models/gemini-2.5-flash", "gemini-flash-latest", "gemini-9")
    assert found[0] == ("gemini-local/gemini-2.5-flash", ())
    assert found[1][0].startswith("gemini-local")
    assert found[2][1] == ("token counter gemini-local: ValueError: Model gemini-9 is not supported",)


def counted_by(counter: str, *models: str) -> list[tuple[str, tuple[str, ...]]]:
    """The counter by which each model's requests are counted, and the problems that its manifest tells."""
    found = []
    for model in models:
        chat = Chat(model=model, policy=PackPolicy(tokens={"counter": counter}, max_input_tokens=9_000))
        chat.say("one two")
        [manifest] = chat.manifests()
        found.append((manifest.counter, manifest.degradations))
    return found


@pytest.mark.parametrize(("counter", "package"), [("tiktoken", "tiktoken"), ("gemini-local", "sentencepiece")])
def test_a_package_that_is_not_there_is_named(counter: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if "local_tokenizer" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    [(name, problems)] = counted_by(counter, "gemini-2.5-flash")
    assert name.startswith("estimate")
    assert problems[0].endswith(f": pip install {package}")


def test_an_unknown_counter_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PolicyError, match=r"tokens\.counter = 'tiktokens': did you mean 'tiktoken'\?"):
        Counters(TokenSettings(counter="tiktokens"), clock=Clock())


def test_a_counter_that_fails_rests_and_is_tried_again(registered: Callable[..., None]) -> None:
    clock, words = Clock(), Words()
    registered("words", words)
    counters = Counters(TokenSettings(counter="words"), clock=clock)
    assert counters.ready("gpt-4o") is None
    first = counters.pick("gpt-4o")
    assert (first.counter.name, first.name, first.problems) == (words.name, "words", ())
    assert counters.ready("gpt-4o") == first
    counters.fail("gpt-4o", TokenCountingError("words", "no words"))
    second = counters.pick("gpt-4o")
    assert second.name == "estimate"
    assert second.problems == ("token counter words: no words",)
    assert counters.ready("gpt-4o") == second
    clock.now += 30
    assert counters.ready("gpt-4o") == counters.pick("gpt-4o") == first


def test_a_failing_counter_costs_a_pack_nothing_but_a_line(registered: Callable[..., None]) -> None:
    words = Words()
    registered("words", words)
    store = new_store()
    chat = Chat(
        script=["hi", call("look_up", key="a"), "done", "bye"],
        tools=[look_up],
        policy=PackPolicy(tokens={"counter": "words"}),
        store=store,
    )
    chat.say("hello there")
    words.error = TokenCountingError("words", "the service is down")
    chat.say("and now?")
    words.error = None
    chat.say("still?")
    packs = list(store.manifests())
    assert [pack.counter.partition("/")[0] for pack in packs] == ["words", "estimate", "estimate", "estimate"]
    methods = [pack.request_tokens_method for pack in packs]
    assert methods == ["approximate", "approximate", "anchored", "anchored"], "an anchor holds for one counter"
    told = [sum("the service is down" in line for line in pack.degradations) for pack in packs]
    assert told == [0, 1, 0, 0]
    assert packs[1].extends is None
    assert all(replay(pack, store).matches for pack in packs)
    assert len(chat.sent) == 4


def test_a_registered_counter_is_asked_in_one_batch_off_the_event_loop(registered: Callable[..., None]) -> None:
    loops: list[str] = []

    class Remote(Words):
        def count_all(self, texts: Sequence[str]) -> list[int]:
            loops.append(threading.current_thread().name)
            return super().count_all(texts)

    remote = Remote()
    registered("words", remote)
    chat = Chat(
        script=[call("look_up", key="a"), "done"], tools=[look_up], policy=PackPolicy(tokens={"counter": "words"})
    )
    chat.say("hello there")
    assert loops
    assert "MainThread" not in loops
    contents = [texts for texts in remote.asked if any("hello there" in text for text in texts)]
    assert len(contents) == 1
    assert len(chat.sent) == 2


class Told(TokenCounter):
    """Counts as it was told; the numbers are o200k's."""

    name = "told"
    accuracy: Accuracy = "exact"
    counts: ClassVar[dict[str, int]] = {
        "You are a helpful assistant that can answer to questions about the weather.": 14,
        "What's the weather like in San Francisco?": 8,
        "// Get the current weather in a given location\n"
        "type get_current_weather = (_: {\n"
        "// The city and state, e.g. San Francisco, CA\n"
        "location: string,\n"
        "// The unit of temperature to return\n"
        'unit?: "celsius" | "fahrenheit",\n'
        "}) => any;\n\n": 57,
    }

    def count(self, text: str) -> int:
        return self.counts[text]


def test_openais_own_example_counts_what_the_api_reported() -> None:
    """101 tokens: "How to count tokens with tiktoken", section 7, for GPT-4o."""
    from packs import said

    schema = {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
            "unit": {
                "type": "string",
                "description": "The unit of temperature to return",
                "enum": ["celsius", "fahrenheit"],
            },
        },
        "required": ["location"],
    }
    wire = canonical_json(
        {
            "name": "get_current_weather",
            "description": "Get the current weather in a given location",
            "parameters_json_schema": schema,
        }
    )
    counter = PackCounter(Told(), framing=framing_of("gpt-4o"))
    system, user, _ = Told.counts
    tool = Tool(name="get_current_weather", signature="", wire=wire, digest=hash_text(wire))
    assert counter.system(system, declares=True) + sum(counter.tools((tool,))) + counter.content(said(user)) == 101
    assert counter.method == "approximate"


def test_sixty_declarations_are_written_out_once() -> None:
    tools = [
        Tool(name=f"t{at}", signature="", wire=f'{{"name":"t{at}"}}', digest=hash_text(str(at))) for at in range(60)
    ]
    words, cache = Words(), TokenCache()
    first = PackCounter(words, cache, framing=framing_of("gemini-2.5-flash")).tools(tools)
    again = PackCounter(words, cache, framing=framing_of("gemini-2.5-flash")).tools(tools)
    assert first == again
    assert [len(texts) for texts in words.asked] == [60]


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
@settings(max_examples=80)
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
        ("xai/grok-4", "xai"), ("openrouter/x-ai/grok-code-fast-1", "xai"), ("oci/xai.grok-3-mini", "xai"),
        ("mistral/mistral-large-latest", "generic"), ("codestral/codestral-latest", "generic"),
        ("deepseek/deepseek-r1", "generic"), ("dashscope/qwen-max", "generic"), ("cohere_chat/command-r", "generic"),
        ("bedrock/us.amazon.nova-pro-v1:0", "generic"), ("groq/llama-3.1-70b", "generic"), ("marco-o1", "generic"),
        ("groq/openai/gpt-oss-120b", "openai"), ("eleutherai/gpt-neox-20b", "generic"), ("zai/glm-4.6", "generic"),
        ("", "generic"),
    ],
)  # fmt: skip
def test_models_are_known_in_every_spelling(model: str, family: str) -> None:
    assert family_of(model) == family


def test_xais_models_are_counted_as_openais_and_their_media_by_the_highest_rule() -> None:
    grok = counter_for("xai/grok-4")
    assert grok.count_all(TEXTS) == counter_for("gpt-4o").count_all(TEXTS)
    assert grok.accuracy == "heuristic"
    shown = [media_tokens("image/png", 9, family=family, data=png(900, 700)) for family in ("xai", "generic")]
    assert shown[0] == shown[1]


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


def test_sound_and_video_count_by_time_and_texts_by_size() -> None:
    assert media_tokens("audio/mpeg", 240_000, family="gemini") == 1_920
    assert media_tokens("audio/wav", 1_920_000, family="gemini") == 1_920
    assert media_tokens("video/mp4; codecs=avc1", 625_000, family="gemini") == 3_000
    assert media_tokens("video/mp4", 0, family="gemini-3") == 6_600
    assert media_tokens("audio/mpeg", 1, family="openai") == 1
    assert media_tokens("text/csv", 299, family="gemini") == 100


def test_documents_count_by_page() -> None:
    data = b"%PDF-1.7 <</Type /Pages /Count 3>>" + b"<</Type/Page>>" * 2 + b"<< /Type /Page /Parent 1 0 R>>"
    assert media_tokens("application/pdf", len(data), family="gemini", data=data) == 3 * 258
    assert media_tokens(None, len(data), family="gemini-3", data=data) == 3 * 560
    assert media_tokens("application/pdf", 100_000, family="claude") == 4 * 3_000
    assert media_tokens("application/pdf", 10**9, family="gemini") == 1_000 * 258
