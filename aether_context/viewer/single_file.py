"""The pages of one session in a single HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from aether_context.store import PackStore
from aether_context.store.replay import Replayer
from aether_context.viewer.packs import pack_page
from aether_context.viewer.pages import Links, render, static
from aether_context.viewer.rows import PackRows, Row, policies_of
from aether_context.viewer.timeline import compared, timeline


@dataclass(frozen=True, slots=True)
class _InFile(Links):
    """Addresses within the file. Packs that are not in it link to its beginning."""

    in_file: bool = True
    shown: frozenset[str] = frozenset()

    def pack_at(self, place: str, part: str = "", **query: Any) -> str:
        if place not in self.shown:
            return "#main"
        name = place.rpartition("/")[2]
        return f"#{_prefix(name)}{part}" if part else f"#{name}"


def report(store: PackStore, place: str, *, most: int = 20, whole: bool = False) -> str:
    """The HTML of a session: its calls, and the newest of its packs in full.

    Args:
        place: the session's folder below the store's base, ``app/user/session`` in safe names.
        most: the most packs that are shown in full.
        whole: whether texts are shown in full, however long they are.
    """
    from markupsafe import Markup

    rows, _ = PackRows(store).of_session(place)
    line = rows[::-1]
    links = _InFile(shown=frozenset(row.place for row in line[-most:]))
    replayer, parts, faults = Replayer(store), [], {}
    for row in line[-most:]:
        if row.fault:
            continue
        try:
            page = pack_page(replayer, store.read(f"{store.files.root}/{row.place}"), _of_agent(line, row))
            pack_values = {"shown": page, "place": row.place, "whole": whole, "prefix": _prefix(row.pack_id)}
            parts.append((row, Markup(render("pack_body.html", links, **pack_values))))
        except Exception as error:  # whoever can write into the store can put anything into its files
            faults[row.place] = f"it cannot be shown: {error or type(error).__name__}"
    line = [replace(row, fault=faults.get(row.place, row.fault)) for row in line]
    values = {
        "shown": timeline(line, policies_of(store)),
        "agents": sorted({row.agent for row in line}),
        "agent": "",
        "place": place,
        "unread": 0,
        "sides": compared(store, line),
    }
    body = render("session_body.html", links, **values)
    style = static("viewer.css")
    return render(
        "report.html",
        links,
        title=line[-1].session,
        style=Markup(style.decode()),
        style_hash=base64.b64encode(hashlib.sha256(style).digest()).decode(),
        session=Markup(body),
        packs=parts,
        shown=len(parts),
        whole_count=len(line),
    )


def _of_agent(line: Sequence[Row], row: Row) -> list[Row]:
    return [candidate for candidate in line if (candidate.agent, candidate.branch) == (row.agent, row.branch)]


def _prefix(pack_id: str) -> str:
    """The prefix of HTML ids within a pack, which makes them unique in the file."""
    return f"{pack_id.rpartition('_')[2]}-"
