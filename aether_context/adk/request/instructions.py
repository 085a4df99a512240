"""The instructions of an agent until they end: bodies of its active skills, and results of tools that the policy marks.

A skill's body is the one that its ``load_skill`` response holds, as far as the host loads that, else the toolset's own.
Which skills are active the toolset reads off session state, where tools write; it gives no skill that it does not hold.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.genai import types

from aether_context.adk.bounds import Waits
from aether_context.adk.call import ModelCall
from aether_context.adk.request.reader import Reader
from aether_context.canonical import canonical_json, hash_text, short
from aether_context.evidence.offload import is_error, stored_bytes
from aether_context.pack import Candidate
from aether_context.policy import PackPolicy
from aether_context.text.pairing import pair_results

_LOAD = "load_skill"
_MOST_ARGUMENTS = 200
"""Characters of the arguments by which a result's call is named."""


def instructing_tools(request: LlmRequest, policy: PackPolicy) -> dict[str, Any]:
    """The tools of a request whose results instruct: those that load skills, each with its toolset, and those that the
    policy marks, with None."""
    tools: dict[str, Any] = dict.fromkeys(policy.offload.tools_under("instructs"))
    for tool in request.tools_dict.values():
        toolset: Any = getattr(tool, "_toolset", None)
        if any(kind.__name__ == "SkillToolset" for kind in type(toolset).__mro__):
            tools["_".join(filter(None, (getattr(toolset, "tool_name_prefix", None), _LOAD)))] = toolset
    return tools


async def active_instructions(
    call: ModelCall, contents: Sequence[types.Content], reader: Reader, waits: Waits, problems: list[str]
) -> tuple[Candidate, ...]:
    """The instructions that are active in a call, the newest last; what went wrong is noted.

    Args:
        contents: what the host loads of the agent's history.
    """
    if call.passthrough_reason or not (tools := instructing_tools(call.request, call.policy)):
        return ()
    named = [content for content in contents if _uses(content, tools)]
    loaded: dict[str, Candidate] = {}
    results = pair_results(reader.content(content, call.model) for content in named)
    for part, requested in (answer for of_content in results for answer in of_content):
        response = json.loads(part.text) if requested is not None and part.name in tools else None
        if requested is None or not isinstance(response, dict) or is_error(response):
            continue
        is_skill = tools[part.name] is not None
        text = response.get("instructions") if is_skill else stored_bytes(response).decode("utf-8", "surrogatepass")
        skill = response.get("skill_name") if is_skill else ""
        instruction = _instruction(part.name, requested.part.text, str(text or ""), str(skill))
        loaded.pop(instruction.id, None)
        loaded[instruction.id] = instruction
    active: dict[str, Candidate] = {}
    for tool, toolset in tools.items():
        try:
            for name in map(str, toolset.list_active_skills(call.context) if toolset is not None else ()):
                instruction = _instruction(tool, canonical_json({"skill_name": name}), "", name)
                active[instruction.id] = instruction  # named, where its body cannot be had
                if instruction.id not in loaded or not loaded[instruction.id].text:
                    text = await _body(call, toolset, name, waits)
                    active[instruction.id] = replace(instruction, text=text, digest=hash_text(text))
        except Exception as error:
            problems.append(f"active skills could not be read in full: {type(error).__name__}")
    loaded = {name: item for name, item in loaded.items() if item.kind == "instructs" or (name in active and item.text)}
    return (*(skill for name, skill in active.items() if name not in loaded), *loaded.values())


def _uses(content: types.Content, tools: Collection[str]) -> bool:
    """Tells whether a content calls one of these tools, or answers such a call."""
    pieces = (part.function_call or part.function_response for part in content.parts or ())
    return any(item is not None and item.name in tools for item in pieces)


def _instruction(tool: str, arguments: str, text: str, skill: str) -> Candidate:
    """The instruction that a call brought, or would bring again; ``skill`` is the name of the skill that it loads, if
    it does."""
    load = f"{tool}({arguments if len(arguments) <= _MOST_ARGUMENTS else '…'})"
    return Candidate(
        id=f"{tool.removesuffix(_LOAD)}skill_{skill}" if skill else f"rules_{tool}_{short(hash_text(arguments))}",
        layer="system",
        source=load,
        text=text,
        digest=hash_text(text),
        speaker=f"skill {skill}" if skill else f"what {load} gave",
        kind="active_skill" if skill else "instructs",
    )


async def _body(call: ModelCall, toolset: Any, name: str, waits: Waits) -> str:
    """A skill's body from its toolset, which asks its registry for one that it does not hold; empty where there is
    none."""
    invocation = call.invocation.invocation_id
    skill = next((skill for skill in toolset.skills if skill.name == name), None)
    if skill is None:
        skill = await waits.within(f"skill {name}", invocation, toolset._get_or_fetch_skill(name, invocation))
    if skill is not None and skill.frontmatter.metadata.get("adk_inject_state"):
        from google.adk.utils.instructions_utils import inject_session_state  # ADK loads it with an app's first agent

        return await inject_session_state(skill.instructions, call.context)
    return str(skill.instructions) if skill is not None else ""
