"""The agent that asks for a repair of an answer that is not accepted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types
from pydantic import Field

from aether_context.adk.acceptance import ACCEPTANCE, REPAIR
from aether_context.pack import METADATA, noted


class AcceptanceGate(BaseAgent):
    """Stands behind a worker in a ``LoopAgent``: ends the loop once the answer is accepted, else says what is missing.

        LoopAgent(name="…", sub_agents=[worker, AcceptanceGate(name="gate")])

    It reads the verdict that the plugin left with the last answer of this invocation. What it says is appended to the
    conversation as the user's, so that the cached prefix of the worker's request stays whole, and that it is an
    instruction: what another agent says reaches the worker as a quote that ADK forbids it to follow.
    """

    most_repairs: int = Field(default=2, ge=0)
    """Repairs that it asks for in one invocation at most; after them the loop ends with the answer as it is."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        here = [event for event in ctx.session.events if event.invocation_id == ctx.invocation_id]
        repairs = sum(noted(event).get(REPAIR) == self.name for event in here)
        missing: Sequence[object] = ()
        for event in here:
            verdict = noted(event).get(ACCEPTANCE)
            if isinstance(verdict, Mapping):
                missing = verdict.get("missing") or ()
        answer = Event(invocation_id=ctx.invocation_id, author=self.name, branch=ctx.branch)
        if not missing or repairs >= self.most_repairs:
            answer.actions = EventActions(escalate=True)
        else:
            lines = "".join(f"- {line}\n" for line in missing)
            text = f"The answer is not accepted yet. Missing:\n{lines}Answer again in full, with what is missing."
            answer.author, answer.custom_metadata = "user", {METADATA: {REPAIR: self.name}}
            answer.content = types.UserContent(parts=[types.Part(text=text)])
        yield answer
