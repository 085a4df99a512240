"""One pack with its manifest, its candidates and their texts, and its request piece by piece."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Literal, TypeAlias

from aether_context.canonical import JSON, short
from aether_context.conversation.strategy import summary_content
from aether_context.errors import AetherContextError
from aether_context.pack import Content, Pack, Part, Quote, Row, SentForm, content_name, content_place
from aether_context.policy import PackPolicy, differing
from aether_context.store import Manifest, record
from aether_context.store.manifest import Record
from aether_context.store.recording import is_content
from aether_context.store.replay import Replayer
from aether_context.text.pairing import pair_results
from aether_context.usage.prices import window_under

_MOST_WORDS = 60
"""Characters of a call's arguments that stand in the names of rows."""

PiecePart: TypeAlias = Literal["system", "tool", "content"]

WHY: Mapping[str, str] = {
    "below_floor": "it has too little to do with the request and the step",
    "beyond_k": "as many better ones as may enter were there",
    "duplicate": "the same text is there already",
    "expired": "it had expired",
    "over_allocation": "its layer would have passed its tokens",
    "high_water": "the request had passed the high-water mark",
    "byte_net": "the request had too many bytes, and no usage was reported",
    "window": "it would not have fitted the window",
    "already_in_conversation": "it stands in the conversation anyway",
    "in_payload": "it is the plan that the payload was made of",
    "transfer": "it says only that one agent handed over to another",
    "not_in_scope": "the step does not name it",
    "no_message": "there is no human message to put it into",
    "threshold": "the estimate had passed the share of the window that placeholders begin at",
    "turn_budget": "the latest turns alone fill the ceiling for whole turns",
    "middle": "it is neither the beginning nor the end of the conversation",
    "by_hand": "a cut was asked for",
    "strategy": "a registered strategy left it out",
    "provider_limit": "the provider takes no more bytes, media or pages in one request",
    "active_skill": "kept: active skill",
    "instructs": "kept: the policy lets its tool instruct",
}
"""Each reason for leaving something out, as the end of a sentence."""
_UNMISSED = {
    *("already_in_conversation", "below_floor", "beyond_k", "duplicate", "expired", "in_payload", "not_in_scope"),
    "transfer",
}
"""The reasons for which the model misses nothing that the request would have had room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of a request as it is sent.

    Attributes:
        at: its index among the pieces of its part.
        name: the tool's name or the content's role.
        text: the piece for people to read: texts as they are, calls and responses with their names, media described.
        wire: its canonical JSON; of the system instruction its text.
        digest: the hash by which a request is compared with the one before it.
        tokens: counted tokens.
        form: as what a content is sent; None for the other parts.
        rows: ids of the rows of the host's contents that it is sent for; empty for a piece that packing made.
        sources: the hashes of these contents.
    """

    part: PiecePart
    at: int = 0
    name: str = ""
    text: str
    wire: str
    digest: str
    tokens: int
    form: SentForm | None = None
    rows: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PackView:
    """A pack as people look at it: a recorded one, or one that was built and never sent.

    Attributes:
        rows: its candidates by their ids, with those of its chain.
        summary: the row of the summary of what was cut, its ``tokens`` those of what it stands for; None without one.
        texts: the texts of rows by the rows' ids, where they were recorded.
        tools: the tools whose calls or results rows hold, with the first words of the arguments, by the rows' ids.
        request: system, tools and contents in the order in which a provider's prefix cache reads them; None where it is
            unknown.
        outcome: how the model call ended; None where that is not recorded.
        settings: the profile and what differs from it, by name; None where that is unknown.
        gaps: what could not be read, and why.
    """

    manifest: Manifest
    rows: Mapping[str, Row]
    summary: Row | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    request: tuple[Piece, ...] | None = None
    outcome: Mapping[str, JSON] | None = None
    settings: Mapping[str, JSON] | None = None
    gaps: tuple[str, ...] = ()

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """The rows, behind that of the summary where there is one."""
        return (*filter(None, [self.summary]), *self.rows.values())

    @property
    def in_short(self) -> str:
        """``1,049 of 4,000 tokens; 7 of 9 items whole, 2 offloaded; 3 of 3 tools``, without candidates that nobody
        misses."""
        manifest, rows = self.manifest, [row for row in self.rows.values() if row.reason not in _UNMISSED]
        forms = Counter("shortened" if is_shortened(row) else row.form for row in rows)
        whole = forms.pop("whole", 0)
        counts = [f"{count:,} {form.replace('_', ' ')}" for form, count in forms.most_common()]
        items = ", ".join([f"{whole:,} of {len(rows):,} items whole", *counts])
        items += f"; {self.summary.source}" if self.summary else ""
        tools = f"{len(manifest.tools.sent):,} of {len(manifest.tools.sent) + len(manifest.tools.left_out):,} tools"
        return f"{manifest.request_tokens:,} of {manifest.window:,} tokens; {items}; {tools}"


def is_shortened(row: Row) -> bool:
    """Tells whether less of a candidate is sent than there is of it."""
    is_less = row.sent_tokens is not None and row.sent_tokens < row.tokens
    return row.form in ("extract", "told", "placeholder") or (row.form == "whole" and is_less)


def read_view(replayer: Replayer, manifest: Manifest, *, request: bool = True) -> PackView:
    """A recorded pack. ``gaps`` name what is missing or unreadable, but not what the policy chose not to record.

    Args:
        replayer: use the same one for several packs of a session.
        request: whether to build the request again and check it against the recorded checksum.
    """
    view, gaps = PackView(manifest=manifest, rows={}), list[str]()
    try:
        view = replace(view, rows={row.id: row for row in manifest.rows})
        view = replace(view, rows=dict(replayer.resolve(manifest).rows))
    except (AetherContextError, ValueError, LookupError) as error:
        gaps.append(f"{error}: rows of earlier packs are not shown")
    else:
        try:
            texts, contents = _texts(replayer, manifest, view.rows.values()) if manifest.texts else ({}, {})
            view = replace(view, texts=texts, tools=tool_names(contents))
            text, counts = texts.get(_summary_id(manifest), ""), replayer.resolve(manifest).counts
            view = _with_summary(view, text, counts, replayer.line(manifest))
        except (AetherContextError, ValueError, LookupError, TypeError, AttributeError) as error:
            gaps.append(f"{error}: texts are not shown")
        if request and manifest.texts:
            try:
                view = replace(view, request=tuple(request_pieces(replayer.replay(manifest).pack)))
            except AetherContextError as error:
                gaps.append(f"{error}: the request is not shown")
    with suppress(AetherContextError):
        view = replace(view, settings=settings_of(replayer.policy(manifest)))
    try:
        view = replace(view, outcome=replayer.store.outcome(manifest))
    except AetherContextError as error:
        gaps.append(str(error))
    return replace(view, gaps=tuple(gaps))


def settings_of(policy: PackPolicy) -> dict[str, JSON]:
    """The profile, and the settings that differ from it, as ``conversation.compact_at``."""

    def flat(value: JSON, name: str) -> Iterator[tuple[str, JSON]]:
        if not isinstance(value, dict):
            yield name, value
            return
        for inner, part in value.items():
            yield from flat(part, f"{name}.{inner}" if name else inner)

    usual = json.loads(PackPolicy(profile=policy.profile).canonical)
    return {"profile": policy.profile, **dict(flat(differing(json.loads(policy.canonical), usual), ""))}


def view_of(pack: Pack, manifest: Manifest) -> PackView:
    """A pack that was just built, with its manifest."""
    request = pack.source.request
    pairs = zip(request.positions, request.contents, strict=True)
    contents = {content_name(position, content.digest): content for position, content in pairs}
    texts = {name: joined_text(content) for name, content in contents.items()}
    texts |= {candidate.id: candidate.text for candidate in pack.source.candidates}
    texts |= {instruction.id: instruction.text for instruction in pack.source.instructions}
    rows, tools = {row.id: row for row in pack.rows}, tool_names(contents)
    view = PackView(manifest=manifest, rows=rows, texts=texts, tools=tools, request=tuple(request_pieces(pack)))
    return _with_summary(view, pack.epoch.summary, pack.to_store.counts, [manifest])


def view_under(replayer: Replayer, manifest: Manifest, policy: PackPolicy) -> PackView:
    """The pack that what a policy names, on top of the recorded one, builds from a recorded pack's input.

    The window is that of `window_under`.

    Raises:
        ReplayError: the recording cannot be built from.
    """
    policy = policy.for_agent(manifest.agent)
    merged = policy.over(replayer.policy(manifest))
    pack = replayer.replay(manifest, merged, window=window_under(policy, manifest.model, manifest.window)).pack
    view = view_of(pack, record(pack, merged, manifest.counter, None).manifest)
    return replace(view, settings=settings_of(merged))


def _texts(replayer: Replayer, manifest: Manifest, rows: Iterable[Row]) -> tuple[dict[str, str], dict[str, Content]]:
    """The texts of rows, and the contents among them, by the rows' ids."""
    texts: dict[str, str] = {}
    by_id: dict[str, Content] = {}
    candidates = {entry["id"]: entry["text"] for entry in replayer.offered(manifest).get("candidates", ())}
    candidates |= {instruction.id: instruction.text for instruction in replayer.setting(manifest).instructions}
    for row in rows:
        if is_content(row):
            by_id[row.id] = replayer.content(manifest, row.hash)
            texts[row.id] = joined_text(by_id[row.id])
        elif row.id in candidates:
            texts[row.id] = candidates[row.id]
    if manifest.epoch.summary:
        texts[_summary_id(manifest)] = replayer.log(manifest).text(manifest.epoch.summary)
    return texts, by_id


def _with_summary(view: PackView, text: str, counts: Mapping[str, int], line: Iterable[Record]) -> PackView:
    """The view with the row of its summary, if any; ``line`` are the records of its chain, the newest first."""
    manifest, epoch = view.manifest, view.manifest.epoch
    if not epoch.summary or manifest.passthrough_reason:
        return view
    written = [link.number for link in takewhile(lambda link: link.epoch.summary == epoch.summary, line)][-1]
    messages = epoch.cut_count - sum(stop - start for start, stop in epoch.kept)
    row = Row(
        id=_summary_id(manifest),
        layer="conversation",
        source=f"summary of {messages:,} messages, written before call {written:,}",
        tokens=counts.get(short(summary_content(text).digest, 16), 0) if text else 0,
        method=manifest.request_tokens_method,
        hash=epoch.summary,
        form="summarized",
    )
    return replace(view, summary=row, texts={**view.texts, row.id: text} if text else view.texts)


def _summary_id(manifest: Manifest) -> str:
    return f"summary_{short(manifest.epoch.summary)}"


def tool_names(contents: Mapping[str, Content]) -> dict[str, str]:
    """The tools that contents call or answer for, as ``look_up(key: k1)``, by the contents' names."""
    in_order = sorted(contents, key=content_place)
    results = pair_results([contents[name] for name in in_order])
    parts = {
        name: [*contents[name].calls, *(answer.call.part if answer.call else answer.part for answer in match)]
        for name, match in zip(in_order, results, strict=True)
    }
    calls = {name: [f"{part.name}({_arguments(part)})" for part in parts[name]] for name in contents}
    return {name: ", ".join(of_content) for name, of_content in calls.items() if of_content}


def _arguments(part: Part | Quote) -> str:
    """The first words of a call's arguments; empty for a result."""
    arguments = json.loads(part.text) if part.kind == "call" and isinstance(part, Part) else None
    words = ", ".join(f"{key}: {value}" for key, value in arguments.items()) if isinstance(arguments, dict) else ""
    return words if len(words) <= _MOST_WORDS else f"{words[: _MOST_WORDS - 1]}…"


def joined_text(content: Content) -> str:
    return " ".join(part.text for part in content.parts if part.text)


def request_pieces(pack: Pack) -> Iterator[Piece]:
    """The pieces of a request in the order of `Sent.blocks`."""
    contents, request = pack.sent, pack.source.request
    text, block = pack.system, contents.system
    yield Piece(part="system", text=text, wire=text, digest=block.digest, tokens=block.tokens)
    tools = chain(((tool.name, tool.wire) for tool in pack.tools.sent), (("", wire) for wire in request.other_tools))
    for index, ((name, wire), block) in enumerate(zip(tools, contents.tools, strict=True)):
        yield Piece(part="tool", at=index, name=name, text=wire, wire=wire, digest=block.digest, tokens=block.tokens)
    for index, item in enumerate(pack.contents):
        origins = (item.origin, *(origin for origin, _ in item.members))
        digests = {origin: request.contents[origin].digest for origin in origins if origin >= 0}
        yield Piece(
            part="content",
            at=index,
            name=item.content.role,
            text="\n".join(map(_part_text, item.content.parts)),
            wire=item.content.wire,
            digest=item.content.digest,
            tokens=item.tokens,
            form=item.form,
            rows=tuple(content_name(request.positions[origin], digest) for origin, digest in digests.items()),
            sources=tuple(digests.values()),
        )


def _part_text(part: Part) -> str:
    if part.kind == "text":
        return part.text
    if part.kind == "media":
        return f"media {part.mime_type}, {part.media_tokens:,} tokens"
    return f"{part.kind} {part.name}: {part.text}" if part.name else f"{part.kind}: {part.text}"
