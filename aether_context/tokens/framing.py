"""The tokens that providers add around messages, calls and declarations, and the form in which they write these out.

No provider publishes all of it. The figures of `FRAMINGS` are given with their sources; those without one are assumed
from what other providers add, and rather too high than too low.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from aether_context.canonical import JSON, canonical_json
from aether_context.tokens.counters import family_of
from aether_context.tokens.model_limits import bare_model_name

_RUN = re.compile(r"([\n\r\t])\1{15,}")
"""Sixteen or more of one line end or tab."""


class Framing(NamedTuple):
    """Tokens that one provider adds, and the form in which calls, responses and declarations reach its models.

    Attributes:
        request: per request, for its beginning and the start of the answer.
        message: per message, its role included.
        system: for a system instruction, where there is one.
        tools: once, where any function is declared.
        tool: per declaration.
        call: per call; `argument` per argument of a call.
        response: per response of a function.
        calls: how arguments are written out: as JSON, quoted and escaped, or as plain texts.
        responses: how responses are written out.
        declarations: how functions are declared: as JSON or as TypeScript.
    """

    name: str
    request: int
    message: int
    system: int
    tools: int
    tool: int
    call: int
    response: int
    argument: int = 0
    calls: Literal["json", "plain"] = "json"
    responses: Literal["json", "plain"] = "json"
    declarations: Literal["json", "typescript"] = "json"


_GEMINI = Framing(name="gemini", request=0, message=1, system=0, tools=0, tool=4, call=6, response=6)
_CLAUDE = Framing(
    name="claude",
    request=4,
    message=3,
    system=0,
    tools=496,
    tool=10,
    call=34,
    argument=12,
    response=8,
    calls="plain",
    responses="plain",
)

FRAMINGS: Mapping[str, Framing] = {
    "gemini": _GEMINI,
    "gemini-3": _GEMINI._replace(name="gemini-3"),
    "openai": Framing(
        name="openai", request=3, message=4, system=4, tools=11, tool=0, call=3, response=4, declarations="typescript"
    ),
    "claude": _CLAUDE,
    "claude-4.7": _CLAUDE._replace(name="claude-4.7", tools=675),
    "generic": Framing(name="generic", request=4, message=4, system=4, tools=0, tool=6, call=6, response=6),
}
"""By family of models.

Gemini      `message`: the examples of `count_tokens` at ai.google.dev/gemini-api/docs/tokens, 10 for two messages of 5
            and 3; `tool`: 206 there for a message of 22 and four functions, whose JSON is 42 each. `call` and
            `response` are assumed.
OpenAI      `request`, `message`, `tools`, `tool`: OpenAI's "How to count tokens with tiktoken", where 101 tokens are
            reported for GPT-4o with one function; functions are written as TypeScript, 9 tokens and the braces of the
            namespace around them, 4 fewer beside a system message. `call`: hmarr/openai-chat-tokens; `response`: the
            message of its own that each one is.
Anthropic   `request`, `message`: platform.claude.com, "Token counting", 14 for "You are a scientist" and "Hello,
            Claude"; `tool`: 403 there for one function; `tools`: `CLAUDE_TOOLS`. `call`, `argument`, `response`: fitted
            to the usage reported in a recorded session of Claude Sonnet 4.5 (badlogic/pi-mono), whose calls reach the
            model with their texts unescaped.
generic     all assumed, for xAI's models, too.
"""

CLAUDE_TOOLS = (
    (r"claude-opus-4-8", 290),
    (r"claude-opus-4-7", 675),
    (r"claude-(?:opus|sonnet|haiku)-4-[56]", 497),
    (r"claude-(?:opus|sonnet)-4(?:-[01])?(?:-\d{8}|$)", 313),
    (r"claude-(?:sonnet|opus|haiku)-[5-9]", 354),
    (r"claude-3-7", 346),
    (r"claude-3-5-haiku|claude-haiku-3-5", 264),
    (r"claude-3-5", 346),
    (r"claude-3-opus", 530),
    (r"claude-3-sonnet", 159),
    (r"claude-3-haiku", 264),
)
"""Tokens of the system prompt that Anthropic adds where tools are declared, by model; the first pattern that matches.

From platform.claude.com, "Tool use with Claude", for the tool choice `auto`. For models of 5 and later other than
Sonnet 5 the figure of that one is assumed.
"""


@functools.lru_cache(maxsize=1024)
def framing_of(model: str) -> Framing:
    """The framing of a model's provider; the model may be in any of ADK's spellings.

    Through LiteLLM (`provider/model`) responses are JSON for every provider.
    """
    framing = FRAMINGS.get(family_of(model), FRAMINGS["generic"])
    if framing.name.startswith("claude"):
        name = bare_model_name(model)
        tools = next((tokens for pattern, tokens in CLAUDE_TOOLS if re.match(pattern, name)), framing.tools)
        framing = framing._replace(tools=tools)
    # ADK sends `provider/model` through LiteLLM, unless it is a resource name of Google's.
    is_google = model.startswith(("models/", "projects/", "publishers/", "apigee/"))
    if "/" in model and not is_google and framing.responses != "json":
        framing = framing._replace(name=f"{framing.name}/litellm", responses="json")
    return framing


def written_call(name: str, arguments: str, framing: Framing) -> str:
    """A call as the provider writes it out; `arguments` is a JSON object."""
    if framing.calls == "json":
        return f"{name} {arguments}"
    return "\n".join([name, *_plain(json.loads(arguments))])


def written_response(name: str, response: str, framing: Framing) -> str:
    """A response as the provider writes it out; `response` is its JSON.

    For Claude ADK sends the content or a lone result as text, anything else as JSON
    (`google.adk.models.anthropic_llm`).
    """
    if framing.responses == "json":
        return f"{name} {response}"
    value = json.loads(response)
    if isinstance(value, dict):
        content = value.get("content")
        if isinstance(content, list) and content:
            texts = []
            for item in content:
                text = item.get("text") if isinstance(item, dict) and item.get("type") == "text" else item
                texts.append(text if isinstance(text, str) else canonical_json(item))
            value = "\n".join(texts)
        elif isinstance(content, str) and content:
            value = content
        elif value.keys() == {"result"} and value["result"] is not None:
            value = value["result"]
    return _with_written_runs(value if isinstance(value, str) else canonical_json(value))


def _with_written_runs(text: str) -> str:
    """A text with long runs of one line end or tab escaped as in JSON.

    What such runs cost Claude's models is not published. In the known vocabulary a dozen line ends are one token, which
    is far too low where they reach the model escaped; a count rather too high than too low is wanted.
    """
    return _RUN.sub(lambda run: canonical_json(run[0])[1:-1], text)


def argument_count(arguments: str) -> int:
    """The number of a call's arguments, from their JSON."""
    value = json.loads(arguments)
    return len(value) if isinstance(value, dict) else 0


def _plain(value: JSON) -> Iterator[str]:
    """Names and values of a JSON value, without quotes and escapes."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _plain(item)
    elif isinstance(value, list):
        for item in value:
            yield from _plain(item)
    else:
        yield _with_written_runs(value) if isinstance(value, str) else canonical_json(value)


def written_declaration(wire: str, framing: Framing) -> str:
    """A function's declaration as the provider writes it out, from its JSON.

    For OpenAI's models that is a comment and a TypeScript function type, with a line for each argument.
    """
    if framing.declarations == "json":
        return wire
    declaration = json.loads(wire)
    about = declaration.get("description")
    comment = f"// {about}\n" if about else ""
    lines = _members(declaration.get("parameters_json_schema") or declaration.get("parameters"))
    arguments = "_: {\n" + lines + "\n}" if lines else ""
    return f"{comment}type {declaration.get('name', '')} = ({arguments}) => any;\n\n"


def _members(schema: JSON) -> str:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return ""
    required = schema.get("required") or ()
    lines = []
    for name, member in properties.items():
        if isinstance(member, dict) and member.get("description"):
            lines.append(f"// {member['description']}")
        lines.append(f"{name}{'' if name in required else '?'}: {_type(member)},")
    return "\n".join(lines)


def _type(schema: JSON) -> str:
    if not isinstance(schema, dict):
        return "any"
    if choices := schema.get("enum"):
        return " | ".join(map(canonical_json, choices))
    if alternatives := schema.get("anyOf") or schema.get("any_of") or schema.get("oneOf"):
        return " | ".join(map(_type, alternatives))
    type_name = str(schema.get("type") or "any").lower()
    if type_name == "array":
        return f"{_type(schema.get('items'))}[]"
    if type_name == "object":
        return "{\n" + _members(schema) + "\n}" if schema.get("properties") else "object"
    return "number" if type_name == "integer" else type_name
