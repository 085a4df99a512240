"""The tool by which a model asks for tools that its request does not declare."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from aether_context.adk.request.reader import ESSENTIAL_MARK
from aether_context.pack import Pack, Tool
from aether_context.packing.tools import FIND_TOOLS
from aether_context.retrieval import tool_scores

_MOST_FOUND = 5
_RESTRICTED = frozenset({types.FunctionCallingConfigMode.NONE, types.FunctionCallingConfigMode.ANY})


class FindTools(BaseTool):
    """Finds tools among all that an agent has. What it answers stays in the session, and the next pack declares it.

    Args:
        tools: the agent's tools, as they would be declared.
        declared: names of those that are.
        redact: patterns of what is masked before anything is compared.
    """

    def __init__(self, tools: Sequence[Tool], declared: frozenset[str], redact: tuple[str, ...] = ()) -> None:
        declaration = json.loads(FIND_TOOLS.wire)
        super().__init__(
            name=FIND_TOOLS.name, description=declaration["description"], custom_metadata={ESSENTIAL_MARK: True}
        )
        self._declaration = types.FunctionDeclaration.model_validate(declaration)
        self._tools = tuple(tools)
        self._declared = declared
        self._redact = redact

    @property
    def declaration(self) -> types.FunctionDeclaration:
        return self._declaration

    def _get_declaration(self) -> types.FunctionDeclaration:
        return self._declaration

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """``{"found": [{"name": …, "does": …}, …]}``, best first; ``does`` holds signature and purpose."""
        query = args.get("query")
        if not isinstance(query, str) or not query.strip():
            return {"error": "say in query what the tool should do"}
        try:
            return await asyncio.to_thread(self._find, query)
        except Exception as error:
            return {"error": f"no tools could be looked up: {type(error).__name__}"}

    def _find(self, query: str) -> dict[str, Any]:
        scores = tool_scores(self._tools, query, self._redact)
        hidden = [tool for tool in self._tools if tool.name not in self._declared]
        named = [tool for tool in hidden if tool.name == query.strip()]
        best = [tool for tool in sorted(hidden, key=lambda one: -scores[one.name]) if scores[tool.name] > 0]
        found = list(dict.fromkeys([*named, *best]))[:_MOST_FOUND]
        if not found:
            return {"found": [], "note": "No other tool does this. Say it in other words, or use the tools you have."}
        return {"found": [{"name": tool.name, "does": tool.signature} for tool in found]}


def can_find(request: LlmRequest) -> bool:
    """Whether a request leaves the model free to call a tool that is added to it."""
    if request.config is None:
        return False
    held = request.config.tool_config
    calling = held.function_calling_config if held is not None else None
    return calling is None or (calling.mode not in _RESTRICTED and not calling.allowed_function_names)


def finder(pack: Pack, redact: tuple[str, ...]) -> FindTools | None:
    """The tool that a pack declares beside the host's own, None where it declares none."""
    if pack.scope_mode != "relevant":
        return None
    return FindTools(pack.source.request.tools, frozenset(tool.name for tool in pack.tools), redact)
