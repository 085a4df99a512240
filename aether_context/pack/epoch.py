"""The state of a conversation between two cuts, and why one begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from aether_context.canonical import JSON
from aether_context.pack.recorded import Recorded
from aether_context.pack.selection import Keep, Layer

__all__ = [
    "MOST_PARTS", "Anchor", "AnchorKind", "Epoch", "EpochReason", "PackedMessage", "Prefix", "PrefixBreak",
    "ShortForm", "Unseen", "is_unseen", "medium_place",
]  # fmt: skip

EpochReason: TypeAlias = Literal[
    "first_call",
    "high_water",
    "byte_net",
    "strategy",
    "step_changed",
    "role_changed",
    "acceptance_changed",
    "system_changed",
    "tools_changed",
    "history_rewritten",
    "replaced",
    "by_hand",
]
"""Why an epoch began; ``high_water``: the request exceeded the mark for cuts; ``byte_net`` and ``strategy``: a cut for
that `Reason`; ``replaced``: contents became placeholders. The set is closed."""


PrefixBreak: TypeAlias = Literal[
    "new_invocation", "cut", "tools_changed", "system_changed", "payload_changed", "history_rewritten", "unknown"
]


AnchorKind: TypeAlias = Literal["system_message", "latest_tool_result", "instruction_anchor", "custom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor(Recorded):
    """A content that the host or its user marked to be kept longer than others."""

    place: int
    """Its index in the host's list."""
    kind: AnchorKind
    """Why it is an anchor."""
    priority: int
    """Anchors of a higher priority are removed later."""
    description: str = ""
    """A description for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMessage(Recorded):
    """A human message that is sent with the payload around it, in this call or in later ones."""

    of: str
    """Hash of the message as the user wrote it."""
    invocation: str
    """The invocation that packed it."""
    text: str
    """The packed text, or in a manifest its hash; empty where the message is sent as it is."""
    split: int
    """Characters of the packed text before its last part: acceptance, top evidence and the request."""
    used: Mapping[Layer, int] = field(default_factory=dict)
    """Tokens of evidence and memory in it."""
    place: int = -1
    """Index of the message in the host's list; -1 where it is not known."""
    plan: str = ""
    """Short hash of its text about the plan."""
    covers: tuple[str, ...] = ()
    """Acceptance items whose proof was sent with it."""
    largest: int | None = None
    """Tokens of the largest part beside the text that is sent with it; null where all are."""
    instructs: tuple[str, ...] = ()
    """Ids of the instructions that are sent with it behind ``split`` while they are active. Their texts are no part of
    ``text``, so none outlives its end."""

    @property
    def before(self) -> str:
        """The text up to ``split``."""
        return self.text[: self.split]

    @property
    def after(self) -> str:
        """The text from ``split`` on."""
        return self.text[self.split :]


Unseen: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges of media that notes stand for, by their places; see `medium_place`."""


MOST_PARTS: Final = 4_096


def medium_place(position: int, part: int) -> int:
    """A number for a part of a content at a position of the host's list, in the order of the list."""
    return position * MOST_PARTS + min(part, MOST_PARTS - 1)


def is_unseen(place: int, unseen: Unseen) -> bool:
    return any(start <= place < stop for start, stop in unseen)


ShortForm: TypeAlias = tuple[Literal["extract", "told"], int]
"""A form that stays from call to call, and its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch(Recorded):
    """The state of the conversation between two cuts."""

    number: int
    """Counts from 1."""
    cut_count: int = 0
    """Number of contents at the beginning of the host's list that cuts have decided on."""
    cut_hash: str = ""
    """Hash of the last content cut."""
    anchors: tuple[tuple[int, str], ...] = ()
    """A few more contents below ``cut_count``, by index and short hash. They recognize the list, since the last content
    cut may be a short answer that occurs twice."""
    kept: tuple[tuple[int, int], ...] = ()
    """Index ranges below ``cut_count`` that are still sent."""
    cut_tokens: int = 0
    """Tokens of the contents below ``cut_count`` that are not, but for what read evidence."""
    summary: str = ""
    """The summary of what was cut, in a manifest its hash; empty where there is none."""
    summary_place: int = 0
    """The summary follows the contents before this index of the host's list."""
    contract: bool = False
    """Whether the system instruction explains the pack."""
    trimmed: tuple[str, ...] = ()
    """Names of declarations that are sent without examples and with short descriptions."""
    forms: Mapping[str, ShortForm] = field(default_factory=dict)
    """What stands for a content, and its tokens, by the content's hash: an ``extract``, each of whose parts takes that
    many, or the one text in which its exchange is ``told``, by the hash of the exchange's last content. Where contents
    have the same hash, ``#`` and a number follow it from the second on."""
    payloads: tuple[PackedMessage, ...] = ()
    """Messages sent in packed form."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Short hashes of system, tools, step, role and acceptance list when the epoch began, and of the request that the
    declarations in ``tools`` were chosen for."""
    strategies: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    """The state that each strategy keeps from call to call."""
    asked: str = ""
    """The last cut requested by hand that was carried out."""
    tools: Mapping[str, Keep] = field(default_factory=dict)
    """Declarations in the request before, where not all were sent, each with the reason."""
    unseen: Unseen = ()
    """Ranges of media that notes stand for: the index of a content times 4,096, and that of the part."""
    thoughts: int = 0
    """Signed thoughts before this index of the host's list have left, since what they were made behind has changed."""
    last_request: tuple[int, str] = (0, "")
    """Number and hash of the blocks of the request before, where the model binds its thoughts to them."""
    refusals: int = 0
    """How often the provider has refused a signed thought of the session."""
    rewound: str = ""
    """The id of the event that the epoch follows: the last rewind or compaction, or the first event; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix(Recorded):
    """The part of a request that a provider's prefix cache could serve."""

    shared_tokens: int | None
    """Counted tokens in common with the request before, from the start; null where that request is unknown."""
    broken_by: PrefixBreak | None
    """Why the common prefix ends before the end of that request; null where it does not."""
