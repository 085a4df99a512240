"""The manifest: a pack's receipt. It says what was sent, what was left out and why, and lets the pack be built again.

A manifest is written once and never edited. ``checksum`` is a hash over the request that was sent; ``digest`` is a hash
over the manifest itself. What only a replay reads is its `Record` in the session's log, which it names by hash; a
manifest from a store reads it when the first of its fields is asked for. From one cut to the next, records form a
chain: each names the one that it ``extends``, and holds what is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from aether_context.canonical import JSON, canonical_json, hash_json
from aether_context.errors import ChecksumMismatch, ManifestError
from aether_context.pack import (
    OBSERVE,
    Accuracy,
    Act,
    Anchor,
    Calibration,
    Epoch,
    EpochReason,
    Keep,
    Layer,
    LayerTokens,
    Prefix,
    Reason,
    Row,
    Stage,
    Unseen,
    Validity,
    WindowMark,
    describe,
)
from aether_context.store.layout import manifest_uri
from aether_context.store.pack_file import (
    TEXT_DIGITS,
    check_signature,
    fields_of,
    manifest_file,
    parse_json,
    signed,
)
from aether_context.usage import CallUsage
from aether_context.usage.calibration import estimated

PackName: TypeAlias = Annotated[str, Field(pattern=r"^[^/\\.][^/\\]*$")]
"""The id of a pack, which is the name of its folder: it leads to no other place."""

BudgetName: TypeAlias = Literal["system", "task", "tools", "evidence", "memory", "conversation", "slack_min"]
_Model = TypeVar("_Model", bound=BaseModel)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=describe)


class LayerBudget(_Record):
    """A layer's budget after lending; `allocation` has the rest. The shares of all layers sum to at most 1."""

    tokens: int
    """Tokens, after lending."""
    share: float
    """``tokens`` as a share of the window, 0 to 1, rounded down."""


class ToolScope(_Record):
    """The tool declarations that were sent."""

    mode: str
    """``off``, ``prune``, ``mask`` or ``fitting``."""
    sent: tuple[str, ...]
    """Names declared, in order."""
    left_out: Mapping[str, str] = {}
    """Names left out, with the reason."""
    kept: Mapping[str, Keep] = {}
    """Names declared, with the reason, in the mode ``fitting``."""
    allowed: tuple[str, ...] | None = None
    """Names that calls were restricted to; null where they were not."""


class Truncation(_Record):
    """One decision to leave something out or to shorten it."""

    layer: Layer
    """The layer that got shorter."""
    stage: Stage
    """The stage that decided it."""
    reason: Reason
    """Why."""
    dropped_ids: tuple[str, ...] = ()
    """Ids of the rows that are not sent any more; a summary may stand for them."""
    compressed_ids: tuple[str, ...] = ()
    """Ids of the rows of which less is sent, or a note in their place."""
    tokens_before: int
    """The layer's tokens before."""
    tokens_after: int
    """The layer's tokens after."""
    strategy: str = ""
    """The strategy that decided it; empty where none did."""

    @property
    def item_ids(self) -> tuple[str, ...]:
        """Ids of all rows concerned."""
        return (*self.dropped_ids, *self.compressed_ids)


class ContentList(_Record):
    """The contents that this pack was built from, among all those that its chain has recorded, in their order."""

    added: tuple[str, ...] = ()
    """Contents that are new in the chain, by hash: they follow those of the packs before."""
    ranges: tuple[tuple[int, int], ...] = ()
    """Index ranges, among the chain's contents, of those that went in."""


class Record(_Record):
    """The part of a manifest that only a replay reads, which stands in the log.

    Texts are named by their hashes, and stand in the log, too.
    """

    number: int = 1
    """The pack's number in its session, from 1."""
    extends: str | None = None
    """The name of the record before it in its chain; null where the chain begins with this one."""
    contents: ContentList = ContentList()
    """The contents that the pack was built from."""
    positions: tuple[tuple[int, int], ...] = ()
    """Index ranges of these contents in the host's list."""
    others: tuple[tuple[int, int], ...] = ()
    """Index ranges among the contents of other agents' turns, which ADK shows as user messages."""
    chose: bool = False
    """Whether candidates were ranked for this pack; where not, the rows of the candidates before hold."""
    rows: tuple[Row, ...] = ()
    """The candidates that are new here or whose state changed."""
    counts: Mapping[str, int] = {}
    """Token counts of texts, by short hash, where no row and no pack before it holds them."""
    setting: str = ""
    """The name of system instruction, declarations and step; empty where no texts are recorded."""
    offered: str = ""
    """The name of the candidates that were ranked and of the problems that were met; empty where there are none."""
    masked: Mapping[str, str] = {}
    """The names of the masked forms of contents that are new in the chain, by the hashes of these."""
    summaries: Mapping[str, str] = {}
    """Hashes of the summaries that a model wrote for this pack, by the hash over their prompts."""
    epoch: Epoch = Epoch(number=0)
    """The epoch after this pack."""
    epoch_before: Epoch | None = None
    """The epoch before this pack; null where it is that after the pack it extends."""
    stages: Mapping[str, str] = {}
    """Short hashes of the stages' results."""

    @classmethod
    def from_line(cls, text: str) -> Record:
        """A record from its line in the log; `ManifestError` where it is none."""
        record = _valid(Record, parse_json(text, TEXT_DIGITS))
        try:
            record.model_dump(mode="json", include={"epoch", "epoch_before"})
        except ValueError as error:
            raise ManifestError(f"not a record: epoch: {error}") from error  # it is nested too deep
        return record


IN_RECORD: Final = Record.model_fields.keys() - {"number"}
"""The fields that the record in the log holds, and ``manifest.json`` does not."""


class Manifest(Record):
    """The manifest of one pack."""

    schema_version: Literal[1] = 1
    """Version of this schema."""
    pack_id: PackName
    """``pack_{time of the last event}_{task}_{step}_{hash}``."""
    turn: int = 1
    """The number of the user's message in the session that led to it, from 1."""
    before: str = ""
    """The digest of the pack with the number before, of whatever agent; empty where that is unknown."""
    outcome_before: str = ""
    """The hash of that pack's outcome as it stands in the log; empty where it was not known yet."""
    first_number: int = 1
    """The number of the session's first pack; of those before it none was in the store when this one was written."""
    call_before: PackName | None = None
    """The pack before it for the same agent; null where that is unknown."""
    app: str
    """Application."""
    user: str
    """User."""
    session: str
    """Session."""
    invocation: str
    """Invocation, from one user message to the end of the run it started."""
    agent: str
    """Agent whose model is called."""
    branch: str = ""
    """Branch of the conversation; empty on the trunk."""
    call: int
    """Model call of this agent in this invocation, from 1."""
    last_event_id: str = ""
    """The session's last event when the pack was built."""
    last_event_time: float = 0.0
    """Its time, seconds since 1970 UTC."""
    caller: tuple[str, str, str] | None = None
    """App, user and session whose tool this session runs in, as that of an agent that is a tool; null for none."""
    task_id: str = ""
    """The plan's task."""
    step_id: str = ""
    """The plan's step."""
    role: str = ""
    """The role the step is done in."""
    validity: Validity
    """``unplanned`` without a plan; ``invalid`` where a plan lacks a step or an acceptance list, or where these could
    not be sent whole."""
    invalid_reason: str = ""
    """Why it is invalid."""
    plan_validity: Validity | None = None
    """The validity of the plan alone; null where it does not differ."""
    model: str
    """The model's name as the host gave it."""
    window: int
    """The window W in tokens, after the policy's cap."""
    window_mark: WindowMark = ""
    """``assumed`` where the model's window is not known, ``learned`` where a refusal of its provider taught it,
    ``default`` where nobody set one and the model takes more, ``default_exceeded`` where this call needed more."""
    most_window: int = 0
    """Tokens up to which a call that needs them may pass a default window; 0 where the window is no default."""
    unseen: Unseen = ()
    """Ranges of media that notes stand for, since the provider takes no more of them: the index of a content in the
    host's list times 4,096, and that of the part."""
    media: Mapping[str, str] = {}
    """The marks that stand for what people sent, where a cut takes it, by the hashes of its bytes."""
    hidden_turns: int = 0
    """Number of messages of other agents' turns that ``sees = "own"`` leaves out, a call and its result being two."""
    output_tokens: int | None = None
    """The limit of the model's answer in tokens, where the answer shares the window with the request."""
    profile: str
    """The policy's profile."""
    policy: str
    """Hash of the policy."""
    arm: str = ""
    """The arm that the session has, ``observe`` where the request was left as it is; empty where none are compared."""
    off: tuple[str, ...] = ()
    """Agents whose requests the policy leaves alone, so that no pack tells of them."""
    counter: str
    """Identity of the token counter."""
    embedder: str = "none"
    """Identity of the embedder that scored the candidates that came without a score."""
    memory_embedder: str = ""
    """Identity of the embedder by which the memory service scored candidates; empty where it scored none."""
    searched: int | None = None
    """Number of turns that were searched for those that a cut had removed; the rows hold the best. Null where none
    were searched."""
    recall_room: int = 0
    """Most tokens of turns that come back, since they answer the request; 0 where none may, or the call adds little."""
    remaining: tuple[tuple[int, int], ...] | None = None
    """Positions of the contents that a cut left which was proposed for this call; null without one."""
    layer_budgets: Mapping[BudgetName, LayerBudget]
    """The budget of each layer after lending; ``slack_min`` is kept free for the answer."""
    allocation: Mapping[Layer, LayerTokens]
    """Tokens of each layer, from its floor to what it used."""
    weights: Mapping[str, float]
    """Each layer's share of the tokens that the floors leave, as the signals decided it."""
    signals: Mapping[str, float | int | str | None]
    """The eight signals as they were read: ``risk_weight`` as low, medium or high, ``freshness`` in days; null is
    unknown and weighs as one half."""
    tools: ToolScope
    """The tool declarations."""
    request_index: int | None = None
    """Index of the final human message among the contents: the user's request, or what another agent handed over."""
    words: str = ""
    """The first 120 characters of the message that is answered, at an invocation's first call; empty without texts."""
    first_call: bool = True
    """Whether this was the invocation's first model call, or the first that answers what another agent handed over."""
    rewritten: bool = False
    """Whether the host changed history that an earlier cut or request relied on."""
    cached_price: float = 0.1
    """Price of cached input as a share of that of other input."""
    can_mask: bool = True
    """Whether the model takes a list of allowed function names."""
    can_find: bool = False
    """Whether the host carries out ``find_tools``."""
    can_read: bool = True
    """Whether a tool is declared that reads ``artifact://`` addresses."""
    forced: tuple[str, ...] = ()
    """The tools that have to be declared, since the request names them as the only ones that may be called."""
    planners: tuple[str, ...] = ()
    """The agents that have written plans."""
    binds_thoughts: bool = False
    """Whether signed thoughts are bound to what precedes them."""
    passthrough_reason: str = ""
    """Why the request was left as it came; empty where it was not."""
    candidates: Mapping[Layer, Mapping[str, int]] = {}
    """The number of contents and candidates of each layer, by the form in which they are sent, and for those that are
    not sent by the reason."""
    truncation_events: tuple[Truncation, ...] = ()
    """What was left out, in the order in which it happened."""
    strategy_acts: tuple[Act, ...] = ()
    """What each strategy did to this request, in the order of the strategies."""
    anchors: tuple[Anchor, ...] = ()
    """Contents that are marked to be kept longer than others."""
    asked: str = ""
    """The last cut that was requested by hand."""
    growth: int | None = None
    """Tokens by which the session grows from one human message to the next; null where that was not known."""
    epoch_number: int = 1
    """The number of the epoch after this pack, from 1."""
    epoch_reason: EpochReason | None = None
    """Why an epoch began with this pack; null where none did."""
    prefix: Prefix
    """Cache stability against the request before."""
    evidence_needed: tuple[str, ...] = ()
    """Acceptance items that need evidence and whose proof is not in the request; also, as ``tool:NAME``, tools that
    were called while nothing was recorded on purpose and that have no stored result."""
    artifact_uris: tuple[str, ...] = ()
    """The ``artifact://`` addresses in the request that the session knows, and those of other evidence in it."""
    saved: Mapping[str, str] = {}
    """Addresses of texts that were taken out of messages, each with the hash of the text."""
    stored: tuple[str, ...] = ()
    """What was written to the session's folders since the pack before: addresses of evidence and of artifacts, and
    ``turns/{agent}/{start}-{stop}``."""
    superseded: Mapping[str, str] = {}
    """Those of ``artifact_uris`` whose result is out of date, each with the address of the latest that differs."""
    degradations: tuple[str, ...] = ()
    """What could not be done as asked, in words."""
    request_tokens: int
    """Tokens of the whole request, estimated before the call."""
    request_tokens_method: Accuracy
    """How they were estimated."""
    counted_tokens: int = 0
    """Tokens of the request by the counter, before calibration."""
    whole_history_tokens: int = 0
    """Tokens, by the counter, of what the host would have sent by itself, an estimate. That is the whole history with
    whole results, and all declarations, but for the tools that read evidence, their calls and what they gave."""
    whole_history_breaks: bool = False
    """Whether the host's own request does not begin as the one before: instruction, declarations or history changed."""
    over_window: int = 0
    """Expected tokens by which the request exceeds the window, where what is never cut does not fit; else 0."""
    calibration: Calibration | None = None
    """How the estimate was calibrated; null where no usage was known."""
    texts: bool = False
    """Whether the texts are recorded that it was built from."""
    record: str = ""
    """The hash of its record in the session's log."""
    segments: tuple[tuple[int, int], ...] = ()
    """Ranges of the numbers of other packs, with whose records its chain and texts that it needs stand there."""
    checksum: str
    """Hash over the request that was sent."""
    masked_checksum: str = ""
    """Hash over the canonical JSON of the request with what ``redact`` masks in it; empty where it masks nothing. The
    masked request is what is recorded, and what a replay gives."""
    digest: str = ""
    """Hash over the canonical JSON of this manifest's file without this field and the next."""
    signature: str = ""
    """HMAC of the digest; empty where no key was set."""

    _load: Callable[[Manifest], object] | None = PrivateAttr(default=None)

    def expected(self, counted: int) -> int:
        """A part's counted tokens as the provider is expected to count them, by the request as a whole."""
        whole = self.counted_tokens
        return (counted * self.request_tokens + whole // 2) // whole if whole else counted

    def usage(self, outcome: Mapping[str, JSON] | None) -> CallUsage | None:
        """The call's usage and cost by its outcome; None without one, and for a call that failed without usage.

        What the provider did not report is estimated, for the arm ``observe`` from the whole history.
        """
        tokens, shared = self.request_tokens, self.expected(self.prefix.shared_tokens or 0)
        if self.arm == OBSERVE:
            tokens = estimated(self.calibration, self.whole_history_tokens)
            shared = 0 if self.whole_history_breaks else max(0, tokens - self.request_tokens + shared)
        call = None if outcome is None else CallUsage.of_outcome(outcome, tokens, shared)
        return call and call.priced(self.model, self.last_event_time)

    @property
    def session_key(self) -> tuple[str, str, str]:
        """App, user, session."""
        return (self.app, self.user, self.session)

    @property
    def uri(self) -> str:
        """The address of ``manifest.json`` within its session."""
        return manifest_uri(self.pack_id)

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """A manifest from the text of ``manifest.json``, without the fields of its record; errors as for
        `fields_of` and `of`."""
        return cls.of(fields_of(text), _nowhere)

    @classmethod
    def of(cls, fields: Mapping[str, JSON], load: Callable[[Manifest], object]) -> Self:
        """A manifest from the fields of its file; `ManifestError` where they are not those of a manifest.

        Args:
            load: reads the record and calls `fill`, when a field of that is asked for.
        """
        if "record" not in fields:
            raise ManifestError("it names no record of its session's log: it is damaged, or of an earlier form")
        manifest = _valid(cls, {**_UNREAD, **fields})
        for name in IN_RECORD:
            del manifest.__dict__[name]
        manifest._load = load
        return manifest

    def fill(self, record: Record) -> None:
        """Takes in the fields of its record."""
        self.__dict__.update((name, getattr(record, name)) for name in IN_RECORD)
        self._load = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            private = object.__getattribute__(self, "__pydantic_private__") or {}
            if name in IN_RECORD and private.get("_load") is not None:
                private["_load"](self)
                return self.__dict__[name]
            return super().__getattr__(name)

        def model_dump(self, **options: Any) -> dict[str, Any]:
            """All fields, those of the record included."""
            _ = self.rows
            return super().model_dump(**options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self.digest)

    def to_json(self) -> str:
        """The text of ``manifest.json``: optional fields that have their default are left out."""
        return manifest_file(self._fields()).decode()

    def record_line(self) -> str:
        """The line of its record in the log: fields that have their default are left out."""
        _ = self.rows
        return canonical_json(self._dump(include=set(Record.model_fields)))

    def sealed(self, **values: object) -> tuple[Self, bytes]:
        """This manifest with other values, and with its digest and signature; and its file."""
        copy = self.model_copy(update={**values, "digest": "", "signature": ""})
        fields = copy._fields()
        seal = {"digest": (digest := hash_json(fields)), **signed(digest)}
        return copy.model_copy(update=seal), manifest_file(fields | seal)

    def verify(self) -> None:
        """Checks the manifest against its digest, and its signature where a key is set.

        Raises:
            ChecksumMismatch: a field is not what was written, or whoever wrote it did not have the key.
        """
        fields = self._fields()
        digest = hash_json({name: value for name, value in fields.items() if name not in ("digest", "signature")})
        if digest != self.digest:
            raise ChecksumMismatch(f"{self.pack_id}: the manifest's hash is {digest}, its digest says {self.digest}")
        check_signature(digest, self.signature, "the manifest")

    def _fields(self) -> dict[str, JSON]:
        always: dict[str, JSON] = {name: getattr(self, name) for name in ("schema_version", "number", "turn")}
        lists: dict[str, JSON] = {name: [] for name in ("truncation_events", "artifact_uris", "degradations")}
        return always | lists | self._dump(exclude=set(IN_RECORD))

    def _dump(self, **options: Any) -> dict[str, JSON]:
        serializer = self.__pydantic_serializer__
        values: dict[str, JSON] = serializer.to_python(self, mode="json", exclude_defaults=True, **options)
        return values


_UNREAD: Mapping[str, Any] = {"epoch": Epoch(number=0), "contents": ContentList()}
"""Stand-ins for what is read later: pydantic copies the defaults of such fields, in half of the time of all reading."""


def _nowhere(manifest: Manifest) -> None:
    raise ManifestError(f"{manifest.pack_id}: its record is not known: take the manifest from a store")


def _valid(model: type[_Model], fields: Mapping[str, JSON]) -> _Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(key) for key in first["loc"])
        raise ManifestError(f"not a manifest: {path}: {first['msg']}") from error


def schema() -> dict[str, Any]:
    """The JSON Schema of ``manifest.json``."""
    schema = Manifest.model_json_schema(mode="serialization")
    for name in IN_RECORD:
        del schema["properties"][name]
    return schema | {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "aether_context manifest"}
