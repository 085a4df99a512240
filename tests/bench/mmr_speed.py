"""Milliseconds of processor time to choose 100 of 10,000 candidates by exact maximal marginal relevance.

    python mmr_speed.py [--count N] [--choose N] [--width N] [--runs N]

The candidates are made from a fixed seed: vectors of the static model's width that point anywhere, in a hundred
clusters, or in twenty clusters of near-duplicates, with the cosine with a random query as relevance, and the clusters
once more with relevance that tells the candidates apart. A figure is the least of its runs.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from numpy.typing import NDArray

from aether_context.retrieval.arrays import quantized
from aether_context.retrieval.diversity import mmr

_WEIGHTS = (0.9, 0.7, 0.5, 0.3, 0.1)
_CLUSTERS = {"anywhere": (1, 1.0), "clusters": (100, 0.4), "near-duplicates": (20, 0.1)}


def vectors(kind: str, count: int, width: int, random: np.random.Generator) -> NDArray[np.float32]:
    clusters, spread = _CLUSTERS[kind]
    centres = random.normal(size=(clusters, width)) if clusters > 1 else np.zeros((1, width))
    made = centres[random.integers(clusters, size=count)] + spread * random.normal(size=(count, width))
    return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)


def least_ms(relevance: NDArray[np.float64], rows: NDArray[np.int8], weight: float, k: int, runs: int) -> float:
    names = [f"m{number:06d}" for number in range(len(rows))]
    spent = []
    for _ in range(runs):
        began = time.thread_time()
        mmr(relevance, rows, weight=weight, k=k, names=names)
        spent.append(1_000 * (time.thread_time() - began))
    return min(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--choose", type=int, default=100)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    print("| vectors | " + " | ".join(str(weight) for weight in _WEIGHTS) + " |")
    print("| --- " * (1 + len(_WEIGHTS)) + "|")
    for kind in (*_CLUSTERS, "clusters, told apart"):
        random = np.random.default_rng(1)
        made = vectors(kind.partition(",")[0], args.count, args.width, random)
        query = random.normal(size=args.width)
        relevance = np.maximum(0.0, made @ query / np.linalg.norm(query))
        if kind.endswith("apart"):
            relevance = random.random(args.count)
        rows = quantized(made)
        figures = [least_ms(np.round(relevance, 6), rows, weight, args.choose, args.runs) for weight in _WEIGHTS]
        print(f"| {kind} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")


if __name__ == "__main__":
    main()
