"""The ADK edge: the only part of the package that loads google-adk and google-genai."""

from __future__ import annotations

from aether_context.adk.acceptance import AcceptanceCheck, AcceptanceGate
from aether_context.adk.plugin import ContextPackPlugin, context_pack_callbacks
from aether_context.adk.preview import cutoff, preview_strategies
from aether_context.adk.request.inputs import cut_now
from aether_context.adk.services.artifacts import FsspecArtifactService, register_artifact_service
from aether_context.adk.services.memory import HybridMemoryService, register_memory_service
from aether_context.adk.tools import context_tools, evidence_tools, keep_evidence, memory_tools, planning_tools

__all__ = [
    "AcceptanceCheck",
    "AcceptanceGate",
    "ContextPackPlugin",
    "FsspecArtifactService",
    "HybridMemoryService",
    "context_pack_callbacks",
    "context_tools",
    "cut_now",
    "cutoff",
    "evidence_tools",
    "keep_evidence",
    "memory_tools",
    "planning_tools",
    "preview_strategies",
    "register_artifact_service",
    "register_memory_service",
]
