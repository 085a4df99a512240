"""The window of a model: by the policy, by its name, by how it was set up, and by what its provider has refused; and
what is left of it for reading.

    aether:windows    limits that refusals have taught, each with its time, by model, endpoint and kind, in a session's
                      state; null for a refusal that was not believed

ADK drops the state of a call that fails, so it is written again with the next call, and by the plugin in an event of
its own at the end of the run that failed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.registry import LLMRegistry
from google.adk.sessions.state import State
from pydantic import TypeAdapter

from aether_context.adk.overflow import Overflow
from aether_context.canonical import hash_json, short
from aether_context.pack import Pack, WindowMark, valid
from aether_context.packing.inputs import request_bytes, sent_sizes
from aether_context.policy import PackPolicy
from aether_context.tokens.counters import SharedLRU
from aether_context.tokens.model_limits import LimitKind, RequestLimits, known_window, model_window, request_limits
from aether_context.usage.prices import working_window

logger = logging.getLogger("aether_context")

Limits: TypeAlias = Mapping[LimitKind, int]
"""Limits by their kind, of those that a refusal has taught."""

STATE_KEY = "aether:windows"
LEAST_TOKENS = 1_024
"""No refusal teaches a smaller window."""
DOUBLES_SECONDS = 86_400
"""After so long twice as much as was learned is tried, and so on, until all of it is."""
_OTHER_LIMITS = RequestLimits._fields
_MARGIN = 1.25
"""A count may be lower than the provider's by so much."""
_MOST_KEPT = 16
_ENDPOINT = ("api_base", "base_url", "location", "aws_region_name", "vertex_location")
"""Settings of a model object that say where it is served."""


class Window(NamedTuple):
    """The window in tokens, and where it is from: empty where it is set. ``max_tokens`` are those up to which a call
    may pass it whose system instruction, declarations and request need more."""

    tokens: int
    mark: WindowMark = ""
    max_tokens: int = 0


class ServedModel(NamedTuple):
    """A model that a call may go to: its name, what stands for it and its endpoint, the names of its class and of those
    that this extends, and its own ``num_ctx``."""

    name: str
    key: str
    kinds: tuple[str, ...]
    context_tokens: int | None = None


class Learned(NamedTuple):
    """A limit that a refusal taught, and when, in seconds since 1970 UTC; None where the refusal was not believed."""

    limit: int | None
    time: float

    @property
    def now(self) -> int | None:
        """The limit as it holds now: the longer ago it was learned, the more is tried again."""
        doublings = min(30, max(0, int((time.time() - self.time) // DOUBLES_SECONDS)))
        return None if self.limit is None else max(self.limit, doublings > 0) << doublings


Taught: TypeAlias = dict[str, Learned]
"""The limits that refusals have taught a session in this process, by model and kind."""


class Windows:
    """The limits of models, with those that refusals have taught this process. Safe to share between threads.

    A refusal counts for its session. For the process counts what two users' sessions were refused and what was believed
    without a second refusal, the smaller of two limits for its own session alone: an error may repeat what somebody
    wrote.
    """

    def __init__(self) -> None:
        self._users: SharedLRU[str, Mapping[tuple[str, ...], Learned]] = SharedLRU(1_000)

    def of(
        self, models: Sequence[ServedModel], policy: PackPolicy, state: Mapping[str, Any], taught: Mapping[str, Learned]
    ) -> tuple[Window, RequestLimits]:
        """The window of an agent's request, and its limits beside tokens: the smallest where several models may be
        asked."""
        refusals = _refusals(state, taught)
        windows = [self._window(served_model, policy, refusals) for served_model in models]
        smallest = min(windows, key=lambda window: window.tokens)
        least_grown = min(max(window.tokens, window.max_tokens) for window in windows)
        window = smallest._replace(max_tokens=least_grown) if smallest.max_tokens else smallest
        return window, self._limits(models, refusals)

    def _limits(self, models: Sequence[ServedModel], refusals: Mapping[str, Learned]) -> RequestLimits:
        def smallest(kind: str) -> int | None:
            limits = [getattr(request_limits(option.name), kind) for option in models]
            limits += [limit for option in models for limit in self._learned(f"{option.key} {kind}", refusals)]
            return min((limit for limit in limits if limit is not None), default=None)

        return RequestLimits(*map(smallest, _OTHER_LIMITS))

    def learn(
        self,
        context: CallbackContext,
        taught: Taught,
        pack: Pack,
        policy: PackPolicy,
        refused: Overflow,
        name: str | None,
        again: bool,
    ) -> Limits:
        """Takes in the refusal of a pack, where it is believed; returns the limits for a second try of the call.

        Its number is believed where the provider counted more than that, or the pack holds as much with its margin.
        What is not believed, or stands in the request itself, is learned at the session's second such refusal. A
        refusal without a number, or with one that the pack does not pass, takes a tenth off, or half of the media.

        Args:
            name: that of the model that refused, where several may have been asked.
            again: whether the pack was that of a second try.
        """
        source, state, kind, refusals = pack.source, context.state, refused.kind, _refusals(context.state, taught)
        candidates = served_models(context.get_invocation_context().agent, source.request.model)
        served_model = next((candidate for candidate in candidates if candidate.name == name), candidates[0])
        sizes = dict(zip(_OTHER_LIMITS, sent_sizes(source.request, source.host.unseen), strict=True))
        if not sizes.get(kind, 1):  # pages that no count shows, or what is too large is a text
            kind, refused = "media" if sizes["media"] else "tokens", refused._replace(limit=None)
        if (guessed := _guessed(pack, refused, sizes["bytes"])) or not refused.is_known:
            return guessed
        size = sizes.get(kind, pack.tokens.expected)
        # A window has the answer's own limit in it, where it is known to share the window.
        limit = (refused.limit or 0) + min(refused.answer, source.output_tokens or 0)
        reached = (refused.sent_tokens or 0) > (refused.limit or 0) or size * _MARGIN >= limit
        if kind == "tokens":
            window = self._window(served_model, policy, refusals)
            current_limit = max(window.tokens, window.max_tokens)
            limit = limit if 0 < limit < source.window and reached else min(source.window, size) * 9 // 10
            limit = max(LEAST_TOKENS, limit)
        else:
            current_limit = getattr(self._limits(candidates, refusals), kind) or size + 1
            limit = limit if 0 < limit < min(current_limit, size) and reached else size // 2
        key, second = served_model.key if kind == "tokens" else f"{served_model.key} {kind}", {kind: limit}
        if (refused.is_echo or not reached) and (key not in refusals or again):
            if not again:
                self._put(taught, key, Learned(None, time.time()), state)
            return second
        if limit >= current_limit:
            return second
        learned = Learned(limit, time.time())
        self._put(taught, key, learned, state)
        if reached and not refused.is_echo:  # what several users repeat is none of the others' business
            earlier_users = list((self._users.get(key) or {}).items())[-_MOST_KEPT:]
            self._users.put(key, {**dict(earlier_users), (source.identity.app, source.identity.user): learned})
        stated = policy.window_of(served_model.name) if kind == "tokens" else None
        undercut = f"; the policy's {stated:,} are more than it takes" if stated else ""
        message = "Model %r refused a request as too long: it takes %d %s from now on, not %d%s."
        logger.warning(message, served_model.name, limit, kind, current_limit, undercut)
        return second

    def accept(self, context: CallbackContext, taught: Taught, model: str, limits: Limits) -> None:
        """Learns limits for a session within which a second try of a call passed, where its refusal taught nothing."""
        served_model = served_models(context.get_invocation_context().agent, model)[0]
        for kind, limit in limits.items():
            key = served_model.key if kind == "tokens" else f"{served_model.key} {kind}"
            if key not in taught or (taught[key].limit or 0) > limit:
                self._put(taught, key, Learned(limit, time.time()), context.state)

    def keep(self, models: Sequence[ServedModel], state: State, taught: Taught) -> None:
        """Puts what refusals have taught a session into its state, where it is not there."""
        saved = _saved_refusals(state)
        for key in [f"{served_model.key} {kind}".rstrip() for kind in ("", *_OTHER_LIMITS) for served_model in models]:
            if key in taught and saved.get(key, Learned(None, 0)).time < taught[key].time:
                self._put(taught, key, taught[key], state)

    def _put(self, taught: Taught, key: str, learned: Learned, state: State) -> None:
        taught[key] = learned
        other_items = [item for item in _saved_refusals(state).items() if item[0] != key]
        state[STATE_KEY] = {name: list(value) for name, value in (*other_items[1 - _MOST_KEPT :], (key, learned))}

    def _learned(self, key: str, refusals: Mapping[str, Learned]) -> list[int]:
        """The limits learned of a model for a session, and for all of them."""
        users = sorted(learned.now or 0 for learned in (self._users.get(key) or {}).values())
        limits = (*users[1:2], refusals[key].now if key in refusals else None)
        return [limit for limit in limits if limit is not None]

    def _window(self, model: ServedModel, policy: PackPolicy, refusals: Mapping[str, Learned]) -> Window:
        stated = policy.window_of(model.name) or model.context_tokens
        nominal_window = stated or model_window(model.name)
        limit = min([nominal_window, *self._learned(model.key, refusals)])
        working = limit if stated or policy.takes_all(model.name) else min(limit, working_window(model.name))
        if working < limit:
            return Window(working, "default", limit)
        if limit < nominal_window:
            return Window(limit, "learned")
        return Window(limit, "" if stated or known_window(model.name) is not None else "assumed")


def _guessed(pack: Pack, refused: Overflow, media_bytes: int) -> Limits:
    """The limits for a second try by the number of a refusal that the request passes by least; none where it passes
    none of them. A text's bytes are a limit of tokens."""
    sizes: dict[LimitKind, int] = {"tokens": pack.tokens.expected, "bytes": media_bytes or request_bytes(pack)}
    shares = [(number / sizes[kind], kind) for kind, number in refused.numbers if number < sizes[kind]]
    if not shares:
        return {}
    share, kind = max(shares)
    is_media = kind == "bytes" and media_bytes
    return {"bytes": int(share * media_bytes)} if is_media else {"tokens": int(share * pack.tokens.expected)}


_LEARNED = TypeAdapter(Learned)


def served_models(agent: object, model: str) -> list[ServedModel]:
    """The models that an agent's request may go to: the one it names, or all that a ``FallbackModel`` tries."""
    try:
        llm = getattr(agent, "canonical_model", None)
    except (ValueError, ImportError):  # ADK has no class for the name, or its package is not installed
        llm = None
    tried = getattr(llm, "models", None)
    if isinstance(tried, (list, tuple)) and tried:
        return [_served_model(entry, entry if isinstance(entry, str) else entry.model) for entry in tried]
    return [_served_model(llm, model)]


def _served_model(llm: object, name: str) -> ServedModel:
    # What model objects pass on to their clients, LiteLlm's in ``_additional_args``.
    passed_on = (getattr(llm, attribute, None) for attribute in ("client_kwargs", "_additional_args"))
    client = {key: value for settings in passed_on if isinstance(settings, Mapping) for key, value in settings.items()}
    places = [client.get(setting) for setting in _ENDPOINT]
    places += [getattr(holder, "base_url", None) for holder in (llm, getattr(llm, "client", None))]
    places.append(getattr(llm, "_proxy_url", None))
    try:
        kind = LLMRegistry.resolve(llm) if isinstance(llm, str) else type(llm)
        kinds = tuple(base.__name__ for base in kind.__mro__)
    except (ValueError, ImportError):
        kinds = ("",)
    # Addresses may hold secrets, so the key has only a hash of them.
    digits = short(hash_json([name, kinds[0], *(str(address).rstrip("/") for address in places if address)]), 8)
    num_ctx = client.get("num_ctx")
    context_tokens = num_ctx if type(num_ctx) is int and num_ctx > 0 else None
    return ServedModel(name, f"{name[:200]}@{digits}", kinds, context_tokens)


def _refusals(state: Mapping[str, Any] | State, taught: Mapping[str, Learned]) -> Mapping[str, Learned]:
    """What refusals have taught a session, by its state or this process: limits before none, the later one of two."""
    items = [*_saved_refusals(state).items(), *taught.items()]
    return dict(sorted(items, key=lambda item: (item[1].limit is not None, item[1].time)))


def _saved_refusals(state: Mapping[str, Any] | State) -> dict[str, Learned]:
    """Reads the refusals in a session's state, where they are sound."""
    saved = state.get(STATE_KEY)
    items = saved.items() if isinstance(saved, Mapping) else ()
    refusals = ((str(key), valid(_LEARNED, value)) for key, value in items)
    return {
        key: learned
        for key, learned in refusals
        if learned and (learned.limit is None or learned.limit >= (0 if " " in key else LEAST_TOKENS))
    }
