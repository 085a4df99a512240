"""The receipt of a pack: what was sent, what was left out and why, and all that is needed to build it again.

A manifest is canonical JSON. It is written once and never edited. ``checksum`` is a hash over the request that was
sent; ``digest`` is a hash over the manifest itself. Within an epoch a manifest names its ``parent`` and holds only
what is new: contents and rows of the parent that still stand are not written again. Texts are not in the manifest:
they are in a blob named by ``texts``, or nowhere where the policy records hashes only.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from aether_context.canonical import JSON, canonical_json, hash_bytes, hash_json, hash_text, short
from aether_context.conversation import as_ranges
from aether_context.errors import ChecksumMismatch, ManifestError, SchemaVersionError
from aether_context.pack import (
    Accuracy,
    Allocation,
    Epoch,
    EpochReason,
    Fate,
    Identity,
    Ingredients,
    Layer,
    LayerTokens,
    Pack,
    PackedMessage,
    PrefixBreak,
    Reason,
    Signals,
    Stage,
    State,
    Step,
    Tool,
    Validity,
)
from aether_context.policy import PackPolicy

SCHEMA_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class LayerBudget(_Record):
    """A layer's ceiling."""

    tokens: int
    """Tokens, after lending."""
    share: float
    """The same as a share of the window, 0 to 1, rounded down."""


class LayerAccount(_Record):
    """Tokens of one layer."""

    floor: int
    """What the layer is promised."""
    nominal: int
    """Its share before lending."""
    lent: int
    """What lending added to it, or took from it where negative."""
    final: int
    """Its ceiling."""
    used: int
    """What it used."""


class Row(_Record):
    """What became of one candidate."""

    id: str
    """Its name, unique within a pack."""
    layer: Layer
    """The layer it belongs to."""
    source: str
    """Who said it or where it comes from."""
    tokens: int
    """Tokens of the whole of it."""
    method: Accuracy
    """How they were counted."""
    hash: str
    """Tagged hash of its content."""
    state: State
    """What became of it."""
    reason: Reason | None = None
    """Why, where it was not kept whole."""
    sent_tokens: int | None = None
    """Tokens sent in its place, where they differ."""
    scores: Mapping[str, float] = {}
    """Retrieval scores: ``bm25`` raw, ``similarity`` and ``mmr`` on a scale of 0 to 1."""
    time: float | None = None
    """When it was said or made, seconds since 1970 UTC."""
    uri: str = ""
    """Where the whole of it is kept."""
    covers: tuple[str, ...] = ()
    """Acceptance items that it proves."""


class Event(_Record):
    """One act of leaving something out."""

    layer: Layer
    """The layer it concerns."""
    stage: Stage
    """The stage that did it."""
    reason: Reason
    """Why."""
    item_ids: tuple[str, ...]
    """The rows it concerns."""
    tokens_before: int
    """The layer's tokens before."""
    tokens_after: int
    """The layer's tokens after."""


class ToolScope(_Record):
    """Which declarations were sent."""

    mode: str
    """``off``, ``prune`` or ``mask``."""
    sent: tuple[str, ...]
    """Names declared, in order."""
    left_out: Mapping[str, str] = {}
    """Names left out, with the reason."""
    allowed: tuple[str, ...] | None = None
    """Names that calls were restricted to; null where they were not."""


class PrefixReport(_Record):
    """What a prefix cache could serve."""

    shared_tokens: int | None
    """Tokens in common with the request before, from the start; null where that request is unknown."""
    broken_by: PrefixBreak | None
    """What ended the common prefix before the end of that request; null where nothing did."""


class ContentList(_Record):
    """The contents that this pack was built from, against those that its parent left standing."""

    head: int = 0
    """So many of the parent's come first."""
    added: tuple[str, ...] = ()
    """Then these, by hash."""
    tail: int = 0
    """Then so many of the parent's last ones."""


class PayloadRecord(_Record):
    """A message that is sent in packed form."""

    of: str
    """Hash of the message as the user wrote it."""
    invocation: str
    """The invocation that packed it."""
    text: str
    """Hash of the packed text."""
    split: int
    """Characters before the place of the conversation summary."""
    used: Mapping[str, int] = {}
    """Tokens of evidence and memory in it."""


class EpochRecord(_Record):
    """Where the conversation stands between two cuts."""

    number: int
    """Counts from 1."""
    cut_count: int = 0
    """So many contents of the host's list have been decided on by cuts."""
    cut_hash: str = ""
    """Hash of the last content cut."""
    kept: tuple[tuple[int, int], ...] = ()
    """Index ranges below ``cut_count`` that are still sent."""
    summary: str = ""
    """Hash of the summary of what was cut; empty where there is none."""
    contract: bool = False
    """Whether the system instruction explains the pack."""
    extracts: Mapping[str, int] = {}
    """Tokens that the responses of a content were shortened to, by its hash."""
    payloads: tuple[PayloadRecord, ...] = ()
    """Messages sent in packed form."""
    marks: Mapping[str, str] = {}
    """Short hashes of system, tools, step, role and acceptance list at its beginning."""


class Manifest(_Record):
    """The receipt of one pack."""

    schema_version: Literal[1] = 1
    """Version of this schema."""
    pack_id: str
    """``pack_{time of the last event}_{task}_{step}_{hash}``."""
    parent: str | None = None
    """The pack whose contents and rows this one extends; null where it stands alone."""
    previous: str | None = None
    """The pack before it for the same agent; null where that is unknown."""
    app: str
    """Application."""
    user: str
    """User."""
    session: str
    """Session."""
    invocation: str
    """Invocation, from one user message to the end of the run it started."""
    agent: str
    """Agent whose model is called."""
    branch: str = ""
    """Branch of the conversation; empty on the trunk."""
    call: int
    """Model call of this agent in this invocation, from 1."""
    last_event_id: str = ""
    """The session's last event when the pack was built."""
    last_event_time: float = 0.0
    """Its time, seconds since 1970 UTC."""
    task_id: str = ""
    """The plan's task."""
    step_id: str = ""
    """The plan's step."""
    role: str = ""
    """The role the step is done in."""
    validity: Validity
    """``unplanned`` without a plan, ``invalid`` where a plan lacks a step or an acceptance list."""
    invalid_reason: str = ""
    """Why it is invalid."""
    model: str
    """The model's name as the host gave it."""
    window: int
    """The window W in tokens, after the policy's cap."""
    output_tokens: int | None = None
    """The answer's limit where it shares the window."""
    profile: str
    """The policy's profile."""
    policy: str
    """Hash of the policy."""
    counter: str
    """Identity of the token counter."""
    encoder: str = "none"
    """Identity of the embedder."""
    layer_budgets: Mapping[Layer, LayerBudget]
    """The ceiling of each layer."""
    allocation: Mapping[Layer, LayerAccount]
    """The full account of each layer."""
    weights: Mapping[str, float]
    """Shares of the remainder that the signals led to."""
    signals: Mapping[str, float | int | str | None]
    """The eight signals as they were read; null is unknown and weighs as one half."""
    tools: ToolScope
    """The declarations."""
    contents: ContentList
    """The contents that went in."""
    positions: tuple[tuple[int, int], ...] = ()
    """Their index ranges in the host's list."""
    human: int | None = None
    """Index of the final human message among them."""
    first_call: bool = True
    """Whether this was the invocation's first model call."""
    rewritten: bool = False
    """Whether the host changed history that an earlier cut relied on."""
    rows: tuple[Row, ...]
    """The candidates that are new here or whose state changed."""
    truncation_events: tuple[Event, ...] = ()
    """What was left out, in the order in which it happened."""
    epoch: EpochRecord
    """The epoch after this pack."""
    epoch_before: EpochRecord | None = None
    """The epoch before this pack; null where it is the parent's."""
    epoch_reason: EpochReason | None = None
    """Why an epoch began with this pack; null where none did."""
    prefix: PrefixReport
    """Cache stability against the request before."""
    evidence_needed: tuple[str, ...] = ()
    """Acceptance items that need evidence and have none."""
    artifact_uris: tuple[str, ...] = ()
    """Evidence that the pack refers to."""
    degradations: tuple[str, ...] = ()
    """What could not be done as asked, in words."""
    request_tokens: int
    """Tokens of the whole request, estimated before the call."""
    request_tokens_method: Accuracy
    """How they were estimated."""
    counts: Mapping[str, int] = {}
    """Token counts of made and given texts, by short hash, where no row or ancestor holds them."""
    setting: str
    """Hash of the blob with system instruction, declarations and step."""
    texts: tuple[str, ...] = ()
    """Hashes of the blobs with its texts: first that with what is new here, then earlier ones that no ancestor names;
    empty where none are recorded."""
    stages: Mapping[str, str]
    """Short hashes of what each stage gave."""
    checksum: str
    """Hash over the request that was sent."""
    digest: str = ""
    """Hash over this manifest without this field."""

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """A manifest from its JSON, of any schema version up to this one.

        Raises:
            SchemaVersionError: it was written by a later version.
            ManifestError: it is not a manifest.
        """
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ManifestError(f"not a manifest: {error}") from error
        version = value.get("schema_version") if isinstance(value, dict) else None
        if not isinstance(version, int):
            raise ManifestError("not a manifest: it has no schema_version")
        if version > SCHEMA_VERSION:
            raise SchemaVersionError(
                f"this manifest has schema version {version} and this installation reads up to {SCHEMA_VERSION}: "
                "upgrade aether-context"
            )
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(piece) for piece in first["loc"])
            raise ManifestError(f"not a manifest: {where}: {first['msg']}") from error

    def to_json(self) -> str:
        """Canonical JSON, optional fields at their default left out."""
        return canonical_json(self._value())

    def sealed(self) -> tuple[Self, str]:
        """This manifest with its digest, and its JSON."""
        value = self._value()
        value.pop("digest", None)
        digest = hash_json(value)
        return self.model_copy(update={"digest": digest}), canonical_json({**value, "digest": digest})

    def verify(self) -> None:
        """Checks the manifest against its digest.

        Raises:
            ChecksumMismatch: a field is not what was written.
        """
        found = self._hash()
        if found != self.digest:
            raise ChecksumMismatch(f"{self.pack_id}: the manifest's hash is {found}, its digest says {self.digest}")

    def _value(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude_defaults=True) | {"schema_version": self.schema_version}

    def _hash(self) -> str:
        value = self._value()
        value.pop("digest", None)
        return hash_json(value)


def schema() -> dict[str, Any]:
    """The JSON Schema of manifests."""
    return Manifest.model_json_schema(mode="serialization") | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "aether_context manifest",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """The end of a chain of manifests: what the next one may leave out.

    ``homes`` are the blobs that hold the texts still in use, by the texts' hashes.
    """

    pack_id: str
    contents: tuple[str, ...]
    rows: frozenset[str]
    counts: frozenset[str]
    homes: Mapping[str, str]
    epoch: EpochRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A manifest, its JSON, the blobs that it names, by hash, and the tip that it leaves."""

    manifest: Manifest
    text: str
    blobs: Mapping[str, bytes]
    tip: Tip
    saved: Mapping[str, str] = field(default_factory=dict)


def record(pack: Pack, policy: PackPolicy, counter: str, tip: Tip | None) -> Recording:
    """The recording of a pack.

    Args:
        counter: identity of the token counter.
        tip: the end of the chain to extend; None, or a pack with a cut, begins a new one.
    """
    source, step = pack.source, pack.source.step
    parent = tip if tip is not None and not any(event.stage == "cut" for event in pack.events) else None
    grown = pack.appended if parent is not None and parent.pack_id == source.previous_pack else None
    fates = pack.fates if grown is None else pack.fates[len(pack.fates) - grown :]
    keys = [f"{fate.id} {fate.state} {fate.sent_tokens}" for fate in fates]
    known = parent.rows if parent is not None else frozenset()
    rows = tuple(_row(fate) for fate, key in zip(fates, keys, strict=True) if key not in known)
    contents = _content_list(source, parent, grown)
    blobs: dict[str, bytes] = {}
    epoch, before = epoch_record(pack.epoch), epoch_record(source.epoch)
    request = source.request
    setting = _setting(request.system, request.system_is_text, request.tools, request.other_tools, source.step)
    blobs[policy.digest] = policy.canonical.encode()
    held = _epoch_texts(pack.epoch) | _epoch_texts(source.epoch)
    homes = dict(tip.homes) if tip is not None and policy.record == "full" else {}
    texts: tuple[str, ...] = ()
    if policy.record == "full":
        blobs[hash_bytes(setting)] = setting
        needed = [*contents.added, *held]
        written = _texts(pack, {digest: text for digest, text in held.items() if digest not in homes}, homes)
        own = hash_bytes(written)
        blobs[own] = written
        known_here = parent.homes.values() if parent is not None else ()
        earlier = {homes[digest] for digest in needed if digest in homes} - set(known_here)
        texts = (own, *sorted(earlier))
        homes |= {digest: own for digest in needed if digest not in homes}
    counts = {key: tokens for key, tokens in pack.counts.items() if parent is None or key not in parent.counts}
    for fate in fates:
        if fate.layer in ("conversation", "task"):
            counts.pop(short(fate.digest, 16), None)
    identity = pack.identity
    manifest, text = Manifest(
        pack_id=pack_id(identity, step),
        parent=parent.pack_id if parent is not None else None,
        previous=source.previous_pack or None,
        **{name: getattr(identity, name) for name in Identity.__slots__},
        task_id=step.task_id,
        step_id=step.step_id,
        role=step.role,
        validity=source.validity,
        invalid_reason=source.invalid_reason,
        model=source.request.model,
        window=source.window,
        output_tokens=source.output_tokens,
        profile=policy.profile,
        policy=policy.digest,
        counter=counter,
        layer_budgets=_budgets(pack.allocation),
        allocation={layer: _account(tokens) for layer, tokens in pack.allocation.layers.items()},
        weights={layer: round(weight, 6) for layer, weight in pack.allocation.weights.items()},
        signals=_signals(pack),
        tools=ToolScope(
            mode=pack.scope_mode,
            sent=tuple(tool.name for tool in pack.tools),
            left_out=pack.tools_left_out,
            allowed=pack.allowed_tools,
        ),
        contents=contents,
        positions=as_ranges(source.request.positions),
        human=source.request.human,
        first_call=source.first_call,
        rewritten=source.rewritten,
        rows=rows,
        truncation_events=tuple(Event(**asdict(event)) for event in pack.events),
        epoch=epoch,
        epoch_before=None if parent is not None and parent.epoch == before else before,
        epoch_reason=pack.epoch_reason,
        prefix=PrefixReport(shared_tokens=pack.prefix.shared_tokens, broken_by=pack.prefix.broken_by),
        evidence_needed=pack.evidence_needed,
        artifact_uris=tuple(sorted({fate.uri for fate in pack.fates if fate.uri and fate.state == "kept"} | set(pack.saved))),
        degradations=pack.degradations,
        request_tokens=pack.request_tokens,
        request_tokens_method=pack.method,
        counts=counts,
        setting=hash_bytes(setting),
        texts=texts,
        stages=stage_hashes(pack),
        checksum=pack.checksum,
    ).sealed()
    if parent is not None and grown is not None:
        standing = parent.contents + contents.added
    else:
        standing = tuple(one.raw.digest for one in pack.contents if one.origin >= 0)
    after = Tip(
        pack_id=manifest.pack_id,
        contents=standing,
        rows=frozenset(keys) if grown is None else known | frozenset(keys),
        counts=frozenset(pack.counts) | (parent.counts if parent is not None else frozenset()),
        homes={digest: homes[digest] for digest in (*standing, *held) if digest in homes},
        epoch=epoch,
    )
    return Recording(manifest=manifest, text=text, blobs=blobs, tip=after, saved=pack.saved)


def stage_hashes(pack: Pack) -> dict[str, str]:
    """Short hashes of what each stage gave."""
    folds = pack.folds
    results = {
        "read": folds.read,
        "count": [folds.count, pack.stages["count"]],
        "retrieve": pack.stages["retrieve"],
        "allocate": pack.stages["allocate"],
        "fit": pack.stages["fit"],
        "render": pack.stages["render"],
        "write": pack.checksum,
    }
    return {stage: short(hash_json(result), 12) for stage, result in results.items()}


def pack_id(identity: Identity, step: Step) -> str:
    """``pack_{time}_{task}_{step}_{hash8}``, the time that of the session's last event in UTC.

    The hash is over application, user, session, branch, agent, invocation and call number.
    """
    key = [getattr(identity, name) for name in ("app", "user", "session", "branch", "agent", "invocation", "call")]
    names = "_".join(_word(name) for name in (step.task_id, step.step_id) if name)
    return "_".join(piece for piece in ("pack", _stamp(identity.last_event_time), names, short(hash_json(key))) if piece)


def _stamp(time: float) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(time, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        moment = datetime.datetime.fromtimestamp(0, datetime.UTC)
    return moment.strftime("%Y%m%dT%H%M%S.%fZ")


def _word(name: str) -> str:
    """A piece of a file name: at most 24 letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", name)[:24].strip("-") or "x"


def epoch_record(epoch: Epoch) -> EpochRecord:
    """An epoch with its texts as hashes."""
    payloads = tuple(
        PayloadRecord(
            of=one.of,
            invocation=one.invocation,
            text=hash_text(one.before + one.after),
            split=len(one.before),
            used=dict(one.used),
        )
        for one in epoch.payloads
    )
    return EpochRecord(
        number=epoch.number,
        cut_count=epoch.cut_count,
        cut_hash=epoch.cut_hash,
        kept=epoch.kept,
        summary=hash_text(epoch.summary) if epoch.summary else "",
        contract=epoch.contract,
        extracts=dict(epoch.extracts),
        payloads=payloads,
        marks=dict(epoch.marks),
    )


def epoch_of(record: EpochRecord, texts: Mapping[str, str]) -> Epoch:
    """The epoch that a record stands for.

    Raises:
        KeyError: ``texts`` lacks one of its texts.
    """
    payloads = []
    for one in record.payloads:
        text = texts[one.text]
        payloads.append(
            PackedMessage(
                of=one.of, invocation=one.invocation, before=text[: one.split], after=text[one.split :], used=one.used
            )
        )
    return Epoch(
        number=record.number,
        cut_count=record.cut_count,
        cut_hash=record.cut_hash,
        kept=record.kept,
        summary=texts[record.summary] if record.summary else "",
        contract=record.contract,
        extracts=record.extracts,
        payloads=tuple(payloads),
        marks=record.marks,
    )


def splice(parent: Sequence[str], changed: ContentList) -> tuple[str, ...]:
    """The contents that a `ContentList` stands for, given what its parent left standing."""
    tail = parent[len(parent) - changed.tail :] if changed.tail else ()
    return (*parent[: changed.head], *changed.added, *tail)


def _content_list(source: Ingredients, tip: Tip | None, grown: int | None) -> ContentList:
    contents = source.request.contents
    if grown is not None:
        have = len(contents) - grown
        return ContentList(head=have, added=tuple(content.digest for content in contents[have:]))
    digests = [content.digest for content in contents]
    parent = tip.contents if tip is not None else ()
    most = min(len(digests), len(parent))
    head = next((at for at in range(most) if digests[at] != parent[at]), most)
    most -= head
    tail = next((at for at in range(most) if digests[-1 - at] != parent[-1 - at]), most)
    return ContentList(head=head, added=tuple(digests[head : len(digests) - tail]), tail=tail)


def _account(tokens: LayerTokens) -> LayerAccount:
    return LayerAccount(
        floor=tokens.floor, nominal=tokens.nominal, lent=tokens.lent, final=tokens.final, used=tokens.used
    )


def _row(fate: Fate) -> Row:
    return Row(
        id=fate.id,
        layer=fate.layer,
        source=fate.source,
        tokens=fate.tokens,
        method=fate.method,
        hash=fate.digest,
        state=fate.state,
        reason=fate.reason,
        sent_tokens=fate.sent_tokens,
        scores=dict(fate.scores),
        time=fate.time,
        uri=fate.uri,
        covers=fate.covers,
    )


def _budgets(allocation: Allocation) -> dict[Layer, LayerBudget]:
    window = allocation.window
    return {
        layer: LayerBudget(tokens=tokens.final, share=tokens.final * 10_000 // window / 10_000)
        for layer, tokens in allocation.layers.items()
    }


def _signals(pack: Pack) -> dict[str, float | int | str | None]:
    values = {name: getattr(pack.signals, name) for name in Signals.__slots__}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}


@lru_cache(maxsize=64)
def _setting(system: str, is_text: bool, tools: tuple[Tool, ...], other_tools: tuple[str, ...], step: Step) -> bytes:
    """The blob with what a session's packs have in common."""
    value = {
        "system": system,
        "system_is_text": is_text,
        "tools": [asdict(tool) for tool in tools],
        "other_tools": other_tools,
        "step": asdict(step),
    }
    return canonical_json(value).encode()


def _texts(pack: Pack, epoch: Mapping[str, str], known: Mapping[str, str]) -> bytes:
    """The blob with the texts that are in no earlier one, as canonical JSON; wires are that already."""
    source = pack.source
    new = {content.digest: content.wire for content in source.request.contents if content.digest not in known}
    contents = ",".join(f'"{digest}":{new[digest]}' for digest in sorted(new))
    value = {
        "candidates": canonical_json([asdict(candidate) for candidate in source.candidates] if pack.chose else []),
        "contents": f"{{{contents}}}",
        "epoch": canonical_json(epoch),
        "problems": canonical_json(source.problems),
    }
    return ("{" + ",".join(f'"{name}":{text}' for name, text in value.items()) + "}").encode("utf-8", "surrogatepass")


def _epoch_texts(epoch: Epoch) -> dict[str, str]:
    texts = [one.before + one.after for one in epoch.payloads]
    return {hash_text(text): text for text in (*texts, epoch.summary) if text or texts}
