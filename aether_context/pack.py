"""The values that travel through the pipeline: frozen, pure, and without identity beyond their content.

Times are seconds since 1970-01-01 UTC. Quantities named ``tokens`` are model tokens as the pack's counter sees them.
A digest is a tagged hash (see `aether_context.canonical`).
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from aether_context.canonical import JSON, fold, hash_json, hash_text, short


def describe(schema: dict[str, JSON], kind: type) -> None:
    """Adds the docstrings below a class's fields to its JSON Schema. Classes name it as ``json_schema_extra``.

    pydantic's own ``use_attribute_docstrings`` reads the source when a class is created, which takes 80 ms at import.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError):  # its source is not available
        return
    assert isinstance(tree, ast.ClassDef)
    for statement, following in pairwise(tree.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            name, text = ast.unparse(statement.target), ast.literal_eval(following.value)
            if name in schema["properties"]:
                schema["properties"][name]["description"] = inspect.cleandoc(text)


class Recorded:
    """A value that manifests and session states hold: unknown fields are errors, the docstring below a field describes
    it in schema and docs, and a `TypeAdapter` is built at its first use, not at import."""

    __slots__ = ()
    __pydantic_config__: ClassVar = {"extra": "forbid", "json_schema_extra": describe, "defer_build": True}


METADATA: Final = "aether_context"
"""The key of this package in an event's ``custom_metadata``."""

NOTHING: Final[Mapping[Any, Any]] = {}
"""The default of a named tuple's mapping; what a value holds is never changed in place."""


def noted(event: Any) -> Mapping[str, Any]:
    """The metadata that this package wrote into an event of a session."""
    found = (event.custom_metadata or {}).get(METADATA)
    return found if isinstance(found, Mapping) else NOTHING


def pack_of_event(event: Any) -> tuple[int, str]:
    """The number in its session, and the id, of the pack whose answer an event of the session holds; 0 and empty where
    it holds none."""
    number, pack_id = (noted(event).get(name) for name in ("number", "pack_id"))
    return (number, pack_id) if type(number) is int and number > 0 and isinstance(pack_id, str) else (0, "")


_Value = TypeVar("_Value")


def valid(adapter: TypeAdapter[_Value], value: object) -> _Value | None:
    """The value read from a session's state or a store; None where it is not valid."""
    try:
        return adapter.validate_python(value)
    except ValidationError:
        return None


Layer: TypeAlias = Literal["system", "task", "tools", "evidence", "memory", "conversation", "slack"]
LAYERS: tuple[Layer, ...] = ("system", "task", "tools", "evidence", "memory", "conversation", "slack")
FIXED_LAYERS: tuple[Layer, ...] = ("system", "task", "tools")
FLEXIBLE_LAYERS: tuple[Layer, ...] = ("evidence", "memory", "conversation")

Accuracy: TypeAlias = Literal["exact", "anchored", "approximate", "heuristic"]

WindowMark: TypeAlias = Literal["", "assumed", "learned", "default", "default_exceeded"]
"""Where a window is from: ``assumed`` where nobody knows the model's, ``learned`` from a refusal of its provider,
``default`` where nobody set one and the model takes more, ``default_exceeded`` where a call needs more than that, empty
where the policy set it, or it is all that the model takes."""

PartKind: TypeAlias = Literal["text", "thought", "call", "response", "media", "other"]

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
plan, as its planner wrote it, of which the payload was made; ``no_message``: no
human message to put it into; ``threshold``, ``turn_budget`` and ``middle``: by the strategy ``stable_prefix``,
``sliding_turns`` or ``heads_tails``; ``strategy``: by a registered one; ``provider_limit``: the provider takes no more
bytes, media or pages in one request. The last two say why something stays whole: it is the body of an active skill, or
the policy lets its tool instruct. The set is closed."""

Keep: TypeAlias = Literal["essential", "pinned", "used", "found", "relevant"]
"""Why a tool declaration is sent where not all are: the host needs it to steer the run, the policy pins it, it was
called in this session, the model searched for it, or it is relevant to the request."""

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
"""Why an epoch began; ``high_water``: the request exceeded the mark for cuts; ``byte_net`` and ``strategy``: a cut for
that `Reason`; ``replaced``: contents became placeholders. The set is closed."""

PrefixBreak: TypeAlias = Literal[
    "new_invocation", "cut", "tools_changed", "system_changed", "payload_changed", "history_rewritten", "unknown"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a content.

    ``text`` is what a model reads of it: the text itself, or the canonical JSON of a call's arguments, of a response or
    of an unknown kind of part; it is empty for media. ``wire`` is the part's canonical JSON as it is sent, with binary
    data replaced by its digest. ``size_bytes`` is the size of that data, ``media_count`` that of images, documents
    and the like in it, and ``pages`` what its PDF documents name of theirs.
    """

    kind: PartKind
    text: str
    wire: str
    name: str = ""
    call_id: str = ""
    mime_type: str = ""
    size_bytes: int = 0
    media_tokens: int = 0
    media_count: int = 0
    pages: int = 0
    shape: str = ""
    """The size of its media for people: in pixels, pages or bytes; empty where it is not known."""
    is_signed: bool = False
    """Whether the model's provider signed it, and may refuse it in other words."""
    is_instruction: bool = False
    """Whether it holds an instruction that is active, so that no extract of it is sent."""

    @property
    def is_thought(self) -> bool:
        """Tells whether it is a model's thought, in words or (redacted) in a signature alone."""
        return self.kind == "thought" or (self.kind == "other" and json.loads(self.wire).get("thought") is True)


class Quote(NamedTuple):
    """A quote of another agent's words or call, or of a tool's response to it, as the host writes it into a message.

    ``text`` is the quoted text, ``name`` the tool's, and ``at`` the index of the part.
    """

    kind: Literal["said", "call", "response"]
    agent: str
    text: str
    at: int
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One message of a request. ``digest`` is the hash of ``wire``, the canonical JSON of role and parts.

    ``calls`` and ``responses`` are the tool calls and responses among its parts. ``agent`` is set where the message is
    another agent's turn, which the host shows as a user message; ``quotes`` then holds its parts as that agent's.
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
        """The words in it: its text, or in another agent's turn what that agent said, without what the host adds."""
        if not self.agent:
            return self.text
        return "\n".join(quote.text for quote in self.quotes if quote.kind == "said")


def content_name(place: int, digest: str) -> str:
    """A content's id: its index in the host's list and the beginning of its hash."""
    return f"c{place}_{short(digest)}"


def content_place(name: str) -> int:
    """The index in the host's list by a `content_name`; 0 where it is none."""
    place = name.removeprefix("c").partition("_")[0]
    return int(place) if place.isdecimal() else 0


LEAST_WINDOW_READ: Final = 4_000
"""The window in tokens from which on agents that may be cut have the tools that read the past: of it they take 7 parts
in a hundred."""
RECALLED = "conversation"
"""The source of candidates that are turns of the conversation itself."""


def recalled_id(place: int, digest: str) -> str:
    """A content's id as a candidate for memory. For a passage of it, ``#`` and a number follow."""
    return f"turn_{content_name(place, digest)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function declaration. ``signature`` is its line in the payload; an ``essential`` one is never left out."""

    name: str
    signature: str
    wire: str
    digest: str
    essential: bool = False


class Request(NamedTuple):
    """A request as the host made it.

    ``contents`` are those that no earlier cut removed; ``positions`` are their indices in the host's own list.
    ``request_index`` is the index within ``contents`` of the final human message, None where there is none; it is
    another agent's turn where the host shows no message of the user. ``other_tools`` are the wires of tools that are
    not functions. ``first_call`` is set at an invocation's first call, and at the first that answers what another agent
    handed over. ``rewritten`` is set where the host changed history that an earlier cut or request relied on.
    """

    model: str
    system: str = ""
    system_is_text: bool = True
    tools: tuple[Tool, ...] = ()
    other_tools: tuple[str, ...] = ()
    contents: tuple[Content, ...] = ()
    positions: tuple[int, ...] = ()
    request_index: int | None = None
    first_call: bool = True
    rewritten: bool = False

    @property
    def from_agent(self) -> bool:
        """Tells whether the final human message is another agent's turn, which was handed to this agent."""
        return self.request_index is not None and bool(self.contents[self.request_index].agent)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceItem:
    """One item of a step's checklist. ``needs_evidence`` is set where only proof completes it."""

    id: str
    text: str
    needs_evidence: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The agent's present task, from the session's plan or from the user's request."""

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
        """A hash that identifies the step in its session by its id, or by its text where it has no id."""
        return short(fold([self.task_id, self.step_id or self.text]))


Validity: TypeAlias = Literal["unplanned", "valid", "invalid"]


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
    """Whole tokens per layer for one pack. The ``final`` budgets never sum to more than ``window + spare_tokens``."""

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
    rewound: str = ""
    """The id of the session's last rewind that the epoch follows; empty for none."""


class Identity(NamedTuple):
    """Whose model call a pack is for.

    ``call`` counts the model calls of one agent in one invocation from 1. ``caller`` is the session whose tool this one
    runs in: app, user, session.
    """

    app: str
    user: str
    session: str
    invocation: str
    agent: str
    branch: str = ""
    call: int = 1
    last_event_id: str = ""
    last_event_time: float = 0.0
    caller: tuple[str, str, str] | None = None


class Block(NamedTuple):
    """The hash and the size of one piece of an outgoing request, to compare it with the request before."""

    digest: str
    tokens: int


class Sent(NamedTuple):
    """An outgoing request as blocks, in the order in which a provider's prefix cache sees them."""

    system: Block
    tools: tuple[Block, ...]
    contents: tuple[Block, ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        return (self.system, *self.tools, *self.contents)


class SummaryRequest(NamedTuple):
    """A summary that a model is asked for, in the place of the extractive one.

    ``key`` is a hash over all that the summary depends on, the model's name included. ``earlier`` is the conversation's
    summary so far, which the new one continues, ``query`` what the summary has to be relevant to; both may be empty.
    """

    key: str
    kind: Literal["memory", "evidence", "conversation"]
    text: str
    max_tokens: int
    query: str = ""
    earlier: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Recorded):
    """The ratio between counted tokens and the provider's, as known when a pack is built.

    The first four fields make the estimate. The others decide what is cut; they follow from the session alone, so that
    every process decides alike.
    """

    ratio: float
    """Reported tokens per counted one."""
    offset: float = 0.0
    """Tokens beyond what is counted, from the usage reported for the request before."""
    samples: int = 0
    """Number of usage reports that the ratio was learned from."""
    anchored: bool = False
    """Whether the offset was learned in this session, with this model."""
    report_minus_count: int | None = None
    """Tokens by which the usage last reported in this invocation exceeded the count; null where none was reported."""
    uncounted_tokens: int = 0
    """Tokens of the window that the provider uses beyond what is counted, by the usage before this invocation."""
    spare_tokens: int = 0
    """Tokens that may be counted beyond the window, since the last usage was lower than its count by as many."""


_USUAL_GROWTH = 0.05
"""Share of the window that memories leave free for the session's growth up to the next human message, where the growth
is not known."""


class Host(NamedTuple):
    """The host of a model call: what it offers and asks for beside the request.

    ``passthrough_reason`` says why the request must be sent unchanged; it is empty where it need not. ``cached_price``
    is the price of cached input as a share of that of other input. ``can_mask`` is set where the model takes a list of
    allowed function names, ``can_find`` where the host carries out ``find_tools`` and calls tools that are not
    declared, ``can_read`` where a tool is declared that reads ``artifact://`` addresses. ``anchors`` are the contents
    that the host or its user marked. ``asked`` names the last cut that was requested by hand. ``window_mark`` says
    where the window is from, ``most_window`` up to where a call may pass it, 0 where none may. ``readings`` maps the
    addresses of the results that the session keeps whole, and of the files that were saved in it, to the address of a
    later result from the same source that differs, empty where there is none. ``planners`` are the agents that have
    written plans. ``unseen`` are the media that notes stand for, since the provider takes no more of them. ``media``
    are the marks that stand for what people sent, where a cut takes it, by the hashes of its bytes.
    """

    passthrough_reason: str = ""
    cached_price: float = 0.1
    can_mask: bool = True
    can_find: bool = False
    can_read: bool = True
    anchors: tuple[Anchor, ...] = ()
    asked: str = ""
    window_mark: WindowMark = ""
    most_window: int = 0
    readings: Mapping[str, str] = NOTHING
    planners: tuple[str, ...] = ()
    unseen: Unseen = ()
    media: Mapping[str, str] = NOTHING


class Usage(NamedTuple):
    """The known facts about a session's tokens when a pack is built.

    ``calibration`` is None where no usage is known. ``growth`` is the 90th percentile of the tokens that the session
    gains from one human message to the next; None where that is not known. ``offloaded_tokens`` are those that extracts
    leave out of its history.
    """

    calibration: Calibration | None = None
    growth: int | None = None
    offloaded_tokens: int = 0

    @property
    def uncounted_tokens(self) -> int:
        """Tokens of the system layer that the provider counts beyond the count here."""
        return self.calibration.uncounted_tokens if self.calibration is not None else 0

    @property
    def spare_tokens(self) -> int:
        """Tokens that may be counted beyond the window."""
        return self.calibration.spare_tokens if self.calibration is not None else 0


class Search(NamedTuple):
    """The searches that were made for a pack before it is built.

    ``turns`` is the number of turns that were searched for those that a cut had removed, None where none were.
    ``embedder`` names the embedder that scored the candidates that came without a score, ``memory_embedder`` the memory
    service's, empty where that scored none. ``tool_scores`` are the relevance scores of an earlier build of this pack,
    ``tool_embedder`` is the embedder that made them.
    """

    turns: int | None = None
    embedder: str = "none"
    memory_embedder: str = ""
    tool_scores: Mapping[str, float] = NOTHING
    tool_embedder: str = ""


class Previous(NamedTuple):
    """The request before this one, of the same agent, and its pack's id; None and empty where they are unknown."""

    sent: Sent | None = None
    pack_id: str = ""


class PackInput(NamedTuple):
    """All that `aether_context.packing.build_pack` reads.

    ``output_tokens`` is the limit of the answer where that shares the window with the request. ``candidates`` are the
    notes, memories and evidence that the host knows of. ``instructions`` are those that are active, the newest last.
    ``summaries`` are texts that a model wrote for this pack's
    summary requests, by their keys. ``problems`` say what was wrong with the host's data and was ignored.
    """

    identity: Identity
    request: Request
    window: int
    step: Step
    output_tokens: int | None = None
    validity: Validity = "unplanned"
    invalid_reason: str = ""
    candidates: tuple[Candidate, ...] = ()
    instructions: tuple[Candidate, ...] = ()
    epoch: Epoch = Epoch(number=0)
    previous: Previous = Previous()
    host: Host = Host()
    usage: Usage = Usage()
    search: Search = Search()
    summaries: Mapping[str, str] = NOTHING
    problems: tuple[str, ...] = ()

    @property
    def growth_reserve(self) -> int:
        """Tokens of the window that memories leave free for the session's growth."""
        growth = self.usage.growth
        return int(_USUAL_GROWTH * self.window) if growth is None else min(growth, self.window)


SentForm: TypeAlias = Literal["whole", "extract", "told", "placeholder", "payload", "summary", "merged"]
"""As what a content is sent: in a `Form`, with the payload around it, as the summary, or merged with its neighbours."""


class Outgoing(NamedTuple):
    """One content on its way out.

    ``raw`` is the content that the host gave and ``origin`` its index in ``Request.contents``; for a content that
    packing made, these are the content itself and -1. ``content`` is what is sent, and ``tokens`` counts it. Where it
    was merged from several contents, or holds other parts than one of the host's, ``members`` has for each of its parts
    the origin and the part's index there, -1 for a part that packing made.
    """

    content: Content
    raw: Content
    origin: int
    form: SentForm
    tokens: int
    members: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix(Recorded):
    """The part of a request that a provider's prefix cache could serve."""

    shared_tokens: int | None
    """Counted tokens in common with the request before, from the start; null where that request is unknown."""
    broken_by: PrefixBreak | None
    """Why the common prefix ends before the end of that request; null where it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSelection:
    """Declarations sent, names left out with the reason, the mode used, and the names that calls are restricted to.

    ``trimmed`` are the names of declarations that are sent without examples. ``problem`` says why the policy's mode
    could not be used. In the mode ``relevant``, ``kept`` says why each declaration is sent; ``scores`` holds every
    tool's where the choice was made for this pack, and is empty where an earlier one stands; ``embedder`` names what
    compared their meanings, and ``key`` stands for what the choice was made for.
    """

    sent: tuple[Tool, ...] = ()
    mode: str = "off"
    left_out: Mapping[str, Reason] = field(default_factory=dict)
    allowed: tuple[str, ...] | None = None
    trimmed: frozenset[str] = frozenset()
    problem: str = ""
    kept: Mapping[str, Keep] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    embedder: str = ""
    key: str = ""

    @property
    def listed(self) -> tuple[Tool, ...]:
        """The tools that the payload lists: those of a step."""
        return self.sent if self.mode in ("prune", "mask") else ()


class Verdict(NamedTuple):
    """The worth of a request for its step.

    ``evidence_needed`` are the acceptance items whose proof is not sent, and tools that were called without a record as
    ``tool:NAME``. ``artifact_uris`` are the addresses in the request that the session knows. ``problems`` say what was
    not done as asked.
    """

    validity: Validity
    invalid_reason: str
    evidence_needed: tuple[str, ...]
    artifact_uris: frozenset[str]
    problems: tuple[str, ...]


class RequestTokens(NamedTuple):
    """The size of a request in tokens, and how it was obtained.

    ``counted`` is what was counted here, ``expected`` what the provider is expected to count, and ``whole_history`` the
    count of what the host would have sent by itself. ``over_window`` are those by which the request exceeds the window,
    where what is never cut does not fit.
    """

    counted: int
    expected: int
    whole_history: int
    over_window: int
    method: Accuracy


class ToStore(NamedTuple):
    """Facts to be stored of a pack beside the request itself.

    ``chose`` is set where candidates were ranked for this pack, not kept from an earlier call. ``saved`` are texts that
    were taken out of the request, by the URI that it shows. ``summary_requests`` are summaries that a model could
    improve on. ``counts`` are token counts by short digest. ``read`` and ``sizes`` are hashes over the contents as they
    were read and over their counts, and ``stages`` the results of the stages, in their order, as JSON.
    """

    chose: bool
    saved: Mapping[str, str]
    summary_requests: tuple[SummaryRequest, ...]
    counts: Mapping[str, int]
    read: str
    sizes: str
    stages: Mapping[str, JSON]


class Pack(NamedTuple):
    """A whole outgoing request, and how it came about.

    ``sent`` is the request as blocks, for the comparison with the next one. ``rows`` say what became of each content
    that came in, in order, then of each other candidate. ``events`` are the decisions to leave out or to shorten,
    ``acts`` what strategies did. ``epoch_reason`` is why an epoch begins with this pack, None where none does.
    """

    source: PackInput
    system: str
    tools: ToolSelection
    contents: tuple[Outgoing, ...]
    sent: Sent
    allocation: Allocation
    rows: tuple[Row, ...]
    events: tuple[TruncationEvent, ...]
    acts: tuple[Act, ...]
    epoch: Epoch
    epoch_reason: EpochReason | None
    prefix: Prefix
    verdict: Verdict
    tokens: RequestTokens
    to_store: ToStore

    @property
    def checksum(self) -> str:
        """The hash over the request: system, declarations, contents, and the names that calls are restricted to."""
        fixed = [self.sent.system.digest, *(block.digest for block in self.sent.tools)]
        contents = hash_text("\n".join([block.digest for block in self.sent.contents]))
        return hash_json({"allowed": self.tools.allowed, "contents": contents, "fixed": fixed})

    @property
    def identity(self) -> Identity:
        return self.source.identity

    @property
    def whole(self) -> frozenset[int]:
        """The indices in the request of the contents that are sent unchanged."""
        rows = self.rows[: len(self.source.request.contents)]
        return frozenset(index for index, row in enumerate(rows) if row.form in ("whole", "offloaded"))
