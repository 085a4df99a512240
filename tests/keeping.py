"""What sessions have to keep through cuts: pictures that people send, skills that are active, to-do lists."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from google.adk.skills import models
from google.genai import types
from plans import words
from scripted import Sent

from aether_context import PackPolicy
from aether_context.canonical import hash_bytes
from aether_context.evidence import evidence_uri

NOTHING_RETURNS = {"retrieval": {"recall": False, "memory_k": 0}, "conversation": {"summary_share": 0}}
"""Settings under which nothing that a cut takes comes back."""
CURE = re.compile(r"kept with (?:(\S+) = )?(.*): [+-]\d+\.\d% of the session's cost")
"""A cure: the setting's name, its value as JSON."""


def changed(policy: PackPolicy, name: str, value: str) -> PackPolicy:
    settings = json.loads(value)
    for part in reversed(name.split(".")):
        settings = {part: settings}
    return policy.changed(**settings)


def picture(width: int = 1200, height: int = 900, shade: int = 0) -> bytes:
    """A PNG with nothing on it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", bytes([shade])) + chunk(b"IEND", b"")


def message(data: bytes, kind: str, text: str = "") -> types.Content:
    parts = [types.Part(text=text)] if text else []
    return types.UserContent(parts=[*parts, types.Part.from_bytes(data=data, mime_type=kind)])


def address(data: bytes) -> str:
    return evidence_uri(hash_bytes(data), "bin")


def rules(name: str, count: int) -> list[str]:
    return [
        f'Rule {at} of {name}: in case {at * 7} write section S{at} "so" and never skip {at + 1}.'
        for at in range(count)
    ]


def skill(name: str, count: int = 30, **metadata: Any) -> models.Skill:
    return models.Skill(
        frontmatter=models.Frontmatter(name=name, description=f"How to do {name}.", metadata=metadata),
        instructions=f"# {name}\n\n" + "\n".join(rules(name, count)) + "\n",
        resources=models.Resources(references={"long.md": words(3_000, "ref")}),
    )


def read_of(sent: Sent) -> str:
    """All that a model reads of the contents, as it was before it became JSON."""
    texts = [sent.text]
    for answer in sent.answers():
        texts += [str(value) for value in answer.values()]
    return "\n".join(texts)


def whole(sents: Sequence[Sent], name: str, count: int = 30) -> list[int]:
    """How many rules of a skill stand in each request."""
    return [sum(rule in read_of(sent) for rule in rules(name, count)) for sent in sents]


def write_todos(todos: list[dict[str, str]]) -> dict[str, Any]:
    """Writes the to-do list."""
    return {"result": "updated"}


def state(*statuses: str) -> list[dict[str, str]]:
    return [{"content": f"Pack box {at}", "status": status} for at, status in enumerate(statuses)]
