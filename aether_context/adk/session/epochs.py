"""The epoch in session state: small, plain JSON under ``aether:`` keys, written only where it changed.

    aether:epoch:{scope}                 boundary, marks, extract ceilings, the number of packed messages
    aether:summary:{scope}               the summary of what was cut, written once an epoch
    aether:tools:{scope}                 the declarations that are sent where not all are, written when they change
    aether:payload:{scope}:{number}      a packed message, written once an invocation

``scope`` stands for agent and branch. A state that another session left there (ADK copies a parent's state into child
sessions) is not this session's and is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

from pydantic import TypeAdapter

from aether_context.canonical import hash_json, short
from aether_context.conversation.turns import live_positions
from aether_context.pack import Epoch, Identity, Keep, PackedMessage, valid

_MOST_PAYLOADS = 64


class SessionState(Protocol):
    """What is used of ADK's ``State``."""

    def __setitem__(self, key: str, value: Any) -> None: ...


_EPOCH, _MESSAGE, _TOOLS = TypeAdapter(Epoch), TypeAdapter(PackedMessage), TypeAdapter(Mapping[str, Keep])
_ELSEWHERE = {"summary", "tools", "payloads"}
"""Fields of an epoch that have keys of their own."""


def load(state: Mapping[str, Any], identity: Identity) -> Epoch:
    """The epoch that a session's state holds for an agent and branch; a new one where it holds none that is sound."""
    scope = _scope(identity)
    fields = _fields(state.get(f"aether:epoch:{scope}"), identity)
    if not fields:
        return Epoch(number=0)
    count = fields.pop("payloads", 0)
    if type(count) is not int or not 0 <= count <= _MOST_PAYLOADS:
        return Epoch(number=0)
    if not fields.get("cut_count"):
        fields["summary_place"] = 0
    slots = [_fields(state.get(f"aether:payload:{scope}:{slot}"), identity) for slot in range(count)]
    fields["payloads"] = tuple(message for slot in slots if (message := _message(slot)) is not None)
    fields["tools"] = valid(_TOOLS, _fields(state.get(f"aether:tools:{scope}"), identity).get("kept")) or {}
    epoch = valid(_EPOCH, fields)
    if epoch is None or not _ascends(epoch):
        return Epoch(number=0)
    summary = state.get(f"aether:summary:{scope}") if epoch.cut_count else ""
    return replace(epoch, summary=_plain(summary)) if isinstance(summary, str) and summary else epoch


def _message(fields: Mapping[str, Any]) -> PackedMessage | None:
    message = valid(_MESSAGE, fields)
    if message is None or not (message.covers or message.text.startswith(_ESCAPE)):
        return message
    return replace(message, text=_plain(message.text), covers=tuple(map(_plain, message.covers)))


def _fields(value: object, identity: Identity) -> dict[str, Any]:
    """What stands in a key of a session's state beside the session's name; nothing where that is another's."""
    if not isinstance(value, Mapping) or value.get("session") != identity.session:
        return {}
    return {name: field for name, field in value.items() if name not in ("session", "summary")}


def _ascends(epoch: Epoch) -> bool:
    """Whether what is kept ascends below the boundary, so that no content can be sent twice."""
    ends = [0, *(end for pair in epoch.kept for end in pair), epoch.cut_count]
    return ends == sorted(ends) and all(start < stop for start, stop in epoch.kept)


def holds(state: Mapping[str, Any], identity: Identity, stored: Mapping[str, Any] | None) -> bool:
    """Whether a session's state still holds what `save` put there."""
    return bool(state.get(f"aether:epoch:{_scope(identity)}") == stored)


def save(state: SessionState, identity: Identity, before: Epoch, after: Epoch) -> Mapping[str, Any]:
    """Writes what changed from one epoch to the next; returns what the state now holds under the epoch's key."""
    payloads = after.payloads[-_MOST_PAYLOADS:]
    value = {
        "session": identity.session,
        **_EPOCH.dump_python(after, mode="json", exclude=_ELSEWHERE),
        "payloads": len(payloads),
    }
    if before == after:
        return value
    scope = _scope(identity)
    for slot, message in enumerate(payloads):
        if before.payloads[slot : slot + 1] != (message,):
            written = _MESSAGE.dump_python(message, mode="json")
            written |= {"text": _escaped(message.text), "covers": [*map(_escaped, message.covers)]}
            state[f"aether:payload:{scope}:{slot}"] = {"session": identity.session, **written}
    for slot in range(len(payloads), len(before.payloads)):
        state[f"aether:payload:{scope}:{slot}"] = None
    if after.tools != before.tools:
        state[f"aether:tools:{scope}"] = {"session": identity.session, "kept": dict(after.tools)}
    if after.summary != before.summary:
        state[f"aether:summary:{scope}"] = _escaped(after.summary)
    state[f"aether:epoch:{scope}"] = value
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """An epoch whose boundary fits the host's list, and the positions that are still sent.

    ``rewritten`` is set where the boundary was not found again and everything is live.
    """

    epoch: Epoch
    positions: tuple[int, ...]
    rewritten: bool = False
    note: str = ""


def align(epoch: Epoch, total: int, digest_at: Callable[[int], str]) -> Aligned:
    """Finds the boundary in the host's list by the hash of the last content cut.

    Args:
        total: length of the host's list.
        digest_at: the digest of the content at a position.
    """
    if not epoch.cut_count:
        return Aligned(epoch=epoch, positions=tuple(range(total)))
    last = epoch.cut_count - 1
    if last < total and _stands(epoch, 0, digest_at):
        return Aligned(epoch=epoch, positions=live_positions(epoch, total))
    shifts = [at - last for at in range(total) if digest_at(at) == epoch.cut_hash]
    shifts = [shift for shift in shifts if _stands(epoch, shift, digest_at)]
    if len(shifts) != 1:
        return reset(epoch, total, "the boundary of the last cut is gone")
    moved = _shifted(epoch, shifts[0])
    return Aligned(
        epoch=moved, positions=live_positions(moved, total), note=f"the boundary of the last cut moved by {shifts[0]}"
    )


def _stands(epoch: Epoch, shift: int, digest_at: Callable[[int], str]) -> bool:
    """Whether the last content cut, and the other anchors that are still in the list, stand ``shift`` further."""
    if digest_at(epoch.cut_count - 1 + shift) != epoch.cut_hash:
        return False
    return all(short(digest_at(at + shift)) == digest for at, digest in epoch.anchors if at + shift >= 0)


def reset(epoch: Epoch, total: int, note: str) -> Aligned:
    """An epoch that has cut nothing yet, where history is not what its boundary was drawn in."""
    fresh = Epoch(number=epoch.number, contract=epoch.contract, marks=epoch.marks, tools=epoch.tools)
    return Aligned(epoch=fresh, positions=tuple(range(total)), rewritten=True, note=note)


def _shifted(epoch: Epoch, shift: int) -> Epoch:
    kept = tuple((max(0, start + shift), stop + shift) for start, stop in epoch.kept if stop + shift > 0)
    anchors = tuple((at + shift, digest) for at, digest in epoch.anchors if at + shift >= 0)
    place = max(0, epoch.summary_place + shift) if epoch.summary_place else 0
    payloads = tuple(
        replace(message, place=max(-1, message.place + shift)) if message.place >= 0 else message
        for message in epoch.payloads
    )
    return replace(
        epoch,
        cut_count=epoch.cut_count + shift,
        kept=kept,
        anchors=anchors,
        summary_place=place,
        payloads=payloads,
    )


def _scope(identity: Identity) -> str:
    return _scope_of(identity.branch, identity.agent)


@lru_cache(maxsize=1_000)
def _scope_of(branch: str, agent: str) -> str:
    return short(hash_json([branch, agent]))


_ESCAPE = "json:"


def _escaped(text: str) -> str:
    """A text that any session store takes, from which `_plain` gives the same text again."""
    sound = storable(text) == text and not text.startswith(_ESCAPE)
    return text if sound else _ESCAPE + json.dumps(text)


def _plain(stored: str) -> str:
    if not stored.startswith(_ESCAPE):
        return stored
    try:
        text = json.loads(stored.removeprefix(_ESCAPE))
    except ValueError:
        return stored
    return text if isinstance(text, str) else stored


def storable(text: str) -> str:
    """Text that any session store takes: lone surrogates and NUL become replacement characters."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
