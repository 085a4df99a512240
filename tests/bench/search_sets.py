"""Searches a judged set of documents: rows in Markdown, one for each embedder, and rank-bm25 beside them.

    python tests/bench/search_sets.py FOLDER [--embedder NAME ...] [--limit N]

The folder has the form of BEIR's sets (Thakur et al., 2021): `corpus.jsonl` with ``_id``, ``title`` and ``text``,
`queries.jsonl` with ``_id`` and ``text``, `qrels.tsv` with query, document and grade. Printed are nDCG@10, with the
grade as the gain, the share of the relevant documents among the best ten, and milliseconds of processor time a query.
Cells are means over queries; see sessions.py.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rank_bm25 import BM25Okapi
from sessions import Figures, print_table, rows_of

from aether_context.retrieval import HybridIndex
from aether_context.retrieval.terms import terms

BEST = 10
COLUMNS = {"nDCG@10": (1.0, 3), "recall@10": (1.0, 3), "ms": (1.0, 1)}
PEER = "rank-bm25"

Search = Callable[[str], list[str]]


def search_of(name: str, ids: list[str], texts: list[str]) -> Search:
    """The ids of the best documents for a query, best first."""
    if name == PEER:
        bm25 = BM25Okapi([terms(text) for text in texts])
        return lambda query: [ids[at] for at in np.argsort(-bm25.get_scores(terms(query)), kind="stable")[:BEST]]
    index = HybridIndex.from_texts(ids, texts, embedder=name)
    return lambda query: [hit.id for hit in index.search(query, limit=BEST)]


def gain(grades: list[int]) -> float:
    return sum(grade / math.log2(place + 2) for place, grade in enumerate(grades[:BEST]))


def judged_of(folder: Path) -> tuple[dict[str, str], list[tuple[str, dict[str, int]]]]:
    """The documents of a set by their ids, and its queries with the grades of what answers them."""
    documents = {
        str(row["_id"]): f"{row.get('title', '')} {row['text']}".strip() for row in rows_of(folder / "corpus.jsonl")
    }
    judged: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        judged.setdefault(query, {})[document] = int(grade)
    rows = rows_of(folder / "queries.jsonl")
    return documents, [(row["text"], judged[name]) for row in rows if (name := str(row["_id"])) in judged]


def measured(folder: Path, names: list[str], limit: int | None) -> Iterator[tuple[list[str], list[Figures]]]:
    """A row for each embedder."""
    documents, queries = judged_of(folder)
    for name in names:
        search, found = search_of(name, list(documents), list(documents.values())), []
        for text, grades in queries[:limit]:
            began = time.process_time()
            hits = search(text)
            spent = time.process_time() - began
            relevant = [document for document, grade in grades.items() if grade > 0]
            found.append(
                {
                    "nDCG@10": (
                        gain([grades.get(hit, 0) for hit in hits]),
                        gain(sorted(grades.values(), reverse=True)),
                    ),
                    "recall@10": (len({*hits}.intersection(relevant)), len(relevant)),
                    "ms": (1_000 * spent, 1),
                }
            )
        yield [name], found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--embedder", nargs="*", default=["static", "none"], help="as a policy names them")
    parser.add_argument("--limit", type=int, help="only the first queries")
    given = parser.parse_args()
    print_table(("what",), COLUMNS, measured(given.folder, [*given.embedder, PEER], given.limit))
