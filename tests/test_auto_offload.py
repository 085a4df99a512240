"""Offload as it is without a policy: where a result is long for the window, and nowhere else."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from pydantic import BaseModel
from scripted import Chat, Scripted, call, results, state_of

from aether_context import PackPolicy
from aether_context.errors import BlobNotFound, StoreError
from aether_context.policy import OffloadSettings
from aether_context.store.replay import Replayer

ROWS = [f"2025-01-01 10:{at // 60:02d}:{at % 60:02d} INFO step {at} took {at * 37 % 1009} ms" for at in range(120)]
ROWS[70] = "2025-01-01 10:01:10 INFO the retention period is 41 days"
LOG = "\n".join(ROWS)
READERS = ("read_artifact", "search_artifact")
LONG_TASK = "Please look into the logs. " + "This is what is known so far of the matter. " * 420


def read_log(name: str) -> str:
    """Reads a log of about 3,000 tokens."""
    return f"{LOG}\nend of {name}"


def read_note(name: str) -> str:
    """Reads a note."""
    return f"{name} is short"


def chat(script: Any = (), window: int | None = 16_000, **settings: Any) -> Chat:
    policy = settings.pop("policy", PackPolicy(max_input_tokens=window))
    return Chat(script=script, **{"tools": [read_log, read_note], "policy": policy, **settings})


def shown(talk: Chat, name: str = "read_log", at: int = -1) -> dict[str, Any]:
    """The last result of a tool in a request."""
    parts = [part for content in talk.sent[at].contents for part in content.parts or ()]
    answers = [part.function_response for part in parts if part.function_response]
    return [dict(answer.response or {}) for answer in answers if answer.name == name][-1]


def uri_of(talk: Chat) -> str:
    return str(shown(talk)["artifact"]).split(" ")[0]


def evidence_of(talk: Chat) -> list[str]:
    return [*state_of(talk).get("aether:evidence", {})]


@pytest.mark.parametrize(
    ("window", "tool"), [(None, "read_log"), (128_000, "read_log"), (64_000, "read_log"), (4_000, "read_note")]
)
def test_nothing_is_other_where_the_window_holds_a_result_many_times(window, tool):
    talks = []
    for mode in ("auto", "off"):
        talk = chat([call(tool, name="a"), "done"], policy=PackPolicy(max_input_tokens=window, offload={"mode": mode}))
        talk.say("go", "and now?")
        talks.append(talk)
    auto, off = talks
    assert [(one.wires, one.declared, one.system) for one in auto.sent] == [
        (one.wires, one.declared, one.system) for one in off.sent
    ]
    assert evidence_of(auto) == []
    assert auto.store.evidence("shop", "ann", "s1") == []


def test_a_result_that_is_long_for_the_window_is_an_extract_from_its_first_request_on():
    talk = chat([call("read_log", name="a"), call("read_note", name="n"), "done"])
    talk.say("what is the retention period?", "thanks")
    assert talk.sent[0].declared == ("read_log", "read_note")
    assert all(one.declared[-2:] == READERS for one in talk.sent[1:])
    assert ROWS[70] in shown(talk)["result"]
    assert shown(talk, "read_note") == {"result": "n is short"}
    (record,) = talk.store.evidence("shop", "ann", "s1")
    assert talk.store.evidence_data("shop", "ann", record.digest).decode() == read_log("a")
    for before, after in zip(talk.sent[1:], talk.sent[2:], strict=False):
        assert after.wires[1 : len(before.wires)] == before.wires[1:]
    replayer = Replayer(talk.store)
    assert all(replayer.replay(manifest).matches for manifest in talk.store.manifests())


def test_the_sessions_history_has_the_result_as_the_tool_gave_it():
    talk = chat([call("read_log", name="a"), "done"])
    assert results(talk.say("go")) == [{"result": read_log("a")}]


def test_readers_are_there_from_the_first_call_on_where_the_head_is_long():
    talk = chat([call("read_log", name="a"), "done"])
    talk.say(LONG_TASK)
    assert {one.declared for one in talk.sent} == {("read_log", "read_note", *READERS)}
    alone = chat(["done"], tools=[])
    alone.say(LONG_TASK)
    assert alone.sent[0].declared == ()


def test_a_model_that_has_to_call_a_tool_is_offered_no_reader_to_call():
    calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
    forced = types.GenerateContentConfig(tool_config=types.ToolConfig(function_calling_config=calling))
    talk = chat([call("read_log", name="a"), "done"], settings={"generate_content_config": forced})
    talk.say(LONG_TASK)
    assert talk.sent[0].declared == ("read_log", "read_note")
    assert talk.sent[1].declared[-2:] == READERS


def test_lines_are_read_back_from_the_history_where_the_store_has_lost_them():
    talk = chat([call("read_log", name="a"), "seen"])
    talk.say("go")

    def lost(*_: Any) -> bytes:
        raise BlobNotFound("gone")

    talk.store.evidence_data = lost  # type: ignore[method-assign]
    talk.llm.script += [call("search_artifact", uri=uri_of(talk), query="retention PERIOD"), "done"]
    talk.say("and the period?")
    assert ROWS[70] in shown(talk, "search_artifact")["found"][0]["text"]


def test_a_new_worker_shows_the_same():
    talk = chat([call("read_log", name="a"), "one", "two"])
    talk.say("go")
    before = talk.sent[-1]
    talk.restart()
    talk.say("on")
    assert talk.sent[-1].wires[: len(before.wires)] == before.wires
    assert talk.sent[-1].declared == before.declared


def test_what_another_callback_makes_of_an_extract_stays_in_its_request():
    def edit(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        for content in llm_request.contents:
            for part in content.parts or ():
                if part.function_response and part.function_response.name == "read_log":
                    part.function_response.response["seen"] = part.function_response.response.get("seen", 0) + 1

    script = [call("read_log", name="a"), call("read_note", name="n"), call("read_note", name="o"), "done"]
    talk = chat(script, settings={"before_model_callback": edit})
    talk.say("what is the retention period?", "thanks")
    of_log = [
        part.function_response.response["seen"]
        for request in talk.llm.sent
        for content in request.contents
        for part in content.parts or ()
        if part.function_response and part.function_response.name == "read_log"
    ]
    assert of_log == [1] * 4
    assert talk.sent[-1].wires[:3] == talk.sent[1].wires


def test_what_the_host_makes_of_an_offloaded_result_is_sent():
    def alter(_: CallbackContext, request: LlmRequest) -> None:
        for content in request.contents if len(request.contents) > 5 else ():
            for part in content.parts or ():
                if part.function_response and part.function_response.name == "read_log":
                    part.function_response = part.function_response.model_copy(update={"response": {"result": "gone"}})

    script = [call("read_log", name="a"), call("read_note", name="n"), call("read_note", name="o"), "done"]
    talk = chat(script, alter=alter)
    talk.say("what is the retention period?")
    assert ROWS[70] in shown(talk, at=2)["result"]
    assert shown(talk) == {"result": "gone"}


def test_results_stay_whole_where_nobody_could_read_the_rest():
    def read_artifact(name: str) -> str:
        """The app's own."""
        return name

    for settings in (
        {"tools": [read_log, read_artifact]},
        {"policy": PackPolicy(max_input_tokens=16_000, record="hashes")},
    ):
        talk = chat([call("read_log", name="a"), "done"], **settings)
        talk.say("go")
        assert shown(talk) == {"result": read_log("a")}
        assert "search_artifact" not in talk.sent[-1].declared


def test_a_store_that_is_down_leaves_the_result_as_it_is():
    talk = chat([call("read_log", name="a"), "done"])

    def down(*_: Any, **__: Any) -> None:
        raise StoreError("away")

    talk.store.write_evidence = down  # type: ignore[method-assign]
    talk.say("go")
    assert shown(talk) == {"result": read_log("a")}
    assert talk.sent[-1].declared == ("read_log", "read_note")
    assert any("not offloaded" in one for one in talk.manifests()[-1].degradations)


def test_each_agent_of_a_team_reads_what_its_own_window_asks_for():
    llm = Scripted(model="small", script=[], sent=[])
    large = Scripted(model="gemini-2.5-flash", script=["it is 41 days"], sent=[])
    helper = LlmAgent(name="helper", model=large, description="Helps.", instruction="x", tools=[read_note])
    lead = LlmAgent(name="lead", model=llm, instruction="You lead.", tools=[read_log], sub_agents=[helper])
    talk = chat(agent=lead, policy=PackPolicy(max_input_tokens={"small": 16_000}))
    llm.script += [call("read_log", name="a"), call("transfer_to_agent", agent_name="helper")]
    talk.say("go")
    small, other = talk.sent[-2:]
    assert (small.agent, other.agent) == ("lead", "helper")
    assert "[… lines" in str(small.wires)
    assert READERS[0] in small.declared
    assert ROWS[100] in other.text
    assert READERS[0] not in other.declared


def test_an_agent_used_as_a_tool_gets_readers_with_an_address_only():
    inner = Scripted(model="small", script=["nothing"], sent=[])
    outer = Scripted(model="small", script=[call("read_log", name="a"), call("worker", request="sum up")], sent=[])
    worker = LlmAgent(name="worker", model=inner, description="Works.", instruction="You work.")
    lead = LlmAgent(name="lead", model=outer, instruction="You lead.", tools=[read_log, AgentTool(worker)])
    talk = chat(agent=lead, policy=PackPolicy(max_input_tokens={"small": 16_000}))
    talk.say("go")
    assert [one.declared for one in talk.sent if one.agent == "worker"] == [()]
    inner.script += [call("search_artifact", uri=uri_of(talk), query="retention period"), "41 days"]
    outer.script += [call("worker", request=f"look into {uri_of(talk)}"), "done"]
    talk.say("ask the worker")
    assert "41 days" in str([one.wires for one in talk.sent if one.agent == "worker"][-1])


def test_an_agent_with_a_large_window_has_readers_for_an_address_that_it_is_told():
    inner = Scripted(model="gemini-2.5-flash", script=["it is 41 days"], sent=[])
    outer = Scripted(model="small", script=[call("read_log", name="a"), "seen"], sent=[])
    worker = LlmAgent(name="worker", model=inner, description="Works.", instruction="You work.")
    lead = LlmAgent(name="lead", model=outer, instruction="You lead.", tools=[read_log, AgentTool(worker)])
    talk = chat(agent=lead, policy=PackPolicy(max_input_tokens={"small": 16_000}))
    talk.say("go")
    inner.script.insert(0, call("search_artifact", uri=uri_of(talk), query="retention period"))
    outer.script += [call("worker", request=f"look into {uri_of(talk)}"), "done"]
    talk.say("ask the worker")
    first, second = (one for one in talk.sent if one.agent == "worker")
    assert first.declared == READERS
    assert ROWS[70] in str(second.wires)


def test_readers_stay_where_only_the_summary_of_a_cut_names_an_address():
    answers = [f"Answer {at}. " + "The river rises and falls with rain. " * 20 for at in range(12)]
    talk = chat([call("read_log", name="a"), *answers, "last"], window=3_000)
    talk.say(*(f"Question {at}, about the river." for at in range(12)))
    assert "artifact://evidence/" in talk.sent[-1].text
    talk.say("and now?", recent_events=10)
    assert "artifact://evidence/" in talk.sent[-1].text
    assert "read_log" not in str(talk.raw[-1].wires)
    assert talk.sent[-1].declared[-2:] == READERS


def test_extracts_that_are_too_many_for_the_window_keep_their_addresses_and_lines():
    talk = chat([[call("read_log", name=str(at)) for at in range(12)], "done"], window=4_000)
    talk.say("go")
    answers = [dict(part.function_response.response) for part in talk.sent[-1].contents[-1].parts]
    uris = {record.uri for record in talk.store.evidence("shop", "ann", "s1")}
    assert len(uris) == 12
    assert {answer["artifact"].split(" ")[0] for answer in answers} == uris
    assert all(any(row in answer["result"] for row in ROWS) for answer in answers)
    talk.replays()


def test_an_image_that_a_tool_shows_stays_to_be_seen():
    image = types.Part.from_bytes(data=b"\x89PNG\r\n\x1a\n" + bytes(40_000), mime_type="image/png")

    def look() -> dict[str, Any]:
        """Shows a page, and says what is on it."""
        return {"page": image, "says": LOG}

    talk = chat([call("look"), "done"], tools=[look], window=8_000)
    talk.say("go")
    sent = str(talk.sent[-1].wires)
    assert "image/png" in sent
    assert "[… lines" in sent


@dataclass
class Row:
    step: int
    time: datetime
    text: str


class Page(BaseModel):
    lines: list[str] = ROWS
    note: str | None = None


TIME = datetime(2025, 1, 1)
OBJECTS = {
    "rows": [Row(at, TIME, row) for at, row in enumerate(ROWS)],
    "tuples": [(at, row) for at, row in enumerate(ROWS)],
    "model": Page(),
    "time": {"when": TIME, "says": LOG},
}


def giving(found: Any) -> Any:
    def look() -> Any:
        """Looks."""
        return found

    return look


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_an_extract_that_stays_when_the_session_is_read_from_a_database(name, tmp_path):
    sessions = SqliteSessionService(db_path=str(tmp_path / "sessions.db"))
    talk = chat([call("look"), "one", "two"], tools=[giving(OBJECTS[name])], window=8_000, sessions=sessions)
    talk.say("what is the retention period?", "thanks")
    (record,) = talk.store.evidence("shop", "ann", "s1")
    assert str(shown(talk, "look")["artifact"]).startswith(record.uri)
    assert "41 days" in str(talk.sent[-1].wires)
    assert [manifest.prefix.broken_by for manifest in talk.manifests()[2:]] == [None]
    talk.replays()


def test_an_object_counts_with_what_it_has_by_default():
    talk = chat([call("look"), "done"], tools=[giving(Page())], policy=PackPolicy(offload={"mode": "off"}))
    talk.say("go")
    before, after = talk.manifests()
    assert after.counted_tokens - before.counted_tokens > 2_000


def test_limits_grow_with_the_window():
    settings = OffloadSettings()
    assert settings.for_window(16_000) == settings
    assert settings.for_window(128_000).threshold_tokens == 8_000
    limits = settings.for_window(8_000)
    assert (limits.threshold_tokens, limits.data_tokens, limits.extract_tokens) == (500, 2_000, 400)
    assert settings.for_window(2_000) == limits


# what other callbacks make of a result


SECRET = "IBAN DE02 1203 0000 0000 2020 51"


def read_account(name: str) -> dict[str, Any]:
    """Reads an account of about 3,000 tokens."""
    return {"result": f"{LOG}\n{SECRET}"}


def redacted(response: dict[str, Any]) -> dict[str, Any]:
    return {name: value.replace(SECRET, "[an account]") for name, value in response.items()}


def redact(tool: Any, args: dict[str, Any], tool_context: Any, tool_response: Any) -> Any:
    return redacted({"result": tool_response} if isinstance(tool_response, str) else tool_response)


def redact_in_place(tool: Any, args: dict[str, Any], tool_context: Any, tool_response: Any) -> None:
    tool_response.update(redacted(tool_response))


def look(tool: Any, args: dict[str, Any], tool_context: Any, tool_response: Any) -> None:
    return None


class Redacts(BasePlugin):
    async def after_tool_callback(self, *, tool: Any, tool_args: Any, tool_context: Any, result: Any) -> Any:
        return redact(tool, tool_args, tool_context, result)


def kept_of(talk: Chat) -> str:
    """All that the store and the session's state hold."""
    files = talk.store.files
    texts = [gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in map(files.read, paths_of(talk))]
    return b"\n".join(texts).decode(errors="replace") + str(state_of(talk))


def paths_of(talk: Chat) -> list[str]:
    return [file.path for file in talk.store.files.below(talk.store.files.root)]


@pytest.mark.parametrize("how", ["callback", "in place", "plugin"])
def test_what_a_callback_takes_out_of_a_result_is_in_no_store(how: str) -> None:
    callbacks = {"callback": redact, "in place": redact_in_place}
    settings = {"after_tool_callback": callbacks[how]} if how in callbacks else {}
    script = [call("read_account", name="a"), "done"] * 2
    talk = chat(script, tools=[read_account], settings=settings)
    if how == "plugin":
        talk.runner.plugin_manager.register_plugin(Redacts(name="redacts"))
    talk.say("look", "again")
    assert "[an account]" in str(shown(talk, "read_account"))
    assert SECRET not in str(talk.sent)
    assert SECRET not in kept_of(talk)
    talk.replays()


def test_a_result_that_a_callback_leaves_as_it_is_is_offloaded() -> None:
    talk = chat([call("read_log", name="a"), "done"], settings={"after_tool_callback": [look]})
    talk.say("what is the retention period?")
    assert "artifact" in shown(talk)
    assert evidence_of(talk)
    talk.replays()


def test_results_that_wait_for_callbacks_are_offloaded_in_each_branch() -> None:
    script = [[call("read_log", name=name) for name in "abc"], "done"]
    talk = chat(script, settings={"after_tool_callback": look})
    talk.say("look")
    assert len(evidence_of(talk)) == 3
