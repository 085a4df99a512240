"""From a pack to its manifest, its texts and the blobs that it names."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from pydantic import TypeAdapter

from aether_context.canonical import canonical_json, canonical_object, fold, hash_bytes, hash_json, hash_text, short
from aether_context.conversation.turns import as_ranges
from aether_context.pack import RECORDED, Candidate, CandidateOutcome, Epoch, Identity, Pack, Signals, Step, Tool
from aether_context.policy import PackPolicy
from aether_context.store.pack_file import Base, file_of, manifest_line

if TYPE_CHECKING:
    from aether_context.store.manifest import Manifest

_RARE = ("superseded_by", "content_hash", "kind")
_CANDIDATE_FIELDS = tuple(known.name for known in fields(Candidate) if known.name not in _RARE)
GIVEN = (
    "window", "output_tokens", "encoder", "memory_encoder", "searched", "first_call", "rewritten", "cached_price",
    "can_mask", "can_find", "can_read", "passthrough_reason", "anchors", "asked", "calibration", "growth",
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

    ``held`` are the hashes of those texts of the chain that are still in use. ``counted`` is by which counter and for
    which model: where either changes, no count of the chain stands. ``base`` is the first manifest of the chain.
    """

    pack_id: str
    counted: tuple[str, str]
    contents: tuple[str, ...]
    rows: frozenset[str]
    counts: frozenset[str]
    held: frozenset[str]
    epoch: Epoch
    base: Base


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A manifest, the texts and the bytes of its pack's file, which has no outcome yet, the blobs that it names, by
    hash, and the tip that it leaves."""

    manifest: Manifest
    texts: bytes
    data: bytes
    blobs: Mapping[str, bytes]
    tip: Tip
    saved: Mapping[str, str] = field(default_factory=dict)

    def changed(self, **values: object) -> Recording:
        """The same with other values in its manifest."""
        manifest, fields = self.manifest.model_copy(update=values).sealed()
        base = self.tip.base
        if base.pack_id == self.manifest.pack_id:
            base = Base.of(fields)
        data = file_of(manifest_line(fields, base), self.texts)
        return replace(self, manifest=manifest, data=data, tip=replace(self.tip, pack_id=manifest.pack_id, base=base))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a session's packs have in common, the step aside as their requests have it: a blob of its own."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = RECORDED

    system: str
    system_is_text: bool
    tools: tuple[Tool, ...]
    other_tools: tuple[str, ...]
    step: Step


SETTING = TypeAdapter(Setting)
OF_REQUEST = ("system", "system_is_text", "tools", "other_tools")
"""What of a setting is the request's."""
_STAGES = ("retrieve", "trim", "allocate", "fit", "render")


def record(pack: Pack, policy: PackPolicy, counter: str, tip: Tip | None) -> Recording:
    """The recording of a pack.

    Args:
        counter: identity of the token counter.
        tip: the end of the chain to extend; None, a pack with a cut, or one that is counted otherwise begins a new one.
    """
    from aether_context.store.manifest import ContentList, LayerBudget, Manifest, ToolScope

    source, request, step, identity = pack.source, pack.source.request, pack.source.step, pack.identity
    counted = (counter, request.model)
    begins = tip is None or tip.counted != counted or any(event.stage == "cut" for event in pack.events)
    parent = None if begins else tip
    grown = pack.appended if parent is not None and parent.pack_id == source.previous_pack else None

    outcomes = pack.outcomes if grown is None else pack.outcomes[len(pack.outcomes) - grown :]
    keys = [f"{outcome.id} {outcome.layer} {outcome.state} {outcome.sent_tokens}" for outcome in outcomes]
    known = parent.rows if parent is not None else frozenset()
    rows = tuple(
        outcome for outcome, key in zip(outcomes, keys, strict=True) if key not in known or not is_content(outcome)
    )
    counts = {key: tokens for key, tokens in pack.counts.items() if parent is None or key not in parent.counts}
    for outcome in outcomes:
        if is_content(outcome):
            counts.pop(short(outcome.hash, 16), None)

    before = parent.contents if parent is not None else ()
    if grown is not None:
        head = len(request.contents) - grown
        new_contents = request.contents[head:]
        contents = ContentList(head=head, added=tuple(content.digest for content in new_contents))
    else:
        new_contents, digests = request.contents, [content.digest for content in request.contents]
        most = min(len(digests), len(before))
        head = next((at for at in range(most) if digests[at] != before[at]), most)
        most -= head
        tail = next((at for at in range(most) if digests[-1 - at] != before[-1 - at]), most)
        contents = ContentList(head=head, added=tuple(digests[head : len(digests) - tail]), tail=tail)

    epoch, epoch_texts = _without_texts(pack.epoch)
    epoch_before = epoch
    if source.epoch is not pack.epoch:
        epoch_before, texts_before = _without_texts(source.epoch)
        epoch_texts |= texts_before

    setting, written = _written(Setting(step=step, **{name: getattr(request, name) for name in OF_REQUEST}))
    blobs = {policy.digest: policy.canonical.encode()}
    held = parent.held if parent is not None else frozenset()
    texts = b""
    if policy.record == "full":
        blobs[setting] = written
        # The texts that the chain does not hold, as canonical JSON; wires are that already.
        wires = {content.digest: content.wire for content in new_contents if content.digest not in held}
        new_epoch = {digest: text for digest, text in epoch_texts.items() if digest not in held}
        members = {"contents": f"[{','.join(wires.values())}]"} if wires else {}
        others = {
            "candidates": [_plain(candidate) for candidate in source.candidates] if pack.chose else [],
            "epoch": new_epoch,
            "problems": source.problems,
            "summaries": source.summaries,
        }
        members |= {name: canonical_json(other) for name, other in others.items() if other}
        texts = canonical_object(members).encode("utf-8", "surrogatepass")
        held = held.union(wires, new_epoch)

    # Budgets are shares of the window; where more may be counted than that, of what may be.
    allocation = pack.allocation
    whole = max(allocation.window + allocation.overcounted, sum(layer.final for layer in allocation.layers.values()))
    signals = {name: getattr(pack.signals, name) for name in Signals.__slots__}
    uris = tuple(sorted(pack.artifact_uris))
    manifest, of_manifest = Manifest(
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
        model=request.model,
        profile=policy.profile,
        policy=policy.digest,
        counter=counter,
        layer_budgets={
            layer: LayerBudget(
                tokens=tokens.final,
                share=tokens.final * 10_000 // whole / 10_000,
                nominal_tokens=tokens.nominal,
                nominal_share=tokens.nominal * 10_000 // whole / 10_000,
            )
            for layer, tokens in allocation.layers.items()
        },
        allocation=allocation.layers,
        weights={layer: round(weight, 6) for layer, weight in allocation.weights.items()},
        signals={name: round(value, 6) if isinstance(value, float) else value for name, value in signals.items()},
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
        positions=as_ranges(request.positions),
        human=request.human,
        others=as_ranges(at for at, content in enumerate(request.contents) if content.agent),
        rows=rows,
        truncation_events=pack.events,
        strategy_acts=pack.acts,
        epoch=epoch,
        epoch_before=None if parent is not None and parent.epoch == epoch_before else epoch_before,
        artifact_uris=uris,
        superseded={uri: source.evidence[uri] for uri in uris if source.evidence.get(uri)},
        request_tokens_method=pack.method,
        counts=counts,
        summaries={key: hash_text(summary) for key, summary in source.summaries.items()},
        setting=setting,
        texts=(hash_bytes(texts),) if texts else (),
        stages=stage_hashes(pack),
    ).sealed()

    if grown is not None:
        standing = (*before, *contents.added)
    else:
        of_contents = pack.outcomes[: len(request.contents)]
        standing = tuple(outcome.hash for outcome in of_contents if outcome.state != "dropped")
        held = held.intersection((*standing, *epoch_texts))
    after = Tip(
        pack_id=manifest.pack_id,
        counted=counted,
        contents=standing,
        rows=frozenset(keys) if grown is None else known | frozenset(keys),
        counts=frozenset(pack.counts) | (parent.counts if parent is not None else frozenset()),
        held=held,
        epoch=epoch,
        base=parent.base if parent is not None else Base.of(of_manifest),
    )
    data = file_of(manifest_line(of_manifest, after.base), texts)
    return Recording(manifest=manifest, texts=texts, data=data, blobs=blobs, tip=after, saved=pack.saved)


def _without_texts(epoch: Epoch) -> tuple[Epoch, dict[str, str]]:
    """An epoch as manifests hold it, with hashes for its texts; and the texts by their hashes."""
    texts = [packed.text for packed in epoch.payloads]
    payloads = tuple(replace(packed, text=hash_text(packed.text)) for packed in epoch.payloads)
    summary = hash_text(epoch.summary) if epoch.summary else ""
    by_hash = {hash_text(text): text for text in (*texts, epoch.summary) if text or texts}
    return replace(epoch, summary=summary, payloads=payloads), by_hash


def stage_hashes(pack: Pack) -> dict[str, str]:
    """Short hashes of what each stage gave, in the order of the stages."""
    results = {
        "read": pack.running_hashes.read,
        "count": [pack.running_hashes.count, pack.stages["count"]],
        **{stage: pack.stages[stage] for stage in _STAGES},
        "write": pack.checksum,
    }
    return {stage: short(hash_json(result), 12) for stage, result in results.items()}


def pack_id(identity: Identity, step: Step) -> str:
    """``pack_{time}_{task}_{step}_{hash8}``, the time that of the session's last event in UTC.

    The hash is over application, user, session, branch, agent, invocation and call number.
    """
    try:
        moment = datetime.datetime.fromtimestamp(identity.last_event_time, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        moment = datetime.datetime.fromtimestamp(0, datetime.UTC)
    names = [name for name in (step.task_id, step.step_id) if name]
    words = [re.sub(r"[^A-Za-z0-9-]+", "-", name)[:24].strip("-") or "x" for name in names]
    key = [identity.app, identity.user, identity.session, identity.branch, identity.agent, identity.invocation]
    return "_".join(["pack", moment.strftime("%Y%m%dT%H%M%S.%fZ"), *words, short(fold([*key, str(identity.call)]))])


@lru_cache(maxsize=64)
def _written(setting: Setting) -> tuple[str, bytes]:
    """The hash of a setting's blob, and the blob."""
    data = canonical_json(SETTING.dump_python(setting, mode="json")).encode()
    return hash_bytes(data), data


def _plain(candidate: Candidate) -> dict[str, object]:
    """As `asdict`, which copies every value of the many candidates of a pack."""
    value = {name: getattr(candidate, name) for name in _CANDIDATE_FIELDS} | {"scores": dict(candidate.scores)}
    return value | {name: rare for name in _RARE if (rare := getattr(candidate, name))}


def is_content(row: CandidateOutcome) -> bool:
    """Whether a row is one of the host's own contents."""
    return row.layer in ("conversation", "task")
