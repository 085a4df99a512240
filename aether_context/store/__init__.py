"""Packs in files: what was sent and why, kept whole, found again, replayed and forgotten."""

from aether_context.store.manifest import SCHEMA_VERSION, Manifest, ToolScope, schema
from aether_context.store.packs import PackStore
from aether_context.store.recording import Recording, Tip, pack_id, record

__all__ = ["SCHEMA_VERSION", "Manifest", "PackStore", "Recording", "Tip", "ToolScope", "pack_id", "record", "schema"]
