"""The plugin beside what ADK itself does to history, caches and agents: each with ADK's own classes.

Whatever ADK does: requests stay valid, within an epoch each request of an agent extends the one before, no words are
sent that ADK itself did not hand on, and every pack verifies and replays byte for byte.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from google import genai
from google.adk.agents import LlmAgent
from google.adk.agents.context_cache_config import ContextCacheConfig
from google.adk.apps.app import EventsCompactionConfig, ResumabilityConfig
from google.adk.apps.base_events_summarizer import BaseEventsSummarizer
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.models.cache_metadata import CacheMetadata
from google.adk.models.google_llm import Gemini
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from plans import planned
from scripted import Chat, Scripted, Sent, call, faults

from aether_context import Manifest, PackPolicy, verify


def read_page(name: str) -> str:
    """Reads a page."""
    return "\n".join(f"{name} line {at}: rivers rise and fall with rain" for at in range(40))


def reading(count: int, last: str = "done", begin: int = 0) -> list[Any]:
    """A loop of so many calls, and an answer."""
    return [*(call("read_page", name=f"page_{at}") for at in range(begin, begin + count)), last]


def checked(chat: Chat, marks: str = r"[a-z]+_\d+") -> list[Manifest]:
    """The manifests of a conversation, after all that must hold in any.

    Args:
        marks: a pattern of words that tell where a text comes from.
    """
    # Agents that run side by side may be packed in another order than they came in; each one's calls keep theirs.
    raws, sent = (sorted(some, key=lambda one: (one.session, one.agent)) for some in (chat.raw, chat.sent))
    for raw, left in zip(raws, sent, strict=True):
        assert faults(left.contents) == [] or begins_with_adks_own(raw, left)
        assert marked(left, marks) <= marked(raw, marks), "words that ADK does not show to this agent at this call"
    chat.replays()
    found = verify(chat.store)
    assert (found.packs, found.faults) == (len(chat.sent), {})
    assert grown(chat) > 0
    return chat.manifests()


def begins_with_adks_own(raw: Sent, left: Sent) -> bool:
    """Whether a request begins with the model's words because ADK's own summary of older events stands there."""
    return raw.contents[0].role == "model" and left.wires[0] == raw.wires[0] and faults(left.contents) == NOT_A_USER


NOT_A_USER = ["does not begin with a user message"]


def marked(one: Sent, marks: str) -> set[str]:
    """The words of a pattern that stand in a request."""
    return set(re.findall(marks, "\n".join((str(one.system), *one.wires)).replace("\\n", " ")))


def agents(chat: Chat) -> dict[tuple[str, str], list[tuple[Sent, Manifest]]]:
    """The requests of each agent in each session, with their manifests, in order."""
    found: dict[tuple[str, str], list[tuple[Sent, Manifest]]] = {}
    for session, agent in {(one.session, one.agent): None for one in chat.sent}:
        user, _, name = session.partition("/")
        sents = [one for one in chat.sent if (one.session, one.agent) == (session, agent)]
        manifests = [one for one in chat.store.manifests(user=user, session=name) if one.agent == agent]
        found[session, agent] = list(zip(sents, manifests, strict=True))
    return found


def grown(chat: Chat) -> int:
    """How many requests extend the one before them.

    Within an epoch each one does, but for a packed message that returns to the user's words at the next one.
    """
    count = 0
    for calls in agents(chat).values():
        for (one, _), (other, manifest) in itertools.pairwise(calls):
            if manifest.epoch_reason is not None:
                continue
            assert (other.system, other.declared) == (one.system, one.declared)
            pairs = zip(one.wires, other.wires, strict=False)
            changed = next((at for at, (before, after) in enumerate(pairs) if before != after), None)
            if changed is None:
                assert len(other.wires) >= len(one.wires)
                assert manifest.prefix.broken_by is None
                count += 1
            else:
                assert manifest.prefix.broken_by == "new_invocation"
                packed, plain = (sent.contents[changed].parts[0].text for sent in (one, other))
                assert packed.startswith("CONTEXT PACK")
                assert packed.endswith(f"USER REQUEST:\n{plain}")
    return count


def reasons(manifests: Sequence[Manifest]) -> list[str]:
    """Why epochs began, the first one aside."""
    return [one.epoch_reason for one in manifests if one.epoch_reason not in (None, "first_call")]


@dataclass
class Provider:
    """Gemini's API as far as ADK's cache needs it, behind the real client: caches, and answers from a script.

    ``asked`` are the requests, each as the name of the cache that it used and all contents, cached ones first.
    """

    script: list[Any]
    caches: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    asked: list[tuple[str, list[str]]] = field(default_factory=list)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        if request.method == "DELETE":
            self.deleted.append(self._name(request))
            return httpx.Response(200, json={})
        if request.url.path.endswith("/cachedContents"):
            name = f"cachedContents/{len(self.made) + 1}"
            self.made.append(name)
            self.caches[name] = body
            return httpx.Response(200, json={"name": name, "model": body["model"]})
        return httpx.Response(200, json=self._answer(body))

    @staticmethod
    def _name(request: httpx.Request) -> str:
        return "cachedContents/" + request.url.path.rpartition("/")[2]

    def _answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        name = body.get("cachedContent", "")
        assert name not in self.deleted
        cached = self.caches.get(name, {})
        contents = [*cached.get("contents", ()), *body["contents"]]
        self.asked.append((name, [json.dumps(one, sort_keys=True) for one in contents]))
        reply = self.script.pop(0)
        part = {"text": reply} if isinstance(reply, str) else reply.model_dump(mode="json", exclude_none=True)
        part = {"functionCall": part["function_call"]} if "function_call" in part else part
        used = len(json.dumps([cached, body])) // 4
        usage = {"promptTokenCount": used, "candidatesTokenCount": 9, "totalTokenCount": used + 9}
        if name:
            usage["cachedContentTokenCount"] = len(json.dumps(cached)) // 4
        answer = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}
        return {"candidates": [answer], "usageMetadata": usage}


class Cached(Gemini):
    """ADK's Gemini, which notes the cache metadata of each request as they come out of the plugin."""

    seen: list[Any] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.seen.append(llm_request.cache_metadata)
        async for response in super().generate_content_async(llm_request, stream):
            yield response


@dataclass
class CachedChat:
    """A conversation with ADK's explicit caches. ``given`` are the cache metadata as the plugin got them."""

    chat: Chat
    provider: Provider
    model: Cached
    given: list[CacheMetadata | None]

    @property
    def metadata(self) -> list[CacheMetadata]:
        """What ADK wrote of its caches into the session's events."""
        events = asyncio.run(self.chat.held()).events
        return [event.cache_metadata for event in events if event.cache_metadata is not None]


def cached_chat(script: Sequence[Any], window: int, state: Mapping[str, Any], **settings: Any) -> CachedChat:
    provider = Provider(list(script))
    client = genai.Client(
        api_key="test",
        http_options=types.HttpOptions(httpx_async_client=httpx.AsyncClient(transport=httpx.MockTransport(provider))),
    )
    model = Cached(model="gemini-2.5-flash", client=client, seen=[])
    given: list[CacheMetadata | None] = []
    chat = Chat(
        agent=LlmAgent(
            name="clerk",
            model=model,
            instruction="You look after the library of a river authority. " * 220,
            tools=[read_page],
        ),
        policy=PackPolicy(max_input_tokens=window, **settings),
        state=state,
        app_settings={"context_cache_config": ContextCacheConfig(cache_intervals=100, ttl_seconds=36_000)},
        alter=lambda _, request: given.append(request.cache_metadata),
    )
    return CachedChat(chat=chat, provider=provider, model=model, given=given)


def test_one_cache_of_adk_serves_a_whole_epoch() -> None:
    script = [*reading(4), *reading(3), "yes", *reading(2)]
    run = cached_chat(script, 60_000, planned())
    run.chat.say("read four", "three more", "is that all?", "and two")
    manifests = checked(run.chat)
    assert {one.epoch.number for one in manifests} == {1}
    assert run.provider.made == ["cachedContents/1"]
    assert run.provider.deleted == []
    used = [name for name, _ in run.provider.asked]
    assert used == ["", *["cachedContents/1"] * (len(script) - 1)]


@pytest.mark.parametrize("state", [pytest.param({}, marks=pytest.mark.slow), planned()], ids=["unplanned", "planned"])
@pytest.mark.rows(1)
def test_a_cut_ends_adks_cache_and_the_next_epoch_has_one_of_its_own(state: Mapping[str, Any]) -> None:
    run = cached_chat(reading(30), 12_000, state)
    run.chat.say("read thirty")
    manifests = checked(run.chat)
    epochs = [one.epoch.number for one in manifests]
    used = [name for name, _ in run.provider.asked]
    assert epochs[-1] > 2
    for number in sorted(set(epochs)):
        names = [name for epoch, name in zip(epochs, used, strict=True) if epoch == number]
        first, *rest = names
        assert first == "", "nothing stands that a cache from before the cut could serve"
        assert set(rest) <= {f"cachedContents/{number}"}
    assert run.provider.deleted == run.provider.made[: len(run.provider.deleted)]
    assert len(run.provider.deleted) == epochs[-1] - 1


class Digest(BaseEventsSummarizer):
    """Compacts events into one line with the first word of each message."""

    async def maybe_summarize_events(self, *, events: list[Event]) -> Event | None:
        texts = [part.text for event in events if event.content for part in event.content.parts or () if part.text]
        digest = "Earlier: " + ", ".join(text.split()[0] for text in texts)
        compaction = EventCompaction(
            start_timestamp=events[0].timestamp,
            end_timestamp=events[-1].timestamp,
            compacted_content=types.Content(role="model", parts=[types.Part(text=digest)]),
        )
        return Event(author="user", actions=EventActions(compaction=compaction))


def compaction(kind: str) -> EventsCompactionConfig:
    """By a model after every third invocation, or by `Digest` where requests pass 1,000 tokens."""
    if kind == "tokens":
        return EventsCompactionConfig(summarizer=Digest(), token_threshold=1_000, event_retention_size=4)
    writer = Scripted(script=[f"Earlier: summary_{at}" for at in range(20)], sent=[])
    return EventsCompactionConfig(summarizer=LlmEventSummarizer(llm=writer), compaction_interval=3, overlap_size=1)


def messages(count: int, size: int = 25) -> list[str]:
    """Messages of about seven tokens for each of ``size``, each with a mark of its own."""
    return [f"msg_{at}: " + "tell me of that river " * size for at in range(count)]


def answering(count: int) -> list[Any]:
    """A call and an answer for each message."""
    return [one for at in range(count) for one in (call("read_page", name=f"page_{at}"), f"answer_{at}")]


@pytest.mark.parametrize(
    ("kind", "window"), [("invocations", 60_000), ("tokens", 60_000), ("invocations", 1_500), ("tokens", 3_000)]
)
@pytest.mark.rows(1)
def test_adks_compaction_begins_an_epoch_and_nothing_that_it_removed_comes_back(kind: str, window: int) -> None:
    chat = Chat(
        script=answering(14),
        tools=[read_page],
        policy=PackPolicy(max_input_tokens=window),
        state=planned(),
        app_settings={"events_compaction_config": compaction(kind)},
    )
    chat.say(*messages(14))
    manifests = checked(chat)
    assert "history_rewritten" in reasons(manifests)
    for raw, left, manifest in zip(chat.raw, chat.sent, manifests, strict=True):
        compacted = any(content.role == "model" for content in raw.contents[:1])
        if compacted and manifest.epoch.cut_count == 0:
            assert left.contents[0].parts[0] == raw.contents[0].parts[0]
            assert left.contents[0].role == "user"
    if window == 60_000:
        assert set(reasons(manifests)) == {"history_rewritten"}


@pytest.mark.parametrize(("back_to", "window", "summary_share"), [(1, 2_500, 0.2), (4, 2_500, 0), (8, 60_000, 0.2)])
@pytest.mark.rows(1)
def test_nothing_that_was_rewound_is_ever_sent_again(back_to: int, window: int, summary_share: float) -> None:
    chat = Chat(
        script=[
            *answering(9),
            *(one for at in range(9, 15) for one in (call("read_page", name=f"page_{at}"), f"answer_{at}")),
        ],
        tools=[read_page],
        policy=PackPolicy(max_input_tokens=window, conversation={"summary_share": summary_share}),
        state=planned(),
    )
    every = messages(15)
    chat.say(*every[:9])
    asked = [event for event in asyncio.run(chat.held()).events if event.author == "user" and event.content]
    at = next(event for event in asked if event.content.parts[0].text == every[back_to])
    asyncio.run(chat.runner.rewind_async(user_id="ann", session_id="s1", rewind_before_invocation_id=at.invocation_id))
    before = len(chat.sent)
    chat.say(*every[9:])
    manifests = checked(chat)
    gone = {f"{word}_{number}" for number in range(back_to, 9) for word in ("msg", "page", "answer")}
    assert all(not marked(one, r"[a-z]+_\d+") & gone for one in chat.sent[before:])
    assert manifests[before].epoch_reason in ("history_rewritten", "first_call", "high_water")


def order_book(title: str) -> None:
    """Orders a book, which takes days."""


def late(events: Sequence[Event], tool: str, status: str) -> types.Content:
    """The result of a long-running call, as a client posts it."""
    asked = next(one for event in events for one in event.get_function_calls() if one.name == tool)
    came = types.FunctionResponse(id=asked.id, name=tool, response={"status": status})
    return types.Content(role="user", parts=[types.Part(function_response=came)])


@pytest.mark.parametrize("window", [60_000, 2_500])
def test_an_invocation_that_waits_for_a_result_is_resumed_in_its_epoch(window: int) -> None:
    chat = Chat(
        script=[*reading(3), *reading(4)[:-1], call("order_book", title="Rivers"), *reading(4, "it came", begin=4)],
        tools=[read_page, LongRunningFunctionTool(order_book)],
        policy=PackPolicy(max_input_tokens=window),
        state=planned(),
        app_settings={"resumability_config": ResumabilityConfig(is_resumable=True)},
    )
    chat.say("msg_0: read three")
    paused = chat.say("msg_1: read four, order the book, and go on when it is here")
    waiting = len(chat.sent)
    assert waiting == 4 + 5
    resumed = chat.say(late(paused, "order_book", "here_1"))
    said = [event.content.parts[0].text for event in resumed if event.content]
    assert said[-1] == "it came"
    assert {event.invocation_id for event in resumed} == {paused[-1].invocation_id}
    assert all("here_1" in "".join(one.wires) for one in chat.sent[waiting : waiting + 2])
    manifests = checked(chat)
    assert "history_rewritten" not in reasons(manifests)
    numbers = [(one.invocation, one.call) for one in manifests]
    assert len(numbers) == len(set(numbers))


def order_slowly(title: str) -> dict[str, str]:
    """Orders a book and says so at once; the book takes days."""
    return {"status": "ordered_1"}


@pytest.mark.parametrize("restart", [False, True])
def test_a_late_result_in_the_place_of_an_earlier_one_is_history_rewritten(restart: bool) -> None:
    policy = PackPolicy(max_input_tokens=60_000)
    chat = Chat(
        script=[*reading(3)[:-1], call("order_slowly", title="Rivers"), *reading(3, "ordered"), "it came"],
        tools=[read_page, LongRunningFunctionTool(order_slowly)],
        policy=policy,
        state=planned(),
    )
    asked = chat.say("msg_0: read three, order the book and read on")
    if restart:
        chat.restart()
    chat.say(late(asked, "order_slowly", "here_1"), "msg_1: thanks")
    manifests = checked(chat)
    assert reasons(manifests) == ["history_rewritten"]
    assert manifests[-2].epoch_reason == "history_rewritten"
    assert "here_1" in "".join(chat.sent[-2].wires)
    assert "ordered_1" not in "".join(chat.sent[-2].wires)
