"""Tools that a step names, and the relevant ones of many: what is shown, what may be called, what can be asked for."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import packs
import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools import google_search
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import NARROW, messages, planned
from scripted import Chat, Scripted, call, delete_all, look_up, results, send_mail

from aether_context import PackPolicy, build_pack
from aether_context.packing.tools import FIND_TOOLS
from aether_context.retrieval.embedders import StaticEmbedder


def test_prune_takes_tools_away_in_both_places() -> None:
    chat = Chat(
        script=[call("delete_all"), call("look_up", key="a"), "done"],
        tools=[look_up, send_mail, delete_all],
        state=planned(NARROW),
    )
    events = chat.say("go")
    assert len(chat.sent) == 3
    for one in chat.sent:
        assert one.declared == ("look_up",)
        assert one.dispatched == ("look_up",)
    answers = [answer for event in events for answer in event.get_function_responses()]
    assert "gone" not in json.dumps(answers[0].response)
    assert answers[1].response["key"] == "a"
    assert chat.manifests()[0].tools.left_out == {"send_mail": "not_in_scope", "delete_all": "not_in_scope"}
    assert "look_up(key: string): Looks a key up." in chat.sent[0].human()
    assert "send_mail" not in chat.sent[0].human()
    chat.replays()


def test_tools_that_are_not_functions_stay() -> None:
    chat = Chat(tools=[look_up, send_mail, google_search], state=planned(NARROW))
    chat.say("go")
    assert chat.sent[0].declared == ("look_up",)
    assert len(chat.sent[0].other_tools) == 1
    assert "google_search" in chat.sent[0].other_tools[0]
    chat.replays()


def family(root_script: list[Any], **settings: Any) -> tuple[Chat, Scripted, Scripted]:
    parent, child = Scripted(script=root_script, sent=[]), Scripted(script=["child speaks"], sent=[])
    sub = LlmAgent(name="helper", model=child, description="Helps.", tools=[look_up, send_mail])
    root = LlmAgent(name="boss", model=parent, instruction="Lead.", sub_agents=[sub], tools=[look_up, send_mail])
    return Chat(agent=root, **settings), parent, child


def test_transfer_to_agent_is_never_narrowed_and_the_sub_agent_gets_its_own_pack() -> None:
    chat, parent, child = family([[call("transfer_to_agent", agent_name="helper")]], state=planned(NARROW))
    chat.say("help me")
    assert sorted(chat.sent[0].declared) == ["look_up", "transfer_to_agent"]
    assert "transfer_to_agent" in chat.sent[0].dispatched
    assert len(parent.sent) == len(child.sent) == 1
    assert "transfer_to_agent" in child.sent[0].declared
    assert "CONTEXT PACK" in child.sent[0].text
    manifests = chat.manifests()
    assert [manifest.agent for manifest in manifests] == ["boss", "helper"]
    assert [manifest.call for manifest in manifests] == [1, 1]
    assert len({manifest.pack_id for manifest in manifests}) == 2
    held = asyncio.run(chat.held())
    assert len([key for key in held.state if key.startswith("aether:epoch:")]) == 2
    chat.replays()


def test_mask_restricts_calls_and_never_forces_one() -> None:
    chat = Chat(
        tools=[look_up, send_mail, delete_all], state=planned(NARROW), policy=PackPolicy(tools={"scope": "mask"})
    )
    chat.say("go")
    one = chat.sent[0]
    assert one.declared == one.dispatched == ("look_up", "send_mail", "delete_all")
    calling = one.tool_config.function_calling_config
    assert calling.mode == types.FunctionCallingConfigMode.VALIDATED
    assert calling.allowed_function_names == ["look_up", *one.readers]
    assert chat.manifests()[0].tools.allowed == ("look_up", *one.readers)


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "openai/gpt-5", "unknown"])
def test_mask_falls_back_with_a_record_where_a_model_takes_no_names(model: str) -> None:
    chat = Chat(
        tools=[look_up, send_mail], state=planned(NARROW), policy=PackPolicy(tools={"scope": "mask"}), model=model
    )
    chat.say("go")
    assert chat.sent[0].tool_config is None
    assert chat.sent[0].declared == ("look_up", "send_mail")
    manifest = chat.manifests()[0]
    assert manifest.tools.mode == "off"
    assert "mask" in messages(manifest.degradations)


SUBJECTS = ("invoice", "parcel", "calendar", "photo", "recipe", "flight", "hotel", "contract", "guitar", "garden")
VERBS = ("create", "delete", "list", "rename")
NAMES = tuple(f"{verb}_{subject}" for subject in SUBJECTS for verb in VERBS)
SMALL = PackPolicy(max_input_tokens=8_000)


def tool(name: str) -> FunctionTool:
    verb, subject = name.split("_")

    def work(number: str) -> str:
        return f"{name} did {number}"

    work.__name__ = name
    work.__doc__ = f"{verb.title()}s a {subject} of the customer.\n\nArgs:\n    number: The number of the {subject}."
    return FunctionTool(work)


def many(*script: Any, policy: PackPolicy = SMALL, **more: Any) -> Chat:
    return Chat(script=script, tools=[tool(name) for name in NAMES], policy=policy, **more)


def declared(chat: Chat) -> list[tuple[str, ...]]:
    return [one.declared for one in chat.after.sent]


def test_the_relevant_tools_are_declared_in_the_hosts_order_and_the_rest_can_be_asked_for() -> None:
    chat = many("Here they are.")
    chat.say("Which flights has the customer booked?")
    names = declared(chat)[0]
    assert names[-1] == "find_tools"
    assert {"list_flight", "create_flight"} <= set(names)
    assert len(names) < len(NAMES) / 2
    assert list(names[:-1]) == [name for name in NAMES if name in names]
    assert set(chat.after.sent[0].dispatched) == {*NAMES, "find_tools"}
    scope = chat.manifests()[0].tools
    assert scope.mode == "relevant"
    readers = dict.fromkeys(("read_artifact", "search_artifact"), "essential")
    assert scope.kept == dict.fromkeys(names[:-1], "relevant") | readers
    assert set(scope.left_out) == set(NAMES) - set(names)
    assert set(scope.left_out.values()) == {"over_allocation"}
    assert scope.scores["list_flight"] > scope.scores["rename_garden"] >= 0
    assert scope.embedder == StaticEmbedder().name
    chat.replays()


def test_the_choice_stands_for_the_epoch_and_a_request_only_grows() -> None:
    chat = many(call("list_flight", number="7"), "Flight 7.", "Your garden.")
    chat.say("Which flights has the customer booked?")
    chat.say("And what is in the garden?")
    assert len(set(declared(chat))) == 1
    manifests = chat.manifests()
    assert [one.epoch_reason for one in manifests] == ["first_call", None, None]
    assert all(one.prefix.broken_by in (None, "new_invocation") for one in manifests)
    assert [bool(one.tools.scores) for one in manifests] == [True, False, False]
    assert [bool(one.tools.embedder) for one in manifests] == [True, False, False]
    assert [one.tools.kept["list_flight"] for one in manifests] == ["relevant", "used", "used"]
    chat.replays()


def test_what_the_model_asks_for_is_declared_at_the_next_call_as_an_epoch() -> None:
    chat = many(call("find_tools", query="rename a guitar"), call("rename_guitar", number="3"), "Renamed.", "Yes.")
    events = chat.say("Which flights has the customer booked?")
    found, done = results(events)
    assert found["found"][0]["name"] == "rename_guitar"
    assert "Renames a guitar" in found["found"][0]["does"]
    assert done == {"result": "rename_guitar did 3"}
    chat.say("Sure?")
    before, *after = declared(chat)
    assert "rename_guitar" not in before
    assert all("rename_guitar" in names for names in after)
    assert set(before) < set(after[0])
    assert len(set(after)) == 1
    manifests = chat.manifests()
    assert [one.epoch_reason for one in manifests] == ["first_call", "tools_changed", None, None]
    assert [one.tools.kept.get("rename_guitar") for one in manifests] == [None, "found", "used", "used"]
    chat.replays()


def test_what_is_found_among_tools_is_no_evidence() -> None:
    item = {"id": "a", "text": "Seen", "needs_evidence": True}
    plan = {"plan": {"steps": [{"text": "Rename it", "acceptance": [item]}]}}
    chat = many(call("find_tools", query="rename a guitar"), call("rename_guitar", number="3"), "Renamed.", state=plan)
    chat.say("Which flights has the customer booked?")
    assert [record.source for record in chat.store.evidence("shop", "ann", "s1")] == ["rename_guitar"]


def test_no_tool_is_hidden_where_all_fit_or_where_the_policy_says_so() -> None:
    for policy in (PackPolicy(), PackPolicy(max_input_tokens=8_000, tools={"scope": "off"})):
        chat = many("ok", policy=policy)
        chat.say("Which flights has the customer booked?")
        assert declared(chat) == [NAMES]
        assert chat.manifests()[0].tools.kept == {}
    few = Chat(script=["ok"], tools=[tool(name) for name in NAMES[:10]], policy=SMALL.changed(max_input_tokens=1_000))
    few.say("Which flights has the customer booked?")
    assert declared(few) == [NAMES[:10]]


def test_pinned_tools_stay_and_a_step_that_names_tools_has_only_those() -> None:
    chat = many("ok", policy=SMALL.changed(tools={"always": ["rename_guitar"]}))
    chat.say("Which flights has the customer booked?")
    assert chat.manifests()[0].tools.kept["rename_guitar"] == "pinned"
    plan = {"plan": {"step": {"id": "1", "text": "Fly", "acceptance": ["Flown"], "tools": ["list_hotel"]}}}
    narrow = many("ok", state=plan)
    narrow.say("Which flights has the customer booked?")
    assert declared(narrow) == [("list_hotel",)]


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=5, max_size=40),
    window=st.integers(2_000, 40_000),
    steering=st.sets(st.integers(0, 4)),
)
def test_all_tools_are_accounted_for_and_the_chosen_stay_inside_their_share(
    lengths: list[int], window: int, steering: set[int]
) -> None:
    tools = [
        replace(packs.tool(f"tool_{at}", f"Handles garden {at}. " * length), essential=at in steering)
        for at, length in enumerate(lengths)
    ]
    asked = packs.pack_input([packs.said("What grows in the garden?")], window=window, tools=tools, can_find=True)
    policy = PackPolicy(max_input_tokens=window, on_invalid="warn")
    pack = build_pack(asked, policy)
    names = [one.name for one in tools]
    sent = [one.name for one in pack.tools.sent if one is not FIND_TOOLS]
    assert sorted([*sent, *pack.tools.left_out]) == sorted(names)
    assert sent == [name for name in names if name in sent]
    if pack.tools.mode == "off":
        assert sent == names
        return
    chosen = [name for name, why in pack.tools.kept.items() if why == "relevant"]
    assert {f"tool_{at}" for at in steering} <= set(sent)
    fewest = max(0, 10 - len(steering))
    used = sum(block.tokens for block in pack.sent.tools)
    assert used <= window * policy.budget.floors.tools or len(chosen) <= fewest
    others = [name for at, name in enumerate(names) if at not in steering]
    assert set(sorted(others, key=lambda name: -pack.tools.scores[name])[:fewest]) <= set(chosen)
    assert build_pack(packs.changed(asked, tool_scores=pack.tools.scores), policy).checksum == pack.checksum
    again = build_pack(asked._replace(epoch=pack.epoch), policy)
    assert (again.tools.sent, again.epoch_reason, again.tools.scores) == (pack.tools.sent, None, {})


@pytest.mark.parametrize(
    ("calling", "hides"),
    [
        (types.FunctionCallingConfig(mode="ANY"), False),
        (types.FunctionCallingConfig(mode="NONE"), False),
        (types.FunctionCallingConfig(mode="VALIDATED", allowed_function_names=["list_hotel"]), False),
        (types.FunctionCallingConfig(mode="AUTO"), True),
    ],
)
def test_nothing_is_hidden_where_the_host_restricts_calls(calling: types.FunctionCallingConfig, hides: bool) -> None:
    def restrict(context: CallbackContext, request: LlmRequest) -> None:
        request.config.tool_config = types.ToolConfig(function_calling_config=calling)

    chat = many("ok", alter=restrict)
    chat.say("Which flights has the customer booked?")
    assert ("find_tools" in declared(chat)[0]) is hides
    assert (declared(chat)[0] == NAMES) is not hides
    chat.replays()


@pytest.mark.parametrize("query", ["明天天气怎么样", "umbenennen einer Gitarre", "переименовать гитару"])
def test_all_tools_are_named_where_no_score_says_anything(query: str) -> None:
    chat = many(call("find_tools", query=query), call("find_tools", query=NAMES[-1]), "Done.")
    first, second = results(chat.say("hello there"))
    hidden = set(NAMES) - set(declared(chat)[0])
    assert first["found"] == []
    assert set(first["all_tools"]) == hidden
    assert NAMES[-1] in hidden
    assert second["found"][0]["name"] == NAMES[-1]
