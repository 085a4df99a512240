"""Anchors: contents that outlive others, found by rules, kept by priority, and checked afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from aether_context.conversation.strategy import Conversation, Decision
from aether_context.conversation.turns import Unit
from aether_context.errors import AnchorPreservationError, PolicyError
from aether_context.pack import Anchor, AnchorKind, Content
from aether_context.policy import ConversationSettings

Selector: TypeAlias = Callable[[Content, int, Sequence[Content]], bool]
"""Whether a content is an anchor, given its index and all contents."""


class AnchorDefinition(NamedTuple):
    """A rule that finds anchors. ``priority`` 0 or less finds none."""

    kind: AnchorKind
    priority: int
    selector: Selector
    description: str


_REGISTERED: dict[str, AnchorDefinition] = {}


def register_anchor(description: str, selector: Selector, *, priority: int = 0) -> None:
    """Adds a rule whose finds are anchors in every pack of this process, under any policy.

    Args:
        description: the rule's name; a rule of the same name is replaced.
        selector: must give the same answer for the same contents. In a pack, a rule that raises finds nothing, and the
            manifest says so.
        priority: 0 takes the policy's priority of ``custom`` anchors.

    Raises:
        PolicyError: the description is empty.
    """
    if not description.strip():
        raise PolicyError("description = '': an anchor rule needs a name", field="description")
    _REGISTERED[description] = AnchorDefinition(
        kind="custom", priority=priority, selector=selector, description=description
    )


def unregister_anchor(description: str) -> None:
    """Takes a rule away again; one that is not there is no error."""
    _REGISTERED.pop(description, None)


def registered_anchors(settings: ConversationSettings) -> tuple[AnchorDefinition, ...]:
    """The rules of `register_anchor`, by name."""
    return tuple(
        rule._replace(priority=rule.priority or settings.anchor_priority("custom"))
        for _, rule in sorted(_REGISTERED.items())
    )


def policy_anchors(
    contents: Sequence[Content], positions: Sequence[int], settings: ConversationSettings
) -> list[Anchor]:
    """The anchors that follow from the contents alone: messages of the role ``system``, and the latest tool result."""
    kinds: list[tuple[int, AnchorKind]] = [
        (at, "system_message") for at, content in enumerate(contents) if content.role == "system"
    ]
    results = [at for at, content in enumerate(contents) if content.responses]
    kinds += [(at, "latest_tool_result") for at in results[-1:]]
    return [
        Anchor(place=positions[at], kind=kind, priority=priority, description=kind.replace("_", " "))
        for at, kind in kinds
        if (priority := settings.anchor_priority(kind))
    ]


def identify(
    contents: Sequence[Content],
    *,
    settings: ConversationSettings | None = None,
    rules: Iterable[AnchorDefinition] = (),
    marked: Mapping[int, str] | None = None,
) -> tuple[Anchor, ...]:
    """The anchors among contents, the highest priority first, then by place; a content is an anchor once.

    Args:
        rules: further rules besides those that follow from the contents.
        marked: descriptions of instruction anchors by index.
    """
    settings = settings or ConversationSettings()
    anchors = policy_anchors(contents, range(len(contents)), settings)
    if priority := settings.anchor_priority("instruction_anchor"):
        anchors += [
            Anchor(place=at, kind="instruction_anchor", priority=priority, description=description)
            for at, description in sorted((marked or {}).items())
        ]
    for rule in rules:
        anchors += selected(rule, contents, range(len(contents)))
    return ranked_anchors(anchors)


def selected(rule: AnchorDefinition, contents: Sequence[Content], positions: Sequence[int]) -> list[Anchor]:
    """The anchors that a rule finds."""
    if rule.priority <= 0:
        return []
    return [
        Anchor(place=positions[at], kind=rule.kind, priority=rule.priority, description=rule.description)
        for at, content in enumerate(contents)
        if rule.selector(content, at, contents)
    ]


def ranked_anchors(anchors: Iterable[Anchor]) -> tuple[Anchor, ...]:
    """Anchors by priority, the highest first, then by place; of several at one place, the highest."""
    best: dict[int, Anchor] = {}
    for anchor in sorted(anchors, key=lambda anchor: (-anchor.priority, anchor.place, anchor.kind, anchor.description)):
        best.setdefault(anchor.place, anchor)
    return tuple(best.values())


def hold(
    anchors: Iterable[Anchor],
    units: Sequence[Unit],
    positions: Sequence[int],
    tokens: Sequence[int],
    *,
    max_tokens: int,
    stay: frozenset[int],
) -> tuple[frozenset[int], tuple[str, ...]]:
    """The units of the anchors that there is room for, by priority, and a note for each anchor that has to go.

    An anchor keeps its whole unit and its turn's human message.

    Args:
        units: the conversation's units; ``positions`` and ``tokens`` are by content.
        max_tokens: tokens that they may take together with the units that ``stay`` anyway.
    """
    unit_of = {positions[index]: at for at, unit in enumerate(units) for index in unit.indices}
    opening = {unit.turn: at for at, unit in reversed([*enumerate(units)]) if unit.kind == "human"}
    held_units: set[int] = set()
    notes: list[str] = []
    used = sum(tokens[index] for at in stay for index in units[at].indices)
    for anchor in ranked_anchors(anchors):
        home = unit_of.get(anchor.place)
        if home is None:
            continue
        homes = {home, opening.get(units[home].turn, home)} - held_units - stay
        cost = sum(tokens[index] for at in homes for index in units[at].indices)
        if used + cost > max_tokens:
            notes.append(f"no room for the anchor {anchor.description} (content {anchor.place})")
            continue
        used += cost
        held_units |= homes
    return frozenset(held_units), tuple(notes)


def validate(conversation: Conversation, decision: Decision) -> None:
    """Checks that every anchor of a conversation is among what a decision keeps.

    Raises:
        AnchorPreservationError: one is not; with the tokens of all anchors and those that the conversation may hold.
    """
    kept_places = {anchor.place for anchor in conversation.effect(decision).anchors}
    missing = [anchor for anchor in conversation.anchors if anchor.place not in kept_places]
    if missing:
        raise AnchorPreservationError(
            anchors=[
                f"{anchor.description} (content {anchor.place}, priority {anchor.priority})" for anchor in missing
            ],
            needed=sum(conversation.tokens[at] for at in conversation.anchored),
            budget=conversation.budget.most,
        )
