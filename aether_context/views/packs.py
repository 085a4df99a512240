"""One pack with its manifest, its candidates and their texts, and its request piece by piece."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, TypeAlias

from aether_context.canonical import JSON, hash_text
from aether_context.conversation.content_json import content_from_wire
from aether_context.errors import AetherContextError, ReplayIncomplete, StoreError
from aether_context.pack import CandidateOutcome, Content, Outcome, Pack, Part, content_name
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, record
from aether_context.store.replay import Replayer, wires

PiecePart: TypeAlias = Literal["system", "tool", "content"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of a request as it is sent.

    Attributes:
        at: its index among the pieces of its part.
        name: of a tool; of a content its role.
        text: what people read of it: texts as they are, calls and responses with their names, media in words.
        wire: its canonical JSON; of the system instruction its text.
        digest: the hash by which a request is compared with the one before it.
        tokens: counted.
        outcome: how a content is sent; None for the other parts.
        rows: the contents of the host that it stands for, by the names of their rows; empty for what was made.
        sources: the same by the hashes of what the host gave.
    """

    part: PiecePart
    at: int = 0
    name: str = ""
    text: str
    wire: str
    digest: str
    tokens: int
    outcome: Outcome | None = None
    rows: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackView:
    """A pack as people look at it: a recorded one, or one that was built and never sent.

    Attributes:
        rows: its candidates by their ids, with those of the packs that it extends.
        texts: what rows stand for, by the rows' ids, as far as it was recorded.
        request: system, tools and contents in the order in which a provider's prefix cache reads them; None where it is
            unknown.
        outcome: what the model answered; None where that is not recorded.
        gaps: what could not be read, and why.
    """

    manifest: Manifest
    rows: Mapping[str, CandidateOutcome]
    texts: Mapping[str, str] = field(default_factory=dict)
    request: tuple[Piece, ...] | None = None
    outcome: Mapping[str, JSON] | None = None
    gaps: tuple[str, ...] = ()


def read_view(replayer: Replayer, manifest: Manifest, *, request: bool = True) -> PackView:
    """A recorded pack. What is missing or unreadable is among the gaps; what was not to be recorded is none.

    Args:
        replayer: keep one for several packs of a session.
        request: whether to build the request again, which is checked against the recorded checksum.
    """
    rows = {row.id: row for row in manifest.rows}
    view = PackView(manifest=manifest, rows=rows)
    gaps: list[str] = []
    try:
        view = replace(view, rows=dict(replayer.resolve(manifest).rows))
    except (AetherContextError, ValueError, LookupError) as error:
        gaps.append(f"{error}: rows of earlier packs are not shown")
    else:
        try:
            view = replace(view, texts=_texts(replayer, manifest, view.rows.values()))
        except (AetherContextError, ValueError, LookupError, TypeError, AttributeError) as error:
            gaps.append(f"{error}: texts are not shown")
        if request and manifest.texts:
            try:
                view = replace(view, request=tuple(_pieces(replayer.replay(manifest).pack)))
            except ReplayIncomplete as error:
                if all(link.texts for link in replayer.line(manifest)):
                    gaps.append(f"{error}: the request is not shown")
            except AetherContextError as error:
                gaps.append(f"{error}: the request is not shown")
    try:
        view = replace(view, outcome=replayer.store.outcome(manifest))
    except StoreError as error:
        gaps.append(str(error))
    return replace(view, gaps=tuple(gaps))


def view_of(pack: Pack, manifest: Manifest) -> PackView:
    """A pack that was built here, with the manifest that was made of it."""
    request = pack.source.request
    names = zip(request.positions, request.contents, strict=True)
    texts = {content_name(place, content): _said(content) for place, content in names}
    texts |= {candidate.id: candidate.text for candidate in pack.source.candidates}
    rows = {row.id: row for row in pack.outcomes}
    return PackView(
        manifest=manifest,
        rows=rows,
        texts={name: text for name, text in texts.items() if name in rows},
        request=tuple(_pieces(pack)),
    )


def view_under(replayer: Replayer, manifest: Manifest, policy: PackPolicy) -> PackView:
    """What another policy makes of a recorded pack's material, in the recorded window unless it states one.

    Raises:
        ReplayError: what is recorded cannot be built from.
    """
    pack = replayer.replay(manifest, policy, window=_window(manifest, policy)).pack
    return view_of(pack, record(pack, policy, manifest.counter, None).manifest)


def _window(manifest: Manifest, policy: PackPolicy) -> int:
    stated, cap = policy.windows.get(manifest.model), policy.max_input_tokens
    if cap is None:
        return stated or manifest.window
    if stated is None and cap > manifest.window:
        from aether_context.tokens.model_limits import model_window

        stated = max(manifest.window, model_window(manifest.model))
    return min(cap, stated or manifest.window)


def _texts(replayer: Replayer, manifest: Manifest, rows: Iterable[CandidateOutcome]) -> dict[str, str]:
    """The texts that rows stand for, by the rows' ids, from the manifest's recording and those of its ancestors."""
    wanted = {row.id: row.hash for row in rows}
    found: dict[str, str] = {}
    for link in replayer.line(manifest):
        if not link.texts or found.keys() == wanted.keys():
            break
        recorded = json.loads(replayer.store.blob(link, link.texts[0]))
        candidates = {candidate["id"]: candidate["text"] for candidate in recorded.get("candidates", ())}
        contents = {hash_text(wire): wire for wire in wires(recorded)}
        for name in wanted.keys() - found.keys():
            if name in candidates:
                found[name] = candidates[name]
            elif wanted[name] in contents:
                found[name] = _said(content_from_wire(contents[wanted[name]]))
    return found


def _said(content: Content) -> str:
    return " ".join(part.text for part in content.parts if part.text)


def _pieces(pack: Pack) -> Iterator[Piece]:
    """The request in the order of `Sent.blocks`."""
    sent, request = pack.sent, pack.source.request
    yield Piece(part="system", text=pack.system, wire=pack.system, digest=sent.system.digest, tokens=sent.system.tokens)
    tools = chain(((tool.name, tool.wire) for tool in pack.tools), (("", wire) for wire in request.other_tools))
    for at, ((name, wire), block) in enumerate(zip(tools, sent.tools, strict=True)):
        yield Piece(part="tool", at=at, name=name, text=wire, wire=wire, digest=block.digest, tokens=block.tokens)
    for at, item in enumerate(pack.contents):
        origins = dict.fromkeys(origin for origin in (item.origin, *(of for of, _ in item.members)) if origin >= 0)
        given = [request.contents[origin] for origin in origins]
        yield Piece(
            part="content",
            at=at,
            name=item.content.role,
            text="\n".join(map(_shown, item.content.parts)),
            wire=item.content.wire,
            digest=item.content.digest,
            tokens=item.tokens,
            outcome=item.outcome,
            rows=tuple(
                content_name(request.positions[at], content) for at, content in zip(origins, given, strict=True)
            ),
            sources=tuple(content.digest for content in given),
        )


def _shown(part: Part) -> str:
    """What people read of a part."""
    if part.kind == "text":
        return part.text
    if part.kind == "media":
        return f"media {part.mime_type}, {part.media_tokens:,} tokens"
    return f"{part.kind} {part.name}: {part.text}" if part.name else f"{part.kind}: {part.text}"
