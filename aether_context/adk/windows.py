"""How much a model can read: by the policy, by its name, by how it was set up, and by what its provider has refused.

    aether:windows    windows that refusals have taught, by model and endpoint, in a session's state

A refusal is learned for the process and for the session. ADK drops the state of a call that fails, so it is written
again with the next call, and by the plugin in an event of its own at the end of the run that failed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.adk.models.registry import LLMRegistry
from google.adk.sessions.state import State

from aether_context.adk.overflow import Overflow
from aether_context.canonical import hash_json, short
from aether_context.pack import Pack, WindowMark
from aether_context.policy import PackPolicy
from aether_context.tokens.counters import SharedLRU
from aether_context.tokens.model_limits import known_window, model_window
from aether_context.usage.prices import working_window

logger = logging.getLogger("aether_context")

STATE_KEY = "aether:windows"
LEAST_TOKENS = 1_024
"""No refusal teaches a smaller window."""
_MOST_KEPT = 16
_ENDPOINT = ("api_base", "base_url", "location", "aws_region_name", "vertex_location")
"""Settings of a model object that say where it is served."""


class Window(NamedTuple):
    """The window in tokens, and where it is from: empty where it is set. ``most`` are those up to which a call may pass
    it whose system instruction, declarations and request need more."""

    tokens: int
    mark: WindowMark = ""
    most: int = 0


class ServedModel(NamedTuple):
    """A model that a call may go to: its name, what stands for it and its endpoint, the names of its class and of those
    that this extends, and its own ``num_ctx``."""

    name: str
    key: str
    kinds: tuple[str, ...]
    context_tokens: int | None = None


class Windows:
    """The windows of models, with those that refusals have taught this process. Safe to share between threads."""

    def __init__(self) -> None:
        self._learned: SharedLRU[str, int] = SharedLRU(1_000)

    def window(self, agent: object, model: str, policy: PackPolicy, state: Mapping[str, Any]) -> Window:
        """The window of an agent's request: the smallest where several models may be asked."""
        windows = [self._window(served, policy, state) for served in served_models(agent, model)]
        smallest = min(windows, key=lambda window: window.tokens)
        most = min(max(window.tokens, window.most) for window in windows)
        return smallest._replace(most=most) if smallest.most else smallest

    def learn(
        self, agent: object, pack: Pack, refused: Overflow, model: str | None, policy: PackPolicy, state: State
    ) -> bool:
        """Takes in the refusal of a pack, and says whether the window is another now.

        A refusal without a number, or whose number is no less than the window, takes a tenth off.

        Args:
            model: the one that refused, by name, where several may have been asked.
        """
        source = pack.source
        candidates = served_models(agent, source.request.model)
        served = next((candidate for candidate in candidates if candidate.name == model), candidates[0])
        # A window has the answer's own limit in it, where it is known to share the window.
        tokens = (refused.limit or 0) + min(refused.answer, source.output_tokens or 0)
        if not 0 < tokens < source.window:
            tokens = min(source.window, pack.tokens.expected) * 9 // 10
        tokens = max(LEAST_TOKENS, tokens)
        window = self._window(served, policy, state)
        before = max(window.tokens, window.most)
        if tokens >= before:
            return False
        self._learned.put(served.key, tokens)
        self.keep([served], state)
        stated = policy.window_of(served.name)
        undercut = f"; the policy's {stated:,} are more than it takes" if stated else ""
        logger.warning(
            "Model %r refused a request as too long: its window is %d tokens from now on, not %d%s.",
            served.name,
            tokens,
            before,
            undercut,
        )
        return True

    def keep(self, models: Sequence[ServedModel], state: State) -> None:
        """Puts what this process has learned of models into a session's state, where it is not there."""
        for served in models:
            learned, kept = self._learned.get(served.key), _kept(state)
            if learned is not None and learned < kept.get(served.key, learned + 1):
                others = [item for item in kept.items() if item[0] != served.key]
                state[STATE_KEY] = {**dict(others[1 - _MOST_KEPT :]), served.key: learned}

    def _window(self, served: ServedModel, policy: PackPolicy, state: Mapping[str, Any] | State) -> Window:
        stated = policy.window_of(served.name) or served.context_tokens
        known = stated or model_window(served.name)
        learned = [found for found in (self._learned.get(served.key), _kept(state).get(served.key)) if found]
        most = min([known, *learned])
        working = most if stated or policy.takes_all(served.name) else min(most, working_window(served.name))
        if working < most:
            return Window(working, "default", most)
        if most < known:
            return Window(most, "learned")
        return Window(most, "" if stated or known_window(served.name) is not None else "assumed")


def served_models(agent: object, model: str) -> list[ServedModel]:
    """The models that an agent's request may go to: the one it names, or all that a ``FallbackModel`` tries."""
    try:
        llm = getattr(agent, "canonical_model", None)
    except (ValueError, ImportError):  # ADK has no class for the name, or its package is not installed
        llm = None
    tried = getattr(llm, "models", None)
    if isinstance(tried, (list, tuple)) and tried:
        return [_served(entry, entry if isinstance(entry, str) else entry.model) for entry in tried]
    return [_served(llm, model)]


def _served(llm: object, name: str) -> ServedModel:
    # What model objects pass on to their clients, LiteLlm's in ``_additional_args``.
    passed_on = (getattr(llm, attribute, None) for attribute in ("client_kwargs", "_additional_args"))
    given = {key: value for settings in passed_on if isinstance(settings, Mapping) for key, value in settings.items()}
    places = [given.get(setting) for setting in _ENDPOINT]
    places += [getattr(holder, "base_url", None) for holder in (llm, getattr(llm, "client", None))]
    places.append(getattr(llm, "_proxy_url", None))
    try:
        kind = LLMRegistry.resolve(llm) if isinstance(llm, str) else type(llm)
        kinds = tuple(base.__name__ for base in kind.__mro__)
    except (ValueError, ImportError):
        kinds = ("",)
    # Addresses may hold secrets, so the key has only a hash of them.
    digits = short(hash_json([name, kinds[0], *(str(place).rstrip("/") for place in places if place)]), 8)
    own = given.get("num_ctx")
    context_tokens = own if type(own) is int and own > 0 else None
    return ServedModel(name, f"{name[:200]}@{digits}", kinds, context_tokens)


def _kept(state: Mapping[str, Any] | State) -> dict[str, int]:
    """The windows in a session's state that are sound."""
    kept = state.get(STATE_KEY)
    if not isinstance(kept, Mapping):
        return {}
    return {str(key): tokens for key, tokens in kept.items() if type(tokens) is int and tokens >= LEAST_TOKENS}
