"""What a request really holds of its step: the checklist, the evidence, and every address."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from aether_context import payload
from aether_context.evidence import artifact_uris
from aether_context.pack import AcceptanceItem, Candidate, Content, Ingredients, Outgoing, PackedMessage, Validity

TOOL = "tool:"
"""What the source of evidence that is a tool's result begins with."""


@lru_cache(maxsize=8_192)
def addresses_of(content: Content) -> frozenset[str]:
    """The addresses of artifacts in a message: in texts, calls and responses."""
    return frozenset(uri for part in content.parts for uri in artifact_uris(part.text))


@lru_cache(maxsize=8_192)
def proofs_of(content: Content) -> frozenset[str]:
    """The addresses in calls and responses: what was only talked about proves nothing."""
    return frozenset(uri for part in (*content.calls, *content.responses) for uri in artifact_uris(part.text))


def addresses_in(
    source: Ingredients, system: str, declarations: Iterable[str], contents: Sequence[Outgoing], text: str
) -> frozenset[str]:
    """Every address in a request: of artifacts wherever it stands, and of other evidence in the payload.

    Args:
        declarations: as they are sent.
        text: the payload.
    """
    listed = {uri for one in source.candidates if (uri := _listed(one)) and _is_listed(uri, text)}
    found = {uri for one in (system, *declarations) for uri in artifact_uris(one)}
    found = found.union(*(addresses_of(one.content) for one in contents))
    spaced = {artifact_uris(uri)[0] for uri in listed if artifact_uris(uri)[:1] not in ([], [uri])}
    return frozenset((found - spaced) | listed)


def covered_by(text: str, sent: Iterable[Candidate], standing: Iterable[Candidate]) -> tuple[str, ...]:
    """The acceptance items that evidence in a payload covers, and evidence that stands in the conversation anyway.

    Args:
        text: the payload.
        sent: evidence that was rendered, each with its line; an emergency may have cut lines out again.
    """
    shown = [one for one in sent if _is_listed(_listed(one), text) or one.line in text]
    return tuple(sorted({item for one in (*shown, *standing) for item in one.covers}))


def unsent(items: Sequence[AcceptanceItem], text: str) -> tuple[AcceptanceItem, ...]:
    """The items of a checklist that do not stand in a payload word for word."""
    return tuple(item for item in items if f"\n{payload.checklist_line(item)}\n" not in text)


def validity_of(source: Ingredients, packed: PackedMessage | None) -> tuple[Validity, str]:
    """Whether a pack is valid, and why not: a step counts as sent where its words and its whole checklist are."""
    step = source.step
    if source.validity != "valid" or source.hands_off or not step.text:
        return source.validity, source.invalid_reason
    if source.request.human is None:
        return "invalid", "the request has no message of the user that the step could stand in"
    text = packed.before + packed.after if packed is not None else ""
    lost = unsent(step.acceptance, text)
    if lost:
        whole = len(step.acceptance)
        return "invalid", f"the window has room for {whole - len(lost)} of {whole} acceptance items"
    if "\nSTEP:\n" not in text:
        return "invalid", "the window has no room for the step"
    return "valid", ""


def missing_evidence(
    source: Ingredients,
    covers: Collection[str],
    contents: Iterable[Outgoing],
    called: Iterable[Content],
    known: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """What evidence is missing: acceptance items that need it and whose proof is not sent, and tools without a record.

    The latter as ``tool:NAME``, where a plan is at work: tools that were called and of whose results the session keeps
    none, while nothing else was recorded as evidence either.

    Args:
        covers: items whose proof is known to be sent.
        contents: where else to look for proof, as they are sent.
        called: where to look for calls.
        known: what was missing before these contents were appended; None to look at all.
    """
    evidence = [one for one in source.candidates if one.layer == "evidence"]
    found: set[str] = set()
    for one in contents:
        found |= addresses_of(one.content) if one.outcome == "payload" else proofs_of(one.content)
    proven = {*covers, *(item for one in evidence if one.uri in found for item in one.covers)}
    items = tuple(
        item.id
        for item in source.step.acceptance
        if item.needs_evidence and item.id not in proven and (known is None or item.id in known)
    )
    if source.validity == "unplanned" or any(not one.source.startswith(TOOL) for one in evidence):
        return items
    settled = source.tools_kept.union(tool.name for tool in source.request.tools if tool.essential)
    names = {part.name for content in called for part in content.calls}
    names.update(name.removeprefix(TOOL) for name in known or () if name.startswith(TOOL))
    return items + tuple(f"{TOOL}{name}" for name in sorted(names - settled))


def _listed(candidate: Candidate) -> str:
    """The address of a candidate as a payload shows it."""
    return " ".join(candidate.uri.split())


def _is_listed(uri: str, text: str) -> bool:
    return bool(uri) and (f"\n- {uri} " in text or f"\n- {uri}\n" in text)
