"""A pack as ADK's request. New contents and parts are made; nothing that a session owns is ever assigned into."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

from google.adk.agents.context_cache_config import ContextCacheConfig
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import BaseModel

from aether_context.adk.call import ESSENTIAL_MARK, ModelCall
from aether_context.adk.request.reader import declares
from aether_context.adk.windows import ServedModel
from aether_context.pack import Content, Outgoing, Pack, Part, Tool
from aether_context.packing.tools import FIND_TOOLS, MOST_FOUND
from aether_context.tokens.model_limits import bare_model_name, provider_of

_ESCAPED_SURROGATE = "\\\\ud"
"""The beginning of an escape for a lone surrogate, in the JSON of the text that has it."""


def write(pack: Pack, request: LlmRequest, contents: list[types.Content], redact: tuple[str, ...] = ()) -> None:
    """Puts a pack into a request, all of it or (where making it fails) nothing.

    Args:
        contents: ADK's contents, in the order of the pack's own input.
        redact: patterns of what is masked before tools are compared.
    """
    new_contents, declared = _sent_contents(pack, contents), _declared(pack, request, redact)
    request.contents, config = new_contents, request.config
    if config is None:
        return
    system = config.system_instruction
    if isinstance(system, (str, type(None))) and pack.system != (system or ""):
        config.system_instruction = pack.system
    if declared is not None:
        config.tools, request.tools_dict = declared
        if config.tool_config is not None and not declares(config.tools):  # which is refused without a function
            config.tool_config = config.tool_config.model_copy(update={"function_calling_config": None})
    if pack.tools.allowed is not None:
        calling = types.FunctionCallingConfig(
            mode=types.FunctionCallingConfigMode.VALIDATED, allowed_function_names=list(pack.tools.allowed)
        )
        config.tool_config = types.ToolConfig(function_calling_config=calling)


def _sent_contents(pack: Pack, contents: list[types.Content]) -> list[types.Content]:
    """A pack's contents, those that it joins as one."""
    new_contents = list[types.Content]()
    for item in pack.contents:
        whole = item.form == "whole" and item.origin >= 0
        content = contents[item.origin] if whole else _content(pack, item, contents)
        if item.joined:
            previous = new_contents.pop()
            content = types.Content(role=previous.role, parts=[*(previous.parts or ()), *(content.parts or ())])
        new_contents.append(content)
    return new_contents


def _declared(
    pack: Pack, request: LlmRequest, redact: tuple[str, ...]
) -> tuple[types.ToolListUnion, dict[str, BaseTool]] | None:
    """The tools that a pack declares, and those that can be called; None where they are the request's own.

    A tool that finds others is declared last, besides the host's own, and behind it what was found or called later.
    What is left out then can still be called. What was found gives way to what is found, so it can be found again.
    """
    scope, config = pack.tools, request.config
    stay = frozenset(name for name, why in scope.kept.items() if why not in ("found", "used"))
    finder = FindTools(pack.source.request.tools, stay, redact) if scope.mode == "fitting" else None
    replaced = {
        tool.name: types.FunctionDeclaration.model_validate(json.loads(tool.wire))
        for tool in scope.sent
        if tool.name in pack.epoch.trimmed or _ESCAPED_SURROGATE in tool.wire
    }
    if config is None or not (scope.left_out or finder is not None or replaced):
        return None
    names = [tool.name for tool in scope.sent]
    names_behind = names[names.index(finder.name) + 1 :] if finder is not None else ()
    behind: dict[str, types.FunctionDeclaration | None] = dict.fromkeys(names_behind)
    tools: types.ToolListUnion = []
    for tool in config.tools or []:
        if isinstance(tool, types.Tool) and tool.function_declarations:
            declarations = [
                replaced.get(declaration.name or "", declaration)
                for declaration in tool.function_declarations
                if declaration.name not in scope.left_out
            ]
            behind |= {declaration.name: declaration for declaration in declarations if declaration.name in behind}
            inside = [declaration for declaration in declarations if declaration.name not in behind]
            tool = tool.model_copy(update={"function_declarations": inside or None})
            if all(value is None for value in tool.__dict__.values()):
                continue
        tools.append(tool)
    if finder is not None:
        _declare_last(tools, [finder.declaration, *filter(None, behind.values())])
        return tools, {**request.tools_dict, finder.name: finder}
    # A model that knows a tool of this package from earlier steps, or by its instruction, may still call it.
    callable_names = {tool.name for tool in pack.source.request.tools if tool.essential}
    uncallable = scope.left_out.keys() - callable_names
    return tools, {name: tool for name, tool in request.tools_dict.items() if name not in uncallable}


def _declare_last(tools: types.ToolListUnion, declarations: list[types.FunctionDeclaration]) -> None:
    """Adds declarations behind the last of others."""
    for at in range(len(tools) - 1, -1, -1):
        last = tools[at]
        if isinstance(last, types.Tool) and last.function_declarations:
            joined = [*last.function_declarations, *declarations]
            tools[at] = last.model_copy(update={"function_declarations": joined})
            return
    tools.append(types.Tool(function_declarations=declarations))


def _content(pack: Pack, item: Outgoing, contents: list[types.Content]) -> types.Content:
    """A content as it is sent: parts of the host's own, with what their wire forms say otherwise, and new texts.

    Whatever else a part holds, signatures too, is carried.
    """
    frozen_contents = pack.source.request.contents
    members = item.members or tuple((item.origin, at) for at in range(len(item.content.parts)))
    parts = [
        types.Part(text=new_part.text)
        if origin < 0 or at < 0
        else _with_changes((contents[origin].parts or [])[at], frozen_contents[origin].parts[at], new_part)
        for (origin, at), new_part in zip(members, item.content.parts, strict=True)
    ]
    return types.Content(role=item.content.role or None, parts=parts)


def rewritten(raw: types.Content, old: Content, new: Content) -> types.Content:
    """A content of the host with what its wire form says otherwise than it did; itself where that is nothing."""
    if old.wire == new.wire:
        return raw
    parts = zip(raw.parts or (), old.parts, new.parts, strict=True)
    return types.Content(role=raw.role, parts=[_with_changes(*versions) for versions in parts])


def _with_changes(part: types.Part, old: Part, new: Part) -> types.Part:
    """A copy of a part with what its wire form says otherwise; only its text where that is of another kind, or lacks
    something that the part holds."""
    if old.wire == new.wire:
        return part
    wire, old_wire = json.loads(new.wire), json.loads(old.wire)
    if wire.keys() != old_wire.keys():
        return types.Part(text=wire.get("text", ""))
    update: dict[str, Any] = {}
    for name, value in wire.items():
        if value == old_wire[name]:
            continue
        field = getattr(part, name)
        if name == "thought_signature":
            value = value.encode()
        elif isinstance(field, BaseModel):
            changes = {key: item for key, item in value.items() if item != old_wire[name].get(key)}
            value = field.model_copy(update=changes | dict.fromkeys(old_wire[name].keys() - value.keys()))
        update[name] = value
    return part.model_copy(update=update)


# Claude's prompt cache, which holds nothing that a request does not mark. ADK marks the ends of declarations, system
# instruction and conversation where a request has a cache configuration. For Gemini the same configuration makes an
# explicit cache that is billed by the hour, so only requests that no other model can get have one.

_MARKING = frozenset({"", "anthropic", "bedrock", "vertex_ai", "openrouter", "azure_ai", "databricks"})
"""LiteLLM providers that pass the marks of a request on to Claude."""


def mark_prefix(call: ModelCall, models: Sequence[ServedModel]) -> None:
    """Lets ADK mark a request of Claude's, unless the app has a configuration of its own or the policy says no.

    To write a cache costs a quarter of the input price, which one call alone never earns back: an agent without tools
    marks nothing in a session that no agent has answered yet.
    """
    request, invocation = call.request, call.invocation
    if call.policy.cache == "off" or request.cache_config is not None or invocation.context_cache_config is not None:
        return
    authors = (event.author for event in call.context.session.events if event.content is not None)
    if not request.tools_dict and all(author == "user" for author in authors):
        return
    for model in models:
        is_claude = bare_model_name(model.name).startswith("claude") and provider_of(model.name) in _MARKING
        if "AnthropicLlm" not in model.kinds and not ("LiteLlm" in model.kinds and is_claude):
            return
    request.cache_config = ContextCacheConfig()


_UPLOADING = frozenset({"openai", "azure"})
"""LiteLLM providers for which ADK uploads documents."""
_INLINE = ("text/", "audio/", "image/", "video/")
_UPLOADED = (
    "{} is uploaded anew at every call, under a new name, so no cache serves what comes behind it: upload it once"
)


def uploaded_anew(request: LlmRequest, models: Sequence[ServedModel]) -> str:
    """Names the content that ends the common prefix at the provider, where a request's own contents do not show it;
    else empty.

    ADK's ``LiteLlm`` uploads a document that stands in a message, and names the file that this call made.
    """
    if not any("LiteLlm" in model.kinds and provider_of(model.name) in _UPLOADING for model in models):
        return ""
    parts = (part for content in request.contents for part in content.parts or ())
    kinds = (part.inline_data.mime_type or "" for part in parts if part.inline_data is not None)
    return next((_UPLOADED.format(kind) for kind in kinds if kind and not kind.startswith(_INLINE)), "")


class FindTools(BaseTool):
    """Finds tools among all that an agent has. What it answers stays in the session, and the next pack declares it.

    Args:
        tools: the agent's tools, as they would be declared.
        declared: names of those that are, and stay so whatever is found.
        redact: patterns of what is masked before anything is compared.
    """

    def __init__(self, tools: Sequence[Tool], declared: frozenset[str], redact: tuple[str, ...] = ()) -> None:
        declaration = json.loads(FIND_TOOLS.wire)
        super().__init__(
            name=FIND_TOOLS.name, description=declaration["description"], custom_metadata={ESSENTIAL_MARK: True}
        )
        self.declaration = types.FunctionDeclaration.model_validate(declaration)
        self._tools = tuple(tools)
        self._declared = declared
        self._redact = redact

    def _get_declaration(self) -> types.FunctionDeclaration:
        return self.declaration

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        """``{"found": [{"name": …, "does": …}, …]}``, best first; ``does`` holds signature and purpose. Where no score
        says anything, as of a query in another language than the descriptions, all names instead."""
        query = args.get("query")
        if not isinstance(query, str) or not query.strip():
            return {"error": "say in query what the tool should do"}
        try:
            return await asyncio.to_thread(self._find, query)
        except Exception as error:
            return {"error": f"no tools could be looked up: {type(error).__name__}"}

    def _find(self, query: str) -> dict[str, Any]:
        from aether_context.retrieval import tool_scores

        scores = tool_scores(self._tools, query, self._redact)
        hidden = [tool for tool in self._tools if tool.name not in self._declared]
        words = {query.strip(), *re.findall(r"[\w.:-]+", query)}
        named = [tool for tool in hidden if tool.name in words]
        best = [tool for tool in sorted(hidden, key=lambda tool: -scores[tool.name]) if scores[tool.name] > 0]
        tools = list(dict.fromkeys([*named, *best]))[:MOST_FOUND]
        if not any(scores.values()) and hidden and not named:
            note = "Nothing in their descriptions has these words. Ask again with the names of those that fit."
            return {"found": [], "all_tools": [tool.name for tool in hidden], "note": note}
        if not tools:
            return {"found": [], "note": "No other tool does this. Say it in other words, or use the tools you have."}
        return {"found": [{"name": tool.name, "does": tool.signature} for tool in tools]}
