"""Generated sessions with skills, to-do lists, rules, pictures and teams: nothing that was cut is out of reach, and
what holds stands in every request."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.tools.skill_toolset import SkillToolset
from keeping import address, message, picture, skill, state, whole, write_todos
from plans import PLAN, planned, words
from scripted import Chat, Scripted, call

from aether_context import PackPolicy

pytestmark = pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*")
WINDOWS = (8_000, 16_000, 32_000, 64_000, 128_000)
RULES = ("Never push to main.", "Always answer in metric units.", "Bitte nie auf main pushen!", "No uses emojis.")
SMALL, FEW = (8_000, 8_000, 16_000, 8_000, 16_000), 20
"""The windows of the first sessions, which are made by default; those of the others take a minute each."""
MESSAGES, SHARE = 16, 0.1


def read_file(name: str, count: int) -> str:
    """Reads a file."""
    return words(count, name)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(at, marks=pytest.mark.slow) for at in range(8, 60))])
def test_what_holds_and_what_people_sent_is_in_every_request_or_has_an_address(seed: int):
    rng = random.Random(seed)
    window = (WINDOWS if seed >= FEW else SMALL)[seed % 5]
    size, rule = int(SHARE * window), rng.choice(RULES)
    has_skill, has_team, has_plan = rng.random() < 0.6, rng.random() < 0.4, rng.random() < 0.3
    tools: list[Any] = [write_todos, read_file]
    if has_skill:
        tools.append(SkillToolset(skills=[skill("audit", 8)]))
    llm = Scripted(script=[], sent=[])
    helper = LlmAgent(name="helper", model=Scripted(script=[], sent=[]), description="Helps.")
    clerk = LlmAgent(
        name="clerk", model=llm, instruction="You help.", tools=tools, sub_agents=[helper] if has_team else []
    )
    policy = PackPolicy(max_input_tokens=window, agents={"helper": {"sees": "own"}} if rng.random() < 0.5 else {})
    chat = Chat(agent=clerk, policy=policy, state=planned(PLAN) if has_plan else {})
    pictures: list[bytes] = []
    listed, loaded_at, at = "", -1, 0
    for number in range(MESSAGES):
        act = rng.choice(["talk", "file", "todo", "picture"]) if number > 2 else ("talk", "todo", "picture")[number]
        text = f"Question {seed}-{number}: {words(size // 2, f'q{number}')}?"
        sent: Any = text if number else f"{rule} {text}"
        llm.script[:] = []
        if number == 1 and has_skill:
            llm.script += [call("load_skill", skill_name="audit")]
        if act == "todo":
            listed = f"Pack box {number}"
            todos = [*state("completed"), {"content": listed, "status": "pending"}]
            llm.script += [call("write_todos", todos=todos)]
        if act == "file":
            llm.script += [call("read_file", name=f"f{number}", count=size)]
        if act == "picture":
            pictures.append(picture(200 + number, 90, number))
            sent = message(pictures[-1], "image/png", text)
        llm.script += [words(size // 4, f"a{number}")]
        if has_team and number == MESSAGES - 3:
            llm.script[-1] = call("transfer_to_agent", agent_name="helper")
        chat.say(sent)
        for one in chat.sent[at:]:
            assert not one.faults
            assert text in one.text, "the question, word for word"
        last = chat.sent[-1]
        at = len(chat.sent)
        if last.agent != "clerk":
            break
        everything = "\n".join(map(str, last.contents))
        assert rule in last.text
        assert not listed or listed in everything
        for data in pictures:
            assert data in [
                part.inline_data.data for content in last.contents for part in content.parts if part.inline_data
            ] or (address(data) in last.text)
        if has_skill and number >= 1:
            loaded_at = len(chat.sent) if loaded_at < 0 else loaded_at
            by_name = sum(count < 8 for count in whole(chat.sent[loaded_at - 1 : at], "audit", 8))
            assert by_name == 0, f"{by_name} calls held the skill by name alone"
    manifests = chat.manifests()
    assert all(manifest.request_tokens <= manifest.window for manifest in manifests), "0 over"
    assert any(event.stage == "cut" for manifest in manifests for event in manifest.truncation_events)
