"""What two packs side by side show, and what one would have been under another policy."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aether_context.canonical import JSON
from aether_context.errors import PolicyError
from aether_context.policy import PRESETS, PROFILES, PackPolicy
from aether_context.store import Manifest
from aether_context.store.replay import Replayer
from aether_context.views import Difference, Piece, TextChange, difference, read_view, view_under

MOST_TOML = 8_000
"""Characters of settings that are read."""
POLICIES = (*PROFILES, *(name for name in PRESETS if name != "balanced"))
"""Policies by name."""
_MOST_LINES = 1_500
"""Lines of a text that are compared; longer ones are shown by their beginnings."""
_AROUND = 3

Lines: TypeAlias = Sequence[tuple[Literal[" ", "-", "+"], str]]


@dataclass(frozen=True, slots=True)
class DiffPage:
    """Two packs. The second may never have been sent."""

    difference: Difference

    @property
    def gaps(self) -> tuple[str, ...]:
        return (*self.difference.before.gaps, *self.difference.after.gaps)

    def text_of(self, row: str) -> str:
        """The text of a candidate, from whichever pack knows it."""
        return self.difference.after.texts.get(row) or self.difference.before.texts.get(row, "")

    @property
    def texts(self) -> Iterator[tuple[bool, Lines, Piece, int]]:
        """Runs of pieces that are the same, with their number, and each one that is not, with its lines."""
        same = 0
        for change in self.difference.texts:
            piece = change.after or change.before
            assert piece is not None
            if change.same:
                same += 1
                last = piece
                continue
            if same:
                yield True, (), last, same
                same = 0
            yield False, _lines(change), piece, 1
        if same:
            yield True, (), last, same


def _lines(change: TextChange) -> Lines:
    """The lines of a change, those that are the same and far from it left out."""
    size = sum(piece.text.count("\n") for piece in (change.before, change.after) if piece is not None)
    shown: list[tuple[Literal[" ", "-", "+"], str]] = []
    if size > _MOST_LINES:
        if change.before is not None:
            shown.append(("-", _beginning(change.before)))
        if change.after is not None:
            shown.append(("+", _beginning(change.after)))
        return shown
    lines = list(change.lines)
    near = {
        at for place, (kind, _) in enumerate(lines) if kind != " " for at in range(place - _AROUND, place + _AROUND + 1)
    }
    for at, line in enumerate(lines):
        if at in near:
            shown.append(line)
        elif shown and shown[-1] != (" ", "…"):
            shown.append((" ", "…"))
    return shown


def _beginning(piece: Piece) -> str:
    return f"{piece.text[:2_000]} … {len(piece.text):,} characters"


def side_by_side(replayer: Replayer, before: Manifest, after: Manifest) -> DiffPage:
    """Two recorded packs."""
    return DiffPage(difference(read_view(replayer, before), read_view(replayer, after)))


def what_if(replayer: Replayer, manifest: Manifest, policy: PackPolicy) -> DiffPage:
    """A recorded pack beside what a policy makes of its material; `ReplayError` where that is not recorded."""
    return DiffPage(difference(read_view(replayer, manifest), view_under(replayer, manifest, policy)))


def policy_of(recorded: PackPolicy, *, name: str, toml: str, window: int | None) -> PackPolicy:
    """The recorded policy or the one of a name, with settings on top.

    Raises:
        PolicyError: there is none of that name, or the settings are none.
    """
    if name and name not in POLICIES:
        raise PolicyError(f"{name!r} is no policy: known are {', '.join(POLICIES)}", field="policy")
    if len(toml) > MOST_TOML:
        raise PolicyError(f"the settings are longer than {MOST_TOML:,} characters", field="toml")
    try:
        settings: Mapping[str, JSON] = tomllib.loads(toml)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise PolicyError(f"the settings are not TOML: {error}", field="toml") from error
    if window is not None:
        settings = {**settings, "max_input_tokens": window}
    policy = PackPolicy.load(name) if name else recorded
    return policy.changed(**settings)
