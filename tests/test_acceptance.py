"""Final answers are held against their step's checklist and against what the request held; a repair is bounded."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from google.adk.agents import LlmAgent, LoopAgent
from google.adk.events.event import Event
from google.adk.models.llm_response import LlmResponse
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from packs import pack_input, said
from scripted import Chat, Scripted, call, look_up, new_store

from aether_context import PackPolicy, PackStore
from aether_context.adk import AcceptanceGate, ContextPackPlugin
from aether_context.adk.acceptance import Reviewer
from aether_context.cli import main
from aether_context.errors import PolicyError
from aether_context.pack import AcceptanceItem, Step
from aether_context.packing import build_pack
from aether_context.policy import AcceptanceSettings
from aether_context.state import knowledge
from aether_context.state.acceptance import Judgement, examine
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
OTHER = AcceptanceItem(id="other", text="proven, too", needs_evidence=True)
NEEDS, PLAIN = (AcceptanceItem(id="a", text="proven", needs_evidence=True), AcceptanceItem(id="b", text="said"))


# what an answer cites


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


@given(st.text())
def test_any_text_can_be_read(text: str):
    text += " artifact://x."
    assert "artifact://x" in artifact_uris(text)
    assert all(uri.startswith("artifact://") and uri in text for uri in artifact_uris(text))


def test_an_item_that_needs_evidence_is_met_by_a_uri_of_the_request_that_proves_it():
    def passed(answer: str, shown: str = PROOF, covers: Any = ()) -> bool | None:
        verdict = examine(answer, [NEEDS], shown=[shown], covers={PROOF: covers}, judged={})
        return verdict.findings[0].passed

    assert passed(f"yes ({PROOF})")
    assert passed(f"yes ({PROOF})", covers=["a"])
    assert passed(f"yes ({PROOF})", covers=["other"]) is False
    assert passed("yes") is False
    assert passed(f"yes ({PROOF})", shown="nothing here") is False


@pytest.mark.parametrize("shown", ["my report.md", "{uri}", '"{uri}"', "see {uri} (covers a)"])
def test_an_address_with_a_blank_is_read_whole_on_both_sides(shown: str):
    uri = "artifact://tasks/my report.md"

    def examined(answer: str) -> Any:
        texts = [shown.format(uri=uri), uri]
        return examine(answer, [NEEDS, OTHER], shown=texts, covers={uri: ["a"]}, judged={})

    verdict = examined(f"Proven: {uri}.")
    assert [finding.passed for finding in verdict.findings] == [True, False]
    assert (verdict.cited, verdict.fabricated) == ((uri,), ())
    for cited in ("artifact://tasks/my", "artifact://tasks/my remark.md"):
        verdict = examined(f"Proven: {cited}")
        assert [finding.passed for finding in verdict.findings] == [False, False]
        assert verdict.fabricated


def test_many_addresses_with_blanks_are_read_fast():
    uris = [f"artifact://tasks/my report {number}.md" for number in range(1_500)]
    began = time.process_time()
    verdict = examine(f"Proven: {uris[7]}", [NEEDS], shown=uris, covers={uri: ["a"] for uri in uris}, judged={})
    assert time.process_time() - began < 2
    assert (verdict.passed, verdict.cited) == (True, (uris[7],))


def test_a_uri_that_was_never_shown_is_fabricated():
    verdict = examine(f"{PROOF} artifact://made/up", [PLAIN], shown=[f"x {PROOF}"], covers={}, judged={})
    assert verdict.cited == (PROOF, "artifact://made/up")
    assert verdict.fabricated == ("artifact://made/up",)
    assert not verdict.passed
    assert verdict.missing == ("artifact://made/up was never in the request: cite only what was",)


def test_an_item_that_nothing_looks_at_holds_no_answer_back():
    verdict = examine("done", [PLAIN], shown=[], covers={}, judged={})
    assert verdict.findings[0].passed is None
    assert verdict.passed


def test_one_judge_that_objects_is_enough():
    said = [Judgement(passed=True, by="check"), Judgement(passed=False, by="critic", reason="too long")]
    verdict = examine("done", [PLAIN], shown=[], covers={}, judged={"b": said})
    assert verdict.missing == ("b: said (too long)",)
    assert verdict.findings[0].by == "critic"


# through ADK


def verdict_of(chat: Chat, at: int = -1) -> Any:
    outcome = chat.store.outcome(chat.manifests()[at])
    assert outcome is not None
    return outcome.get("acceptance")


def found(verdict: Any) -> dict[str, Any]:
    return {one["id"]: (one["passed"], one["by"]) for one in verdict["items"]}


def test_the_outcome_says_what_came_of_the_checklist():
    chat = Chat(script=[f"40 km ({PROOF})"], state=STATE)
    chat.say("Go on.")
    verdict = verdict_of(chat)
    assert verdict["passed"]
    assert found(verdict) == {"range": (True, "evidence"), "tone": (None, "nothing")}
    assert verdict["cited"] == [PROOF]


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


def test_a_uri_that_only_the_model_named_is_fabricated():
    chat = Chat(script=[call("look_up", key="artifact://made/up"), "see artifact://made/up", PROOF], tools=[quiet])
    chat.say("hi")
    assert verdict_of(chat)["fabricated"] == ["artifact://made/up"]


def quiet(key: str) -> str:
    return "found"


quiet.__name__ = "look_up"


def test_a_chat_without_a_plan_is_looked_at_only_for_uris():
    chat = Chat(script=["hello", "see artifact://made/up"])
    chat.say("hi", "and?")
    assert verdict_of(chat, 0) is None
    assert verdict_of(chat, 1)["fabricated"] == ["artifact://made/up"]


def test_calls_of_tools_are_no_answers():
    chat = Chat(script=[call("look_up", key="k"), "done"], tools=[look_up], state=STATE)
    chat.say("Go on.")
    assert verdict_of(chat, 0) is None
    assert verdict_of(chat, 1) is not None


def test_evidence_recorded_in_the_same_invocation_counts_by_what_it_covers():
    def prove(tool_context: Any, covers: str) -> str:
        knowledge.add_evidence(tool_context.state, uri=f"artifact://{covers}", summary="so it is", covers=[covers])
        return f"artifact://{covers}"

    state = {"plan": STATE["plan"]}
    right = Chat(script=[call("prove", covers="range"), "so (artifact://range)"], tools=[prove], state=state)
    right.say("Go on.")
    assert found(verdict_of(right))["range"] == (True, "evidence")
    wrong = Chat(script=[call("prove", covers="tone"), "so (artifact://tone)"], tools=[prove], state=state)
    wrong.say("Go on.")
    assert found(verdict_of(wrong))["range"] == (False, "evidence")


def test_streamed_answers_are_looked_at_once_whole():
    whole = LlmResponse(content=types.Content(role="model", parts=[types.Part(text=f"40 km ({PROOF})")]))
    part = LlmResponse(content=types.Content(role="model", parts=[types.Part(text="artifact://made/")]), partial=True)
    chat = Chat(script=[(part, whole)], state=STATE)
    chat.say("Go on.", stream=True)
    assert verdict_of(chat)["passed"]


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


def test_a_critic_has_a_deadline():
    step = Step(text="Write it.", acceptance=tuple(AcceptanceItem(**item) for item in ITEMS))
    pack = build_pack(pack_input([said("Go on.")], step=step), PackPolicy())
    answer = LlmResponse(content=types.Content(role="model", parts=[types.Part(text="It is done.")]))
    slow = Critic(model="critic", answer="{}", seconds=30.0, asked=[])
    reviewer = Reviewer(critic=slow)
    reviewer.seconds = 0.05
    review = asyncio.run(reviewer.review(pack, answer, AcceptanceSettings(critic="critic")))
    assert review is not None
    verdict = review.to_json()
    assert verdict["problems"] == ["acceptance: not looked at in full within 0.05 s"]
    assert found(verdict)["tone"] == (None, "nothing")


def test_a_critic_that_adk_does_not_know_is_refused_by_name():
    with pytest.raises(PolicyError, match=r"acceptance\.critic = 'nobody'.*as critic"):
        ContextPackPlugin(store=new_store(), policy=PackPolicy(acceptance={"critic": "nobody"}))


# repair


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
def test_an_accepted_answer_ends_the_loop():
    _, events = repaired([f"40 km ({PROOF})", "never asked for"])
    assert words(events, "worker") == [f"40 km ({PROOF})"]
    assert words(events, "gate") == []


@LOOPS
def test_a_repair_says_what_is_missing_and_keeps_the_prefix():
    chat, events = repaired(["about 40 km", f"40 km ({PROOF})", "never asked for"])
    assert words(events, "worker") == ["about 40 km", f"40 km ({PROOF})"]
    (asked,) = words(events, "gate")
    assert "- range: Its range is proven. (cites no artifact:// URI" in asked
    _, second = chat.manifests()
    assert second.prefix.broken_by is None
    assert asked.splitlines()[1] in chat.sent[-1].text
    assert verdict_of(chat)["passed"]


@LOOPS
def test_repairs_are_bounded():
    _, events = repaired(["no"] * 9, most=2)
    assert words(events, "worker") == ["no"] * 3
    assert len(words(events, "gate")) == 2


def test_inspect_shows_the_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Any):
    chat = Chat(script=["about 40 km (artifact://made/up)"], state=STATE, store=PackStore(str(tmp_path)))
    chat.say("Go on.")
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", "--store", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "range not met (by evidence)" in shown
    assert "artifact://made/up was never in the request" in shown
