"""Claude's signed thoughts, each bound to what it was made behind: no session dies of one, whatever is cut, declared or
changed before it.

The server refuses a request with a thought behind something else, as the API does; its rules see a call of the present
turn without its thought.
"""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from wire.servers import UNBOUND, Body, Refusal, Reply
from wire.sessions import BRIEF, Run, Scenario, answers, asks, calls, clerk, look_up, run, save, words

from aether_context import PackPolicy

pytestmark = pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")

THOUGHT = words("thought", 60)


def thinks(reply: Reply, **more: Any) -> Reply:
    return reply._replace(thought=THOUGHT, **more)


def of_turns(*loop: Reply, turns: int = 5, **settings: Any) -> Scenario:
    """Turns of these calls, each with an answer, all with thoughts."""
    scripts = [(asks(at), [*loop, thinks(answers(at))]) for at in range(turns)]
    return Scenario(lambda llm: clerk(llm, thinks=True, **{"instruction": BRIEF} | settings), scripts)


def thoughts_of(body: Body) -> int:
    blocks = [block for message in body["messages"] for block in message["content"] if isinstance(block, dict)]
    return sum(block["type"] in ("thinking", "redacted_thinking") for block in blocks)


def is_sound(done: Run, *, refused: int = 0) -> None:
    """No turn was lost, and every request that was answered is valid."""
    assert done.failed == []
    assert [fault for request in done.server.requests if not request.refused for fault in request.faults] == []
    assert sum(request.refused for request in done.server.requests) == refused


CALL = thinks(calls("a"))
LOOPS = {
    "one call": of_turns(CALL, turns=8),
    "many calls": of_turns(*[CALL] * 6, turns=2),
    "parallel calls": of_turns(thinks(calls("a", "b", "c")), turns=3),
    "two thoughts in one answer": of_turns(*[thinks(calls("a"), text="Well.", interleaved="Or rather so.")] * 3),
    "redacted thoughts": of_turns(thinks(calls("a"), redacted=True), CALL),
    "thoughts in some answers": of_turns(calls("a"), CALL, calls("b")),
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.rows(3)
def test_a_cut_takes_all_thoughts_before_it(loop: str) -> None:
    with run("claude", LOOPS[loop], window=5_000) as done:
        is_sound(done)
        numbers = [thoughts_of(request.body) for request in done.server.requests]
        assert any(after < before for before, after in zip(numbers, numbers[1:], strict=False))
        assert max(numbers) > 1
        done.chat.replays(every=1)


def test_what_is_told_beside_a_cut_is_no_rewritten_history() -> None:
    with run("claude", of_turns(*[CALL] * 6, turns=5), window=5_000) as done:
        manifests = done.chat.manifests()
    told = [row for manifest in manifests for row in manifest.rows if row.form == "told"]
    assert told
    assert sum(bool(manifest.epoch_reason == "high_water") for manifest in manifests) > 2
    assert {manifest.degradations for manifest in manifests} == {()}


@pytest.mark.parametrize("strategy", ["heads_tails", "sliding_turns", "stable_prefix", "summarize", "none"])
@pytest.mark.rows(2)
def test_every_strategy_takes_them(strategy: str) -> None:
    settings = {"strategy": strategy, "sliding_turns": {"tokens": 3_000}}
    policy = PackPolicy.model_validate({"max_input_tokens": 5_000, "conversation": settings})
    with run("claude", of_turns(CALL, CALL, turns=5), policy=policy) as done:
        is_sound(done)
        done.chat.replays(every=1)


@pytest.mark.parametrize("loop", ["many calls", "redacted thoughts"])
@pytest.mark.rows(1)
def test_another_process_sends_the_same(loop: str) -> None:
    with (
        run("claude", LOOPS[loop], window=5_000) as one,
        run("claude", LOOPS[loop], window=5_000, restarts=True) as other,
    ):
        is_sound(other)
        assert [thoughts_of(sent.body) for sent in other.server.requests] == [
            thoughts_of(sent.body) for sent in one.server.requests
        ]


def begin(step: str, tool_context: ToolContext) -> str:
    """Begins a step of the plan."""
    plan = {
        "task": "Look at the bridges",
        "step": {"id": step, "text": f"Look at {step}", "tools": ["look_up", "begin"]},
    }
    tool_context.state["plan"] = plan
    return "begun"


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.rows(1)
def test_a_step_that_changes_instruction_and_declarations_takes_them(restarts: bool) -> None:
    beginning = [thinks(Reply(calls=[("begin", {"step": f"s{at}"})])) for at in range(2)]
    scenario = of_turns(CALL, *beginning, CALL, turns=3, tools=[look_up, save, begin])
    with run("claude", scenario, window=60_000, restarts=restarts) as done:
        is_sound(done)
        numbers = [thoughts_of(request.body) for request in done.server.requests]
        # Each turn has five requests; a new step begins behind its second and its third.
        assert numbers == [0, 1, 0, 0, 1, 2, 3, 0, 0, 1, 2, 3, 0, 0, 1]


def _team(llm: BaseLlm) -> LlmAgent:
    expert = clerk(llm, thinks=True, name="expert", instruction=BRIEF, description="Knows all.", tools=[look_up])
    second = clerk(llm, thinks=True, name="second", instruction=BRIEF, description="Knows.", tools=[look_up])
    return clerk(llm, thinks=True, instruction=BRIEF, tools=[look_up, AgentTool(expert)], sub_agents=[second])


def test_agents_that_hand_over_or_run_as_tools_keep_theirs_apart() -> None:
    go, back = (thinks(Reply(calls=[("transfer_to_agent", {"agent_name": name})])) for name in ("second", "clerk"))
    ask = thinks(Reply(calls=[("expert", {"request": "say all"})]))
    turns = [
        (asks(0), [CALL, ask, CALL, thinks(answers(0)), thinks(answers(0))]),
        (asks(1), [CALL, go, CALL, thinks(answers(1))]),
        (asks(2), [CALL, CALL, thinks(answers(2))]),
        (asks(3), [back, CALL, thinks(answers(3))]),
        (asks(4), [CALL, CALL, thinks(answers(4))]),
    ]
    with run("claude", Scenario(_team, turns), window=5_000) as done:
        is_sound(done)


def test_a_refusal_costs_no_turn_and_thoughts_are_sent_from_then_on() -> None:
    turns = [(asks(at), [CALL, CALL, thinks(answers(at))]) for at in range(4)]
    turns[2] = (asks(2), [CALL, Refusal(400, UNBOUND), CALL, thinks(answers(2))])
    scenario = Scenario(lambda llm: clerk(llm, thinks=True, instruction=BRIEF), turns)
    with run("claude", scenario, window=60_000) as done:
        is_sound(done, refused=1)
        numbers = [thoughts_of(request.body) for request in done.server.requests]
        assert numbers == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4]
        done.chat.replays(every=1)


def _edited(times: int) -> Scenario:
    """A callback behind the plugin writes into the instruction what is new at each of so many calls."""
    edits = iter(range(4, 4 + times))

    def edit(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        if len(llm_request.contents) > 6 and (number := next(edits, None)) is not None:
            llm_request.append_instructions([f"It is {number} o'clock."])

    return of_turns(CALL, CALL, turns=5, before_model_callback=edit)


@pytest.mark.parametrize(("times", "refused"), [(1, 1), (99, 3)], ids=["once", "at every call"])
@pytest.mark.rows(1)
def test_a_callback_behind_the_plugin_ends_no_session(times: int, refused: int) -> None:
    with run("claude", _edited(times), window=60_000) as done:
        is_sound(done, refused=refused)
        assert len(done.server.requests) == 15 + refused
        assert bool(thoughts_of(done.server.requests[-1].body)) == (times == 1)


def test_a_refusal_that_ends_a_run_is_kept_to_in_the_next() -> None:
    """The second try fails, too, and ADK drops the state of a call that does."""
    turns = [(asks(at), [CALL, thinks(answers(at))]) for at in range(4)]
    turns[2] = (asks(2), [Refusal(400, UNBOUND), Refusal(500, "overloaded")])
    scenario = Scenario(lambda llm: clerk(llm, thinks=True, instruction=BRIEF), turns)
    with run("claude", scenario, window=60_000) as done:
        assert len(done.failed) == 1
        assert [thoughts_of(request.body) for request in done.server.requests] == [0, 1, 2, 3, 4, 0, 0, 1]
