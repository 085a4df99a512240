"""The place of the last cut in a host's list, which may have changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

from aether_context.canonical import short
from aether_context.pack import MOST_PARTS, Epoch, values_of


class EpochMatch(NamedTuple):
    """An epoch whose boundary fits the host's list.

    ``rewritten`` is set where the boundary was not found again and everything is live.
    """

    epoch: Epoch
    rewritten: bool = False
    note: str = ""


def align(epoch: Epoch, total: int, digest_at: Callable[[int], str]) -> EpochMatch:
    """Finds the boundary in the host's list of ``total`` contents by the hash of the last content cut."""
    if not epoch.cut_count:
        return EpochMatch(epoch)
    last = epoch.cut_count - 1

    def is_at(shift: int) -> bool:
        """Tells whether the last content cut, and the other anchors still in the list, are ``shift`` places further."""
        return digest_at(last + shift) == epoch.cut_hash and all(
            short(digest_at(at + shift)) == digest for at, digest in epoch.anchors if at + shift >= 0
        )

    if last < total and is_at(0):
        return EpochMatch(epoch)
    shifts = [at - last for at in range(total) if digest_at(at) == epoch.cut_hash and is_at(at - last)]
    if len(shifts) != 1:
        return reset(epoch, "the boundary of the last cut is gone")
    shift = shifts[0]
    moved = replace(
        epoch,
        cut_count=epoch.cut_count + shift,
        kept=tuple((max(0, start + shift), stop + shift) for start, stop in epoch.kept if stop + shift > 0),
        anchors=tuple((at + shift, digest) for at, digest in epoch.anchors if at + shift >= 0),
        summary_place=max(0, epoch.summary_place + shift) if epoch.summary_place else 0,
        thoughts=max(0, epoch.thoughts + shift),
        unseen=tuple((start + shift * MOST_PARTS, stop + shift * MOST_PARTS) for start, stop in epoch.unseen),
        payloads=tuple(
            replace(message, place=max(-1, message.place + shift)) if message.place >= 0 else message
            for message in epoch.payloads
        ),
    )
    return EpochMatch(moved, note=f"the boundary of the last cut moved by {shift}")


def reset(epoch: Epoch, note: str) -> EpochMatch:
    """An epoch that has cut nothing yet, where history is not what its boundary was drawn in."""
    fresh = Epoch(**values_of(epoch, "number", "contract", "marks", "tools", "rewound", "refusals"))
    return EpochMatch(fresh, rewritten=True, note=note)


def live_positions(epoch: Epoch, total: int) -> tuple[int, ...]:
    """Indices in a host's list of ``total`` contents that are still sent."""
    kept_positions = [index for start, stop in epoch.kept for index in range(start, min(stop, total))]
    return (*kept_positions, *range(min(epoch.cut_count, total), total))


def is_live(epoch: Epoch, position: int) -> bool:
    """Tells whether the content at a place of the host's list is still sent."""
    return position >= epoch.cut_count or any(start <= position < stop for start, stop in epoch.kept)


def as_ranges(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Indices as half-open ranges, sorted."""
    # In a run of indices each is as far from its place as the one before.
    runs = groupby(enumerate(sorted(indices)), key=lambda pair: pair[1] - pair[0])
    members = ([index for _, index in run] for _, run in runs)
    return tuple((run[0], run[-1] + 1) for run in members)
