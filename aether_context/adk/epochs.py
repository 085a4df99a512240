"""The epoch in session state: small, plain JSON under ``aether:`` keys, written only where it changed.

    aether:epoch:{scope}                 boundary, marks, extract ceilings, names of packed messages
    aether:summary:{scope}               the summary of what was cut, written once an epoch
    aether:payload:{scope}:{invocation}  a packed message, written once an invocation

``scope`` stands for agent and branch. A state that another session left there (ADK copies a parent's state into child
sessions) is not this session's and is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from aether_context.canonical import hash_json, hash_text, short
from aether_context.conversation import live_positions
from aether_context.pack import Epoch, Identity, PackedMessage


class SessionState(Protocol):
    """What is used of ADK's ``State``."""

    def __setitem__(self, key: str, value: Any) -> None: ...


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)

    session: str
    number: int
    cut_count: int = 0
    cut_hash: str = ""
    kept: tuple[tuple[int, int], ...] = ()
    contract: bool = False
    extracts: dict[str, int] = {}
    payloads: tuple[str, ...] = ()
    marks: dict[str, str] = {}


class _StoredPayload(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    session: str
    of: str
    invocation: str
    before: str
    after: str
    used: dict[str, int] = {}


def load(state: Mapping[str, Any], identity: Identity) -> Epoch:
    """The epoch that a session's state holds for an agent and branch; a new one where it holds none that is sound."""
    scope = _scope(identity)
    held = state.get(f"aether:epoch:{scope}")
    if held is None:
        return Epoch()
    try:
        stored = _Stored.model_validate(held)
    except ValidationError:
        return Epoch()
    if stored.session != identity.session:
        return Epoch()
    summary = state.get(f"aether:summary:{scope}")
    return Epoch(
        number=stored.number,
        cut_count=stored.cut_count,
        cut_hash=stored.cut_hash,
        kept=stored.kept,
        summary=summary if isinstance(summary, str) and stored.cut_count else "",
        contract=stored.contract,
        extracts=stored.extracts,
        payloads=tuple(one for name in stored.payloads if (one := _payload(state, scope, name, identity)) is not None),
        marks=stored.marks,
    )


def holds(state: Mapping[str, Any], identity: Identity, stored: Mapping[str, Any] | None) -> bool:
    """Whether a session's state still holds what `save` put there."""
    return bool(state.get(f"aether:epoch:{_scope(identity)}") == stored)


def save(state: SessionState, identity: Identity, before: Epoch, after: Epoch) -> Mapping[str, Any]:
    """Writes what changed from one epoch to the next; returns what the state now holds under the epoch's key."""
    names = [_name(one.invocation) for one in after.payloads]
    value = {
        "session": identity.session,
        "number": after.number,
        "cut_count": after.cut_count,
        "cut_hash": after.cut_hash,
        "kept": [list(one) for one in after.kept],
        "contract": after.contract,
        "extracts": dict(after.extracts),
        "payloads": names,
        "marks": dict(after.marks),
    }
    if before == after:
        return value
    scope = _scope(identity)
    for one in after.payloads:
        if one not in before.payloads:
            state[f"aether:payload:{scope}:{_name(one.invocation)}"] = {
                "session": identity.session,
                "of": one.of,
                "invocation": one.invocation,
                "before": _sound(one.before),
                "after": _sound(one.after),
                "used": dict(one.used),
            }
    for one in before.payloads:
        if _name(one.invocation) not in names:
            state[f"aether:payload:{scope}:{_name(one.invocation)}"] = None
    if after.summary != before.summary:
        state[f"aether:summary:{scope}"] = _sound(after.summary)
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
    if last < total and digest_at(last) == epoch.cut_hash:
        return Aligned(epoch=epoch, positions=live_positions(epoch, total))
    found = [at for at in range(total) if digest_at(at) == epoch.cut_hash]
    if not found:
        return reset(epoch, total, "the boundary of the last cut is gone")
    shift = min(found, key=lambda at: (abs(at - last), at)) - last
    moved = _shifted(epoch, shift)
    return Aligned(
        epoch=moved, positions=live_positions(moved, total), note=f"the boundary of the last cut moved by {shift}"
    )


def reset(epoch: Epoch, total: int, note: str) -> Aligned:
    """An epoch that has cut nothing yet, where history is not what its boundary was drawn in."""
    fresh = Epoch(number=epoch.number, contract=epoch.contract, marks=epoch.marks)
    return Aligned(epoch=fresh, positions=tuple(range(total)), rewritten=True, note=note)


def _shifted(epoch: Epoch, shift: int) -> Epoch:
    kept = tuple((max(0, start + shift), max(0, stop + shift)) for start, stop in epoch.kept if stop + shift > 0)
    return replace(epoch, cut_count=epoch.cut_count + shift, kept=kept)


def _payload(state: Mapping[str, Any], scope: str, name: str, identity: Identity) -> PackedMessage | None:
    try:
        stored = _StoredPayload.model_validate(state.get(f"aether:payload:{scope}:{name}"))
    except ValidationError:
        return None
    if stored.session != identity.session:
        return None
    return PackedMessage(
        of=stored.of, invocation=stored.invocation, before=stored.before, after=stored.after, used=stored.used
    )


def _scope(identity: Identity) -> str:
    return _scope_of(identity.branch, identity.agent)


@lru_cache(maxsize=1_000)
def _scope_of(branch: str, agent: str) -> str:
    return short(hash_json([branch, agent]))


def _name(invocation: str) -> str:
    return short(hash_text(invocation), 12)


def _sound(text: str) -> str:
    """Text that any session store takes: lone surrogates and NUL become replacement characters."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


Scope: TypeAlias = tuple[str, str, str, str, str]


def scope_key(identity: Identity) -> Scope:
    """What a process keeps things by: app, user, session, branch, agent."""
    return (identity.app, identity.user, identity.session, identity.branch, identity.agent)
