"""What comes from outside is bounded in number and size before anything looks at it, and deadlines hold."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from matrix import part_slow
from scripted import Chat, Memories, call, faults, look_up, remembered

from aether_context import PackPolicy
from aether_context.adk.bounds import Waits, within
from aether_context.adk.request import reader
from aether_context.adk.tools import memory_tools
from aether_context.conversation import strategy_names, units
from aether_context.conversation.content_json import content_of_parts, part_of, text_part
from aether_context.conversation.normalization import normalize
from aether_context.pack import Content, PackedMessage
from aether_context.packing.carryover import packed_message
from aether_context.tokens import choice, counter_for, register_counter
from aether_context.tokens.cache import PackCounter
from aether_context.tokens.counters import EstimateCounter


def memories_of(chat: Chat) -> list[Any]:
    return [row for row in chat.manifests()[0].rows if row.layer == "memory"]


def test_of_very_many_memories_the_first_are_looked_at() -> None:
    chat = Chat(memory=Memories(*(remembered(f"fact {n}: item {n} is liked") for n in range(20_000))))
    chat.say("what do I like about item 7?")
    assert len(memories_of(chat)) == reader.MOST_MEMORIES
    assert any("of 20000 entries" in said for said in chat.manifests()[0].degradations)
    chat.replays()


def test_a_memory_of_fifty_megabytes_is_read_from_its_beginning() -> None:
    chat = Chat(memory=Memories(remembered("item 7 is liked. " * 3_000_000), remembered("item 7 is blue")))
    chat.say("what do I like about item 7?")
    assert max(row.tokens or 0 for row in memories_of(chat)) < 50_000
    assert len(memories_of(chat)) == 2
    chat.replays()


def test_many_large_memories_leave_room_for_no_more_than_a_window_takes() -> None:
    entries = [remembered(f"{n} item 7 is liked. " * 5_000) for n in range(100)]
    found = list(reader.found_memories(entries))
    assert sum(len(one.text) for one in found) <= 400_000
    assert found[0].text.startswith("0 item 7")


def test_preloaded_memories_are_bounded_too() -> None:
    block = "\n".join(f"Time: 2025-01-0{n % 9 + 1}\nfact {n}" for n in range(50_000))
    text = (
        "The following content is from your previous conversations with the user.\n"
        f"<PAST_CONVERSATIONS>\n{block}\n</PAST_CONVERSATIONS>"
    )
    found = reader.preloaded([types.Content(role="user", parts=[types.Part(text=text)])], None)
    assert found is not None
    assert len(found.memories) == reader.MOST_MEMORIES


def test_of_a_state_with_too_many_notes_the_last_are_read() -> None:
    chat = Chat(state={"knowledge": {"notes": [f"note {n} on item 7" for n in range(20_000)]}})
    chat.say("what of item 7?")
    rows = memories_of(chat)
    assert len(rows) == 1_000
    assert any("of 20000 entries" in said for said in chat.manifests()[0].degradations)


class Stubborn(Memories):
    """Goes on when it is cancelled, until it is let go."""

    def __init__(self) -> None:
        super().__init__(remembered("late"))
        self.free = asyncio.Event()
        self.cancelled = 0

    async def go_on(self) -> None:
        while not self.free.is_set():
            try:
                await self.free.wait()
            except asyncio.CancelledError:
                self.cancelled += 1

    async def search_memory(self, **query: Any) -> Any:
        await self.go_on()
        return await super().search_memory(**query)

    async def add_memory(self, **given: Any) -> None:
        await self.go_on()


@patch.object(Waits, "seconds", 0.05)
def test_a_memory_service_that_swallows_its_cancellation_costs_its_deadline() -> None:
    async def run() -> None:
        memory = Stubborn()
        chat = Chat(memory=memory)
        await asyncio.wait_for(chat.tell("hello"), 20)
        assert memory.cancelled == 1
        assert "memory search failed: TimeoutError" in chat.manifests()[0].degradations
        memory.free.set()

    asyncio.run(run())


def test_remembering_holds_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        memory = Stubborn()
        memory.free.set()
        script = [call("remember", text="blue"), "done"]
        chat = Chat(memory=memory, script=script, tools=memory_tools())
        await chat.tell("hello")
        memory.free.clear()
        chat.llm.script.extend([call("remember", text="red"), "done"])
        monkeypatch.setattr("aether_context.adk.tools._MEMORY_SECONDS", 0.05)
        events = await asyncio.wait_for(chat.tell("again"), 20)
        answers = [one.response or {} for event in events for one in event.get_function_responses()]
        assert "error" in answers[0]
        memory.free.set()

    asyncio.run(run())


def test_what_is_late_is_forgotten_whatever_it_ends_with() -> None:
    async def run() -> None:
        free = asyncio.Event()

        async def fails() -> None:
            try:
                await free.wait()
            except asyncio.CancelledError:
                await free.wait()
            raise ValueError("late and broken")

        with pytest.raises(TimeoutError):
            await within(0.01, fails())
        free.set()
        await asyncio.sleep(0.05)

        async def answers() -> int:
            return 7

        assert await within(5, answers()) == 7

        async def breaks() -> int:
            raise KeyError("x")

        with pytest.raises(KeyError):
            await within(5, breaks())

    asyncio.run(run())


def test_what_fails_as_its_caller_is_cancelled_is_forgotten() -> None:
    logged: list[Mapping[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
        caller = asyncio.current_task()
        assert caller is not None

        async def fails() -> None:
            work = asyncio.current_task()
            assert work is not None
            work.add_done_callback(lambda _: caller.cancel())
            raise ValueError("nobody waits for this")

        with pytest.raises(asyncio.CancelledError):
            await within(5, fails())
        await asyncio.sleep(0)

    asyncio.run(run())
    gc.collect()
    assert logged == []


def one_id(count: int, *, together: bool, id: str = "x") -> list[Content]:
    """So many calls of one tool with one id, with their answers: of one message, or one after another."""
    calls = [part_of({"function_call": {"name": "look_up", "id": id, "args": {"key": str(n)}}}) for n in range(count)]
    answers = [
        part_of({"function_response": {"name": "look_up", "id": id, "response": {"n": n}}}) for n in range(count)
    ]
    if together:
        return [content_of_parts("model", calls), content_of_parts("user", answers)]
    pairs = zip(calls, answers, strict=True)
    return [
        content_of_parts(role, [part]) for pair in pairs for role, part in zip(("model", "user"), pair, strict=True)
    ]


@pytest.mark.parametrize("id", ["x", ""])
def test_calls_with_one_id_pair_in_their_order(id: str) -> None:
    apart = one_id(3, together=False, id=id)
    assert [unit.indices for unit in units(apart)] == [(0, 1), (2, 3), (4, 5)]
    calls, answers = apart[::2], apart[1::2]
    assert [unit.indices for unit in units([*calls, *answers])] == [(0, 3), (1, 4), (2, 5)]
    assert [unit.indices for unit in units(one_id(3, together=True, id=id))] == [(0, 1)]


@pytest.mark.parametrize("id", ["x", ""])
def test_parallel_calls_with_one_id_keep_an_answer_each(id: str) -> None:
    found = normalize(one_id(5, together=True, id=id))
    assert [len(one.content.parts) for one in found] == [5, 5]
    calls, answers = one_id(5, together=True, id=id)
    again = content_of_parts("user", answers.parts[:2])
    assert [len(one.content.parts) for one in normalize([calls, answers, again])] == [5, 5]


@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
@pytest.mark.parametrize("reverse", [True, False], ids=["last first", "in order"])
def test_pairing_takes_time_in_proportion(together: bool, reverse: bool) -> None:
    def seconds(count: int) -> float:
        contents = one_id(count, together=together)
        if reverse:
            contents = [*contents[::2], *reversed(contents[1::2])]
        began = time.thread_time()
        units(contents)
        normalize(contents)
        return time.thread_time() - began

    seconds(10)
    tries = [(seconds(500), seconds(5_000)) for _ in range(3)]
    # Ten times the calls; a walk over all that wait for each answer would take a hundred times as long.
    assert min(long for _, long in tries) < 40 * min(short for short, _ in tries)


def look_many(key: str, tool_context: ToolContext) -> dict[str, str]:
    """Looks a key up."""
    return {"key": key, "value": "v" * 40}


@pytest.mark.parametrize(("strategy", "id"), part_slow(4, strategy_names(), ["x", None]))
def test_hundreds_of_calls_with_one_id_stay_valid(strategy: str, id: str | None) -> None:
    def asked(key: str) -> types.Part:
        return types.Part(function_call=types.FunctionCall(name="look_many", args={"key": key}, id=id))

    script = [[asked(f"{turn}-{n}") for n in range(300)] for turn in range(3)]
    chat = Chat(
        script=[script[0], "one", script[1], script[2], "two", "three"],
        tools=[look_many],
        policy=PackPolicy(max_input_tokens=8_000, conversation={"strategy": (strategy,)}, offload={"mode": "off"}),
    )
    chat.say("first", "second", "third")
    assert len(chat.sent) == 6
    assert [faults(one.contents) for one in chat.sent] == [[]] * 6
    chat.replays()


def test_more_calls_at_once_than_there_is_room_for_become_one_text_that_stays() -> None:
    many = [call("look_many", key=f"key-{n}") for n in range(300)]
    chat = Chat(
        script=[many, call("look_many", key="one more"), "done", "yes"],
        tools=[look_many],
        policy=PackPolicy(max_input_tokens=4_000, offload={"mode": "off"}),
    )
    chat.say("What is the value of key-177?", "Is that all?")
    texts = [next(part.text for part in sent.contents[1].parts or ()) for sent in chat.sent[1:3]]
    assert texts[0] == texts[1]
    assert 'look_many({"key":"key-177"}): {"key":"key-177","value":"vvv' in str(texts[0])
    assert not any(part.function_call for part in chat.sent[1].contents[1].parts or ())
    rows = [row for row in chat.manifests()[1].rows if row.layer == "conversation"]
    assert [(row.form, row.reason) for row in rows] == [("told", "window"), ("told", "window")]
    assert all(manifest.over_window == 0 for manifest in chat.manifests())
    chat.replays()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
@pytest.mark.parametrize("place", ["memory", "counter"])
def test_an_exit_during_a_call_ends_the_run_and_nothing_else(
    error: BaseException, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memories(remembered("item 7 is blue"))
    chat = Chat(memory=memory, script=["one", "two"])

    def exits(*_: Any) -> Any:
        raise error

    if place == "memory":
        memory.error = error  # type: ignore[assignment]
    else:
        monkeypatch.setattr(EstimateCounter, "count_all", exits)
    with pytest.raises(type(error)):
        chat.say(f"a text that nobody has counted before: {place} {error!r}")
    memory.error = None
    monkeypatch.undo()
    events = chat.say("item 7?")
    assert events[-1].content is not None
    assert not chat.manifests()[-1].degradations
    chat.replays()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_counting_thread_is_no_failed_count(error: type[BaseException]) -> None:
    class Exits:
        def count(self, text: str) -> int:
            raise error(3)

    register_counter("exits", Exits())
    try:
        chat = Chat(script=["one"], policy=PackPolicy(tokens={"counter": "exits"}))
        with pytest.raises(error):
            chat.say("a text")
    finally:
        del choice._REGISTERED["exits"]


def test_a_plan_that_was_tightened_stays_so_when_a_later_call_shortens_the_request() -> None:
    """Its own words and a long request fill the window at the first call and leave room for an exchange later."""
    long = "The bridge is measured at every pier. " * 500
    plan = {"goal": long, "constraints": [long], "step": {"text": "Measure", "acceptance": ["a length is given"]}}
    chat = Chat(
        script=[call("look_up", key=long), call("look_up", key="2"), "done"],
        tools=[look_up],
        state={"plan": plan, "knowledge": {"notes": ["The river is low."]}},
        policy=PackPolicy(max_input_tokens=8_000),
    )
    chat.say(long * 8)
    for manifest in chat.manifests():
        assert manifest.over_window == 0
        assert manifest.request_tokens <= 8_000
    assert all("a length is given" in sent.text for sent in chat.sent)


def test_an_extract_of_objects_by_name_keeps_each_whole() -> None:
    def stock() -> dict[str, Any]:
        """Reads the stock."""
        row = {"made": "blue cotton shirt with long sleeves and buttons " * 2}
        return {f"SKU-{at:04}": {**row, "pieces": at * 3 + 1, "price": at * 11 + 5} for at in range(150)}

    policy = PackPolicy(max_input_tokens=4_000, offload={"mode": "off"})
    chat = Chat([call("stock"), "done"], tools=[stock], policy=policy)
    chat.say("How many pieces are there of SKU-0077?")
    (response,) = [part.function_response for part in chat.sent[-1].contents[-1].parts or ()]
    assert response is not None
    row = response.response["SKU-0077"]
    assert (row["pieces"], row["price"]) == (232, 852)


@pytest.mark.parametrize("run", ["\n", "\r", "\t"])
def test_long_runs_that_json_escapes_are_within_the_window_as_they_are_written(run: str) -> None:
    def rows(at: int) -> dict[str, Any]:
        """Reads rows."""
        return {"result": f"{at} begins{run * 6_000}ends"}

    chat = Chat(
        [call("rows", at=at, why=run * 2_000) for at in range(4)],
        tools=[rows],
        policy=PackPolicy(max_input_tokens=8_000),
        model="claude-sonnet-4-5",
    )
    chat.say("go on")
    counter = counter_for("claude-sonnet-4-5")
    for sent in chat.sent:
        parts = [part for content in sent.contents for part in content.parts or ()]
        written = [part.text or json.dumps(_said(part)) for part in parts]
        assert sum(map(counter.count, written)) < 8_000
    chat.replays()


def _said(part: types.Part) -> Any:
    if part.function_call is not None:
        return part.function_call.args
    assert part.function_response is not None
    return part.function_response.response


def test_a_payload_beside_parts_that_left_is_still_known_as_its_message() -> None:
    image = part_of({"inline_data": {"mime_type": "image/png"}}, media_tokens=258)
    message = content_of_parts("user", [text_part("hello"), image])
    packed = PackedMessage(of=message.digest, invocation="e1", text="CONTEXT PACK", split=0, largest=100)
    content, members = packed_message(message, 3, packed, PackCounter(counter_for("")))
    assert (content.text, members) == ("CONTEXT PACK", ((3, -1),))


def test_a_request_larger_than_the_window_leaves_room_for_the_work_on_it() -> None:
    def measure(pier: int) -> dict[str, Any]:
        """Measures a pier."""
        return {"pier": pier, "lengths": [pier * 31 % 97 + at for at in range(9)]}

    task = "\n".join(f"pier {at}: measure it at {at * 7 % 60} minutes past" for at in range(400))
    chat = Chat(
        script=[*(call("measure", pier=at) for at in range(10)), "done"],
        tools=[measure],
        policy=PackPolicy(max_input_tokens=3_000),
    )
    chat.say(task)
    assert len({sent.human() for sent in chat.sent}) == 1
    assert len(chat.sent[-1].contents) == 21
    assert all(manifest.request_tokens <= 3_000 for manifest in chat.manifests())
    assert chat.manifests()[0].request_tokens > 1_500
    chat.replays()
