"""The user's current request at the last resort: old things give way before it, and nothing that a host puts behind it
for one call is taken for it."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from google.adk.agents import SequentialAgent
from google.adk.artifacts import InMemoryArtifactService
from google.adk.tools.load_artifacts_tool import load_artifacts_tool
from google.genai import types
from plans import PLAN, small, words
from scripted import Chat, Memories, call, remembered, results
from teams import DEPRECATED, Counting, agent

from aether_context import PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.errors import StoreError

ORDERS = "\n".join(f"parcel {at * 7919 % 10007} to dock {at % 9} weighs {at * 37 % 101} kg" for at in range(34))


def ledger(number: int) -> Any:
    """A tool with a long description and a long answer."""

    def read(order: str, note: str) -> dict[str, Any]:
        rows = (f"{at} {number} {order} {at * 613 % 997} booked at dock {at % 7}" for at in range(140))
        return {"log": "\n".join(rows)}

    read.__name__ = f"ledger_{number}"
    read.__doc__ = f"Reads ledger {number}. " + "It says what was booked on which day, by whom, and at which dock. " * 8
    return read


def reads(turn: int, count: int) -> list[types.Part]:
    """Parallel calls of a turn."""
    return [call(f"ledger_{(turn + at) % 9}", order=f"o{turn}-{at}", note=words(40, f"n{turn}")) for at in range(count)]


class Unwritten(PackStore):
    """A store to which no pack gets, as one whose writes wait behind others."""

    def write(self, recording: Any, outcome: Any = None) -> Any:
        raise StoreError("it is busy")


@pytest.mark.parametrize("kind", [PackStore, Unwritten])
@pytest.mark.parametrize("redact", [(), (r"\bparcel\b",)])
def test_the_middle_that_a_long_request_lost_is_read_in_the_same_turn(kind, redact):
    """A model may ask for it before the pack is in the store."""
    request = "\n".join(f"row {at}: parcel {at * 7919 % 10007} to dock {at % 9}" for at in range(900))
    policy, store = small(8_000, redact=redact), kind(f"memory://long-{kind.__name__}-{len(redact)}")
    before = Chat(["Read."], [ledger(1)], policy=policy)
    before.say(request)
    (address,) = {*re.findall(r"artifact://messages/\w+\.txt", before.sent[0].text)}
    script = [call("search_artifact", uri=address, query="row 471:"), "Read."]
    chat = Chat(script, [ledger(1)], plugin=ContextPackPlugin(policy=policy, store=store))
    events = chat.say(request)
    assert address in chat.sent[0].text
    assert "row 471:" not in chat.sent[0].text
    (found,) = results(events)
    assert f"row 471: {'[redacted]' if redact else 'parcel'}" in found["found"][0]["text"]
    assert results(chat.say("And?", session="another")) == []


@pytest.mark.parametrize(
    ("window", "instruction", "parallel", "planned"),
    [(6_000, 1_200, 12, False), (6_000, 1_200, 12, True), (8_000, 2_000, 8, False), (5_000, 200, 24, True)],
)
@pytest.mark.rows(0, slow=2)
def test_the_request_stays_word_for_word_while_anything_older_takes_room(window, instruction, parallel, planned):
    script = [reply for turn in range(5) for reply in (reads(turn, parallel), reads(turn + 20, parallel), "Done.")]
    plan = {**PLAN, "constraints": [words(60, f"c{at}") for at in range(4)]}
    chat = Chat(
        script,
        [ledger(at) for at in range(9)],
        small(window, tools={"scope": "off"}),
        {"plan": plan} if planned else {},
        memory=Memories(*(remembered(f"parcel {at} goes to dock {at}: {words(30, f'm{at}')}") for at in range(8))),
        instruction="You run a harbour. " + words(instruction // 2, "duty"),
    )
    for turn in range(5):
        first, question = len(chat.sent), f"Question {turn}: compare these.\n{ORDERS}"
        chat.say(question)
        assert all(question in sent.text for sent in chat.sent[first:])
    assert any(event.stage == "emergency" for manifest in chat.manifests() for event in manifest.truncation_events)
    chat.replays()


def test_a_request_that_alone_passes_the_window_is_shortened_last():
    chat = Chat(["Fine. " + words(200, f"a{at}") for at in range(8)], policy=small(3_000))
    chat.say(*(f"Note {at}: {words(150, f'q{at}w')}" for at in range(7)), words(4_000, "huge"))
    last = chat.sent[-1]
    assert "huge0 " in last.text
    assert "The middle of this message is left out" in last.text
    assert "CONVERSATION SUMMARY" not in last.text
    assert len(last.contents) == 1
    chat.replays()


LEDGER = [f"07:{at % 60:02d} worker-{at % 17} finished job {at * 7919 % 9973} in {at % 91} ms" for at in range(1_200)]


@pytest.mark.parametrize(
    "asks",
    [
        ["Which worker could not open the ledger, and why?"],
        ["What broke first?", "Who was on duty then?", "Do we have to tell the customer?"],
        ["Please write a short report of the night for the harbour master."],
        ["Never name a colleague in the report."],
        ["Welche Schicht war am langsamsten?"],
        ["请总结这个日志。"],
        ["どの作業員が遅れましたか？"],
    ],
)
@pytest.mark.parametrize("quarter", [1, 2, 3])
@pytest.mark.rows(10)
def test_what_a_long_message_asks_stays_wherever_it_stands(asks, quarter):
    chat, at = Chat(["Fine."], policy=small(5_000)), quarter * len(LEDGER) // 4
    chat.say("\n".join([*LEDGER[:at], "", "\n\n".join(asks), "", *LEDGER[at:]]))
    text = chat.sent[-1].text
    assert "The middle of this message is left out" in text
    assert all(asked in text for asked in asks)
    assert LEDGER[0] in text
    assert LEDGER[-1] in text
    chat.replays()


def test_a_question_in_tags_is_what_a_paste_is_searched_by():
    rows = [{"id": at, "customer": f"Customer {at * 7919 % 10_007}", "total": at + 0.5} for at in range(900)]
    rows[600] = {"id": 600, "customer": "Marlow Ltd", "total": 4711.09}
    chat = Chat(["Fine."], policy=small(5_000))
    chat.say(f"<document>\n{json.dumps(rows)}\n</document>\n<question>What is the total of Marlow Ltd?</question>")
    assert '"Marlow Ltd", "total": 4711.09' in chat.sent[-1].text
    chat.replays()


def test_of_a_message_full_of_questions_the_head_and_the_tail_stay():
    chat = Chat(["Fine."], policy=small(5_000))
    faq = [
        f"May I keep goods of kind {at} in the shed?\nYes, at dock {at % 9}, {words(9, f'f{at}')}." for at in range(400)
    ]
    chat.say("\n\n".join(["Here are our answers.", *faq, "Which of them are out of date?"]))
    text = chat.sent[-1].text
    assert text.count("in the shed?") < 60
    assert "Here are our answers." in text
    assert "Which of them are out of date?" in text
    assert "f00 f01 f02" in text
    chat.replays()


LINES = [f"article {at}: the tenant sweeps the stairs of house {at} on Saturday" for at in range(1_500)]
LINES[1_100] = "article 1100: the QUARTERMASTER sweeps the stairs of house 1100 on Saturday"
SHORT = "The rent is 900 crowns a month, heating not included."


def as_it_is(artifact: types.Part, name: str) -> types.Part:
    return types.Part(text=(artifact.inline_data.data or b"").decode()) if artifact.inline_data else artifact


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("order", [["a", "long"], ["long", "a"], ["a", "long", "b"], ["long", "second"], ["long"]])
@pytest.mark.parametrize("rewrites", [False, True])
@pytest.mark.rows(6)
def test_a_loaded_artifact_keeps_what_the_request_asks_for(order, inline, rewrites):
    artifacts = InMemoryArtifactService()
    texts = {"a": SHORT, "b": "Nobody smokes in the cellar.", "long": "\n".join(LINES), "second": "\n".join(LINES)}
    for name, text in texts.items():
        part = types.Part.from_bytes(data=text.encode(), mime_type="text/plain") if inline else types.Part(text=text)
        asyncio.run(
            artifacts.save_artifact(app_name="shop", user_id="ann", session_id="s1", filename=name, artifact=part)
        )

    def rewrite(context: Any, request: Any) -> None:
        """Another plugin that masks the user's words."""
        for content in request.contents if rewrites else ():
            if (content.parts[0].text or "").startswith("Which"):
                content.parts = [types.Part(text=content.parts[0].text.replace("ann@example.org", "[mail]"))]

    chat = Chat(
        [call("load_artifacts", artifact_names=order), "Read.", "Yes."],
        [load_artifacts_tool],
        small(14_000),
        artifacts=artifacts,
        alter=rewrite,
    )
    chat.say("Which article binds the QUARTERMASTER? Write to ann@example.org.", "Thanks.")
    loaded = chat.sent[1]
    assert loaded.text.count("QUARTERMASTER sweeps") == sum(name in ("long", "second") for name in order)
    chat.replays()


@DEPRECATED
def test_a_sub_agents_request_stays_whole_behind_what_others_hand_over():
    first = agent("reader", [*(call("query_orders", page=f"r{at}") for at in range(6)), words(900, "found")])
    second = agent("writer", [*(call("query_orders", page=f"w{at}") for at in range(6)), "Done."])
    chat = Chat(agent=SequentialAgent(name="team", sub_agents=[first, second]), policy=small(4_000))
    chat.say(f"Compare these.\n{ORDERS}")
    for one in (first, second):
        assert isinstance(one.model, Counting)
        assert all(ORDERS in text for text in one.model.texts)
        assert max(one.model.tokens) <= 4_000
