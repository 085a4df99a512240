"""Arms: observing leaves a session as it is, and a session keeps its arm."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate

import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from scripted import Chat, Scripted, call, exact, new_store

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, context_pack_callbacks
from aether_context.errors import PolicyError
from aether_context.store.replay import Replayer

SMALL = PackPolicy(max_input_tokens=2_000)
SHARES = {"chat": 0.5, "cost_first": 0.4, "observe": 0.1}


def arm_of(session: str, shares: Mapping[str, float]) -> str:
    """The arm of a session, by the first 12 digits of the SHA-256 of its id."""
    point = int(hashlib.sha256(session.encode()).hexdigest()[:12], 16) / 16**12
    ends = accumulate(shares.values())
    return next(name for name, end in zip(shares, ends, strict=True) if point < end)


def listing() -> str:
    """Lists much."""
    return "\n".join(f"ORD-{at} total {at * 7}.25" for at in range(900))


def observing(**options):
    store = new_store()
    plugin = ContextPackPlugin(
        policy=options.pop("policy", SMALL), store=store, on_error="raise", observe=True, **options
    )
    script = [call("listing"), "There are many. " * 200, "Yes. " * 300, "Yes."]
    chat = Chat(plugin=plugin, tools=[listing], script=script)
    chat.say("List all orders.", "Really?", "Sure?")
    return chat, list(store.manifests())


def test_observing_records_what_would_have_been_sent_and_changes_nothing() -> None:
    chat, manifests = observing()
    for raw, sent in zip(chat.raw, chat.sent, strict=True):
        assert raw.pickled == sent.pickled
    assert [manifest.arm for manifest in manifests] == ["observe"] * 4
    assert any(manifest.request_tokens < manifest.whole_history_tokens for manifest in manifests)
    assert all(manifest.request_tokens <= 2_000 for manifest in manifests[1:])
    assert all(manifest.calibration is None or not manifest.calibration.samples for manifest in manifests)


@pytest.mark.parametrize("policy", [SMALL.changed(limits={"session": {"total_tokens": 1}, "on_budget": kind})
                                    for kind in ("stop", "raise")])  # fmt: skip
def test_observing_stops_no_run(policy) -> None:
    chat, _ = observing(policy=policy)
    assert len(chat.sent) == 4
    assert not any(event.actions.escalate for event in asyncio.run(chat.held()).events)


REFUSAL = "This model's maximum context length is 1000 tokens, however you requested 9000 tokens"


def test_a_refused_call_is_not_asked_again() -> None:
    plugin = ContextPackPlugin(policy=SMALL, store=new_store(), observe=True)
    chat = Chat([ValueError(REFUSAL)], plugin=plugin)
    with pytest.raises(ValueError, match="maximum context"):
        chat.say("word " * 3_000)
    assert len(chat.llm.sent) == 1


def test_a_refusal_teaches_an_observer_nothing() -> None:
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=20_000), store=new_store(), observe=True)
    chat = Chat([LlmResponse(error_code="400", error_message=REFUSAL) for _ in range(3)], plugin=plugin)
    chat.say(*["word " * 3_000] * 3)
    assert [manifest.window for manifest in chat.manifests()] == [20_000] * 3


def test_a_policy_beside_arms_is_that_of_observe_or_refused() -> None:
    with pytest.raises(PolicyError, match="goes with no arm"):
        ContextPackPlugin(policy="research", store=new_store(), arms={"chat": 0.5, "coding": 0.5})
    ContextPackPlugin(policy="research", store=new_store(), arms={"chat": 0.5, "observe": 0.5})


def test_a_runner_in_a_tool_has_the_arm_of_its_caller() -> None:
    store = new_store()
    plugin = ContextPackPlugin(store=store, arms={"chat": 0.5, "coding": 0.5}, on_error="raise")

    async def research(question: str) -> str:
        """Researches."""
        helper = LlmAgent(name="helper", model=Scripted(script=["found"], sent=[]))
        runner = InMemoryRunner(app=App(name="inner", root_agent=helper, plugins=[plugin]))
        await runner.session_service.create_session(app_name="inner", user_id="ann", session_id=question)
        message = types.UserContent(question)
        async for _ in runner.run_async(user_id="ann", session_id=question, new_message=message):
            pass
        return "ok"

    for number in range(8):
        script = [call("research", question=f"q{number}"), "done"]
        Chat(plugin=plugin, script=script, tools=[research], session=f"s{number}").say("Hello.")
    arms = {manifest.session: manifest.arm for manifest in store.manifests()}
    assert len(arms) == 16
    assert all(arms[f"q{number}"] == arms[f"s{number}"] for number in range(8))
    assert {arm_of(f"q{number}", {"chat": 0.5, "coding": 0.5}) == arms[f"s{number}"] for number in range(8)} == {
        True,
        False,
    }, "their own ids would lead elsewhere"


def test_a_plain_pack_names_its_arm(monkeypatch) -> None:
    store = new_store()
    plugin = ContextPackPlugin(store=store, arms={"chat": 0.5, "coding": 0.5})
    chat = Chat(plugin=plugin, session="s1")

    def fails(*given: object, **more: object) -> None:
        raise RuntimeError("nothing is found")

    monkeypatch.setattr("aether_context.adk.request.recall.Recall.rank", fails)
    chat.say("hello")
    (manifest,) = store.manifests()
    assert any("packed plainly" in note for note in manifest.degradations)
    assert manifest.arm == arm_of("s1", {"chat": 0.5, "coding": 0.5})


def test_sessions_fall_to_arms_by_their_shares_and_stay() -> None:
    counts = Counter(arm_of(f"session-{number}", SHARES) for number in range(4_000))
    for name, share in SHARES.items():
        assert counts[name] / 4_000 == pytest.approx(share, abs=0.03)
    store = new_store()
    for number in range(6):
        plugin = ContextPackPlugin(store=store, arms=SHARES, on_error="raise")
        chat = Chat(plugin=plugin, script=["one", "two"], session=f"session-{number}")
        chat.say("Hello.", "And again?")
        assert plugin.usage(app="shop", user="ann", session=f"session-{number}") is not None
    for manifest in store.manifests():
        assert manifest.arm == arm_of(manifest.session, SHARES)
        assert (Replayer(store).policy(manifest).preset == "cost_first") == (manifest.arm == "cost_first")


def test_an_agent_as_a_tool_has_the_arm_of_its_caller() -> None:
    store = new_store()
    for number in range(8):
        helper = LlmAgent(name="helper", model=Scripted(model="gemini-2.5-flash", script=["found"], sent=[]))
        script = [call("helper", request="go"), "done"]
        plugin = ContextPackPlugin(store=store, arms={"chat": 0.5, "observe": 0.5}, on_error="raise")
        Chat(plugin=plugin, script=script, tools=[AgentTool(agent=helper)], session=f"s{number}").say("Hello.")
    manifests = list(store.manifests())
    arms = {manifest.session_key: manifest.arm for manifest in manifests if manifest.caller is None}
    assert set(arms.values()) == {"chat", "observe"}
    children = [manifest for manifest in manifests if manifest.caller is not None]
    assert len(children) == 8
    assert all(manifest.arm == arms[manifest.caller] for manifest in children)


@pytest.mark.parametrize("arms", [{}, {"chat": 0.5}, {"chat": 1.5, "coding": -0.5}])
def test_shares_that_do_not_sum_to_one_are_refused(arms) -> None:
    with pytest.raises(PolicyError, match="sum to 1"):
        ContextPackPlugin(store=new_store(), arms=arms)
    with pytest.raises(PolicyError, match="without observe"):
        ContextPackPlugin(store=new_store(), arms={"chat": 1.0}, observe=True)


def test_callbacks_observe_too() -> None:
    store = new_store()
    callbacks = context_pack_callbacks(SMALL, store, on_error="raise", observe=True)
    llm = Scripted(model="gemini-2.5-flash", script=["one", "two"], sent=[])
    chat = Chat(agent=LlmAgent(name="clerk", model=llm, **callbacks), use_plugin=False)
    chat.say("word " * 3_000, "again")
    assert [exact(one) for one in chat.raw] == [exact(one) for one in chat.sent]
    assert [manifest.arm for manifest in store.manifests()] == ["observe", "observe"]
