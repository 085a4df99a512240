"""A scripted session of thirty turns in a small window, in which known texts are planted.

It has cuts, an offloaded result, an expired note, a text that can be masked, a sub-agent to which the work is handed
over, and an agent that runs as a tool.
"""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.tools.agent_tool import AgentTool
from plans import words
from scripted import Chat, Memories, Scripted, call, new_store, remembered

from aether_context import PackPolicy, PackStore

CARD = "4111 1111 1111 1111"


def tide_table(harbour: str) -> dict[str, Any]:
    """Gives a harbour's table of tides, which is long."""
    rows = [f"hour {hour}: {harbour} level {hour * 37 % 1009}" for hour in range(500)]
    return {"result": "\n".join(rows)}


def gate_code(gate: str) -> dict[str, Any]:
    """Gives the code of a gate."""
    return {"code": f"{gate} opens with QX-4471"}


def harbour(policy: PackPolicy | None = None, store: PackStore | None = None, piers: int = 22) -> Chat:
    """The session, told to its end: so many of its messages are of piers."""
    pelicans = Scripted(script=["Pelicans nest at Lake Orrin."], sent=[])
    ornithologist = LlmAgent(name="ornithologist", model=pelicans, description="Knows birds.")
    bills = Scripted(script=["Invoice 88-12 was paid on Tuesday."], sent=[])
    billing = LlmAgent(name="billing", model=bills, description="Knows bills.")
    clerk = Scripted(
        script=[
            "Noted, the blue kayak is reserved for Thora.",
            call("tide_table", harbour="Skagen"),
            "The tides are known.",
            call("gate_code", gate="north"),
            "The north gate's code is noted.",
            call("ornithologist", request="find where pelicans nest"),
            "They nest at Lake Orrin.",
            "I keep your card in mind.",
            call("transfer_to_agent", agent_name="billing"),
        ],
        sent=[],
    )
    agent = LlmAgent(
        name="clerk",
        model=clerk,
        instruction="You help at the harbour of Skagen.",
        tools=[tide_table, gate_code, AgentTool(ornithologist)],
        sub_agents=[billing],
    )
    chat = Chat(
        store=store or new_store(),
        agent=agent,
        policy=policy or PackPolicy.load("chat", max_input_tokens=4_000),
        memory=Memories(
            remembered("the harbour master of Skagen is Ingrid Vale"),
            remembered("Thora collects Byzantine coins"),
        ),
        state={
            "knowledge": {
                "notes": [
                    {"text": "The slipway is closed for repairs.", "expires": 1_000_000_000},
                    {"text": "The office opens at half past six."},
                ]
            }
        },
    )
    chat.say(
        "Please reserve the blue kayak for Thora.",
        "What are the tides in Skagen?",
        "What is the code of the north gate?",
        "Where do pelicans nest?",
        f"My card is {CARD}, keep it in mind.",
        "Was invoice 88-12 paid?",
    )
    clerk.script = [f"Answer {at}: {words(90, f'answer{at}w')}" for at in range(12)]
    bills.script = [f"Answer {at}: {words(90, f'bill{at}w')}" for at in range(24)]
    chat.say(*(f"Tell me of pier {at}: {words(60, f'pier{at}w')}" for at in range(piers)))
    return chat
