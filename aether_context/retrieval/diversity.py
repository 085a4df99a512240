"""Maximal marginal relevance, exact, without comparing every candidate with every choice."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aether_context.retrieval.arrays import product

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
_FIRST_FRONT, _LARGEST_FRONT = 256, 1_024
_MILLION = 1e6


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
        at, marginal = front.best()
        chosen.append((front.choose(at), marginal))
    return chosen


class _Front:
    """The candidates of the highest marginals, each compared with all that was chosen.

    Where relevance tells candidates apart, one front is enough. Where it does not, each is soon behind what is
    outside, and the next one is larger.

    Args:
        relevance: of all candidates, with its weight.
        rows: their vectors.
        weight: of overlap.
        names: what ties are broken by.
    """

    _places: Places
    _vectors: NDArray[np.float32]
    _lengths: Floats
    _worth: Floats
    _overlap: Floats
    _marginal: Floats

    def __init__(self, relevance: Floats, rows: NDArray[np.int8], weight: float, names: Sequence[str]) -> None:
        self._relevance = relevance.copy()
        self._bound = relevance.copy()
        self._covered = np.zeros(len(relevance))
        self._compared = np.zeros(len(relevance), dtype=np.int64)
        self._rows = rows
        self._weight = weight
        self._names = names
        self._chosen: list[NDArray[np.float32]] = []
        self._chosen_lengths: list[float] = []
        self._size = _FIRST_FRONT
        self._advance()

    def best(self) -> tuple[int, float]:
        """Where in the front the candidate of the highest marginal is, and that."""
        while True:
            at, marginal = self._highest_marginal()
            ahead = marginal == self._outside and self._names[self._places[at]] < self._outside_name
            if marginal > self._outside or ahead:
                return at, marginal
            self._bound[self._places] = self._marginal
            self._covered[self._places] = self._overlap
            self._compared[self._places] = len(self._chosen)
            self._advance()

    def choose(self, at: int) -> int:
        """Takes one out, and compares the others with it; its place among all candidates."""
        place = int(self._places[at])
        vector, length = self._vectors[at], float(self._lengths[at])
        overlap = _overlaps(product(self._vectors, vector), self._lengths * length)
        np.maximum(self._overlap, overlap, out=self._overlap)
        self._relevance[place] = self._bound[place] = self._worth[at] = -np.inf
        self._marginal = self._worth - self._weight * (self._overlap / _MILLION)
        self._chosen.append(vector)
        self._chosen_lengths.append(length)
        return place

    def _highest_marginal(self) -> tuple[int, float]:
        at = int(self._marginal.argmax())
        marginal = float(self._marginal[at])
        ties = np.flatnonzero(self._marginal == marginal)
        if len(ties) > 1:
            at = min(ties.tolist(), key=lambda one: self._names[int(self._places[one])])
        return at, marginal

    def _advance(self) -> None:
        """Takes those of the highest bounds; what is outside then comes behind them."""
        highest = self._highest()
        self._size = min(2 * self._size, _LARGEST_FRONT)
        self._places = highest[np.argsort(self._compared[highest], kind="stable")]
        self._vectors = self._rows[self._places].astype(np.float32)
        self._lengths = _lengths(self._vectors)
        self._worth = self._relevance[self._places]
        self._overlap = self._covered[self._places]
        self._catch_up()
        self._marginal = self._worth - self._weight * (self._overlap / _MILLION)

    def _catch_up(self) -> None:
        """Compares the front with what was chosen since each of it was compared last, equals side by side."""
        compared = self._compared[self._places]
        for since in np.unique(compared[compared < len(self._chosen)]).tolist():
            late = slice(*np.searchsorted(compared, [since, since + 1]).tolist())
            products = product(self._vectors[late], np.array(self._chosen[since:]).T)
            overlap = _overlaps(products, np.outer(self._lengths[late], self._chosen_lengths[since:])).max(axis=1)
            self._overlap[late] = np.maximum(self._overlap[late], overlap)

    def _highest(self) -> Places:
        """The candidates of the highest bounds, and how high what is outside then reaches."""
        bound, size = self._bound, self._size
        self._outside, self._outside_name = -np.inf, ""
        if len(bound) <= size:
            return np.arange(len(bound))
        least = np.partition(bound, len(bound) - size)[len(bound) - size]
        above, level = np.flatnonzero(bound > least), np.flatnonzero(bound == least)
        room = size - len(above)
        if len(level) <= room:
            self._outside = float(bound.max(where=bound < least, initial=-np.inf))
            return np.concatenate([above, level])
        level = level[np.argsort(self._order[level])]
        self._outside, self._outside_name = float(least), self._names[level[room]]
        return np.concatenate([above, level[:room]])

    @cached_property
    def _order(self) -> Places:
        """Of each candidate its place by name."""
        order = np.empty(len(self._names), dtype=np.int64)
        order[sorted(range(len(order)), key=self._names.__getitem__)] = np.arange(len(order))
        return order


def _lengths(vectors: NDArray[np.float32]) -> Floats:
    """The length of each row; that of no vector is without end, so that nothing overlaps with it."""
    squares = np.einsum("ij,ij->i", vectors, vectors).astype(np.float64)
    return np.sqrt(np.where(squares > 0, squares, np.inf))


def _overlaps(products: NDArray[np.float32], lengths: Floats) -> Floats:
    """Cosines to six decimals, in millionths. Products of whole numbers are exact, in whatever order they are added."""
    cosines = products / lengths
    cosines *= _MILLION
    return np.rint(cosines, out=cosines)
