"""The ADK edge, which loads google-adk and google-genai; nothing below it does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aether_context.adk.acceptance import AcceptanceCheck, AcceptanceGate
    from aether_context.adk.on_cut import CutEntry, UpcomingCut
    from aether_context.adk.plugin import ContextPackPlugin, context_pack_callbacks
    from aether_context.adk.request.marks import cut_now, pin
    from aether_context.adk.services.artifacts import FsspecArtifactService, register_artifact_service
    from aether_context.adk.services.memory import HybridMemoryService, register_memory_service
    from aether_context.adk.tools import context_tools, evidence_tools, keep_evidence, memory_tools, planning_tools
    from aether_context.lab.preview import cutoff, preview_strategies

__all__ = [
    "AcceptanceCheck",
    "AcceptanceGate",
    "ContextPackPlugin",
    "CutEntry",
    "FsspecArtifactService",
    "HybridMemoryService",
    "UpcomingCut",
    "context_pack_callbacks",
    "context_tools",
    "cut_now",
    "cutoff",
    "evidence_tools",
    "keep_evidence",
    "memory_tools",
    "pin",
    "planning_tools",
    "preview_strategies",
    "register_artifact_service",
    "register_memory_service",
]

_HOMES = {
    ".acceptance": ("AcceptanceCheck", "AcceptanceGate"),
    ".plugin": ("ContextPackPlugin", "context_pack_callbacks"),
    "..lab.preview": ("cutoff", "preview_strategies"),
    ".on_cut": ("UpcomingCut", "CutEntry"),
    ".request.marks": ("cut_now", "pin"),
    ".services.artifacts": ("FsspecArtifactService", "register_artifact_service"),
    ".services.memory": ("HybridMemoryService", "register_memory_service"),
    ".tools": ("context_tools", "evidence_tools", "keep_evidence", "memory_tools", "planning_tools"),
}
"""The modules that names are loaded from when they are asked for."""


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
