"""Settings: frozen, one model per stage, read from a profile's name, a TOML file or keyword arguments.

Every field's docstring gives its unit and the value that turns it off. ``PackPolicy(...)`` starts from ``chat``,
``PackPolicy.load("research")`` from another one, ``PackPolicy.load("my.toml")`` from a file that may name a profile.
"""

from __future__ import annotations

import json
import math
import os
import typing
from collections.abc import Mapping
from decimal import Decimal
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from aether_context.canonical import HASH_TAG, canonical_json, hash_text
from aether_context.errors import PolicyError, near_names
from aether_context.pack import FLEXIBLE_LAYERS, AnchorKind, describe
from aether_context.redaction import GROUPS, RULES, Masker, masker

Measure: TypeAlias = Literal["input", "output", "total", "cost"]
"""What a limit is on: tokens of the input, of the output, of both, or US dollars."""

Amount: TypeAlias = int | Decimal
"""Tokens, or US dollars as a decimal."""


class _Settings(BaseModel):
    # Defaults below are constructed unchecked: to check one builds its validator, which that of a policy contains.
    model_config = ConfigDict(
        frozen=True, extra="forbid", json_schema_extra=describe, allow_inf_nan=False, defer_build=True
    )
    _most: ClassVar[int] = 100_000_000
    """The largest number that a field takes."""

    @field_validator("*", mode="before")
    @classmethod
    def _numbers(cls, value: object, info: Any) -> object:
        if cls.model_fields[info.field_name].annotation in (int, float, int | None, float | None):
            if isinstance(value, (bool, str, bytes)):
                raise ValueError("give a number, without quotes")
            if isinstance(value, (int, float)) and value > cls._most:
                raise ValueError(f"give at most {cls._most:,}")
        return value


class Range(_Settings):
    """A closed range of shares, each 0 to 1."""

    low: float = Field(ge=0, le=1)
    """The smallest share."""
    high: float = Field(ge=0, le=1)
    """The largest share."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        return self

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


class FloorSettings(_Settings):
    """Shares of the window that are reserved for layers, 0 to 1 each."""

    system: float = Field(default=0.06, ge=0, le=1)
    """For the system instruction."""
    task: float = Field(default=0.08, ge=0, le=1)
    """For the task, the step, its checklist and the user's request."""
    tools: float = Field(default=0.05, ge=0, le=1)
    """For the function declarations."""
    slack: float = Field(default=0.10, ge=0, lt=1)
    """Reserved for the answer, never used for input."""

    @model_validator(mode="after")
    def _leave_room(self) -> Self:
        total = self.system + self.task + self.tools + self.slack
        if total >= 1:
            raise ValueError(
                f"the floors sum to {total:.2f}: below 1 leaves room for evidence, memory and conversation"
            )
        return self


class ShareSettings(_Settings):
    """The split of the remainder, the tokens left after floors and slack: a range of shares for each layer."""

    evidence: Range = Range.model_construct(low=0.15, high=0.40)
    """Share of the remainder for evidence."""
    memory: Range = Range.model_construct(low=0.15, high=0.35)
    """Share of the remainder for memory."""
    conversation: Range = Range.model_construct(low=0.325, high=0.625)
    """Share of the remainder for earlier turns and tool exchanges."""

    @model_validator(mode="after")
    def _feasible(self) -> Self:
        low = sum(getattr(self, layer).low for layer in FLEXIBLE_LAYERS)
        high = sum(getattr(self, layer).high for layer in FLEXIBLE_LAYERS)
        if low > 1 or high < 1:
            raise ValueError(
                f"no shares sum to 1: the lows sum to {low:.2f}, the highs to {high:.2f}; change the other layers, too"
            )
        return self


class BudgetSettings(_Settings):
    """The allocator."""

    floors: FloorSettings = FloorSettings.model_construct()
    shares: ShareSettings = ShareSettings.model_construct()


class StablePrefixSettings(_Settings):
    """The strategy ``stable_prefix``."""

    threshold: float = Field(default=0.8, gt=0, le=1)
    """Share of the window, less system instruction and output reserve, above which more is replaced."""
    keep_last_messages: int = Field(default=10, ge=0)
    """Number of the model's latest messages that stay while the threshold allows it, with the responses to them."""


class SlidingTurnsSettings(_Settings):
    """The strategy ``sliding_turns``."""

    tokens: int = Field(default=100_000, ge=0)
    """Most tokens of the whole request. 0 turns the strategy off; ``AETHER_CONTEXT_SLIDING_TOKENS`` overrides it."""


class HeadsTailsSettings(_Settings):
    """The strategy ``heads_tails``."""

    head: int = Field(default=3, ge=0)
    """First messages that stay."""
    tail: int = Field(default=5, ge=0)
    """Last messages that stay."""


ANCHOR_PRIORITIES: Mapping[AnchorKind, int] = {
    "system_message": 100,
    "latest_tool_result": 80,
    "instruction_anchor": 60,
    "custom": 40,
}
"""The priorities of messages that are kept longer than others; see `ConversationSettings.anchors`."""
KEPT_PRIORITY: Final = 1_000
"""That of results under ``keep``, of what `pin` names, and of what an app keeps at a cut."""


def _as_names(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class ConversationSettings(_Settings):
    """Settings of the conversation: which part of it is sent."""

    strategy: Annotated[tuple[str, ...], BeforeValidator(_as_names)] = ("epochs",)
    """``epochs``, ``stable_prefix``, ``sliding_turns``, ``heads_tails``, ``summarize``, ``none`` or a registered name;
    a list applies several in its order."""
    compact_at: float | None = Field(default=1.0, gt=0, le=1)
    """Share of the input budget above which a cut is made, whatever it costs; with 1, only where the budget is
    exceeded. None cuts as soon as the cut saves more than it costs to send the rest once without the cache."""
    compact_to: float = Field(default=0.42, gt=0, le=1)
    """Share of the input budget that one cut goes down to."""
    last_turns: int = Field(default=3, ge=1)
    """Latest turns, two at least, that other layers leave room for, and whose messages a cut takes last."""
    summary_share: float = Field(default=0.2, ge=0, le=0.5)
    """Most tokens of summary and entity table, as a share of the input budget. 0 turns both off."""
    stable_prefix: StablePrefixSettings = StablePrefixSettings.model_construct()
    sliding_turns: SlidingTurnsSettings = SlidingTurnsSettings.model_construct()
    heads_tails: HeadsTailsSettings = HeadsTailsSettings.model_construct()
    anchors: Mapping[AnchorKind, Annotated[int, Field(ge=0, le=100_000_000, strict=True)]] = {}
    """Priorities of messages that are kept: ``system_message`` (100), ``latest_tool_result`` (80),
    ``instruction_anchor`` (60), ``custom`` (40). Higher ones are removed later; 0 turns a kind off."""
    custom: Mapping[str, Mapping[str, Any]] = {}
    """Settings of registered strategies, by their names."""

    def anchor_priority(self, kind: AnchorKind) -> int:
        return self.anchors.get(kind, ANCHOR_PRIORITIES[kind])

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.compact_at is not None and self.compact_to > self.compact_at:
            raise ValueError(f"compact_to {self.compact_to} is above compact_at {self.compact_at}: lower it, too")
        if not self.strategy or len(set(self.strategy)) < len(self.strategy):
            raise ValueError(f"strategy {list(self.strategy)} needs one name or more, each once")
        if "summarize" in self.strategy and not self.summary_share:
            raise ValueError("summary_share 0 leaves the strategy 'summarize' no place: give it a share")
        return self


class RetrievalSettings(_Settings):
    """Settings of retrieval: what may enter the evidence and memory layers."""

    memory_k: int = Field(default=16, ge=0)
    """Most memories of a search, and most of the app's own. Of turns that a cut removed, twice as many return. Where
    the user asks for many things, it is four times as many. 0 leaves out all."""
    evidence_k: int = Field(default=12, ge=0)
    """Most stored results that a pack lists, beside all evidence that somebody recorded. 0 lists none."""
    recall: bool = True
    """Whether turns that a cut removed return as memories where they answer the request."""
    remember: bool = False
    """Whether what users and agents say in an invocation is added to the app's memory service at its end, but for small
    talk; tables of agents do not change it."""
    embedder: str = "static"
    """``static``, which is part of this package; ``sentence-transformers:MODEL``; a registered name; or ``none`` to
    compare words alone."""
    floor: float = Field(default=0.5, ge=0, le=1)
    """A memory that a search found is left out below this share of a good match, which is a similarity of 0.4; below a
    third of that where the user asks for many things. Up to ``memory_k`` memories that take less than 2% of the window
    all enter."""
    diversity: float = Field(default=0.15, ge=0, le=1)
    """Weight of diversity against relevance, 1 - λ of MMR (maximal marginal relevance): 0 is relevance alone, and
    higher values leave out more of what says nearly the same."""


class CompressSettings(_Settings):
    """Settings of compression: how texts are shortened."""

    enabled: bool = True
    """Whether texts may be shortened, but for ``offload``, summaries and the last resort; else all stay or go whole."""
    summarizer: str = ""
    """Name of a model in ADK's registry that writes summaries; where this is empty or fails, the texts' own
    sentences."""


class AcceptanceSettings(_Settings):
    """Settings of acceptance: how final answers are checked."""

    critic: str = ""
    """Name of a model in ADK's registry that also judges the items of the checklist. Empty for none."""


class PayloadSettings(_Settings):
    """The structured text in the final user message."""

    contract: Literal["system", "payload", "off"] = "system"
    """Where the text that explains the pack to the model stands."""
    recitation: bool = False
    """Whether the model is asked to restate step and acceptance list first."""


class ToolSettings(_Settings):
    """Settings of tools: which declarations the model sees."""

    scope: Literal["auto", "off", "prune", "mask"] = "auto"
    """``prune`` declares only the step's tools, ``mask`` restricts calls to them, ``auto`` prunes where a step names
    its tools. Else it declares all while they take less than a fifth of the input budget, and of more than ten that
    take more those of ``always`` and then the app's first ones; ``find_tools`` finds the others."""
    always: tuple[str, ...] = ()
    """Names of tools that are always declared."""


_OFFLOAD_WINDOW, _LEAST_OFFLOAD_WINDOW = 16_000, 8_000


class OffloadSettings(_Settings):
    """Settings of offload: which tool results are kept in the store, with an extract in their place in the prompt."""

    mode: Literal["auto", "off"] = "auto"
    """``auto`` sends an extract of a result that is long for the agent's window; ``off`` sends results as they are, and
    so does ``auto`` where ``record`` keeps no texts."""
    extract_tokens: int = Field(default=800, ge=40)
    """Most tokens of an extract in a window of 16,000 tokens; other windows have it in proportion. Results of up to
    1.25 times as many stay as they are, tables, lists and JSON up to five times, JSON with many objects up to three
    times."""
    tools: Mapping[str, str] = {}
    """``whole``, ``keep``, ``threshold``, ``always``, ``instructs``, ``acts``, or the name of a registered extractor,
    by tool. Under ``whole`` a result is not shortened when it comes; under ``keep`` cuts leave it, too, the latest that
    a quarter of the window holds. What a tool gives that ``instructs`` stays through cuts in the payload, like the body
    of an active skill. A tool that ``acts`` is treated as under ``threshold``; the summary keeps its calls with their
    short results, as it does for tools whose names or results tell of a change."""

    def tools_under(self, *rules: str) -> frozenset[str]:
        """The tools that have one of these rules."""
        return frozenset(name for name, rule in self.tools.items() if rule in rules)

    def for_window(self, window: int) -> OffloadSettings:
        """These settings with the limit for a window in tokens. Windows below 8,000 have the limit of
        8,000, since the address of a result and the tool that reads it take tokens as well."""
        factor = max(window, _LEAST_OFFLOAD_WINDOW) / _OFFLOAD_WINDOW
        return self.model_copy(update={"extract_tokens": math.ceil(self.extract_tokens * factor)})

    @property
    def threshold_tokens(self) -> int:
        """Tokens up to which a result stays as it is."""
        return math.ceil(1.25 * self.extract_tokens)

    @property
    def data_tokens(self) -> int:
        """The same for tables, lists and JSON; for JSON with many objects three fifths of it."""
        return 5 * self.extract_tokens


class UsageSettings(_Settings):
    """Settings of usage: how the tokens that providers report are used."""

    gate: float = Field(default=0.6, ge=0, le=1)
    """Share of the window: while the usage reported in this invocation is below it, no cut is made below the budget. It
    matters with ``conversation.compact_at = None``, ``stable_prefix`` or ``summarize``. Where nothing
    was reported, such a cut waits until the request has 3.6 bytes for each token of the window. 0 turns both off."""


class TokenSettings(_Settings):
    """Settings of tokens: how they are counted."""

    counter: str = "auto"
    """``auto`` counts by the model's file in ``tokens.files``, else by the built-in estimate; or ``estimate``,
    ``file``, ``tiktoken``, ``gemini-local``, a registered name."""
    files: Mapping[str, str] = {}
    """Hugging Face's ``tokenizer.json`` files by model or family of models (``gemini``, ``openai``, ``claude``, …)."""


class Limit(_Settings):
    """Limits of what may be used; None is no limit."""

    _most: ClassVar[int] = 10**12

    input_tokens: int | None = Field(default=None, ge=1)
    """Input tokens, those from a cache included."""
    output_tokens: int | None = Field(default=None, ge=1)
    """Output tokens, thoughts included."""
    total_tokens: int | None = Field(default=None, ge=1)
    """Input and output tokens together."""
    cost_usd: float | None = Field(default=None, gt=0)
    """US dollars, by the list prices of `genai-prices`. Calls of models without a price there do not count."""

    @cached_property
    def by_measure(self) -> Mapping[Measure, Amount]:
        """The limits that are set, by measure."""
        bounds: dict[Measure, Amount | None] = {
            "input": self.input_tokens,
            "output": self.output_tokens,
            "total": self.total_tokens,
            "cost": None if self.cost_usd is None else Decimal(str(self.cost_usd)),
        }
        return {measure: bound for measure, bound in bounds.items() if bound is not None}


class LimitSettings(_Settings):
    """Limits of what model calls may use in total, and what happens where one is near or reached."""

    session: Limit = Limit.model_construct()
    """For a session, from its first call on."""
    invocation: Limit = Limit.model_construct()
    """For an invocation, from one user message to the end of the run that it started."""
    agents: Mapping[str, Limit] = {}
    """For agents in a session, by agent name; ``*`` is each agent that is not named."""
    on_budget: Literal["degrade", "warn", "stop", "raise"] = "degrade"
    """``degrade`` makes packs smaller from 80% of a limit on; ``warn`` logs; ``stop`` answers in the model's place;
    ``raise`` ends the run."""

    def of_agent(self, name: str) -> Limit:
        return self.agents.get(name) or self.agents.get("*") or Limit()

    @cached_property
    def measures(self) -> frozenset[Measure]:
        """The measures that have a limit in any scope."""
        limits = (self.session, self.invocation, *self.agents.values())
        return frozenset(measure for limit in limits for measure in limit.by_measure)


_OF_APP = frozenset({"agents", "limits", "offload", "record", "redact", "redact_prompt", "tokens"})
_ALL = 100_000_000
"""Stands for ``model``: more tokens than any model takes."""
_Window: TypeAlias = Annotated[
    int, Field(ge=256, le=_ALL, strict=True), BeforeValidator(lambda value: _ALL if value == "model" else value)
]
_OF_ALL, _BY_MODEL = "of all models", "by model"
_Windows: TypeAlias = Annotated[
    Annotated[_Window, Tag(_OF_ALL)] | Annotated[Mapping[str, _Window], Tag(_BY_MODEL)],
    Discriminator(lambda value: _BY_MODEL if isinstance(value, Mapping) else _OF_ALL),
]
"""Tagged, so that an error is that of the form that was given."""


class PackPolicy(_Settings):
    """All settings. Immutable; `digest` identifies a policy in manifests."""

    profile: Literal["chat", "coding", "research", "requirements", "test_cases"] = "chat"
    """The kind of task; it sets the defaults of ``budget.shares``."""
    preset: Literal["balanced", "quality_first", "cost_first"] = "balanced"
    """What to prefer where tokens and detail conflict: neither, detail (``quality_first``), or few tokens
    (``cost_first``). Combines with any profile."""
    max_input_tokens: _Windows | None = None
    """The window in tokens, for any model, or by model name; ``model`` is all that the model takes. For None, and a
    model that is not named, it is the smallest of 128,000, the model's limit and the end of its first price tier.
    A call whose system instruction, declarations and request need more may then take up to the model's limit."""
    agents: Mapping[str, Literal["chat", "coding", "research", "requirements", "test_cases"] | Mapping[str, Any]] = {}
    """Policies of single agents, by agent name: a profile, or a table with fields of a policy, but for those of the
    whole app: ``agents``, ``limits``, ``offload``, ``record``, ``redact``, ``redact_prompt`` and ``tokens``."""
    enabled: bool = True
    """Whether requests are packed. With false in an agent's table these stay as they came and leave no record; what the
    agent uses counts for limits, and others see its turns as any other's."""
    sees: Literal["all", "own"] = "all"
    """``own`` leaves other agents' turns out, but for the last that each of them said before this agent went on."""
    planners: tuple[str, ...] = ()
    """Names of the agents that write the plan. None of them is told to carry out the step of the plan that is there.
    An agent whose ``output_key`` is ``plan`` is one without being named."""
    budget: BudgetSettings = BudgetSettings.model_construct()
    conversation: ConversationSettings = ConversationSettings.model_construct()
    retrieval: RetrievalSettings = RetrievalSettings.model_construct()
    compress: CompressSettings = CompressSettings.model_construct()
    payload: PayloadSettings = PayloadSettings.model_construct()
    acceptance: AcceptanceSettings = AcceptanceSettings.model_construct()
    tools: ToolSettings = ToolSettings.model_construct()
    offload: OffloadSettings = OffloadSettings.model_construct()
    usage: UsageSettings = UsageSettings.model_construct()
    tokens: TokenSettings = TokenSettings.model_construct()
    limits: LimitSettings = LimitSettings.model_construct()
    cache: Literal["auto", "off"] = "auto"
    """``auto`` marks requests of Claude, which caches no prefix that is not marked, unless the app has a
    ``context_cache_config`` of its own; ``off`` leaves them as they are."""
    on_invalid: Literal["warn", "raise", "respond"] = "warn"
    """What happens when a plan has no step or no acceptance list, or a step does not fit: send the request with a
    warning, raise, or answer in the model's place."""
    record: Literal["full", "hashes", "off"] = "full"
    """``full`` records the texts, so that packs can be replayed; ``hashes`` records none; ``off`` writes nothing."""
    redact: tuple[str, ...] = ()
    """What is masked in all that is recorded and searched: rules (``key``, ``authorization``, ``password``, ``email``,
    ``iban``, ``card``, ``ip``, ``phone``), their groups ``secrets`` and ``personal``, or regular expressions. By
    default everything is recorded as it is."""
    redact_prompt: bool = False
    """Whether the same is masked in what the model is sent, too."""

    @model_validator(mode="after")
    def _masks(self) -> Self:
        self.mask  # noqa: B018 - what is wrong with a pattern is said where it is given
        if self.redact_prompt and not self.redact:
            raise ValueError("redact_prompt = true needs redact: name what is masked, as in redact = ['secrets']")
        return self

    @model_validator(mode="after")
    def _agents(self) -> Self:
        for name, own in self.agents.items():
            if isinstance(own, str):
                continue
            if of_app := sorted(_OF_APP & own.keys()):
                raise ValueError(f"agents.{name}.{of_app[0]} is a setting of the whole app: give it outside agents")
            try:
                self.for_agent(name)
            except PolicyError as error:
                raise ValueError(f"agents.{name}: {error}") from error
        return self

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**_with_profile(settings))
            self.canonical  # noqa: B018 - settings of registered strategies may be of any form
        except ValidationError as error:
            raise _policy_error(error, type(self), None) from error
        except (ValueError, RecursionError) as error:
            raise PolicyError(f"conversation.custom is no JSON: {error}", field="conversation.custom") from error

    @classmethod
    def load(cls, source: str | Path | None = None, **overrides: Any) -> PackPolicy:
        """A policy from a profile's name or a TOML file, with overrides on top.

        Args:
            source: a profile's name (``chat``, ``coding``, ``research``, ``requirements``, ``test_cases``), a preset's
                (``balanced``, ``quality_first``, ``cost_first``), the path of a TOML file, or None for ``chat``.
            overrides: fields of `PackPolicy`; a mapping for a section is merged into it.

        Raises:
            PolicyError: an unknown profile or field, or a value out of range; it names the field, the file, and the
                nearest valid name.
        """
        if not isinstance(source, str | Path | None):
            expected_form = "a profile's name, a file's path, or PackPolicy.load(\"chat\", max_input_tokens=…)"
            raise PolicyError(f"policy = {source!r}: give {expected_form}", field="policy")
        settings, origin = _read(source)
        try:
            return cls(**merged(settings, overrides))
        except PolicyError as error:
            fault = error.__cause__
            raise _policy_error(fault, cls, origin) if isinstance(fault, ValidationError) else error from fault

    @classmethod
    def from_recorded(cls, settings: Mapping[str, Any]) -> PackPolicy:
        """The policy whose settings a manifest holds."""
        return cls(**merged(_recorded_defaults(), settings))

    def changed(self, /, **overrides: Any) -> PackPolicy:
        """This policy with overrides on top; a mapping for a section is merged into it, and another profile or preset
        takes the place of what the one before gave, and of values equal to that.

        Raises:
            PolicyError: an unknown field, or a value out of range.
        """
        named = {"profile": self.profile, "preset": self.preset}
        settings = differing(self.model_dump(exclude_unset=True), _with_profile(named))
        return PackPolicy(**merged(merged(named, settings), overrides))

    def over(self, recorded: PackPolicy) -> PackPolicy:
        """A recorded policy with what this one names on top: the fields that were given, and those of its preset."""
        return recorded.changed(**self.model_dump(exclude_unset=True))

    def for_profile(self, profile: str) -> PackPolicy:
        """This policy with another profile's ranges in the place of its own; all other settings stay."""
        if profile == self.profile:
            return self
        return PackPolicy(**self.model_dump(exclude_unset=True, exclude={"budget": {"shares"}}) | {"profile": profile})

    def for_agent(self, name: str, profile: str = "") -> PackPolicy:
        """This policy as an agent has it.

        Args:
            profile: that of the plan, which takes the place of the agent's.
        """
        own = self.agents.get(name, {})
        fields: Mapping[str, Any] = {"profile": own} if isinstance(own, str) else own
        profile = profile or fields.get("profile", self.profile)
        rest = {field: value for field, value in fields.items() if field != "profile"}
        if not fields:
            return self.for_profile(profile)
        # Without the tables, each of which is checked by this where a policy is made.
        base = PackPolicy(**self.model_dump(exclude_unset=True, exclude={"agents"})).for_profile(profile)
        return base.changed(**rest) if rest else base

    @property
    def agents_off(self) -> tuple[str, ...]:
        """The agents that ``enabled = false`` leaves alone; ``*`` for all without a table."""
        names = [name for name in self.agents if not self.for_agent(name).enabled]
        return (*["*"] * (not self.enabled), *sorted(names))

    def economical(self, level: int) -> PackPolicy:
        """This policy for where a limit is near or reached: the settings of `cost_first` where these are tighter.

        Args:
            level: 0 changes nothing; each level after the first halves ``compact_at`` and ``compact_to``.
        """
        if level == 0:
            return self
        tighter: dict[str, dict[str, float]] = {}
        for section, values in PRESETS["cost_first"].items():
            for name, frugal in values.items():
                present = getattr(getattr(self, section), name)
                present = frugal if present is None else present
                # A higher floor leaves out more.
                value = max(present, frugal) if name == "floor" else min(present, frugal)
                halved = value * 0.5 ** (level - 1) if name.startswith("compact_") else value
                tighter.setdefault(section, {})[name] = halved
        return PackPolicy(**merged(self.model_dump(), tighter))

    def window_of(self, model: str) -> int | None:
        """The window that ``max_input_tokens`` gives a model; None where it gives none, or the model's own."""
        tokens = self._stated_window(model)
        return None if tokens == _ALL else tokens

    def takes_all(self, model: str) -> bool:
        """Tells whether ``max_input_tokens`` gives a model all that it takes."""
        return self._stated_window(model) == _ALL

    def _stated_window(self, model: str) -> int | None:
        stated = self.max_input_tokens
        return stated.get(model) if isinstance(stated, Mapping) else stated

    @property
    def mask(self) -> Masker:
        """Masks what ``redact`` names; false where that is nothing."""
        return masker(self.redact)

    @cached_property
    def canonical(self) -> str:
        """The settings that `from_recorded` needs, as canonical JSON: those that differ from what a recording without
        them stands for. Regular expressions of ``redact``, in which a secret can stand, are hashes."""
        rules = (*RULES, *GROUPS)
        named = [name if name in rules or name.startswith(HASH_TAG) else hash_text(name) for name in self.redact]
        return canonical_json(differing(self.model_dump(mode="json") | {"redact": named}, _recorded_defaults()))

    @cached_property
    def digest(self) -> str:
        """The tagged hash over the settings that are recorded."""
        return hash_text(self.canonical)


def _shares(**ranges: tuple[float, float]) -> Mapping[str, Any]:
    return {"budget": {"shares": {layer: {"low": low, "high": high} for layer, (low, high) in ranges.items()}}}


PROFILES: Mapping[str, Mapping[str, Any]] = {
    "chat": {},
    "coding": _shares(evidence=(0.10, 0.40), memory=(0.05, 0.25), conversation=(0.40, 0.80)),
    "research": _shares(evidence=(0.45, 0.75), memory=(0.125, 0.325), conversation=(0.05, 0.20)),
    "requirements": _shares(evidence=(0.35, 0.65), memory=(0.175, 0.375), conversation=(0.075, 0.275)),
    "test_cases": _shares(evidence=(0.45, 0.75), memory=(0.15, 0.35), conversation=(0.075, 0.225)),
}
"""The settings in which each profile differs from the defaults."""


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "balanced": {},
    "quality_first": {
        "conversation": {"compact_to": 0.6},
        "retrieval": {"memory_k": 30, "evidence_k": 20, "floor": 0.3},
    },
    "cost_first": {
        "conversation": {"compact_at": 0.6, "compact_to": 0.25, "summary_share": 0.12},
        "retrieval": {"memory_k": 12, "evidence_k": 6, "floor": 0.6},
    },
}
"""The settings in which each preset differs from the defaults."""


def _with_profile(settings: Mapping[str, Any]) -> dict[str, Any]:
    name, preset = settings.get("profile", "chat"), settings.get("preset", "balanced")
    base = PROFILES.get(name, {}) if isinstance(name, str) else {}
    preferred = PRESETS.get(preset, {}) if isinstance(preset, str) else {}
    return merged(merged(base, preferred), settings)


@cache
def _recorded_defaults() -> dict[str, Any]:
    """The settings for which a recorded policy without them stands: they never change, so that a default which does is
    recorded from then on. A setting that is new has its present default, until that changes."""
    text = Path(__file__).with_name("recorded_defaults.json").read_text(encoding="utf-8")
    return merged(PackPolicy.model_construct().model_dump(mode="json"), json.loads(text))


def differing(settings: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that ``base`` does not give as they are; a range stays whole."""
    return {
        key: differing(value, base[key]) if isinstance(base.get(key), dict) and "low" not in base[key] else value
        for key, value in settings.items()
        if key not in base or value != base[key]
    }


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """``overrides`` on top of ``base``, mappings merged key by key."""
    result = dict(base)
    for key, value in overrides.items():
        value = value.model_dump() if isinstance(value, BaseModel) else value
        previous = result.get(key)
        result[key] = merged(previous, value) if isinstance(previous, Mapping) and isinstance(value, Mapping) else value
    return result


def _read(source: str | Path | None) -> tuple[dict[str, Any], str | None]:
    if source is None:
        return {}, None
    if source in PROFILES or source in PRESETS:
        return {"profile" if source in PROFILES else "preset": source}, None
    import tomllib

    path = Path(os.path.expanduser(source))
    if path.suffix != ".toml" and not os.path.isfile(path):
        hint = near_names(str(source), [*PROFILES, *PRESETS])
        raise PolicyError(f"{str(source)!r} is neither a profile nor a preset nor a TOML file: {hint}", field="profile")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig")), str(path)
    except FileNotFoundError as error:
        raise PolicyError(f"policy file {path} does not exist: give the path of a TOML file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(f"policy file {path} cannot be read: {error}") from error


_EXPECTED = {
    **dict.fromkeys(("int_type", "int_from_float"), "a whole number, without quotes"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "a table"),
    **dict.fromkeys(("tuple_type",), "a list"),
    **dict.fromkeys(("string_type",), "a text, in quotes"),
}
"""Values by the kinds of pydantic's errors, in the words of TOML."""
_ALTERNATIVES = {_OF_ALL: ", or 'model'", _BY_MODEL: ", or 'model'", "literal[": ", or a table", "[key]": ""}
"""The other values that may stand there, by the steps that pydantic adds to a field's path."""


def _policy_error(error: ValidationError, model: type[BaseModel], origin: str | None) -> PolicyError:
    """The error for the first fault: field, value, file and cure."""
    first = error.errors()[0]
    keys = [str(key).partition("'")[0] for key in first["loc"]]
    location = [key for key in keys if key not in _ALTERNATIVES]
    name = ".".join(location) or "policy"
    where = f" in {origin}" if origin else ""
    if first["type"] == "extra_forbidden":
        hint = near_names(location[-1], _field_names(model, location[:-1]))
        return PolicyError(f"unknown field {name!r}{where}: {hint}", field=name)
    message = first["msg"].removeprefix("Value error, ").replace("Input should be ", "give ")
    if message.startswith("give "):
        message = message.replace("give greater", "give a number greater").replace("give less", "give a number less")
        message = f"give {_EXPECTED[first['type']]}" if first["type"] in _EXPECTED else message
        message += "".join(_ALTERNATIVES.get(key, "") for key in keys)
    try:
        value = "" if isinstance(first["input"], (dict, Mapping)) else f" = {first['input']!r:.200}"
    except (ValueError, RecursionError):
        value = " (too long to be shown)"
    return PolicyError(f"{name}{value}{where}: {message}", field=name)


def _field_names(model: type[BaseModel], path: list[str]) -> list[str]:
    for step in path:
        if (field := model.model_fields.get(step)) is None:
            break
        kinds = (field.annotation, *typing.get_args(field.annotation))
        model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), _Settings)
    return sorted(model.model_fields)
