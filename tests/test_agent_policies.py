"""A policy for each agent: any field of a policy, whose turns the agent sees, and an agent with ``enabled = false``."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.agent_tool import AgentTool
from google.adk.workflow import START, Workflow
from plans import PLAN, planned
from scripted import Chat, Scripted, big_file, call
from teams import DEPRECATED
from terminal import run, told

from aether_context import PackPolicy, PackStore
from aether_context.adk import ContextPackPlugin
from aether_context.errors import PolicyError, StepTooLarge
from aether_context.lab.cli import main
from aether_context.lab.reading import view_under
from aether_context.store.replay import Replayer


def agent(name: str, *script: object, **settings: object) -> LlmAgent:
    return LlmAgent(name=name, model=Scripted(script=list(script), sent=[]), **settings)  # type: ignore[arg-type]


def windows(chat: Chat) -> dict[str, int]:
    return {manifest.agent: manifest.window for manifest in chat.manifests()}


def test_a_table_takes_any_field_of_a_policy(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(
        """max_input_tokens = 9000
[agents]
clerk = "research"
[agents.travel]
profile = "coding"
max_input_tokens = 5000
sees = "own"
[agents.travel.conversation]
strategy = "heads_tails"
[agents.travel.tools]
scope = "off"
[agents.travel.budget.shares]
evidence = { low = 0.2, high = 0.5 }
"""
    )
    policy = PackPolicy.load(path)
    assert policy.for_agent("clerk") == PackPolicy(profile="research", max_input_tokens=9_000)
    assert policy.for_agent("nobody") is policy
    travel = policy.for_agent("travel")
    assert (travel.max_input_tokens, travel.sees, travel.profile) == (5_000, "own", "coding")
    assert travel.conversation.strategy == ("heads_tails",)
    assert (travel.tools.scope, travel.budget.shares.evidence.high) == ("off", 0.5)
    assert travel.budget.shares.conversation == policy.for_profile("coding").budget.shares.conversation
    assert policy.for_agent("travel", "test_cases").profile == "test_cases"
    assert PackPolicy(**policy.model_dump(mode="json", exclude_unset=True)).digest == policy.digest


def test_tables_that_name_a_profile_alone_stand_beside_each_other():
    policy = PackPolicy(agents={"writer": "research", "planner": {"profile": "coding"}, "clerk": "test_cases"})
    assert [policy.for_agent(name).profile for name in policy.agents] == ["research", "coding", "test_cases"]
    chat = Chat(policy=policy)
    chat.say("hello")
    assert [one.profile for one in chat.manifests()] == ["test_cases"]


def test_a_step_too_large_is_answered_as_the_agents_own_policy_says():
    policy = PackPolicy(max_input_tokens=400, on_invalid="raise", agents={"clerk": {"on_invalid": "respond"}})
    chat = Chat(policy=policy, instruction="Rule. " * 900)
    assert chat.say("hello")[-1].error_code == "step_too_large"
    agents = {"other": {"on_invalid": "respond"}}
    other = Chat(policy=PackPolicy(max_input_tokens=400, on_invalid="raise", agents=agents), instruction="Rule. " * 900)
    with pytest.raises((RuntimeError, StepTooLarge)):
        other.say("hello")


def test_a_what_if_gives_an_agent_what_its_table_says():
    chat = Chat(policy=PackPolicy(max_input_tokens=9_000))
    chat.say(*["word " * 400] * 6)
    last = chat.latest()
    what_if = PackPolicy(agents={"clerk": {"max_input_tokens": 2_000}, "other": {"max_input_tokens": 1_000}})
    view = view_under(Replayer(chat.store), last, what_if)
    assert (last.window, view.manifest.window) == (9_000, 2_000)
    assert view.manifest.request_tokens < last.request_tokens


def test_an_agents_critic_is_looked_up_where_the_plugin_is_made():
    with pytest.raises(PolicyError, match="critic"):
        ContextPackPlugin(policy=PackPolicy(agents={"clerk": {"acceptance": {"critic": "no-such-model"}}}))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"windw": 1}, "windw"), ({"max_input_tokens": 3}, "max_input_tokens"), ({"record": "off"}, "whole app"),
        ({"offload": {"mode": "off"}}, "whole app"), ({"sees": "mine"}, "sees"), ("reserch", "agents"),
    ],
)  # fmt: skip
def test_a_table_with_a_mistake_is_an_error(table, words):
    with pytest.raises(PolicyError, match=words):
        PackPolicy(agents={"travel": table})


@pytest.mark.parametrize("kind", ["sub-agent", "tool", "node"])
def test_an_agents_own_window_holds_wherever_it_runs(kind: str):
    policy = PackPolicy(max_input_tokens=9_000, agents={"travel": {"max_input_tokens": 5_000}})
    travel = agent("travel", "Booked.")
    if kind == "sub-agent":
        root = agent("clerk", call("transfer_to_agent", agent_name="travel"), sub_agents=[travel])
    elif kind == "tool":
        root = agent("clerk", call("travel", request="Book it."), "Done.", tools=[AgentTool(agent=travel)])
    else:
        clerk = agent("clerk", "On it.")
        root = Workflow(name="flow", edges=[(START, clerk), (clerk, travel)])  # type: ignore[assignment]
    chat = Chat(agent=root, policy=policy)
    chat.say("To Rome, please.")
    assert windows(chat) == {"clerk": 9_000, "travel": 5_000}


def weigh(item: str) -> str:
    """Weighs an item."""
    return f"{item} weighs 822 grams"


@pytest.mark.parametrize("sees", ["all", "own"])
def test_own_leaves_other_agents_turns_out_but_for_what_was_handed_over(sees: str):
    policy = PackPolicy(max_input_tokens=9_000, agents={"travel": {"sees": sees}})
    travel = agent("travel", "Rome is booked.", "Paris is booked.")
    script = [
        "A secret thought.",
        [call("weigh", item="anchor")],
        ["The trip goes to Rome in May.", call("transfer_to_agent", agent_name="travel")],
    ]
    clerk = agent("clerk", *script, tools=[weigh], sub_agents=[travel])
    chat = Chat(agent=clerk, policy=policy)
    chat.say("Hello.", "Plan my trip.", "And Paris?")
    seen = [sent.text for sent in chat.sent if sent.agent == "travel"]
    assert len(seen) == 2
    for text in seen:
        assert "The trip goes to Rome in May." in text, "it was handed over"
        assert "Hello." in text
        assert ("A secret thought." in text) == (sees == "all")
        assert ("822 grams" in text) == (sees == "all")
    assert "Rome is booked." in str(chat.sent[-1].contents)
    manifests = chat.manifests()
    assert not any(manifest.degradations for manifest in manifests), "a setting that holds is none"
    for manifest in manifests:
        assert (manifest.hidden_turns > 0) == (manifest.agent == "travel" and sees == "own")
    chat.replays()


def test_inspect_says_how_many_messages_of_other_agents_are_left_out(capsys, tmp_path):
    travel = agent("travel", "Rome is booked.")
    clerk = agent("clerk", "A secret thought.", call("transfer_to_agent", agent_name="travel"), sub_agents=[travel])
    policy = PackPolicy(agents={"travel": {"sees": "own"}})
    chat = Chat(agent=clerk, policy=policy, store=PackStore(str(tmp_path)))
    chat.say("Hello.", "Plan my trip.")
    first, _, last = chat.manifests()
    for manifest, words in ((last, f"{last.hidden_turns} messages of other agents left out"), (first, "")):
        with pytest.raises(SystemExit, match="0"):
            main(["inspect", manifest.pack_id, "--store", str(tmp_path)])
        text = capsys.readouterr().out
        assert words in text
        assert ("other agents left out" in text) == bool(words)
        assert "DEGRADATIONS" not in text


class AnthropicLlm(Scripted):
    """Claude, whose requests are marked; keeps whether they are."""

    model: str = "claude-sonnet-4-5"
    marks: list[bool] = []

    def see(self, llm_request: LlmRequest) -> None:
        super().see(llm_request)
        self.marks.append(llm_request.cache_config is not None)


@pytest.mark.parametrize(("app", "table"), [("auto", "off"), ("off", "auto")])
@pytest.mark.parametrize("kind", ["sub-agent", "tool"])
def test_an_agents_own_cache_setting_holds_and_the_apps_for_the_others(app: str, table: str, kind: str):
    models = {
        name: AnthropicLlm(script=script, sent=[], marks=[])
        for name, script in {
            "clerk": [call("weigh", item="anchor"), call("transfer_to_agent", agent_name="travel"), "Done."],
            "travel": [call("weigh", item="rope"), "Booked."],
        }.items()
    }
    travel = LlmAgent(name="travel", model=models["travel"], tools=[weigh])
    if kind == "tool":
        models["clerk"].script[1] = call("travel", request="Book it.")
        clerk = LlmAgent(name="clerk", model=models["clerk"], tools=[weigh, AgentTool(agent=travel)])
    else:
        clerk = LlmAgent(name="clerk", model=models["clerk"], tools=[weigh], sub_agents=[travel])
    chat = Chat(agent=clerk, policy=PackPolicy(cache=app, agents={"travel": {"cache": table}}))
    chat.say("To Rome, please.")
    assert models["clerk"].marks == [app == "auto"] * len(models["clerk"].sent)
    assert models["travel"].marks == [table == "auto"] * 2


@pytest.mark.parametrize(
    ("app", "tables", "writers"),
    [
        ([], {"planner": {"planners": ["planner"]}}, {"planner"}),
        (["planner"], {"clerk": {"planners": ["clerk"]}}, {"planner", "clerk"}),
        (["planner", "clerk"], {"clerk": {"planners": []}}, {"planner"}),
        (["clerk"], {"planner": {"max_input_tokens": 9_000}}, {"clerk"}),
    ],
)
def test_who_writes_the_plan_is_as_each_agents_own_table_says(app, tables, writers):
    names = ("planner", "clerk", "checker")
    flow = [agent(name, "ok") for name in names]
    root = Workflow(name="flow", edges=[(START, flow[0]), *itertools.pairwise(flow)])
    chat = Chat(agent=root, policy=PackPolicy(planners=app, agents=tables), state=planned())  # type: ignore[arg-type]
    chat.say("Go on.")
    for sent in chat.sent:
        assert ("Find the tax rate" not in sent.text) == (sent.agent in writers), sent.agent
    assert {sent.agent for sent in chat.sent} == {*names}


@DEPRECATED
@pytest.mark.parametrize("table", [["planner"], []])
def test_a_plan_that_a_named_planner_wrote_is_left_out_for_the_agents_whose_policy_names_it(table):
    def put(callback_context: CallbackContext) -> None:
        callback_context.state["plan"] = PLAN

    planner = agent("planner", json.dumps(PLAN), after_agent_callback=put)
    flow = [planner, agent("clerk", "Found."), agent("checker", "Checked.")]
    app = [] if table else ["planner"]
    policy = PackPolicy(planners=app, agents={"clerk": {"planners": table}})
    chat = Chat(agent=SequentialAgent(name="flow", sub_agents=flow), policy=policy)
    chat.say("Find the rate.")
    written = {sent.agent: '"acceptance"' in sent.text for sent in chat.sent}
    assert written == {"planner": False, "clerk": not table, "checker": not app}


# an agent that is off


READERS = ("read_artifact", "search_artifact")
LONG = " ".join(f"The house number {at} has {at * 7} windows." for at in range(300))


def moved(name: str) -> Any:
    return call("transfer_to_agent", agent_name=name)


def team(*script: Any, travel: tuple[Any, ...] = (), store: PackStore | None = None, **settings: Any) -> Chat:
    """A lead and, off, an agent for travel."""
    off = LlmAgent(
        name="travel", model=Scripted(script=list(travel), sent=[]), description="Travels.", tools=[big_file]
    )
    root = Scripted(script=list(script), sent=[])
    lead = LlmAgent(name="lead", model=root, instruction="You lead.", tools=[big_file], sub_agents=[off])
    policy = PackPolicy(max_input_tokens=8_000, agents={"travel": {"enabled": False}}, **settings)
    return Chat(agent=lead, policy=policy, **({"store": store} if store else {}))


def of_travel(chat: Chat) -> list[int]:
    return [at for at, sent in enumerate(chat.sent) if sent.agent == "travel"]


def test_its_requests_are_untouched_without_a_record_and_others_go_on():
    back = [LONG, call("big_file", name="rome"), "Rome is booked.", moved("lead")]
    chat = team(moved("travel"), "All is done.", "Bye.", travel=tuple(back))
    chat.say("To Rome. " + LONG, "And back. " + LONG, "Well?", "Thanks.")
    assert len(of_travel(chat)) >= 4
    for at in of_travel(chat):
        assert (chat.raw[at].wires, chat.raw[at].system) == (chat.sent[at].wires, chat.sent[at].system)
        assert chat.sent[at].readers == ()
    manifests = chat.manifests()
    assert {manifest.agent for manifest in manifests} == {"lead"}
    assert [manifest.number for manifest in manifests] == [*range(1, len(manifests) + 1)]
    last = chat.sent[-1]
    assert last.agent == "lead"
    assert "Rome is booked." in last.text
    assert "artifact://evidence/" in last.text, "what its tools gave is stored as what others' gave"
    assert not any(manifest.over_window for manifest in manifests)
    run("verify", store=chat.store)
    chat.replays()


def test_a_window_says_nothing_of_it(caplog: pytest.LogCaptureFixture):
    chat = Chat(policy=PackPolicy(enabled=False, max_input_tokens=1_000))
    chat.say(LONG * 20)
    assert "too small" not in caplog.text


def test_its_usage_counts_and_its_limits_hold():
    limits = {"agents": {"travel": {"total_tokens": 1_000}}, "on_budget": "stop"}
    chat = team(moved("travel"), travel=("one", "two"), limits=limits)
    chat.say("Hello.", "Go on.")
    report = chat.plugin.usage(app="shop", user="ann", session="s1")  # type: ignore[union-attr]
    used = {account.name: account.total.used for account in report.agents}
    assert used["travel"] > 0
    assert report.session.total.used == sum(used.values())
    assert chat.say("And this: " + LONG)[-1].error_code == "budget_exceeded"


def test_it_has_the_readers_where_an_address_can_be_seen():
    chat = team(call("big_file", name="rome"), "Look at artifact://evidence/0123456789abcdef.txt", moved("travel"))
    chat.say("Read it.", "Travel.")
    (at,) = of_travel(chat)
    assert chat.sent[at].readers == READERS
    assert chat.raw[at].wires == chat.sent[at].wires


def test_a_refusal_is_the_apps_own():
    chat = team(moved("travel"), travel=(ValueError("input is too long: 9000 tokens > 8000 maximum"),))
    with pytest.raises(ValueError, match="too long"):
        chat.say("Hello.")
    assert len(of_travel(chat)) == 1


def test_list_says_off(tmp_path: Any):
    chat = team(moved("travel"), travel=("one",), store=PackStore(tmp_path))
    chat.say("Hello.")
    assert "travel of shop is off (enabled = false)" in run("list", store=chat.store).stdout
    assert [value["off"] for value in told("list", store=chat.store)] == [["travel"]]


def test_agents_that_are_off_by_default_are_named_together(tmp_path: Any):
    policy = PackPolicy(enabled=False, agents={"lead": {"enabled": True}, "travel": {"sees": "own"}})
    assert policy.agents_off == ("*", "travel")
    chat = team("Done.", store=PackStore(str(tmp_path)))
    policy = PackPolicy(enabled=False, agents={"lead": {"enabled": True}})
    chat = Chat(agent=chat.agent, policy=policy, store=chat.store)
    chat.say("Hello.")
    assert "every other agent of shop is off" in run("list", store=chat.store).output
