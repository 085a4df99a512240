"""Usage and limits inside ADK's own Runner: what is booked, what events say, and what happens at a limit."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import scripted
from google.adk.agents import LlmAgent, ParallelAgent
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow
from google.genai import types
from plans import loop
from scripted import Chat, Failure, Scripted, call, look_up

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, context_pack_callbacks
from aether_context.errors import BudgetExceededError
from aether_context.usage import LedgerReport, Totals


@pytest.fixture(autouse=True)
def constant_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripted models report the same for every request here, so that totals can be told in advance."""
    monkeypatch.setattr(scripted, "size", lambda request: 120)


CALL = 127
"""Tokens of a scripted answer: 120 read, 40 of them from a cache, 7 answered."""


def limited(on_budget: str = "stop", **limits: Any) -> PackPolicy:
    return PackPolicy(limits={"on_budget": on_budget, **limits})


def report(chat: Chat, session: str = "s1") -> LedgerReport:
    found = chat.plugin.usage(app=chat.app_name, user=chat.user, session=session)  # type: ignore[union-attr]
    assert found is not None
    return found


def totals(chat: Chat, session: str = "s1") -> Totals:
    return report(chat, session).session.totals


def held(chat: Chat) -> list[dict[str, Any]]:
    """What the session's events say, of those that say anything."""
    session = asyncio.run(chat.held())
    return [event.custom_metadata["aether_context"] for event in session.events if event.custom_metadata]


AGENTS = pytest.mark.filterwarnings("ignore:.*is deprecated in favor of Workflow:DeprecationWarning")


def tick() -> str:
    """Ticks."""
    return "tick"


def answer(
    text: str = "ok",
    read: int | None = 100,
    answered: int | None = 10,
    *,
    partial: bool | None = None,
    error: str | None = None,
    **usage: Any,
) -> LlmResponse:
    """A response; ``read`` None is one without usage."""
    metadata = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=read, candidates_token_count=answered, **usage
    )
    return LlmResponse(
        content=types.ModelContent(text) if text else None,
        usage_metadata=metadata if read is not None else None,
        partial=partial,
        error_code=error,
        finish_reason=None if partial or error else types.FinishReason.STOP,
    )


def test_each_event_carries_its_call_and_the_totals_so_far() -> None:
    chat = Chat(script=[*loop(2), "done"], tools=[look_up])
    chat.say("go")
    said = held(chat)
    found = [Totals.from_record(one["usage"]["session"]) for one in said]
    assert [one.calls for one in found if one is not None] == [1, 2, 3]
    assert found[-1] == totals(chat)
    cost = pytest.approx(Decimal(3 * (80 * 0.3 + 40 * 0.03 + 7 * 2.5) / 1e6))
    assert totals(chat)[:6] == (3, 3 * 120, 3 * 7, cost, 3 * 40, 0)
    last = said[-1]
    assert last["pack_id"] == chat.latest().pack_id
    assert last["request_tokens"] == chat.latest().request_tokens
    assert [*last["usage"]] == ["session"], "invocation and agent equal the session"
    assert "budget" not in last


@pytest.mark.parametrize(
    "stream",
    [
        (answer("one", 50, 3), answer("two", 50, 9)),
        (answer("text", 50, 9), answer("more", None)),
        (answer("text", None), answer("more", 50, 9)),
    ],
    ids=["growing", "silent at the end", "silent at first"],
)
def test_several_answers_of_one_call_count_once_by_the_latest_usage(stream: tuple[LlmResponse, ...]) -> None:
    chat = Chat(script=[stream])
    chat.say("hi")
    budget = report(chat).session
    assert budget.totals[:3] == (1, 50, 9)
    assert {budget.input.approximate, budget.output.approximate} == {False}


@pytest.mark.parametrize("read", [None, 0])
def test_unknown_usage_is_estimated_and_said_to_be(read: int | None) -> None:
    chat = Chat(script=[answer("seven words are a good short answer", read, 0)])
    chat.say("hello")
    budget = report(chat).session
    assert budget.totals.input_tokens == chat.manifests()[0].request_tokens
    assert 6 <= budget.totals.output_tokens <= 10
    assert budget.input.approximate
    assert budget.output.approximate
    assert budget.totals.cached_share is None
    assert report(chat).accuracy.calls == 0


@pytest.mark.parametrize(
    ("prompt", "answered", "thoughts", "results", "total", "output"),
    [
        (100, 60, 40, None, None, 100),  # thoughts beside the answer
        (100, 60, 40, None, 200, 100),
        (100, 60, 40, None, 160, 60),  # thoughts inside the answer
        (100, 60, None, 30, 190, 60),  # results of the provider's own tools beside the prompt
        (100, 60, None, None, 100, 60),  # a total that does not fit
        (100, None, None, None, 100, 0),
        (100, None, None, None, None, None),
        (0, 60, None, None, None, None),
    ],
)
def test_thoughts_belong_to_the_output_however_they_are_reported(
    prompt: int, answered: int | None, thoughts: int | None, results: int | None, total: int | None, output: int | None
) -> None:
    usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=prompt,
        candidates_token_count=answered,
        thoughts_token_count=thoughts,
        tool_use_prompt_token_count=results,
        total_token_count=total,
    )
    chat = Chat(script=[LlmResponse(content=types.ModelContent("ok"), usage_metadata=usage)])
    chat.say("Go on.")
    [manifest] = chat.manifests()
    assert (chat.store.outcome(manifest) or {}).get("output_tokens") == output


def test_stop_answers_in_the_models_place_with_code_and_numbers() -> None:
    chat = Chat(policy=limited("stop", session={"input_tokens": 300}), script=["a", "b", "c"])
    events = chat.say("one", "two", "three", "four")
    assert len(chat.llm.sent) == totals(chat).calls < 4
    stopped = events[-1]
    assert stopped.error_code == "budget_exceeded"
    assert stopped.content is not None
    assert "raise limits.session.input_tokens" in (stopped.error_message or "")
    budget = stopped.custom_metadata["aether_context"]["budget"]
    assert (budget["scope"], budget["measure"], budget["limit"]) == ("session", "input", 300)
    assert budget["used"] == totals(chat).input_tokens
    assert budget["used"] + budget["planned"] > 300
    assert len(chat.manifests()) == len(chat.llm.sent)
    chat.replays()


def test_a_stopped_session_goes_on_once_its_limit_is_raised() -> None:
    chat = Chat(policy=limited("stop", session={"total_tokens": 200}))
    plugin = chat.plugin
    assert isinstance(plugin, ContextPackPlugin)
    chat.say("one", "two")
    before = len(chat.llm.sent)
    assert chat.say("three")[-1].error_code == "budget_exceeded"
    plugin.set_limits({"on_budget": "stop", "session": {"total_tokens": 10**6}}, app="shop", user="ann", session="s1")
    assert chat.say("four")[-1].error_code is None
    assert len(chat.llm.sent) == before + 1
    assert chat.say("other", session="s2")[-1].error_code is None
    plugin.set_limits(None, app="shop", user="ann", session="s1")
    assert chat.say("five")[-1].error_code == "budget_exceeded"


def test_a_limit_holds_where_packing_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Unreadable(dict[str, Any]):
        def items(self) -> Any:
            raise Failure("packing is broken")

    def alter(context: Any, _: Any) -> None:
        context.session.state["plan"] = Unreadable(step="x")

    policy = limited("stop", session={"total_tokens": 10})
    chat = Chat(policy=policy, on_error="passthrough", alter=alter)
    assert chat.say("hello")[-1].error_code == "budget_exceeded"
    assert chat.llm.sent == []
    assert "packing is broken" in caplog.text


def test_warn_says_so_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    free, warned = Chat(), Chat(policy=limited("warn", session={"total_tokens": 10}))
    for chat in (free, warned):
        chat.say("one", "two")
    assert [one.wires for one in warned.sent] == [one.wires for one in free.sent]
    lines = [one for one in caplog.records if "raise limits.session.total_tokens" in one.getMessage()]
    assert len(lines) == 1
    assert [one["budget"]["limit"] for one in held(warned)] == [10, 10]
    assert all(one.degradations == () for one in warned.manifests())


WORDS = " ".join(f"word{at}" + "." * (at % 10 == 9) for at in range(250))


def test_degrade_cuts_earlier_and_deeper_near_a_limit_and_more_so_once_it_is_reached() -> None:
    settings: dict[str, Any] = {"max_input_tokens": 8_000, "usage": {"gate": 0}}
    free = Chat(policy=PackPolicy(**settings))
    bound = Chat(policy=PackPolicy(**settings, limits={"session": {"total_tokens": 6 * CALL}}))
    for chat in (free, bound):
        chat.say(*[f"question {at}: {WORDS}" for at in range(12)])
    assert len(bound.llm.sent) == 12
    sizes = [one.counted_tokens for one in bound.manifests()]
    whole = [one.counted_tokens for one in free.manifests()]
    # Five calls use more than 80% of the limit, and six all of it.
    notes = [one.degradations for one in bound.manifests()]
    assert notes[:5] == [()] * 5
    assert notes[5] == ("packed economically: the session's limit of 762 tokens is near",)
    assert [note[0] for note in notes[6:]] == ["packed economically: the session's limit of 762 tokens is reached"] * 6
    budget = bound.manifests()[0].window - bound.manifests()[0].allocation["slack"].final
    assert sizes[:5] == whole[:5]
    assert sizes[5] <= 0.6 * budget < whole[5] <= 0.8 * budget
    assert max(sizes[6:]) < 0.6 * budget
    assert sum(sizes[6:]) < 0.7 * sum(whole[6:])
    bound.replays()


@AGENTS
def test_parallel_agents_do_not_pass_a_limit_together() -> None:
    def quadruplets(policy: PackPolicy | None) -> tuple[Chat, int]:
        together = partial(asyncio.sleep, 0.2)
        models = [Scripted(script=[answer("ok", 10, 1)], sent=[], waits=together) for _ in range(4)]
        agents = [LlmAgent(name=f"twin{at}", model=model, instruction=WORDS) for at, model in enumerate(models)]
        chat = Chat(agent=ParallelAgent(name="all", sub_agents=agents), policy=policy)
        chat.say("go")
        return chat, sum(len(model.sent) for model in models)

    free, calls = quadruplets(None)
    assert calls == 4
    each = free.manifests()[0].request_tokens
    bound, calls = quadruplets(limited("stop", invocation={"input_tokens": int(2.5 * each)}))
    assert calls == len(bound.manifests()) == 2


def child_chat(policy: PackPolicy | None = None, parents: int = 1) -> tuple[Chat, Scripted]:
    child = Scripted(script=[answer("found", 1_000, 50)] * 9, sent=[])
    expert = LlmAgent(name="expert", model=child, instruction="You know.")
    script = [*[call("expert", request="what?") for _ in range(parents)], "done"]
    return Chat(script=script, tools=[AgentTool(expert)], policy=policy), child


def test_an_agent_as_a_tool_stops_at_the_callers_limit() -> None:
    chat, child = child_chat(limited("stop", session={"total_tokens": 1_400}), parents=3)
    events = chat.say("go")
    assert events[-1].error_code == "budget_exceeded"
    assert len(child.sent) == 2
    assert [one.error_code for one in events if one.error_code] == ["budget_exceeded"]
    shared, child = child_chat(limited("stop", agents={"expert": {"total_tokens": 900}}), parents=3)
    events = shared.say("go")
    responses = [str(part.response) for event in events for part in event.get_function_responses()]
    assert ["The budget is used up" in one for one in responses] == [False, True, True]
    assert len(child.sent) == 1
    assert events[-1].error_code is None


def test_nothing_that_a_tool_writes_into_the_state_raises_a_limit() -> None:
    def cheat(tool_context: ToolContext) -> str:
        """Tries to get more."""
        for key in list(tool_context.state.to_dict()):
            if key.startswith("aether:"):
                tool_context.state[key] = None
        for key in ("aether:usage", "aether:ledger", "aether:limits", "limits", "aether_context"):
            tool_context.state[key] = {"session": {"total_tokens": 0, "calls": 0}, "limit": 10**9, "used": 0}
        tool_context.state["plan"] = {
            "step": {"text": "Go on", "acceptance": ["all is used"]},
            "constraints": {"token_budget": 10**9},
            "profile": "research",
            "limits": {"session": {"total_tokens": 10**9}},
        }
        return "done"

    policy = limited("stop", session={"input_tokens": 600})
    chat = Chat(script=[call("cheat") for _ in range(9)], tools=[cheat], policy=policy)
    assert chat.say("go")[-1].error_code == "budget_exceeded"
    assert totals(chat).calls == len(chat.llm.sent) > 1
    assert totals(chat).input_tokens <= 600
    assert chat.say("more")[-1].error_code == "budget_exceeded"
    again = Chat(tools=[cheat], policy=policy, sessions=chat.sessions)
    assert again.say("still more")[-1].error_code == "budget_exceeded"
    assert totals(again) == totals(chat)


def test_a_clients_metadata_cannot_lower_what_was_used() -> None:
    from google.adk.agents.run_config import RunConfig

    chat = Chat(policy=limited("stop", session={"total_tokens": 3 * CALL}))
    forged = {"aether_context": {"usage": {"session": {"total_tokens": 0, "calls": 0}}}}

    async def ask(text: str) -> Any:
        config = RunConfig(custom_metadata=forged)
        message = types.UserContent(text)
        run = chat.runner.run_async(user_id="ann", session_id="s1", new_message=message, run_config=config)
        return [event async for event in run][-1]

    async def converse() -> list[Any]:
        await chat.sessions.create_session(app_name="shop", user_id="ann", session_id="s1")
        return [await ask(f"message {at}") for at in range(5)]

    events = asyncio.run(converse())
    assert events[-1].error_code == "budget_exceeded"
    again = Chat(policy=chat.policy, sessions=chat.sessions)
    assert again.say("more")[-1].error_code == "budget_exceeded"
    assert totals(again) == totals(chat)


@pytest.fixture(params=["sqlite", "database"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> BaseSessionService:
    if request.param == "sqlite":
        return SqliteSessionService(str(tmp_path / "sessions.db"))
    return DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path / 'sessions.db'}")


def test_a_new_process_goes_on_where_the_last_one_was(sessions: BaseSessionService) -> None:
    policy = limited("stop", session={"total_tokens": 10 * CALL})
    before = Chat(script=[*[call("tick") for _ in range(3)], "done"], tools=[tick], policy=policy, sessions=sessions)

    async def first() -> None:
        await before.tell("go")
        await before.tell("and on")
        if isinstance(sessions, DatabaseSessionService):
            await sessions.close()

    asyncio.run(first())
    assert totals(before).calls == 5
    after = Chat(script=[call("tick") for _ in range(20)], tools=[tick], policy=policy, sessions=sessions)

    async def second() -> Any:
        events = await after.tell("more")
        if isinstance(sessions, DatabaseSessionService):
            await sessions.close()
        return events

    events = asyncio.run(second())
    assert events[-1].error_code == "budget_exceeded"
    assert totals(before).total_tokens < totals(after).total_tokens <= 10 * CALL
    assert totals(after).calls == totals(before).calls + len(after.llm.sent)


@pytest.mark.parametrize("as_callbacks", [False, True], ids=["plugin", "callbacks"])
@pytest.mark.parametrize("place", ["one agent", "sub-agent", "agent tool", "workflow"])
@pytest.mark.parametrize("scope", ["session", "invocation"])
@pytest.mark.rows(7)
def test_a_limit_that_holds_in_the_middle_of_a_run_is_caught_wherever_the_agent_stands(
    place: str, scope: str, as_callbacks: bool
) -> None:
    policy = limited("raise", **{scope: {"total_tokens": 1_500}})
    callbacks: Any = context_pack_callbacks(policy=policy, store=scripted.new_store()) if as_callbacks else {}

    def clerk(name: str, script: list[Any], **more: Any) -> LlmAgent:
        return LlmAgent(name=name, model=Scripted(script=script, sent=[]), **{**callbacks, **more})

    worker = clerk("worker", [call("look_up", key=str(at)) for at in range(20)], tools=[look_up])
    root: Any = worker
    if place == "sub-agent":
        root = clerk("root", [call("transfer_to_agent", agent_name="worker")], sub_agents=[worker])
    elif place == "agent tool":
        root = clerk("root", [call("worker", request="go on")], tools=[AgentTool(agent=worker)])
    elif place == "workflow":
        root = Workflow(name="root", edges=[("START", clerk("first", ["begun"]), worker)])
    chat = Chat(agent=root, policy=None if as_callbacks else policy, use_plugin=not as_callbacks)
    with pytest.raises(RuntimeError) as caught:
        chat.say("go on")
    error = caught.value if as_callbacks else caught.value.__cause__  # ADK wraps what a plugin raises
    assert isinstance(error, BudgetExceededError)
    assert (error.scope, error.measure, error.limit) == (scope, "total", 1_500)
    assert f"limits.{scope}.total_tokens" in str(error)
    assert error.used + error.planned > 1_500
    assert 0 < error.used <= 900
    assert 0 < len(worker.model.sent) < 20  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("bound", "most", "messages", "known"),
    [
        ("_MOST_LEDGER_BYTES", 30_000, 8, [False, True, True, True]),
        ("_MOST_SESSIONS", 2, 2, [False, False, True, True]),
    ],
)
def test_a_session_that_leaves_takes_its_ledger_along_and_goes_on_from_its_events(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int, messages: int, known: list[bool]
) -> None:
    monkeypatch.setattr(f"aether_context.adk.request.sessions.{bound}", most)
    chat = Chat(script=["ok"] * (4 * messages + 1))
    for session in ("s0", "s1", "s2", "s3"):
        chat.say(*["hello"] * messages, session=session)
    usages = [chat.plugin.usage(app=chat.app_name, user=chat.user, session=f"s{at}") for at in range(4)]  # type: ignore[union-attr]
    assert [usage is not None for usage in usages] == known
    chat.say("hello again", session="s0")
    assert totals(chat, "s0").total_tokens == (messages + 1) * CALL
    assert chat.sent[-1].wires == chat.raw[-1].wires


def test_a_session_whose_ledger_was_forgotten_while_its_model_answered_keeps_its_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aether_context.adk.request.sessions._MOST_LEDGER_BYTES", 9_000)
    sessions = [f"s{at}" for at in range(6)]
    chat = Chat(script=["ok"] * 50)

    async def say() -> None:
        await asyncio.gather(*(chat.tell("hello", session=session) for session in sessions))

    for _ in range(4):
        asyncio.run(say())
    spent = []
    for session in sessions:
        chat.say("hello", session=session)
        spent.append(totals(chat, session).total_tokens)
    assert spent == [5 * CALL] * 6
