"""The pages that compare two packs, or a pack with what another policy would have made of it."""

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
"""Most characters of settings."""
POLICIES = (*PROFILES, *(name for name in PRESETS if name != "balanced"))
"""Names of policies to choose from."""
_MOST_LINES = 1_500
"""Most lines of two texts that are compared; of longer ones the beginnings are shown."""
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
        """The text of a candidate, from the second pack or else the first."""
        return self.difference.after.texts.get(row) or self.difference.before.texts.get(row, "")

    @property
    def texts(self) -> Iterator[tuple[bool, Lines, Piece, int]]:
        """Tuples (same, lines, piece, count): one for each run of equal pieces, with their number, and one for each
        piece that differs, with its lines."""
        same_count = 0
        for change in self.difference.texts:
            piece = change.after or change.before
            assert piece is not None
            if change.same:
                same_count += 1
                last_piece = piece
                continue
            if same_count:
                yield True, (), last_piece, same_count
                same_count = 0
            yield False, _lines(change), piece, 1
        if same_count:
            yield True, (), last_piece, same_count


def _lines(change: TextChange) -> Lines:
    """The lines of a change, without equal lines far from it."""
    size = sum(piece.text.count("\n") for piece in (change.before, change.after) if piece is not None)
    selected: list[tuple[Literal[" ", "-", "+"], str]] = []
    if size > _MOST_LINES:
        if change.before is not None:
            selected.append(("-", _beginning(change.before)))
        if change.after is not None:
            selected.append(("+", _beginning(change.after)))
        return selected
    lines = list(change.lines)
    near_change = {
        index
        for changed, (kind, _) in enumerate(lines)
        if kind != " "
        for index in range(changed - _AROUND, changed + _AROUND + 1)
    }
    for index, line in enumerate(lines):
        if index in near_change:
            selected.append(line)
        elif selected and selected[-1] != (" ", "…"):
            selected.append((" ", "…"))
    return selected


def _beginning(piece: Piece) -> str:
    return f"{piece.text[:2_000]} … {len(piece.text):,} characters"


def side_by_side(replayer: Replayer, before: Manifest, after: Manifest) -> DiffPage:
    """Two recorded packs."""
    return DiffPage(difference(read_view(replayer, before), read_view(replayer, after)))


def what_if(replayer: Replayer, manifest: Manifest, policy: PackPolicy) -> DiffPage:
    """A recorded pack and what a policy makes of its input; `ReplayError` where that was not recorded."""
    return DiffPage(difference(read_view(replayer, manifest), view_under(replayer, manifest, policy)))


def policy_of(recorded: PackPolicy, *, name: str, toml: str, window: int | None) -> PackPolicy:
    """The recorded policy or a named one, with settings on top.

    Raises:
        PolicyError: there is no policy of that name, or the settings are not valid.
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
