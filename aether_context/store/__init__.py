"""Packs in files: what was sent and why, kept whole, found again, replayed and forgotten."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aether_context.store.pack_file import SCHEMA_VERSION
from aether_context.store.packs import PackStore
from aether_context.store.recording import Recording, Tip, pack_id, record

if TYPE_CHECKING:
    from aether_context.store.manifest import Manifest, ToolScope, schema

__all__ = ["SCHEMA_VERSION", "Manifest", "PackStore", "Recording", "Tip", "ToolScope", "pack_id", "record", "schema"]


def __getattr__(name: str) -> Any:
    """Loads the models of a manifest when they are asked for, since that takes long."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.manifest"), name)
