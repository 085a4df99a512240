"""Tools found by what they are for: their names, descriptions and parameters as texts of an index."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache

from aether_context.canonical import JSON
from aether_context.embedding import embedder_for
from aether_context.pack import Tool
from aether_context.redaction import masker
from aether_context.retrieval.index import HybridIndex

_EMBEDDER = "static"
"""Whatever a policy compares memories by: the tools of an agent are few, and chosen before a call."""

_SCHEMAS = ("parameters", "parameters_json_schema")


def tool_scores(tools: tuple[Tool, ...], query: str, redact: tuple[str, ...] = ()) -> dict[str, float]:
    """How well each tool answers a query, by name: 0 and more, in the order of the tools.

    Args:
        redact: patterns of what is masked before anything is compared.
    """
    scores = dict.fromkeys((tool.name for tool in tools), 0.0)
    hits = _index(tools, redact).search(query, limit=len(scores)) if query else []
    return scores | {hit.id: round(hit.score, 6) for hit in hits}


def tool_encoder() -> str:
    """Identity of the embedder that `tool_scores` compares meanings by."""
    embedder = embedder_for(_EMBEDDER)
    return "none" if embedder is None else embedder.name


def described(tool: Tool) -> str:
    """What a tool is found by: name, description, then name and description of each parameter."""
    wire = json.loads(tool.wire)
    said = [tool.name, str(wire.get("description") or "")]
    for key in _SCHEMAS:
        said += _parameters(wire.get(key))
    return "\n".join(text for text in said if text)


def _parameters(schema: JSON) -> Iterator[str]:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for name, one in (properties if isinstance(properties, dict) else {}).items():
        description = one.get("description") if isinstance(one, dict) else None
        yield f"{name}: {description}" if isinstance(description, str) else str(name)


@lru_cache(maxsize=16)
def _index(tools: tuple[Tool, ...], redact: tuple[str, ...]) -> HybridIndex:
    """The index of a set of tools; the latest sets are remembered."""
    index = HybridIndex(_EMBEDDER, redact=masker(redact))
    texts = {tool.name: described(tool) for tool in tools}
    index.add_texts(list(texts), list(texts.values()))
    return index
