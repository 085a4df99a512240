"""`aether-context search`: what an index finds for a query, with each score."""

from __future__ import annotations

import os
from contextlib import closing

from aether_context.cli.terminal import Screen, cell, grid, moment, print_json, tell
from aether_context.errors import SearchIndexError
from aether_context.memory import Memories, located
from aether_context.memory.places import is_postgres, shown
from aether_context.retrieval import Entry, Hit, embedders


def show(
    query: str, path: str, *, app: str | None, user: str | None, embedder: str | None, limit: int, as_json: bool
) -> None:
    """Prints hits, best first.

    Args:
        path: the file or folder of a memory service.
        app: whose memories, of those in the file; None takes the only ones there are. So does ``user``.
        embedder: by name; None takes the default one.
    """
    if embedder is not None and embedder.partition(":")[0] not in {"none", *embedders.KINDS}:
        from aether_context.adk.models.gemini import register_embedders

        register_embedders()
    if not is_postgres(path) and not os.path.isfile(located(path)):
        raise SearchIndexError(f"there is no file of memories at {located(path)}")
    hits, count = _search_memories(query, path, app, user, embedder, limit)
    if as_json:
        print_json(
            [
                {
                    "id": hit.id,
                    "score": hit.score,
                    "scores": dict(hit.scores),
                    "text": hit.text,
                    "time": hit.entry.time,
                    "speaker": hit.entry.speaker,
                    "thread": hit.entry.thread,
                }
                for hit in hits
            ]
        )
        return
    if not hits:
        tell(f"nothing in {shown(path)} answers that: {count:,} entries were looked at")
        return
    names = ("lexical", "semantic", "neighbours", "time", "recency")
    told = [name for name in names if any(hit.scores.get(name) for hit in hits)]
    table = grid("id", ">score", *(f">{name}" for name in told), "time (UTC)", "text")
    for hit in hits:
        scores = [f"{hit.scores[name]:.3f}" if name in hit.scores else "" for name in told]
        text = cell(hit.entry.searched, limit=160)
        table.add_row(cell(hit.id, limit=40), f"{hit.score:.3f}", *scores, moment(hit.entry.time), text)
    Screen().print(table)


def _search_memories(
    query: str, path: str, app: str | None, user: str | None, embedder: str | None, limit: int
) -> tuple[list[Hit], int]:
    """Hits among one user's memories, and how many of these there are."""
    with closing(Memories(path, embedder=embedder)) as memories:
        owners = memories.users()
        if not owners:
            raise SearchIndexError(f"{shown(path)} holds no memories")
        fitting = [owner for owner in owners if app in (None, owner[0]) and user in (None, owner[1])]
        if len(fitting) != 1:
            known = "; ".join(f"--app {of_app} --user {of_user}" for of_app, of_user, *_ in owners[:10])
            raise SearchIndexError(
                f"{shown(path)} holds the memories of {len(fitting)} users that fit: name one of {known}"
            )
        of_app, of_user, count = fitting[0]
        hits = []
        for found in memories.search(of_app, of_user, query, limit):
            memory = found.memory
            speaker, thread = memory.author, memory.session or None
            entry = Entry(id=memory.name, text=memory.text, time=memory.time, speaker=speaker, thread=thread)
            hits.append(Hit(entry=entry, score=found.score, scores=found.scores))
        return hits, count
