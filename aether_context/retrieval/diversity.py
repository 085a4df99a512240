"""Maximal marginal relevance, exact, without comparing every candidate with every choice."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .vectors import lengths_of, product

Floats = NDArray[np.float64]
_FRONT = 1_024


def mmr(
    relevance: Floats, rows: NDArray[np.int8], *, weight: float, k: int, names: Sequence[str]
) -> list[tuple[int, float]]:
    """Places of at most ``k`` candidates, best first, each with its marginal relevance.

    ``weight * relevance - (1 - weight) * overlap`` with overlap the highest cosine with one already chosen, to six
    decimals, at least 0 (Carbonell and Goldstein, 1998). A marginal only falls while more is chosen, so what it was
    once bounds what it is (Minoux, 1978): only a front of candidates is compared with each choice, and as long as the
    best of it is above the bounds of all others, it is the best of all. The result is that of comparing all. Ties go
    to the name that sorts first.

    Args:
        rows: the candidates' vectors, as of `VectorTable`.
    """
    front = _Front(weight * relevance, rows, 1 - weight, names)
    chosen: list[tuple[int, float]] = []
    while len(chosen) < min(k, len(relevance)):
        place, marginal = front.best()
        chosen.append((place, marginal))
        front.choose(place)
    return chosen


class _Front:
    """The candidates of the highest marginals, each compared with all that was chosen.

    Args:
        bound: of all candidates, never below their marginals.
        rows: their vectors.
        weight: of overlap.
        names: what ties are broken by.
    """

    _covered: Floats
    _marginal: Floats

    def __init__(self, bound: Floats, rows: NDArray[np.int8], weight: float, names: Sequence[str]) -> None:
        self._bound = bound
        self._relevance = bound.copy()
        self._rows = rows
        self._weight = weight
        self._names = names
        self._chosen: list[int] = []
        self._advance()

    def best(self) -> tuple[int, float]:
        """The candidate of the highest marginal, and that."""
        while True:
            marginal = float(self._marginal.max())
            place = min(self._places[self._marginal == marginal].tolist(), key=self._names.__getitem__)
            ahead = marginal == self._outside and self._names[place] < self._outside_name
            if marginal > self._outside or ahead:
                return place, marginal
            self._bound[self._places] = self._marginal
            self._advance()

    def choose(self, place: int) -> None:
        """Takes one of the best out, and compares the others with it."""
        at = int(np.flatnonzero(self._places == place)[0])
        overlap = _cosines(product(self._vectors, self._vectors[at]), self._lengths * self._lengths[at])
        self._covered = np.maximum(self._covered, overlap)
        self._relevance[place] = self._bound[place] = -np.inf
        self._marginal = self._relevance[self._places] - self._weight * self._covered
        self._chosen.append(place)

    def _advance(self) -> None:
        """Takes those of the highest bounds; what is outside then comes behind them."""
        self._places = self._highest()
        self._vectors, self._lengths = _measured(self._rows[self._places])
        self._covered = np.zeros(len(self._places))
        if self._chosen:
            against, lengths = _measured(self._rows[self._chosen])
            overlap = _cosines(product(self._vectors, against.T), np.outer(self._lengths, lengths))
            self._covered = np.maximum(0.0, overlap.max(axis=1))
        self._marginal = self._relevance[self._places] - self._weight * self._covered

    def _highest(self) -> NDArray[np.int64]:
        """The candidates of the highest bounds, and how high what is outside then reaches."""
        bound = self._bound
        self._outside, self._outside_name = -np.inf, ""
        if len(bound) <= _FRONT:
            return np.arange(len(bound))
        least = -np.partition(-bound, _FRONT - 1)[_FRONT - 1]
        above, level = np.flatnonzero(bound > least), np.flatnonzero(bound == least)
        room = _FRONT - len(above)
        if len(level) <= room:
            self._outside = float(bound.max(where=bound < least, initial=-np.inf))
            return np.concatenate([above, level])
        level = level[np.argsort(self._order[level])]
        self._outside, self._outside_name = float(least), self._names[level[room]]
        return np.concatenate([above, level[:room]])

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """Of each candidate its place by name."""
        order = np.empty(len(self._names), dtype=np.int64)
        order[sorted(range(len(order)), key=self._names.__getitem__)] = np.arange(len(order))
        return order


def _measured(rows: NDArray[np.int8]) -> tuple[NDArray[np.float32], Floats]:
    return rows.astype(np.float32), lengths_of(rows)


def _cosines(products: NDArray[np.float32], lengths: Floats) -> Floats:
    """Products of whole numbers are exact in any order; over the products of lengths, to six decimals."""
    cosines = np.divide(products, lengths, out=np.zeros(lengths.shape), where=lengths > 0)
    return np.asarray(np.round(cosines, 6))
