"""What Anthropic adds to calls and responses, and how the growth of a request compares with the reported growth.

    python framing.py runs.jsonl

Each line of the file is a recorded run: {"id", "model", "system", "tools", "turns": [{"user", "steps": [{"text",
"calls": [{"name", "args", "result"}], "usage"}]}]}, the usage being the provider's at each model call. Only runs with
usage are looked at. The first lines fit the framing of a call to the reported output tokens; the next compare counts
of what was added between two calls with what the provider says was added. The last line is the error of the estimate
that is made before each call, as a share of what is reported for it: anchored on the report before, with a ratio that
is learned on the way.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.pack import Content
from aether_context.tokens import counter_for, framing_of
from aether_context.tokens.cache import PackCounter
from aether_context.tokens.framing import written_call
from aether_context.usage.calibration import TokenRatio, calibration, estimated, report

_SMALL, _LARGE = 200, 60_000


def reported(step: Mapping[str, Any]) -> int:
    """Input tokens of a call, cached ones included; 0 where nothing was reported."""
    usage = step.get("usage") or {}
    return int(usage.get("input", 0) + usage.get("cacheRead", 0) + usage.get("cacheWrite", 0))


def said(step: Mapping[str, Any]) -> list[Content]:
    """What a step leaves in the request of the next call: the model's content and the one that answers its calls."""
    parts = [part_of({"text": step["text"]})] if step["text"] else []
    parts += [part_of({"function_call": {"name": one["name"], "args": one["args"]}}) for one in step["calls"]]
    answers = [
        part_of({"function_response": {"name": one["name"], "response": {"result": one["result"]}}})
        for one in step["calls"]
    ]
    return [content_of_parts(role, held) for role, held in (("model", parts), ("user", answers)) if held]


def growth(run: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Counted and reported tokens that were added, for each two calls in a row."""
    counter = PackCounter(counter_for(run["model"]), framing=framing_of(run["model"]))
    before, added = 0, 0
    for turn in run["turns"]:
        added += counter.content(content_of_parts("user", [part_of({"text": turn["user"]})]))
        for step in turn["steps"]:
            now = reported(step)
            if before and before < now < before + _LARGE:
                yield added, now - before
            before, added = now, sum(counter.contents(said(step)))


def estimates(run: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """The report before each call, the estimate made of it, and the tokens then reported."""
    counter = PackCounter(counter_for(run["model"]), framing=framing_of(run["model"]))
    anchor, ratio, counted = None, TokenRatio(), 0
    for turn in run["turns"]:
        counted += counter.content(content_of_parts("user", [part_of({"text": turn["user"]})]))
        for step in turn["steps"]:
            now, before = reported(step), anchor.reported if anchor is not None else 0
            known = calibration(anchor, ratio, model=run["model"], epoch=0, here=True, unseen=0)
            if known is not None and before < now < before + _LARGE:
                yield before, estimated(known, counted), now
            if now:
                anchor, ratio = report(anchor, ratio, model=run["model"], epoch=0, counted=counted, reported=now)
            counted += sum(counter.contents(said(step)))


def calls(run: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Tokens of what was said, number of arguments and reported output, for each short step of one call."""
    counter, framing = counter_for(run["model"]), framing_of(run["model"])
    for step in (step for turn in run["turns"] for step in turn["steps"]):
        output = (step.get("usage") or {}).get("output", 0)
        if len(step["calls"]) != 1 or not output:
            continue
        (one,) = step["calls"]
        text = counter.count(step["text"])
        text += counter.count(written_call(one["name"], json.dumps(one["args"]), framing))
        if text < _SMALL:
            yield text, len(one["args"]), output


def main() -> None:
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        if not any(reported(step) for turn in run["turns"] for step in turn["steps"]):
            continue
        text, arguments, output = np.array(list(calls(run))).T
        frames = np.column_stack([arguments, np.ones(len(text))])
        (argument, call), *_ = np.linalg.lstsq(frames, output - text, rcond=None)
        print(f"{run['id']} ({run['model']}): {call:.0f} a call and {argument:.0f} an argument in {len(text)} calls")
        pairs = list(growth(run))
        whole = sum(counted for counted, _ in pairs) / sum(told for _, told in pairs)
        middle = statistics.median(counted / told for counted, told in pairs)
        print(f"growth counted over reported: {whole:.3f}, median of {len(pairs)} calls {middle:.3f}")
        rows = list(estimates(run))
        shares = np.array([(guess - told) / told for _, guess, told in rows])
        p50, p95, p99 = np.percentile(np.abs(shares), [50, 95, 99])
        under = np.mean(shares < -0.01)
        print(f"estimate before {len(shares)} calls: off by {p50:.3%} at p50, {p95:.2%} at p95, {p99:.2%} at p99")
        grown, guessed = (sum(row[at] - row[0] for row in rows[20:]) for at in (2, 1))
        print(f"growth estimated over reported, once 20 calls have been seen: {guessed / grown:.3f}")
        print(f"too low by more than a percent at {under:.2%} of calls")


if __name__ == "__main__":
    main()
