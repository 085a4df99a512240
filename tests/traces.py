"""Spans and metrics that OpenTelemetry's own SDK hands to an exporter, of the tests that ask for them alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scripted import Failure

SECRET = "hunter2"


class Switch(SimpleSpanProcessor):
    """Keeps nothing but what a test of this file does: a process has one provider, and many other tests."""

    on = False
    fails_at = ""
    """``start`` or ``end``, where the package's own spans are to fail there."""

    def on_start(self, span: ReadableSpan, parent_context: Any = None) -> None:
        self._fail("start", span)

    def on_end(self, span: ReadableSpan) -> None:
        self._fail("end", span)
        if self.on:
            super().on_end(span)

    def _fail(self, at: str, span: ReadableSpan) -> None:
        scope = span.instrumentation_scope
        if at == self.fails_at and scope is not None and scope.name == "aether_context":
            raise Failure(SECRET)


class Traces:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.switch = Switch(self._exporter)
        if not isinstance(trace.get_tracer_provider(), TracerProvider):  # one of ADK's servers may have set one
            trace.set_tracer_provider(TracerProvider())
        provider = trace.get_tracer_provider()
        assert isinstance(provider, TracerProvider)
        provider.add_span_processor(self.switch)
        delta = AggregationTemporality.DELTA
        self._reader = InMemoryMetricReader({Counter: delta, Histogram: delta})
        metrics.set_meter_provider(MeterProvider([self._reader]))

    def clear(self) -> None:
        self._exporter.clear()
        self._reader.get_metrics_data()

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    @property
    def own(self) -> list[ReadableSpan]:
        return [span for span in self.all if span.instrumentation_scope.name == "aether_context"]

    @property
    def packs(self) -> list[ReadableSpan]:
        return [span for span in self.own if span.name.startswith("pack_context ")]

    def within(self, parent: ReadableSpan) -> list[ReadableSpan]:
        return [span for span in self.all if span.parent is not None and span.parent.span_id == parent.context.span_id]

    def above(self, child: ReadableSpan) -> ReadableSpan:
        return next(span for span in self.all if child.parent and span.context.span_id == child.parent.span_id)

    def metrics(self) -> list[dict[str, Any]]:
        """Every data point of the package since the last look, with its metric's name and unit."""
        found = self._reader.get_metrics_data()
        scopes = [scope for resource in (found.resource_metrics if found else ()) for scope in resource.scope_metrics]
        return [
            {"name": metric.name, "unit": metric.unit, **json.loads(point.to_json())}
            for scope in scopes
            for metric in scope.metrics
            if scope.scope.name == "aether_context"
            for point in metric.data.data_points
        ]
