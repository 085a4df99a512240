"""`aether-context search`: what an index finds for a query, with each score."""

from __future__ import annotations

from aether_context.cli.terminal import cell, console, grid, moment, print_json
from aether_context.embedding import choice
from aether_context.retrieval import Hit, HybridIndex

_SCORES = ("lexical", "semantic", "neighbours", "time", "recency", "mmr")


def show(query: str, folder: str, *, embedder: str | None, limit: int, mmr_lambda: float, as_json: bool) -> None:
    """Prints hits, best first.

    Args:
        folder: where an index was saved.
        embedder: by name; None takes the default one.

    Raises:
        SearchIndexError: the folder holds no index that can be read.
    """
    if embedder is not None and embedder.partition(":")[0] not in {"none", *choice.KINDS}:
        from aether_context.adk.embeddings import register_embedders

        register_embedders()
    index = HybridIndex.load(folder, embedder)
    hits = index.search(query, limit, mmr_lambda=mmr_lambda)
    if as_json:
        print_json([_value(hit) for hit in hits])
    elif not hits:
        console(stderr=True).print(cell(f"nothing in {folder} answers that: {len(index):,} entries were looked at"))
    else:
        _print(hits)


def _print(hits: list[Hit]) -> None:
    shown = [name for name in _SCORES if any(hit.scores.get(name) for hit in hits)]
    table = grid("id", ">score", *(f">{name}" for name in shown), "time (UTC)", "text")
    for hit in hits:
        scores = [f"{hit.scores[name]:.3f}" if name in hit.scores else "" for name in shown]
        said = cell(hit.entry.searched, limit=160)
        table.add_row(cell(hit.id, limit=40), f"{hit.score:.3f}", *scores, moment(hit.entry.time), said)
    console().print(table)


def _value(hit: Hit) -> dict[str, object]:
    entry = hit.entry
    told = {"time": entry.time, "speaker": entry.speaker, "thread": entry.thread}
    return {"id": hit.id, "score": hit.score, "scores": dict(hit.scores), "text": hit.text, **told}
