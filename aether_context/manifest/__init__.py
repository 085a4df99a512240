"""The receipt of a pack."""

from aether_context.manifest.recording import (
    Recording,
    Tip,
    epoch_of,
    epoch_record,
    pack_id,
    record,
    splice,
    stage_hashes,
)
from aether_context.manifest.schema import SCHEMA_VERSION, Manifest, Row, StrategyAct, ToolScope, schema

__all__ = [
    "SCHEMA_VERSION",
    "Manifest",
    "Recording",
    "Row",
    "StrategyAct",
    "Tip",
    "ToolScope",
    "epoch_of",
    "epoch_record",
    "pack_id",
    "record",
    "schema",
    "splice",
    "stage_hashes",
]
