"""A session of which the host loads the last events alone is packed as if all of them were loaded."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from failing import FailingFileSystem, wait_until
from google.adk.agents import LlmAgent
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.sessions import DatabaseSessionService
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from plans import small
from scripted import Chat, Failure, Scripted, call, faults, look_up, new_store, set_state
from terminal import run
from upkeep import delete_older, forget

from aether_context import PackPolicy, PackStore, verify, why
from aether_context.adk import ContextPackPlugin
from aether_context.lab.reading import Span
from aether_context.pack import Content, noted
from aether_context.store.files import Files
from aether_context.store.spool import spool_of

CODE = "The code of the north gate is Falcon-7731, please keep it in mind."
QUESTION = "What was the code of the north gate?"


def messages(count: int) -> list[str]:
    """Messages of a long chat; the fifth tells a code."""
    told = [
        f"Number {at}: the weather stays grey, and the garden needs rain, leaf {at} of many." for at in range(count)
    ]
    return [*told[:4], CODE, *told[5:]]


def script(count: int) -> list[str]:
    return [
        f"I see, number {at}: the beds on the {'north' if at % 3 else 'south'} side as well." for at in range(count)
    ]


def long_chat(policy: PackPolicy, **given: Any) -> Chat:
    chat = Chat(policy=policy, script=script(200), **given)
    chat.llm.usage = False  # it is made up from how contents are shown in Python
    return chat


def test_each_request_is_that_of_the_same_session_with_all_events_loaded() -> None:
    whole, partly = long_chat(small(1_500)), long_chat(small(1_500))
    for message in [*messages(32), QUESTION]:
        whole.say(message)
        partly.say(message, recent_events=16)
        assert partly.sent[-1].wires == whole.sent[-1].wires
    assert len(partly.raw[-1].contents) < 24 < len(whole.raw[-1].contents)
    assert "Falcon-7731" in partly.sent[-1].human()
    assert all(manifest.degradations == () for manifest in partly.manifests())
    assert partly.latest().epoch.cut_count > 20
    partly.replays()
    places = []
    for chat in (whole, partly):
        events = asyncio.run(chat.held()).events
        ids = [event.id for event in events]
        places.append([ids.index(name) for event in events if (name := noted(event).get("cutoff"))])
    assert places[0] == places[1]
    assert places[1]


def body(chat: Chat) -> list[Any]:
    """What a client sends of the last request's contents."""
    return [content.model_dump(exclude_none=True) for content in chat.sent[-1].contents]


@pytest.mark.slow
def test_a_restart_and_another_worker_in_the_middle_change_nothing() -> None:
    whole, partly = long_chat(small(2_000)), long_chat(small(2_000))
    workers = []
    for chat in (whole, partly):
        other = ContextPackPlugin(policy=small(2_000), store=chat.store, on_error="raise")
        plugins = chat.runner.plugin_manager.plugins
        workers.append((chat, other, plugins, plugins.index(chat.plugin)))
    for number, message in enumerate([*messages(90), QUESTION]):
        for chat, other, plugins, at in workers:
            if number > 45:  # two workers take turns
                plugins[at] = other if number % 3 else chat.plugin
            elif number % 20 == 19:
                chat.restart()
        whole.say(message)
        partly.say(message, recent_events=12)
        assert body(partly) == body(whole), number
        assert partly.latest().degradations == ()
    assert "Falcon-7731" in partly.sent[-1].human()


class WatchedFiles(Files):
    """Files of a store that name those of turns which are read, of which the next ``missing`` are not there, as where
    another process has just merged them."""

    turns_read: list[str]
    missing = 0

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        if "/turns/" in path:
            self.turns_read.append(path)
            if self.missing:
                self.missing -= 1
                raise FileNotFoundError(path)
        return super().read(path, start, end)


def watched() -> tuple[PackStore, WatchedFiles]:
    store = new_store()
    files = WatchedFiles(store.url)
    files.turns_read = []
    return store.through(files), files


@pytest.mark.slow
def test_a_process_keeps_so_much_in_all_and_reads_the_rest_again() -> None:
    store, files = watched()
    free, bound = long_chat(small(2_000)), long_chat(small(2_000), store=store)
    for at, message in enumerate([*messages(50), QUESTION]):
        for session in ("s1", "s2", "s3"):
            free.say(message, session=session, recent_events=12)
            files.turns_read.clear()
            with patch("aether_context.adk.request.sessions._MOST_BYTES", 100_000):
                bound.say(message, session=session, recent_events=12)
            assert body(bound) == body(free), (session, at)
            assert files.turns_read or at < 30
    assert "Falcon-7731" in bound.sent[-1].human()
    assert all(manifest.degradations == () for manifest in bound.manifests())


def test_of_sessions_that_nobody_goes_on_with_little_is_kept() -> None:
    with (
        patch("aether_context.adk.request.sessions._MOST_BYTES", 50_000),
        patch("aether_context.adk.request.reader._MOST_READ", 10_000),
    ):
        chat, counts = long_chat(small(2_000)), list[int]()
        gc.freeze()  # what there was before is neither looked through nor counted
        for at in range(12):
            chat.say(*messages(3), session=f"s{at}")
            gc.collect()
            counts.append(sum(type(value) is Content for value in gc.get_objects()))
        gc.unfreeze()
    assert counts[-1] - counts[5] < (counts[5] - counts[0]) / 2


@pytest.mark.parametrize("observe", [False, True])
def test_a_session_whose_model_has_yet_to_answer_keeps_its_pack(observe: bool) -> None:
    async def all_are_sent() -> None:
        while len(chat.sent) < 4:
            await asyncio.sleep(0)

    async def talk() -> None:
        await asyncio.gather(*(chat.tell(f"{at} " + "word " * 50, session=f"s{at}") for at in range(4)))

    plugin = ContextPackPlugin(policy=small(2_000), store=new_store(), observe=observe)
    chat = Chat(plugin=plugin)
    chat.llm.waits = all_are_sent
    with patch("aether_context.adk.request.sessions._MOST_BYTES", 1):
        asyncio.run(talk())
    answers = [event for at in range(4) for event in asyncio.run(chat.held(session=f"s{at}")).events[1:]]
    assert len([event for event in answers if noted(event).get("pack_id")]) == 4
    assert all(chat.store.outcome(manifest) for manifest in chat.manifests())


def test_what_is_written_late_takes_nothing_from_the_calls_since() -> None:
    store = PackStore("failing://late")
    prompt, late = long_chat(small(1_500)), long_chat(small(1_500), store=store)
    try:
        for at, message in enumerate([*messages(28), QUESTION]):
            prompt.say(message, recent_events=14)
            FailingFileSystem.down = at % 8 != 0
            late.say(message, recent_events=14)
            assert body(late) == body(prompt)
    finally:
        FailingFileSystem.end()
    late.manifests()
    wait_until(spool_of(store.files).is_empty)  # what waits there is listed by no process
    late.restart()
    late.say("And of the south gate? " + QUESTION, recent_events=14)
    assert "Falcon-7731" in late.sent[-1].human()
    assert late.latest().degradations == ()


def text_of(chat: Chat, file: Any) -> bytes:
    """The JSON in a file of turns, behind the line with its hash."""
    return gzip.decompress(chat.store.files.read(file.path)).partition(b"\n")[2]


def turn_files(chat: Chat) -> list[Any]:
    return [file for file in chat.store.files.below(chat.store.files.root) if "/turns/" in file.path]


def test_the_files_stay_few_and_hold_each_content_once() -> None:
    chat = long_chat(small(3_000))
    for message in messages(34):
        chat.say(message, recent_events=20)
    files = turn_files(chat)
    assert 1 < len(files) <= 9
    texts = sum(len(text_of(chat, file)) for file in files)
    held = [one for file in files for one in json.loads(text_of(chat, file))]
    said = [one["content"]["parts"][0]["text"] for one in held]
    for message in messages(29):
        assert said.count(message) == 1
    assert sum(file.size for file in files) < texts / 2


def test_a_new_process_writes_what_is_new_and_not_the_whole_history_again() -> None:
    chat = long_chat(small(3_000))
    chat.say(*messages(40))
    chat.restart()
    stored = {file.path for file in turn_files(chat)}
    chat.say(*messages(5))
    chat.manifests()
    new = [json.loads(text_of(chat, file)) for file in turn_files(chat) if file.path not in stored]
    assert new
    assert min(map(len, new)) <= 40


def test_without_its_files_a_session_goes_on_and_says_so() -> None:
    chat = long_chat(small(1_500))
    for message in messages(30):
        chat.say(message, recent_events=20)
    cut = chat.latest().epoch
    assert cut.cut_count > 20
    for file in turn_files(chat):
        chat.store.files.delete(file.path)
    chat.restart()
    chat.say(QUESTION, recent_events=20)
    manifest = chat.latest()
    assert manifest.epoch.cut_count >= cut.cut_count
    assert manifest.epoch.summary == cut.summary
    assert all("contents before the loaded events are not" in told for told in manifest.degradations)
    assert all("the store does not hold them" in told for told in manifest.degradations)
    assert manifest.degradations
    assert faults(chat.sent[-1].contents) == []
    for message in messages(10):
        chat.say(message, recent_events=20)
    chat.replays()


@pytest.mark.parametrize("is_idle", [False, True])
@pytest.mark.rows(0)
def test_what_goes_for_its_age_is_missed_in_a_new_process_alone_and_the_session_goes_on(is_idle: bool) -> None:
    chat = long_chat(small(3_000))
    for message in messages(70):
        chat.say(message, recent_events=20)
    epoch = chat.latest().epoch
    written = [file.modified for file in turn_files(chat)]
    delete_older(chat.store, 1.0, max(written) + 9.0 if is_idle else min(written) + 1.0)
    assert len(turn_files(chat)) == (0 if is_idle else len(written) - 1)
    chat.say(QUESTION, recent_events=20)
    assert "Falcon-7731" in chat.sent[-1].human()
    assert chat.latest().degradations == ()
    chat.restart()
    for at, message in enumerate([QUESTION, *messages(14)]):
        chat.say(message, recent_events=20)
        manifest = chat.latest()
        assert faults(chat.sent[-1].contents) == []
        assert manifest.number == 72 + at
        assert manifest.epoch.cut_count >= epoch.cut_count
        if manifest.epoch.cut_count == epoch.cut_count:
            assert manifest.epoch.summary == epoch.summary
            assert "contents before the loaded events are not sent" in manifest.degradations[0]
        assert "contents before the loaded events are not searched: the store does not" in manifest.degradations[-1]
        if at == 0:
            assert ("leaf 60 of many" in chat.sent[-1].text) is not is_idle
    assert "leaf 12 of many" in chat.sent[-1].text
    chat.replays()


@pytest.mark.parametrize("record", ["hashes", "off"])
@pytest.mark.rows(1)
def test_a_policy_that_records_no_texts_keeps_none(record: str) -> None:
    chat = long_chat(small(2_000, record=record, conversation={"summary_share": 0}))
    for message in messages(45):
        chat.say(message, recent_events=20)
    assert turn_files(chat) == []
    assert "Falcon" not in chat.sent[-1].text
    chat.say(QUESTION, recent_events=20)
    assert "Falcon-7731" in chat.sent[-1].human(), "this process has seen it"
    chat.restart()
    chat.say(QUESTION, recent_events=20)
    assert "Falcon-7731" not in chat.sent[-1].human().replace(QUESTION, "")
    if record == "hashes":
        assert "the policy records no texts" in " ".join(chat.latest().degradations)


def test_what_is_masked_is_masked_in_the_files_and_they_go_with_the_session() -> None:
    chat = long_chat(small(3_000, redact=("email",)))
    for message in ["My address is ann@example.com.", *messages(28)]:
        chat.say(message, recent_events=20)
    assert turn_files(chat)
    said = b"".join(text_of(chat, file) for file in turn_files(chat))
    assert b"ann@example.com" not in said
    assert b"My address is [email]." in said
    chat.say("chat of another session", session="s2")
    assert verify(chat.store).faults == {}
    file = turn_files(chat)[0]
    data = chat.store.files.read(file.path)
    chat.store.files.replace(file.path, data[:-1] + bytes([data[-1] ^ 1]))
    assert list(verify(chat.store).faults) == [file.path.removeprefix(f"{chat.store.files.root}/")]
    chat.store.files.replace(file.path, data)
    forget(chat.store, "shop", "ann", "s1")
    assert turn_files(chat) == []
    assert chat.manifests()


@pytest.mark.slow
def test_what_was_anchored_stays_when_it_is_not_loaded_any_more() -> None:
    whole, partly = long_chat(small(2_000)), long_chat(small(2_000))
    anchored = {"aether:anchors": [{"contains": "Falcon"}]}
    asyncio.run(set_state_of(whole, anchored))
    asyncio.run(set_state_of(partly, anchored))
    for message in messages(80):
        whole.say(message)
        partly.say(message, recent_events=12)
        assert partly.sent[-1].wires == whole.sent[-1].wires
    assert CODE in partly.sent[-1].text
    assert partly.latest().epoch.kept


@pytest.mark.slow
def test_why_finds_what_stands_in_no_pack_any_more(tmp_path: Path) -> None:
    chat = long_chat(small(3_000), store=PackStore(str(tmp_path)))
    for message in [*messages(119), QUESTION, *messages(125)[120:]]:
        chat.say(message, recent_events=30)
    oldest = min(file.modified for file in turn_files(chat))
    assert not any("/turns/" in path for path in delete_older(chat.store, 1.0, oldest + 0.999))
    calls = [manifest.number for manifest in chat.manifests()]
    assert calls == list(range(calls[0], 126))
    assert calls[0] > 20

    def spans(text: str) -> list[Span]:
        places = why(chat.store, text).places
        said = [place for place in places if (place.kind, place.time) == ("message", event.timestamp)]
        assert [(place.who, place.text) for place in said] == [(event.author, event.content.parts[0].text)]
        for number in calls:
            held = text in chat.sent[number - 1].text
            near = [span for place in places for span in place.spans if span.first <= number <= span.last]
            assert any(span.holds or span.elsewhere for span in near) == held, (text, number)
        return said[0].spans

    for event in asyncio.run(chat.held()).events[:40:5]:
        told = spans(event.content.parts[0].text)
        assert [(told[0].first, told[-1].last)] == [(calls[0], 125)]
        assert all("a call before had cut it, whose pack is not there" in span.act for span in told)
        assert all("did not bring it back" in span.act for span in told if not (span.holds or span.elsewhere))
    code = why(chat.store, "Falcon-7731")
    (again,) = [place for place in code.places if place.kind == "recalled turn"]
    assert again.id == f"turn_{code.places[0].id}"
    assert [span.first for span in again.spans if span.holds] == [120]
    said_at = datetime.fromtimestamp(code.places[0].time or 0, UTC)
    shown = run("why", "Falcon-7731", store=chat.store).output
    assert f"message of user, for clerk in session s1, {said_at:%Y-%m-%d %H:%M}\n" in shown
    lost = why(chat.store, "Falcon-8842")
    assert any("calls of session s1 were deleted for their age" in note for note in lost.notes)


async def set_state_of(chat: Chat, values: dict[str, Any]) -> None:
    await chat._begin(chat.user, chat.session)
    await set_state(chat, **values)


def order(item: str) -> dict[str, str]:
    """Orders a thing, which takes days."""
    return {"status": "pending", "order": f"order of {item}"}


def posted(events: list[Any]) -> types.Content:
    """The result of the last call, as an application posts it later."""
    (called,) = [one for event in events for one in event.get_function_calls()]
    response = types.FunctionResponse(id=called.id, name=called.name, response={"status": "arrived, in green"})
    return types.Content(role="user", parts=[types.Part(function_response=response)])


def test_a_result_that_is_posted_later_is_sent_with_its_call_from_then_on() -> None:
    chats = [long_chat(small(3_000), tools=[LongRunningFunctionTool(order)]) for _ in range(2)]
    for chat, recent in zip(chats, (None, 8), strict=True):
        chat.llm.script = [*script(3), call("order", item="chairs"), "It is ordered.", *script(60)]
        chat.say(*messages(9)[:3], recent_events=recent)
        ordered = chat.say("Order chairs", recent_events=recent)
        chat.say(*messages(12), recent_events=recent)
        if recent:
            with pytest.raises(ValueError, match="Function call not found"):  # of ADK's, before any plugin is asked
                chat.say(posted(ordered), recent_events=recent)
        chat.say(posted(ordered))
        assert "arrived, in green" in str(chat.sent[-1].contents)
    for message in messages(20):
        for chat, recent in zip(chats, (None, 8), strict=True):
            chat.say(message, recent_events=recent)
            assert "arrived, in green" in str(chat.sent[-1].contents) or chat.latest().epoch.cut_count
            assert faults(chat.sent[-1].contents) == []
        assert body(chats[0]) == body(chats[1])


@pytest.mark.slow
def test_a_load_may_begin_anywhere_in_an_exchange() -> None:
    for recent in range(3, 9):
        whole, partly = long_chat(small(4_000), tools=[look_up]), long_chat(small(4_000), tools=[look_up])
        for chat in (whole, partly):
            chat.llm.script = [reply for at in range(8) for reply in (call("look_up", key=f"k{at}"), f"It is {at}.")]
        for at in range(8):
            whole.say(f"Look k{at} up")
            partly.say(f"Look k{at} up", recent_events=recent)
            assert body(partly) == body(whole), (recent, at)
            assert faults(partly.sent[-1].contents) == []
        assert partly.latest().degradations == ()


def test_a_rewind_and_a_compaction_are_told_apart_from_what_is_not_loaded() -> None:
    chat = long_chat(small(2_000))
    for message in messages(40):
        chat.say(message, recent_events=12)
    files = [file.path for file in turn_files(chat)]
    before = chat.store.files.read(files[0])
    last = asyncio.run(chat.held()).events[-1].invocation_id
    asyncio.run(rewound(chat, last))
    chat.say("So again", recent_events=12)
    assert faults(chat.sent[-1].contents) == []
    assert chat.store.files.read(files[0]) == before
    for at in range(14):  # loaded or not, the session goes on
        chat.say(f"Later, {at}", recent_events=12)
        assert faults(chat.sent[-1].contents) == []
        assert not any("only the last" in told for told in chat.latest().degradations)
    chat.say(QUESTION, recent_events=12)
    assert CODE in chat.sent[-1].text


@pytest.mark.parametrize("times", [1, 20])
@pytest.mark.rows(1)
def test_with_adks_own_compaction_requests_are_valid_and_say_what_is_missing_while_it_is_loaded(times: int) -> None:
    writer = Scripted(script=[*(f"Digest {at}." for at in range(times)), *[Failure("no more")] * 60], sent=[])
    summarizer = LlmEventSummarizer(llm=writer)
    compaction = EventsCompactionConfig(summarizer=summarizer, compaction_interval=6, overlap_size=1)
    chat = long_chat(small(3_000), app_settings={"events_compaction_config": compaction})
    for at, message in enumerate([*messages(30), QUESTION]):
        chat.say(message, recent_events=12)
        assert faults(chat.sent[-1].contents) == []
        notes = " ".join(chat.latest().degradations)
        last = 30 if times > 1 else 11  # the event of the compaction is loaded up to here
        assert chat.sent[-1].contents[0].parts[0].text.startswith("Digest") is (6 <= at <= last)
        assert ("Digest" in chat.sent[-1].text) is (6 <= at <= last)
        is_missing = "only the last 12 events: nothing before them is sent or recalled" in notes
        assert is_missing is (6 <= at <= last + 1)
        assert (CODE in chat.sent[-1].text) is (at in (4, 5)), "what the host has removed does not come back"
    chat.replays()


def test_behind_adks_compaction_a_part_that_is_loaded_begins_where_it_did() -> None:
    """A call behind a compaction shows all that is left; what it showed is no beginning of the session."""
    writer = Scripted(script=["Digest one.", *[Failure("no more")] * 60], sent=[])
    summarizer = LlmEventSummarizer(llm=writer)
    compaction = EventsCompactionConfig(summarizer=summarizer, compaction_interval=4, overlap_size=1)
    chat = long_chat(small(3_000), app_settings={"events_compaction_config": compaction})
    for message in messages(14):
        chat.say(message, recent_events=16)
    missing = [note for manifest in chat.manifests() for note in manifest.degradations if "are not sent" in note]
    assert missing == []


async def rewound(chat: Chat, invocation: str) -> None:
    await chat.runner.rewind_async(user_id=chat.user, session_id=chat.session, rewind_before_invocation_id=invocation)


@pytest.mark.slow
def test_a_session_in_a_database_is_the_same(tmp_path: Path) -> None:
    chats = [
        long_chat(small(2_000), sessions=DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path}/{name}.db"))
        for name in ("whole", "partly")
    ]

    async def talk() -> None:
        for message in [*messages(50), QUESTION]:
            await chats[0].tell(message)
            await chats[1].tell(message, recent_events=10)
            assert body(chats[1]) == body(chats[0])

        for chat in chats:
            await chat.sessions.close()

    asyncio.run(talk())
    assert "Falcon-7731" in chats[1].sent[-1].human()


def test_each_agent_of_a_team_has_its_own() -> None:
    def team() -> Chat:
        llm = Scripted(script=[], sent=[], usage=False)
        helper = LlmAgent(name="helper", model=llm, description="Helps.")
        clerk = LlmAgent(name="clerk", model=llm, sub_agents=[helper])
        chat = Chat(agent=clerk, policy=small(2_500))
        script = [call("transfer_to_agent", agent_name="helper"), "helper here"]
        llm.script = [*[f"I am the clerk {at}." for at in range(6)], *script, *[f"Helping {at}." for at in range(40)]]
        return chat

    whole, partly = team(), team()
    for message in [*messages(30), QUESTION]:
        whole.say(message)
        partly.say(message, recent_events=24)
        assert body(partly) == body(whole)
        assert faults(partly.sent[-1].contents) == []
    assert len(partly.raw[-1].contents) < len(whole.raw[-1].contents)
    assert CODE in partly.sent[-1].text


def test_turns_are_read_though_their_files_are_merged_three_times_meanwhile() -> None:
    store, files = watched()
    chat = long_chat(small(2_000), store=store)
    chat.say(*messages(50), recent_events=12)
    chat.manifests()
    chat.restart()
    files.missing = 3
    chat.say(QUESTION, recent_events=12)
    assert files.missing == 0
    assert "Falcon-7731" in chat.sent[-1].human()
    assert chat.latest().degradations == ()
