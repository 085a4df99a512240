"""The parts of a packer, made from its arguments."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path

from google.adk.models.base_llm import BaseLlm
from google.adk.tools.tool_context import ToolContext

from aether_context.adk.acceptance import AcceptanceCheck, Reviewer
from aether_context.adk.artifact_tools import Readers
from aether_context.adk.bounds import Waits
from aether_context.adk.call import NamedInPolicy, agent_key_of
from aether_context.adk.evidence import ALL_OWN_TOOLS, Offloader
from aether_context.adk.failures import Failures, OnError
from aether_context.adk.models.gemini import local_tokenizer
from aether_context.adk.models.texts import ModelSummarizer
from aether_context.adk.on_cut import OnCut
from aether_context.adk.request.gather import Gatherer
from aether_context.adk.request.recall import Recall
from aether_context.adk.request.sessions import Sessions
from aether_context.adk.services.memory import MemoryWriter
from aether_context.adk.services.recorder import Mirror, Recorder
from aether_context.adk.usage import Calibrations, Ledgers
from aether_context.adk.windows import Windows
from aether_context.conversation import strategies_of
from aether_context.errors import PolicyError
from aether_context.pack import Part
from aether_context.packing.demand import room_to_read
from aether_context.policy import PackPolicy
from aether_context.redaction import MaskedLogs
from aether_context.store import PackStore
from aether_context.tokens import Counters, counter_for
from aether_context.tokens.cache import TokenCache
from aether_context.tokens.model_limits import model_window

logger = logging.getLogger("aether_context")

_MOST_FORK_SECONDS = 5.0
_SLIDING_TOKENS = "AETHER_CONTEXT_SLIDING_TOKENS"


class PackerParts:
    """The parts of one packer, each of which serves all of its sessions.

    Args:
        recorder: writes to the store; None makes one.
        asks_models: whether a model writes summaries; where none does, the extractive ones stand.
        arm: the name in manifests of the arm that the packer is one of.

    The others are those of `ContextPackPlugin`.

    Raises:
        PolicyError: the policy does not exist or is wrong.
        MissingExtra: the store's protocol needs a package that is not installed.
    """

    def __init__(
        self,
        policy: PackPolicy | str | Path | None = None,
        store: PackStore | str | None = None,
        on_error: OnError = "passthrough",
        summarizer: BaseLlm | str | None = None,
        checks: Sequence[AcceptanceCheck] = (),
        critic: BaseLlm | str | None = None,
        mirror_artifacts: bool = False,
        on_cut: OnCut | None = None,
        recorder: Recorder | None = None,
        asks_models: bool = True,
        arm: str = "",
    ) -> None:
        self.arm = arm
        self.policy = policy = own_policy(policy, summarizer, critic)
        self.store = store = PackStore.of(store)
        self.failures = failures = Failures(on_error, store.url)
        policies = [policy.for_agent(agent) for agent in ("", *policy.agents)]
        for of_agent in policies:
            strategies_of(of_agent.conversation)
        self.names = NamedInPolicy(policies, ALL_OWN_TOOLS)
        self.mirror = Mirror(failures.warn_once)
        self.memory_writer = MemoryWriter(policy.mask, failures.warn_once) if policy.retrieval.remember else None
        self.recorder = recorder or Recorder(store, self.mirror.put if mirror_artifacts else None)
        self.recorder.off = policy.agents_off
        store = self.recorder.store  # which reads what waits to be written, too
        if policy.redact and not any(getattr(log_filter, "mask", None) is policy.mask for log_filter in logger.filters):
            logger.addFilter(MaskedLogs(policy.mask))
        self.asks_models, self.on_cut = asks_models, on_cut
        self.summarizer = ModelSummarizer(self.recorder, _object_of(summarizer))
        self.reviewer = Reviewer(checks, _object_of(critic))
        self.sessions, self.waits = Sessions(TokenCache()), Waits()
        self.ledgers, self.windows = Ledgers(policy.limits, self.sessions), Windows()
        self.calibrations = Calibrations(store, self.recorder.later)
        self.gatherer = Gatherer(self.sessions, self.waits, store.files if policy.record == "full" else None, arm)
        self.recall = Recall(self.waits, self.gatherer.reader)
        for of_agent in policies:
            self.summarizer.check(of_agent.compress.summarizer)
            self.reviewer.check(of_agent.acceptance.critic)
            self.recall.check(of_agent.retrieval.embedder)
        self.offloader = Offloader(policy, self.recorder, self.sessions, failures)
        sees_own = partial(_sees_own, policy)
        self.readers = Readers(store, self.sessions, self._room, self._parts_sent, policy.redact, sees_own).tools
        self.counters = Counters(policy.tokens, clock=time.monotonic, tokenizers={"gemini-local": local_tokenizer})
        warm_up(policy.record != "off", policy.retrieval.recall)

    def _room(self, context: ToolContext) -> tuple[int, int]:
        last = self.sessions.agent(agent_key_of(context)).last
        calls = sum(len(event.get_function_calls()) for event in context.session.events[-1:])
        return room_to_read(last.pack if last is not None else None, calls or 1)

    def _parts_sent(self, context: ToolContext) -> list[Part]:
        last = self.sessions.agent(agent_key_of(context)).last
        return [part for item in last.pack.contents for part in item.content.parts] if last is not None else []


def _sees_own(policy: PackPolicy, context: ToolContext) -> bool:
    """Tells whether an agent is shown its own turns alone."""
    return policy.for_agent(context.agent_name).sees == "own"


def _name_of(model: BaseLlm | str) -> str:
    return model if isinstance(model, str) else model.model


def _object_of(model: BaseLlm | str | None) -> BaseLlm | None:
    """A model that the caller made; one that is given by name is made by ADK's registry when it is first asked."""
    return None if isinstance(model, str) else model


def own_policy(
    policy: PackPolicy | str | Path | None, summarizer: BaseLlm | str | None, critic: BaseLlm | str | None
) -> PackPolicy:
    """The policy that a packer begins with, with the names of the packer's own models, where it has any.

    Raises:
        PolicyError: the policy is wrong, or ``AETHER_CONTEXT_SLIDING_TOKENS`` is no whole number.
    """
    if not isinstance(policy, PackPolicy):
        policy = PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None)
    sliding = os.environ.get(_SLIDING_TOKENS, "").strip()
    if sliding and not sliding.isdecimal():
        raise PolicyError(
            f"{_SLIDING_TOKENS} = {sliding!r}: give a number of tokens, or 0 for off",
            field="conversation.sliding_turns.tokens",
        )
    if sliding:
        policy = policy.changed(conversation={"sliding_turns": {"tokens": int(sliding)}})
    if summarizer is not None:
        policy = policy.changed(compress={"summarizer": _name_of(summarizer)})
    if critic is not None:
        policy = policy.changed(acceptance={"critic": _name_of(critic)})
    return policy


@cache
def warm_up(records: bool, recalls: bool) -> None:
    """Loads, once in a process and beside what the app does, what the first model call would otherwise wait for.

    It is numpy and a token table, the list of models with their prices, the models of manifests, and what indexes turns
    that are recalled, but for the model that compares their meanings. A fork waits for it: a module that another thread
    is loading stays locked in the child for ever.
    """

    def load() -> None:
        counter_for("gemini").count("warm")
        model_window("gemini-flash-latest")
        if records:
            import_module("aether_context.store.manifest")
        if recalls:
            import_module("aether_context.retrieval.call_indexes")

    thread = threading.Thread(target=load, name="aether-context-warm-up", daemon=True)
    thread.start()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=partial(thread.join, _MOST_FORK_SECONDS))
