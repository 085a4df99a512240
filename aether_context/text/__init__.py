"""Text made shorter and taken apart: excerpts, entities, JSON in lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Counts(Protocol):
    """Counts the tokens of texts."""

    def count(self, text: str) -> int: ...

    def count_all(self, texts: Sequence[str]) -> list[int]: ...
