"""Final answers are held against their step's checklist and against what the request held; a repair is bounded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from google.adk.agents import LlmAgent, LoopAgent, SequentialAgent
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from scripted import Chat, Scripted, call, new_store

from aether_context.adk import AcceptanceGate, ContextPackPlugin
from aether_context.pack import AcceptanceItem, Step
from aether_context.text.entities import artifact_uris

PROOF = "artifact://evidence/report.md"
ITEMS = [
    {"id": "range", "text": "Its range is proven.", "needs_evidence": True},
    {"id": "tone", "text": "It is written for the committee."},
]
STATE = {
    "plan": {"task_id": "t", "goal": "One page.", "step": {"id": "s", "text": "Write it.", "acceptance": ITEMS}},
    "knowledge": {"evidence": [{"uri": PROOF, "summary": "The range is 40 km.", "covers": ["range"]}]},
}


@pytest.mark.parametrize(
    ("text", "uris"),
    [
        ("see artifact://a/b.md.", ("artifact://a/b.md",)),
        ("(artifact://a/b.md), [c](artifact://c)", ("artifact://a/b.md", "artifact://c")),
        ("artifact://a#L3-9 and artifact://a", ("artifact://a",)),
        ("**artifact://a**; `artifact://b`", ("artifact://a", "artifact://b")),
        ("artifact:// and http://a", ()),
        ("artifact://日本/語.txt", ("artifact://日本/語.txt",)),
    ],
)
def test_uris_are_read_out_of_prose(text: str, uris: tuple[str, ...]):
    assert tuple(dict.fromkeys(artifact_uris(text))) == uris


def verdict_of(chat: Chat, at: int = -1) -> Any:
    outcome = chat.store.outcome(chat.manifests()[at])
    assert outcome is not None
    return outcome.get("acceptance")


def found(verdict: Any) -> dict[str, Any]:
    return {one["id"]: (one["passed"], one["by"]) for one in verdict["items"]}


@pytest.mark.parametrize(
    ("answer", "covers", "passed"),
    [
        (f"yes ({PROOF})", ["range"], True),
        (f"yes ({PROOF})", [], False),
        (f"yes ({PROOF})", ["tone"], False),
        ("yes", ["range"], False),
        ("yes (artifact://evidence/other.md)", ["range"], False),
    ],
)
def test_an_item_that_needs_evidence_is_met_by_a_uri_of_the_request_that_proves_it(
    answer: str, covers: list[str], passed: bool
):
    evidence = [{"uri": PROOF, "summary": "The range is 40 km.", "covers": covers}]
    chat = Chat(script=[answer], state={**STATE, "knowledge": {"evidence": evidence}})
    chat.say("Go on.")
    assert found(verdict_of(chat))["range"] == (passed, "evidence")


def test_an_invented_uri_is_flagged_and_the_answer_is_left_alone():
    answer = "40 km (artifact://evidence/other.md)"
    chat = Chat(script=[answer], state=STATE)
    events = chat.say("Go on.")
    verdict = verdict_of(chat)
    assert not verdict["passed"]
    assert verdict["fabricated"] == ["artifact://evidence/other.md"]
    assert events[-1].content.parts[0].text == answer
    noted = events[-1].custom_metadata["aether_context"]["acceptance"]
    assert not noted["passed"]
    assert len(noted["missing"]) == 2


def test_checks_of_ones_own_have_a_say():
    async def short(item: AcceptanceItem, answer: str, step: Step) -> str | None:
        await asyncio.sleep(0)
        assert step.text == "Write it."
        return "over 10 characters" if item.id == "tone" and len(answer) > 10 else None

    def broken(item: AcceptanceItem, answer: str, step: Step) -> bool:
        raise RuntimeError("out of order")

    store = new_store()
    plugin = ContextPackPlugin(store=store, on_error="raise", checks=[short, broken])
    chat = Chat(script=[f"40 km ({PROOF})"], state=STATE, plugin=plugin, store=store)
    chat.say("Go on.")
    verdict = verdict_of(chat)
    assert found(verdict) == {"range": (True, "evidence"), "tone": (False, "check")}
    assert [one["reason"] for one in verdict["items"]] == ["", "over 10 characters"]
    assert len(verdict["problems"]) == 2
    assert "out of order" in verdict["problems"][0]


class Critic(Scripted):
    """A model that answers with what it is given, after a while."""

    answer: str = ""
    seconds: float = 0.0
    asked: list[Any] = []

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.asked.append(llm_request)
        await asyncio.sleep(self.seconds)
        yield LlmResponse(
            content=types.Content(role="model", parts=[types.Part(text=self.answer)]),
            usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=70, candidates_token_count=9),
        )


def judged(answer: str) -> tuple[Any, Critic]:
    store, critic = new_store(), Critic(model="critic", answer=answer, seconds=0.0, asked=[])
    plugin = ContextPackPlugin(store=store, on_error="raise", critic=critic)
    chat = Chat(script=[f"40 km ({PROOF})"], state=STATE, plugin=plugin, store=store)
    chat.say("Go on.")
    return verdict_of(chat), critic


def test_a_critic_judges_by_the_same_list():
    said = [{"id": "range", "passed": True, "reason": ""}, {"id": "tone", "passed": False, "reason": "too terse"}]
    verdict, critic = judged("```json\n" + json.dumps({"items": said}) + "\n```")
    assert found(verdict) == {"range": (True, "critic"), "tone": (False, "critic")}
    assert verdict["critic"] == {"requests": 1, "input_tokens": 70, "output_tokens": 9}
    asked = json.loads(critic.asked[0].contents[0].parts[0].text)
    assert [one["id"] for one in asked["acceptance"]] == ["range", "tone"]
    assert "problems" not in verdict


@pytest.mark.parametrize(
    "answer", ["", "no JSON", "{}", '{"items": 3}', '{"items": [{"id": "x", "passed": true}]}', "[1]", '{"items": [7]}']
)
def test_a_critic_that_answers_nonsense_decides_nothing(answer: str):
    verdict, _ = judged(answer)
    assert found(verdict) == {"range": (True, "evidence"), "tone": (None, "nothing")}
    assert verdict["problems"]


LOOPS = pytest.mark.filterwarnings("ignore:.*is deprecated in favor of Workflow:DeprecationWarning")


def repaired(script: list[Any], most: int = 2) -> tuple[Chat, list[Event]]:
    store = new_store()
    llm = Scripted(model="gemini-2.5-flash", script=script)
    worker = LlmAgent(name="worker", model=llm, instruction="You write.")
    loop = LoopAgent(name="loop", sub_agents=[worker, AcceptanceGate(name="gate", most_repairs=most)], max_iterations=9)
    chat = Chat(state=STATE, store=store, agent=loop)
    return chat, chat.say("Go on.")


def words(events: list[Event], author: str) -> list[str]:
    return [part.text for one in events if one.author == author and one.content for part in one.content.parts]


@LOOPS
def test_a_repair_says_what_is_missing_and_keeps_the_prefix():
    chat, events = repaired(["about 40 km", f"40 km ({PROOF})", "never asked for"])
    assert words(events, "worker") == ["about 40 km", f"40 km ({PROOF})"]
    (asked,) = words(events, "user")
    assert "- range: Its range is proven. (cites no artifact:// URI" in asked
    last = chat.sent[-1].contents[-1]
    assert (last.role, [part.text for part in last.parts]) == ("user", [asked])  # an instruction, not a quote
    _, second = chat.manifests()
    assert second.prefix.broken_by is None
    assert asked.splitlines()[1] in chat.sent[-1].text
    assert verdict_of(chat)["passed"]


@LOOPS
def test_an_address_that_is_invented_again_is_not_accepted_because_the_repair_repeats_it():
    chat, events = repaired(["40 km (artifact://evidence/other.md)"] * 4)
    assert len(words(events, "worker")) == 3
    assert all("artifact://evidence/other.md was never in the request" in asked for asked in words(events, "user"))
    assert verdict_of(chat)["fabricated"] == ["artifact://evidence/other.md"]


@LOOPS
def test_an_address_that_another_agent_invented_is_not_accepted():
    first = LlmAgent(name="scout", model=Scripted(script=["See artifact://evidence/other.md"]))
    second = LlmAgent(name="writer", model=Scripted(script=["40 km (artifact://evidence/other.md)"]))
    chat = Chat(state=STATE, store=new_store(), agent=SequentialAgent(name="team", sub_agents=[first, second]))
    chat.say("Go on.")
    assert "artifact://evidence/other.md" in chat.sent[-1].text
    assert verdict_of(chat)["fabricated"] == ["artifact://evidence/other.md"]


def ask(item: str) -> dict[str, Any]:
    """Asks the clerk."""
    return {"said": "40 km"} if item == "range" else {"error": f"no {item}"}


def asked_for(item: str, answer: str, needs_evidence: bool = True) -> Chat:
    items = [{"id": "range", "text": "Its range is proven.", "needs_evidence": needs_evidence}]
    state = {"plan": {"step": {"id": "s", "text": "Find the range.", "acceptance": items}}}
    chat = Chat(script=[call("ask", item=item), answer], tools=[ask], state=state)
    chat.say("Go on.")
    return chat


def cited_as(chat: Chat) -> str | None:
    (answer,) = (part.function_response for part in chat.sent[-1].contents[-1].parts)
    return answer.response.get("cite_as")


def test_a_short_result_proves_what_needs_evidence():
    uri = cited_as(asked_for("range", "40 km"))
    assert uri
    chat = asked_for("range", f"40 km ({uri})")
    assert found(verdict_of(chat)) == {"range": (True, "evidence")}
    chat.replays()
    assert not verdict_of(asked_for("range", f"40 km ({uri[:-8]}aaaa.txt)"))["passed"]


def test_errors_and_results_of_steps_that_need_no_evidence_stay_as_they_are():
    assert cited_as(asked_for("tone", "unknown")) is None
    chat = asked_for("range", "40 km", needs_evidence=False)
    assert cited_as(chat) is None
    assert chat.sent[-1].declared == ("ask",)
