"""The masked form of a pack, which is what is recorded of it: the pack that its input makes with its texts masked.

Contents, declarations and candidates keep the hashes of what was sent, by which epochs and rows name them, and their
token counts, so that the same is decided for both. Names and ids are not masked: they say what belongs together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cachetools import LRUCache

from aether_context.canonical import JSON, canonical_json, hash_text, short
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.conversation.quotes import attributed
from aether_context.pack import Candidate, Content, Epoch, Pack, PackInput, Step, Tool
from aether_context.packing import build_pack, extend_pack
from aether_context.packing.carryover import plan_digest
from aether_context.policy import PackPolicy
from aether_context.redaction import Masker
from aether_context.tokens import counter_for
from aether_context.tokens.counters import SharedLRU

_MOST_CONTENTS, _MOST_LAST = 20_000, 512
_FIELDS = {"function_call": "args", "function_response": "response"}
OTHERWISE = "what is recorded is masked, and was packed otherwise than what was sent"


class MaskedPacks:
    """The masked forms of packs that follow each other. For one thread."""

    def __init__(self) -> None:
        self._contents = MaskedContents()
        self._last: LRUCache[str, Pack] = LRUCache(_MOST_LAST)

    def of(self, pack: Pack, policy: PackPolicy, name: str) -> Pack:
        """The masked form of a pack; itself where nothing in it is masked.

        Args:
            name: the pack's id.
        """
        if not policy.redact:
            return pack
        last = self._last.pop(pack.source.previous_pack, None)
        form = self._form(pack, policy, last)
        if form is not pack:
            states = [[outcome.state for outcome in one.outcomes] for one in (form, pack)]
            told = form.degradations if states[0] == states[1] else (*form.degradations, OTHERWISE)
            form = form._replace(prefix=pack.prefix, method=pack.method, degradations=told)
        self._last[name] = form
        return form

    def _form(self, pack: Pack, policy: PackPolicy, last: Pack | None) -> Pack:
        mask, source = policy.mask, pack.source
        counts = {short(outcome.hash, 16): outcome.tokens for outcome in pack.outcomes} | dict(pack.counts)

        def masked(text: str) -> str:
            """The masked text, which counts what the text does."""
            after = mask(text)
            tokens = counts.get(short(hash_text(text), 16)) if after != text else None
            if tokens is not None:
                counts[short(hash_text(after), 16)] = tokens
            return after

        changed = masked_input(source, mask, self._contents, masked)
        if changed == source:
            return pack
        for at in pack.made:
            made = pack.contents[at]
            counts[short(hash_text(self._contents.of(made.content, mask).wire), 16)] = made.tokens
        changed = changed._replace(tool_scores=pack.tool_scores, tool_encoder=pack.tool_encoder, previous=None)
        counter = counter_for(source.request.model)
        if pack.appended is not None and last is not None:
            changed = changed._replace(epoch=last.epoch)
            form = extend_pack(last, changed, policy, counter=counter, recorded=counts)
            if form is not None:
                return form

        def build(source: PackInput) -> Pack:
            return build_pack(source, policy, counter=counter, recorded=counts)

        if source.summaries:
            changed = changed._replace(summaries=_summaries(source, changed, build, mask))
        form = build(changed)
        # An epoch is known by short hashes of instruction and step. Those that still hold for what was sent hold here.
        marks = {
            mark: form.epoch.marks.get(mark, value) if pack.epoch.marks.get(mark) == value else value
            for mark, value in source.epoch.marks.items()
        }
        if marks != source.epoch.marks:
            form = build(changed._replace(epoch=replace(changed.epoch, marks=marks)))
        return form


class MaskedContents:
    """Contents with their texts masked, and the hashes of what they were. Those that were masked are looked up.

    Args:
        thoughts: whether a model's thoughts are masked, too: it may refuse its own in other words.
    """

    def __init__(self, *, thoughts: bool = True) -> None:
        self._thoughts = thoughts
        self._known: SharedLRU[tuple[str, str, str], Content] = SharedLRU(_MOST_CONTENTS)

    def of(self, content: Content, mask: Masker) -> Content:
        """The masked form of a content, or of a masked one; itself where nothing is masked in it."""
        key = (mask.name, content.digest, content.agent)
        known = self._known.get(key)
        if known is None:
            parts = [
                part
                if part.kind == "thought" and not self._thoughts
                else part_of(
                    _part(json.loads(part.wire), mask), size_bytes=part.size_bytes, media_tokens=part.media_tokens
                )
                for part in content.parts
            ]
            made = content_of_parts(content.role, parts)
            known = replace(attributed(made) if content.agent else made, digest=content.digest)
            self._known.put(key, known)
        return content if known.wire == content.wire else known


def masked_input(
    source: PackInput, mask: Masker, contents: MaskedContents, masked: Callable[[str], str] | None = None
) -> PackInput:
    """The input of a pack with its texts masked, but for what a model wrote.

    Args:
        masked: masks single texts, as ``mask`` does.
    """
    masked = masked or mask
    request = source.request
    step = _step(source.step, masked)
    changed = source._replace(
        request=request._replace(
            system=masked(request.system),
            tools=tuple(_tool(tool, mask) for tool in request.tools),
            other_tools=tuple(canonical_json(mask.json(json.loads(wire))) for wire in request.other_tools),
            contents=tuple(contents.of(content, mask) for content in request.contents),
        ),
        step=step,
        invalid_reason=mask(source.invalid_reason),
        candidates=tuple(_candidate(candidate, masked) for candidate in source.candidates),
        problems=tuple(map(mask, source.problems)),
        anchors=tuple(replace(anchor, description=mask(anchor.description)) for anchor in source.anchors),
    )
    plans = {plan_digest(source): plan_digest(changed)} if step != source.step else {}
    return changed._replace(epoch=_epoch(source.epoch, masked, plans))


def _part(value: Mapping[str, Any], mask: Masker) -> dict[str, JSON]:
    masked: dict[str, JSON] = {}
    for name, item in value.items():
        if name in _FIELDS and isinstance(item, dict):  # names and ids stay
            inside = _FIELDS[name]
            masked[name] = item | ({inside: mask.json(item[inside])} if inside in item else {})
        elif name == "inline_data":  # its data is a hash
            masked[name] = item | mask.json({key: one for key, one in item.items() if key != "data"})
        else:
            masked[name] = item if name == "thought_signature" else mask.json(item)
    return masked


def _tool(tool: Tool, mask: Masker) -> Tool:
    wire = canonical_json(mask.json(json.loads(tool.wire)))
    return tool if wire == tool.wire else replace(tool, wire=wire, signature=mask(tool.signature))


def _step(step: Step, masked: Callable[[str], str]) -> Step:
    def all_of(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(masked, texts))

    return replace(
        step,
        task=masked(step.task),
        goal=masked(step.goal),
        text=masked(step.text),
        role=masked(step.role),
        acceptance=tuple(replace(item, text=masked(item.text)) for item in step.acceptance),
        constraints=all_of(step.constraints),
        open_questions=None if step.open_questions is None else all_of(step.open_questions),
        next=all_of(step.next),
        stop_when=all_of(step.stop_when),
    )


def _candidate(candidate: Candidate, masked: Callable[[str], str]) -> Candidate:
    return replace(
        candidate,
        text=masked(candidate.text),
        line=masked(candidate.line),
        speaker=masked(candidate.speaker),
        source=masked(candidate.source),
        uri=masked(candidate.uri),
    )


def _epoch(epoch: Epoch, masked: Callable[[str], str], plans: Mapping[str, str]) -> Epoch:
    payloads = []
    for packed in epoch.payloads:
        before = masked(packed.before)
        text, plan = before + masked(packed.after), plans.get(packed.plan, packed.plan)
        payloads.append(replace(packed, text=text, split=len(before), plan=plan))
    return replace(epoch, summary=masked(epoch.summary), payloads=tuple(payloads))


def _summaries(
    source: PackInput, changed: PackInput, build: Callable[[PackInput], Pack], mask: Masker
) -> Mapping[str, str]:
    """What a model wrote for a pack, masked, by the keys under which its masked form asks for it.

    Both ask in the same order, and once more where what was written changed what else is needed.
    """
    written: dict[str, str] = {}
    masked: dict[str, str] = {}
    for _ in range(2):
        asked = build(source._replace(summaries=written)).summary_requests
        asked_masked = build(changed._replace(summaries=masked)).summary_requests
        for request, other in zip(asked, asked_masked, strict=False):
            if (text := source.summaries.get(request.key)) is not None:
                written[request.key], masked[other.key] = text, mask(text)
    return masked
