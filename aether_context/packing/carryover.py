"""What the epoch carries into this call: shortened responses, packed messages, the measured layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aether_context.canonical import hash_text, short
from aether_context.conversation import units
from aether_context.conversation.summary import summary_message
from aether_context.pack import Content, EpochReason, Layer, Outgoing, PackedMessage, PackInput
from aether_context.packing import payload
from aether_context.packing.early_strategies import Settled, settle
from aether_context.packing.rewrites import (
    Parts,
    asked,
    matched,
    packed_message,
    reduced,
    still_packed,
    summary_content,
    thinned,
)
from aether_context.packing.tools import ToolSelection
from aether_context.policy import PackPolicy
from aether_context.tokens.cache import CachedCounter

_SEAMS = 8
_SECTIONS = [payload.FIRST_LINE, *(f"{header}:" for header in payload.HEADERS[:-2])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The state of a pack before anything is chosen.

    ``changed`` is why a new epoch has to begin, None where nothing calls for one. ``keeps`` says that this invocation
    has made its choices at an earlier call; ``packed`` is what it then made of the human message, if anything. ``past``
    are the packed messages of earlier invocations that are sent in that form again.
    ``begins`` says that an epoch begins with this pack, whatever is chosen for it. ``unseen`` are the tokens of the
    system layer that the provider counts beyond the count here. ``measures_frame`` says that the task layer holds what
    a payload costs besides its sections.
    """

    system: str
    contract: bool
    settled: Settled
    measured: Mapping[Layer, int]
    changed: EpochReason | None
    begins: bool
    keeps: bool
    packed: PackedMessage | None
    past: tuple[PackedMessage, ...]
    marks: Mapping[str, str]
    summary_tokens: int
    unseen: int
    measures_frame: bool

    @property
    def items(self) -> tuple[Outgoing, ...]:
        """All contents that came in, in the form in which they would be sent."""
        return self.settled.items

    def human_tokens(self, human: int | None) -> int:
        return self.items[human].tokens if human is not None else 0


def carry(
    source: PackInput,
    policy: PackPolicy,
    scope: ToolSelection,
    counter: CachedCounter,
    *,
    afresh: bool = False,
    payload_tokens: int = 0,
) -> Carried:
    """Applies what the epoch has decided, and measures the layers that are not chosen but given.

    Args:
        afresh: chooses again, whatever this invocation chose at an earlier call; a cut begins an epoch.
        payload_tokens: as of `settle`.
    """
    standing = source.epoch.contract and _explains_in_system(source, policy)
    marks = _marks(source, scope, _system(source.request.system, standing))
    changed = _changed(source, marks)
    keeps = (
        not afresh
        and not source.first_call
        and changed
        not in (
            "first_call",
            "step_changed",
            "role_changed",
            "acceptance_changed",
        )
    )
    contract = standing or (not keeps and _begins_contract(source, policy, marks))
    system = _system(source.request.system, contract)
    marks["system"] = short(hash_text(system))
    packed = _packed(source) if keeps else None
    texts, past = _packed_texts(source, policy, counter, keeps=keeps, goes_on=not afresh and changed is None)
    items = _items(source, texts, counter)
    settled = settle(source, policy, items, counter, system=system, payload_tokens=payload_tokens)
    items = settled.items
    framed = not keeps and source.request.human is not None and _has_payload(source, policy)
    frame = frame_tokens(source, policy, counter, contract=contract) if framed else 0
    task = 0 if keeps or source.request.human is None else _task(source, policy, scope, counter, frame)
    used = sum(packed.used.values()) if packed is not None else 0
    human = items[source.request.human].tokens if source.request.human is not None else 0
    summary = summary_tokens(source.epoch.summary, policy, counter)
    inside = summary if packed is not None and packed.before and policy.conversation.summary == "payload" else 0
    unseen = source.calibration.unseen if source.calibration is not None else 0
    measured: dict[Layer, int] = {
        "system": counter.system(system, declares=bool(scope.tools or source.request.other_tools)) + unseen,
        "task": max(0, task + human - used - inside),
        "tools": sum(counter.tools(scope.tools)) + sum(counter.count_all(source.request.other_tools)),
    }
    return Carried(
        system=system,
        contract=contract,
        settled=settled,
        measured=measured,
        changed=changed,
        begins=afresh or changed is not None,
        keeps=keeps,
        packed=packed,
        past=past,
        marks=marks,
        summary_tokens=summary,
        unseen=unseen,
        measures_frame=framed,
    )


def _has_payload(source: PackInput, policy: PackPolicy) -> bool:
    """Whether more than the request will be in the human message."""
    inside = bool(source.epoch.summary) and policy.conversation.summary == "payload"
    return source.validity != "unplanned" or bool(source.candidates) or inside


def _task(source: PackInput, policy: PackPolicy, scope: ToolSelection, counter: CachedCounter, frame: int) -> int:
    """What a payload would add to the human message, its evidence and memories aside.

    Args:
        frame: what `frame_tokens` gives, 0 where there will be no payload.
    """
    task = counter.count(payload.step_text(source.step))
    if not frame:
        return task
    if policy.payload.tool_lines:
        task += sum(counter.count_all([tool.signature for tool in scope.listed])) + 2 * len(scope.listed)
    return task + frame


def frame_tokens(source: PackInput, policy: PackPolicy, counter: CachedCounter, *, contract: bool) -> int:
    """What a payload costs at most besides its sections: first line, headers, and what explains it.

    Args:
        contract: whether the system instruction explains it.
    """
    said = ""
    if explains_in_payload(policy, contract):
        layers = {candidate.layer for candidate in source.candidates}
        lines = payload.rules(
            step=source.validity != "unplanned",
            evidence="evidence" in layers,
            memory="memory" in layers,
            standing=any(candidate.kind == "standing" for candidate in source.candidates),
            summary=policy.conversation.summary == "payload",
            tools=policy.payload.tool_lines,
            handed=source.request.handed,
        )
        said = payload.explanation(lines)
    elif source.request.handed and policy.payload.contract == "system":
        said = payload.explanation((payload.HANDED_RULE,))
    end = payload.HANDED if source.request.handed else payload.REQUEST
    return counter.count("\n".join([*_SECTIONS, end.rstrip()])) + _SEAMS + counter.count(said)


def explains_in_payload(policy: PackPolicy, contract: bool) -> bool:
    """Whether a payload explains itself.

    Args:
        contract: whether the system instruction explains it.
    """
    return policy.payload.contract == "payload" or (policy.payload.contract == "system" and not contract)


def summary_tokens(summary: str, policy: PackPolicy, counter: CachedCounter) -> int:
    """What a summary costs, as a message of its own or as a section of the payload."""
    if not summary or policy.conversation.summary == "off":
        return 0
    if policy.conversation.summary == "payload":
        return counter.count(payload.summary_section(summary))
    return counter.content(summary_content(summary_message(summary)))


def _explains_in_system(source: PackInput, policy: PackPolicy) -> bool:
    return policy.payload.contract == "system" and source.request.system_is_text and not source.passthrough_reason


def _begins_contract(source: PackInput, policy: PackPolicy, marks: Mapping[str, str]) -> bool:
    """Whether the system instruction explains the pack from now on: where there is a plan, and no prefix to keep.

    Elsewhere a payload explains itself, in as many words as its sections need.
    """
    epoch = source.epoch
    if source.validity == "unplanned" or not _explains_in_system(source, policy):
        return False
    return (
        not epoch.number or source.rewritten or any(marks[at] != epoch.marks.get(at, "") for at in ("system", "tools"))
    )


def _system(text: str, contract: bool) -> str:
    if not contract:
        return text
    return f"{text}\n\n{payload.SYSTEM_CONTRACT}" if text else payload.SYSTEM_CONTRACT


def _marks(source: PackInput, scope: ToolSelection, system: str) -> dict[str, str]:
    """Short digests of what an epoch begins with."""
    step = source.step
    planned = source.validity != "unplanned"
    sent = {tool.name for tool in scope.tools}
    whole = [tool.digest for tool in source.request.tools if tool.name in sent]
    chosen = {"scope": scope.key} if scope.key else {}
    return {
        **chosen,
        "system": short(hash_text(system)),
        "tools": short(hash_text("\n".join([*whole, *source.request.other_tools]))),
        "step": short(hash_text("\n".join([step.task_id, step.step_id, step.text]))) if planned else "",
        "role": short(hash_text(step.role)) if planned else "",
        "acceptance": short(hash_text(payload.checklist(step))) if planned else "",
    }


def _changed(source: PackInput, marks: Mapping[str, str]) -> EpochReason | None:
    epoch = source.epoch
    if epoch.number == 0:
        return "first_call"
    if source.rewritten:
        return "history_rewritten"
    order: tuple[tuple[str, EpochReason], ...] = (
        ("step", "step_changed"),
        ("role", "role_changed"),
        ("acceptance", "acceptance_changed"),
        ("system", "system_changed"),
        ("tools", "tools_changed"),
    )
    return next((reason for mark, reason in order if marks[mark] != epoch.marks.get(mark, "")), None)


def _packed(source: PackInput) -> PackedMessage | None:
    """What this invocation made of its human message at an earlier call."""
    human = source.request.human
    if human is None:
        return None
    digest = source.request.contents[human].digest
    invocation = source.identity.invocation
    return next((one for one in source.epoch.payloads if (one.of, one.invocation) == (digest, invocation)), None)


def _items(source: PackInput, texts: Mapping[int, str], counter: CachedCounter) -> tuple[Outgoing, ...]:
    epoch, request = source.epoch, source.request
    torn = _torn(request.contents, epoch.parts)
    made: dict[int, Outgoing] = {}
    for index, raw in enumerate(request.contents):
        parts = epoch.parts if index not in torn else {}
        if index in texts:
            content, members = packed_message(raw, index, texts[index], epoch.parts)
            made[index] = replace(_verbatim(raw, index, 0), content=content, outcome="payload", members=members)
        elif raw.digest in epoch.extracts or raw.digest in parts:
            question = asked(request.contents, index)
            made[index] = reduced(_verbatim(raw, index, 0), epoch.extracts.get(raw.digest), parts, question, counter)
    sent = [made[index].content if index in made else raw for index, raw in enumerate(request.contents)]
    return tuple(
        replace(made[index], tokens=tokens) if index in made else _verbatim(request.contents[index], index, tokens)
        for index, tokens in enumerate(counter.contents(sent))
    )


def _verbatim(raw: Content, index: int, tokens: int) -> Outgoing:
    return Outgoing(content=raw, raw=raw, origin=index, outcome="verbatim", tokens=tokens)


def _torn(contents: Sequence[Content], parts: Parts) -> frozenset[int]:
    """Indices of contents that stay whole, since their exchange would lack calls or responses with these parts alone.

    Parts are known by the content's digest, and another exchange may hold an equal content beside others.
    """
    found: set[int] = set()
    for unit in units(contents) if parts else ():
        if all(contents[index].digest not in parts for index in unit.indices):
            continue
        whole = [contents[index] for index in unit.indices]
        left = [thinned(one, parts[one.digest])[0] if one.digest in parts else one for one in whole]
        lacking = _unanswered(left)
        if any(lacking.values()) and lacking != _unanswered(whole):
            found.update(unit.indices)
    return frozenset(found)


def _unanswered(contents: Sequence[Content]) -> Counter[str]:
    """How many calls more than responses there are, by their names: a response may lack the id of its call."""
    calls = Counter(call.name for one in contents for call in one.calls)
    calls.subtract(response.name for one in contents for response in one.responses)
    return calls


def _packed_texts(
    source: PackInput, policy: PackPolicy, counter: CachedCounter, *, keeps: bool, goes_on: bool
) -> tuple[dict[int, str], tuple[PackedMessage, ...]]:
    """The packed text of each human message that is sent in one, by index; then the earlier ones among them.

    Which earlier messages return to their own words is decided once an invocation, and where the prefix ends.
    """
    request = source.request
    found = matched(source)
    texts = {index: packed_text(one, source.epoch.summary, policy) for index, one in found.items()}
    past = {index: one for index, one in found.items() if index != request.human}
    if not goes_on:
        past = {}
    elif not keeps:
        parts = source.epoch.parts
        sent = {index: packed_message(request.contents[index], index, texts[index], parts)[0] for index in past}
        stay = still_packed(source, policy, past, sent, plan_digest(source), counter)
        past = {index: past[index] for index in stay}
    shown = {index: one for index, one in found.items() if index in past or (keeps and index == request.human)}
    return {index: texts[index] for index in shown}, tuple(past[index] for index in sorted(past))


def plan_digest(source: PackInput) -> str:
    """What tells a payload's plan from another's: a short digest of all that the step says."""
    return short(hash_text(payload.step_text(source.step)))


def packed_text(packed: PackedMessage, summary: str, policy: PackPolicy) -> str:
    """A packed message as it is sent, with the conversation summary where the policy puts it there."""
    inside = summary if policy.conversation.summary == "payload" else ""
    return packed.before + payload.summary_section(inside) + packed.after
