"""Candidates and layers: who could enter a pack, how the window is divided, and what became of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from aether_context.pack.recorded import Recorded
from aether_context.pack.request import Tool, content_place

__all__ = [
    "FIXED_LAYERS", "FLEXIBLE_LAYERS", "LAYERS", "Accuracy", "Act", "Allocation", "Candidate", "CandidateKind",
    "ContentForm", "Form", "Keep", "Layer", "LayerTokens", "Reason", "Row", "Signals", "Stage", "ToolSelection",
    "TruncationEvent", "turn_place",
]  # fmt: skip

Layer: TypeAlias = Literal["system", "task", "tools", "evidence", "memory", "conversation", "slack"]


LAYERS: tuple[Layer, ...] = ("system", "task", "tools", "evidence", "memory", "conversation", "slack")


FIXED_LAYERS: tuple[Layer, ...] = ("system", "task", "tools")


FLEXIBLE_LAYERS: tuple[Layer, ...] = ("evidence", "memory", "conversation")


Accuracy: TypeAlias = Literal["exact", "anchored", "approximate", "heuristic"]


Form: TypeAlias = Literal["whole", "extract", "offloaded", "summarized", "placeholder", "told", "left_out"]
"""In which form something is in a request: ``whole``; ``extract``, lines or sentences chosen from it; ``offloaded``,
an extract with the address under which the store has all of it; ``summarized``, in the summary of what was cut;
``placeholder``, a note in its place; ``told``, calls and their results as one text; ``left_out``, not at all."""


Reason: TypeAlias = Literal[
    "below_floor",
    "beyond_k",
    "duplicate",
    "expired",
    "over_allocation",
    "high_water",
    "byte_net",
    "window",
    "already_in_conversation",
    "in_payload",
    "transfer",
    "not_in_scope",
    "no_message",
    "threshold",
    "turn_budget",
    "middle",
    "by_hand",
    "strategy",
    "provider_limit",
    "active_skill",
    "instructs",
]
"""Why something was reduced or left out; ``byte_net``: too many bytes where no usage was reported; ``in_payload``: a
plan, as its planner wrote it, of which the payload was made; ``transfer``: another agent's ``transfer_to_agent``, which
says only that it handed over; ``no_message``: no human message to put it into; ``threshold``, ``turn_budget`` and
``middle``: by the strategy ``stable_prefix``, ``sliding_turns`` or ``heads_tails``; ``strategy``: by a registered one;
``provider_limit``: the provider takes no more bytes, media or pages in one request. The last two say why something
stays whole: it is the body of an active skill, or the policy lets its tool instruct. The set is closed."""


Keep: TypeAlias = Literal["essential", "pinned", "used", "found", "fits"]
"""Why a tool declaration is sent where not all are: the host needs it to steer the run, the policy pins it, it was
called in this session, the model searched for it, or it finds room, in the host's order."""


Stage: TypeAlias = Literal["retrieve", "compress", "drop", "cut", "replace", "hide", "emergency", "scope"]


CandidateKind: TypeAlias = Literal["", "app_note", "preference", "active_skill", "instructs"]
"""``app_note``: the app put it into the session's state; ``preference``: one of the user that always applies. The last
two are instructions: the body of an active skill, and the result of a tool that the policy lets instruct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Something that could enter the evidence or the memory layer; of the system layer, what instructs.

    An instruction's ``speaker`` is its name, its ``source`` the call that brings it; its text is empty where it could
    not be had.

    ``kind`` is empty for a memory that a search found; see `CandidateKind`. ``speaker`` is who said it, where that is
    known. ``line`` is its rendered text, whose tokens ``tokens`` counts. ``time`` is None where unknown. ``covers``
    holds the ids of the acceptance items that it proves. ``superseded_by`` is, of evidence, the address of a later
    result of the same source. ``content_hash`` is the tagged hash of the content at ``uri``, where it is known.
    ``scores`` are those of retrieval: ``bm25``, ``similarity`` (0 to 1), ``mmr``.
    """

    id: str
    layer: Layer
    source: str
    text: str
    digest: str
    speaker: str = ""
    line: str = ""
    tokens: int = 0
    time: float | None = None
    uri: str = ""
    covers: tuple[str, ...] = ()
    superseded_by: str = ""
    content_hash: str = ""
    expires: float | None = None
    scores: Mapping[str, float] = field(default_factory=dict, hash=False)
    kind: CandidateKind = ""

    @property
    def score(self) -> float:
        return self.scores.get("similarity", 0.0)


def turn_place(candidate: Candidate) -> tuple[int, int]:
    """The index in the host's list of a turn that is a candidate, and its passage's number; see `recalled_id`."""
    name, _, passage = candidate.id.partition("#")
    return content_place(name.removeprefix("turn_")), int(passage) if passage.isdecimal() else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Recorded):
    """The outcome of one content or candidate."""

    id: str
    """Its id, unique within a pack."""
    layer: Layer
    """The layer it belongs to."""
    source: str
    """Who said it or where it comes from."""
    tokens: int
    """Tokens of its whole content."""
    method: Accuracy
    """How the tokens were counted."""
    hash: str
    """Tagged hash of its content."""
    form: Form
    """In which form it is in the request."""
    reason: Reason | None = None
    """Why, where it is neither whole nor offloaded."""
    sent_tokens: int | None = None
    """Tokens that were sent for it, where they differ from ``tokens``."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Retrieval scores: ``bm25`` raw, ``similarity`` and ``mmr`` on a scale of 0 to 1."""
    time: float | None = None
    """When it was said or made, seconds since 1970 UTC."""
    uri: str = ""
    """Address of its whole content."""
    covers: tuple[str, ...] = ()
    """Acceptance items that it proves."""
    content_hash: str = ""
    """Tagged hash of the content at ``uri``, where it is known."""


class ContentForm(NamedTuple):
    """The form in which a content is sent that is not sent whole, why, and which strategy decided it.

    Rows, acts and events are made of it. ``tokens`` are those that the parts of an extract, or the text that tells of
    an exchange, were cut down to; ``strategy`` is empty where none decided it.
    """

    form: Form
    reason: Reason
    tokens: int | None = None
    strategy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act(Recorded):
    """The effect of one strategy on this request."""

    strategy: str
    """Its name; ``emergency`` is the last resort after all strategies."""
    removed: int = 0
    """Contents of the request before that it left out."""
    replaced: int = 0
    """Contents that it replaced."""
    freed_tokens: int = 0
    """Tokens by which it made the request shorter."""
    lost_tokens: int = 0
    """Tokens that a prefix cache held and that have to be read anew, since they follow the first change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncationEvent(Recorded):
    """One decision to leave something out or to shorten it."""

    layer: Layer
    """The layer that got shorter."""
    stage: Stage
    """The stage that decided it."""
    reason: Reason
    """Why."""
    item_ids: tuple[str, ...]
    """Ids of the rows concerned."""
    tokens_before: int
    """The layer's tokens before."""
    tokens_after: int
    """The layer's tokens after."""
    strategy: str = ""
    """The strategy that decided it; empty where none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTokens(Recorded):
    """Tokens of one layer."""

    floor: int
    """Tokens that are reserved for the layer."""
    nominal: int
    """The layer's budget before lending."""
    lent: int
    """Tokens that lending added to the budget, or took from it where negative."""
    final: int
    """The layer's budget after lending."""
    used: int
    """Tokens that the layer used."""


class Signals(NamedTuple):
    """The allocator's eight signals. None is unknown, and counts as the neutral 0.5."""

    checklist_evidence_ratio: float | None = None
    expected_tool_calls: int | None = None
    risk: Literal["low", "medium", "high"] | None = None
    retrieval_hit_rate: float | None = None
    similarity: float | None = None
    freshness_days: float | None = None
    unresolved_questions: int | None = None
    dialogue_depth: int | None = None


class Allocation(NamedTuple):
    """Whole tokens per layer for one pack. The ``final`` budgets never sum to more than ``window + spare_tokens``;
    these are below 0 where the provider is expected to count more than is counted here."""

    window: int
    slack: int
    layers: Mapping[Layer, LayerTokens]
    weights: Mapping[Layer, float]
    signals: Signals
    spare_tokens: int = 0

    @property
    def budget(self) -> int:
        """The input budget in counted tokens: the window without the slack, and what may be spare_tokens."""
        return self.window - self.slack + self.spare_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSelection:
    """Declarations sent, names left out with the reason, the mode used, and the names that calls are restricted to.

    ``trimmed`` are the names of declarations that are sent without examples. ``problem`` says why the policy's mode
    could not be used. In the mode ``fitting``, ``kept`` says why each declaration is sent.
    """

    sent: tuple[Tool, ...] = ()
    mode: str = "off"
    left_out: Mapping[str, Reason] = field(default_factory=dict)
    allowed: tuple[str, ...] | None = None
    trimmed: frozenset[str] = frozenset()
    problem: str = ""
    kept: Mapping[str, Keep] = field(default_factory=dict)

    @property
    def listed(self) -> tuple[Tool, ...]:
        """The tools that the payload lists: those of a step."""
        return self.sent if self.mode in ("prune", "mask") else ()
