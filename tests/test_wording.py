"""Each word of `wording` stands where users find it: in a real request, in a store, or in what sets it."""

from __future__ import annotations

import wording
from plans import small, turns
from scripted import Chat, Memories, call, look_up, remembered
from upkeep import by_kind, delete_older

from aether_context import PackPolicy

PLAN = {
    "task": "Compare the rivals",
    "goal": "A table of prices",
    "role": "operator",
    "constraints": ["Official pages only"],
    "open_questions": ["Which year?"],
    "next": ["Write it down"],
    "stop_when": ["Three are found"],
    "step": {"id": "s1", "text": "List three rivals", "acceptance": [{"text": "Three", "needs_evidence": True}]},
}
KNOWLEDGE = {
    "notes": ["The rate is 19 percent"],
    "evidence": [{"uri": "artifact://a.md", "summary": "Rivals of the rate", "covers": []}],
}


def planned() -> Chat:
    policy = PackPolicy(payload={"recitation": True, "contract": "payload"}, max_input_tokens=60_000)
    memory = Memories(remembered("Rivals have a rate"))
    state = {"plan": PLAN, "knowledge": KNOWLEDGE, "tools": ["look_up"]}
    chat = Chat(policy=policy, state=state, memory=memory, tools=[look_up])
    chat.say("Which rivals have a rate?")
    return chat


def test_a_planned_request_has_the_headers() -> None:
    text = planned().sent[0].text
    assert text.startswith(f"{wording.FIRST_LINE}\n")
    elsewhere = {"TOP EVIDENCE", "ACTIVE INSTRUCTIONS", "HANDED OVER"}
    assert {header for header in wording.HEADERS if f"\n{header}:\n" in text} >= set(wording.HEADERS) - elsewhere
    assert f"\n{wording.REQUEST}Which rivals have a rate?" in text


def test_the_instruction_of_an_agent_with_a_plan_tells_of_payloads() -> None:
    chat = Chat(state={"plan": PLAN})
    chat.say("Go on.")
    assert wording.CONTRACT_OPENING in chat.sent[0].system


def test_a_long_session_has_a_summary_with_orders_and_an_address_of_what_was_said() -> None:
    chat = Chat(policy=small(3_000))
    chat.say("Hello. From now on, always answer in French.", *turns(12))
    assert f"{wording.SUMMARY_TITLE}:\n{wording.ORDERS_TITLE}\n" in chat.sent[-1].text
    chat = Chat(script=[call("look_up", key="a")], tools=[look_up], policy=small(4_000))
    chat.say("Look it up.", *turns(14))
    assert wording.HISTORY in chat.sent[-1].text
    assert wording.READ in chat.sent[-1].readers


def test_a_store_has_the_files_and_says_what_was_deleted() -> None:
    chat = Chat(policy=small(3_000))
    chat.say(*(f"Number {at}: {'word ' * 200}" for at in range(18)))
    chat.manifests()
    kinds = by_kind(chat.store)
    assert {file.name for file in kinds["pack"]} == {wording.MANIFEST}
    written = sorted(file.modified or 0 for file in kinds["pack"])
    delete_older(chat.store, 1.0, written[len(written) // 2] + 1.0)
    assert {file.name for file in by_kind(chat.store)["forgotten"]} == {wording.FORGOTTEN}
