"""The demo's agent on ADK's own runner: its tools, its session, its meter, and the scripted model."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.artifacts import InMemoryArtifactService
from google.adk.memory import InMemoryMemoryService
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import PrivateAttr

from aether_context.adk import ContextPackPlugin
from aether_context.adk.request.reader import Reader, system_text
from aether_context.demo.script import (
    FOLLOW_UP,
    INSTRUCTION,
    KNOWLEDGE,
    QUESTION,
    STEPS,
    Move,
    Play,
    Results,
    plan_at,
    researcher,
)
from aether_context.tokens import counter_for, framing_of
from aether_context.tokens.cache import PackCounter

# Tools over a folder of Python files: they read, and reach nothing outside it.

_MOST_HITS = 40
_LONGEST_LINE = 160


class Folder:
    """A folder of Python files. Its methods' docstrings are what the model reads of them.

    Args:
        without: a folder in it that is not shown.
    """

    def __init__(self, root: Path, *, without: str = "") -> None:
        self._root = root.resolve()
        self._without = without

    def list_files(self) -> str:
        """Lists the Python files, a line each: path, number of lines, number of characters."""
        return "\n".join(f"{path} {text.count(chr(10))} {len(text)}" for path, text in self._texts())

    def read_file(self, path: str, first_line: int = 1, last_line: int = 0) -> str:
        """Reads a file, or its lines from first_line to last_line. A last_line of 0 is the end."""
        lines = self._lines(path)
        if lines is None:
            return f"There is no file {path!r}: list_files shows what is there."
        return "\n".join(lines[max(0, first_line - 1) : last_line or None])

    def search_text(self, text: str) -> str:
        """Finds the lines that contain a text, at most 40 of them, each as path:line: content."""
        hits = [
            f"{path}:{number}: {line.strip()[:_LONGEST_LINE]}"
            for path, held in self._texts()
            for number, line in enumerate(held.splitlines(), start=1)
            if text and text in line
        ]
        return "\n".join(hits[:_MOST_HITS]) or f"No line contains {text!r}."

    def _lines(self, path: str) -> list[str] | None:
        try:
            wanted = (self._root / path).resolve()
            inside = wanted.is_relative_to(self._root) and wanted.suffix == ".py"
            return wanted.read_text(encoding="utf-8").splitlines() if inside else None
        except (OSError, ValueError):
            return None

    def _texts(self) -> list[tuple[str, str]]:
        """Path and text of each file, in the order of their paths."""
        found = [path.relative_to(self._root) for path in self._root.rglob("*.py")]
        names = sorted(path.as_posix() for path in found if path.parts[0] != self._without)
        return [(name, "\n".join(lines) + "\n") for name in names if (lines := self._lines(name)) is not None]


# What reached the demo's model: the tokens of each request, and how many of them the request before began with.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """One request: its tokens, and those at its beginning that it has in common with the request before."""

    tokens: int
    shared: int


class Meter:
    """Counts requests as they come.

    Args:
        model: whose tokens they are.
    """

    def __init__(self, model: str) -> None:
        self.requests: list[Reached] = []
        self._model = model
        self._reader = Reader()
        self._counter = PackCounter(counter_for(model), framing=framing_of(model))
        self._before: list[tuple[str, int]] = []

    def take(self, request: LlmRequest) -> None:
        """Counts a request: its instruction, its declarations and its contents, in the order of `Sent.blocks`."""
        system, _ = system_text(request.config)
        tools = self._reader.tools(request.config, frozenset())
        contents = [self._reader.content(one, self._model) for one in request.contents]
        pieces = [
            (system, self._counter.system(system, declares=bool(tools))),
            *zip((tool.digest for tool in tools), self._counter.tools(tools), strict=True),
            *zip((one.digest for one in contents), self._counter.contents(contents), strict=True),
        ]
        shared = 0
        for piece, before in zip(pieces, self._before, strict=False):
            if piece != before:
                break
            shared += piece[1]
        self.requests.append(Reached(tokens=sum(tokens for _, tokens in pieces), shared=shared))
        self._before = pieces


# The demo's agent on ADK's own runner: its tools, its session, and the scripted model.

_APP, _USER = "demo", "reader"
LIKE = "gemini-2.5-flash"
"""The model whose token counts and prices the script is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished run: whose packs to look for, the pairs of question and answer, and what reached a scripted model."""

    app: str
    user: str
    session: str
    answers: tuple[tuple[str, str], ...]
    requests: tuple[Reached, ...]


class ScriptedModel(BaseLlm):
    """Plays a script: each request is answered with its next move, given the results of the calls before."""

    _play: Play = PrivateAttr(default_factory=researcher)
    _begun: bool = PrivateAttr(default=False)
    _meter: Meter = PrivateAttr(default_factory=lambda: Meter(LIKE))

    @property
    def requests(self) -> tuple[Reached, ...]:
        """What it got to read."""
        return tuple(self._meter.requests)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self._meter.take(llm_request)
        move = self._play.send(_results(llm_request)) if self._begun else next(self._play)
        self._begun = True
        # 0 is "no data" to the packs; without any usage ADK logs a warning at every call.
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=0)
        yield LlmResponse(content=types.Content(role="model", parts=_parts(move)), usage_metadata=usage)


def _parts(move: Move) -> list[types.Part]:
    said = [types.Part(text=move.say)] if move.say else []
    calls = [types.Part(function_call=types.FunctionCall(name=name, args=dict(args))) for name, args in move.calls]
    return said + calls


def _results(request: LlmRequest) -> Results:
    """The texts of the responses that end a request, as they stand in it."""
    parts = (request.contents[-1].parts if request.contents else None) or ()
    responses = [part.function_response.response for part in parts if part.function_response is not None]
    return tuple(str(next(iter((response or {"": ""}).values()))) for response in responses)


async def research(*, model: str | None, plugin: ContextPackPlugin | None, folder: Path) -> Run:
    """Runs the agent over a folder of Python files, once through its plan and once for a question.

    Args:
        model: a live model; None for the script.
        plugin: None sends requests as ADK makes them.
    """
    scripted = ScriptedModel(model=f"{LIKE}-scripted")
    agent = LlmAgent(
        name="researcher",
        model=model or scripted,
        instruction=INSTRUCTION,
        tools=_tools(Folder(folder, without="demo")),
    )
    app = App(name=_APP, root_agent=agent, plugins=[plugin] if plugin is not None else [])
    sessions = InMemorySessionService()
    runner = Runner(
        app=app,
        session_service=sessions,
        artifact_service=InMemoryArtifactService(),
        memory_service=InMemoryMemoryService(),
    )
    session = await sessions.create_session(
        app_name=_APP, user_id=_USER, state={"plan": plan_at(0), "knowledge": KNOWLEDGE}
    )
    answers = [(question, await _ask(runner, session.id, question)) for question in (QUESTION, FOLLOW_UP)]
    await runner.close()
    return Run(app=_APP, user=_USER, session=session.id, answers=tuple(answers), requests=scripted.requests)


async def _ask(runner: Runner, session: str, question: str) -> str:
    message = types.Content(role="user", parts=[types.Part(text=question)])
    answer = ""
    async for event in runner.run_async(user_id=_USER, session_id=session, new_message=message):
        if event.is_final_response() and event.content is not None:
            answer = "".join(part.text or "" for part in event.content.parts or ())
    return answer


def _tools(folder: Folder) -> list[Callable[..., Any]]:
    async def add_evidence(
        path: str, first_line: int, last_line: int, summary: str, covers: list[str], tool_context: ToolContext
    ) -> str:
        """Keeps lines of a file as proof. covers names the ids of the acceptance items that they prove."""
        lines = folder.read_file(path, first_line, last_line)
        knowledge = tool_context.state["knowledge"]
        name = f"evidence/{len(knowledge['evidence'])}.txt"
        await tool_context.save_artifact(name, types.Part(text=lines))
        record = {"uri": f"artifact://{name}", "summary": summary, "covers": covers, "time": time.time()}
        tool_context.state["knowledge"] = {**knowledge, "evidence": [*knowledge["evidence"], record]}
        return f"{record['uri']}\n{lines}"

    def finish_step(tool_context: ToolContext) -> str:
        """Ends the plan's current step and begins the next one."""
        names = [step["id"] for step in STEPS]
        at = names.index(tool_context.state["plan"]["step"]["id"])
        if at + 1 == len(names):
            return "This is the last step."
        tool_context.state["plan"] = plan_at(at + 1)
        return f"Step {names[at]} is finished. The step is now {names[at + 1]}."

    return [folder.list_files, folder.read_file, folder.search_text, add_evidence, finish_step]
