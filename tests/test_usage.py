"""Usage and limits inside ADK's own Runner: what is booked, what events say, and what happens at a limit."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import scripted
from google.adk.agents import LlmAgent, LoopAgent, ParallelAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.events.event import Event
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.tool_context import ToolContext
from google.adk.workflow import Workflow
from google.genai import types
from scripted import Chat, Failure, Scripted, call, look_up

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, context_pack_callbacks
from aether_context.adk.usage import reported
from aether_context.errors import AetherContextError, BudgetExceededError, PolicyError, StepTooLarge
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


def loop(count: int) -> list[Any]:
    return [call("look_up", key=f"k{at}") for at in range(count)]


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


# what is booked


def test_each_event_carries_its_call_and_the_totals_so_far() -> None:
    chat = Chat(script=[*loop(2), "done"], tools=[look_up])
    chat.say("go")
    said = held(chat)
    found = [Totals.from_record(one["usage"][0]) for one in said]
    assert [one.calls for one in found if one is not None] == [1, 2, 3]
    assert found[-1] == totals(chat)
    assert totals(chat)[:6] == (
        3,
        3 * 120,
        3 * 7,
        pytest.approx(Decimal(3 * (80 * 0.3 + 40 * 0.03 + 7 * 2.5) / 1e6)),
        3 * 40,
        0,
    )
    last = said[-1]
    assert last["pack_id"] == chat.manifests()[-1].pack_id
    assert last["request_tokens"] == chat.manifests()[-1].request_tokens
    assert last["usage"][1:] == [[], []], "invocation and agent equal the session"
    assert "budget" not in last


@AGENTS
def test_invocations_and_agents_have_accounts_of_their_own() -> None:
    helper = LlmAgent(name="helper", model=Scripted(script=["h1", "h2"], sent=[]))
    writer = LlmAgent(name="writer", model=Scripted(script=["w1", "w2"], sent=[]))
    chat = Chat(agent=SequentialAgent(name="both", sub_agents=[helper, writer]))
    chat.say("one", "two")
    found = report(chat)
    assert [(one.name, one.totals.calls) for one in found.agents] == [("helper", 2), ("writer", 2)]
    assert [one.totals.calls for one in found.invocations] == [2, 2]
    assert found.session.totals.calls == 4


def test_overhead_is_what_the_manifests_say_and_framing_is_counted_once_a_message() -> None:
    chat = Chat(script=[*loop(2), "done"], tools=[look_up])
    chat.say("go", "on")
    manifests, found = chat.manifests(), totals(chat)
    assert found.system_tokens == sum(one.allocation["system"].used for one in manifests)
    assert found.tool_tokens == sum(one.allocation["tools"].used for one in manifests) > 0
    # 1, 3, 5 and 7 messages; 0, 2, 4 and 4 calls and responses.
    assert found.formatting_tokens == 1 * 16 + 6 * 10


def test_two_sessions_of_one_plugin_are_two_ledgers() -> None:
    chat = Chat()

    async def both() -> None:
        await asyncio.gather(chat.tell("a", session="s1"), chat.tell("b", session="s2"))
        await chat.tell("c", session="s2")

    asyncio.run(both())
    assert (totals(chat, "s1").calls, totals(chat, "s2").calls) == (1, 2)
    assert chat.plugin.usage(app="shop", user="ann", session="s3") is None  # type: ignore[union-attr]


def test_a_stream_counts_once_by_its_last_answer() -> None:
    stream = (
        answer("He", 11, 1, partial=True),
        answer("llo", 22, 2, partial=True),
        answer("Hello", 33, 3),
    )
    chat = Chat(script=[stream])
    chat.say("hi", stream=True)
    assert totals(chat)[:3] == (1, 33, 3)


def test_several_answers_of_one_call_count_once_by_the_latest_usage() -> None:
    growing = Chat(script=[(answer("one", 50, 3), answer("two", 50, 9))])
    growing.say("hi")
    assert totals(growing)[:3] == (1, 50, 9)
    silent = Chat(script=[(answer("text", 50, 9), answer("more", None))])
    silent.say("hi")
    assert totals(silent)[:3] == (1, 50, 9)
    late = Chat(script=[(answer("text", None), answer("more", 50, 9))])
    late.say("hi")
    assert totals(late)[:3] == (1, 50, 9)
    assert late_is_exact(late)


def late_is_exact(chat: Chat) -> bool:
    budget = report(chat).session
    return not (budget.input.approximate or budget.output.approximate)


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


def test_estimated_answers_of_one_call_add_up() -> None:
    one, both = (
        Chat(script=[answer("first words", None)]),
        Chat(script=[(answer("first words", None), answer("second words", None))]),
    )
    one.say("hi")
    both.say("hi")
    assert totals(both).calls == 1
    assert totals(both).output_tokens > totals(one).output_tokens


def test_a_failed_call_counts_nothing_and_an_error_with_usage_does() -> None:
    chat = Chat(script=[answer("", None, error="UNAVAILABLE"), answer("", 90, 0, error="SAFETY"), "fine"])
    chat.say("one", "two", "three")
    assert totals(chat)[:3] == (2, 210, 7)


def test_a_call_that_raises_counts_nothing_and_the_next_one_does() -> None:
    chat = Chat(script=[Failure("down"), "fine"])
    with pytest.raises(Exception, match="down"):
        chat.say("one")
    chat.say("two")
    assert totals(chat).calls == 1


@pytest.mark.parametrize(
    ("usage", "output"),
    [
        # thoughts beside the answer
        ({"prompt_token_count": 100, "candidates_token_count": 60, "thoughts_token_count": 40}, 100),
        (
            {
                "prompt_token_count": 100,
                "candidates_token_count": 60,
                "thoughts_token_count": 40,
                "total_token_count": 200,
            },
            100,
        ),
        # thoughts inside the answer
        (
            {
                "prompt_token_count": 100,
                "candidates_token_count": 60,
                "thoughts_token_count": 40,
                "total_token_count": 160,
            },
            60,
        ),
        # results of the provider's own tools beside the prompt
        (
            {
                "prompt_token_count": 100,
                "tool_use_prompt_token_count": 30,
                "candidates_token_count": 60,
                "total_token_count": 190,
            },
            60,
        ),
        # a total that does not fit
        ({"prompt_token_count": 100, "candidates_token_count": 60, "total_token_count": 100}, 60),
        ({"prompt_token_count": 100, "total_token_count": 100}, 0),
        ({"prompt_token_count": 100}, None),
        ({"prompt_token_count": 0, "candidates_token_count": 60}, None),
    ],
)
def test_thoughts_belong_to_the_output_however_they_are_reported(usage: dict[str, int], output: int | None) -> None:
    assert reported(types.GenerateContentResponseUsageMetadata(**usage)).output_tokens == output


def test_cached_tokens_are_inside_the_input_and_cost_less() -> None:
    plain, cached = (
        Chat(script=[answer("ok", 1_000)]),
        Chat(script=[answer("ok", 1_000, cached_content_token_count=900)]),
    )
    plain.say("hi")
    cached.say("hi")
    assert totals(plain).input_tokens == totals(cached).input_tokens == 1_000
    assert totals(cached).cached_share == 0.9
    assert totals(plain).cached_share is None
    assert totals(plain).cost_usd - totals(cached).cost_usd == 900 * Decimal("0.27") / 1_000_000


def test_a_model_without_a_price_costs_unknown() -> None:
    chat = Chat(model="something-unknown")
    chat.say("hi")
    assert totals(chat).known_cost_usd is None
    record = held(chat)[0]["usage"][0]
    assert Totals.from_record(record) == totals(chat)
    assert totals(chat).unpriced_calls == 1


def test_a_failure_in_accounting_costs_neither_the_run_nor_the_pack(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ContextPackPlugin):
        def break_down(self) -> None:
            def fails(*_: Any) -> Any:
                raise Failure("the ledger is broken")

            for name in ("enter", "admit", "track"):
                setattr(self._packer.ledgers, name, fails)

    plugin = Broken(store="memory://broken-ledger")
    plugin.break_down()
    chat = Chat(plugin=plugin, state={"plan": {"step": {"text": "Go", "acceptance": ["gone"]}}})
    chat.say("one", "two")
    assert all("CONTEXT PACK" in one.human() for one in chat.sent)
    assert [one.degradations for one in chat.manifests()] == [(), ()]
    assert "the ledger is broken" in caplog.text


def test_live_sessions_are_left_alone() -> None:
    from google.adk.agents.live_request_queue import LiveRequestQueue

    class Live(BasePlugin):
        async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> None:
            context = callback_context.get_invocation_context()
            callback_context._invocation_context = context.model_copy(update={"live_request_queue": LiveRequestQueue()})

    chat = Chat(policy=limited("stop", session={"total_tokens": 1}), script=["ok"])
    chat.runner.plugin_manager.plugins.insert(0, Live(name="live"))
    chat.say("hi")
    assert len(chat.llm.sent) == 1


# what happens at a limit


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


def test_limits_of_all_sessions_can_be_changed_and_returned() -> None:
    chat = Chat()
    plugin = chat.plugin
    assert isinstance(plugin, ContextPackPlugin)
    chat.say("one")
    plugin.set_limits({"on_budget": "stop", "session": {"output_tokens": 7}})
    assert plugin.limits.session.output_tokens == 7
    assert chat.say("two")[-1].error_code == "budget_exceeded"
    plugin.set_limits(None)
    assert plugin.limits == plugin.policy.limits
    assert chat.say("three")[-1].error_code is None


def test_wrong_limits_and_half_a_session_are_refused() -> None:
    plugin = ContextPackPlugin(store="memory://wrong-limits")
    with pytest.raises(PolicyError, match=r"unknown field 'limits\.session\.token': did you mean"):
        plugin.set_limits({"session": {"token": 5}})
    with pytest.raises(PolicyError, match="give all three or none"):
        plugin.set_limits(None, session="s1")


def raising(as_callbacks: bool, policy: PackPolicy, **more: Any) -> Chat:
    """A chat with one agent, packed by callbacks or by the plugin."""
    if not as_callbacks:
        return Chat(policy=policy, **more)
    callbacks = context_pack_callbacks(policy=policy, store="memory://raising-callbacks")
    agent = LlmAgent(name="clerk", model=Scripted(script=["a"], sent=[]), **callbacks)
    return Chat(agent=agent, use_plugin=False, **more)


def raised(chat: Chat) -> BaseException | None:
    """What ends a run: as it is from callbacks, wrapped by ADK from the plugin."""
    with pytest.raises(RuntimeError) as caught:
        chat.say("go on")
    return caught.value if isinstance(caught.value, AetherContextError) else caught.value.__cause__


@pytest.mark.parametrize("as_callbacks", [False, True])
def test_the_same_error_is_raised_whether_it_comes_from_the_plugin_or_from_callbacks(as_callbacks: bool) -> None:
    chat = raising(as_callbacks, limited("raise", session={"total_tokens": 10}))
    error = raised(chat)
    assert isinstance(error, BudgetExceededError)
    assert (error.scope, error.measure, error.limit, error.used) == ("session", "total", 10, 0)
    assert "limits.session.total_tokens" in str(error)
    assert error.planned >= 10
    assert chat.llm.sent == []
    assert chat.manifests() == []


@pytest.mark.parametrize("as_callbacks", [False, True])
def test_an_invalid_plan_is_raised_as_what_it_is_in_both_ways(as_callbacks: bool) -> None:
    error = raised(raising(as_callbacks, PackPolicy(on_invalid="raise"), state={"plan": {"step": "no list"}}))
    assert isinstance(error, PolicyError)
    assert error.field == "plan"
    assert "no acceptance list" in str(error)


@pytest.mark.parametrize("as_callbacks", [False, True])
def test_a_step_that_does_not_fit_is_raised_in_both_ways(as_callbacks: bool) -> None:
    items = [f"number {at} " + "and so on " * 20 for at in range(20)]
    policy = PackPolicy(on_invalid="raise", max_input_tokens=600)
    chat = raising(as_callbacks, policy, state={"plan": {"step": {"text": "Do it", "acceptance": items}}})
    error = raised(chat)
    assert isinstance(error, StepTooLarge)
    assert "input budget" in str(error)


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


WORDS = " ".join(f"word{at}" for at in range(250))


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
    assert notes[6:] == [("packed economically: the session's limit of 762 tokens is reached",)] * 6
    budget = bound.manifests()[0].window - bound.manifests()[0].allocation["slack"].final
    assert sizes[:5] == whole[:5]
    assert sizes[5] <= 0.6 * budget < whole[5] <= 0.8 * budget
    assert max(sizes[6:]) < 0.5 * budget
    assert sum(sizes[6:]) < 0.7 * sum(whole[6:])
    bound.replays()


def test_degrade_lets_calls_through_and_names_the_limit_in_their_events() -> None:
    chat = Chat(policy=limited("degrade", session={"total_tokens": 100}))
    chat.say("one", "two")
    assert len(chat.llm.sent) == 2
    assert [one["budget"]["scope"] for one in held(chat)[1:]] == ["session"]


def test_an_economical_pack_extends_the_one_before_it() -> None:
    from google.adk.tools import FunctionTool

    chat = Chat(
        script=[*loop(4), "done"], tools=[FunctionTool(look_up)], policy=limited("degrade", session={"total_tokens": 1})
    )
    chat.say("go")
    for earlier, later in zip(chat.sent, chat.sent[1:], strict=False):
        assert later.wires[: len(earlier.wires)] == earlier.wires
    manifests = chat.manifests()
    assert all(one.extends for one in manifests[2:])
    assert len({one.policy for one in manifests[1:]}) == 1
    chat.replays()


def test_the_answers_limit_of_a_request_is_planned_for() -> None:
    settings = {"generate_content_config": types.GenerateContentConfig(max_output_tokens=5_000)}
    policy = limited("stop", session={"output_tokens": 4_000})
    assert Chat(policy=policy, settings=settings).say("hi")[-1].error_code == "budget_exceeded"
    assert Chat(policy=policy).say("hi")[-1].error_code is None


def test_a_limit_on_costs_stops_and_one_that_sees_no_price_says_so(caplog: pytest.LogCaptureFixture) -> None:
    chat = Chat(policy=limited("stop", session={"cost_usd": 0.000_06}))
    events = chat.say("one", "two")
    assert events[-1].error_code == "budget_exceeded"
    assert "US dollars" in (events[-1].error_message or "")
    unknown = Chat(policy=limited("stop", session={"cost_usd": 0.000_06}), model="something-unknown")
    assert unknown.say("one", "two")[-1].error_code is None
    lines = [one for one in caplog.records if "no price is known for 'something-unknown'" in one.getMessage()]
    assert len(lines) == 1


def test_an_invocations_limit_ends_the_invocation_and_not_the_session() -> None:
    policy = limited("stop", invocation={"input_tokens": 700})
    chat = Chat(script=[call("tick") for _ in range(12)], tools=[tick], policy=policy)
    assert chat.say("go")[-1].error_code == "budget_exceeded"
    used = len(chat.llm.sent)
    assert 1 < used < 12
    assert chat.say("and now?")[0].error_code is None
    assert len(chat.llm.sent) > used


@AGENTS
def test_a_stopped_loop_ends() -> None:
    clerk = LlmAgent(name="clerk", model=Scripted(script=[], sent=[]))
    policy = limited("stop", agents={"*": {"total_tokens": 5 * CALL}})
    chat = Chat(agent=LoopAgent(name="again", sub_agents=[clerk]), policy=policy)

    async def bounded() -> None:
        await asyncio.wait_for(chat.tell("go"), timeout=60)

    asyncio.run(bounded())
    assert totals(chat).total_tokens <= 5 * CALL
    assert totals(chat).calls >= 1


class Slow(Scripted):
    """Takes its time, so that the calls of parallel agents are under way together."""

    async def generate_content_async(self, llm_request: LlmRequest, stream: bool = False) -> Any:
        await asyncio.sleep(0.2)
        async for response in super().generate_content_async(llm_request, stream):
            yield response


@AGENTS
def test_parallel_agents_do_not_pass_a_limit_together() -> None:
    def quadruplets(policy: PackPolicy | None) -> tuple[Chat, int]:
        models = [Slow(script=[answer("ok", 10, 1)], sent=[]) for _ in range(4)]
        agents = [LlmAgent(name=f"twin{at}", model=model, instruction=WORDS) for at, model in enumerate(models)]
        chat = Chat(agent=ParallelAgent(name="all", sub_agents=agents), policy=policy)
        chat.say("go")
        return chat, sum(len(model.sent) for model in models)

    free, calls = quadruplets(None)
    assert calls == 4
    each = free.manifests()[0].request_tokens
    bound, calls = quadruplets(limited("stop", invocation={"input_tokens": int(2.5 * each)}))
    assert calls == len(bound.manifests()) == 2


# agents that run as tools


def child_chat(policy: PackPolicy | None = None, parents: int = 1) -> tuple[Chat, Scripted]:
    child = Scripted(script=[answer("found", 1_000, 50)] * 9, sent=[])
    expert = LlmAgent(name="expert", model=child, instruction="You know.")
    script = [*[call("expert", request="what?") for _ in range(parents)], "done"]
    return Chat(script=script, tools=[AgentTool(expert)], policy=policy), child


def test_what_an_agent_as_a_tool_uses_is_booked_where_it_was_called() -> None:
    chat, _ = child_chat()
    chat.say("go")
    found = report(chat)
    assert found.session.totals[:3] == (3, 1_240, 64)
    assert [one.totals.calls for one in found.invocations] == [3]
    assert [(one.name, one.totals.calls) for one in found.agents] == [("clerk", 2), ("expert", 1)]


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


def test_callbacks_book_an_agent_as_a_tool_like_the_plugin() -> None:
    callbacks = context_pack_callbacks(
        policy=limited("stop", session={"total_tokens": 1_400}), store="memory://callbacks-tool"
    )
    child = Scripted(script=[answer("found", 1_000, 50)] * 9, sent=[])
    expert = LlmAgent(name="expert", model=child, instruction="You know.", **callbacks)
    model = Scripted(script=[*[call("expert", request="what?") for _ in range(3)], "done"], sent=[])
    clerk = LlmAgent(name="clerk", model=model, instruction="You help.", tools=[AgentTool(expert)], **callbacks)
    events = Chat(agent=clerk, use_plugin=False).say("go")
    assert events[-1].error_code == "budget_exceeded"
    assert len(child.sent) == 2


def test_a_session_after_one_with_a_tool_is_nobodys() -> None:
    chat, _ = child_chat()
    chat.say("go")

    async def later() -> None:
        await chat.tell("hello", session="s2")
        await chat.tell("hello", session="s3")

    asyncio.run(later())
    assert totals(chat, "s1").calls == 3
    assert totals(chat, "s2").calls == totals(chat, "s3").calls == 1


# what cannot raise a limit


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


# restarts


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


def test_what_only_an_answer_without_usage_tells_is_known_to_the_next_process() -> None:
    expert = LlmAgent(name="expert", model=Scripted(script=[answer("found", 1_000, 50)], sent=[]))
    asked = answer("", 120, 7).model_copy(update={"content": types.ModelContent([call("expert", request="what?")])})
    before = Chat(script=[(asked, answer("meanwhile", None))], tools=[AgentTool(expert)])
    before.say("go")
    assert totals(before)[:3] == (2, 1_120, 57)
    after = Chat(sessions=before.sessions)
    after.say("more")
    assert totals(after)[:3] == (3, 1_240, 64)


def test_two_workers_take_turns_on_one_session() -> None:
    one = Chat(policy=limited("stop", session={"total_tokens": 100 * CALL}))
    other = Chat(policy=one.policy, sessions=one.sessions)
    for turn, chat in enumerate([one, other, one, one, other, one], start=1):
        chat.say(f"turn {turn}")
        assert totals(chat).calls == turn
    assert totals(one).total_tokens == 6 * CALL


def test_a_worker_that_sees_the_latest_events_only_knows_all_that_was_used() -> None:
    before = Chat()
    before.say(*[f"message {at}" for at in range(6)])

    class Latest(type(before.sessions)):  # type: ignore[misc]
        async def get_session(self, *, config: Any = None, **names: Any) -> Any:
            return await super().get_session(config=GetSessionConfig(num_recent_events=2), **names)

    sessions = Latest()
    sessions.__dict__.update(before.sessions.__dict__)
    after = Chat(sessions=sessions)
    after.say("one more", "and another")
    assert totals(after).calls == 8


def test_a_long_history_is_known_without_reading_all_of_its_totals() -> None:
    before = Chat()
    before.say("one")
    session = asyncio.run(before.held())
    event = session.events[-1]
    said = event.custom_metadata["aether_context"]

    def told(number: int, agent: str) -> Event:
        used = Totals.from_record([value * number for value in said["usage"][0]])
        assert used is not None
        metadata = {"aether_context": {**said, "usage": [used.record(), [], []]}}
        return event.model_copy(update={"id": f"e{number}", "author": agent, "custom_metadata": metadata})

    async def extend() -> None:
        for number in range(2, 1_001):
            await before.sessions.append_event(session, told(number, "early" if number == 500 else "clerk"))
        for number in range(3):
            plain = event.model_copy(update={"id": f"plain{number}", "custom_metadata": None})
            await before.sessions.append_event(session, plain)

    asyncio.run(extend())
    after = Chat(sessions=before.sessions)
    after.say("two")
    found = report(after)
    assert found.session.totals.calls == 1_000 + 3 + 1
    assert [(one.name, one.totals.calls) for one in found.agents] == [("clerk", 1_004), ("early", 500)]


@pytest.mark.parametrize("as_callbacks", [False, True], ids=["plugin", "callbacks"])
@pytest.mark.parametrize("place", ["one agent", "sub-agent", "agent tool", "workflow"])
@pytest.mark.parametrize("scope", ["session", "invocation"])
def test_a_limit_that_holds_in_the_middle_of_a_run_is_caught_wherever_the_agent_stands(
    place: str, scope: str, as_callbacks: bool
) -> None:
    policy = limited("raise", **{scope: {"total_tokens": 900}})
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
    error = raised(chat)
    assert isinstance(error, BudgetExceededError)
    assert (error.scope, error.limit) == (scope, 900)
    assert 0 < error.used <= 900
    assert 0 < len(worker.model.sent) < 20  # type: ignore[union-attr]


def test_a_preview_is_held_against_the_limits(tmp_path: Path) -> None:
    from aether_context.adk.preview import preview

    chat = Chat()
    chat.say("one")
    session = asyncio.run(chat.held())
    assert preview(session, policy=limited("stop", session={"total_tokens": 10_000}), message="on").pack.request_tokens
    with pytest.raises(PolicyError, match="no request would be sent: the next call would take"):
        preview(session, policy=limited("stop", session={"total_tokens": CALL}), message="on")
    with pytest.raises(BudgetExceededError) as caught:
        preview(session, policy=limited("raise", session={"total_tokens": CALL}), message="on")
    assert caught.value.used == CALL


def test_history_from_before_the_plugin_was_there_is_summed() -> None:
    before = Chat(use_plugin=False)
    before.say("one", "two")
    after = Chat(sessions=before.sessions)
    after.say("three")
    assert totals(after)[:3] == (3, 360, 21)


def test_an_answer_that_a_callback_replaced_is_counted_once() -> None:
    def replace(callback_context: CallbackContext, llm_response: LlmResponse) -> LlmResponse:
        return LlmResponse(content=types.ModelContent("something else"))

    chat = Chat(settings={"after_model_callback": replace})
    chat.say("one", "two", "three")
    assert held(chat) == []
    assert totals(chat)[:3] == (3, 360, 21)


def test_an_answer_that_an_earlier_plugin_replaced_is_counted_from_history() -> None:
    class Replaces(BasePlugin):
        async def after_model_callback(self, *, callback_context: Any, llm_response: LlmResponse) -> LlmResponse:
            return LlmResponse(content=types.ModelContent("something else"))

    chat = Chat()
    chat.runner.plugin_manager.plugins.insert(0, Replaces(name="replaces"))
    chat.say("one", "two", "three")
    assert totals(chat)[:3] == (2, 240, 14)


def test_what_events_carry_is_plain_json() -> None:
    chat = Chat(policy=limited("warn", session={"cost_usd": 0.000_01}))
    chat.say("one", "two")
    said = held(chat)
    assert json.loads(json.dumps(said)) == copy.deepcopy(said)
    assert said[-1]["budget"]["measure"] == "cost"
    assert logging.getLogger("aether_context").name


def test_an_unreported_or_negative_part_of_the_input_is_unknown_or_0() -> None:
    plain = reported(types.GenerateContentResponseUsageMetadata(prompt_token_count=9))
    assert (plain.cached_tokens, plain.cache_write_tokens) == (None, None)
    of_gemini = reported(types.GenerateContentResponseUsageMetadata(prompt_token_count=9), "gemini-2.5-flash")
    assert of_gemini.cached_tokens == 0
    wrong = types.GenerateContentResponseUsageMetadata(prompt_token_count=9, cached_content_token_count=-4)
    assert reported(wrong).cached_tokens == 0
