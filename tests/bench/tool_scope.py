"""Which tools a request still declares, and what choosing them costs.

    python tool_scope.py FOLDER [--every N]

FOLDER holds a set of queries over tool descriptions: ``corpus.jsonl`` (``_id``, ``text``), ``queries.jsonl`` and
``qrels.tsv``, such as the tools of the Berkeley Function Calling Leaderboard. Every tool of the set is a declaration
whose description is its text. For each query a pack is built whose tools floor holds so many tokens, and the share of
the needed tools among those declared is printed, the mean over all queries, with the mean number of declarations.
Then the time of packs with 500 of the tools: the first one of a process, the first of another session, and later ones
of the same epoch.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from aether_context import PackPolicy, build_pack
from aether_context.canonical import canonical_json, hash_text
from aether_context.conversation.content_json import content_of_parts, part_of
from aether_context.pack import Identity, PackInput, Request, Step, Tool
from aether_context.tokens.cache import TokenCache

BUDGETS = (1_000, 2_000, 4_000, 8_000)
MODEL = "gemini-2.5-flash"
_FLOOR = PackPolicy().budget.floors.tools
_TIMED_TOOLS, _TIMED_SESSIONS = 500, 20


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def declared(row: dict[str, Any]) -> Tool:
    wire = canonical_json({"name": row["_id"], "description": row["text"]})
    return Tool(name=row["_id"], signature=row["_id"], wire=wire, digest=hash_text(wire))


def asked(query: str, tools: tuple[Tool, ...], window: int) -> PackInput:
    """A session's first call: one question, all the tools."""
    content = content_of_parts("user", [part_of({"text": query})])
    return PackInput(
        identity=Identity(app="bench", user="u", session="s", invocation="i", agent="a"),
        request=Request(
            model=MODEL,
            system="",
            system_is_text=True,
            tools=tools,
            other_tools=(),
            contents=(content,),
            positions=(0,),
            human=0,
        ),
        window=window,
        step=Step(),
        can_find=True,
    )


def recall(
    folder: Path, tools: tuple[Tool, ...], needed: dict[str, set[str]], budget: int, cache: TokenCache, every: int
) -> dict[str, Any]:
    """The share of the needed tools that are declared where the floor of the layer is so many tokens."""
    policy = PackPolicy(tools={"least": 1})
    found, sizes, spent = [], [], []
    queries = [row for row in lines(folder / "queries.jsonl") if row["_id"] in needed][::every]
    for row in queries:
        pack = build_pack(asked(row["text"], tools, round(budget / _FLOOR)), policy, cache=cache)
        names = {tool.name for tool in pack.tools}
        wanted = needed[row["_id"]]
        found.append(len(wanted & names) / len(wanted))
        sizes.append(len(pack.tools) - 1)
        spent.append(sum(block.tokens for block in pack.sent.tools))
    return {
        "tokens": budget,
        "queries": len(queries),
        "recall": round(sum(found) / len(found), 3),
        "tools": round(sum(sizes) / len(sizes), 1),
        "most tokens": max(spent),
    }


def seconds(source: PackInput, policy: PackPolicy, cache: TokenCache) -> tuple[float, PackInput]:
    """How long a pack takes, and what the next call of the epoch starts from."""
    begun = time.perf_counter()
    pack = build_pack(source, policy, cache=cache)
    return time.perf_counter() - begun, source._replace(epoch=pack.epoch, first_call=False)


def timed(tools: tuple[Tool, ...], queries: list[str]) -> dict[str, float]:
    """Milliseconds with many tools: medians but for the first."""
    policy, cache = PackPolicy(), TokenCache()
    firsts, laters = [], []
    for query in queries:
        first, after = seconds(asked(query, tools, 64_000), policy, cache)
        firsts.append(first)
        laters.append(seconds(after, policy, cache)[0])
    whole = [seconds(asked(query, tools, 1_000_000), policy, cache)[0] for query in queries]
    return {
        "first of a process ms": round(1000 * firsts[0], 1),
        "first of a session ms": round(1000 * sorted(firsts[1:])[len(firsts) // 2], 1),
        "later ms": round(1000 * sorted(laters)[len(laters) // 2], 1),
        "all declared ms": round(1000 * sorted(whole)[len(whole) // 2], 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--every", type=int, default=1, help="take only each n-th query")
    given = parser.parse_args()
    corpus = tuple(declared(row) for row in lines(given.folder / "corpus.jsonl"))
    queries = [row["text"] for row in lines(given.folder / "queries.jsonl")]
    print(json.dumps(timed(corpus[:_TIMED_TOOLS], queries[:_TIMED_SESSIONS])))
    labels: dict[str, set[str]] = defaultdict(set)
    with (given.folder / "qrels.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            labels[row["query-id"]].add(row["corpus-id"])
    kept = TokenCache()
    for tokens in BUDGETS:
        print(json.dumps(recall(given.folder, corpus, labels, tokens, kept, given.every)), flush=True)
