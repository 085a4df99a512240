"""What others wrote fails, hangs, talks nonsense or cancels: each call is made, with its plan, within the window."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

import pytest
from google.adk.artifacts import InMemoryArtifactService
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.models.base_llm import BaseLlm
from plans import planned, words
from scripted import Chat, call, inside, look_up, new_store

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin, bounds
from aether_context.conversation import Conversation, Decision, register_strategy, unregister_strategy
from aether_context.pack import ContentForm
from aether_context.retrieval import embedders
from aether_context.tokens import choice, counter_for, register_counter

Figure = Callable[[str, float], None]
FAULTS = ("raises", "hangs", "garbage", "cancels")
SERVICES = ("memory", "embedder")
WINDOW = 3_000
TURNS = 4
_let_go = threading.Event()


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """What hangs goes on at the end of a test."""
    _let_go.clear()
    yield
    _let_go.set()
    choice._REGISTERED.pop("faulty", None)
    embedders._REGISTERED.pop("faulty", None)
    unregister_strategy("faulty")


def fail(fault: str) -> None:
    """A fault in a function."""
    if fault == "raises":
        raise RuntimeError("broken")
    if fault == "cancels":
        raise asyncio.CancelledError
    if fault == "hangs":
        _let_go.wait(60)


async def fail_soon(fault: str) -> None:
    """The same in a coroutine."""
    if fault == "hangs":
        await asyncio.sleep(60)
    await asyncio.sleep(0)
    fail(fault)


class FaultyMemory(BaseMemoryService):
    def __init__(self, fault: str) -> None:
        self.fault = fault

    async def add_session_to_memory(self, session: Any) -> None: ...

    async def search_memory(self, **query: Any) -> Any:
        await fail_soon(self.fault)
        return None


class FaultyEmbedder:
    def __init__(self, fault: str) -> None:
        self.fault = fault

    def embed(self, texts: Sequence[str], *, purpose: str = "entry") -> Any:
        fail(self.fault)
        return [None] * (len(texts) + 1)


class FaultyModel(BaseLlm):
    """A summarizer or a Critic."""

    model: str = "faulty-model"
    fault: str = ""

    async def generate_content_async(self, request: Any, stream: bool = False) -> AsyncGenerator[Any, None]:
        await fail_soon(self.fault)
        yield "x" * 10_000_000


def faulty_check(fault: str) -> Callable[..., Any]:
    def check(*_: Any) -> Any:
        fail(fault)
        return ["odd", {"things": 1}]

    return check


class FaultyCounter:
    """``garbage`` counts one token for any text."""

    accuracy = "exact"

    def __init__(self, fault: str) -> None:
        self.fault, self.name = fault, f"faulty-{fault}"

    def count(self, text: str) -> int:
        return self.count_all([text])[0]

    def count_all(self, texts: Sequence[str]) -> list[int]:
        fail(self.fault)
        return [1] * len(texts)


class FaultyStrategy:
    """``garbage`` names contents that do not exist."""

    name, early = "faulty", False

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def trim(self, conversation: Conversation, target_tokens: int) -> Decision:
        fail(self.fault)
        return Decision(forms={9_999: None, -3: "x"}, summary=b"")  # type: ignore[dict-item, arg-type]


class FaultyArtifacts(InMemoryArtifactService):
    fault: str = ""

    async def save_artifact(self, **saved: Any) -> Any:
        await fail_soon(self.fault)
        return -1

    async def load_artifact(self, **asked: Any) -> Any:
        await fail_soon(self.fault)
        return "nothing"


class FaultyReads(PackStore):
    """What is read from it: calibration, summaries, evidence."""

    fault = ""

    def _read(self, *_: Any, **__: Any) -> Any:
        fail(self.fault)
        return ["odd", 7]

    calibration = summary = evidence_data = _read  # type: ignore[assignment]


def chat_with(collaborator: str, fault: str, deadline: float) -> Chat:
    settings: dict[str, Any] = {
        "max_input_tokens": WINDOW,
        "retrieval": {},
        "conversation": {"strategy": ("summarize",)},
    }
    own: dict[str, Any] = {"store": new_store(), "on_error": "passthrough"}
    services: dict[str, Any] = {}
    match collaborator:
        case "memory":
            services["memory"] = FaultyMemory(fault)
        case "embedder":
            embedders.register_embedder("faulty", FaultyEmbedder(fault))
            settings["retrieval"]["embedder"] = "faulty"
        case "summarizer":
            own["summarizer"] = FaultyModel(fault=fault)
        case "critic":
            own["critic"] = FaultyModel(fault=fault)
        case "check":
            own["checks"] = [faulty_check(fault)]
        case "counter":
            register_counter("faulty", FaultyCounter(fault))
            settings["tokens"] = {"counter": "faulty"}
        case "strategy":
            register_strategy("faulty", lambda settings: FaultyStrategy(fault))
            settings["conversation"] = {"strategy": ("faulty",)}
        case "artifacts":
            services["artifacts"] = FaultyArtifacts()
            services["artifacts"].fault = fault
            own["mirror_artifacts"] = True
        case "reads":
            own["store"] = FaultyReads(own["store"].url)
            own["store"].fault = fault
            own["summarizer"] = FaultyModel(fault="raises")
    plugin = ContextPackPlugin(policy=PackPolicy(**settings), **own)
    plugin._packer._parts.waits.seconds = plugin._packer._parts.summarizer.seconds = deadline
    if collaborator in ("critic", "check"):
        plugin._packer._parts.reviewer.seconds = deadline
    state = planned(knowledge={"notes": [f"note {at}: {words(30, f'n{at}')}" for at in range(8)]})
    chat = Chat(plugin=plugin, state=state, tools=[look_up], **services)
    chat.llm.usage = False  # so that nothing but the counter says how long a request is
    return chat


COLLABORATORS = (
    *SERVICES, "summarizer", "critic", "check", "counter", "strategy", "artifacts", "reads",
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("collaborator", COLLABORATORS)
@pytest.mark.rows(6)
def test_a_collaborator_that_fails_costs_no_call(
    collaborator: str, fault: str, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (collaborator, fault) == ("strategy", "hangs"):
        pytest.skip("what decides without waiting cannot be left behind")
    monkeypatch.setattr(bounds, "_COUNTING_SECONDS", 0.3)
    chat = chat_with(collaborator, fault, 0.2)
    turns = 1 if (collaborator, fault) == ("artifacts", "hangs") else TURNS  # each waits for them at its end
    for turn in range(turns):
        chat.llm.script[:] = [call("look_up", key=f"k{turn}"), f"The rate of {turn} is 7 %. {words(60, f'a{turn}')}"]
        events = chat.say(f"question {turn}: {words(150, f'q{turn}')}")
        assert events[-1].content is not None
    figure("calls_made", len(chat.llm.sent) / (2 * turns))
    kept = [sent for sent in chat.sent if "The rate is named" in sent.text]
    figure("acceptance_kept", len(kept) / (2 * turns))
    counter = counter_for("gemini-2.5-flash")
    over = [sent for sent in chat.sent if counter.count(sent.text) > WINDOW]
    figure("over_window", len(over))
    invalid = [sent.faults for sent in chat.sent if sent.faults]
    figure("invalid", len(invalid))
    assert (len(chat.llm.sent), len(kept), len(over), invalid) == (2 * turns, 2 * turns, 0, [])
    manifests = chat.manifests()
    assert len(manifests) == 2 * turns
    assert all(inside(manifest, WINDOW) for manifest in manifests)


NUMBERS: dict[str, Callable[[str], Any]] = {
    "negative": lambda text: -5, "none for a text": lambda text: 0, "a fraction": lambda text: len(text) / 4,
    "not a number": lambda text: float("nan"), "a truth": lambda text: True, "nothing": lambda text: None,
    "a text": lambda text: "7", "far too few": lambda text: 1 + len(text) // 5_000,
    "far too many": lambda text: 10**9,
}  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.rows(5)
def test_numbers_that_no_tokenizer_gives_are_not_believed(
    number: str, figure: Figure, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(FaultyCounter):
        def count_all(self, texts: Sequence[str]) -> Any:
            return [NUMBERS[number](text) for text in texts]

    chat = chat_with("counter", "", 1)
    register_counter("faulty", Odd(number))
    for turn in range(2):
        chat.say(f"question {turn}: {words(900, f'q{turn}')}")
    counter = counter_for("gemini-2.5-flash")
    over = [sent for sent in chat.sent if counter.count(sent.text) > WINDOW]
    figure("over_window", len(over))
    assert over == []
    assert all("The rate is named" in sent.text for sent in chat.sent)
    manifests = chat.manifests()
    assert len(manifests) == 2
    assert "numbers that cannot be" in "; ".join(manifests[0].degradations)
    assert len([record for record in caplog.records if record.name == "aether_context"]) == 1


GONE = ContentForm("left_out", "window")
WRONG: dict[str, Callable[[Conversation], dict[int, ContentForm]]] = {
    "tear": lambda conversation: {at: GONE for at, content in enumerate(conversation.contents) if content.calls},
    "lose the request": lambda conversation: {conversation.request_index or 0: GONE},
    "blank the request": lambda conversation: {conversation.request_index or 0: GONE._replace(form="placeholder")},
    "name what is not there": lambda conversation: {999: GONE},
    "a form that no strategy gives": lambda conversation: {0: GONE._replace(form="told", tokens=9)},
    "an extract of any length": lambda conversation: {1: GONE._replace(form="extract")},
    "a reason that there is not": lambda conversation: {1: GONE._replace(reason="a whim")},
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.rows(2)
def test_a_decision_that_would_break_a_request_is_not_taken(wrong: str, figure: Figure) -> None:
    class Wrong(FaultyStrategy):
        def trim(self, conversation: Conversation, target_tokens: int) -> Decision:
            return Decision(WRONG[wrong](conversation))

    chat = chat_with("strategy", "", 1)
    register_strategy("faulty", lambda settings: Wrong(""))
    for turn in range(TURNS):
        chat.llm.script[:] = [call("look_up", key=f"k{turn}"), "It is 7 %."]
        chat.say(f"question {turn}: {words(300, f'q{turn}')}")
    figure("invalid", sum(bool(sent.faults) for sent in chat.sent))
    assert [sent.faults for sent in chat.sent] == [()] * (2 * TURNS)
    assert "faulty" in "; ".join(chat.latest().degradations)
    chat.replays(every=1)


@pytest.mark.parametrize("both", [False, True], ids=["memory", "memory and embedder"])
def test_services_that_hang_share_one_deadline_and_are_left_out(both: bool, figure: Figure) -> None:
    """Of so many turns only the first ones wait at all, and few threads are left behind."""
    chat = chat_with("embedder", "hangs" if both else "", 2.0)
    chat.memory = FaultyMemory("hangs")
    chat.runner.memory_service = chat.memory
    slowest = 0.0
    for turn in range(6):
        before = time.monotonic()
        chat.say(f"question {turn}: {words(100, f'q{turn}')}")
        slowest = max(slowest, time.monotonic() - before)
    figure("service_seconds", slowest)
    assert slowest < 5  # 2 s and what a slow machine takes
    told = ["; ".join(manifest.degradations) for manifest in chat.manifests()]
    assert "memory search failed: TimeoutError" in told[0]
    assert "memory search failed: LeftOut" in told[-1]


@pytest.mark.parametrize("late", [0.0, 0.05, 0.4])
def test_a_run_that_is_cancelled_ends_at_once_and_as_cancelled(late: float) -> None:
    """While memories are looked for, whoever cancels: a task, a timeout, or a scope that cancels again and again."""

    async def run() -> None:
        chat = chat_with("memory", "hangs", 30)
        task = asyncio.ensure_future(chat.tell("hello"))
        await asyncio.sleep(late)
        began = time.monotonic()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await chat.tell("hello again")
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        assert time.monotonic() - began < 5

    asyncio.run(run())
