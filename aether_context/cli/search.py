"""`aether-context search`: what an index finds for a query, with each score."""

from __future__ import annotations

from contextlib import closing

from aether_context.cli.terminal import cell, console, grid, moment, print_json, tell
from aether_context.errors import SearchIndexError
from aether_context.memory import Memories, Remembered, located
from aether_context.retrieval import Entry, Hit, HybridIndex, embedders

_SCORES = ("lexical", "semantic", "neighbours", "time", "recency")


def show(
    query: str,
    folder: str,
    *,
    app: str | None,
    user: str | None,
    embedder: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Prints hits, best first.

    Args:
        folder: where an index was saved, or the file or folder of a memory service.
        app: whose memories, of those in such a file; None takes the only ones there are. So does ``user``.
        embedder: by name; None takes the default one.

    Raises:
        SearchIndexError: there is neither, it cannot be read, or it is not said whose memories are meant.
        StoreError: the file holds no memories.
    """
    if embedder is not None and embedder.partition(":")[0] not in {"none", *embedders.KINDS}:
        from aether_context.adk.models.gemini import register_embedders

        register_embedders()
    if located(folder).is_file():
        hits, count = _remembered(query, folder, app, user, embedder, limit)
    else:
        index = HybridIndex.load(folder, embedder)
        hits, count = index.search(query, limit), len(index)
    if as_json:
        print_json([_value(hit) for hit in hits])
    elif not hits:
        tell(f"nothing in {folder} answers that: {count:,} entries were looked at")
    else:
        _print(hits)


def _remembered(
    query: str, path: str, app: str | None, user: str | None, embedder: str | None, limit: int
) -> tuple[list[Hit], int]:
    """Hits among one user's memories, and how many of these there are."""
    with closing(Memories(path, embedder=embedder)) as memories:
        users = memories.users()
        if not users:
            raise SearchIndexError(f"{path} holds no memories")
        fitting = [one for one in users if app in (None, one[0]) and user in (None, one[1])]
        if len(fitting) != 1:
            known = "; ".join(f"--app {one[0]} --user {one[1]}" for one in users[:10])
            raise SearchIndexError(f"{path} holds the memories of {len(fitting)} users that fit: name one of {known}")
        whose, of, count = fitting[0]
        return [_hit(one) for one in memories.search(whose, of, query, limit)], count


def _hit(found: Remembered) -> Hit:
    one = found.memory
    entry = Entry(id=one.name, text=one.text, time=one.time, speaker=one.author, thread=one.session or None)
    return Hit(entry=entry, score=found.score, scores=found.scores)


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
