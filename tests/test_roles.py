"""Roles that alternate in a request of ADK's alternate in what is sent of it, whatever cuts, extracts and teams do.

`Chat.check` looks at every request of every test; here are generated sessions over all strategies, and the places in
which a summary stands.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from google.adk.agents import BaseAgent, LlmAgent, LoopAgent
from keeping import message, picture, write_todos
from plans import PLAN, planned
from scripted import Chat, Memories, Scripted, Sent, call, look_up, remembered, was_cut
from teams import DEPRECATED
from wording import SUMMARY_TITLE

from aether_context import PackPolicy, replay, why
from aether_context.adk import cut_now

STRATEGIES = (
    ("epochs",), ("stable_prefix",), ("sliding_turns",), ("heads_tails",), ("summarize",),
    ("stable_prefix", "epochs"), ("sliding_turns", "heads_tails"), ("heads_tails", "summarize"),
)  # fmt: skip
KINDS = ("talk", "tools", "parallel", "plan", "media", "team", "by hand")


def summary_place(sent: Sent) -> tuple[int, int] | None:
    """The content and the part in which the summary stands; None where there is none."""
    return next(
        (
            (at, place)
            for at, content in enumerate(sent.contents)
            for place, part in enumerate(content.parts or ())
            if (part.text or "").startswith(SUMMARY_TITLE)
        ),
        None,
    )


def is_result_first(sent: Sent) -> bool:
    """Whether no text stands before a tool's result in one content."""
    answers = [[bool(part.function_response) for part in content.parts or ()] for content in sent.contents]
    return all(kinds == sorted(kinds, reverse=True) for kinds in answers)


def session(strategy: Sequence[str], window: int, kind: str, seed: int = 0) -> Chat:
    """A session of eight messages, some of them long, as some answers are; a team's has one, and eight answers."""
    rng = random.Random(f"{strategy} {window} {kind} {seed}")
    words = "the lathe in hall three was oiled and tested again. "

    def prose(share: float) -> str:
        return words * max(1, int(share * window / 12))

    script: list[Any] = []
    for at in range(8):
        names = [f"k{at}-{step}" for step in range(rng.randrange(4))] if kind in ("tools", "parallel", "plan") else []
        if kind == "parallel" and names:
            script.append([call("look_up", key=name) for name in names])
        elif names:
            script += [call("look_up", key=name) for name in names]
        script.append(f"Entry {at}: {prose(rng.choice((0.01, 0.1, 0.3)))}")
    llm = Scripted(script=script, sent=[])
    root: BaseAgent = LlmAgent(name="clerk", model=llm, instruction="You log.", tools=[look_up, write_todos])
    if kind == "team":
        critic = LlmAgent(name="critic", model=llm, instruction="You judge.")
        root = LoopAgent(name="both", sub_agents=[root, critic], max_iterations=4)
    policy = PackPolicy(
        max_input_tokens=window,
        conversation={"strategy": tuple(strategy), "sliding_turns": {"tokens": window // 2}, "last_turns": 1 + seed},
    )
    memory = Memories(remembered("The lathe is oiled on Mondays."))
    chat = Chat(agent=root, policy=policy, memory=memory, state=planned(PLAN) if kind == "plan" else {})
    for at in range(1 if kind == "team" else 8):
        text = f"Log the work of night {at}: bolt B{at} was changed. {prose(rng.choice((0.0, 0.05, 0.6)))}"
        chat.say(message(picture(shade=at), "image/png", text) if kind == "media" and at % 2 else text)
        if kind == "by hand" and at % 4 == 2:
            asyncio.run(_cut(chat))
    return chat


async def _cut(chat: Chat) -> None:
    held = await chat.held()
    await chat.sessions.append_event(held, cut_now(held))


@DEPRECATED
@pytest.mark.parametrize(("strategy", "window", "kind"), list(product(STRATEGIES, (1_500, 4_000), KINDS)))
@pytest.mark.rows(2, slow=7)
def test_roles_alternate_where_they_do_without_the_plugin(strategy: tuple[str, ...], window: int, kind: str) -> None:
    chat = session(strategy, window, kind)
    assert any(not sent.doubled for sent in chat.raw)
    assert all(map(is_result_first, chat.sent))
    replayed = replay(chat.latest(), chat.store)
    counts = [len(content["parts"]) for content in json.loads(replayed.request)["contents"]]
    assert replayed.matches
    assert counts == [len(content.parts or ()) for content in chat.sent[-1].contents]


def test_a_summary_is_the_first_part_of_the_message_behind_it_and_stays_so() -> None:
    chat = Chat([f"Entry {at}: " + "oiled and tested again. " * 40 for at in range(14)], state=planned(PLAN),
                policy=PackPolicy(max_input_tokens=2_500))  # fmt: skip
    chat.say(*(f"Log the work of night {at}: bolt B{at} was changed." for at in range(14)))
    manifests, places = chat.manifests(), list(map(summary_place, chat.sent))
    last = max(at for at, manifest in enumerate(manifests) if was_cut(manifest))
    assert {place for place in places if place is not None} == {(0, 0)}
    assert last + 1 < len(manifests)
    for sent in chat.sent[last:]:
        texts = [part.text for part in sent.contents[0].parts]
        assert len(texts) == 2
        assert sent.wires[0] == chat.sent[last].wires[0] or texts[1].startswith("CONTEXT PACK")
        assert sent.contents[-1].parts[-1].text.startswith("CONTEXT PACK")
    chat.replays()


def test_a_summary_in_a_loop_is_the_last_part_of_its_message_which_stays_in_the_cache() -> None:
    script = [*(call("look_up", key=f"k{at}") for at in range(24)), "Done."]
    chat = Chat(script, tools=[look_up], state=planned(PLAN), policy=PackPolicy(max_input_tokens=2_500))
    chat.say("Look up all keys.")
    manifests, places = chat.manifests(), list(map(summary_place, chat.sent))
    first = next(at for at, place in enumerate(places) if place is not None)
    assert set(places[first:]) == {(0, 1)}
    assert all(sent.contents[0].parts[0].text.startswith("CONTEXT PACK") for sent in chat.sent)
    head = manifests[first].allocation["task"].used
    assert all(manifest.prefix.shared_tokens >= head for manifest in manifests[first:])
    assert [spot.kind for spot in why(chat.store, "k3", call=manifests[-1].number).places if spot.kind == "summary"]
    chat.replays()
