"""The masked form of a pack, which is what is recorded of it: the pack that its input makes with its texts masked.

Contents, declarations and candidates keep the hashes of what was sent, by which epochs and rows name them, and their
token counts, so that the same is decided for both. Every text of a step, a candidate or an anchor is masked but those
of `UNMASKED`.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

from cachetools import LRUCache

from aether_context.canonical import JSON, canonical_json, hash_text, short
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.conversation.quotes import attributed
from aether_context.pack import (
    NOTHING,
    AcceptanceItem,
    Anchor,
    Candidate,
    Content,
    Epoch,
    Pack,
    PackInput,
    Part,
    Step,
    Tool,
)
from aether_context.packing import build_pack, payload
from aether_context.packing.selection import render_line
from aether_context.policy import PackPolicy
from aether_context.redaction import Masker
from aether_context.tokens import counter_for

_MOST_LAST = 512
_MASKED_INPUTS = ("step", "invalid_reason", "candidates", "instructions", "problems")
_FIELDS = {"function_call": "args", "function_response": "response"}
UNMASKED: Mapping[type, frozenset[str]] = {
    Step: frozenset(["task_id", "step_id", "risk", "tools"]),
    AcceptanceItem: frozenset(["id"]),
    Candidate: frozenset(["id", "layer", "digest", "covers", "content_hash", "kind"]),
    Anchor: frozenset(["kind"]),
}
"""The fields of each kind of value that are not masked: names, ids and hashes, which say what belongs together. A new
field is masked unless it is named here."""
UNSIGNED = "skip_thought_signature_validator"
"""The signature by which Gemini takes a part that its model has not written. Where a call has none, it refuses the
request, and a call in other words is not what the model has signed."""
OTHERWISE = "what is recorded is masked, and was packed otherwise than what was sent"


class _Last(NamedTuple):
    """The epoch after a pack, and after its masked form, with the counts of that."""

    epoch: Epoch = Epoch(number=0)
    masked_epoch: Epoch = Epoch(number=0)
    counts: Mapping[str, int] = NOTHING


class MaskedPacks:
    """The masked forms of packs that follow each other. For one thread."""

    def __init__(self) -> None:
        self._last: LRUCache[str, _Last] = LRUCache(_MOST_LAST)
        """By the ids of packs."""

    def of(self, pack: Pack, policy: PackPolicy, name: str) -> Pack:
        """The masked form of a pack with the id ``name``; itself where nothing in it is masked."""
        if not policy.redact:
            return pack
        last = self._last.pop(pack.source.previous.pack_id, _Last())
        form = self._form(pack, policy, last)
        if form is not pack:
            forms = [{row.id: row.form for row in version.rows} for version in (form, pack)]
            problems = form.verdict.problems if forms[0] == forms[1] else (*form.verdict.problems, OTHERWISE)
            tokens, verdict = form.tokens._replace(method=pack.tokens.method), form.verdict._replace(problems=problems)
            form = form._replace(prefix=pack.prefix, tokens=tokens, verdict=verdict)
        self._last[name] = _Last(pack.epoch, form.epoch, form.to_store.counts)
        return form

    def _form(self, pack: Pack, policy: PackPolicy, last: _Last) -> Pack:
        mask, source = policy.mask, pack.source
        # A summary that this pack replaces and its masked form keeps counts as it did.
        counts = {**last.counts}
        counts |= {short(outcome.hash, 16): outcome.tokens for outcome in pack.rows} | dict(pack.to_store.counts)
        masked_source = masked_input(source, mask)
        if not policy.redact_prompt:
            masked_source = masked_source._replace(epoch=_epoch(source.epoch, last))
        if masked_source == source:
            return pack
        # What is masked counts what it stands for.
        pairs = [(payload.step_text(source.step), payload.step_text(masked_source.step))]
        for candidate, masked_candidate in zip(source.candidates, masked_source.candidates, strict=True):
            pairs += [(candidate.text, masked_candidate.text), (render_line(candidate), render_line(masked_candidate))]
        rules = zip(source.instructions, masked_source.instructions, strict=True)
        pairs += [(rule.text, masked_rule.text) for rule, masked_rule in rules]
        for whole, masked in pairs:
            if (tokens := counts.get(_key(whole))) is not None:
                counts[_key(masked)] = tokens
        for sent_item in (item for item in pack.contents if item.form != "whole"):
            counts[_key(masked_content(sent_item.content, mask).wire)] = sent_item.tokens
        masked_source = masked_source._replace(previous=masked_source.previous._replace(sent=None))
        counter = counter_for(source.request.model)

        def build(source: PackInput) -> Pack:
            return build_pack(source, policy, counter=counter, recorded=counts)

        if source.summaries:
            masked_source = masked_source._replace(summaries=_summaries(source, masked_source, build, mask))
        return build(masked_source)


def masked_content(content: Content, mask: Masker, *, to_send: bool = False) -> Content:
    """A content, or a masked one, with its texts masked and the hash of what it was; itself where nothing is masked.

    Args:
        to_send: whether it is for a model. A thought that it signed then stays as it is, since the model may refuse it
            in other words, and what else is signed is sent as nobody's (`UNSIGNED`).
    """
    key = (masked_content, mask.name, to_send)
    if key not in content.derived:
        form = content_of_parts(content.role, [_masked_part(part, mask, to_send) for part in content.parts])
        masked = replace(attributed(form) if content.agent else form, digest=content.digest)
        content.derived[key] = masked if masked.wire != content.wire else None
        masked.derived[key] = None
    return content.derived[key] or content


def _masked_part(part: Part, mask: Masker, to_send: bool) -> Part:
    if to_send and part.is_thought and part.is_signed:
        return part
    masked = masked_part(json.loads(part.wire), mask)
    if to_send and part.is_signed and canonical_json(masked) != part.wire:
        masked["thought_signature"] = UNSIGNED
    media = {name: getattr(part, name) for name in ("size_bytes", "media_tokens", "media_count", "pages")}
    return part_of(masked, **media)


def masked_input(source: PackInput, mask: Masker, *, to_send: bool = False) -> PackInput:
    """The input of a pack with its texts masked as by `masked_content`, but for what a model wrote, and its epoch."""
    request = source.request
    return source._replace(
        request=request._replace(
            system=mask(request.system),
            tools=tuple(_tool(tool, mask, to_send) for tool in request.tools),
            other_tools=tuple(canonical_json(mask.json(json.loads(wire))) for wire in request.other_tools),
            contents=tuple(masked_content(content, mask, to_send=to_send) for content in request.contents),
        ),
        **{name: _masked(getattr(source, name), mask) for name in _MASKED_INPUTS},
        host=source.host._replace(anchors=_masked(source.host.anchors, mask)),
    )


def _masked(value: Any, mask: Masker) -> Any:
    """A value of the pipeline with its texts masked, whatever fields it has; itself where nothing is masked in it."""
    if isinstance(value, str):
        return mask(value) if value else value
    if isinstance(value, tuple):
        items = tuple(_masked(item, mask) for item in value)
        return value if all(map(operator.is_, items, value)) else items
    if type(value) not in UNMASKED:
        return value
    names = (item.name for item in fields(value) if item.name not in UNMASKED[type(value)])
    masked = {name: _masked(getattr(value, name), mask) for name in names}
    changes = {name: item for name, item in masked.items() if item is not getattr(value, name)}
    return replace(value, **changes) if changes else value


def masked_part(value: Mapping[str, Any], mask: Masker) -> dict[str, JSON]:
    """The JSON of a part with its texts masked."""
    masked: dict[str, JSON] = {}
    for name, item in value.items():
        if name in _FIELDS and isinstance(item, dict):  # ids stay
            inside = _FIELDS[name]
            masked[name] = item | ({inside: mask.json(item[inside])} if inside in item else {})
            if isinstance(tool := item.get("name"), str):
                masked[name] |= {"name": _tool_name(tool, mask)}
        elif name == "inline_data":  # its data is a hash
            masked[name] = item | mask.json({key: entry for key, entry in item.items() if key != "data"})
        else:
            masked[name] = item if name == "thought_signature" else mask.json(item)
    return masked


def _tool(tool: Tool, mask: Masker, to_send: bool) -> Tool:
    wire = canonical_json(mask.json(json.loads(tool.wire)))
    name = tool.name if to_send else _tool_name(tool.name, mask)  # a model calls a tool by its own name
    if (wire, name) == (tool.wire, tool.name):
        return tool
    return replace(tool, wire=wire, name=name, signature=mask(tool.signature))


def _tool_name(name: str, mask: Masker) -> str:
    """A name without a secret, of a tool that is called or declared by one; providers refuse brackets there."""
    return name if (masked := mask(name)) == name else masked.replace("[", "").replace("]", "")


def _key(text: str) -> str:
    return short(hash_text(text), 16)


def _epoch(epoch: Epoch, last: _Last) -> Epoch:
    """An epoch with masked texts: those that the masked form of the pack before made.

    To mask a text that was put together does not do, since a piece of a secret may stand in it. So what nothing is
    known of, like what an earlier process made, is left out.

    Args:
        last: the pack before.
    """
    original, masked_epoch, _ = last
    texts = {(message.of, message.invocation): message.text for message in original.payloads}
    masked = {(message.of, message.invocation): message for message in masked_epoch.payloads}
    payloads = []
    for message in epoch.payloads:
        key = (message.of, message.invocation)
        masked_message = masked.get(key) if texts.get(key) == message.text else None
        payloads.append(replace(masked_message or replace(message, text="", split=0), place=message.place))
    return replace(
        epoch,
        payloads=tuple(payloads),
        summary=masked_epoch.summary if epoch.summary == original.summary else "",
        marks=masked_epoch.marks if epoch.marks == original.marks else epoch.marks,
        last_request=masked_epoch.last_request if epoch.last_request == original.last_request else epoch.last_request,
    )


def _summaries(
    source: PackInput, masked_source: PackInput, build: Callable[[PackInput], Pack], mask: Masker
) -> Mapping[str, str]:
    """A model's summaries for a pack, masked, by the keys under which its masked form asks for them.

    Both ask in the same order, and once more where what was written changed what else is needed.
    """
    written: dict[str, str] = {}
    masked: dict[str, str] = {}
    for _ in range(2):
        requests = build(source._replace(summaries=written)).to_store.summary_requests
        masked_requests = build(masked_source._replace(summaries=masked)).to_store.summary_requests
        for request, other in zip(requests, masked_requests, strict=False):
            if (text := source.summaries.get(request.key)) is not None:
                written[request.key], masked[other.key] = text, mask(text)
    return masked
