"""The input of a pack, and the pack: the whole outgoing request with the account of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from aether_context.canonical import JSON, hash_json, hash_text, short
from aether_context.pack.epoch import Anchor, Epoch, EpochReason, Prefix, Unseen
from aether_context.pack.recorded import NOTHING, Recorded
from aether_context.pack.request import Content, Identity, Request, Step, Validity
from aether_context.pack.selection import Accuracy, Act, Allocation, Candidate, Row, ToolSelection, TruncationEvent

__all__ = [
    "OBSERVE", "Block", "Calibration", "Host", "Outgoing", "Pack", "PackInput", "Previous", "RequestTokens", "Search",
    "Sent", "SentForm", "SummaryRequest", "ToStore", "Usage", "Verdict", "WindowMark",
]  # fmt: skip

OBSERVE = "observe"
"""The arm whose requests are recorded as they would be, and sent as they come."""
WindowMark: TypeAlias = Literal["", "assumed", "learned", "default", "default_exceeded"]
"""Where a window is from: ``assumed`` where nobody knows the model's, ``learned`` from a refusal of its provider,
``default`` where nobody set one and the model takes more, ``default_exceeded`` where a call needs more than that, empty
where the policy set it, or it is all that the model takes."""


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

    def beginning(self, count: int | None = None) -> tuple[int, str]:
        """The number of so many blocks from the start, by default of all, and a short hash of them."""
        digests = [block.digest for block in self.blocks[:count]]
        return len(digests), short(hash_text("\n".join(digests)), 16)


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
    declared, ``can_read`` where a tool is declared that reads ``artifact://`` addresses. ``forced`` are the tools that
    have to be declared, since the request names them as the only ones that may be called. ``anchors`` are the contents
    that the host or its user marked. ``asked`` names the last cut that was requested by hand. ``window_mark`` says
    where the window is from, ``most_window`` up to where a call may pass it, 0 where none may. ``readings`` maps the
    addresses of the results that the session keeps whole, and of the files that were saved in it, to the address of a
    later result from the same source that differs, empty where there is none. ``planners`` are the agents that have
    written plans. ``unseen`` are the media that notes stand for, since the provider takes no more of them. ``arm`` says
    which of the policies that are compared the session has. ``media`` are the marks that stand for what people sent,
    where a cut takes it, by the hashes of its bytes. ``hidden_turns`` are the messages of other agents' turns that
    ``sees = "own"`` leaves out. ``binds_thoughts`` is set where the model's signed thoughts are valid only behind what
    they were made behind.
    """

    passthrough_reason: str = ""
    cached_price: float = 0.1
    can_mask: bool = True
    can_find: bool = False
    can_read: bool = True
    forced: tuple[str, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    asked: str = ""
    window_mark: WindowMark = ""
    most_window: int = 0
    readings: Mapping[str, str] = NOTHING
    planners: tuple[str, ...] = ()
    unseen: Unseen = ()
    arm: str = ""
    media: Mapping[str, str] = NOTHING
    hidden_turns: int = 0
    binds_thoughts: bool = False


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
    service's, empty where that scored none. ``room`` is the most tokens that turns may take that come back, which a
    cut of the default strategy leaves free; 0 where none may, and where it was not measured, since a call adds little.
    ``remaining`` are the positions of the contents that a cut left which was proposed for this call, None without one.
    """

    turns: int | None = None
    embedder: str = "none"
    memory_embedder: str = ""
    room: int = 0
    remaining: frozenset[int] | None = None


class Previous(NamedTuple):
    """The request before this one, of the same agent, and its pack's id; None and empty where they are unknown."""

    sent: Sent | None = None
    pack_id: str = ""


class PackInput(NamedTuple):
    """All that `aether_context.packing.build_pack` reads.

    ``output_tokens`` is the limit of the answer where that shares the window with the request. ``candidates`` are the
    notes, memories and evidence that the host knows of. ``instructions`` are those that are active, the newest last.
    ``summaries`` are texts that a model wrote for this pack's
    summary requests, by their keys. ``problems`` say what was wrong with the host's data and was ignored. ``wording``
    are the built-in lines that a recorded pack was built with, by their keys; empty for those of this version.
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
    wording: Mapping[str, str] = NOTHING

    @property
    def binds_thoughts(self) -> bool:
        """Tells whether signed thoughts leave where anything before them changes: as the model's name says, or a
        refusal has said."""
        return not self.host.passthrough_reason and (self.host.binds_thoughts or self.epoch.refusals > 0)

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
    the origin and the part's index there, -1 for a part that packing made. ``joined`` is set where it is sent as
    further parts of the content before it: both have one role, and the host has no neighbours of one role there.
    """

    content: Content
    raw: Content
    origin: int
    form: SentForm
    tokens: int
    members: tuple[tuple[int, int], ...] = ()
    joined: bool = False


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
    count of what the host would have sent by itself. ``over_window`` are expected ones by which the request exceeds
    the window, where what is never cut does not fit.
    """

    counted: int
    expected: int
    whole_history: int
    over_window: int
    method: Accuracy


class ToStore(NamedTuple):
    """Facts to be stored of a pack beside the request itself.

    ``chose`` is set where candidates were ranked for this pack, not kept from an earlier call, and ``weighed`` where
    they were for an earlier build of it, which decided that it was built without thoughts. ``saved`` are texts that
    were taken out of the request, by the URI that it shows. ``summary_requests`` are summaries that a model could
    improve on. ``counts`` are token counts by short digest, and ``stages`` the results of the stages, in their order,
    as JSON.
    """

    chose: bool
    saved: Mapping[str, str]
    summary_requests: tuple[SummaryRequest, ...]
    counts: Mapping[str, int]
    stages: Mapping[str, JSON]
    weighed: bool = False


class Pack(NamedTuple):
    """A whole outgoing request, and how it came about.

    ``sent`` is the request as blocks, for the comparison with the next one. ``rows`` say what became of each content
    that came in, in order, then of each other candidate. ``events`` are the decisions to leave out or to shorten,
    ``acts`` what strategies did. ``epoch_reason`` is why an epoch begins with this pack, None where none does.
    ``framing_tokens`` are those that the provider adds around the contents' texts. ``remaining`` are the positions of
    the contents that a cut of this pack leaves, None without one; ``is_proposed`` says that candidates are still to be
    chosen anew behind it.
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
    framing_tokens: int
    to_store: ToStore
    remaining: frozenset[int] | None = None
    is_proposed: bool = False

    @property
    def checksum(self) -> str:
        """The hash over the request: system, declarations, contents, and the names that calls are restricted to."""
        fixed = [self.sent.system.digest, *(block.digest for block in self.sent.tools)]
        contents = hash_text("".join([("\n", "+")[item.joined] + item.content.digest for item in self.contents])[1:])
        return hash_json({"allowed": self.tools.allowed, "contents": contents, "fixed": fixed})

    @property
    def identity(self) -> Identity:
        return self.source.identity

    @property
    def whole(self) -> frozenset[int]:
        """The indices in the request of the contents that are sent unchanged."""
        rows = self.rows[: len(self.source.request.contents)]
        return frozenset(index for index, row in enumerate(rows) if row.form in ("whole", "offloaded"))
