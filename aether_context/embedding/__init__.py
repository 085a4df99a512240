"""Texts as vectors: a port, the static model inside the package, and what else is on offer by name.

    from aether_context.embedding import embedder_for

    vectors = embedder_for("static").embed(["how to renew a passport"])

``static`` is the default, ``sentence-transformers:NAME`` any model or folder of that library, ``none`` no vectors at
all. What needs google-genai registers itself from `aether_context.adk.embeddings`.
"""

from __future__ import annotations

from aether_context.embedding.choice import embedder_for, register
from aether_context.embedding.embedder import CachedEmbedder, Embedder, Purpose, Vectors, unit
from aether_context.embedding.static import StaticEmbedder

__all__ = [
    "CachedEmbedder",
    "Embedder",
    "Purpose",
    "StaticEmbedder",
    "Vectors",
    "embedder_for",
    "register",
    "unit",
]
