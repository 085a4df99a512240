"""Counters besides the estimate: by vocabulary files, by providers over HTTP, and what becomes of one that fails."""

from __future__ import annotations

import base64
import inspect
import io
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Chat, call, look_up, new_store

from aether_context import PackPolicy, replay
from aether_context.adk.models.gemini import register_counters
from aether_context.errors import MissingExtra, PolicyError, TokenCountingError
from aether_context.pack import Accuracy
from aether_context.policy import TokenSettings
from aether_context.tokens import Counters, Offer, Pick, TokenCounter, counter_for, framing_of, register
from aether_context.tokens.cache import PackCounter, TokenCache
from aether_context.tokens.choice import CHAIN, OFFERS, RETRY_SECONDS
from aether_context.tokens.counters import PATTERNS, RemoteCounter, TokenizerCounter, file_counter

register_counters()

TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "def f(x):\n    return x\n",
    "港务长 🙂",
    "",
    " ",
    "\ud800 lone",
)


class Words(TokenCounter):
    """Counts words; fails while it is told to."""

    accuracy: Accuracy = "exact"

    def __init__(self, name: str = "words") -> None:
        self._name = name
        self.broken = ""
        self.asked: list[tuple[str, ...]] = []

    @property
    def name(self) -> str:
        return self._name

    def count(self, text: str) -> int:
        if self.broken:
            raise TokenCountingError(self.name, self.broken)
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
def offered() -> Iterator[Callable[..., None]]:
    """Puts counters on offer for one test."""
    held = dict(OFFERS)

    def put(name: str, make: Callable[[str, TokenSettings], TokenCounter], **more: Any) -> None:
        register(Offer(name=name, about="", suits=lambda model, settings: True, make=make, **more))

    yield put
    OFFERS.clear()
    OFFERS.update(held)


# the provider's own count


class Provider:
    """A server on this machine that answers as the providers' documentation shows.

    ``answer`` gives status and JSON for a path and a body; ``seen`` holds the requests, ``most_at_once`` how many were
    under way together.
    """

    def __init__(self, answer: Callable[[str, Any], tuple[int, Any]]) -> None:
        self.answer = answer
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.most_at_once = self._under_way = 0
        self._lock = threading.Lock()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, answer = provider._take(self.path, headers, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                return None

        class Server(ThreadingHTTPServer):
            def handle_error(self, *args: Any) -> None:
                """A client that hangs up at its deadline is no fault of the server."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _take(self, path: str, headers: dict[str, str], body: Any) -> tuple[int, Any]:
        with self._lock:
            self.seen.append((path, headers, body))
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            return self.answer(path, body)
        finally:
            with self._lock:
                self._under_way -= 1

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider() -> Iterator[Callable[[Callable[[str, Any], tuple[int, Any]]], Provider]]:
    servers: list[Provider] = []

    def start(answer: Callable[[str, Any], tuple[int, Any]]) -> Provider:
        servers.append(Provider(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


REFUSED = (429, {"type": "error", "error": {"type": "rate_limit_error", "message": "Number of requests has exceeded"}})
"""Anthropic's answer to too many requests, as docs.claude.com/en/api/errors shows it."""


def anthropic(path: str, body: Any) -> tuple[int, Any]:
    """Seven tokens around a message, as in the documented 14 for a system instruction and "Hello, Claude"."""
    words = {"a": 1, "Hello, Claude": 3, "What's the weather like in San Francisco?": 9}
    content = body["messages"][0]["content"]
    if not content.strip():
        return 400, {"type": "error", "error": {"type": "invalid_request_error", "message": "text content blocks"}}
    return 200, {"input_tokens": 7 + words.get(content, len(content))}


def gemini(path: str, body: Any) -> tuple[int, Any]:
    """The documented examples of `models.countTokens`."""
    text = body["contents"][0]["parts"][0]["text"]
    total = {"The quick brown fox jumps over the lazy dog.": 10}.get(text, len(text.split()))
    return 200, {"totalTokens": total, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": total}]}


NETWORK = TokenSettings(network=True)


def test_anthropic_counts_a_text_without_what_it_adds(provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = provider(anthropic)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    counter = counter_for("claude-opus-4-1@20250805", NETWORK)
    assert (counter.name, counter.accuracy) == ("anthropic-api/claude-opus-4-1-20250805", "exact")
    assert counter.count_all(["Hello, Claude", "", "What's the weather like in San Francisco?"]) == [3, 0, 9]
    path, headers, body = server.seen[-1]
    assert path == "/v1/messages/count_tokens"
    assert (headers["x-api-key"], headers["anthropic-version"]) == ("sk-test", "2023-06-01")
    assert body["model"] == "claude-opus-4-1-20250805"
    assert len(server.seen) == 3
    assert counter.count_all(["Hello, Claude", "\n \n"]) == [3, 3]
    assert counter.count("Hello, Claude") == 3
    assert len(server.seen) == 4


def test_gemini_counts_a_text(provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server = provider(gemini)
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
    monkeypatch.setenv("GOOGLE_API_KEY", "key")
    counter = counter_for("models/gemini-2.5-flash", NETWORK.model_copy(update={"counter": "gemini-api"}))
    assert (counter.name, counter.accuracy) == ("gemini-api/gemini-2.5-flash", "exact")
    assert counter.count_all([TEXTS[0], "one two", "\ud800 lone"]) == [10, 2, 2]
    assert {path for path, _, _ in server.seen} == {"/v1beta/models/gemini-2.5-flash:countTokens"}
    assert {headers["x-goog-api-key"] for _, headers, _ in server.seen} == {"key"}


def test_a_provider_that_refuses_fails_with_its_words(provider: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider(lambda path, body: REFUSED).url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    with pytest.raises(TokenCountingError, match="429 Too Many Requests"):
        counter_for("claude-sonnet-4-5", NETWORK).count_all(["Hello"])
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider(lambda path, body: (200, {"tokens": 3})).url)
    with pytest.raises(TokenCountingError, match="input_tokens"):
        counter_for("claude-sonnet-4-5", NETWORK).count_all(["Hello"])


@pytest.mark.parametrize("name", ["anthropic-api", "gemini-api"])
def test_a_provider_needs_leave_and_a_key(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(TokenCountingError, match=r"tokens\.network = true"):
        counter_for("claude-opus-5", TokenSettings(counter=name))
    with pytest.raises(TokenCountingError, match="key"):
        counter_for("claude-opus-5", TokenSettings(counter=name, network=True))


def test_a_deadline_holds_for_all_texts_and_what_was_answered_stays() -> None:
    late = threading.Event()

    def ask(text: str) -> int:
        if text == "slow":
            late.wait(60)
        return len(text)

    counter = RemoteCounter("slow", lambda: nullcontext(ask), estimate=Words(), timeout_seconds=0.2)
    began = time.monotonic()
    with pytest.raises(TokenCountingError, match=r"1 of 3 texts were not counted within 0\.2 s"):
        counter.count_all(["slow", "ab", "abc"])
    assert time.monotonic() - began < 30
    late.set()
    assert counter.count_all(["ab", "abc"]) == [2, 3]
    assert counter.count("ab") == 2
    assert counter.count("never asked about") == Words().count("never asked about")
    late.set()


def test_many_texts_are_asked_about_together_and_each_once() -> None:
    under_way, most, asked = 0, 0, []
    lock, together = threading.Lock(), threading.Event()

    def ask(text: str) -> int:
        nonlocal under_way, most
        with lock:
            asked.append(text)
            under_way += 1
            most = max(most, under_way)
            if under_way > 1:
                together.set()
        together.wait(10)
        with lock:
            under_way -= 1
        return len(text)

    counter = RemoteCounter("many", lambda: nullcontext(ask), estimate=Words(), timeout_seconds=10)
    texts = [f"text {at % 30}" for at in range(60)]
    assert counter.count_all(texts) == [len(text) for text in texts]
    assert sorted(asked) == sorted(set(texts))
    assert 1 < most <= 8


# vocabulary files


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


def tiktoken_file(folder: Path) -> tuple[Path, Callable[[str], int]]:
    """All bytes, and a few longer pieces."""
    tiktoken = pytest.importorskip("tiktoken")
    pieces = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"qu", b"ick", b" quick", b"ox"]
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    path = folder / "small.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(piece) + b" %d\n" % rank for piece, rank in ranks.items()))
    made = tiktoken.Encoding("small", pat_str=PATTERNS["o200k_base"], mergeable_ranks=ranks, special_tokens={})
    return path, lambda text: len(made.encode_ordinary(text))


def sentencepiece_model(folder: Path) -> tuple[Path, Callable[[str], int]]:
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the harbour and the boats", "the quick brown fox", "港务长"] * 5),
        model_writer=written,
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path = folder / "small.model"
    path.write_bytes(written.getvalue())
    made = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return path, lambda text: len(made.encode(text.replace("\ud800", "\ufffd")))


@pytest.mark.parametrize("make", [tokenizer_json, tiktoken_file, sentencepiece_model])
def test_a_vocabulary_file_counts_exactly(
    make: Callable[[Path], tuple[Path, Callable[[str], int]]], tmp_path: Path
) -> None:
    path, length = make(tmp_path)
    counter = counter_for("gemini-2.5-flash", TokenSettings(files={"gemini": str(path)}))
    expected = [max(1, length(text)) if text else 0 for text in TEXTS]
    assert counter.count_all(TEXTS) == expected
    assert [counter.count(text) for text in TEXTS] == expected
    assert counter.accuracy == "exact"
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes())
    assert file_counter(str(other), "gemini-2.5-flash").name == counter.name


@pytest.mark.parametrize("make", [tokenizer_json, tiktoken_file, sentencepiece_model])
def test_a_vocabulary_file_counts_any_text(
    make: Callable[[Path], tuple[Path, Callable[[str], int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    counter = file_counter(str(make(tmp_path_factory.mktemp("vocabulary"))[0]), "gpt-4o")

    @given(texts=st.lists(st.text(st.characters(codec=None, exclude_categories=()), max_size=40), max_size=5))
    @settings(max_examples=50)
    def check(texts: list[str]) -> None:
        assert counter.count_all(texts) == [counter.count(text) for text in texts]
        assert all((tokens == 0) == (text == "") for text, tokens in zip(texts, counter.count_all(texts), strict=True))

    check()


def test_a_file_is_found_by_model_name_and_family() -> None:
    given = {"gemini-2.5-pro": "pro", "gemini": "family", "openai/gpt-4o": "through"}
    asked = {
        "models/gemini-2.5-pro": "pro",
        "gemini-2.5-flash": "family",
        "openai/gpt-4o": "through",
        "gpt-4o": None,
        "gemini-3-pro": None,
    }
    from aether_context.tokens.choice import file_of

    assert {model: file_of(model, TokenSettings(files=given)) for model in asked} == asked


def test_a_file_that_is_none_says_so(tmp_path: Path) -> None:
    for name, data in (("empty.json", b"{}"), ("nothing", b""), ("noise", bytes(range(200, 250)))):
        (tmp_path / name).write_bytes(data)
        pytest.importorskip("tokenizers")
        pytest.importorskip("sentencepiece")
        with pytest.raises(TokenCountingError, match=r"is no tokenizer\.json, tiktoken file or SentencePiece model"):
            file_counter(str(tmp_path / name), "gpt-4o")
    with pytest.raises(TokenCountingError, match=r"missing cannot be read .*tokens\.files"):
        file_counter(str(tmp_path / "missing"), "gpt-4o")


def test_texts_are_parted_as_tiktoken_parts_them() -> None:
    public = pytest.importorskip("tiktoken_ext.openai_public")
    source = inspect.getsource(public.o200k_base)
    pieces = PATTERNS["o200k_base"].replace(")?|", ")?\n").replace("|\\p{N}", "\n\\p{N}").split("\n")
    assert len(pieces) == 3
    assert all(piece in source for piece in pieces[:2])
    assert all(piece in source for piece in pieces[2].split("|"))
    assert PATTERNS["cl100k_base"] in inspect.getsource(public.cl100k_base)


def test_a_tokenizer_that_breaks_gives_our_error() -> None:
    def lengths(texts: Sequence[str]) -> list[int]:
        raise RuntimeError("out of luck")

    class Panic(BaseException):
        """As a panic in Rust arrives."""

    def panics(texts: Sequence[str]) -> list[int]:
        raise Panic("index out of bounds")

    for broken, words in ((lengths, "RuntimeError: out of luck"), (panics, "Panic: index out of bounds")):
        with pytest.raises(TokenCountingError, match=words):
            TokenizerCounter("broken", broken, accuracy="exact").count("text")


# the chain


def names(model: str, settings: TokenSettings) -> list[str]:
    return [offer.name for offer in Counters(settings, clock=Clock())._chain(model)]


def test_the_chain_is_what_is_stated() -> None:
    assert set(CHAIN) <= OFFERS.keys()
    files = {"gemini": "x", "gpt-4o": "y"}
    assert names("gemini-2.5-flash", TokenSettings()) == ["estimate"]
    assert names("gemini-2.5-flash", TokenSettings(files=files)) == ["file", "estimate"]
    everything = TokenSettings(files=files, network=True)
    assert names("gemini-2.5-flash", everything) == ["file", "gemini-local", "gemini-api", "estimate"]
    assert names("gpt-4o", everything) == ["file", "tiktoken", "estimate"]
    assert names("grok-4", everything) == ["tiktoken", "estimate"]
    assert names("anthropic/claude-opus-5", everything) == ["anthropic-api", "estimate"]
    assert names("bedrock/anthropic.claude-opus-5", everything) == ["estimate"]
    assert names("gpt-4o", TokenSettings(counter="litellm")) == ["litellm", "estimate"]


def test_an_unknown_counter_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PolicyError, match=r"tokens\.counter = 'tiktokens': did you mean 'tiktoken'\?"):
        Counters(TokenSettings(counter="tiktokens"), clock=Clock())


def test_without_settings_nothing_but_the_estimate_counts() -> None:
    assert counter_for("gpt-4o") is counter_for("gpt-4o", TokenSettings())
    assert counter_for("gpt-4o").name.startswith("estimate/openai")


def test_a_counter_that_fails_rests_and_is_tried_again(offered: Callable[..., None]) -> None:
    clock, words = Clock(), Words()
    offered("words", lambda model, settings: words)
    counters = Counters(TokenSettings(counter="words"), clock=clock)
    assert counters.ready("gpt-4o") is None
    first = counters.pick("gpt-4o")
    assert (first.counter.name, first.offer, first.problems) == (words.name, "words", ())
    assert counters.ready("gpt-4o") == first
    counters.fail("gpt-4o", first, TokenCountingError("words", "no words"))
    second = counters.pick("gpt-4o")
    assert second.offer == "estimate"
    assert second.problems == ("token counter words: no words",)
    assert counters.ready("gpt-4o") == second
    clock.now += RETRY_SECONDS
    assert counters.ready("gpt-4o") == counters.pick("gpt-4o") == first


def test_no_counter_sends_texts_without_leave(offered: Callable[..., None]) -> None:
    offered("words", lambda model, settings: Words(), network="always")
    pick = Counters(TokenSettings(counter="words"), clock=Clock()).pick("gpt-4o")
    assert pick.offer == "estimate"
    assert "set tokens.network = true" in pick.problems[0]
    assert Counters(TokenSettings(counter="words", network=True), clock=Clock()).pick("gpt-4o").remote


def test_what_cannot_be_made_gives_way(offered: Callable[..., None]) -> None:
    made = 0

    def make(model: str, settings: TokenSettings) -> TokenCounter:
        nonlocal made
        made += 1
        raise MissingExtra("tiktoken", "counting by tiktoken")

    clock = Clock()
    offered("tiktoken", make, network="once")
    counters = Counters(TokenSettings(counter="tiktoken", network=True), clock=clock)
    for _ in range(3):
        pick = counters.pick("gpt-4o")
        assert pick.offer == "estimate"
        assert 'pip install "aether-context-adk[tiktoken]"' in pick.problems[0]
    assert made == 1
    clock.now += RETRY_SECONDS
    counters.pick("gpt-4o")
    assert made == 2
    auto = Counters(TokenSettings(network=True), clock=clock)
    assert auto.pick("gpt-4o").problems == ()


def test_an_offer_that_breaks_gives_way(offered: Callable[..., None]) -> None:
    def make(model: str, settings: TokenSettings) -> TokenCounter:
        raise AttributeError("no such function in this version")

    offered("words", make)
    pick = Counters(TokenSettings(counter="words"), clock=Clock()).pick("gpt-4o")
    assert (pick.offer, pick.problems) == (
        "estimate",
        ("token counter words: AttributeError: no such function in this version",),
    )


def test_a_model_has_its_own_counter_and_its_own_failures(offered: Callable[..., None]) -> None:
    offered("words", lambda model, settings: Words(f"words/{model}"))
    counters = Counters(TokenSettings(counter="words"), clock=Clock())
    one, other = counters.pick("gpt-4o"), counters.pick("gpt-5")
    assert (one.counter.name, other.counter.name) == ("words/gpt-4o", "words/gpt-5")
    counters.fail("gpt-4o", one, TokenCountingError("words", "no words"))
    assert counters.pick("gpt-4o").offer == "estimate"
    assert counters.pick("gpt-5") == other


def test_litellm_counts_where_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class LiteLlm:
        @staticmethod
        def token_counter(model: str, text: str) -> int:
            return len(text.split())

    monkeypatch.setitem(__import__("sys").modules, "litellm", LiteLlm)
    counter = counter_for("openai/gpt-4o", TokenSettings())
    assert (counter.name, counter.accuracy, counter.count("three of them")) == ("litellm/gpt-4o", "approximate", 3)
    assert counter_for("gpt-4o", TokenSettings()).name.startswith("estimate/")
    by_name = counter_for("mistral/large", TokenSettings(counter="litellm"))
    assert by_name.accuracy == "heuristic"
    with pytest.raises(TokenCountingError, match="downloads this model's tokenizer"):
        counter_for("ollama/llama-3.3-70b", TokenSettings(counter="litellm"))


# in the plugin


def test_a_failing_counter_costs_a_pack_nothing_but_a_line(offered: Callable[..., None]) -> None:
    words = Words()
    offered("words", lambda model, settings: words)
    store = new_store()
    chat = Chat(
        script=["hi", call("look_up", key="a"), "done", "bye"],
        tools=[look_up],
        policy=PackPolicy(tokens={"counter": "words"}),
        store=store,
    )
    chat.say("hello there")
    words.broken = "the service is down"
    chat.say("and now?")
    words.broken = ""
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


def test_a_counter_that_was_not_there_is_told_once_a_session(offered: Callable[..., None]) -> None:
    def make(model: str, settings: TokenSettings) -> TokenCounter:
        raise MissingExtra("tokenizers", "counting by a tokenizer.json")

    offered("words", make)
    store = new_store()
    chat = Chat(script=["hi"] * 4, policy=PackPolicy(tokens={"counter": "words"}), store=store)
    chat.say("one", "two")
    chat.say("three", session="s2")
    told = [
        (pack.session, sum("aether-context-adk[tokenizers]" in line for line in pack.degradations))
        for pack in store.manifests()
    ]
    assert sorted(told) == [("s1", 0), ("s1", 1), ("s2", 1)]


def test_a_model_switch_begins_a_new_chain_that_replays(offered: Callable[..., None]) -> None:
    store = new_store()
    chat = Chat(script=["hi", "there"], store=store, model="gemini-2.5-flash")
    chat.say("hello")
    chat.llm.model = "gpt-4o"
    chat.say("again")
    first, second = store.manifests()
    assert first.counter != second.counter
    assert second.extends is None
    assert all(replay(pack, store).matches for pack in (first, second))


def test_a_provider_is_asked_in_one_batch_off_the_event_loop(offered: Callable[..., None]) -> None:
    loops: list[str] = []

    class Remote(Words):
        def count_all(self, texts: Sequence[str]) -> list[int]:
            loops.append(threading.current_thread().name)
            return super().count_all(texts)

    remote = Remote()
    offered("words", lambda model, settings: remote, network="always")
    chat = Chat(
        script=[call("look_up", key="a"), "done"],
        tools=[look_up],
        policy=PackPolicy(tokens={"counter": "words", "network": True}),
    )
    chat.say("hello there")
    assert loops
    assert "MainThread" not in loops
    contents = [texts for texts in remote.asked if any("hello there" in text for text in texts)]
    assert len(contents) == 1
    assert len(chat.sent) == 2


# what is counted


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


def test_picks_are_values() -> None:
    pick = Counters(TokenSettings(), clock=Clock()).pick("gpt-4o")
    assert isinstance(pick, Pick)
    assert not pick.remote


def test_models_of_one_family_share_texts_but_not_images() -> None:
    from aether_context.conversation.content_json import content_of_parts, part_of

    image = {"inline_data": {"mime_type": "image/png", "data": "sha256:0"}}
    cache, words = TokenCache(), Words()
    for tokens in (765, 25_501):
        parts = [part_of({"text": "what is this"}), part_of(image, media_tokens=tokens)]
        counter = PackCounter(words, cache, framing=framing_of("gpt-4o"))
        assert counter.content(content_of_parts("user", parts)) == 4 + 4 + tokens
    assert len(words.asked) == 1


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
