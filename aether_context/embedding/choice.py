"""Embedders by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from aether_context.embedding.embedder import CachedEmbedder, Embedder
from aether_context.embedding.static import StaticEmbedder
from aether_context.embedding.transformers import TransformerEmbedder
from aether_context.errors import PolicyError

Make = Callable[[str], Embedder]
"""The embedder of a model, whose name is what stands behind the colon."""

KINDS: dict[str, Make] = {
    "static": lambda model: StaticEmbedder(),
    "sentence-transformers": lambda model: CachedEmbedder(TransformerEmbedder(model)),
}
"""By what stands before the colon."""

DEFAULT_MODELS = {"sentence-transformers": "sentence-transformers/all-MiniLM-L6-v2"}


def register(kind: str, make: Make, *, default_model: str = "") -> None:
    """Puts a kind of embedder on offer, in place of one of the same name."""
    KINDS[kind] = make
    if default_model:
        DEFAULT_MODELS[kind] = default_model


def embedder_for(name: str | None = None) -> Embedder | None:
    """The embedder of a name: ``static`` where there is none, ``KIND`` or ``KIND:MODEL``; None for ``none``.

    Raises:
        PolicyError: nobody has registered the kind.
        MissingExtra: it needs a package that is not installed.
    """
    kind, _, model = (name or "static").partition(":")
    if kind == "none":
        return None
    if kind not in KINDS:
        names = ["none", *KINDS]
        near = difflib.get_close_matches(kind, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "it is one of " + ", ".join(names)
        raise PolicyError(f"embedder {name!r} is unknown: {hint}", field="embedder")
    return KINDS[kind](model or DEFAULT_MODELS.get(kind, ""))
