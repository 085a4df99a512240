"""`aether-context export-memories` and `import-memories`: what a memory service remembers, as lines, and back."""

from __future__ import annotations

import io
import sys
from contextlib import closing
from dataclasses import asdict
from typing import cast

import click

from aether_context.cli import packs
from aether_context.cli.terminal import NOT_THERE, Screen, print_json, tell
from aether_context.errors import StoreError
from aether_context.memory import Refused, export_lines, located
from aether_context.memory import import_memories as bring_in
from aether_context.memory.places import is_postgres, shown


def export_all(uri: str, *, app: str | None, user: str | None) -> None:
    """Prints the memories of all users, or of those of an app and a name."""
    from aether_context.adk.services.memory import HybridMemoryService, parsed

    place, _ = parsed(uri)
    if not is_postgres(place) and not (place and located(place).is_file()):
        raise StoreError(f"{uri!r} holds no memories: there is no such file")
    with closing(HybridMemoryService(uri).memories) as memories:
        count = -1
        for line in export_lines(memories, app, user):
            click.echo(line.encode())
            count += 1
    if not count and (app or user):
        raise StoreError(f"no memories{packs.whose(app=app, user=user, session=None)} in {shown(uri)}")
    tell(f"{count:,} memories")


def import_all(uri: str, source: str, *, app: str | None, user: str | None, revive: bool, as_json: bool) -> int:
    """Adds memories of a file, and names those that are none."""
    from aether_context.adk.services.memory import HybridMemoryService

    def refuse(refused: Refused) -> None:
        tell(f"refused: {source}, {refused.place}: {refused.reason}", "red")

    with closing(HybridMemoryService(uri).memories) as memories:
        given = cast(io.BufferedIOBase, sys.stdin.buffer) if source == "-" else source
        done = bring_in(memories, given, app=app, user=user, revive=revive, on_refused=refuse)
    if as_json:
        print_json(asdict(done))
    else:
        known = f"{done.read - done.written:,} were there or had been deleted"
        Screen().print_line(f"{done.written:,} memories added to {shown(uri)}, {known}, {done.refused:,} refused")
    return NOT_THERE if done.refused else 0
