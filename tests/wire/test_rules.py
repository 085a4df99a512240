"""Each rule finds what it is there for, and a sound request passes all of them."""

from __future__ import annotations

from typing import Any

import pytest
from wire.rules import CLAUDE, GEMINI, OLLAMA, OPENAI, Issued, Rule, claude_befores, same, violations

USER, CALL = {"role": "user", "content": "hello"}, {"type": "tool_use", "id": "c1", "name": "f", "input": {}}
THOUGHT = {"type": "thinking", "thinking": "so", "signature": "s1"}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "x"}]}
ISSUED = Issued(signed={"s1": "so", "g1": same(["f", {"a": 1}])}, under={"c1": ["s1"], same(["f", {"a": 1}]): ["g1"]})
TOOLS = [{"name": "f", "input_schema": {}}]
*_, (_, ISSUED.behind["s1"]) = claude_befores({"messages": [USER], "tools": TOOLS})
MARK = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}


def claude(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), "tools": TOOLS, **more}


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def gemini(*contents: Any, **more: Any) -> dict[str, Any]:
    return {"contents": [{"role": role, "parts": parts} for role, *parts in contents], **more}


def calls(arguments: dict[str, Any], signature: str = "g1") -> dict[str, Any]:
    part: dict[str, Any] = {"functionCall": {"name": "f", "args": arguments}}
    return part | ({"thoughtSignature": signature} if signature else {})


GAVE = ("user", {"functionResponse": {"name": "f", "response": {}}})
HELLO = ("user", {"text": "hello"})


def lite(name: str = "f", arguments: Any = "{}", identity: str = "c1") -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": identity, "function": {"name": name, "arguments": arguments}}]}


TOLD = {"role": "tool", "tool_call_id": "c1", "content": "x"}

SOUND = [
    (CLAUDE, claude(USER, said(THOUGHT, CALL), RESULT)),
    (CLAUDE, claude(USER, said(CALL), RESULT, said({"type": "text", "text": "x"}), USER)),
    (GEMINI, gemini(HELLO, ("model", calls({"a": 1})), GAVE)),
    (OPENAI, {"messages": [USER, lite(), TOLD]}),
    (OLLAMA, {"messages": [USER, lite(arguments={}), TOLD]}),
    (OPENAI, {"messages": [USER, lite(), TOLD, {"role": "assistant", "content": "x"}, USER]}),
]
FAULTY = {
    "claude_begins_with_the_user": claude(said({"type": "text", "text": "x"}), USER),
    "claude_contents_are_not_empty": claude({"role": "user", "content": ""}),
    "claude_calls_are_answered": claude(USER, said(CALL), USER),
    "claude_results_have_calls": claude(USER, said({"type": "text", "text": "x"}), RESULT),
    "claude_results_come_first": claude(USER, said(THOUGHT, CALL), USER, RESULT),
    "claude_ids_are_unique": claude(USER, said(THOUGHT, CALL, CALL), RESULT),
    "claude_thinking_is_unmodified": claude(USER, said({**THOUGHT, "thinking": "s…"}, CALL), RESULT),
    "claude_thinking_is_bound": claude(USER, USER, said(THOUGHT, CALL), RESULT),
    "claude_calls_keep_their_thinking": claude(USER, said(CALL), RESULT),
    "claude_marks_are_few": claude({"role": "user", "content": [MARK] * 5}),
    "claude_declares_what_was_called": claude(USER, said(THOUGHT, CALL), RESULT) | {"tools": TOOLS * 2},
    "claude_ends_with_the_user": claude(USER, said({"type": "text", "text": "x"}), thinking={"type": "enabled"}),
    "claude_media_are_few": claude({"role": "user", "content": [{"type": "image", "source": {}}] * 101}),
    "claude_requests_are_small": claude({"role": "user", "content": "x" * (31 << 20)}),
    "gemini_requests_are_small": gemini(("user", {"text": "x" * (21 << 20)})),
    "gemini_begins_with_the_user": gemini(("model", {"text": "x"}), HELLO),
    "gemini_roles_are_known": gemini(HELLO, ("system", {"text": "x"}), HELLO),
    "gemini_contents_are_not_empty": gemini(("user", {"thought": True})),
    "gemini_calls_follow_a_user": gemini(HELLO, ("model", {"text": "x"}), ("model", calls({"a": 1})), GAVE),
    "gemini_calls_are_answered": gemini(HELLO, ("model", calls({"a": 1})), HELLO),
    "gemini_signatures_are_unmodified": gemini(HELLO, ("model", calls({"a": 2})), GAVE),
    "gemini_calls_keep_their_signature": gemini(HELLO, ("model", calls({"a": 1}, "")), GAVE),
    "gemini_ends_with_the_user": gemini(HELLO, ("model", {"text": "x"})),
    "gemini_declares_once": gemini(HELLO, tools=[{"functionDeclarations": [{"name": "f"}, {"name": "f"}]}]),
    "roles_alternate": {"messages": [USER, lite(), TOLD, USER]},
    "openai_calls_are_answered": {"messages": [USER, lite(), USER]},
    "openai_answers_have_calls": {"messages": [USER, TOLD]},
    "openai_contents_are_there": {"messages": [{"role": "assistant", "content": None}]},
    "openai_calls_are_well_formed": {"messages": [USER, lite(identity="c" * 41)]},
    "openai_roles_are_known": {"messages": [{"role": "model", "content": "x"}]},
    "ollama_roles_are_known": {"messages": [{"role": "model", "content": "x"}]},
    "ollama_calls_are_objects": {"messages": [USER, lite(), TOLD]},
    "ollama_results_follow_calls": {"messages": [USER, TOLD]},
    "ollama_images_are_base64": {"messages": [{**USER, "images": ["!"]}]},
}
RULES = (*CLAUDE, *GEMINI, *OPENAI, *OLLAMA)


@pytest.mark.parametrize(("rules", "body"), SOUND)
def test_a_sound_request_passes(rules: tuple[Rule, ...], body: dict[str, Any]) -> None:
    assert violations(rules, body, ISSUED) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_rule_finds_what_it_forbids(rule: Rule) -> None:
    assert violations([rule], FAULTY[rule.__name__], ISSUED)
