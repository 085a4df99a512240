"""Counters besides the estimate: by vocabularies and of an app's own, and what becomes of one that fails."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from scripted import Chat, call, look_up, new_store

from aether_context import PackPolicy, replay
from aether_context.adk.models.gemini import local_tokenizer
from aether_context.errors import PolicyError, TokenCountingError
from aether_context.pack import Accuracy
from aether_context.policy import TokenSettings
from aether_context.tokens import Counters, Pick, TokenCounter, choice, framing_of, register_counter
from aether_context.tokens.cache import PackCounter, TokenCache
from aether_context.tokens.choice import RETRY_SECONDS

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
    counters = Counters(
        TokenSettings(counter="gemini-local"), clock=Clock(), tokenizers={"gemini-local": local_tokenizer}
    )
    pick = counters.pick("models/gemini-2.5-flash")
    assert (pick.counter.name, pick.counter.accuracy) == ("gemini-local/gemini-2.5-flash", "exact")
    assert pick.counter.count_all(["one two", ""]) == [2, 0]
    other = counters.pick("gemini-9")
    assert other.name == "estimate"
    assert other.problems == ("token counter gemini-local: ValueError: Model gemini-9 is not supported",)


@pytest.mark.parametrize(("counter", "package"), [("tiktoken", "tiktoken"), ("gemini-local", "sentencepiece")])
def test_a_package_that_is_not_there_is_named(counter: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if "local_tokenizer" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    tokenizers = {"gemini-local": local_tokenizer}
    pick = Counters(TokenSettings(counter=counter), clock=Clock(), tokenizers=tokenizers).pick("gemini-2.5-flash")
    assert pick.name == "estimate"
    assert pick.problems[0].endswith(f": pip install {package}")


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
    clock.now += RETRY_SECONDS
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

    from aether_context.canonical import canonical_json, hash_text
    from aether_context.pack import Tool

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
    assert counter.system(system, declares=True) + counter.tool(tool) + counter.content(said(user)) == 101
    assert counter.method == "approximate"


def test_sixty_declarations_are_written_out_once() -> None:
    from aether_context.canonical import hash_text
    from aether_context.pack import Tool

    tools = [
        Tool(name=f"t{at}", signature="", wire=f'{{"name":"t{at}"}}', digest=hash_text(str(at))) for at in range(60)
    ]
    words, cache = Words(), TokenCache()
    first = PackCounter(words, cache, framing=framing_of("gemini-2.5-flash")).tools(tools)
    again = PackCounter(words, cache, framing=framing_of("gemini-2.5-flash")).tools(tools)
    assert first == again
    assert [len(texts) for texts in words.asked] == [60]
