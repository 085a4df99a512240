"""Decides what an LLM agent's model gets to read, and leaves a receipt for every model call."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aether_context.lab.reading.why import why
    from aether_context.packing import build_pack
    from aether_context.policy import PackPolicy
    from aether_context.store import Manifest, PackStore
    from aether_context.store.replay import replay
    from aether_context.store.verification import verify

__all__ = ["Manifest", "PackPolicy", "PackStore", "build_pack", "replay", "verify", "why"]

__version__ = "0.1.0"

_HOMES = {
    "Manifest": "aether_context.store.manifest",
    "PackPolicy": "aether_context.policy",
    "PackStore": "aether_context.store.packs",
    "build_pack": "aether_context.packing",
    "replay": "aether_context.store.replay",
    "verify": "aether_context.store.verification",
    "why": "aether_context.lab.reading.why",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
