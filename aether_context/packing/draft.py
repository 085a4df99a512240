"""The pack in the making: one mutable value that each stage reads and fills, and that never leaves `build_pack`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aether_context.canonical import JSON
from aether_context.conversation import Budget
from aether_context.conversation.strategy import summary_tokens
from aether_context.conversation.summary import Summaries
from aether_context.errors import StepTooLarge
from aether_context.pack import (
    Act,
    Allocation,
    Candidate,
    Content,
    EpochReason,
    Form,
    Layer,
    Outgoing,
    PackedMessage,
    PackInput,
    Reason,
    Step,
    ToolSelection,
    TruncationEvent,
    content_name,
)
from aether_context.packing.allocation import slack_tokens
from aether_context.policy import PackPolicy
from aether_context.retrieval import Ranking
from aether_context.tokens.cache import PackCounter

_NET_BYTES_PER_TOKEN = 3.6
"""The size of the byte net, by the tokens of the window."""
_NOTHING = Ranking(chosen=(), left=())


class Changed(NamedTuple):
    """In which form a content is sent that is not sent whole, and why. ``tokens`` are those that an extract's parts, or
    the text that tells of an exchange, were cut down to."""

    form: Form
    reason: Reason
    tokens: int | None = None


_ALL_TOOLS, _NO_STEP = ToolSelection(), Step()
_NO_BUDGET = Budget.of(0)


@dataclass(slots=True, kw_only=True)
class Draft:
    """A pack in the making.

    Its fields hold immutable values that stages replace and never change in place, so that a copy is a second draft
    from there on.

    Args:
        at_cut: whether the conversation is being cut, so that everything is chosen again.
    """

    input: PackInput
    policy: PackPolicy
    counter: PackCounter
    at_cut: bool = False

    # Tools.
    tools: ToolSelection = _ALL_TOOLS

    # What the epoch carries into this call. `changed` is why a new epoch has to begin, None where nothing calls for
    # one. `keeps` says that this invocation has made its choices at an earlier call; `packed` is what it then made of
    # the human message, if anything, `message` what this call makes of it, and `message_of` what that was made of.
    # `past` are the messages of earlier invocations that stay packed.
    system: str = ""
    contract: bool = False
    epoch_marks: Mapping[str, str] = field(default_factory=dict)
    changed: EpochReason | None = None
    keeps: bool = False
    packed: PackedMessage | None = None
    message: PackedMessage | None = None
    message_of: tuple[object, ...] = ()
    past: tuple[PackedMessage, ...] = ()
    measured: Mapping[Layer, int] = field(default_factory=dict)

    # The conversation. `incoming` are all contents that came in, in the form in which they would be sent; `items` are
    # those that are sent. `forms` says what became of a content, by origin, where it is not sent whole; `cut` are the
    # origins of those that are left out for good. `states` is what strategies keep from call to call. `summary_place`
    # is that of `Epoch`, and `keys` are what its `forms` knows the contents by that came in.
    incoming: tuple[Outgoing, ...] = ()
    items: tuple[Outgoing, ...] = ()
    forms: Mapping[int, Changed] = field(default_factory=dict)
    cut: frozenset[int] = frozenset()
    states: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    normalize: bool = False
    summary: str = ""
    summary_place: int = 0
    keys: tuple[str, ...] = ()
    budget: Budget = _NO_BUDGET

    # Memory and evidence: what `query` found, then what is sent of it. `shortened` are ids.
    query: str = ""
    found_memory: Ranking = _NOTHING
    found_evidence: Ranking = _NOTHING
    memory: tuple[Candidate, ...] = ()
    evidence: tuple[Candidate, ...] = ()
    shortened: frozenset[str] = frozenset()
    dropped: tuple[Candidate, ...] = ()

    # The window. `tightened` are the events of tools and step that became shorter for it; `too_large` is set where the
    # given layers exceed the budget and have to shrink.
    step: Step = _NO_STEP
    tightened: tuple[TruncationEvent, ...] = ()
    allocation: Allocation | None = None
    too_large: StepTooLarge | None = None

    # The last resort. `request` is the shortened user request, None where it is whole; `saved` holds what was taken
    # out of it, by URI; `largest` is that of `PackedMessage`. `task_ceiling` are the tokens that the payload before the
    # request is cut down to.
    request: str | None = None
    saved: Mapping[str, str] = field(default_factory=dict)
    largest: int | None = None
    task_ceiling: int | None = None

    # The account.
    summaries: Summaries = field(default_factory=lambda: Summaries("", {}))
    acts: tuple[Act, ...] = ()
    events: tuple[TruncationEvent, ...] = ()
    degradations: tuple[str, ...] = ()

    @property
    def request_index(self) -> int | None:
        """The index of the final human message, None where there is none."""
        return self.input.request.request_index

    @property
    def raw_human(self) -> Content | None:
        return self.input.request.contents[self.request_index] if self.request_index is not None else None

    @property
    def begins(self) -> bool:
        """Whether an epoch begins with this pack, whatever is chosen for it."""
        return self.at_cut or self.changed is not None

    @property
    def made_cut(self) -> bool:
        """Whether the conversation was cut, be it that contents only became shorter."""
        return any(event.stage == "cut" for event in self.events)

    def change(self, form: Form, reason: Reason, origins: Iterable[int], tokens: int | None = None) -> None:
        """Notes in which form these contents are sent from now on."""
        self.forms = {**self.forms, **dict.fromkeys(origins, Changed(form, reason, tokens))}

    @property
    def stands_alone(self) -> bool:
        """Whether nothing was left out for what the conversation says, so that a cut would change no choice."""
        left = (*self.found_memory.left, *self.found_evidence.left)
        return all(entry.reason != "already_in_conversation" for entry in left)

    @property
    def shares(self) -> Allocation:
        assert self.allocation is not None
        return self.allocation

    @property
    def slack(self) -> int:
        """Tokens kept free for the answer, ``S``."""
        return slack_tokens(self.input.window, self.policy.budget, self.input.output_tokens)

    @property
    def input_budget(self) -> int:
        """``W - S`` in tokens."""
        return self.input.window - self.slack

    @property
    def uncounted_tokens(self) -> int:
        """Tokens of the system layer that the provider counts beyond the count here."""
        return self.input.usage.uncounted_tokens

    @property
    def spare_tokens(self) -> int:
        return self.input.usage.spare_tokens

    @property
    def payload_tokens(self) -> dict[Layer, int]:
        """Tokens of the memories and of the evidence in the payload: those chosen now, or at an earlier call of this
        invocation."""
        used = self.packed.used if self.packed is not None else {}
        chosen: dict[Layer, tuple[Candidate, ...]] = {"memory": self.memory, "evidence": self.evidence}
        return {
            layer: sum(candidate.tokens for candidate in candidates) + used.get(layer, 0)
            for layer, candidates in chosen.items()
        }

    @property
    def fixed(self) -> int:
        """Tokens of all layers but the conversation, as they are sent."""
        return sum(self.measured.values()) + sum(self.payload_tokens.values())

    def content_id(self, index: int) -> str:
        """The name of a content: its place in the host's list and the beginning of its hash."""
        return content_name(self.input.request.positions[index], self.input.request.contents[index].digest)

    # What a summary costs, and how a payload is explained.

    def summary_tokens(self, summary: str) -> int:
        """What a summary costs, as a message of its own."""
        return summary_tokens(self.counter, summary) if self.policy.conversation.summary_share else 0

    def spoken(self, items: Sequence[Outgoing], summary: str) -> int:
        """Tokens of a conversation layer: every content but the human message, and the summary."""
        request_index = self.request_index
        return sum([item.tokens for item in items if item.origin != request_index]) + self.summary_tokens(summary)

    @property
    def explains_in_payload(self) -> bool:
        """Whether a payload explains itself: always, or where the system instruction does not."""
        contract = self.policy.payload.contract
        return contract == "payload" or (contract == "system" and not self.contract)

    # What calls for a cut, and what stands in front of it.

    @property
    def by_hand(self) -> bool:
        """Whether a cut was asked for that has not been made."""
        return bool(self.input.host.asked) and self.input.host.asked != self.input.epoch.asked

    def gated(self, counted: int, budget: int) -> bool:
        """Whether reported usage says that the window is far from full, though the count is past its high-water mark.

        Args:
            counted: tokens of the whole request and what is unseen of it.
            budget: the input budget, which the count may not pass.
        """
        known = self.input.usage.calibration
        if known is None or known.report_minus_count is None or counted > budget:
            return False
        mark = min(self.policy.usage.gate * self.input.window, self.policy.conversation.compact_at * budget)
        return counted - known.uncounted_tokens + known.report_minus_count < mark

    def byte_net(self, contents: Iterable[Content], spoken: int) -> int | None:
        """How many of the ``spoken`` tokens of these contents the byte net takes; None where it takes all of them.

        The net is there for calls before which nothing was reported in the invocation: the first one, or all of them
        where a provider reports nothing.
        """
        known = self.input.usage.calibration
        if not self.policy.usage.gate or (known is not None and known.report_minus_count is not None):
            return None
        most, size = _NET_BYTES_PER_TOKEN * self.input.window, sent_bytes(contents)
        return int(most / size * spoken) if size > most else None


def occurrence_keys(contents: Sequence[Content]) -> tuple[str, ...]:
    """A key for each content: its digest, from the second one of a digest on with its number.

    A result that is read again is judged anew, whatever became of the reading before it.
    """
    counts: Counter[str] = Counter()
    keys = []
    for content in contents:
        counts[content.digest] += 1
        number = counts[content.digest]
        keys.append(content.digest if number == 1 else f"{content.digest}#{number}")
    return tuple(keys)


def sent_bytes(contents: Iterable[Content]) -> int:
    """Bytes of contents as JSON in UTF-8."""
    wires = (content.wire for content in contents)
    return sum(len(wire) if wire.isascii() else len(wire.encode("utf-8", "surrogatepass")) for wire in wires)
