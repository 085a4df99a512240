"""A span a pack and metrics of packs, through OpenTelemetry's API.

What leaves here are numbers, names, ids and words of closed sets: no text of a request, an answer, a plan or an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from aether_context import __version__
from aether_context.pack import Pack
from aether_context.usage.cache import CacheLoss

logger = logging.getLogger("aether_context")

# `gen_ai.request.model` and `gen_ai.usage.*` belong to the model's own call: backends take whatever span has them for
# one, and would show each call twice.
_MODEL = "aether_context.model"
_AGENT = "gen_ai.agent.name"
_REASON = "aether_context.epoch.reason"


class _Telemetry:
    """OpenTelemetry, with what is measured; made at the first pack, since ADK loads it with an app's first agent."""

    def __init__(self) -> None:
        from opentelemetry import context, metrics, trace

        self.context, self.trace = context, trace
        self.tracer = trace.get_tracer("aether_context", __version__)
        meter = metrics.get_meter("aether_context", __version__)
        self.duration = meter.create_histogram(
            "aether_context.pack.duration",
            unit="s",
            description="From the request that ADK hands over to the request that leaves.",
            explicit_bucket_boundaries_advisory=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10),
        )
        self.tokens = meter.create_histogram(
            "aether_context.pack.tokens",
            unit="{token}",
            description="The request that leaves, as it is estimated before the call.",
            explicit_bucket_boundaries_advisory=tuple(4**power for power in range(4, 11)),
        )
        self.cuts = meter.create_counter("aether_context.pack.cuts", unit="{cut}", description="Cuts of conversations.")
        self.prefix = meter.create_counter(
            "aether_context.prefix.tokens", unit="{token}", description="Tokens that a request shares with the last."
        )
        self.cache = meter.create_counter(
            "aether_context.cache.tokens", unit="{token}", description="Input tokens from a cache, as reported."
        )


_telemetry = cache(_Telemetry)


@contextmanager
def _harmless() -> Iterator[None]:
    """Ignores failures of the OpenTelemetry set-up of an app: a span or a figure is lost, and nothing else."""
    try:
        yield
    except Exception:
        logger.warning("OpenTelemetry failed: a span or a figure is lost", exc_info=True)


class PackSpan:
    """The span of one pack, current while that is made, and its metrics.

    Where no provider is set, or the trace is not sampled, it records nothing.
    ``error`` is the name of what kept the pack from being made as it should, empty where nothing did; ``recording``
    says whether anybody gets the span.
    """

    def __init__(self, agent: str, model: str) -> None:
        self.error, self.recording = "", False
        self._began = time.perf_counter()
        self._labels = {_AGENT: agent, _MODEL: model}

    def __enter__(self) -> PackSpan:
        with _harmless():
            self._span = _telemetry().tracer.start_span(f"pack_context {self._labels[_AGENT]}")
            if self._span.is_recording():
                self._token = _telemetry().context.attach(_telemetry().trace.set_span_in_context(self._span))
                self.recording = True
        return self

    @_harmless()
    def record_pack(self, pack: Pack, name: str, uri: str) -> None:
        """Takes in what the pack came to, with its id and where its manifest is, empty where it is not recorded."""
        cut = any(event.stage == "cut" for event in pack.events)
        _telemetry().tokens.record(pack.tokens.expected, self._labels)
        if pack.prefix.shared_tokens:
            _telemetry().prefix.add(pack.prefix.shared_tokens, self._labels)
        if cut:
            _telemetry().cuts.add(1, self._labels | {_REASON: pack.epoch_reason or ""})
        if not self.recording:
            return
        layers = pack.allocation.layers
        attributes = {
            "gen_ai.operation.name": "pack_context",
            "gen_ai.conversation.id": pack.identity.session,
            "aether_context.pack.id": name,
            "aether_context.pack.uri": uri,
            "aether_context.window": pack.source.window,
            "aether_context.tokens.request": pack.tokens.expected,
            "aether_context.tokens.over_window": pack.tokens.over_window,
            **{f"aether_context.tokens.{layer}": row.used for layer, row in layers.items() if layer != "slack"},
            "aether_context.cut": cut,
            _REASON: pack.epoch_reason,
            "aether_context.prefix.tokens": pack.prefix.shared_tokens,
            "aether_context.prefix.broken_by": pack.prefix.broken_by,
            "aether_context.degradations": len(pack.verdict.problems),
        }
        self._span.set_attributes({key: value for key, value in attributes.items() if value})

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """The request leaves, or does not."""
        self.error = self.error if kind is None else kind.__name__
        failed = {"error.type": self.error} if self.error else {}
        if self.recording:
            _telemetry().context.detach(self._token)
        with _harmless():
            _telemetry().duration.record(time.perf_counter() - self._began, self._labels | failed)
            if self.recording:
                self._span.set_attributes({**self._labels, **failed})
                if failed:
                    self._span.set_status(_telemetry().trace.StatusCode.ERROR)
                self._span.end()


@_harmless()
def count_cached(pack: Pack, cached_tokens: int | None) -> None:
    """Counts what a provider reported for a pack."""
    if cached_tokens:
        _telemetry().cache.add(cached_tokens, {_AGENT: pack.identity.agent, _MODEL: pack.source.request.model})


@_harmless()
def trace_loss(loss: CacheLoss) -> None:
    """Writes the loss of a call onto the span that is current when its answer comes, ADK's of the model call."""
    attributes = {"aether_context.cache.lost_tokens": loss.tokens, "aether_context.cache.lost_to": loss.breaker}
    _telemetry().trace.get_current_span().set_attributes(attributes)
