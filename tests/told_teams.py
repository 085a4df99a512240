"""Generated sessions of teams whose conversations are cut: known texts are planted in messages, answers and results."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.adk.agents import LlmAgent
from plans import words
from scripted import Chat, Scripted, call

from aether_context import PackPolicy

AGENTS = ("desk", "finance", "shipping")
POLICIES: tuple[Mapping[str, Any], ...] = (
    {"max_input_tokens": 3_000},
    {"max_input_tokens": 4_000, "conversation": {"compact_at": 0.7, "compact_to": 0.3}},
    {"max_input_tokens": 5_000, "conversation": {"last_turns": 2, "summary_share": 0.05}},
    {"max_input_tokens": 4_500, "sees": "own"},
    {"max_input_tokens": 3_500, "retrieval": {"recall": False, "memory_k": 0}},
    {"max_input_tokens": 8_000, "agents": {"finance": {"max_input_tokens": 4_000}}},
)


@dataclass
class ToldTeam:
    """A session's messages and each agent's answers; ``planted`` are texts with the kind of the place that holds them
    first, and the agent that was told them."""

    seed: int
    turns: int = 16
    planted: dict[str, tuple[str, str]] = field(default_factory=dict)

    def play(self, policy: PackPolicy | None = None, **settings: Any) -> Chat:
        """Runs the session under its policy, or under another one."""
        chance, scripts = random.Random(self.seed), {name: list[Any]() for name in AGENTS}
        messages, speaker, results = list[str](), "desk", dict[str, str]()
        for turn in range(self.turns):
            code = f"{chance.choice('KLMN')}{chance.choice('QXZ')}-{self.seed}{turn:02}{chance.randrange(100):02}"
            named, answered, found = (f"the {noun} {code}{noun[0]}" for noun in ("crate", "pallet", "ledger"))
            messages.append(f"Turn {turn}: note {named} now. {words(chance.randrange(20, 90), f't{turn}w')}")
            if turn and chance.random() < 0.35:
                other = chance.choice([name for name in AGENTS if name != speaker])
                scripts[speaker].append(call("transfer_to_agent", agent_name=other))
                speaker = other
            self.planted[named], self.planted[answered] = ("message", speaker), ("message", speaker)
            if chance.random() < 0.6:
                page = f"p{turn}"
                rows = chance.choice((20, 60, 260))
                lines = [f"row {at}: {at * 37 % 997} of {words(6, f'r{turn}x{at}y')}" for at in range(rows)]
                lines[rows // 2] = f"row {rows // 2}: {found}"
                results[page] = "\n".join(lines)
                self.planted[found] = ("tool result", speaker)
                scripts[speaker].append(call("read_ledger", page=page))
            scripts[speaker].append(f"Done, {answered} is kept. {words(chance.randrange(20, 90), f'a{turn}w')}")

        def read_ledger(page: str) -> dict[str, Any]:
            """Reads a page of the ledger."""
            return {"result": results[page]}

        def agent(name: str, **more: Any) -> LlmAgent:
            model = Scripted(script=scripts[name], sent=[])
            return LlmAgent(name=name, description=f"Does {name}.", model=model, tools=[read_ledger], **more)

        root = agent("desk", sub_agents=[agent("finance"), agent("shipping")])
        policy = policy or PackPolicy(**POLICIES[self.seed % len(POLICIES)])
        chat = Chat(agent=root, policy=policy, **settings)
        chat.say(*messages)
        return chat
