"""The choice of declarations: which are sent, and which find room where all are too many."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, takewhile

from aether_context.canonical import JSON, canonical_json, hash_text
from aether_context.pack import Content, Keep, PackInput, Reason, Tool, ToolSelection
from aether_context.packing.draft import Draft
from aether_context.plans.spellings import folded
from aether_context.policy import ToolSettings

_ASIDE = frozenset(["list_steps", "add_step", "claim_step", "release_step", "add_note", "record_decision"])
_ASIDE |= {"record_entity", "remember", "remember_note", "correct_memory", "cut_now"}
"""Tools of this package that are declared beside a step's tools only where the step, or the policy, names them."""
_LEAST_TOOLS, _MOST_SHARE = 10, 0.2
"""So many tools are declared at least; an agent with no more of them has all declared. Others have this share of the
input budget, and what a session has found or called of the rest has as much again."""
MOST_FOUND = 5
"""Tools that one look for tools finds, and those of the rest that are declared at least."""


_WIRE = canonical_json(
    {
        "name": "find_tools",
        "description": "Finds more tools: there are others that are not declared. "
        "The tools found can be called from your next answer on.",
        "parameters": {
            "type": "OBJECT",
            "properties": {"query": {"type": "STRING", "description": "What the tool should do, in a few words."}},
            "required": ["query"],
        },
    }
)
FIND_TOOLS = Tool(name="find_tools", signature="find_tools(query: string)", wire=_WIRE, digest=hash_text(_WIRE))
"""The tool by which a model asks for tools that are not declared; sent wherever there are any."""


def _fitting(draft: Draft) -> ToolSelection | None:
    """The declarations that find room, in the host's order, then the tool that finds the others, and what the session
    has found or called of those; None where all are declared.

    The first part follows from the declarations and the policy alone, so that all sessions of an agent share the head
    of their prompts. The last part grows up to its share; what was named longest ago leaves it then.
    """
    source, settings, counter = draft.input, draft.policy.tools, draft.counter
    tools = source.request.tools
    open_tools = [tool.name for tool in tools if not tool.essential]
    if not source.host.can_find or len(open_tools) <= _LEAST_TOOLS:
        return None
    costs = dict(zip((tool.name for tool in tools), counter.tools(tools), strict=True))
    room = int(_MOST_SHARE * draft.input_budget)
    if sum(costs[name] for name in open_tools) <= room:
        return None
    if any(tool.name == FIND_TOOLS.name for tool in tools):
        return ToolSelection(
            sent=tools, problem=f"tool scope: the agent has a {FIND_TOOLS.name} of its own, so all are declared"
        )
    reasons: dict[str, Keep] = {tool.name: "essential" for tool in tools if tool.essential}
    always = {*settings.always, *source.host.forced}
    pinned = [name for name in open_tools if name in always]
    declared_names = dict.fromkeys(pinned)
    room -= sum(counter.tools((FIND_TOOLS,))) + sum(costs[name] for name in pinned)
    for name in open_tools:
        if name not in declared_names and (len(declared_names) < _LEAST_TOOLS or costs[name] <= room):
            declared_names[name] = None
            room -= costs[name]
    reasons |= {name: "pinned" if name in always else "fits" for name in declared_names}
    contents = source.request.contents
    earlier = {name for name, why in source.epoch.tools.items() if why in ("found", "used")}
    used = {part.name for content in contents for part in content.calls}
    used |= {name for name, why in source.epoch.tools.items() if why == "used"}
    # By first appearance: one that is inserted would end the prefix before those that are declared already. Stores sort
    # what the state holds, so that what the conversation no longer shows comes first, in the host's order.
    mentions = [
        name for content in contents for name in (*_found_tool_names(content), *(part.name for part in content.calls))
    ]
    places = {name: at for at, name in enumerate(dict.fromkeys(mentions))}
    # Without an end, those of a long session would take the window: 120 tools, each found once, took 14,000 of 8,000.
    last_places = {name: at for at, name in enumerate(mentions)}
    later = [tool for tool in tools if tool.name not in reasons and (tool.name in earlier or tool.name in places)]
    later.sort(key=lambda tool: (-last_places.get(tool.name, -1), tool.name not in used))
    ends = accumulate(costs[tool.name] for tool in later)
    room = int(_MOST_SHARE * draft.input_budget)
    # What the model was told last, and has not answered to, it was promised.
    unanswered = takewhile(lambda content: content.role != "model", reversed(contents))
    promised = {name for content in unanswered for name in _found_tool_names(content)}
    stay = {
        tool.name
        for at, (tool, end) in enumerate(zip(later, ends, strict=True))
        if at < MOST_FOUND or end <= room or tool.name in promised
    }
    behind = sorted((tool for tool in tools if tool.name in stay), key=lambda tool: places.get(tool.name, -1))
    reasons |= {tool.name: "used" if tool.name in used else "found" for tool in behind}
    return ToolSelection(
        sent=(*(tool for tool in tools if tool.name in reasons and tool not in behind), FIND_TOOLS, *behind),
        mode="fitting",
        left_out={tool.name: "over_allocation" for tool in tools if tool.name not in reasons},
        kept=reasons,
    )


def _found_tool_names(content: Content) -> Iterator[str]:
    """The names that a model was told when it asked for tools.

    They are read off the conversation, so that a worker that takes over, and a replay, declare the same tools.
    """
    for part in content.responses:
        answer = json.loads(part.text) if part.name == FIND_TOOLS.name else None
        listed = answer.get("found") if isinstance(answer, dict) else None
        for tool in listed if isinstance(listed, list) else ():
            if isinstance(tool, dict) and isinstance(tool.get("name"), str):
                yield tool["name"]


_EXAMPLE = re.compile(r"(?i)examples?\b[^:\n]{0,60}:|e\.g\.|for example\b|```")
"""Where an example begins: the word alone begins one where a colon follows on its line."""
_MOST_NAMED, _LONGEST_NAME = 8, 60
_RECORDS = re.compile(r"(?i)(?:add|keep|record|save|store)s?[ _]?[^.():]{0,40}evidence")
"""Words of a tool that records evidence, in its name or its description."""
_DESCRIPTION = 200
_ARGUMENT = 80


def select_tools(draft: Draft) -> None:
    """Chooses the declarations that are sent. What an epoch has trimmed stays trimmed."""
    source = draft.input
    scope = _narrowed(source, draft.policy.tools)
    unnamed = scope.mode == "off" and not scope.problem and draft.policy.tools.scope == "auto"
    if unnamed and not source.host.passthrough_reason:
        scope = _fitting(draft) or scope
    # A declaration that grew back would break the cached prefix a second time.
    names = frozenset(tool.name for tool in scope.sent) & frozenset(source.epoch.trimmed)
    if names:
        tools = tuple(trimmed(tool) if tool.name in names else tool for tool in scope.sent)
        scope = replace(scope, sent=tools, trimmed=names)
    draft.tools = scope
    if not any(_RECORDS.search(tool.signature) for tool in scope.sent):
        role_lines = tuple(line for line in draft.step.role_lines if not line.startswith("Record evidence"))
        draft.step = replace(draft.step, role_lines=role_lines)


def _narrowed(source: PackInput, settings: ToolSettings) -> ToolSelection:
    """Chooses the declarations that are sent.

    A step that names tools has no others, even where none of the names is known: then only the essential tools, those
    of ``tools.always`` and those that the request forces are left. The other way, a step that may only read would be
    handed the tool that deletes, over a slip in a name. Of this package's own tools a step keeps those that complete
    it, record evidence and read it.
    """
    tools, named = source.request.tools, source.step.tools
    mode = ("prune" if named is not None else "off") if settings.scope == "auto" else settings.scope
    if (
        mode == "off"
        or source.host.passthrough_reason
        or (named is None and not any(tool.name in settings.always for tool in tools))
    ):
        return ToolSelection(sent=tools)
    declared_names = {name: _declared_name(name, tools) for name in named or ()}
    names = {*declared_names.values(), *settings.always, *source.host.forced}
    # Of two that record evidence one is enough. Without a step there is none yet, or none any more: all of them stay.
    spare = {"keep_evidence"} if any(tool.name == "record_evidence" for tool in tools) else set()
    aside = _ASIDE | spare if source.step.text else frozenset()
    in_scope = tuple(tool for tool in tools if tool.name in names or (tool.essential and tool.name not in aside))
    unknown = [name for name, declared in declared_names.items() if declared is None]
    problem = ""
    if unknown:
        shown_names = ", ".join(" ".join(name.split())[:_LONGEST_NAME] for name in unknown[:_MOST_NAMED])
        problem = f"tool scope: the step names what is not declared: {shown_names}"
    elif not declared_names and named is not None:
        problem = "tool scope: the step names no tools, so only those that no step leaves out are declared"
    if mode == "mask" and not source.host.can_mask:
        return ToolSelection(
            sent=tools, problem="tool scope mask: this model or request takes no list of allowed names"
        )
    if mode == "mask":
        return ToolSelection(sent=tools, mode="mask", allowed=tuple(tool.name for tool in in_scope), problem=problem)
    left_out: dict[str, Reason] = {tool.name: "not_in_scope" for tool in tools if tool not in in_scope}
    return ToolSelection(sent=in_scope, mode="prune", left_out=left_out, problem=problem)


def _declared_name(name: str, tools: Sequence[Tool]) -> str | None:
    """The declared tool that a name means: that one, or the only one that is spelled alike; None for none."""
    if any(tool.name == name for tool in tools):
        return name
    # As written, without arguments, without a description, and without what stands before the last dot or slash.
    without_arguments = name.split("(", 1)[0]
    bare = re.split(":| - | – | — ", without_arguments, maxsplit=1)[0]
    last = bare.strip("`'\"*- ").replace("/", ".").rsplit(".", 1)[-1]
    for spelled in filter(None, map(folded, (name, without_arguments, bare, last))):
        alike = [tool.name for tool in tools if folded(tool.name) == spelled]
        if len(alike) == 1:
            return alike[0]
    return None


@lru_cache(maxsize=500)
def trimmed(tool: Tool) -> Tool:
    """A declaration without examples, with descriptions of at most 200 characters and arguments' of at most 80."""
    wire = json.loads(tool.wire)
    if isinstance(wire.get("description"), str):
        wire["description"] = _brief(wire["description"], _DESCRIPTION)
    for key in ("parameters", "parameters_json_schema", "response", "response_json_schema"):
        if key in wire:
            wire[key] = _brief_schema(wire[key])
    text = canonical_json(wire)
    return replace(tool, wire=text, digest=hash_text(text))


def _brief_schema(schema: JSON) -> JSON:
    if isinstance(schema, list):
        return [_brief_schema(value) for value in schema]
    if not isinstance(schema, dict):
        return schema
    brief = {}
    for key, value in schema.items():
        if (
            key in ("example", "examples") and "type" in schema
        ):  # without a type it maps names, and one may be called so
            continue
        is_text = key == "description" and isinstance(value, str)
        brief[key] = _brief(value, _ARGUMENT) if is_text else _brief_schema(value)
    return brief


def _brief(text: str, max_length: int) -> str:
    example = _EXAMPLE.search(text)
    bare = " ".join((text[: example.start()] if example is not None else text).split()) or " ".join(text.split())
    if len(bare) <= max_length:
        return bare
    end = max(bare.rfind(mark, 0, max_length) for mark in (". ", "; ", "! ", "? "))
    return bare[: end + 1] if end > 0 else bare[:max_length].rsplit(" ", 1)[0]
