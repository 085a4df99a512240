"""From a pack to its manifest and its texts."""

from __future__ import annotations

import datetime
import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import TypeAdapter

from aether_context.canonical import canonical_json, fold, hash_json, hash_text, short
from aether_context.conversation.epoch import as_ranges
from aether_context.evidence.record import READERS
from aether_context.pack import (
    NOTHING,
    Candidate,
    Content,
    Epoch,
    Host,
    Identity,
    Layer,
    Pack,
    Recorded,
    Request,
    Row,
    Step,
    Tool,
    values_of,
    with_content,
)
from aether_context.packing.payload import wording_of
from aether_context.policy import PackPolicy

if TYPE_CHECKING:
    from aether_context.store.manifest import Manifest

_RARE = ("superseded_by", "content_hash", "kind")
_CANDIDATE_FIELDS = tuple(item.name for item in fields(Candidate) if item.name not in _RARE)
OF_HOST = tuple(name for name in Host._fields if name != "readings")
"""Fields that a manifest copies from what the host offers, and a replay copies back."""


class Tip(NamedTuple):
    """The end of a chain of records: what the next one may leave out.

    ``record`` is the name of the last one, ``chain`` are the numbers of the packs that have all of them. ``counted``
    is the counter and the model that tokens were counted for; where either changes, and with each cut, the next record
    begins a new chain. ``log`` are the hashes of the ``logged`` contents that the chain has recorded, with their places
    among these. ``rows`` are the keys of the rows that the chain holds, ``counts`` are token counts by key. ``texts``
    outlive the chain: the texts that the last pack needs, by their names, each with the number of the pack with whose
    record it stands in the log. ``host`` is a hash of the host's system instruction and declarations, ``began`` the
    time of the pack with which all this began. A chain that begins has the defaults.
    """

    pack_id: str = ""
    record: str = ""
    chain: tuple[int, ...] = ()
    texts: Mapping[str, int] = NOTHING
    counted: tuple[str, str] = ("", "")
    log: Mapping[str, tuple[int, ...]] = NOTHING
    logged: int = 0
    rows: frozenset[str] = frozenset()
    counts: Mapping[str, int] = NOTHING
    epoch: Epoch | None = None
    host: str = ""
    began: float = 0.0

    @property
    def size(self) -> int:
        """The number of names that it holds, its own among them."""
        return 1 + len(self.texts) + len(self.log) + len(self.rows) + len(self.counts)


class Recording(NamedTuple):
    """A manifest ready to be written.

    ``data`` are the bytes of its file, ``lines`` those that it adds to the log, ``tip`` is what the next one extends,
    ``saved`` are texts to be stored by their URI.
    """

    manifest: Manifest
    data: bytes
    lines: tuple[str, ...]
    tip: Tip
    saved: Mapping[str, str]

    def changed(self, **values: object) -> Recording:
        """The same with other values in its manifest."""
        manifest, data = self.manifest.sealed(**values)
        return self._replace(manifest=manifest, data=data, tip=self.tip._replace(pack_id=manifest.pack_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(Recorded):
    """Facts that a session's packs have in common: of the request, the plan's step, and the lines that explain packs to
    the model."""

    system: str
    system_is_text: bool
    tools: tuple[Tool, ...]
    other_tools: tuple[str, ...]
    step: Step
    instructions: tuple[Candidate, ...] = ()
    wording: tuple[tuple[str, str], ...] = ()


SETTING = TypeAdapter(Setting)
OF_REQUEST = ("system", "system_is_text", "tools", "other_tools")
"""The fields of a `Setting` that are the request's."""
_OF_TOOLS = ("mode", "left_out", "kept", "allowed")
"""The fields of a manifest's `ToolScope` that are those of the pack's selection."""
_SIGNALS = {"risk": "risk_weight", "freshness_days": "freshness"}
"""The names that signals have in the founding documents, where they are others."""
_MOST_WORDS = 120
_STAGES = ("retrieve", "trim", "allocate", "fit", "render")


class _Logged(NamedTuple):
    """The contents of a request in a chain's log: their places there, which of them it adds, and the log with these."""

    places: Sequence[int]
    added: Sequence[Content]
    log: Mapping[str, tuple[int, ...]]


class _Named(NamedTuple):
    """What a record names in the log: ``texts`` by their names, each a line; the names of the ``setting`` and of what
    was ``offered``, which is a line of its own; ``masked`` are names of masked contents by their digests."""

    texts: Mapping[str, str]
    setting: str = ""
    offered: str = ""
    masked: Mapping[str, str] = NOTHING


def record(
    pack: Pack, policy: PackPolicy, counter: str, tip: Tip | None, *, sent: Pack | None = None, **position: Any
) -> Recording:
    """The recording of a pack.

    Args:
        sent: the pack whose masked form it is; None where nothing in it is masked.
        counter: identity of the token counter.
        tip: the end of the chain to extend. None begins a new chain, with all texts; so does a pack with a cut, or one
            that was counted by another counter or for another model, without the texts that are in the log.
        position: fields of the manifest that say where the pack stands in its session, and what the store holds of
            that: ``number``, ``turn``, ``before`` and the like.
    """
    from aether_context.store.manifest import Manifest

    request = pack.source.request
    counted = (counter, request.model)
    goes_on = tip is not None and tip.counted == counted and all(event.stage != "cut" for event in pack.events)
    chain = tip if tip is not None and goes_on else Tip(texts=tip.texts if tip is not None else NOTHING)
    (epoch, texts), (epoch_before, texts_before) = map(_without_texts, (pack.epoch, pack.source.epoch))
    logged, named = _in_log(chain, request), _named(pack, policy, texts | texts_before)
    keys = [*map(row_key, pack.rows)]
    numbers = {name: chain.texts[name] for name in named.texts if name in chain.texts}
    # What is masked counts what it stands for, which may be another text in a later pack.
    counts = {key: tokens for key, tokens in pack.to_store.counts.items() if chain.counts.get(key) != tokens}
    own_tools = (tool.digest for tool in request.tools if tool.name not in READERS)
    host = fold((request.system, *own_tools, *request.other_tools))
    checksum = pack.checksum
    manifest = Manifest(
        pack_id=pack_id(pack.identity, pack.source.step),
        **position,
        **_of_input(pack),
        **_of_result(pack),
        **_of_layers(pack),
        **_of_chain(chain, pack, logged, keys, counts),
        epoch_number=epoch.number,
        epoch=epoch,
        epoch_before=None if chain.epoch == epoch_before else epoch_before,
        checksum=checksum if sent is None else sent.checksum,
        masked_checksum="" if sent is None else hash_text(request_json(pack)),
        whole_history_breaks=request.rewritten or (tip is not None and tip.host != host),
        profile=policy.profile,
        policy=policy.digest,
        counter=counter,
        words=_first_words(request) if policy.record == "full" else "",
        segments=as_ranges({*chain.chain, *numbers.values()}),
        setting=named.setting,
        offered=hash_text(named.offered) if named.offered else "",
        masked={digest: named.masked[digest] for content in logged.added if (digest := content.digest) in named.masked},
        texts=policy.record == "full",
        record="",
        stages=stage_hashes(pack, checksum),
    )
    line = manifest.record_line()
    lines = (line, named.offered, *(text for name, text in named.texts.items() if name not in numbers))
    manifest, data = manifest.sealed(record=hash_text(line))
    new_tip = Tip(
        pack_id=manifest.pack_id,
        record=manifest.record,
        chain=(*chain.chain, manifest.number),
        texts=dict.fromkeys(named.texts, manifest.number) | numbers,
        counted=counted,
        log=logged.log,
        logged=chain.logged + len(logged.added),
        rows=frozenset(keys),
        counts={**chain.counts, **counts},
        epoch=epoch,
        host=host,
        began=tip.began if tip is not None else pack.identity.last_event_time,
    )
    return Recording(manifest, data, tuple(filter(None, lines)), new_tip, pack.to_store.saved)


def _in_log(chain: Tip, request: Request) -> _Logged:
    """The contents of a request in a chain's log."""
    # Places only go up, so that their ranges stay few however often a content is repeated.
    places, added, log = list[int](), list[Content](), chain.log
    for content in request.contents:
        logged_at, next_place = log.get(content.digest, ()), places[-1] + 1 if places else 0
        at = bisect_left(logged_at, next_place)
        if at == len(logged_at):
            added.append(content)
        places.append(logged_at[at] if at < len(logged_at) else chain.logged + len(added) - 1)
    if added:
        log = dict(log)
        for number, content in enumerate(added, chain.logged):
            log[content.digest] = (*log.get(content.digest, ()), number)
    return _Logged(places, added, log)


def _named(pack: Pack, policy: PackPolicy, epoch_texts: Mapping[str, str]) -> _Named:
    """What a record of a pack names in the log, the texts of its epochs among it; of a policy that records no texts the
    policy alone."""
    source, request = pack.source, pack.source.request
    of_policy = {policy.digest: policy.canonical}
    if policy.record != "full":
        return _Named(of_policy)
    shared = {"step": source.step, "instructions": source.instructions, **values_of(request, *OF_REQUEST)}
    setting_text, setting = _written(Setting(wording=tuple(wording_of(source).items()), **shared))
    names = {content.digest: _name_of(content) for content in request.contents if policy.redact}
    words = {**epoch_texts, **{hash_text(text): text for text in source.summaries.values()}}
    has_ranked = pack.to_store.chose or pack.to_store.weighed
    candidates = [_plain(candidate) for candidate in source.candidates] if has_ranked else []
    is_offered = bool(candidates or source.problems)
    return _Named(
        of_policy
        | {setting: setting_text}
        | {names.get(content.digest, content.digest): content.wire for content in request.contents}
        | {name: canonical_json(text) for name, text in words.items()},
        setting,
        canonical_json({"candidates": candidates, "problems": source.problems}) if is_offered else "",
        {digest: name for digest, name in names.items() if name != digest},
    )


def _of_input(pack: Pack) -> dict[str, Any]:
    """The fields of a manifest that say what the call was given."""
    source, request, searched = pack.source, pack.source.request, pack.source.search
    uris = sorted(pack.verdict.artifact_uris)
    return {
        "call_before": source.previous.pack_id or None,
        **pack.identity._asdict(),
        **values_of(source.host, *OF_HOST),
        **values_of(source, "window", "output_tokens"),
        **values_of(source.usage, "calibration", "growth"),
        **values_of(request, "model", "first_call", "rewritten", "request_index"),
        **values_of(source.step, "task_id", "step_id", "role"),
        "searched": searched.turns,
        "recall_room": searched.room,
        "remaining": None if searched.remaining is None else as_ranges(searched.remaining),
        "embedder": searched.embedder,
        "memory_embedder": searched.memory_embedder,
        "positions": as_ranges(request.positions),
        "others": as_ranges(index for index, content in enumerate(request.contents) if content.agent),
        "summaries": {key: hash_text(summary) for key, summary in source.summaries.items()},
        "superseded": {uri: source.host.readings[uri] for uri in uris if source.host.readings.get(uri)},
    }


def _of_result(pack: Pack) -> dict[str, Any]:
    """The fields of a manifest that say what was made of it, and what became of that."""
    from aether_context.store.manifest import ToolScope

    verdict, tokens, validity_before = pack.verdict, pack.tokens, pack.source.validity
    return {
        **values_of(verdict, "validity", "invalid_reason", "evidence_needed"),
        **values_of(pack, "epoch_reason", "prefix"),
        "degradations": verdict.problems,
        "chose": pack.to_store.chose,
        "request_tokens": tokens.expected,
        "request_tokens_method": tokens.method,
        "counted_tokens": tokens.counted,
        "whole_history_tokens": tokens.whole_history,
        "over_window": tokens.over_window,
        "plan_validity": validity_before if validity_before != verdict.validity else None,
        "tools": ToolScope(sent=tuple(tool.name for tool in pack.tools.sent), **values_of(pack.tools, *_OF_TOOLS)),
        "candidates": _numbers(pack.rows),
        "truncation_events": _truncations(pack),
        "strategy_acts": pack.acts,
        "artifact_uris": tuple(sorted(verdict.artifact_uris)),
        "saved": {uri: hash_text(text) for uri, text in pack.to_store.saved.items()},
    }


def _of_layers(pack: Pack) -> dict[str, Any]:
    """The fields of a manifest that say how the window was allocated."""
    from aether_context.store.manifest import LayerBudget

    # Budgets are shares of the window, or of the tokens that may be counted, where these are more.
    allocation = pack.allocation
    final_tokens = sum(layer.final for layer in allocation.layers.values())
    base = max(allocation.window + max(0, allocation.spare_tokens), final_tokens)
    return {
        "layer_budgets": {
            "slack_min" if layer == "slack" else layer: LayerBudget(
                tokens=tokens.final, share=tokens.final * 10_000 // base / 10_000
            )
            for layer, tokens in allocation.layers.items()
        },
        "allocation": allocation.layers,
        "weights": {layer: round(weight, 6) for layer, weight in allocation.weights.items()},
        "signals": {
            _SIGNALS.get(name, name): round(value, 6) if isinstance(value, float) else value
            for name, value in allocation.signals._asdict().items()
        },
    }


def _of_chain(
    chain: Tip, pack: Pack, logged: _Logged, keys: Sequence[str], new_counts: Mapping[str, int]
) -> dict[str, Any]:
    """The fields of a manifest that hold what a chain lacks so far: contents, rows by their ``keys``, and counts."""
    from aether_context.store.manifest import ContentList

    of_contents = pack.rows[: len(pack.source.request.contents)]
    with_count = {short(row.hash, 16) for row in of_contents}
    new_rows = (row for row, key in zip(of_contents, keys, strict=False) if key not in chain.rows)
    added = (content.digest for content in logged.added)
    return {
        "extends": chain.record or None,
        "contents": ContentList(added=tuple(added), ranges=as_ranges(logged.places)),
        "rows": (*new_rows, *pack.rows[len(of_contents) :]),
        "counts": {key: tokens for key, tokens in new_counts.items() if key not in with_count},
    }


def _numbers(rows: Sequence[Row]) -> dict[Layer, dict[str, int]]:
    """Counts the rows of each layer, by form, or by the reason where they are left out."""
    numbers: dict[Layer, dict[str, int]] = {}
    for row in rows:
        of_layer = numbers.setdefault(row.layer, {})
        name = row.reason or row.form if row.form == "left_out" else row.form
        of_layer[name] = of_layer.get(name, 0) + 1
    return numbers


def _truncations(pack: Pack) -> list[dict[str, object]]:
    """The events of a pack as manifests hold them, which tell what is not sent from what is shorter."""
    unsent = {row.id for row in pack.rows if row.form in ("left_out", "summarized")}
    events = []
    for event in pack.events:
        if event.stage in ("cut", "emergency"):
            dropped = [item for item in event.item_ids if item in unsent]
            compressed = [item for item in event.item_ids if item not in unsent]
        else:
            is_shorter = event.stage in ("compress", "replace")
            dropped, compressed = ([], [*event.item_ids]) if is_shorter else ([*event.item_ids], [])
        values = {item.name: getattr(event, item.name) for item in fields(event) if item.name != "item_ids"}
        events.append({**values, "dropped_ids": dropped, "compressed_ids": compressed})
    return events


def _first_words(request: Request) -> str:
    """The text of the message that is answered, at an invocation's first call."""
    if request.request_index is None or not request.first_call:
        return ""
    return " ".join(request.contents[request.request_index].words[: 10 * _MOST_WORDS].split())[:_MOST_WORDS]


def _without_texts(epoch: Epoch) -> tuple[Epoch, dict[str, str]]:
    """An epoch as manifests hold it, with hashes in the place of its texts; and the texts by their hashes."""
    texts = [message.text for message in epoch.payloads]
    digests = {text: hash_text(text) for text in (*texts, epoch.summary) if text or texts}
    payloads = tuple(replace(message, text=digests[message.text]) for message in epoch.payloads)
    summary = digests[epoch.summary] if epoch.summary else ""
    return replace(epoch, summary=summary, payloads=payloads), {digest: text for text, digest in digests.items()}


def stage_hashes(pack: Pack, checksum: str) -> dict[str, str]:
    """Short hashes of each stage's result, in the order of the stages; that of the last is the pack's checksum."""
    rows = pack.rows[: len(pack.source.request.contents)]
    results = {
        "read": hash_text("\n".join(row.hash for row in rows)),
        "count": [hash_text("\n".join(str(row.tokens) for row in rows)), pack.to_store.stages["count"]],
        **{stage: pack.to_store.stages[stage] for stage in _STAGES},
        "write": checksum,
    }
    return {stage: short(hash_json(result)) for stage, result in results.items()}


def pack_id(identity: Identity, step: Step) -> str:
    """``pack_{time}_{task}_{step}_{hash8}``, the time that of the session's last event in UTC.

    The hash is over application, user, session, branch, agent, invocation and call number.
    """
    moment = datetime.datetime.fromtimestamp(0, datetime.UTC)
    with suppress(OverflowError, OSError, ValueError):
        moment = datetime.datetime.fromtimestamp(identity.last_event_time, datetime.UTC)
    scope = _scope(identity.app, identity.user, identity.session, identity.branch, identity.agent, identity.invocation)
    digits = short(fold([str(identity.call)], scope))
    time = re.sub(r"[-:]|\+.*", "", moment.isoformat(timespec="microseconds")) + "Z"
    return "_".join(["pack", time, *_words(step.task_id, step.step_id), digits])


@lru_cache(maxsize=1_000)
def _scope(*names: str) -> str:
    return fold(names)


@lru_cache(maxsize=1_000)
def _words(*names: str) -> tuple[str, ...]:
    """Names as they stand in a pack's id."""
    return tuple(re.sub(r"[^A-Za-z0-9-]+", "-", name)[:24].strip("-") or "x" for name in names if name)


@with_content
def _name_of(content: Content) -> str:
    """The name of a content's text in the log."""
    return hash_text(content.wire)


@lru_cache(maxsize=64)
def _written(setting: Setting) -> tuple[str, str]:
    """A setting as canonical JSON, and its hash."""
    text = canonical_json(SETTING.dump_python(setting, mode="json"))
    return text, hash_text(text)


def _plain(candidate: Candidate) -> dict[str, object]:
    """A candidate as a dict. `asdict` would copy every value, and a pack has many candidates."""
    values = {name: getattr(candidate, name) for name in _CANDIDATE_FIELDS} | {"scores": dict(candidate.scores)}
    return values | {name: rare for name in _RARE if (rare := getattr(candidate, name))}


def row_key(row: Row) -> str:
    """The part of a content's row that may change from pack to pack, with its id: a chain holds each once."""
    return f"{row.id} {row.layer} {row.form} {row.sent_tokens}"


def is_content(row: Row) -> bool:
    """Tells whether a row is one of the host's own contents."""
    return row.layer in ("conversation", "task")


def request_json(pack: Pack) -> str:
    """The canonical JSON of a pack's request: system, tools, contents and allowed tools."""
    declarations = (*(tool.wire for tool in pack.tools.sent), *pack.source.request.other_tools)
    contents = list[dict[str, Any]]()
    for item in pack.contents:
        content = json.loads(item.content.wire)
        if item.joined:
            contents[-1]["parts"] += content["parts"]
        else:
            contents.append(content)
    request = {
        "system": pack.system,
        "tools": [json.loads(wire) for wire in declarations],
        "contents": contents,
        "allowed_tools": pack.tools.allowed,
    }
    return canonical_json(request)
