"""What a cassette records of an app's models is what they answer when it is played, and nothing is asked then."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from plans import NARROW, planned, small, turns
from pydantic import BaseModel
from scripted import Chat, Failure, Reply, Scripted, call, look_up, new_store

from aether_context import PackPolicy
from aether_context.adk import Cassette, ContextPackPlugin
from aether_context.errors import CassetteError

ROOT = Path(__file__).parent.parent


class Talk:
    """A new app with a cassette in it, as in another run of the same test."""

    def __init__(
        self,
        path: Path,
        mode: Any,
        script: Sequence[Reply] = (),
        *,
        session: str = "s1",
        policy: PackPolicy | None = None,
        state: dict[str, Any] | None = None,
        redact: Sequence[str] | None = None,
        **settings: Any,
    ) -> None:
        self.llm = Scripted(model="gemini-2.5-flash", script=list(script), sent=[])
        settings = {"instruction": "You help.", "tools": [look_up], **settings}
        agent = LlmAgent(name="clerk", model=self.llm, **settings)
        self.plugin = ContextPackPlugin(policy=policy, store=new_store(), on_error="raise")
        self.cassette = Cassette(path, mode, redact)
        self.runner = InMemoryRunner(app=App(name="desk", root_agent=agent, plugins=[self.plugin, self.cassette]))
        self.session, self.state = session, state

    def say(self, *messages: str, stream: bool = False) -> list[Any]:
        return asyncio.run(self._say(messages, stream))

    async def _say(self, messages: Sequence[str], stream: bool) -> list[Any]:
        named = {"app_name": "desk", "user_id": "ann", "session_id": self.session}
        service = self.runner.session_service
        if await service.get_session(**named) is None:
            await service.create_session(**named, state=self.state)
        config = RunConfig(streaming_mode=StreamingMode.SSE) if stream else None
        return [
            event
            for message in messages
            async for event in self.runner.run_async(
                user_id="ann", session_id=self.session, new_message=types.UserContent(message), run_config=config
            )
        ]


def told(events: Sequence[Any]) -> list[Any]:
    """What the events hold beside ids and times."""
    left = {"id", "timestamp", "invocation_id", "long_running_tool_ids"}
    values = [event.model_dump(mode="json", exclude_none=True, exclude=left) for event in events if not event.partial]
    text = re.sub(r'adk-[0-9a-f-]{36}|pack_\w+\.\d+Z\w+|(?<="session": ")[^"]+', "id", json.dumps(values))
    return json.loads(re.sub(r'"cutoff": "[^"]+"', '"cutoff": "id"', text))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cassettes" / "talk.json"


def test_what_was_recorded_is_played_without_a_model(path: Path) -> None:
    script = [call("look_up", key="a"), "It is forty lines", [types.Part(text="hm", thought=True), "Bye"]]
    first = Talk(path, "record", script, session="0b9e8f1c-aaaa-4bcd-8000-1234567890ab").say("What is a?", "Thanks")
    played = Talk(path, "play", session="another-session-that-was-generated")
    events = played.say("What is a?", "Thanks")
    assert played.llm.sent == []
    assert told(events) == told(first)
    assert len(events) == 4
    usage = [event.usage_metadata for event in events if event.usage_metadata]
    assert [one.prompt_token_count for one in usage] == [
        one.usage_metadata.prompt_token_count for one in first if one.usage_metadata
    ]
    report = played.plugin.usage(app="desk", user="ann", session="another-session-that-was-generated")
    assert report is not None
    assert report.session.total.used == sum(one.total_token_count for one in usage)
    assert [event.custom_metadata["aether_context"]["pack_id"][:5] for event in events if event.usage_metadata] == [
        "pack_"
    ] * 3
    assert len(list(played.plugin.store.manifests())) == 3


def test_a_long_run_with_a_plan_cuts_and_recalled_turns_is_played_on_another_day(path: Path) -> None:
    messages = [*turns(9), "What did you say of question 0 and q0w3?"]
    script = [call("look_up", key="k1"), *(f"answer {at}" for at in range(9))]
    settings = {"policy": small(), "state": planned(NARROW, knowledge={"notes": ["The rate is 19 percent"]})}
    recorded = Talk(path, "record", script, **settings)
    recorded.say(*messages)
    assert any(manifest.epoch.cut_count for manifest in recorded.plugin.store.manifests())
    text = path.read_text("utf-8")
    value = json.loads(text)
    (today,) = value["varies"]
    assert text.count(today) == 1
    value["varies"] = ["2001-01-01"]
    path.write_text(json.dumps(value), "utf-8")
    played = Talk(path, "play", **settings)
    assert [event.content.parts[0].text for event in played.say(*messages)][-1] == "ok"
    assert played.llm.sent == []


def test_a_date_in_a_message_is_played_on_that_very_day(path: Path) -> None:
    message = "Book a room for 2031-05-06"
    Talk(path, "record", ["booked"]).say(message)
    talk = Talk(path, "play")
    (today,) = {time.strftime("%Y-%m-%d", time.gmtime(event.timestamp)) for event in talk.say(message)}
    path.write_text(path.read_text("utf-8").replace("2031-05-06", today), "utf-8")
    events = Talk(path, "play").say(message.replace("2031-05-06", today))
    assert events[-1].content.parts[0].text == "booked"


def test_the_file_is_for_people_and_repeats_nothing(path: Path) -> None:
    Talk(path, "record", [call("look_up", key="a"), "done"]).say("What\nis a?")
    value = json.loads(path.read_text("utf-8"))
    first, second = value["calls"]
    assert first["agent"] == "clerk"
    assert first["request"]["model"] == "gemini-2.5-flash"
    assert first["request"]["contents"] == [{"role": "user", "parts": [{"text": ["What", "is a?"]}]}]
    assert set(first["request"]["tools"]) == {"look_up"}
    assert first["response"]["content"]["parts"][0]["function_call"]["args"] == {"key": "a"}
    assert second["request"]["same"] == ["model", "settings", "tools", "system"]
    assert second["request"]["begins"] == 1
    assert [content["role"] for content in second["request"]["contents"]] == ["model", "user"]
    assert path.read_text("utf-8").startswith("{\n")
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_request_that_is_not_there_ends_the_run_and_shows_what_differs(path: Path) -> None:
    Talk(path, "record", ["Yes", "No"]).say("Is it open?", "Is it far?")
    played = Talk(path, "play")
    played.say("Is it open?")
    with pytest.raises(CassetteError) as caught:
        played.say("Is it near?")
    message = str(caught.value)
    assert f"{path} has no answer to this call of clerk" in message
    assert "--- call 2 of 2\n+++ this call\n" in message
    assert re.search(r'^-\s+"text": "Is it far\?"$', message, re.MULTILINE)
    assert re.search(r'^\+\s+"text": "Is it near\?"$', message, re.MULTILINE)
    assert "Is it open" not in message
    with pytest.raises(CassetteError, match="holds no calls"):
        Talk(path.with_name("none.json"), "play").say("hello")
    assert played.llm.sent == []


def test_equal_requests_are_answered_in_their_order_and_then_by_the_last_again(path: Path) -> None:
    for mode, script in (("record", ["one", "two"]), ("play", [])):
        talk = Talk(path, mode, script, include_contents="none")
        said = [
            event.content.parts[0].text for event in talk.say("again", "again", *(["again"] if mode == "play" else []))
        ]
        assert said == ["one", "two", "two"][: len(said)]
    assert len(said) == 3


class Answer(BaseModel):
    rate: int


class LongAnswer(BaseModel):
    rate: int
    source: str


@pytest.mark.parametrize(
    "changed",
    [
        {"instruction": "You help a lot."},
        {"tools": []},
        {"generate_content_config": types.GenerateContentConfig(temperature=0.3)},
        {"output_schema": LongAnswer},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_reaches_the_model_tells_requests_apart(path: Path, changed: dict[str, Any]) -> None:
    settings = {"output_schema": Answer, "tools": []} if "output_schema" in changed else {}
    Talk(path, "record", ['{"rate": 1, "source": "s"}'], **settings).say("hello")
    Talk(path, "play", **settings).say("hello")
    with pytest.raises(CassetteError):
        Talk(path, "play", **{**settings, **changed}).say("hello")


def test_ids_of_calls_do_not_tell_requests_apart_and_those_of_the_model_come_back(path: Path) -> None:
    """With a model class for which ADK keeps the ids that it makes."""
    given = types.Part(function_call=types.FunctionCall(id="toolu_1", name="look_up", args={"key": "b"}))
    signed = types.Part(
        function_call=types.FunctionCall(name="look_up", args={"key": "a"}), thought_signature=b"\x00\xff"
    )

    def number(context: CallbackContext, request: LlmRequest) -> None:
        parts = [part for content in request.contents for part in content.parts or ()]
        for part in parts:
            for found in (part.function_call, part.function_response):
                if found is not None and not found.id:
                    found.id = f"adk-{os.urandom(8).hex()}"

    def run(mode: Any, script: Sequence[Any]) -> list[Any]:
        chat = Chat(script=script, tools=[look_up], alter=number)
        chat.app.plugins.append(Cassette(path, mode))
        chat.runner.plugin_manager.register_plugin(chat.app.plugins[-1])
        return chat.say("go")

    run("record", [signed, given, "done"])
    events = run("play", [])
    calls = [part for event in events for part in event.content.parts if part.function_call]
    assert [part.thought_signature for part in calls] == [b"\x00\xff", None]
    assert calls[1].function_call.id == "toolu_1"
    assert events[-1].content.parts[0].text == "done"


def test_a_streamed_answer_is_kept_whole(path: Path) -> None:
    chunks = (
        LlmResponse(content=types.ModelContent("It "), partial=True),
        LlmResponse(content=types.ModelContent("is"), partial=True),
        LlmResponse(content=types.ModelContent("It is"), finish_reason=types.FinishReason.STOP),
        LlmResponse(content=types.Content(role="model", parts=[call("look_up", key="a")])),
    )
    Talk(path, "record", [chunks, "done"]).say("go", stream=True)
    events = Talk(path, "play").say("go", stream=True)
    assert [part.text or part.function_call.name for part in events[0].content.parts] == ["It is", "look_up"]
    assert events[0].finish_reason is types.FinishReason.STOP
    assert events[-1].content.parts[0].text == "done"


def test_an_answer_that_is_an_error_is_kept_and_a_model_that_failed_fails_again(path: Path) -> None:
    refused = LlmResponse(error_code="SAFETY", error_message="no")
    talk = Talk(path, "record", [refused, Failure("429 of ann@example.com")], redact=["email"])
    talk.say("one")
    with pytest.raises(Failure):
        talk.say("two")
    assert "ann@example.com" not in path.read_text("utf-8")
    played = Talk(path, "play", redact=["email"])
    assert played.say("one")[0].error_code == "SAFETY"
    with pytest.raises(CassetteError, match=r"the model failed .*: Failure: 429 of \[email\]"):
        played.say("two")


def test_what_the_policy_redacts_is_not_in_the_file(path: Path) -> None:
    policy = PackPolicy(retrieval={"redact_before_retrieval": ("email", r"ACME-\d+")})
    picture = types.Part(inline_data=types.Blob(data=b"ACME-1", mime_type="image/png"))
    Talk(path, "record", ["Mail bob@example.com about ACME-7", [picture]], policy=policy).say(
        "I am ann@example.com", "Draw"
    )
    text = path.read_text("utf-8")
    assert "@example.com" not in text
    assert "ACME-7" not in text
    events = Talk(path, "play", policy=policy).say("I am eve@example.com", "Draw")
    assert events[0].content.parts[0].text == "Mail [email] about [redacted]"
    assert events[1].content.parts[0].inline_data.data == b"ACME-1"


def test_callbacks_after_the_model_see_what_is_played(path: Path) -> None:
    seen: list[str] = []

    async def after(callback_context: CallbackContext, llm_response: LlmResponse) -> LlmResponse:
        seen.append(llm_response.content.parts[0].text)
        callback_context.state["asked"] = len(seen)
        return llm_response.model_copy(update={"content": types.ModelContent("altered")})

    for mode, script in (("record", ["plain"]), ("play", [])):
        (event,) = Talk(path, mode, script, after_model_callback=after).say("go")
        assert event.content.parts[0].text == "altered"
        assert event.actions.state_delta["asked"] == len(seen)
    assert seen == ["plain", "plain"]


def test_callbacks_before_the_model_run_and_may_answer(path: Path) -> None:
    for mode, script in (("record", ["from the model"]), ("play", [])):

        def before(callback_context: CallbackContext, llm_request: LlmRequest) -> LlmResponse | None:
            seen = callback_context.state["seen"] = callback_context.state.get("seen", 0) + 1
            return LlmResponse(content=types.ModelContent("guarded")) if seen == 1 else None

        talk = Talk(path, mode, script, before_model_callback=before, include_contents="none")
        events = talk.say("go", "go")
        assert [event.content.parts[0].text for event in events] == ["guarded", "from the model"]
        assert [event.actions.state_delta["seen"] for event in events] == [1, 2]
    assert len(json.loads(path.read_text("utf-8"))["calls"]) == 1


def test_agents_at_once_and_agents_as_tools_share_one_cassette(path: Path) -> None:
    def team(script: Sequence[str], mode: Any) -> list[tuple[str, str]]:
        models = [
            Scripted(model="gemini-2.5-flash", script=[f"{word} by {at}" for word in script], sent=[])
            for at in range(5)
        ]
        helper = LlmAgent(name="helper", model=models[4], instruction="Help.")
        at_once = [LlmAgent(name=f"agent{at}", model=models[at], instruction=f"Number {at}.") for at in range(3)]
        asks = Scripted(
            model="gemini-2.5-flash", script=[call("helper", request="How?"), "asked"] if script else [], sent=[]
        )
        at_once.append(LlmAgent(name="asker", model=asks, tools=[AgentTool(helper)]))
        with pytest.warns(DeprecationWarning, match="ParallelAgent"):
            root = ParallelAgent(name="team", sub_agents=list(at_once))
        plugins = [ContextPackPlugin(store=new_store(), on_error="raise"), Cassette(path, mode)]
        runner = InMemoryRunner(app=App(name="desk", root_agent=root, plugins=plugins))
        events = asyncio.run(runner.run_debug(["go", "again"], quiet=True))
        assert script or not [one for model in (*models, asks) for one in model.sent]
        return sorted((event.author, part.text) for event in events for part in event.content.parts if part.text)

    recorded = team(["yes", "no"], "record")
    assert len(recorded) == 8
    assert team([], "play") == recorded


def test_the_file_is_not_written_on_the_event_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, made = [], tempfile.mkstemp

    def witnessed(**where: Any) -> Any:
        threads.append(threading.current_thread())
        return made(**where)

    monkeypatch.setattr(tempfile, "mkstemp", witnessed)
    talk = Talk(path, "record", ["one", Failure("gone")])
    talk.say("go")
    with pytest.raises(Failure):
        talk.say("on")
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_off_does_nothing_and_the_environment_chooses(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_CASSETTES", "off")
    talk = Talk(path, None, ["hello"])
    assert talk.say("hi")[0].content.parts[0].text == "hello"
    assert not path.exists()
    assert Cassette(path, "play").mode == "play"
    monkeypatch.delenv("AETHER_CONTEXT_CASSETTES")
    assert Cassette(path).mode == "play"
    with pytest.raises(CassetteError, match="record, play, off"):
        Cassette(path, "rewind")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 9}', '{"version": 1, "varies": [], "calls": [1]}'])
def test_a_file_that_is_none_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text, "utf-8")
    with pytest.raises(CassetteError, match="cannot be played"):
        Cassette(path, "play")


# the fixture

TEST = """
import asyncio

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.genai import types
from aether_context.adk import ContextPackPlugin


class Paid(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        print("ASKED")
        yield LlmResponse(content=types.ModelContent("Friday"))


class TestDesk:
    def test_due(self, model_cassette):
        agent = LlmAgent(name="clerk", model=Paid(model="gemini-2.5-flash"), instruction="You help.")
        plugins = [ContextPackPlugin(store="memory://fixture"), model_cassette]
        runner = InMemoryRunner(app=App(name="desk", root_agent=agent, plugins=plugins))
        (event,) = asyncio.run(runner.run_debug("When is it due?", quiet=True))
        assert event.content.parts[0].text == "Friday"
"""


def run_pytest(folder: Path, *options: str) -> str:
    installed = any(one.value == "aether_context.pytest_plugin" for one in entry_points(group="pytest11"))
    named = [] if installed else ["-p", "aether_context.pytest_plugin"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "AETHER"))}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", *named, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_fixture_records_and_plays(tmp_path: Path) -> None:
    (tmp_path / "test_due.py").write_text(TEST, "utf-8")
    assert "holds no calls: record it again" in run_pytest(tmp_path)
    recorded = run_pytest(tmp_path, "--cassettes=record")
    assert "1 passed" in recorded
    assert "ASKED" in recorded
    assert (tmp_path / "cassettes" / "test_due" / "TestDesk-test_due.json").is_file()
    played = run_pytest(tmp_path)
    assert "1 passed" in played
    assert "ASKED" not in played


def test_the_fixture_costs_other_test_runs_nothing() -> None:
    heavy = {"google.adk", "google.genai", "numpy", "pydantic", "opentelemetry", "fsspec", "httpx"}
    script = f"import sys, aether_context.pytest_plugin; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
