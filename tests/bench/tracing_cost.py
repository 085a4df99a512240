"""What spans and metrics add to the plugin's own work: percent of its processor time.

    python tests/bench/tracing_cost.py [--turns 20]

A session of ``gate.py`` runs through ADK's Runner: six model calls a turn, five of them for results of a tool, packed
in a window that cuts now and then, recorded in a folder. The plugin's time is that of its callbacks and of the thread
that writes. What each pack tells its span is kept, and told again many times over: first where OpenTelemetry has no
provider, then with spans that wait in batches for an exporter, and a reader of metrics. The first calls of the session,
which load what the process needs, do not count.

without   spans and metrics by the plugin's time, no provider set
with      the same with an exporter, in the plugin's own threads
encoding  what a thread of the exporter takes beside them to encode the spans for OTLP
spans     spans a pack
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import gate
from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.runners import InMemoryRunner
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, packer, tracing
from aether_context.adk.services.recorder import Recorder

WARM_UP = 6
ROUNDS = 9


class Kept(SpanExporter):
    """Keeps all spans."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans.extend(spans)
        return SpanExportResult.SUCCESS


class Told(tracing.PackSpan):
    """Keeps what it is told."""

    __slots__ = ("told",)
    packs: list[list[tuple[str, tuple[Any, ...]]]] = []

    def __init__(self, agent: str, model: str) -> None:
        super().__init__(agent, model)
        self.told: list[tuple[str, tuple[Any, ...]]] = [("", (agent, model))]
        self.packs.append(self.told)

    def stage(self, name: str) -> None:
        self.told.append(("stage", (name,)))

    def packed(self, *of_pack: Any) -> None:
        self.told.append(("packed", of_pack))


class Recording(Recorder):
    """Keeps the processor time of each job."""

    spent: list[float] = []

    def _attempt(self, job: Callable[[], object]) -> bool:
        began = time.thread_time()
        done = super()._attempt(job)
        self.spent.append(time.thread_time() - began)
        return done


class Timed(ContextPackPlugin):
    """Keeps the processor time of each model call's callbacks."""

    def __init__(self, store: str) -> None:
        super().__init__(policy=PackPolicy(max_input_tokens=gate.WINDOW), store=store)
        self.spent: list[float] = []

    async def before_model_callback(self, **given: Any) -> Any:
        began = time.thread_time()
        answer = await super().before_model_callback(**given)
        self.spent.append(time.thread_time() - began)
        return answer

    async def after_model_callback(self, **given: Any) -> Any:
        began = time.thread_time()
        await super().after_model_callback(**given)
        self.spent[-1] += time.thread_time() - began


async def converse(turns: int) -> float:
    """Seconds of processor time that the plugin takes of a call."""
    with tempfile.TemporaryDirectory() as folder:
        plugin = Timed(folder)
        agent = LlmAgent(name="clerk", model=gate.Looks(model=gate.MODEL), instruction="You help.", tools=[gate.run])
        runner = InMemoryRunner(app=App(name="desk", root_agent=agent, plugins=[plugin]))
        for turn in range(turns):
            await runner.run_debug(f"Question {turn}: how?", user_id="ann", session_id="s1", quiet=True)
    return statistics.mean(plugin.spent[WARM_UP:]) + sum(Recording.spent) / len(plugin.spent)


def tell() -> None:
    """Tells every span once more what it was told."""
    for (_, made_for), *told in Told.packs[WARM_UP:]:
        began = time.time_ns()
        with tracing.PackSpan(*made_for) as span:
            for name, given in told:
                getattr(span, name)(*given)
        if told[-1][0] == "packed":
            pack, name, _ = told[-1][1]
            span.recorded(name, began)
            tracing.count_cached(pack, 3_000)


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one pack, the median of the rounds."""
    spent = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        spent.append(time.thread_time() - began)
    return statistics.median(spent) / (len(Told.packs) - WARM_UP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=20)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    packer.PackSpan, packer.Recorder = Told, Recording  # type: ignore[misc]
    plugin = asyncio.run(converse(options.turns))
    without = seconds(tell)

    exporter, provider = Kept(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=100_000))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
    exported = seconds(tell)
    provider.force_flush()
    packs = len(Told.packs) - WARM_UP
    of_round = exporter.spans[-len(exporter.spans) // ROUNDS :]
    figures = {
        "packs": packs,
        "plugin_microseconds": round(plugin * 1e6),
        "without": f"{without / plugin:.2%}",
        "with": f"{exported / plugin:.2%}",
        "encoding": f"{seconds(lambda: encode_spans(of_round).SerializeToString()) / plugin:.2%}",
        "spans": round(len(of_round) / packs, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
