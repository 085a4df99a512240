"""Generated sessions with skills, to-do lists, plans, rules, pictures and teams: nothing that was cut is out of reach,
and what holds stands in every request.

Each session prints two figures: the requests with an active skill that held it whole, and those that named it alone.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import google.adk
import pytest
from google.adk.agents import LlmAgent
from google.adk.skills import load_skill_from_dir, models
from google.adk.tools.skill_toolset import SkillToolset
from keeping import address, message, picture, read_of, skill, state, write_todos
from matrix import but_slow
from plans import PLAN, planned
from scripted import Chat, Scripted, Sent, call
from wording import READ

from aether_context import Manifest, PackPolicy
from aether_context.canonical import hash_bytes

pytestmark = pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL.*")
WINDOWS = (8_000, 16_000, 32_000, 64_000, 128_000)
FIRST = (*[8_000, 16_000] * 7, *[32_000] * 3, *[64_000] * 2, 128_000)
"""The windows of the first sessions; those of the others are all alike often."""
RULES = ("Never push to main.", "Always answer in metric units.", "Bitte nie auf main pushen!", "No uses emojis.")
ALWAYS = ("rule", "talk", "todo", "picture", "file")
SOMETIMES = {"skill": 0.6, "packaged skill": 0.3, "team": 0.4, "own turns": 0.2, "plan": 0.3}
"""What a session may have beside what each has, with its probability."""
PICTURE = 1_400
"""Tokens of a picture with the call that reads it."""
MESSAGES, SHARE = 14, 0.11
"""The messages of a session, and the share of the window that a long text takes."""
PACKAGED = sorted(Path(google.adk.__path__[0]).glob("integrations/*/skills/*/SKILL.md"))
VOCABULARY = "the ship left port before rain came and nobody on board had seen such a grey wide sea as this"


def drawn(seed: int) -> tuple[random.Random, int, frozenset[str]]:
    """The session of a seed: what it is played by, its window, and the kinds of content in it."""
    rng = random.Random(seed)
    window = FIRST[seed] if seed < len(FIRST) else WINDOWS[seed % len(WINDOWS)]
    return rng, window, frozenset((*ALWAYS, *(kind for kind, share in SOMETIMES.items() if rng.random() < share)))


def prose(tokens: int, name: str) -> str:
    """A text of about so many tokens, no line of which is in another text."""
    rng, lines = random.Random(name), range(max(1, tokens // 16))
    return "\n".join(f"{name}.{at}: {' '.join(rng.choices(VOCABULARY.split(), k=10))}" for at in lines)


def read_file(name: str, tokens: int) -> str:
    """Reads a file."""
    return prose(tokens, name)


def skills_of(rng: random.Random, kinds: frozenset[str]) -> list[models.Skill]:
    skills = [skill("audit", rng.choice((8, 30)))] if "skill" in kinds else []
    return skills + ([load_skill_from_dir(rng.choice(PACKAGED).parent)] if "packaged skill" in kinds else [])


def media(sent: Sent) -> list[bytes]:
    parts = [part for content in sent.contents for part in content.parts or ()]
    shown = [piece for part in parts if part.function_response for piece in part.function_response.parts or ()]
    return [part.inline_data.data for part in (*parts, *shown) if part.inline_data and part.inline_data.data]


def has_room(manifest: Manifest) -> bool:
    """Whether a window takes a picture beside what never gives way: instruction, tools, request, and what is left of a
    summary in any case."""
    fixed = sum(manifest.allocation[layer].used for layer in ("system", "task", "tools"))
    budget = manifest.window - manifest.allocation["slack"].final
    return fixed + budget // 15 + PICTURE <= budget


def test_the_first_sessions_have_every_kind_of_content_and_every_window():
    sessions = [drawn(seed) for seed in range(len(FIRST))]
    assert {kind for _, _, kinds in sessions for kind in kinds} == {*ALWAYS, *SOMETIMES}
    assert {window for _, window, _ in sessions} == {*WINDOWS}
    assert len(sessions) == 20
    assert PACKAGED


@pytest.mark.parametrize("seed", but_slow(range(200), *range(1, 200), most=5))
def test_what_holds_and_what_people_sent_is_in_every_request_or_has_an_address(seed: int):
    rng, window, kinds = drawn(seed)
    size, rule, skills = int(SHARE * window), rng.choice(RULES), skills_of(rng, kinds)
    # Instructions of more than a quarter of the window are named, all but the newest.
    are_long = sum(len(every.instructions) for every in skills) / 3 > window / 4
    tools: list[Any] = [write_todos, read_file, *([SkillToolset(skills=skills)] if skills else [])]
    llm = Scripted(model="gemini-3-pro-preview", script=[], sent=[])
    helper_llm = Scripted(model="gemini-3-pro-preview", script=[], sent=[])
    helpers = [LlmAgent(name="helper", model=helper_llm, description="Helps.")] if "team" in kinds else []
    clerk = LlmAgent(name="clerk", model=llm, instruction="You help.", tools=tools, sub_agents=helpers)
    agents = {"helper": {"sees": "own"}} if "own turns" in kinds else {}
    policy = PackPolicy(max_input_tokens=window, agents=agents)
    chat = Chat(agent=clerk, policy=policy, state=planned(PLAN) if "plan" in kinds else {})
    pictures: list[bytes] = []
    loaded: dict[str, int] = {}  # skills, each with the request from which on it holds
    instructions, played = Counter[str](), Counter[str]()

    def check(first: int, text: str, whole: int) -> None:
        """Checks the requests from ``first`` on; the first ``whole`` pictures were sent before them."""
        for at, sent in enumerate(chat.sent[first:], first):
            assert not sent.faults
            assert text in sent.text, "the question, word for word"
            if sent.agent != "clerk":
                continue
            assert rule in sent.text
            shown = media(sent)
            for data in pictures[:whole]:
                assert data in shown or address(data) in sent.text
            read = [line.strip() for line in read_of(sent).splitlines()] if loaded else []
            for loaded_skill in skills:
                if at < loaded.get(loaded_skill.name, at + 1):
                    continue
                body = {line.strip() for line in loaded_skill.instructions.splitlines()}
                is_whole = body <= {*read, ""}
                instructions["whole" if is_whole else "by name alone"] += 1
                assert is_whole or f'load_skill({{"skill_name":"{loaded_skill.name}"}})' in sent.text
                assert is_whole or are_long, "there was room for it"

    listed = ""
    for number in range(MESSAGES):
        act = rng.choice(ALWAYS[1:]) if number >= 4 else ALWAYS[1:][number]
        played[act] += 1
        text = f"Question {seed}-{number}: {prose(size, f'q{number}')}?"
        first = len(chat.sent)
        sent: Any = text if number else f"{rule} {text}"
        script: list[Any] = []
        if number == 1:
            script += [call("load_skill", skill_name=every.name) for every in skills]
            loaded = {every.name: first + at for at, every in enumerate(skills, 1)}
        if act == "todo":
            listed = f"Pack box {number}"
            script += [call("write_todos", todos=[*state("completed"), {"content": listed, "status": "pending"}])]
        if act == "file":
            script += [call("read_file", name=f"f{number}", tokens=size)]
        if act == "picture":
            pictures.append(picture(200 + number, 90, number))
            sent = message(pictures[-1], "image/png", text)
        if helpers and number in (5, MESSAGES - 3):
            script += [call("transfer_to_agent", agent_name="helper")]
            helper_llm.script[:] = [[f"Handed back {number}.", call("transfer_to_agent", agent_name="clerk")]]
        llm.script[:] = [*script, prose(size // 4, f"a{number}")]
        chat.say(sent)
        check(first, text, len(pictures))
        assert chat.sent[-1].agent == "clerk"
        assert listed in "\n".join(map(str, chat.sent[-1].contents))

    # One after the other in one loop, or each in a message of its own.
    unseen = [data for data in pictures if data not in media(chat.sent[-1])]
    size = max(1, len(unseen)) if seed % 2 else 1
    for group in (unseen[at : at + size] for at in range(0, len(unseen), size)):
        first, text = len(chat.sent), f"Show me {len(group)} of my pictures again, {hash_bytes(group[0])}."
        llm.script[:] = [*(call(READ, uri=address(data)) for data in group), "They are grey."]
        chat.say(text)
        check(first, text, len(pictures))
        latest = zip(group, chat.sent[first + 1 :], chat.manifests()[first:], strict=False)
        for data, following, manifest in latest:
            answer = following.answers(READ)[-1]
            assert (data in media(following)) == ("shown" in answer), "its address reads, or it is said at once"
            assert "shown" in answer or not has_room(manifest), "there was room for it"

    manifests = chat.manifests()
    assert len(manifests) == len(chat.sent)
    assert all(manifest.request_tokens <= manifest.window == window for manifest in manifests), "0 over"
    assert any(event.stage == "cut" for manifest in manifests for event in manifest.truncation_events)
    assert min(played[act] for act in ALWAYS[1:]) > 0
    assert {sent.agent for sent in chat.sent} == {"clerk", *(helper.name for helper in helpers)}
    print(f"seed {seed}, window {window}, {len(chat.sent)} requests: {dict(instructions)}")
    if skills:
        assert sum(instructions.values()) >= MESSAGES - 1
