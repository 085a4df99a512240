"""The values that travel through the pipeline: frozen, pure, and without identity beyond their content.

Times are seconds since 1970-01-01 UTC. Quantities named ``tokens`` are model tokens as the pack's counter sees them.
A digest is a tagged hash (see `aether_context.canonical`).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from aether_context.canonical import JSON, fold, short


def describe(schema: dict[str, JSON], kind: type) -> None:
    """Adds the docstrings below a class's fields to its JSON Schema: what ``json_schema_extra`` of its config names.

    pydantic itself would read them when a class is made (``use_attribute_docstrings``): 80 ms at import.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError):  # its source is not at hand
        return
    assert isinstance(tree, ast.ClassDef)
    for statement, following in pairwise(tree.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            name, text = ast.unparse(statement.target), ast.literal_eval(following.value)
            if name in schema["properties"]:
                schema["properties"][name]["description"] = inspect.cleandoc(text)


RECORDED: Final[Mapping[str, object]] = {"extra": "forbid", "json_schema_extra": describe, "defer_build": True}
"""How pydantic reads and writes the values that manifests and session states hold: no field is unknown, the docstring
below a field describes it in schema and docs, and a `TypeAdapter` takes its time at its first use, not at import."""

_Value = TypeVar("_Value")


def valid(adapter: TypeAdapter[_Value], value: object) -> _Value | None:
    """The value that was recorded in a state or a store, which are not trusted; None where it is not sound."""
    try:
        return adapter.validate_python(value)
    except ValidationError:
        return None


Layer: TypeAlias = Literal["system", "task", "tools", "evidence", "memory", "conversation", "slack"]
LAYERS: tuple[Layer, ...] = ("system", "task", "tools", "evidence", "memory", "conversation", "slack")
FIXED_LAYERS: tuple[Layer, ...] = ("system", "task", "tools")
FLEXIBLE_LAYERS: tuple[Layer, ...] = ("evidence", "memory", "conversation")

Accuracy: TypeAlias = Literal["exact", "anchored", "approximate", "heuristic"]

PartKind: TypeAlias = Literal["text", "thought", "call", "response", "media", "other"]

State: TypeAlias = Literal["kept", "extract", "summary", "placeholder", "hidden", "dropped", "in_tail", "redacted"]
"""What became of a candidate: sent verbatim, as chosen lines, within a summary, as a placeholder, not this time, not
any more, or already in the tail."""

Reason: TypeAlias = Literal[
    "below_floor",
    "beyond_k",
    "duplicate",
    "expired",
    "over_allocation",
    "high_water",
    "byte_net",
    "window",
    "compression_off",
    "already_in_conversation",
    "not_in_scope",
    "no_message",
    "threshold",
    "turn_budget",
    "middle",
    "by_hand",
    "strategy",
]
"""Why something was reduced or left out; ``byte_net``: too many bytes where no usage was reported; ``no_message``: no
human message to put it into; ``threshold``, ``turn_budget`` and ``middle`` are those of ``stable_prefix``,
``sliding_turns`` and ``heads_tails``; ``strategy`` is a registered one's. The set is closed."""

Keep: TypeAlias = Literal["essential", "pinned", "used", "found", "relevant"]
"""Why a declaration is sent where not all are: it steers the host, the policy pins it, it was called in this session,
the model asked for it, or it answers what is asked."""

Stage: TypeAlias = Literal["retrieve", "compress", "drop", "cut", "replace", "hide", "emergency", "scope"]

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
"""Why an epoch began; ``high_water``: a mark was passed; ``byte_net`` and ``strategy``: a cut for that `Reason`;
``replaced``: contents became placeholders. The set is closed."""

PrefixBreak: TypeAlias = Literal[
    "new_invocation", "cut", "tools_changed", "system_changed", "payload_changed", "history_rewritten", "unknown"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a content.

    ``text`` is what a model reads of it: the text itself, the canonical JSON of a call's arguments or of a response,
    the canonical JSON of anything unknown, and nothing for media. ``wire`` is its canonical JSON as it is sent, with
    binary data replaced by its digest. ``size_bytes`` is the size of that data.
    """

    kind: PartKind
    text: str
    wire: str
    name: str = ""
    call_id: str = ""
    mime_type: str = ""
    size_bytes: int = 0
    media_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """What another agent said, called or got, as a host quotes it in a message.

    ``text`` is what stands between the marks, ``name`` that of the tool, and ``at`` the index of the part.
    """

    kind: Literal["said", "call", "response"]
    agent: str
    text: str
    at: int
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One message of a request. ``digest`` is the hash of ``wire``, the canonical JSON of role and parts.

    ``calls`` and ``responses`` are those among its parts. ``agent`` is set where the message is another agent's turn,
    which the host shows as a user message; ``quotes`` are then its parts as that agent's.
    """

    role: str
    parts: tuple[Part, ...]
    wire: str
    digest: str
    calls: tuple[Part, ...] = ()
    responses: tuple[Part, ...] = ()
    agent: str = ""
    quotes: tuple[Quote, ...] = ()

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def text(self) -> str:
        """The text parts, a line break between two; thoughts, calls and responses left out."""
        if len(self.parts) == 1:
            return self.parts[0].text if self.parts[0].kind == "text" else ""
        return "\n".join(part.text for part in self.parts if part.kind == "text")

    @property
    def words(self) -> str:
        """What is said in it: its text; of another agent's turn what that agent said, without what the host adds."""
        if not self.agent:
            return self.text
        return "\n".join(quote.text for quote in self.quotes if quote.kind == "said")


def content_name(place: int, content: Content) -> str:
    """The name of a content: its place in the host's list and the beginning of its hash."""
    return f"c{place}_{short(content.digest)}"


RECALLED = "conversation"
"""The source of candidates that are turns of the conversation itself."""


def recalled_id(place: int, content: Content) -> str:
    """The name of a content as a candidate for memory; that of a passage of it goes on with ``#`` and a number."""
    return f"turn_{content_name(place, content)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function declaration. ``signature`` is its line in the payload; ``essential`` ones are never narrowed away."""

    name: str
    signature: str
    wire: str
    digest: str
    essential: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the host made it.

    ``contents`` are those that no earlier cut took away; ``positions`` are their indices in the host's own list.
    ``human`` is the index within ``contents`` of the final human message, None where there is none; it is another
    agent's turn where the host shows nothing of the user.
    ``other_tools`` are the wires of tools that are not functions.
    """

    model: str
    system: str
    system_is_text: bool
    tools: tuple[Tool, ...]
    other_tools: tuple[str, ...]
    contents: tuple[Content, ...]
    positions: tuple[int, ...]
    human: int | None

    @property
    def handed(self) -> bool:
        """Whether the final human message is another agent's turn, which was handed to this agent."""
        return self.human is not None and bool(self.contents[self.human].agent)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceItem:
    """One line of a step's checklist. ``needs_evidence`` is set where only proof completes it."""

    id: str
    text: str
    needs_evidence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What the agent is asked to do now, from the session's plan or from the user's request."""

    task_id: str = ""
    task: str = ""
    goal: str = ""
    step_id: str = ""
    text: str = ""
    role: str = ""
    acceptance: tuple[AcceptanceItem, ...] = ()
    constraints: tuple[str, ...] = ()
    expected_tool_calls: int | None = None
    risk: Literal["low", "medium", "high"] | None = None
    open_questions: tuple[str, ...] | None = None
    next: tuple[str, ...] = ()
    stop_when: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """What tells it from other steps of the session, however its words change; by these where it has no name."""
        return short(fold([self.task_id, self.step_id or self.text]))


Validity: TypeAlias = Literal["unplanned", "valid", "invalid"]


CandidateKind: TypeAlias = Literal["", "own", "standing"]
"""``own``: the app put it into the session's state; ``standing``: a wish of the user that holds for every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Something that could enter the evidence or the memory layer.

    ``kind`` is empty for a memory that a search found; `CandidateKind` says what else there is. ``speaker`` is who said
    it, where that is known. ``line`` is its rendered text and what ``tokens`` counts. ``time`` is None where unknown.
    ``covers`` holds the ids of the acceptance items that it proves, ``superseded_by`` the address of a later reading of
    the same thing or, of a memory, the id of a later one that may contradict it, ``content_hash`` the tagged hash of
    the whole that ``uri`` stands for, where it is known. ``scores`` are those of retrieval, best known names: ``bm25``,
    ``similarity`` (0 to 1), ``mmr``.
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
    scores: Mapping[str, float] = field(default_factory=dict)
    kind: CandidateKind = ""

    @property
    def score(self) -> float:
        return self.scores.get("similarity", 0.0)

    @property
    def said(self) -> str:
        """The text with its speaker."""
        return f"{self.speaker}: {self.text}" if self.speaker else self.text


def turn_place(candidate: Candidate) -> tuple[int, int]:
    """The place in the host's list of a turn that is a candidate, and the number of the passage; see `recalled_id`."""
    name, _, passage = candidate.id.partition("#")
    place = name.removeprefix("turn_c").partition("_")[0]
    return (int(place) if place.isdecimal() else 0, int(passage) if passage.isdecimal() else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateOutcome:
    """What became of one candidate."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = RECORDED

    id: str
    """Its name, unique within a pack."""
    layer: Layer
    """The layer it belongs to."""
    source: str
    """Who said it or where it comes from."""
    tokens: int
    """Tokens of the whole of it."""
    method: Accuracy
    """How they were counted."""
    hash: str
    """Tagged hash of its content."""
    state: State
    """What became of it."""
    reason: Reason | None = None
    """Why, where it was not kept whole."""
    sent_tokens: int | None = None
    """Tokens sent in its place, where they differ."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Retrieval scores: ``bm25`` raw, ``similarity`` and ``mmr`` on a scale of 0 to 1."""
    time: float | None = None
    """When it was said or made, seconds since 1970 UTC."""
    uri: str = ""
    """Where the whole of it is kept."""
    covers: tuple[str, ...] = ()
    """Acceptance items that it proves."""
    content_hash: str = ""
    """Tagged hash of the whole that ``uri`` stands for, where it is known."""
    superseded_by: str = ""
    """Of a memory, the later one that may contradict it and stands before it."""


AnchorKind: TypeAlias = Literal["system_message", "latest_tool_result", "instruction_anchor", "custom"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """A content that outlives others, as the host or its user marked it."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = RECORDED

    place: int
    """Its index in the host's list."""
    kind: AnchorKind
    """What makes it one."""
    priority: int
    """Higher ones go last."""
    description: str = ""
    """In words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What one strategy did to this request."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = RECORDED

    strategy: str
    """Its name; ``emergency`` is the net behind all of them."""
    removed: int = 0
    """Contents that it left out and that the request before held."""
    replaced: int = 0
    """Contents that it replaced."""
    freed_tokens: int = 0
    """Tokens that the request is shorter by."""
    lost_tokens: int = 0
    """Tokens that a prefix cache held and that have to be read anew: what stays behind the first change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncationEvent:
    """One act of leaving something out."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = RECORDED

    layer: Layer
    """The layer it concerns."""
    stage: Stage
    """The stage that did it."""
    reason: Reason
    """Why."""
    item_ids: tuple[str, ...]
    """The rows it concerns."""
    tokens_before: int
    """The layer's tokens before."""
    tokens_after: int
    """The layer's tokens after."""
    strategy: str = ""
    """The strategy that did it; empty where none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTokens:
    """Tokens of one layer."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = RECORDED

    floor: int
    """What the layer is promised."""
    nominal: int
    """Its share before lending."""
    lent: int
    """What lending added to it, or took from it where negative."""
    final: int
    """Its ceiling."""
    used: int
    """What it used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Whole tokens per layer for one pack. The finals never sum to more than ``window`` and what is ``overcounted``."""

    window: int
    slack: int
    overcounted: int = 0
    layers: Mapping[Layer, LayerTokens]
    weights: Mapping[Layer, float]

    @property
    def budget(self) -> int:
        """The input budget ``B = W - S`` in counted tokens."""
        return self.window - self.slack + self.overcounted


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """The eight signals of the allocator. None is unknown, and weighs as the neutral one half."""

    checklist_evidence_ratio: float | None = None
    expected_tool_calls: int | None = None
    risk: Literal["low", "medium", "high"] | None = None
    retrieval_hit_rate: float | None = None
    similarity: float | None = None
    freshness_days: float | None = None
    unresolved_questions: int | None = None
    dialogue_depth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMessage:
    """A human message whose payload is sent in its place, here or at later calls."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = RECORDED

    of: str
    """Hash of the message as the user wrote it."""
    invocation: str
    """The invocation that packed it."""
    text: str
    """The packed text, empty where the message is sent as it is; in a manifest its hash."""
    split: int
    """Characters before what is asked: acceptance, top evidence and the request."""
    used: Mapping[str, int] = field(default_factory=dict)
    """Tokens of evidence and memory in it."""
    place: int = -1
    """Index of the message in the host's list; -1 where it is not known."""
    plan: str = ""
    """Short hash of what it says of the plan."""
    covers: tuple[str, ...] = ()
    """Acceptance items whose proof was sent with it."""

    @property
    def before(self) -> str:
        """What stands before what is asked."""
        return self.text[: self.split]

    @property
    def after(self) -> str:
        """What stands behind it."""
        return self.text[self.split :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Where the conversation stands between two cuts."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = RECORDED

    number: int
    """Counts from 1."""
    cut_count: int = 0
    """So many contents of the host's list have been decided on by cuts."""
    cut_hash: str = ""
    """Hash of the last content cut."""
    anchors: tuple[tuple[int, str], ...] = ()
    """A few more contents below ``cut_count``, by index and short hash, since short answers repeat."""
    kept: tuple[tuple[int, int], ...] = ()
    """Index ranges below ``cut_count`` that are still sent."""
    summary: str = ""
    """The summary of what was cut, in a manifest its hash; empty where there is none."""
    summary_place: int = 0
    """Contents before this index of the host's list stand before the summary."""
    contract: bool = False
    """Whether the system instruction explains the pack."""
    trimmed: tuple[str, ...] = ()
    """Declarations that are sent without examples and with short descriptions, by name."""
    extracts: Mapping[str, int] = field(default_factory=dict)
    """Tokens that the responses of a content, or its parts, were shortened to, by its hash; from the second content of
    a hash on followed by ``#`` and its number."""
    parts: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    """Ranges of the parts that are still sent, by the hash of a content of which not all are."""
    payloads: tuple[PackedMessage, ...] = ()
    """Messages sent in packed form."""
    marks: Mapping[str, str] = field(default_factory=dict)
    """Short hashes of system, tools, step, role and acceptance list at its beginning, and of what the declarations in
    ``tools`` were chosen for."""
    strategies: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    """What each strategy keeps from call to call."""
    asked: str = ""
    """The last cut by hand that was carried out."""
    tools: Mapping[str, Keep] = field(default_factory=dict)
    """Declarations that were sent last where not all were, with why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose model call a pack is for. ``call`` counts the model calls of one agent in one invocation from 1."""

    app: str
    user: str
    session: str
    invocation: str
    agent: str
    branch: str = ""
    call: int = 1
    last_event_id: str = ""
    last_event_time: float = 0.0


class Block(NamedTuple):
    """One piece of an outgoing request, for comparing a request with the one before it."""

    digest: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """An outgoing request as blocks, in the order in which a provider's prefix cache sees them."""

    system: Block
    tools: tuple[Block, ...]
    contents: tuple[Block, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.system, *self.tools, *self.contents)


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRequest:
    """A summary that a pack would rather have from a model than from its own extractive way.

    ``key`` is a hash over all that decides the text, the model's name included. ``earlier`` is the summary that a
    conversation's new one goes on from, ``query`` what the reader is after; both may be empty.
    """

    key: str
    kind: Literal["memory", "evidence", "conversation"]
    text: str
    max_tokens: int
    query: str = ""
    earlier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How counted tokens become the provider's, as known when a pack is built.

    The first four make the estimate. The others decide what is cut, and follow from the session alone, so that every
    worker decides alike.
    """

    __pydantic_config__: ClassVar[Mapping[str, object]] = RECORDED

    ratio: float
    """Reported tokens per counted one."""
    offset: float = 0.0
    """Tokens beyond what is counted, from the usage reported for the request before."""
    samples: int = 0
    """How often usage taught the ratio."""
    anchored: bool = False
    """Whether the offset is of this session and model."""
    beyond: int | None = None
    """Tokens by which the usage last reported in this invocation passed what was counted; null where there is none."""
    unseen: int = 0
    """Tokens of the window that are taken beyond what is counted, from the usage before this invocation."""
    overcounted: int = 0
    """Tokens that may be counted beyond the window, since the last usage fell short of its count by as many."""


_USUAL_GROWTH = 0.05
"""Share of the window that memories leave free for what a session adds before the next human message, where that is not
known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackInput:
    """All that `aether_context.packing.build_pack` reads.

    ``first_call`` is set at an invocation's first model call, and at the first one that answers what another agent
    handed over since. ``candidates`` are the notes, memories and evidence that the host knows of. ``previous`` is the
    request before this one, None where it is unknown. ``rewritten`` is set where the host changed history that an
    earlier cut or request relied on. ``cached_price`` is the price of cached input as a share of that of other input.
    ``can_mask`` is set where the model takes a list of allowed function names.
    ``can_find`` is set where the host carries out what the model asks of ``find_tools``, and then calls tools that are
    not declared; ``can_read`` where a tool is declared that reads what an address stands for. ``tool_scores`` are those
    that an earlier build chose tools by, ``tool_encoder`` what compared them.
    ``passthrough_reason`` says why a request must leave as it came, and is empty where it need not.
    ``searched`` is the number of turns among which those that a cut took were looked for, None where none were;
    ``encoder`` names what compared the meanings of the candidates that came without a score, ``memory_encoder`` of
    those that the memory service scored, and is empty where it scored none.
    ``problems`` are what was wrong with the host's data and was ignored. ``summaries`` are texts that a model wrote for
    this pack's summary requests, by their keys. ``calibration`` is how counted tokens become the provider's, None where
    nothing is known. ``anchors`` are the contents that the host or its user marked. ``asked`` names the last cut
    that was asked for by hand. ``evidence`` are the addresses of what the session keeps whole, each with that of a
    later reading that differs, empty where there is none. ``tools_kept`` are the tools of whose results it keeps
    some. ``growth`` are the tokens by which the session grows from one human message to the next, but for one time in
    ten; None where that is not known.
    """

    identity: Identity
    request: Request
    window: int
    output_tokens: int | None = None
    step: Step
    validity: Validity = "unplanned"
    invalid_reason: str = ""
    candidates: tuple[Candidate, ...] = ()
    epoch: Epoch = field(default_factory=lambda: Epoch(number=0))
    first_call: bool = True
    rewritten: bool = False
    previous: Sent | None = None
    previous_pack: str = ""
    cached_price: float = 0.1
    can_mask: bool = True
    can_find: bool = False
    can_read: bool = True
    tool_scores: Mapping[str, float] = field(default_factory=dict)
    tool_encoder: str = ""
    passthrough_reason: str = ""
    searched: int | None = None
    encoder: str = "none"
    memory_encoder: str = ""
    problems: tuple[str, ...] = ()
    summaries: Mapping[str, str] = field(default_factory=dict)
    calibration: Calibration | None = None
    anchors: tuple[Anchor, ...] = ()
    asked: str = ""
    evidence: Mapping[str, str] = field(default_factory=dict)
    tools_kept: frozenset[str] = frozenset()
    growth: int | None = None

    @property
    def kept_free(self) -> int:
        """Tokens of the window that memories leave to the session's growth."""
        return int(_USUAL_GROWTH * self.window) if self.growth is None else min(self.growth, self.window)


Outcome: TypeAlias = Literal["verbatim", "payload", "extract", "summary", "placeholder", "merged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One content on its way out.

    ``raw`` is what the host gave and ``origin`` its index in ``Request.contents``; for a content that was made here
    these are itself and -1. ``content`` is what is sent in its place, and ``tokens`` are its. Where it was put together
    from several, or holds some of its parts alone, ``members`` says for each of its parts the origin and the index of
    the part there, -1 for what was made here or in its place.
    """

    content: Content
    raw: Content
    origin: int
    outcome: Outcome
    tokens: int
    members: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """What a prefix cache could serve."""

    __pydantic_config__: ClassVar[Mapping[str, object]] = RECORDED

    shared_tokens: int | None
    """Counted tokens in common with the request before, from the start; null where that request is unknown."""
    broken_by: PrefixBreak | None
    """What ended the common prefix before the end of that request; null where nothing did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningHashes:
    """Hashes over the contents so far, each made content by content, so that an appended one costs one step."""

    read: str = ""
    count: str = ""
    sent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A whole outgoing request with the account of how it came about.

    ``made`` are the indices in ``contents`` of those that are not the host's own, verbatim. ``appended`` is the number
    of contents by which this pack extends the one before it, None where it was built anew. ``chose`` is set where
    candidates were ranked for this pack, not kept from an earlier call. ``allowed_tools`` are the
    names that calls are restricted to, None where they are not. ``tools_kept`` says why a declaration is sent, where
    not all are, and ``tool_scores`` by what the relevant ones were chosen, where they were for this pack, with
    ``tool_encoder`` for the embedder. ``acts`` are what strategies did to this request.
    ``saved`` are texts that were taken out of the request and have to be stored, by the URI that the request shows.
    ``summary_requests`` are summaries that a model could improve on. ``request_tokens`` is what the provider is
    expected to count, ``counted_tokens`` what was counted here.
    ``over_window`` are tokens by which the request passes the window, since what is never cut leaves no room.
    ``counts`` are token counts by short digest. ``stages`` is what each stage gave, in the pipeline's order, as JSON
    values.
    """

    source: PackInput
    system: str
    tools: tuple[Tool, ...]
    contents: tuple[Outgoing, ...]
    made: tuple[int, ...]
    appended: int | None
    chose: bool
    allowed_tools: tuple[str, ...] | None
    tools_left_out: Mapping[str, Reason]
    tools_kept: Mapping[str, Keep]
    tool_scores: Mapping[str, float]
    tool_encoder: str
    scope_mode: str
    scope_problem: str
    signals: Signals
    allocation: Allocation
    outcomes: tuple[CandidateOutcome, ...]
    events: tuple[TruncationEvent, ...]
    acts: tuple[Act, ...]
    epoch: Epoch
    epoch_reason: EpochReason | None
    prefix: Prefix
    validity: Validity
    invalid_reason: str
    artifact_uris: frozenset[str]
    evidence_needed: tuple[str, ...]
    degradations: tuple[str, ...]
    request_tokens: int
    counted_tokens: int
    method: Accuracy
    saved: Mapping[str, str]
    summary_requests: tuple[SummaryRequest, ...]
    counts: Mapping[str, int]
    running_hashes: RunningHashes
    stages: Mapping[str, JSON]
    checksum: str
    sent: Sent
    over_window: int = 0

    @property
    def identity(self) -> Identity:
        return self.source.identity

    @property
    def whole(self) -> frozenset[int]:
        """The indices in the request of the contents that are sent as they are, and not shortened or replaced."""
        states = [outcome.state for outcome in self.outcomes[: len(self.source.request.contents)]]
        return frozenset(at for at, state in enumerate(states) if state == "kept")

    @property
    def stands_in(self) -> bool:
        """Whether something shorter is sent in the place of a content: a placeholder or an extract."""
        outcomes = self.outcomes[: len(self.source.request.contents)]
        return any(outcome.state in ("placeholder", "extract") for outcome in outcomes)
