"""What policies do to recorded agent runs: rows in Markdown, one for each policy.

    python tests/bench/tool_runs.py RUNS.jsonl [MORE.jsonl ...] [--window 16000 ...] [--policy NAME|TOML|SETTINGS ...]
                                    [--columns NAME ...] [--peers] [--by file] [--limit N]

A line of a file is a run: ``{"system": …, "tools": [{"name", "description", "parameters"}], "turns": [{"user": …,
"steps": [{"text": …, "calls": [{"name", "args", "result"}]}]}]}``. Each run is played through an ADK Runner with the
plugin: the model answers what it answered then, the tools return what they returned, and every request is kept as it
was sent. Tokens are UTF-8 bytes / 4, rounded up, and 4 for each block; a request's blocks are the system instruction,
each declaration and each part of a content. Cells are means over runs; see sessions.py.

over      requests of more tokens than the window, in percent of all
invalid   requests that a strict provider refuses, in percent: the first content is not a user's, a content is empty,
          calls without their responses right behind them, or responses without their calls
grounded  identifiers, paths and numbers in the recorded next calls' arguments which stood somewhere in the run so far:
          those that stand in the request, in percent
lines     the same for whole lines of 30 characters and more, which an agent quotes or edits
usable    the same, in requests that a provider takes: within the window, and valid
cost      tokens outside the prefix shared with the request before, and a tenth of those inside, over the same sum for
          the run's whole history, never shortened; of runs whose history passes the window
reuse     tokens of that shared prefix, in percent of all tokens sent: what a prefix cache can serve; of the same runs
read      lines in the request, and, where it shows an address, those of earlier results, which a call brings back

``--columns`` says which are shown. ``--by file`` has a row for each file, ``--peers`` has rows of peers.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools.base_tool import BaseTool
from google.genai import types
from sessions import PERCENT, Figures, policy_of, print_table, rows_of

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin
from aether_context.policy import PRESETS

Run = Mapping[str, Any]
Step = Mapping[str, Any]

PER_BLOCK = 4
CACHED_PRICE = 0.1
LINE_CHARACTERS = 30
COLUMNS = dict.fromkeys(("over", "invalid", "grounded", "lines", "usable"), PERCENT)
COLUMNS |= {"cost": (1.0, 3), "reuse": PERCENT, "read": PERCENT}
_VALUE = re.compile(r"[A-Za-z0-9_./@:-]{5,}")


@lru_cache(maxsize=100_000)
def tokens(text: str) -> int:
    return (len(text.encode()) + 3) // 4 + PER_BLOCK


# playing a run


@dataclass(frozen=True)
class Request:
    """A request as it was sent.

    ``blocks`` are its texts in the order in which a prefix cache sees them, ``shape`` is the role of each content with
    its calls' and responses' names, None where it has no parts, and ``said`` is everything in it that can be read.
    """

    blocks: tuple[str, ...]
    shape: tuple[tuple[str, tuple[str, ...], tuple[str, ...], bool], ...]
    said: str


class Recorded(BaseLlm):
    """Answers with the recorded steps, one after another, and keeps the requests."""

    steps: list[Any] = []
    requests: list[Any] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        request = read(llm_request)
        self.requests.append(request)
        at = len(self.requests) - 1
        step = self.steps[at] if at < len(self.steps) else {"text": "ok", "calls": []}
        parts = [types.Part(text=step["text"])] if step["text"] else []
        parts += [types.Part(function_call=types.FunctionCall(name=c["name"], args=c["args"])) for c in step["calls"]]
        size = sum(map(tokens, request.blocks))
        yield LlmResponse(
            content=types.Content(role="model", parts=parts or [types.Part(text=".")]),
            usage_metadata=types.GenerateContentResponseUsageMetadata(prompt_token_count=size, total_token_count=size),
        )


class RecordedTool(BaseTool):
    """Returns the recorded results of its calls, by their arguments, in order."""

    def __init__(self, declared: Mapping[str, Any], results: dict[str, list[str]]) -> None:
        super().__init__(name=declared["name"], description=declared.get("description") or declared["name"])
        self.parameters = declared.get("parameters")
        self.results = results

    def _get_declaration(self) -> types.FunctionDeclaration:
        return types.FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self.parameters
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> dict[str, str]:
        waiting = self.results.get(_call_key(self.name, args))
        return {"result": waiting.pop(0) if waiting else ""}


async def play(run: Run, *plugins: BasePlugin, **settings: Any) -> list[Request]:
    """The requests of a run, in order; ``settings`` are the app's."""
    steps = [step for turn in run["turns"] for step in turn["steps"]]
    results: dict[str, list[str]] = {}
    declared = {one["name"]: one for one in run["tools"]}
    for call in (call for step in steps for call in step["calls"]):
        results.setdefault(_call_key(call["name"], call["args"]), []).append(call["result"])
        declared.setdefault(call["name"], {"name": call["name"], "parameters": {"type": "object", "properties": {}}})
    llm = Recorded(model=run.get("model") or "gemini-2.5-flash", steps=steps, requests=[])
    agent = LlmAgent(
        name="agent",
        model=llm,
        tools=[RecordedTool(one, results) for one in declared.values()],
        static_instruction=run["system"] or "You are an agent.",
    )
    runner = InMemoryRunner(app=App(name="bench", root_agent=agent, plugins=list(plugins), **settings))
    session = await runner.session_service.create_session(app_name="bench", user_id="u")
    for turn in run["turns"]:
        message = types.UserContent(turn["user"] or ".")
        async for _ in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            pass
    await runner.close()
    return llm.requests


def _call_key(name: str, arguments: Mapping[str, Any]) -> str:
    return name + json.dumps(arguments, sort_keys=True, default=str)


def read(request: LlmRequest) -> Request:
    """What a provider is sent, as texts."""
    config = request.config
    system = config.system_instruction or ""
    blocks = [f"system:{system}"]
    for tool in config.tools or ():
        for one in getattr(tool, "function_declarations", None) or ():
            blocks.append("tool:" + json.dumps(one.model_dump(exclude_none=True, mode="json"), sort_keys=True))
    said = [blocks[0]]
    shape = []
    for content in request.contents:
        parts = content.parts or []
        calls = tuple(part.function_call.name or "" for part in parts if part.function_call)
        answers = tuple(part.function_response.name or "" for part in parts if part.function_response)
        shape.append((content.role or "", calls, answers, bool(parts)))
        for part in parts:
            text, texts = block(content.role or "", part)
            blocks.append(text)
            said += texts
    return Request(blocks=tuple(blocks), shape=tuple(shape), said="\n".join(said))


def block(role: str, part: types.Part) -> tuple[str, list[str]]:
    """A part as a prefix cache sees it, and the texts in it that can be read."""
    if part.function_call:
        arguments = part.function_call.args
        text = json.dumps(arguments, sort_keys=True, default=str)
        return f"{role}:call:{part.function_call.name}:{text}", list(texts_in(arguments))
    if part.function_response:
        response = part.function_response.response
        text = json.dumps(response, sort_keys=True, default=str, ensure_ascii=False)
        return f"{role}:response:{part.function_response.name}:{text}", list(texts_in(response))
    if part.text is not None:
        return f"{role}:text:{part.text}", [part.text]
    return f"{role}:other:{str(part)[:200]}", []


def texts_in(value: Any) -> Iterator[str]:
    """Every text and number in a JSON value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from texts_in(one)
    elif value is not None:
        yield str(value)


# scoring it


@dataclass
class Score:
    """Sums over requests; see the columns. ``reads`` are the requests for which a line would have to be read back."""

    requests: int = 0
    over: int = 0
    invalid: int = 0
    values: int = 0
    values_kept: int = 0
    lines: int = 0
    lines_kept: int = 0
    lines_usable: int = 0
    lines_read: int = 0
    reads: int = 0
    tokens: int = 0
    cached: int = 0
    full: int = 0
    full_cached: int = 0
    peak: int = 0

    def add(self, other: Score) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def figures(self, window: int) -> Figures:
        """The columns' parts and wholes; ``peak`` is the size of the whole history at the last call."""
        full = price(self.full, self.full_cached) if self.peak > window else 0.0
        return {
            "over": (self.over, self.requests),
            "invalid": (self.invalid, self.requests),
            "grounded": (self.values_kept, self.values),
            "lines": (self.lines_kept, self.lines),
            "usable": (self.lines_usable, self.lines),
            "cost": (price(self.tokens, self.cached), full),
            "reuse": (self.cached, self.tokens if full else 0),
            "read": (self.lines_kept + self.lines_read, self.lines),
        }


def price(sent: int, cached: int) -> float:
    return sent - cached + CACHED_PRICE * cached


@dataclass
class History:
    """A run as it was up to a model call: all that was said, and what it would cost to send all of it each time."""

    said: str
    size: int
    results: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, run: Run) -> History:
        tools = sum(tokens("tool:" + json.dumps(one, sort_keys=True)) for one in run["tools"])
        return cls(said=run["system"], size=tokens("system:" + run["system"]) + tools)

    def ask(self, text: str) -> None:
        self.said += f"\n{text}"
        self.size += tokens(f"user:{text}")

    def take(self, step: Step) -> None:
        """A model's answer, with its calls and their results."""
        calls = step["calls"]
        self.results += [call["result"] for call in calls]
        arguments = [text for call in calls for text in texts_in(call["args"])]
        self.said += "\n".join(["", step["text"], *arguments, *(call["result"] for call in calls)])
        self.size += tokens(f"model:{step['text']}")
        self.size += sum(tokens(json.dumps(call["args"])) + tokens(f"response:{call['result']}") for call in calls)


def score(run: Run, requests: Sequence[Request], window: int) -> Score:
    """Sums over the requests of a run, each against the step that the model took then."""
    total = Score()
    history = History.of(run)
    before: tuple[str, ...] = ()
    size_before = 0
    asked = [
        (turn["user"] if at == 0 else None, step) for turn in run["turns"] for at, step in enumerate(turn["steps"])
    ]
    for (user, step), request in zip(asked, requests, strict=False):
        if user is not None:
            history.ask(user)
        values = {value for value in known_values(step) if value in history.said}
        lines = {line for line in long_lines(step) if line in history.said}
        missing = {line for line in lines if line not in request.said}
        size = sum(map(tokens, request.blocks))
        over, invalid = size > window, not is_valid(request)
        read = read_back(missing, history.results) if "artifact://" in request.said else 0
        total.add(
            Score(
                requests=1,
                over=over,
                invalid=invalid,
                values=len(values),
                values_kept=sum(value in request.said for value in values),
                lines=len(lines),
                lines_kept=len(lines) - len(missing),
                lines_usable=0 if over or invalid else len(lines) - len(missing),
                lines_read=read,
                reads=read > 0,
                tokens=size,
                cached=shared(before, request.blocks),
                full=history.size,
                full_cached=size_before,
                peak=history.size - size_before,
            )
        )
        before, size_before = request.blocks, history.size
        history.take(step)
    return total


def read_back(lines: set[str], results: Sequence[str]) -> int:
    """How many of these lines stand in results."""
    return sum(any(line in result for result in results) for line in lines)


def shared(before: Sequence[str], after: Sequence[str]) -> int:
    """Tokens of ``after`` in the common prefix of both; of the first block that differs, those of its common part."""
    total = 0
    for one, other in zip(before, after, strict=False):
        if one != other:
            same = next(
                (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
            )
            return total + int(tokens(other) * same / max(len(other), 1))
        total += tokens(other)
    return total


def is_valid(request: Request) -> bool:
    """Whether a strict provider takes a request of this shape."""
    if not request.shape:
        return False
    role, _, answers, _ = request.shape[0]
    if role != "user" or answers:
        return False
    waiting: tuple[str, ...] = ()
    for _, calls, answers, filled in request.shape:
        if not filled or sorted(answers) != sorted(waiting):
            return False
        waiting = calls
    return not waiting


def known_values(step: Step) -> set[str]:
    """What can only be known, not composed: identifiers, paths and numbers in the arguments of a step's calls."""
    found = set()
    for call in step["calls"]:
        for text in texts_in(call["args"]):
            words = (word.strip("./:-") for word in _VALUE.findall(text))
            found |= {word for word in words if len(word) >= 5 and re.search(r"[0-9/_@]", word)}
    return found


def long_lines(step: Step) -> set[str]:
    """What an agent quotes or edits: lines of 30 characters and more in the arguments of a step's calls."""
    texts = (text for call in step["calls"] for text in texts_in(call["args"]))
    lines = (line.strip() for text in texts for line in text.splitlines())
    return {line for line in lines if len(line) >= LINE_CHARACTERS}


def plugin(policy: PackPolicy, at: int) -> list[BasePlugin]:
    """The plugin, with a store of its own."""
    return [ContextPackPlugin(policy=policy, store=f"memory://runs-{policy.digest[-12:]}-{at}")]


def measured(
    named: Mapping[str, Sequence[Run]], policies: Sequence[str], windows: Sequence[int], peers: bool, by: str | None
) -> Iterator[tuple[list[str], list[Figures]]]:
    """A row for each window and policy, for all runs or for each group of them."""
    from peers import PEERS

    runs = [(name, run) for name, held in named.items() for run in held]
    for window in windows:
        groups = [name if by else "" for name, _ in runs]
        for name in [*policies, *(PEERS if peers else ())]:
            made = None if name in PEERS else policy_of(name, window)
            held: dict[str, list[Figures]] = {}
            for at, (group, (_, run)) in enumerate(zip(groups, runs, strict=True)):
                plugins = PEERS[name](window) if made is None else plugin(made, at)
                figures = score(run, asyncio.run(play(run, *plugins)), window).figures(window)
                held.setdefault(group, []).append(figures)
            for group, sessions in held.items():
                yield [f"{window:,}", *filter(None, [group]), name if made is None else f"`{name}`"], sessions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help=".jsonl files of recorded runs")
    parser.add_argument("--window", type=int, nargs="+", default=[16_000], help="tokens (default: 16000)")
    parser.add_argument("--policy", nargs="*", default=list(PRESETS), help="presets, profiles, TOML files or settings")
    parser.add_argument("--peers", action="store_true", help="what a user could pick instead, too")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS)[:7], metavar="NAME")
    parser.add_argument("--by", choices=["file"], help="a row for each of these")
    parser.add_argument("--limit", type=int, help="only the first runs of each file")
    given = parser.parse_args()
    named = {path.stem: rows_of(path)[: given.limit] for path in given.runs}
    rows = measured(named, given.policy, given.window, given.peers, given.by)
    heads = ("window", given.by, "policy") if given.by else ("window", "policy")
    print_table(heads, {name: COLUMNS[name] for name in given.columns}, rows)


if __name__ == "__main__":
    main()
