"""Packs as values for people to look at, without formatting: the command line and the viewer show them."""

from __future__ import annotations

from aether_context.lab.reading.comparison import Comparison, Reading
from aether_context.lab.reading.difference import (
    CandidateChange,
    Difference,
    Fate,
    LayerChange,
    Parting,
    TextChange,
    difference,
)
from aether_context.lab.reading.packs import WHY, PackView, Piece, read_view, view_of, view_under
from aether_context.lab.reading.sessions import call_title, session_packs
from aether_context.lab.reading.why import AgentVerdict, Answer, Place, Span, why

__all__ = [
    "WHY",
    "AgentVerdict",
    "Answer",
    "CandidateChange",
    "Comparison",
    "Difference",
    "Fate",
    "LayerChange",
    "PackView",
    "Parting",
    "Piece",
    "Place",
    "Reading",
    "Span",
    "TextChange",
    "call_title",
    "difference",
    "read_view",
    "session_packs",
    "view_of",
    "view_under",
    "why",
]
