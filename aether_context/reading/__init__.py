"""Packs as values for people to look at, without formatting: the command line and the viewer show them."""

from __future__ import annotations

from aether_context.reading.comparison import Comparison, Reading
from aether_context.reading.difference import (
    CandidateChange,
    Difference,
    Fate,
    LayerChange,
    Parting,
    TextChange,
    difference,
)
from aether_context.reading.packs import WHY, PackView, Piece, read_view, view_of, view_under

__all__ = [
    "WHY",
    "CandidateChange",
    "Comparison",
    "Difference",
    "Fate",
    "LayerChange",
    "PackView",
    "Parting",
    "Piece",
    "Reading",
    "TextChange",
    "difference",
    "read_view",
    "view_of",
    "view_under",
]
