"""Chooses three constants of the search on all sets but one, and shows how well that one does with them.

    AETHER_CONTEXT_DATA=FOLDER python tests/bench/left_out.py [--limit N]

The sets are of four kinds: turns of conversations (LoCoMo), descriptions of tools (Berkeley Function Calling
Leaderboard), abstracts (SciFact) and rules that are nearly alike (`policy_documents.py`, seed 0). The constants, which
all kinds share, are BM25's k1 and b and the share of meaning, as a factor of the package's own. A row is a set: the
constants that the mean of the others chooses, its nDCG@10 with those, with the package's own, and with the best for
itself. The more the columns agree, the less the constants are made for the sets that they were chosen on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import policy_documents
from search_sets import BEST, gain, judged_of
from turn_recall import questions, turns

from aether_context.retrieval import HybridIndex, pool

GRID = list(itertools.product((1.5, 2.0, 2.5), (0.6, 0.75, 0.9), (0.5, 0.75, 1.0, 1.25, 1.5)))
OWN = (pool.K1, pool.B, 1.0)


class Query(NamedTuple):
    """A question of an index, and the grade of what answers it."""

    index: HybridIndex
    text: str
    grades: dict[str, int]


def of_documents(folder: Path, limit: int) -> list[Query]:
    documents, queries = judged_of(folder)
    index = HybridIndex.from_texts(list(documents), list(documents.values()))
    return [Query(index, text, grades) for text, grades in queries[:: max(1, len(queries) // limit)]]


def of_talk(path: Path, limit: int) -> list[Query]:
    queries = []
    for sample in json.loads(path.read_text("utf-8")):
        index = HybridIndex(turns(sample["conversation"]))
        queries += [Query(index, question.text, dict.fromkeys(ids, 1)) for question, ids in questions(sample)]
    return queries[:: max(1, len(queries) // limit)]


def ndcg(queries: Sequence[Query], constants: tuple[float, float, float]) -> float:
    k1, b, share = constants
    with patch.multiple(pool, K1=k1, B=b, _SEMANTIC_WEIGHT=share * pool._SEMANTIC_WEIGHT):
        found = []
        for query in queries:
            query.index._texts._weight = pool._SEMANTIC_WEIGHT
            grades = [query.grades.get(hit.id, 0) for hit in query.index.search(query.text, limit=BEST)]
            found.append(gain(grades) / gain(sorted(query.grades.values(), reverse=True)))
    return statistics.fmean(found)


def shown(constants: tuple[float, float, float]) -> str:
    return " / ".join(f"{value:g}" for value in constants)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=300, help="about so many questions of each set")
    limit, data = parser.parse_args().limit, Path(os.environ["AETHER_CONTEXT_DATA"])
    with tempfile.TemporaryDirectory() as folder:
        policy_documents.write(Path(folder), seed=0)
        sets = {
            "turns": of_talk(data / "locomo.json", limit),
            "tools": of_documents(data / "bfcl-tools", limit),
            "abstracts": of_documents(data / "scifact", limit),
            "rules": of_documents(Path(folder), limit),
        }
    reached = {name: {constants: ndcg(queries, constants) for constants in GRID} for name, queries in sets.items()}
    print("| set | chosen by the others: k1 / b / meaning | with these | with the package's | best |")
    print("| --- | --- | --- | --- | --- |")
    for name, figures in reached.items():
        others = [reached[other] for other in reached if other != name]
        chosen = max(GRID, key=lambda constants: statistics.fmean(other[constants] for other in others))
        best = max(GRID, key=figures.__getitem__)
        cells = f"{figures[chosen]:.3f} | {figures[OWN]:.3f} | {figures[best]:.3f} ({shown(best)})"
        print(f"| {name} ({len(sets[name])}) | {shown(chosen)} | {cells} |")
