"""Offload as it is without a policy: where a result is long for the window, whoever put it there, and nowhere else."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events.event import Event
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from pydantic import BaseModel
from scripted import Chat, Failure, Scripted, call, results, state_of

from aether_context import PackPolicy
from aether_context.adk import HybridMemoryService, context_tools, evidence_tools, memory_tools, planning_tools
from aether_context.evidence import offload

ROWS = [f"2025-01-01 10:{at // 60:02d}:{at % 60:02d} INFO step {at} took {at * 37 % 1009} ms" for at in range(120)]
ROWS[70] = "2025-01-01 10:01:10 INFO the retention period is 41 days"
LOG = "\n".join(ROWS)
READERS = ("read_artifact", "search_artifact")


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
    return talk.sent[at].answers(name)[-1]


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


class Note(BaseModel):
    """A note in one field."""

    text: str


def rules(**settings: Any) -> PackPolicy:
    return PackPolicy(max_input_tokens=128_000, **settings)


NEVER = {"read_log": "whole", "read_note": "whole"}
ONE = types.GenerateContentConfig(
    tool_config=types.ToolConfig(
        function_calling_config=types.FunctionCallingConfig(mode="ANY", allowed_function_names=["read_note"])
    )
)


@pytest.mark.parametrize(
    ("settings", "readers"),
    [
        ({"policy": rules()}, READERS), ({"policy": None}, READERS),
        ({"policy": rules(), "settings": {"output_schema": Note}}, READERS),
        ({"policy": PackPolicy(max_input_tokens=3_900)}, ()), ({"policy": None, "model": "of-no-known-window"}, ()),
        ({"policy": rules(), "tools": []}, ()),
        ({"policy": rules(), "tools": [], "settings": {"output_schema": Note}}, ()),
        ({"policy": rules(), "settings": {"generate_content_config": ONE}}, ()),
        ({"policy": rules(offload={"tools": NEVER})}, ()), ({"policy": rules(offload={"mode": "off"})}, ()),
        ({"policy": rules(record="hashes")}, ()),
    ],
    ids=[
        "a large window", "the model's own", "a schema with tools", "a small window", "an assumed window", "no tools",
        "a schema without tools", "calls that are told to be made", "results that all stay", "no offload",
        "no texts in the store",
    ],
)  # fmt: skip
def test_readers_are_declared_first_where_results_may_be_offloaded(settings, readers):
    talk = chat(["hello"], **settings)
    talk.say("hi", "and again")
    assert [one.readers for one in talk.sent] == [readers, readers]


def test_readers_take_five_parts_in_a_hundred_of_the_least_window_that_has_them_first():
    used = []
    for mode in ("auto", "off"):
        talk = chat(policy=PackPolicy(max_input_tokens=4_000, offload={"mode": mode}))
        talk.say("hi")
        used.append(talk.manifests()[0].allocation["tools"].used)
    assert 100 < used[0] - used[1] <= 200


def test_an_agent_without_tools_of_its_own_has_no_readers_beside_one_that_has_them():
    sub = LlmAgent(name="teller", model=Scripted(script=["told"], sent=[]), description="Tells.", instruction="Tell.")
    root = Scripted(script=[call("transfer_to_agent", agent_name="teller")], sent=[])
    lead = LlmAgent(name="lead", model=root, instruction="You lead.", tools=[read_log], sub_agents=[sub])
    talk = chat(agent=lead, policy=None)
    talk.say("go")
    assert [(one.agent, one.readers) for one in talk.sent] == [("lead", READERS), ("teller", ())]


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
        assert talk.sent[-1].readers == ()


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


def test_readers_stay_where_only_the_summary_of_a_cut_names_an_address():
    answers = [f"Answer {at}. " + "The river rises and falls with rain. " * 20 for at in range(12)]
    talk = chat([call("read_log", name="a"), *answers, "last"], window=3_000)
    talk.say(*(f"Question {at}, about the river." for at in range(12)))
    assert "artifact://evidence/" in talk.sent[-1].text
    talk.say("and now?", recent_events=10)
    assert "artifact://evidence/" in talk.sent[-1].text
    assert "read_log" not in str(talk.raw[-1].wires)
    assert talk.sent[-1].readers == READERS


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


@pytest.mark.parametrize("name", ["list_steps", "remember", "read_log"])
def test_a_tool_of_the_apps_own_is_offloaded_whatever_its_name(name: str) -> None:
    def tool(name: str) -> str:
        return read_log(name)

    tool.__name__ = name
    talk = chat([call(name, name="a"), "seen"], tools=[tool])
    talk.say("go")
    assert [record.source for record in talk.store.evidence("shop", "ann", "s1")] == [name]


STEPS = [
    {"id": "sail", "text": "Sail", "acceptance": [{"id": "a", "text": "Seen", "needs_evidence": True}]},
    {"id": "dock", "text": "Dock", "acceptance": ["Docked"]},
]


def test_what_a_tool_of_this_package_answers_proves_nothing_to_another_agent(tmp_path: Path) -> None:
    calls = [
        call("list_steps"),
        call("add_step", step_id="land", text="Land", acceptance=["Landed"]),
        call("claim_step", step_id="dock"),
        call("release_step", step_id="dock"),
        call("claim_step", step_id="dock"),
        call("complete_step", step_id="dock"),
        call("add_note", text="Calm"),
        call("record_decision", text="Sail on"),
        call("record_entity", name="Skagen", text="A harbour"),
        call("remember", text="Ann sails."),
        call("keep_evidence", text="The sea is calm.", source="log", covers=[]),
        call("cut_now"),
        call("read_note", name="a"),
        call("transfer_to_agent", agent_name="writer"),
    ]
    tools = [*planning_tools(), *evidence_tools(), *memory_tools(), *context_tools()]
    writer = LlmAgent(name="writer", model=Scripted(script=["ok"], sent=[]))
    model = Scripted(script=[calls], sent=[])
    clerk = LlmAgent(name="clerk", model=model, tools=[*tools, read_note], sub_agents=[writer])
    talk = chat(agent=clerk, state={"plan": {"steps": STEPS}}, memory=HybridMemoryService(tmp_path, embedder="none"))
    answers = results(talk.say("go"))
    assert len(answers) == len(calls)
    assert not [answer for answer in answers if "error" in answer]
    assert {record.source for record in talk.store.evidence("shop", "ann", "s1")} == {"log", "read_note"}


def order(item: str) -> dict[str, str]:
    """Orders an item; it takes days."""
    return {"status": "pending"}


def records(talk: Chat) -> list[Any]:
    return talk.store.evidence("shop", "ann", "s1")


def posted(call_id: str | None, name: str, response: dict[str, Any]) -> types.Content:
    answer = types.FunctionResponse(id=call_id, name=name, response=response)
    return types.Content(role="user", parts=[types.Part(function_response=answer)])


def test_a_result_that_was_posted_later_has_an_address() -> None:
    talk = chat([call("order", item="tea"), "ordered", "it came"], tools=[LongRunningFunctionTool(order)])
    events = talk.say("order tea")
    asked = next(one for event in events for one in event.get_function_calls())
    talk.say(posted(asked.id, "order", {"result": LOG}))
    (answer,) = talk.sent[-1].answers()
    (record,) = [one for one in records(talk) if one.form == "extract"]
    assert str(answer["artifact"]).startswith(record.uri)
    assert (record.source, record.agent) == ("order", "clerk")
    assert talk.store.evidence_data("shop", "ann", record.digest).decode() == LOG
    talk.replays()


def test_consent_that_a_person_gives_is_in_no_store() -> None:
    asking = types.Part(function_call=types.FunctionCall(name="adk_request_credential", args={}, id="adk-ask"))
    talk = chat(["hello", "thanks"])
    talk.say("hi")
    session = asyncio.run(talk.held())
    asked = Event(author="clerk", invocation_id="i", content=types.Content(role="model", parts=[asking]))
    asyncio.run(talk.sessions.append_event(session, asked))
    secret = posted("adk-ask", "adk_request_credential", {"exchanged_auth_credential": "s3cret " * 2_000})
    asyncio.run(talk.sessions.append_event(session, Event(author="user", invocation_id="i", content=secret)))
    talk.say("go on")
    assert records(talk) == []


def test_what_was_rewound_is_in_no_store() -> None:
    talk = chat(["hello", call("read_log", name="a"), Failure("down"), call("read_log", name="b"), "done"])
    talk.say("hi")
    with pytest.raises(Failure):
        talk.say("read")
    last = asyncio.run(talk.held()).events[-1].invocation_id
    asyncio.run(talk.runner.rewind_async(user_id="ann", session_id="s1", rewind_before_invocation_id=last))
    talk.store.files.fs.rm(talk.store.files.root, recursive=True)
    talk.say("read the other")
    (record,) = records(talk)
    assert talk.store.evidence_data("shop", "ann", record.digest).decode() == read_log("b")


@pytest.mark.slow
def test_what_is_shown_of_very_many_results_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    offloads: list[str] = []

    def offload_noted(response: Any, tool: str, *rest: Any, **settings: Any) -> Any:
        offloads.append(tool)
        return offload(response, tool, *rest, **settings)

    monkeypatch.setattr("aether_context.adk.evidence.offload", offload_noted)
    talk = chat(["yes"] * 4, policy=PackPolicy(max_input_tokens=16_000, offload={"extract_tokens": 400}))
    talk.say("hello")

    async def fill(begin: int) -> None:
        session = await talk.held()
        for at in range(begin, begin + 280):
            result = {"result": f"{at}\n" + "\n".join(ROWS[at % 20 : at % 20 + 20])}
            asked = types.FunctionCall(name="read_log", args={"name": str(at)}, id=f"c{at}")
            answer = types.FunctionResponse(name="read_log", response=result, id=f"c{at}")
            for role, part in (("model", {"function_call": asked}), ("user", {"function_response": answer})):
                content = types.Content(role=role, parts=[types.Part(**part)])
                await talk.sessions.append_event(session, Event(author="clerk", invocation_id="i", content=content))

    for begin in (0, 280):  # a call looks at the latest 500 that are new
        asyncio.run(fill(begin))
        talk.say(f"from {begin}")
    assert len(offloads) == 560
    offloads.clear()
    talk.say("and now?")
    assert offloads == []
    assert "artifact" in shown(talk)
