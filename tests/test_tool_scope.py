"""Tools that a step names, and those of many that find room; and additions that suit what the app itself asks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
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
from plans import NARROW, messages, planned, small, turns
from scripted import Chat, Scripted, call, delete_all, look_up, results, send_mail
from wording import FIND_TOOLS, HISTORY

from aether_context import PackPolicy, build_pack
from aether_context.conversation.content_json import content_of_parts, part_of


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
_LEAST = range(10)


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


def test_the_first_tools_that_find_room_are_declared_and_the_rest_can_be_asked_for() -> None:
    chat = many("Here they are.")
    chat.say("Which flights has the customer booked?")
    names = declared(chat)[0]
    assert names[-1] == "find_tools"
    assert names[:-1] == NAMES[: len(names) - 1]
    assert len(_LEAST) <= len(names) - 1 < len(NAMES)
    assert set(chat.after.sent[0].dispatched) == {*NAMES, "find_tools"}
    scope = chat.manifests()[0].tools
    assert scope.mode == "fitting"
    readers = dict.fromkeys(("read_artifact", "search_artifact"), "essential")
    assert scope.kept == dict.fromkeys(names[:-1], "fits") | readers
    assert set(scope.left_out) == set(NAMES) - set(names)
    assert set(scope.left_out.values()) == {"over_allocation"}
    chat.replays()


def test_all_sessions_have_one_head_whatever_they_begin_with() -> None:
    chat = many(*["ok"] * 12)
    for at, words in enumerate(("Hi!", "Which flights?", "Rename the guitar.", "Hola", "庭の写真", "Bye " * 300)):
        chat.say(words, "And then?", session=f"s{at}")
    chat.restart()
    chat.say("Once more.", session="s0")
    assert len(chat.after.sent) == 13
    assert len(set(declared(chat))) == 1


def test_all_are_declared_while_they_take_less_than_a_fifth_of_the_budget() -> None:
    chat = many("ok", policy=SMALL.changed(max_input_tokens=24_000))
    chat.say("Hello")
    manifest = chat.manifests()[0]
    assert declared(chat) == [NAMES]
    budget = manifest.window - manifest.layer_budgets["slack_min"].tokens
    assert 0.05 * manifest.window < manifest.allocation["tools"].used < 0.2 * budget


def test_what_is_called_or_found_is_declared_behind_the_others_and_stays() -> None:
    chat = many(
        call("find_tools", query="rename a guitar"),
        call("rename_guitar", number="3"),
        call("list_garden", number="7"),
        "Renamed.",
        "Yes.",
    )
    events = chat.say("Which flights has the customer booked?")
    found, done, listed = results(events)
    assert found["found"][0]["name"] == "rename_guitar"
    assert "Renames a guitar" in found["found"][0]["does"]
    assert (done["result"], listed["result"]) == ("rename_guitar did 3", "list_garden did 7")
    chat.say("Sure?")
    before, *after = declared(chat)
    assert "rename_guitar" not in before
    assert all(names[: len(before)] == before for names in after), "the head is what it was"
    assert "rename_guitar" in after[0]
    assert {"rename_guitar", "list_garden"} <= set(after[-1])
    assert [len(names) for names in after] == sorted(len(names) for names in after), "and only grows"
    chat.restart()
    chat.say("And again?")
    assert declared(chat)[-1] == after[-1]
    manifests = chat.manifests()
    assert [one.tools.kept.get("rename_guitar") for one in manifests[:3]] == [None, "found", "used"]
    chat.replays()


def test_what_is_declared_later_stands_behind_what_was_declared_earlier_whatever_the_apps_order() -> None:
    chat = many(
        call("rename_garden", number="1"),
        "Renamed.",
        [call("rename_guitar", number="2"), call("create_garden", number="3")],
        call("create_guitar", number="4"),
        "Done.",
        "Yes.",
        "Yes.",
    )
    chat.say("Hello", "And the others?")
    chat.restart()
    chat.say("Once more.")
    heads = declared(chat)
    for earlier, later in zip(heads, heads[1:], strict=False):
        assert later[: len(earlier)] == earlier, "a head goes on where the one before it ended"
    added = ("rename_garden", "rename_guitar", "create_garden", "create_guitar")
    assert tuple(name for name in heads[-1] if name in added) == added
    assert heads[0][-1] == "find_tools"
    chat.replays()


def test_what_was_called_stays_declared_when_a_cut_takes_the_call() -> None:
    script = [call("rename_guitar", number="3"), *("Renamed. " * 60 for _ in range(30))]
    chat = many(*script)
    chat.say("Rename it.", *("word " * 250 for _ in range(20)))
    assert any(event.stage == "cut" for one in chat.manifests() for event in one.truncation_events)
    assert not chat.sent[-1].answers("rename_guitar")
    assert declared(chat)[-1][-1] == "rename_guitar"
    chat.replays()


@pytest.mark.rows(0, slow=1)
@pytest.mark.parametrize("window", [4_800, 5_000])
def test_what_was_found_long_ago_gives_way_so_that_the_conversation_keeps_its_room(window: int) -> None:
    """An agent that has used all of its tools, one after another, declares those of the last while."""
    rounds = [(call("find_tools", query=name.replace("_", " ")), call(name, number="1"), "Done.") for name in NAMES]
    chat = many(*(reply for round_ in rounds for reply in round_), policy=SMALL.changed(max_input_tokens=window))
    questions = [f"Please {name}: " + " ".join(f"{name}{at}" for at in range(30)) for name in NAMES]
    events = chat.say(*questions)
    assert [answer["result"] for answer in results(events)[1::2]] == [f"{name} did 1" for name in NAMES]
    manifests = chat.manifests()
    assert all(one.allocation["tools"].used < one.window // 2 for one in manifests)
    assert all(questions[at // 3] in one.text for at, one in enumerate(chat.sent)), "each question stands whole"
    for name, found, called in zip(NAMES, declared(chat)[1::3], declared(chat)[2::3], strict=True):
        assert name in found
        assert name in called
    behind = [set(names[names.index("find_tools") + 1 :]) for names in declared(chat)]
    assert behind[-1] < set().union(*behind), "and the first ones are found again"
    chat.restart()
    chat.say("And again?")
    assert declared(chat)[-1] == declared(chat)[-2]
    chat.replays()


def test_all_that_one_answer_found_is_declared_in_the_next() -> None:
    looks = [call("find_tools", query=query) for query in ("rename guitar", "list garden", "create order")]
    chat = many(looks, "Done.", policy=SMALL.changed(max_input_tokens=5_000))
    events = chat.say("Find them.")
    found = {tool["name"] for answer in results(events) for tool in answer["found"]}
    assert len(found) > 5
    assert found <= set(declared(chat)[-1])
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
    sent = [one.name for one in pack.tools.sent if one.name != FIND_TOOLS]
    assert sorted([*sent, *pack.tools.left_out]) == sorted(names)
    assert sent == [name for name in names if name in sent]
    others = [name for at, name in enumerate(names) if at not in steering]
    if pack.tools.mode == "off":
        assert sent == names
        return
    chosen = [name for name, why in pack.tools.kept.items() if why == "fits"]
    assert {f"tool_{at}" for at in steering} <= set(sent)
    used = sum(block.tokens for one, block in zip(pack.tools.sent, pack.sent.tools, strict=True) if one.name in chosen)
    assert len(chosen) >= 10
    assert used <= 0.2 * pack.allocation.budget or chosen == others[:10]
    again = build_pack(asked._replace(epoch=pack.epoch), policy)
    assert (again.tools.sent, again.epoch_reason) == (pack.tools.sent, None)


def test_a_tool_that_was_found_and_is_declared_anyway_stays_where_it_is() -> None:
    """As where the window or the policy has changed since the model was told of it."""
    tools = [packs.tool(f"tool_{at}", f"Handles garden {at}. " * 20) for at in range(30)]
    asked = packs.said("What grows in the garden?")
    answer = {"id": "c", "name": "find_tools", "response": {"found": [{"name": "tool_0"}, {"name": "tool_29"}]}}
    found = content_of_parts("user", [part_of({"function_response": answer})])
    policy = PackPolicy(max_input_tokens=8_000, on_invalid="warn")
    heads = []
    for contents in ([asked], [asked, packs.called("find_tools", "c", query="garden"), found]):
        pack = build_pack(packs.pack_input(contents, window=8_000, tools=tools, can_find=True), policy)
        heads.append([one.name for one in pack.tools.sent])
    assert heads[0][0] == "tool_0"
    assert heads[1] == [*heads[0], "tool_29"]


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


def test_a_line_of_a_tool_marks_what_may_be_left_out_and_says_what_comes_back() -> None:
    def find(text: str, limit: int = 5) -> str:
        """Finds lines."""
        return text

    def answers(context: CallbackContext, request: LlmRequest) -> None:
        fields = {"lines": types.Schema(type=types.Type.ARRAY), "total": types.Schema(type=types.Type.INTEGER)}
        (tool,) = request.config.tools or ()
        for declaration in tool.function_declarations:  # type: ignore[union-attr]
            shape = types.Schema(type=types.Type.OBJECT, properties=fields)
            declaration.response = shape if declaration.name == "find" else types.Schema(type=types.Type.STRING)

    plan = planned(NARROW)
    plan["plan"]["step"]["tools"] = ["find", "send_mail"]
    chat = Chat(tools=[find, send_mail], state=plan, alter=answers)
    chat.say("go")
    assert "- find(text: string, limit?: integer) -> {lines, total}: Finds lines." in chat.sent[0].human()
    assert "- send_mail(to: string) -> string: Sends a mail." in chat.sent[0].human()
    chat.replays()


# what the plugin adds and takes away beside the host's own


READERS = ("read_artifact", "search_artifact")
JSON = {"response_mime_type": "application/json"}


def settings(**values: Any) -> Callable[[CallbackContext, LlmRequest], None]:
    """An app's callback that sets these of a request's settings."""

    def alter(context: CallbackContext, request: LlmRequest) -> None:
        for name, value in values.items():
            setattr(request.config, name, value)

    return alter


OWN_CACHE = settings(cached_content="cachedContents/7", system_instruction=None, tools=None, tool_config=None)


def calling(mode: str, *names: str) -> types.ToolConfig:
    return types.ToolConfig(
        function_calling_config=types.FunctionCallingConfig(mode=mode, allowed_function_names=list(names) or None)
    )


@pytest.mark.parametrize(
    ("chat", "readers"),
    [
        ({}, READERS), ({"alter": OWN_CACHE}, ()), ({"alter": settings(**JSON)}, ()),
        ({"alter": settings(response_mime_type="text/x.enum")}, ()),
        ({"alter": settings(**JSON), "model": "gemini-flash-latest"}, READERS),
        ({"alter": settings(**JSON), "model": "gemini/gemini-2.5-pro"}, ()),
        ({"alter": settings(**JSON), "tools": [look_up]}, READERS),
        ({"alter": settings(response_modalities=["TEXT", "IMAGE"])}, ()),
        ({"alter": settings(tool_config=calling("NONE"))}, ()), ({"tools": [google_search]}, ()),
        ({"model": "ollama_chat/gemma3:27b"}, ()), ({"model": "ollama_chat/llama3.1:8b"}, READERS),
    ],
)  # fmt: skip
@pytest.mark.rows(4)
def test_a_cut_brings_readers_where_the_request_takes_functions(chat: dict[str, Any], readers: tuple[str, ...]) -> None:
    talk = Chat(policy=small(4_000), **chat)
    talk.say(*turns(7, 280))
    last = talk.sent[-1]
    assert talk.latest().epoch.cut_count
    assert last.readers == readers
    assert (HISTORY in last.text) is bool(readers)
    talk.replays()


def test_beside_a_cache_of_the_apps_own_stand_contents_alone() -> None:
    talk = Chat(
        script=[call("big_file", name="a"), "It is long."] * 3,
        tools=[look_up, delete_all],
        state=planned(NARROW),
        policy=small(6_000, tools={"scope": "mask"}),
    )
    talk.say(*turns(7, 400))
    assert (talk.sent[-1].readers, HISTORY in talk.sent[-1].text) == (READERS, True)
    talk.before.alter = OWN_CACHE
    talk.say("And now?", "Really?")
    for sent in talk.sent[-2:]:
        assert (sent.system, sent.declared, sent.readers, sent.tool_config) == (None, (), (), None)
        assert HISTORY not in sent.text
        assert "INTERPRETATION RULES" in sent.text, "the message says what the instruction cannot"
    talk.before.alter = None
    talk.say("And again?")
    assert talk.sent[-1].readers == READERS
    talk.replays()


@pytest.mark.parametrize("tools", [[delete_all, look_up, send_mail], [delete_all, look_up]])
def test_a_step_spares_the_tools_that_a_request_forces(tools: list[Any]) -> None:
    force = settings(tool_config=calling("ANY", "delete_all"))
    talk = Chat(script=[call("delete_all")], tools=tools, state=planned(NARROW), alter=force)
    talk.say("go")
    assert talk.sent[0].declared == ("delete_all", "look_up")
    assert talk.sent[0].tool_config == calling("ANY", "delete_all")
    talk.replays()


def test_of_many_tools_those_are_declared_that_a_request_forces() -> None:
    def tool(at: int) -> Callable[[str], str]:
        def act(name: str) -> str:
            return "done"

        act.__name__, act.__doc__ = f"tool_{at}", f"Does the work that is the {at}th of many. " + "It takes care. " * 40
        return act

    force = settings(tool_config=calling("VALIDATED", "tool_39"))
    talk = Chat(tools=[tool(at) for at in range(40)], policy=small(8_000), alter=force)
    talk.say("go")
    assert "tool_39" in talk.sent[0].declared


def test_no_tool_config_is_left_where_a_step_leaves_no_tool() -> None:
    plan = planned(NARROW)
    plan["plan"]["step"]["tools"] = ["send_mail"]
    talk = Chat(tools=[look_up], state=plan, alter=settings(tool_config=calling("ANY")))
    talk.say("go")
    assert talk.sent[0].declared == ()
    assert talk.sent[0].tool_config is None or talk.sent[0].tool_config.function_calling_config is None
