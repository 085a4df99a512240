"""Claude's rule for thinking: a call of the model's present turn has its signed thought before it, in every request.

The turn goes on until a user's message that holds no tool result, and the API joins consecutive messages of a role. So
a message directly behind a result, as after a run that broke off, belongs to the turn of the calls before it.
"""

from __future__ import annotations

import random

import pytest
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from wire.rules import Issued, claude_calls_keep_their_thinking
from wire.servers import Refusal, Reply
from wire.sessions import BRIEF, Scenario, answers, asks, clerk, look_up, run, save, words

from aether_context import PackPolicy
from aether_context.conversation.turns import turn_start
from aether_context.pack import Content, Part

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")


def export(key: str) -> dict[str, str]:
    """Exports a long journal."""
    return {"journal": words(f"journal {key}", 1_200)}


def broken_off(rng: random.Random) -> Scenario:
    """Turns with thoughts, texts and calls of many sizes, of which most end in an error behind a tool's result."""
    thought_tokens, text_tokens = rng.choice([200, 400, 800, 1_200]), rng.choice([100, 300, 600])

    def agent(llm: BaseLlm) -> LlmAgent:
        return clerk(llm, thinks=True, instruction=BRIEF, tools=[look_up, export, save])

    turns = []
    for at in range(rng.randint(2, 5)):
        replies: list[Reply | Refusal] = []
        for step in range(rng.randint(1, 3)):
            text = words(f"plan {at}{step}", int(text_tokens * rng.uniform(0.3, 1.5))) if rng.random() < 0.8 else ""
            several = range(rng.choice([1, 1, 2]))
            calls = [(rng.choice(["look_up", "export"]), {"key": f"k{at}-{step}-{number}"}) for number in several]
            thought = words(f"thought {at}{step}", int(thought_tokens * rng.uniform(0.3, 1.5)))
            replies.append(Reply(text=text, calls=calls, thought=thought))
        ending = answers(at)._replace(thought=words("last", thought_tokens))
        replies.append(Refusal(500, "overloaded") if rng.random() < 0.7 else ending)
        turns.append((asks(at, rng.choice([20, 20, 400])), replies))
    return Scenario(agent, turns)


def hold(seed: int) -> list[str]:
    """Plays a session, holds its requests to the rules, and gives their texts."""
    rng = random.Random(seed)
    scenario, window = broken_off(rng), rng.choice([3_000, 3_500, 4_000, 5_000, 6_000])
    strategy = rng.choice(["epochs", "epochs", "heads_tails", "sliding_turns", "stable_prefix"])
    policy = PackPolicy.model_validate({"max_input_tokens": window, "conversation": {"strategy": strategy}})
    with run("claude", scenario, window=window, policy=policy) as done:
        assert [failure for failure in done.failed if "overloaded" not in failure] == []
        assert done.server.faults == []
        assert done.server.over == []
        done.chat.replays(every=1)
        return [request.text for request in done.chat.sent]


@pytest.mark.parametrize("seed", [3, 33, 52, 61, 78])
@pytest.mark.rows(2)
def test_calls_keep_their_thinking_behind_a_run_that_broke_off(seed: int) -> None:
    hold(seed)


def test_the_head_stays_while_results_can_get_shorter() -> None:
    requests = hold(17)
    shortened = next(at for at, text in enumerate(requests) if text.count("[Calls and what they returned") == 5)
    assert "Question 0: what do" in requests[shortened]


@pytest.mark.soak
def test_calls_keep_their_thinking_in_many_sessions() -> None:
    for seed in range(200):
        hold(seed)


def test_the_rule_joins_a_message_to_the_result_before_it() -> None:
    """The checker sees what it is there for."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x"}
    asked, more = ({"type": "text", "text": text} for text in ("one", "two"))
    messages = [
        {"role": "user", "content": [asked]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
        {"role": "user", "content": [more]},
    ]
    issued = Issued(under={"toolu_1": ["signature 1"]})
    assert list(claude_calls_keep_their_thinking({"messages": messages}, issued))
    answered = [*messages[:3], {"role": "assistant", "content": [asked]}, messages[3]]
    assert not list(claude_calls_keep_their_thinking({"messages": answered}, issued))


@pytest.mark.parametrize(
    ("history", "start"),
    [("u", 0), ("ucrmu", 4), ("ucru", 0), ("ucrmucru", 4), ("ucrmuucrcru", 4), ("cru", 0), ("uumu", 3)],
)
def test_where_the_present_turn_begins(history: str, start: int) -> None:
    """Letters: a user's message, a call, its result, a model's message; the last one is answered."""
    kinds = {"c": "call", "r": "response", "u": "text", "m": "text"}
    contents = []
    for at, letter in enumerate(history):
        role, part = "user" if letter in "ur" else "model", Part(kind=kinds[letter], wire="{}", text=letter)  # type: ignore[arg-type]
        responses = (part,) if letter == "r" else ()
        contents.append(Content(role=role, parts=(part,), responses=responses, digest=str(at), wire="{}"))
    assert turn_start(contents, len(contents) - 1) == start
    assert turn_start(contents, None) == 0
