"""Users, sessions and agents that run at once or inside one another have packs and state of their own."""

from __future__ import annotations

from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from plans import aether, cached_input_costs, loop, planned, small, words
from scripted import Chat, Scripted, call, grow, look_up, state_of


def tool_family(rounds: int) -> tuple[Chat, Scripted]:
    child = Scripted(sent=[])
    helper = LlmAgent(name="helper", model=child, description="Helps.")
    parent = Scripted(
        script=[one for at in range(rounds) for one in (call("helper", request=f"part {at}"), f"done {at}")], sent=[]
    )
    boss = LlmAgent(name="boss", model=parent, tools=[AgentTool(helper)])
    return Chat(agent=boss, state=planned()), child


@cached_input_costs(0.001)
def test_an_agent_tools_child_gets_its_own_pack_and_leaves_the_parents_epoch_alone() -> None:
    chat, child = tool_family(3)
    chat.say("go", "on", "and on")
    assert [one.human() for one in child.sent] == [f"part {at}" for at in range(3)], "the plan is the caller's"
    assert grow([one for one in chat.sent if one.agent == "boss"])
    manifests = chat.manifests()
    assert {manifest.session for manifest in manifests if manifest.agent == "boss"} == {"s1"}
    helpers = [manifest for manifest in manifests if manifest.agent == "helper"]
    assert len({manifest.session for manifest in helpers}) == 3
    assert all(manifest.epoch.number == 1 for manifest in helpers)
    chat.replays()


def test_children_of_the_same_name_leave_the_parents_cut_alone() -> None:
    child = Scripted(script=[*loop(12), "found"] * 8, sent=[])
    twin = LlmAgent(name="clerk", model=child, description="Helps.", tools=[look_up])
    asked = [call("clerk", request=words(100, f"part{at}")) for at in range(2)]
    chat = Chat(script=[*loop(6), asked, "done"] * 4, tools=[look_up, AgentTool(twin)], policy=small(3_000))
    chat.say(*(f"go {at}" for at in range(4)))
    manifests = sorted(chat.manifests(), key=lambda manifest: manifest.last_event_time)
    own = [manifest.epoch.number for manifest in manifests if manifest.session == "s1"]
    children = [manifest.epoch.number for manifest in manifests if manifest.session != "s1"]
    assert own == sorted(own)
    assert min(own[-1], max(children)) > 1
    values = aether(state_of(chat)).values()
    assert {value["session"] for value in values if isinstance(value, dict) and "session" in value} == {"s1"}
    chat.replays()
