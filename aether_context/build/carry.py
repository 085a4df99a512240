"""What the epoch carries into this call: shortened responses, packed messages, the measured layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aether_context import payload
from aether_context.build.rewriting import asked, message, shortened, summary_content
from aether_context.build.scope import Scope
from aether_context.build.settling import Settled, settle
from aether_context.canonical import hash_text, short
from aether_context.conversation import is_human
from aether_context.counting import Tally
from aether_context.pack import Content, EpochReason, Ingredients, Layer, Outcome, Outgoing, PackedMessage
from aether_context.policy import PackPolicy

_SEAMS = 8
_SCAFFOLD = "\n".join([payload.FIRST_LINE, *(f"{header}:" for header in payload.HEADERS)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The state of a pack before anything is chosen.

    ``changed`` is why a new epoch has to begin, None where nothing calls for one. ``keeps`` says that this invocation
    has made its choices at an earlier call; ``packed`` is what it then made of the human message, if anything.
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


def carry(source: Ingredients, policy: PackPolicy, scope: Scope, tally: Tally, *, afresh: bool = False) -> Carried:
    """Applies what the epoch has decided, and measures the layers that are not chosen but given.

    Args:
        afresh: chooses again, whatever this invocation chose at an earlier call; a cut begins an epoch.
    """
    contract = _contract(source, policy, afresh)
    system = _system(source.request.system, contract)
    marks = _marks(source, scope, system)
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
    packed = _packed(source) if keeps else None
    settled = settle(source, policy, _items(source, policy, tally, keeps), tally)
    items = settled.items
    framed = not keeps and source.request.human is not None and _has_payload(source, policy)
    task = 0 if keeps or source.request.human is None else _task(source, policy, scope, tally, framed)
    used = sum(packed.used.values()) if packed is not None else 0
    human = items[source.request.human].tokens if source.request.human is not None else 0
    summary = summary_tokens(source.epoch.summary, policy, tally)
    inside = summary if packed is not None and packed.before and policy.conversation.summary == "payload" else 0
    unseen = source.calibration.unseen if source.calibration is not None else 0
    measured: dict[Layer, int] = {
        "system": tally.system(system, declares=bool(scope.tools or source.request.other_tools)) + unseen,
        "task": max(0, task + human - used - inside),
        "tools": sum(tally.tools(scope.tools)) + sum(tally.count_all(source.request.other_tools)),
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
        marks=marks,
        summary_tokens=summary,
        unseen=unseen,
        measures_frame=framed,
    )


def _has_payload(source: Ingredients, policy: PackPolicy) -> bool:
    """Whether more than the request will be in the human message."""
    inside = bool(source.epoch.summary) and policy.conversation.summary == "payload"
    return source.validity != "unplanned" or bool(source.candidates) or inside


def _task(source: Ingredients, policy: PackPolicy, scope: Scope, tally: Tally, framed: bool) -> int:
    """What a payload would add to the human message, its evidence and memories aside."""
    task = tally.count(payload.step_text(source.step))
    if not framed:
        return task
    if policy.payload.tool_lines:
        task += sum(tally.count_all([tool.signature for tool in scope.listed])) + 2 * len(scope.listed)
    return task + frame_tokens(policy, tally)


def frame_tokens(policy: PackPolicy, tally: Tally) -> int:
    """What a payload costs besides its sections: first line, headers, and the contract where it stands there."""
    contract = tally.count(payload.SYSTEM_CONTRACT) if policy.payload.contract == "payload" else 0
    return tally.count(_SCAFFOLD) + _SEAMS + contract


def summary_tokens(summary: str, policy: PackPolicy, tally: Tally) -> int:
    """What a summary costs, as a message of its own or as a section of the payload."""
    if not summary or policy.conversation.summary == "off":
        return 0
    if policy.conversation.summary == "payload":
        return tally.count(payload.summary_section(summary))
    return tally.content(summary_content(payload.summary_message(summary)))


def _contract(source: Ingredients, policy: PackPolicy, afresh: bool) -> bool:
    """Whether the system instruction explains the pack: from the first call that could carry one, and then always.

    Candidates that turn up at a later call of an invocation are not chosen from there, so they call for none yet.
    """
    if policy.payload.contract != "system" or not source.request.system_is_text or source.hands_off:
        return False
    chooses = afresh or source.first_call or not source.epoch.number
    likely = source.validity != "unplanned" or (chooses and bool(source.candidates))
    return likely or source.epoch.contract or policy.conversation.summary == "payload"


def _system(text: str, contract: bool) -> str:
    if not contract:
        return text
    return f"{text}\n\n{payload.SYSTEM_CONTRACT}" if text else payload.SYSTEM_CONTRACT


def _marks(source: Ingredients, scope: Scope, system: str) -> dict[str, str]:
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


def _changed(source: Ingredients, marks: Mapping[str, str]) -> EpochReason | None:
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


def _packed(source: Ingredients) -> PackedMessage | None:
    """What this invocation made of its human message at an earlier call."""
    human = source.request.human
    if human is None:
        return None
    digest = source.request.contents[human].digest
    invocation = source.identity.invocation
    return next((one for one in source.epoch.payloads if (one.of, one.invocation) == (digest, invocation)), None)


def _items(source: Ingredients, policy: PackPolicy, tally: Tally, keeps: bool) -> tuple[Outgoing, ...]:
    epoch, request = source.epoch, source.request
    texts = _packed_texts(source, policy, keeps)
    sent: list[tuple[Content, Outcome]] = []
    for index, raw in enumerate(request.contents):
        content: Content = raw
        outcome: Outcome = "verbatim"
        if index in texts:
            content, outcome = message(raw, texts[index]), "payload"
        elif raw.digest in epoch.extracts:
            query = asked(request.contents, index)
            content, outcome = shortened(raw, epoch.extracts[raw.digest], query, tally), "extract"
        sent.append((content, outcome))
    counts = tally.contents([content for content, _ in sent])
    return tuple(
        Outgoing(content=content, raw=raw, origin=index, outcome=outcome, tokens=tokens)
        for index, (raw, (content, outcome), tokens) in enumerate(zip(request.contents, sent, counts, strict=True))
    )


def _packed_texts(source: Ingredients, policy: PackPolicy, keeps: bool) -> dict[int, str]:
    """The packed text of each human message that has one, by index; equal messages take theirs from the latest."""
    epoch, request = source.epoch, source.request
    left = [one for one in epoch.payloads if one.before]
    here = source.identity.invocation
    texts: dict[int, str] = {}
    for index in range(len(request.contents) - 1, -1, -1):
        raw = request.contents[index]
        if not left or not is_human(raw):
            continue
        current = index == request.human
        if (current and not keeps) or (not current and policy.conversation.past_payloads == "raw"):
            continue
        match = next(
            (one for one in reversed(left) if one.of == raw.digest and (one.invocation == here) == current), None
        )
        if match is not None:
            left.remove(match)
            texts[index] = packed_text(match, epoch.summary, policy)
    return texts


def packed_text(packed: PackedMessage, summary: str, policy: PackPolicy) -> str:
    """A packed message as it is sent, with the conversation summary where the policy puts it there."""
    inside = summary if policy.conversation.summary == "payload" else ""
    return packed.before + payload.summary_section(inside) + packed.after
