"""Many tools: is the one that a request needs declared, or found, and what does the call that finds it cost?

    python tests/bench/tool_sets.py FOLDER [--tools 100] [--window 16000] [--every N]

The folder has the form of search_sets.py; its documents are tools, which begin with their names, and each query needs
one of them (1,096 tools and 1,911 queries of the Berkeley Function Calling Leaderboard, Apache 2.0). So many tools in a
row, which are often alike, belong to one agent; a document's whole text is the tool's description. Each query is the
first message of a session: with the plugin, whose model asks `find_tools` in the user's own words, and without it,
where all are declared. A cell is a mean over agents.

declared  queries whose tool is declared at the first call, in percent
found     of the others those whose tool is among the first five that `find_tools` gives, in percent
either    both, in percent of all
sent      tokens of the first request
all       the same where all tools are declared
extra     the price of the call after `find_tools`, of one that asked for it: tokens outside the prefix that it shares
          with the call before, and a tenth of those inside
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.genai import types
from sessions import PERCENT, Figures, print_table, rows_of
from tool_runs import Recorded, RecordedTool, Request, price, shared, tokens

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin

COLUMNS = dict.fromkeys(("declared", "found", "either"), PERCENT) | dict.fromkeys(("sent", "all", "extra"), (1.0, 0))
_BEST = 5
_RESPONSE = "user:response:find_tools:"


async def asked(tools: Sequence[Mapping[str, Any]], query: str, *plugins: BasePlugin, finds: bool) -> list[Request]:
    """The requests of a session whose model answers at once, or asks for tools before it does."""
    search = {"text": "", "calls": [{"name": "find_tools", "args": {"query": query}}]}
    steps = [*([search] if finds else []), {"text": "Done.", "calls": []}]
    llm = Recorded(model="gemini-2.5-flash", steps=steps, requests=[])
    agent = LlmAgent(
        name="agent",
        model=llm,
        tools=[RecordedTool(tool, {}) for tool in tools],
        static_instruction="You are an agent, and call tools for what you are asked.",
    )
    runner = InMemoryRunner(app=App(name="bench", root_agent=agent, plugins=list(plugins)))
    session = await runner.session_service.create_session(app_name="bench", user_id="u")
    async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=types.UserContent(query)):
        pass
    await runner.close()
    return llm.requests


def declared_names(request: Request) -> set[str]:
    return {json.loads(block[len("tool:") :])["name"] for block in request.blocks if block.startswith("tool:")}


def found_names(request: Request) -> list[str]:
    """The names that the last search gave, best first."""
    answers = [block[len(_RESPONSE) :] for block in request.blocks if block.startswith(_RESPONSE)]
    return [tool["name"] for tool in json.loads(answers[-1])["found"]]


def size(request: Request) -> int:
    return sum(map(tokens, request.blocks))


async def figures_of(tools: Sequence[Mapping[str, Any]], queries: Sequence[tuple[str, str]], window: int) -> Figures:
    """An agent's figures; a query comes with the name of the tool that it needs."""
    sums = dict.fromkeys(("declared", "found", "sent", "all", "extra"), 0.0)
    for query, name in queries:
        plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=window), store="memory://tool-sets")
        first, *later = await asked(tools, query, plugin, finds=True)
        sums["sent"] += size(first)
        sums["all"] += size((await asked(tools, query, finds=False))[0])
        if name in declared_names(first):
            sums["declared"] += 1
            continue
        sums["found"] += name in found_names(later[0])[:_BEST]
        sums["extra"] += price(size(later[0]), shared(first.blocks, later[0].blocks))
    number, others = len(queries), len(queries) - sums["declared"]
    return {
        "declared": (sums["declared"], number),
        "found": (sums["found"], others),
        "either": (sums["declared"] + sums["found"], number),
        "sent": (sums["sent"], number),
        "all": (sums["all"], number),
        "extra": (sums["extra"], others),
    }


def measured(folder: Path, number: int, window: int, every: int) -> Iterator[tuple[list[str], list[Figures]]]:
    texts = {str(row["_id"]): str(row["text"]) for row in rows_of(folder / "corpus.jsonl")}
    names = {name: name.replace(".", "_") for name in texts}
    needed = dict(line.split("\t")[:2] for line in (folder / "qrels.tsv").read_text(encoding="utf-8").splitlines()[1:])
    queries = [(str(row["text"]), needed[str(row["_id"])]) for row in rows_of(folder / "queries.jsonl")][::every]
    agents = []
    for start in range(0, len(names), number):
        own = list(names)[start : start + number]
        tools = [
            {"name": names[name], "description": texts[name], "parameters": {"type": "object", "properties": {}}}
            for name in own
        ]
        if asked_of := [(query, names[name]) for query, name in queries if name in own]:
            agents.append(asyncio.run(figures_of(tools, asked_of, window)))
    yield [f"{number}"], agents


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tools", type=int, nargs="+", default=[100], help="tools of an agent")
    parser.add_argument("--window", type=int, default=16_000)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every Nth query")
    given = parser.parse_args()
    rows = (row for number in given.tools for row in measured(given.folder, number, given.window, given.every))
    print_table(("tools",), COLUMNS, rows)
