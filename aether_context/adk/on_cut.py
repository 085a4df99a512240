"""What a cut would take, handed to the app before it is made, which may keep some of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from aether_context.adk.bounds import failure, in_thread, within
from aether_context.conversation.turns import Unit, units
from aether_context.pack import Anchor, Pack
from aether_context.packing.draft import occurrence_keys
from aether_context.policy import KEPT_PRIORITY

_SECONDS = 2.0
_FIRST_WORDS = 160
_KEPT_SHARE = 0.25
"""The most that is kept, as a share of the window."""


@dataclass(frozen=True, slots=True)
class CutEntry:
    """What leaves together at a cut: a message, or an exchange, which is calls of tools with their results.

    Attributes:
        author: ``user``, ``model``, ``calls`` for an exchange, or the name of another agent.
        words: how it begins, at most 160 characters, on one line.
        tokens: what it takes in the request.
        addresses: where all of its stored results can be read.
        index: the index of its first content in the agent's history.
    """

    author: str
    words: str
    tokens: int
    addresses: tuple[str, ...]
    index: int


class UpcomingCut:
    """A cut that is about to be made in one agent's conversation.

    Attributes:
        app, user, session, agent, invocation: whose it is.
        entries: what it would take, the oldest first.
        room: tokens that may still be kept, at first a quarter of the window.
    """

    def __init__(self, pack: Pack) -> None:
        self.app, self.user, self.session, self.invocation, self.agent = pack.identity[:5]
        self.entries = tuple(_entries(pack))
        self.room = int(_KEPT_SHARE * pack.source.window)
        self._kept: dict[int, CutEntry] = {}

    @property
    def tokens(self) -> int:
        """Tokens of all entries but those that are kept."""
        return sum(entry.tokens for entry in self.entries if entry.index not in self._kept)

    def keep(self, entry: CutEntry) -> bool:
        """Keeps an entry at this cut; others may leave in its place. The next cut asks again.

        Returns:
            Whether it is kept: not where it takes more than the room that is left.
        """
        if entry.index not in self._kept:
            if entry not in self.entries or entry.tokens > self.room:
                return False
            self.room -= entry.tokens
            self._kept[entry.index] = entry
        return True

    def keep_nothing(self) -> None:
        """Takes back what was kept."""
        self._kept = {}

    def anchors(self) -> list[Anchor]:
        """What is kept, as anchors of the conversation."""
        words = "kept by on_cut"
        return [Anchor(place=index, kind="custom", priority=KEPT_PRIORITY, description=words) for index in self._kept]


OnCut: TypeAlias = Callable[[UpcomingCut], str | Awaitable[str | None] | None]
"""Is handed a cut, in a thread of its own or as a coroutine, and has two seconds. A text that it returns is for the
user: it stands as ``notice`` in the metadata of the answer's event."""


async def ask(on_cut: OnCut, cut: UpcomingCut, warn: Callable[[str], None]) -> str:
    """Hands a cut to an app's hook; returns what it says. One that fails or is late keeps nothing."""
    try:
        answer = await within(_SECONDS, _answer(on_cut, cut))
    except BaseException as error:
        cut.keep_nothing()
        warn(f"on_cut changed nothing: {type(failure(error)).__name__}: {error}")
        return ""
    return answer if isinstance(answer, str) else ""


async def _answer(on_cut: OnCut, cut: UpcomingCut) -> object:
    answer = await in_thread(partial(on_cut, cut))
    return await answer if inspect.isawaitable(answer) else answer


def _entries(pack: Pack) -> list[CutEntry]:
    request, rows, forms = pack.source.request, pack.rows, pack.source.epoch.forms
    shortened = [forms.get(key, ("", 0))[1] for key in occurrence_keys(request.contents)] if forms else []
    cut_ids = {name for event in pack.events if event.stage == "cut" for name in event.item_ids}
    going = {
        at
        for at, row in enumerate(rows[: len(request.contents)])
        if row.id in cut_ids and row.form in ("left_out", "summarized")
    }

    def sent_tokens(at: int) -> int:
        short = shortened[at] * len(request.contents[at].parts) if shortened else 0
        return min(rows[at].tokens, short) if short else rows[at].tokens

    def entry(unit: Unit) -> CutEntry:
        first = rows[unit.indices[0]]
        texts = (part.text for at in unit.indices for part in request.contents[at].parts if not part.is_thought)
        words = " ".join(" ".join(texts).split())[:_FIRST_WORDS]
        addresses = tuple(rows[at].uri for at in unit.indices if rows[at].uri)
        tokens = sum(sent_tokens(at) for at in unit.indices)
        return CutEntry(first.source, words, tokens, addresses, request.positions[unit.indices[0]])

    return [entry(unit) for unit in units(request.contents) if going.issuperset(unit.indices)]
