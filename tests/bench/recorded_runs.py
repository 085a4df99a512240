"""What packs keep of recorded agent runs, and what they cost: the core alone, without ADK.

    python tests/bench/recorded_runs.py RUNS.jsonl --window 16000 [--bytes] [--planned]
        [--set conversation.compact_to=0.5 ...]

A run is a line of JSON: {"id", "system", "tools": [{"name", "description", "parameters"}], "turns": [{"user", "steps":
[{"text", "calls": [{"name", "args", "result"}]}]}]}. At each recorded model call the request is packed, and scored:

reuse     tokens in the common prefix with the request before it, over all tokens
cost      uncached tokens and a tenth of the cached ones, over the same sum for the history as it was
grounded  of the identifiers in the next calls' arguments that stood in the history, the share in the request
lines     of the argument lines of 30 characters and more that stood in the history, the share in the request

Tokens are UTF-8 bytes / 4, whatever the packs are counted by; ``--bytes`` has them counted the same way, as if the
counts were the provider's own. ``--planned`` gives each run a step, so that every message carries a payload.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from packs import IDENTITY, STEP, pack_input

from aether_context.canonical import canonical_json, hash_text
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.conversation.turns import is_human, live_positions
from aether_context.pack import Accuracy, Content, Epoch, Pack, Tool
from aether_context.packing import build_pack, extend_pack
from aether_context.policy import PackPolicy
from aether_context.tokens import TokenCounter, counter_for
from aether_context.tokens.cache import TokenCache

Run = Mapping[str, Any]
_VALUE = re.compile(r"[A-Za-z0-9_./@:-]{5,}")
_LONG_LINE = 30


class Bytes:
    """Counts UTF-8 bytes / 4."""

    name = "bytes/4"
    accuracy: Accuracy = "exact"

    def count(self, text: str) -> int:
        return size(text)

    def count_all(self, texts: Sequence[str]) -> list[int]:
        return [size(text) for text in texts]


def size(text: str) -> int:
    return (len(text.encode()) + 3) // 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--window", type=int, default=16_000)
    parser.add_argument("--bytes", action="store_true", help="count tokens as the measure does")
    parser.add_argument("--planned", action="store_true", help="give each run a step")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE", help="a setting, in JSON")
    options = parser.parse_args()
    policy = PackPolicy(**settings(options.set), max_input_tokens=options.window)
    runs = [json.loads(line) for line in options.path.read_text().splitlines() if line.strip()]
    total: Counter[str] = Counter()
    for run in runs:
        total.update(score(run, policy, Bytes() if options.bytes else None, options.planned))
    print(json.dumps(figures(total)))


def settings(words: list[str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        *sections, field = name.split(".")
        held = made
        for section in sections:
            held = held.setdefault(section, {})
        held[field] = json.loads(value)
    return made


def figures(total: Counter[str]) -> dict[str, float]:
    return {
        "calls": total["calls"],
        "cuts": total["cuts"],
        "over%": round(100 * total["over"] / total["calls"], 2),
        "reuse%": round(100 * total["cached"] / total["tokens"], 1),
        "cost": round(price(total, "cached", "tokens") / price(total, "whole_cached", "whole_tokens"), 3),
        "grounded%": round(100 * total["grounded"] / max(1, total["identifiers"]), 1),
        "lines%": round(100 * total["kept_lines"] / max(1, total["lines"]), 1),
        "tokens/call": round(total["tokens"] / total["calls"]),
    }


def price(total: Counter[str], cached: str, tokens: str) -> float:
    return total[tokens] - 0.9 * total[cached]


def score(run: Run, policy: PackPolicy, counter: TokenCounter | None, planned: bool) -> Counter[str]:
    total: Counter[str] = Counter()
    fixed = [run["system"], *(canonical_json(tool) for tool in run["tools"])]
    before = whole = fixed
    for calls, history, pack in played(run, policy, counter, planned):
        blocks = [*fixed, *(text for one in pack.contents for text in said(one.content))]
        count(total, before, blocks, "cached", "tokens")
        history_blocks = [*fixed, *(text for content in history for text in said(content))]
        count(total, whole, history_blocks, "whole_cached", "whole_tokens")
        sent, known = "\n".join(blocks), "\n".join(history_blocks)
        for kind, kept, wanted in (("identifiers", "grounded", identifiers), ("lines", "kept_lines", long_lines)):
            needed = [text for text in wanted(calls) if text in known]
            total[kind] += len(needed)
            total[kept] += sum(text in sent for text in needed)
        total["calls"] += 1
        total["cuts"] += any(event.stage == "cut" for event in pack.events)
        total["over"] += sum(map(size, blocks)) > (policy.max_input_tokens or 0)
        before, whole = blocks, history_blocks
    return total


def count(total: Counter[str], before: list[str], blocks: list[str], cached: str, tokens: str) -> None:
    """Adds what two requests have in common from the start, and all of the second."""
    total[tokens] += sum(map(size, blocks))
    if not total["calls"]:
        return
    for one, other in zip(before, blocks, strict=False):
        if one != other:
            alike = next(
                (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
            )
            total[cached] += size(one[:alike])
            return
        total[cached] += size(other)


def said(content: Content) -> Iterator[str]:
    """What a provider reads of a content: texts as they are, calls and responses as their values, a line each."""
    for part in content.parts:
        if part.kind == "text":
            yield part.text
        else:
            yield f"{part.name}\n" + "\n".join(leaves(json.loads(part.text)))


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for held in value:
            yield from leaves(held)
    elif value is not None:
        yield str(value)


def identifiers(calls: list[Any]) -> set[str]:
    """Words of calls' arguments that can only be known, not composed."""
    words = {word.strip("./:-") for call in calls for text in leaves(call["args"]) for word in _VALUE.findall(text)}
    return {word for word in words if len(word) >= 5 and (re.search(r"\d", word) or set(word) & set("/_@"))}


def long_lines(calls: list[Any]) -> set[str]:
    """Lines of calls' arguments that are quoted or edited rather than composed."""
    lines = {line.strip() for call in calls for text in leaves(call["args"]) for line in text.splitlines()}
    return {line for line in lines if len(line) >= _LONG_LINE}


def played(
    run: Run, policy: PackPolicy, counter: TokenCounter | None, planned: bool
) -> Iterator[tuple[list[Any], list[Content], Pack]]:
    """At each recorded model call: the calls that the model then made, the history, and the pack."""
    model = run.get("model") or "gemini-2.5-flash"
    counter, cache = counter or counter_for(model), TokenCache()
    tools = [declaration(tool) for tool in run["tools"]]
    history: list[Content] = []
    pack: Pack | None = None
    for turn, asked in enumerate(run["turns"]):
        history.append(content_of_parts("user", [part_of({"text": asked["user"] or "."})]))
        for number, step in enumerate(asked["steps"], start=1):
            epoch = pack.epoch if pack is not None else Epoch(number=0)
            positions = live_positions(epoch, len(history))
            source = pack_input(
                [history[at] for at in positions],
                identity=replace(IDENTITY, invocation=f"i{turn}", call=number),
                window=policy.max_input_tokens or 0,
                step=STEP if planned else None,
                validity="valid" if planned else "unplanned",
                system=run["system"],
                tools=tools,
                epoch=epoch,
                first_call=number == 1,
                previous=pack.sent if pack is not None else None,
            )
            human = max(at for at, content in enumerate(source.request.contents) if is_human(content))
            source = replace(source, request=replace(source.request, model=model, positions=positions, human=human))
            grown = None
            if pack is not None and number > 1:
                grown = extend_pack(pack, source, policy, counter=counter, cache=cache)
            pack = grown or build_pack(source, policy, counter=counter, cache=cache)
            yield step["calls"], history, pack
            history += exchange(step)


def declaration(tool: Mapping[str, Any]) -> Tool:
    wire = canonical_json(tool)
    return Tool(name=tool["name"], signature=tool["name"], wire=wire, digest=hash_text(wire))


def exchange(step: Mapping[str, Any]) -> list[Content]:
    """The model's content of a step, and the one that answers its calls."""
    parts = [{"text": step["text"]}] if step["text"] or not step["calls"] else []
    calls = [{"function_call": {"name": call["name"], "args": call["args"]}} for call in step["calls"]]
    answers = [
        {"function_response": {"name": call["name"], "response": {"result": call["result"]}}} for call in step["calls"]
    ]
    made = [content_of_parts("model", [part_of(part) for part in (*parts, *calls)])]
    return [*made, content_of_parts("user", [part_of(part) for part in answers])] if answers else made


if __name__ == "__main__":
    main()
