"""What the plugin keeps in a session's state: little, and enough to go on from without any store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scripted
from failing import FailingFileSystem
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.state import State
from plans import aether, cached_input_costs, loop, planned, small, turns
from restarting import Restarting, same_requests
from scripted import Chat, call, look_up, new_store, set_state, state_of

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.adk.session import load_epoch, save_epoch
from aether_context.canonical import strings
from aether_context.conversation.summary import SUMMARY_TITLE
from aether_context.pack import Epoch, Identity, PackedMessage

DOCS = Path(__file__).parents[1] / "docs"
PROSE = [
    paragraph
    for page in ("concepts", "evidence", "usage", "strategies", "retrieval", "stores")
    for paragraph in (DOCS / f"{page}.md").read_text(encoding="utf-8").split("\n\n")
    if 300 < len(paragraph) < 2_000 and "|" not in paragraph and "`" in paragraph
]


def read_page(number: int) -> dict[str, Any]:
    """Reads a page."""
    return {"page": number, "text": "\n".join(PROSE[(5 * number + at) % len(PROSE)] for at in range(5))}


def reading(**settings: Any) -> Chat:
    """Questions in prose; for each the model reads a page and answers in prose."""
    script = [
        reply for at, text in enumerate(PROSE) for reply in (call("read_page", number=at), f"It says that {text}")
    ]
    return Chat(script=script, tools=[read_page], **settings)


def asked(at: int) -> str:
    return f"What of this?\n{PROSE[-at % len(PROSE)]}"


def written(event: Event) -> dict[str, Any]:
    return aether(event.actions.state_delta)


def packed_as(event: Event) -> str:
    return str((event.custom_metadata or {}).get("aether_context", {}).get("pack_id", ""))


def size(values: Mapping[str, Any]) -> int:
    return len(json.dumps(values))


# how much


def test_a_cut_writes_little_however_long_its_summary_is() -> None:
    policy = PackPolicy(max_input_tokens=10_000, retrieval={"recall": False}, offload={"mode": "off"})
    chat = reading(policy=policy)
    events = chat.say(*map(asked, range(24)))
    cuts = [one.pack_id for one in chat.manifests() if any(event.stage == "cut" for event in one.truncation_events)]
    assert len(cuts) > 3
    heads = [one.contents[0].parts[0].text for one in chat.sent]
    assert max(len(head) for head in heads if head.startswith(SUMMARY_TITLE)) > 4_096
    at_cuts = [written(event) for event in events if packed_as(event) in cuts]
    assert all(any(key.startswith("aether:summary:") for key in values) for values in at_cuts)
    assert max(map(size, at_cuts)) <= 6_000


def test_a_call_that_only_appends_writes_nothing() -> None:
    chat = Chat(script=[*loop(6), "done"], tools=[look_up], state=planned())
    events = chat.say("go")
    assert [bool(written(event)) for event in events] == [True, *[False] * (len(events) - 1)]


@pytest.mark.parametrize("length", [1, 40], ids=["short", "long"])
def test_a_packed_message_does_not_repeat_what_the_user_wrote(length: int) -> None:
    message = "\n".join(PROSE[:length])
    chat = Chat(state=planned(), policy=PackPolicy(max_input_tokens=100_000))
    (event,) = chat.say(message)
    assert chat.sent[0].human().startswith("CONTEXT PACK")
    assert chat.sent[0].human().endswith(message)
    assert size(written(event)) < 1_200


@pytest.mark.parametrize("odd", ["\ud83d", "\0", "json:[]", "\u00e9\n"])
def test_any_text_comes_back_from_a_state_that_any_store_takes(odd: str) -> None:
    identity, state = Identity(app="shop", user="ann", session="s1", invocation="i1", agent="clerk"), State({}, {})
    whole = PackedMessage(of="h", invocation="i1", text=f"{odd} pack of {odd}", split=3, covers=(odd,))
    own = f"my own words {odd}"
    after = Epoch(number=1, cut_count=3, summary=f"{odd} said {odd}", payloads=(whole, replace(whole, text=odd + own)))
    save_epoch(state, identity, Epoch(number=0), after, lambda message: own)
    stored = json.dumps(state.to_dict(), ensure_ascii=False)
    assert stored.encode()
    assert all("\0" not in text for _, text in strings(state.to_dict()))
    assert stored.count("my own words") == 0
    assert load_epoch(json.loads(stored), identity, lambda message: own) == after
    assert load_epoch(json.loads(stored), identity, lambda message: "").payloads == (whole,)


def test_what_is_taken_back_is_taken_out_of_the_state() -> None:
    chat = reading(policy=small(1_500), state=planned())
    chat.say(*map(asked, range(12)))
    session = asyncio.run(chat.held())
    (epoch,) = (value for key, value in session.state.items() if key.startswith("aether:epoch:"))
    held = [key for key, value in session.state.items() if key.startswith("aether:summary:") and value is not None]
    assert len(held) == epoch["summary_parts"]


def test_what_an_event_says_of_its_call_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripted, "size", lambda request: 123_456)
    turning = {"strategy": ("sliding_turns",), "sliding_turns": {"tokens": 600}}
    policy = PackPolicy(max_input_tokens=100_000, conversation=turning)
    chat = Chat(policy=policy, tools=[look_up], script=[*loop(3), "done"] * 12)
    said = [(event.custom_metadata or {}).get("aether_context") for event in chat.say(*turns(12))]
    noted = [one for one in said if one is not None]
    assert len(noted) == len(chat.sent)
    assert set(noted[-1]) == {"pack_id", "number", "request_tokens", "reports", "usage", "cutoff"}
    assert max(len(json.dumps(one, separators=(",", ":"))) for one in noted) <= 330


# going on, in another process


STORES: dict[str, Callable[[], PackStore]] = {
    "its own": new_store,
    "one that is away": lambda: PackStore("failing://away"),
}


class Elsewhere(Restarting):
    """For every model call a new plugin, as in another worker, which has no store in common with the one before."""

    def __init__(self, store: Callable[[], PackStore], **settings: Any) -> None:
        self.store_of, self.workers = store, list[ContextPackPlugin]()
        super().__init__(store=store(), **settings)

    async def before_model_callback(self, **given: Any) -> Any:
        self.workers.append(ContextPackPlugin(**{**self.settings, "store": self.store_of()}))
        self.latest = self.workers[-1]
        return await self.latest.before_model_callback(**given)

    async def after_run_callback(self, **given: Any) -> None:
        """A worker does not wait for its store."""

    async def close(self) -> None:
        FailingFileSystem.down = False
        for worker in self.workers:
            await worker.close()


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setattr(FailingFileSystem, "down", True)


@cached_input_costs(0.001)
@pytest.mark.usefixtures("away")
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("known", ["nothing", "plan"])
def test_a_worker_with_another_store_sends_the_same_bytes(store: str, known: str, tmp_path: Path) -> None:
    # A result that no store takes stays whole, so where results are offloaded workers send what their stores allow.
    settings = {"retrieval": {"recall": False}, "offload": {"mode": "off"}}
    policy = small(2_500, **settings)

    async def held(name: str, plugin: BasePlugin | None) -> Chat:
        service = DatabaseSessionService(db_url=f"sqlite+aiosqlite:///{tmp_path / name}")
        state = planned() if known == "plan" else {}
        chat = reading(policy=policy, state=state, plugin=plugin, sessions=service)
        for at in range(10):
            await chat.tell(asked(at))
        await chat.runner.close()
        await service.close()
        return chat

    steady = asyncio.run(held("steady.db", None))
    assert any(one.contents[0].parts[0].text.startswith(SUMMARY_TITLE) for one in steady.sent)
    same_requests(steady, asyncio.run(held("others.db", Elsewhere(STORES[store], policy=policy, on_error="raise"))))


def test_a_part_of_a_summary_that_is_damaged_loses_nothing() -> None:
    chat = reading(policy=small(3_000, retrieval={"recall": False}))
    chat.say("Remember the number 4711-A for me, please.", *map(asked, range(12)))
    (epoch,) = (value for key, value in state_of(chat).items() if key.startswith("aether:epoch:"))
    scope = next(key for key in state_of(chat) if key.startswith("aether:summary:")).split(":")[2]
    assert epoch["summary_parts"] > 0
    for damaged in (None, 7, "", "another text", "json:7"):
        asyncio.run(set_state(chat, **{f"aether:summary:{scope}:0": damaged}))
        chat.say("And the number?")
        assert "4711-A" in "\n".join(chat.sent[-1].wires)
        assert chat.manifests()[-1].request_tokens <= 3_000
    chat.replays()


@cached_input_costs(0.001)
def test_where_one_packed_message_is_damaged_the_others_stay_as_they_are() -> None:
    chat = Chat(policy=PackPolicy(max_input_tokens=20_000), state=planned())
    chat.say("one", "two", "three")
    scope = next(key for key in state_of(chat) if key.startswith("aether:payload:")).split(":")[2]
    asyncio.run(set_state(chat, **{f"aether:payload:{scope}:0": "damaged"}))
    for message in ("four", "five"):
        chat.restart()
        chat.say(message)
    before, after = chat.sent[-2:]
    assert after.wires[: len(before.wires)] == before.wires
    assert sum("CONTEXT PACK" in wire for wire in after.wires) == 4
