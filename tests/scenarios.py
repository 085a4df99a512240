"""Whole working sessions to pack: a plan, memories, evidence, tools and a long conversation, from ``scenario_data/``.

Each file is a session as an application would hold it: a step with six acceptance items of which three need evidence,
30 memories (repeated, outdated and unrelated ones among them), 20 pieces of evidence of different ages and lengths, 15
tools, and 40 turns of which half use tools. Everything in a scenario follows from its file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from functools import lru_cache
from pathlib import Path
from typing import Any

import packs
from packs import is_human

from aether_context.canonical import canonical_json, hash_text
from aether_context.pack import Content, Identity, PackInput, Tool
from aether_context.policy import PackPolicy
from aether_context.state import read_state

FOLDER = Path(__file__).parent / "scenario_data"
NAMES = ("refund_research", "booking_requirements", "payment_tests")
PRESETS = ("quality_first", "cost_first")
WINDOWS = (2_000, 3_000, 4_000, 6_000, 8_000, 12_000, 16_000, 24_000, 32_000, 48_000, 64_000)
TURNS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One session, before its next model call.

    ``state`` is what the application put into the session's state. ``declarations`` are the tools as a model is told of
    them. ``history`` ends with the request.
    """

    name: str
    profile: str
    now: float
    system: str
    request: str
    state: Mapping[str, Any]
    declarations: tuple[Mapping[str, Any], ...]
    history: tuple[Content, ...]

    def policy(self, preset: str = "balanced", **changes: Any) -> PackPolicy:
        """The scenario's profile with a preset."""
        return PackPolicy.load(self.profile, preset=preset, **changes)

    def pack_input(self, window: int, *, turns: int = TURNS) -> PackInput:
        """What the pack of the next model call is built from, with the latest ``turns`` of the conversation."""
        planned = read_state(self.state)
        return packs.pack_input(
            self.history[_start(self.history, turns) :],
            identity=Identity(
                app="scenarios",
                user="ada",
                session=self.name,
                invocation=f"i{TURNS + 1}",
                agent="worker",
                last_event_id=f"e{len(self.history)}",
                last_event_time=self.now,
            ),
            window=window,
            system=self.system,
            tools=[_tool(one) for one in self.declarations],
            step=planned.step,
            candidates=planned.candidates,
            problems=planned.problems,
        )


@lru_cache
def load(name: str) -> Scenario:
    """The scenario of that name."""
    held = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    request = _line(held["request"])
    plan = held["plan"]
    plan["step"]["text"] = _line(plan["step"]["text"])
    return Scenario(
        name=name,
        profile=held["profile"],
        now=held["now"].timestamp(),
        system=held["system"].strip(),
        request=request,
        state={
            "plan": plan,
            "knowledge": {
                "memories": [_memory(one) for one in held["memories"]],
                "evidence": [_evidence(one) for one in held["evidence"]],
            },
        },
        declarations=tuple(map(_declaration, held["tools"])),
        history=(*_turns(held["conversation"]), packs.said(request)),
    )


def _memory(held: Mapping[str, Any]) -> dict[str, Any]:
    ends = {"expires": held["expires"].timestamp()} if "expires" in held else {}
    return {"id": held["id"], "text": held["text"], "time": _noon(held["on"]), **ends}


def _evidence(held: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": held["id"],
        "uri": held["uri"],
        "summary": held["text"],
        "covers": held["covers"],
        "time": _noon(held["on"]),
    }


def _declaration(held: Mapping[str, Any]) -> dict[str, Any]:
    """A declaration whose description holds the example call, as tools of real servers have it."""
    example = f"\n\nExample:\n{held['example']}" if "example" in held else ""
    properties = {name: {"type": "string", "description": about} for name, about in held["args"].items()}
    return {
        "name": held["name"],
        "description": held["purpose"] + example,
        "parameters_json_schema": {"type": "object", "properties": properties, "required": sorted(properties)},
    }


def _tool(declaration: Mapping[str, Any]) -> Tool:
    wire = canonical_json(declaration)
    arguments = ", ".join(f"{name}: string" for name in declaration["parameters_json_schema"]["properties"])
    purpose = declaration["description"].split(". ")[0].split("\n")[0].rstrip(".")
    signature = f"{declaration['name']}({arguments}): {purpose}."
    return Tool(name=declaration["name"], signature=signature, wire=wire, digest=hash_text(wire))


def _turns(held: Mapping[str, Any]) -> Iterator[Content]:
    """A turn for each round and topic: a question, the calls with their answers, and what the model says to them."""
    number = 0
    for round_ in held["rounds"]:
        for topic in held["topics"]:
            a, b, c, d = topic["figures"]
            known = {"name": topic["name"], "detail": topic["detail"], "finding": topic["finding"]}
            known |= {"a": a, "b": b, "c": c, "d": d}
            number += 1
            yield packs.said(round_["user"].format(**known))
            for at, name in enumerate(round_.get("calls", ()), start=1):
                call_id = f"call-{number}-{at}"
                rows = [
                    round_["line"].format(
                        **known, n=n, m=1_000 + 37 * number + 11 * n * at, y=2_010 + (n * 7 + at) % 16
                    )
                    for n in range(1, round_["lines"] + 1)
                ]
                yield packs.called(name, call_id, query=f"{topic['name']}, {topic['detail']}")
                yield packs.answered(name, call_id, "\n".join(rows))
            yield packs.said(round_["answer"].format(**known), "model")


def _start(history: Sequence[Content], turns: int) -> int:
    """Where the latest turns begin, the one that is asked now not among them."""
    return [at for at, content in enumerate(history) if is_human(content)][-1 - turns]


def _line(text: str) -> str:
    return " ".join(text.split())


def _noon(day: date) -> float:
    return datetime.combine(day, time(12), UTC).timestamp()
