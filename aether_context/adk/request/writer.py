"""A pack as ADK's request. New contents and parts are made; nothing that a session owns is ever assigned into."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel

from aether_context.adk.call import ESSENTIAL_MARK
from aether_context.pack import Outgoing, Pack, Part, Tool
from aether_context.packing.tools import FIND_TOOLS
from aether_context.retrieval import tool_scores


def write(pack: Pack, request: LlmRequest, contents: list[types.Content], redact: tuple[str, ...] = ()) -> None:
    """Puts a pack into a request, all of it or (where making it fails) nothing.

    Args:
        contents: ADK's contents, in the order of the pack's own input.
        redact: patterns of what is masked before tools are compared.
    """
    # Declared last, besides the host's own; tools that are left out then can still be called.
    declared = frozenset(tool.name for tool in pack.tools)
    finder = FindTools(pack.source.request.tools, declared, redact) if pack.scope_mode == "relevant" else None
    made = _contents(pack, contents)
    trimmed = {
        tool.name: types.FunctionDeclaration.model_validate(json.loads(tool.wire))
        for tool in pack.tools
        if tool.name in pack.epoch.trimmed
    }
    config = request.config
    narrowed = None
    if config is not None and (pack.tools_left_out or finder is not None or trimmed):
        narrowed = _tools(pack, request, config, finder, trimmed)
    request.contents = made
    if config is None:
        return
    held = config.system_instruction
    if isinstance(held, (str, type(None))) and pack.system != (held or ""):
        config.system_instruction = pack.system
    if narrowed is not None:
        config.tools, request.tools_dict = narrowed
    if pack.allowed_tools is not None:
        mode = types.FunctionCallingConfigMode.VALIDATED
        calling = types.FunctionCallingConfig(mode=mode, allowed_function_names=list(pack.allowed_tools))
        config.tool_config = types.ToolConfig(function_calling_config=calling)


def _contents(pack: Pack, contents: list[types.Content]) -> list[types.Content]:
    whole = len(pack.contents) == len(contents) and pack.contents[:1] and pack.contents[0].origin == 0
    if not whole:
        return [
            contents[one.origin] if one.content is one.raw and one.origin >= 0 else _content(pack, one, contents)
            for one in pack.contents
        ]
    made = list(contents)
    for at in pack.made:
        made[at] = _content(pack, pack.contents[at], contents)
    return made


def _content(pack: Pack, one: Outgoing, contents: list[types.Content]) -> types.Content:
    if one.members:
        parts = [
            _part(pack, contents, origin, at, wanted)
            for (origin, at), wanted in zip(one.members, one.content.parts, strict=True)
        ]
        return types.Content(role=one.content.role, parts=parts)
    if one.origin < 0:
        return types.Content(role=one.content.role, parts=[types.Part(text=part.text) for part in one.content.parts])
    raw = contents[one.origin]
    if one.outcome == "verbatim":
        return raw
    if one.outcome == "payload":
        others = [part for part in raw.parts or () if not _is_text(part)]
        return types.Content(role=raw.role, parts=[types.Part(text=one.content.parts[0].text), *others])
    parts = [_part(pack, contents, one.origin, at, wanted) for at, wanted in enumerate(one.content.parts)]
    return types.Content(role=raw.role, parts=parts)


def _part(pack: Pack, contents: list[types.Content], origin: int, at: int, wanted: Part) -> types.Part:
    """A part as it is sent: the host's own where it is that, else one made from it."""
    if origin < 0 or at < 0:
        return types.Part(text=wanted.text)
    part = (contents[origin].parts or [])[at]
    if pack.source.request.contents[origin].parts[at].wire == wanted.wire:
        return part
    wire, before = json.loads(wanted.wire), json.loads(pack.source.request.contents[origin].parts[at].wire)
    return _changed(part, wire, before)


def _changed(part: types.Part, wire: dict[str, Any], before: dict[str, Any]) -> types.Part:
    """A copy of a part with what its wire form says otherwise; whatever else it holds, signatures too, is carried.

    Where the wire form is of another kind, or lacks something that the part holds, only its text is left.
    """
    if wire.keys() != before.keys():
        return types.Part(text=wire.get("text", ""))
    update: dict[str, Any] = {}
    for name, value in wire.items():
        if value == before[name]:
            continue
        held = getattr(part, name)
        if not isinstance(held, BaseModel):
            update[name] = value
            continue
        inside = {key: one for key, one in value.items() if one != before[name].get(key)}
        gone = dict.fromkeys(before[name].keys() - value.keys())
        update[name] = held.model_copy(update=inside | gone)
    return part.model_copy(update=update)


def _is_text(part: types.Part) -> bool:
    """Whether a part is nothing but text, as `aether_context.conversation.content_json.part_of` reads it."""
    held = {name for name, value in part.__dict__.items() if value is not None}
    return part.text is not None and not part.thought and held <= {"text", "thought", "thought_signature"}


def _tools(
    pack: Pack,
    request: LlmRequest,
    config: types.GenerateContentConfig,
    finder: FindTools | None,
    trimmed: dict[str, types.FunctionDeclaration],
) -> tuple[types.ToolListUnion, dict[str, BaseTool]]:
    """What is declared and what can be called; ``trimmed`` are the declarations that are sent in a shorter form."""
    tools: types.ToolListUnion = []
    for tool in config.tools or ():
        if not isinstance(tool, types.Tool) or not tool.function_declarations:
            tools.append(tool)
            continue
        inside = [
            trimmed.get(declared.name or "", declared)
            for declared in tool.function_declarations
            if declared.name not in pack.tools_left_out
        ]
        narrowed = tool.model_copy(update={"function_declarations": inside or None})
        if any(value is not None for value in narrowed.__dict__.values()):
            tools.append(narrowed)
    if finder is None:
        return tools, {name: tool for name, tool in request.tools_dict.items() if name not in pack.tools_left_out}
    # Behind the last of the other declarations.
    for at in range(len(tools) - 1, -1, -1):
        last = tools[at]
        if isinstance(last, types.Tool) and last.function_declarations:
            declarations = [*last.function_declarations, finder.declaration]
            tools[at] = last.model_copy(update={"function_declarations": declarations})
            break
    else:
        tools.append(types.Tool(function_declarations=[finder.declaration]))
    return tools, {**request.tools_dict, finder.name: finder}


# The tool by which a model asks for tools that its request does not declare.

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
