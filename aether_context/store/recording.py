"""From a pack to its manifest and the blobs that it names, and from a manifest back to the values of a pack."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

from pydantic import TypeAdapter

from aether_context.canonical import (
    JSON,
    canonical_json,
    canonical_object,
    fold,
    hash_bytes,
    hash_json,
    hash_text,
    short,
)
from aether_context.conversation.turns import as_ranges
from aether_context.pack import (
    Allocation,
    Candidate,
    CandidateOutcome,
    Epoch,
    Identity,
    Layer,
    Pack,
    PackInput,
    Signals,
    Step,
    Tool,
)
from aether_context.policy import PackPolicy
from aether_context.store.manifest import ContentList, LayerBudget, Manifest, ToolScope

_RARE = ("superseded_by", "content_hash", "kind")
_CANDIDATE_FIELDS = tuple(known.name for known in fields(Candidate) if known.name not in _RARE)
GIVEN = (
    "window", "output_tokens", "encoder", "memory_encoder", "searched", "first_call", "rewritten", "cached_price",
    "can_mask", "can_find", "can_read", "passthrough_reason", "anchors", "asked", "calibration",
)  # fmt: skip
"""Fields that a manifest takes from a pack's input as they are, and a replay gives back."""
_FOUND = (
    "validity", "invalid_reason", "chose", "epoch_reason", "prefix", "evidence_needed", "degradations",
    "request_tokens", "counted_tokens", "over_window", "checksum",
)  # fmt: skip
"""Fields that a manifest takes from a pack as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """The end of a chain of manifests: what the next one may leave out.

    ``homes`` are the blobs that hold the texts still in use, by the texts' hashes. ``counted`` is by which counter and
    for which model: where either changes, no count of the chain stands.
    """

    pack_id: str
    counted: tuple[str, str]
    contents: tuple[str, ...]
    rows: frozenset[str]
    counts: frozenset[str]
    homes: Mapping[str, str]
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A manifest, its JSON, the blobs that it names, by hash, and the tip that it leaves."""

    manifest: Manifest
    text: str
    blobs: Mapping[str, bytes]
    tip: Tip
    saved: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a session's packs have in common: a blob of its own."""

    system: str
    system_is_text: bool
    tools: tuple[Tool, ...]
    other_tools: tuple[str, ...]
    step: Step


SETTING = TypeAdapter(Setting)


def record(pack: Pack, policy: PackPolicy, counter: str, tip: Tip | None) -> Recording:
    """The recording of a pack.

    Args:
        counter: identity of the token counter.
        tip: the end of the chain to extend; None, a pack with a cut, or one that is counted otherwise begins a new one.
    """
    source, step = pack.source, pack.source.step
    counted = (counter, source.request.model)
    begins = tip is None or tip.counted != counted or any(event.stage == "cut" for event in pack.events)
    parent = None if begins else tip
    grown = pack.appended if parent is not None and parent.pack_id == source.previous_pack else None
    outcomes = pack.outcomes if grown is None else pack.outcomes[len(pack.outcomes) - grown :]
    keys = [f"{outcome.id} {outcome.layer} {outcome.state} {outcome.sent_tokens}" for outcome in outcomes]
    known = parent.rows if parent is not None else frozenset()
    rows = tuple(
        outcome for outcome, key in zip(outcomes, keys, strict=True) if key not in known or not is_content(outcome)
    )
    contents = _content_list(source, parent, grown)
    blobs: dict[str, bytes] = {}
    epoch, before = epoch_of_hashes(pack.epoch), epoch_of_hashes(source.epoch)
    request = source.request
    setting = _setting_json(
        Setting(
            system=request.system,
            system_is_text=request.system_is_text,
            tools=request.tools,
            other_tools=request.other_tools,
            step=source.step,
        )
    )
    blobs[policy.digest] = policy.canonical.encode()
    epoch_texts = _epoch_texts(pack.epoch) | _epoch_texts(source.epoch)
    homes = dict(tip.homes) if tip is not None and policy.record == "full" else {}
    texts: tuple[str, ...] = ()
    if policy.record == "full":
        blobs[hash_bytes(setting)] = setting
        needed = [*contents.added, *epoch_texts]
        written = _texts(pack, {digest: text for digest, text in epoch_texts.items() if digest not in homes}, homes)
        own = hash_bytes(written)
        blobs[own] = written
        known_here = parent.homes.values() if parent is not None else ()
        earlier = {homes[digest] for digest in needed if digest in homes} - set(known_here)
        texts = (own, *sorted(earlier))
        homes |= {digest: own for digest in needed if digest not in homes}
    counts = {key: tokens for key, tokens in pack.counts.items() if parent is None or key not in parent.counts}
    for outcome in outcomes:
        if is_content(outcome):
            counts.pop(short(outcome.hash, 16), None)
    identity = pack.identity
    uris = tuple(sorted(pack.artifact_uris))
    manifest, text = Manifest(
        pack_id=pack_id(identity, step),
        parent=parent.pack_id if parent is not None else None,
        previous=source.previous_pack or None,
        **{name: getattr(identity, name) for name in Identity.__slots__},
        **{name: getattr(source, name) for name in GIVEN},
        **{name: getattr(pack, name) for name in _FOUND},
        task_id=step.task_id,
        step_id=step.step_id,
        role=step.role,
        plan_validity=source.validity if source.validity != pack.validity else None,
        model=source.request.model,
        profile=policy.profile,
        policy=policy.digest,
        counter=counter,
        layer_budgets=_budgets(pack.allocation),
        allocation=pack.allocation.layers,
        weights={layer: round(weight, 6) for layer, weight in pack.allocation.weights.items()},
        signals=_signals(pack),
        tools=ToolScope(
            mode=pack.scope_mode,
            sent=tuple(tool.name for tool in pack.tools),
            left_out=pack.tools_left_out,
            kept=pack.tools_kept,
            scores=pack.tool_scores,
            encoder=pack.tool_encoder,
            allowed=pack.allowed_tools,
        ),
        contents=contents,
        positions=as_ranges(source.request.positions),
        human=source.request.human,
        others=as_ranges(at for at, content in enumerate(source.request.contents) if content.agent),
        rows=rows,
        truncation_events=pack.events,
        strategy_acts=pack.acts,
        epoch=epoch,
        epoch_before=None if parent is not None and parent.epoch == before else before,
        artifact_uris=uris,
        superseded={uri: source.evidence[uri] for uri in uris if source.evidence.get(uri)},
        request_tokens_method=pack.method,
        counts=counts,
        summaries={key: hash_text(text) for key, text in source.summaries.items()},
        setting=hash_bytes(setting),
        texts=texts,
        stages=stage_hashes(pack),
    ).sealed()
    if parent is not None and grown is not None:
        standing = parent.contents + contents.added
    else:
        of_contents = pack.outcomes[: len(request.contents)]
        standing = tuple(outcome.hash for outcome in of_contents if outcome.state != "dropped")
    after = Tip(
        pack_id=manifest.pack_id,
        counted=counted,
        contents=standing,
        rows=frozenset(keys) if grown is None else known | frozenset(keys),
        counts=frozenset(pack.counts) | (parent.counts if parent is not None else frozenset()),
        homes={digest: homes[digest] for digest in (*standing, *epoch_texts) if digest in homes},
        epoch=epoch,
    )
    return Recording(manifest=manifest, text=text, blobs=blobs, tip=after, saved=pack.saved)


def stage_hashes(pack: Pack) -> dict[str, str]:
    """Short hashes of what each stage gave."""
    running_hashes = pack.running_hashes
    results = {
        "read": running_hashes.read,
        "count": [running_hashes.count, pack.stages["count"]],
        "retrieve": pack.stages["retrieve"],
        "trim": pack.stages["trim"],
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
    key = [identity.app, identity.user, identity.session, identity.branch, identity.agent, identity.invocation]
    names = "_".join(_word(name) for name in (step.task_id, step.step_id) if name)
    return "_".join(
        piece
        for piece in ("pack", _stamp(identity.last_event_time), names, short(fold([*key, str(identity.call)])))
        if piece
    )


def _stamp(time: float) -> str:
    try:
        moment = datetime.datetime.fromtimestamp(time, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        moment = datetime.datetime.fromtimestamp(0, datetime.UTC)
    return moment.strftime("%Y%m%dT%H%M%S.%fZ")


def _word(name: str) -> str:
    """A piece of a file name: at most 24 letters, digits and hyphens."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", name)[:24].strip("-") or "x"


def epoch_of_hashes(epoch: Epoch) -> Epoch:
    """An epoch as a manifest holds it, with hashes for its texts."""
    return replace(
        epoch,
        summary=hash_text(epoch.summary) if epoch.summary else "",
        payloads=tuple(replace(packed, text=hash_text(packed.text)) for packed in epoch.payloads),
    )


def epoch_of_texts(epoch: Epoch, texts: Mapping[str, str]) -> Epoch:
    """An epoch of a manifest with its texts.

    Raises:
        KeyError: ``texts`` lacks one of them.
    """
    return replace(
        epoch,
        summary=texts[epoch.summary] if epoch.summary else "",
        payloads=tuple(replace(packed, text=texts[packed.text]) for packed in epoch.payloads),
    )


def splice(parent: Sequence[str], changed: ContentList) -> tuple[str, ...]:
    """The contents that a `ContentList` stands for, given what its parent left standing."""
    tail = parent[len(parent) - changed.tail :] if changed.tail else ()
    return (*parent[: changed.head], *changed.added, *tail)


def _content_list(source: PackInput, tip: Tip | None, grown: int | None) -> ContentList:
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


def _budgets(allocation: Allocation) -> dict[Layer, LayerBudget]:
    """The budgets in tokens and as shares of the window; where more may be counted than that, of what may be."""
    whole = max(allocation.window + allocation.overcounted, sum(tokens.final for tokens in allocation.layers.values()))

    def share(tokens: int) -> float:
        return tokens * 10_000 // whole / 10_000

    return {
        layer: LayerBudget(
            tokens=tokens.final,
            share=share(tokens.final),
            nominal_tokens=tokens.nominal,
            nominal_share=share(tokens.nominal),
        )
        for layer, tokens in allocation.layers.items()
    }


def _signals(pack: Pack) -> dict[str, float | int | str | None]:
    values = {name: getattr(pack.signals, name) for name in Signals.__slots__}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}


@lru_cache(maxsize=64)
def _setting_json(setting: Setting) -> bytes:
    return canonical_json(SETTING.dump_python(setting, mode="json")).encode()


def _texts(pack: Pack, epoch: Mapping[str, str], known: Mapping[str, str]) -> bytes:
    """The blob with the texts that are in no earlier one, as canonical JSON; wires are that already."""
    source = pack.source
    new = {content.digest: content.wire for content in source.request.contents if content.digest not in known}
    members = {
        "candidates": canonical_json([_plain(candidate) for candidate in source.candidates] if pack.chose else []),
        "contents": canonical_object(new),
        "epoch": canonical_json(epoch),
        "problems": canonical_json(source.problems),
    }
    if source.summaries:
        members["summaries"] = canonical_json(source.summaries)
    return canonical_object(members).encode("utf-8", "surrogatepass")


def _plain(candidate: Candidate) -> dict[str, JSON]:
    """As `asdict`, which copies every value of the many candidates of a pack."""
    held = {name: getattr(candidate, name) for name in _CANDIDATE_FIELDS} | {"scores": dict(candidate.scores)}
    return held | {name: value for name in _RARE if (value := getattr(candidate, name))}


def _epoch_texts(epoch: Epoch) -> dict[str, str]:
    texts = [packed.text for packed in epoch.payloads]
    return {hash_text(text): text for text in (*texts, epoch.summary) if text or texts}


def is_content(row: CandidateOutcome) -> bool:
    """Whether a row is one of the host's own contents."""
    return row.layer in ("conversation", "task")
