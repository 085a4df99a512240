"""A session's state, written to by what an agent or an app calls."""

from __future__ import annotations

from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.sessions.state import State
from pydantic import BaseModel

from aether_context.errors import StateError


class Declared:
    """A session's state that refuses keys which the agent's schema lacks: ADK itself does so only after the tool.

    Args:
        dry: writes go to a copy, to see whether they would be refused.
    """

    def __init__(self, context: CallbackContext, *, dry: bool = False) -> None:
        self._state: State | dict[str, Any] = context.state.to_dict() if dry else context.state
        agent = context.get_invocation_context().agent
        self._schema: type[BaseModel] | None = None
        while agent is not None and self._schema is None:
            self._schema = agent.state_schema
            agent = getattr(agent, "parent_agent", None)

    def get(self, key: str, default: Any = None, /) -> Any:
        return self._state.get(key, default)

    def __setitem__(self, key: str, value: Any, /) -> None:
        if self._schema is not None and key not in self._schema.model_fields:
            raise StateError(f"the application has to declare {key!r} in the agent's state_schema first")
        self._state[key] = value
