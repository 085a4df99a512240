"""The demo's agent: it reads this package's own source in a window that is too small for it.

Everything is real but the model: ADK's runner, tools that read files, packs in a store. Without a model's name a script
stands in for the model, so that it runs offline and takes the same calls on every machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from pydantic import PrivateAttr

# What the agent is asked to do: its plan, step by step, and what it knows beforehand.

QUESTION = (
    "Read the source of this package and report: what limits a request to the model, for which reasons is something "
    "left out of it, and how can a recorded request be checked afterwards? Work through the plan, and give file and "
    "line for each claim."
)
FOLLOW_UP = "Where in the store would I look for the texts of a recorded request?"

_INSTRUCTION = (
    "You read source code and report on it. Take the plan's steps in order: search and read, record proof for each "
    "acceptance item with add_evidence, then call finish_step. Claim nothing that no tool has shown."
)

_READ = ["read_file", "search_text"]
_PROVE = [*_READ, "add_evidence", "finish_step"]


def _step(name: str, role: str, text: str, tools: list[str], **acceptance: str) -> dict[str, Any]:
    """A step of the plan. An acceptance item that speaks of evidence needs some."""
    items = [{"id": item, "text": words, "needs_evidence": "evidence" in words} for item, words in acceptance.items()]
    return {"id": name, "text": text, "role": role, "acceptance": items, "tools": tools}


STEPS = (
    _step(
        "survey",
        "Researcher",
        "Survey the package: its files, the largest ones, and the settings that limit a request.",
        ["list_files", *_PROVE],
        files="The files and their sizes are listed.",
        limits="The budget's settings are in evidence, with file and line.",
    ),
    _step(
        "reasons",
        "Researcher",
        "Find every reason for which something is left out of a request, and the code that makes a cut.",
        ["list_files", *_PROVE],
        set="The set of reasons is in evidence.",
        cut="The code that makes a cut is in evidence, with file and line.",
    ),
    _step(
        "proof",
        "Reviewer",
        "Find out how a recorded request is verified, and how it is built again.",
        _PROVE,
        verify="The check of a manifest is in evidence.",
        replay="The code that replays it is in evidence, with file and line.",
    ),
    _step(
        "report",
        "Writer",
        "Write the report, and answer questions on it.",
        _READ,
        cited="Every claim cites an artifact:// URI, or file and line.",
    ),
)


def _plan_at(step: int) -> dict[str, Any]:
    """The plan as session state holds it, at one of the steps."""
    return {
        "task_id": "source-audit",
        "task": "Audit what this package leaves out of a request.",
        "goal": "A short report in which every claim can be checked.",
        "step": STEPS[step],
        "next": [later["text"] for later in STEPS[step + 1 : step + 2]],
    }


_MARCH_2025, _DAY = 1_741_000_000.0, 86_400.0


def _note(name: str, text: str, day: int, **more: float) -> dict[str, Any]:
    return {"id": name, "text": text, "time": _MARCH_2025 + day * _DAY, **more}


_KNOWLEDGE: dict[str, Any] = {
    "notes": [
        _note("n-lines", "The reader wants file and line for each claim in the report.", 0),
        _note("n-again", "The reader wants file and line for each claim in the report.", 1),
        _note("n-frozen", "The source must not be read before the review.", 1, expires=_MARCH_2025 + 2 * _DAY),
    ],
    "memories": [
        _note("m-reasons", "An earlier audit found that a reason is recorded whenever something is left out.", 2),
        _note("m-replay", "A recorded request can be built again: replay compares it with its checksum.", 4),
    ],
    "evidence": [],
}

# What the model does when no live one is called: a generator that yields moves, each the parts of an answer,
# and is sent the results of its calls as the model got to see them: shortened, where the pack had to shorten them.

_R = TypeVar("_R")
_Play: TypeAlias = Generator[list[types.Part], list[str] | None, _R]
_HIT = re.compile(r"^(\S+\.py):(\d+): (.*)$", re.MULTILINE)
_FILE = re.compile(r"^(\S+\.py) (\d+) (\d+)$", re.MULTILINE)


def _script() -> _Play[None]:
    """The plan's steps, the report, and one question on it."""
    files = _FILE.findall((yield from _call("list_files")))
    largest = sorted(files, key=lambda file: (-int(file[2]), file[0]))[:4]
    yield [
        types.Part(text=f"The listing has {len(files)} files. The largest come first."),
        *(types.Part.from_function_call(name="read_file", args={"path": path}) for path, _, _ in largest),
    ]
    report = ["What limits a request, what is left out of it, and how a recorded one is checked:"]
    yield from _prove(report, "limits", "class BudgetSettings", "The budget's settings")
    yield from _call("finish_step")
    reasons = yield from _prove(report, "set", "Reason: TypeAlias", "The reasons for leaving out", whole=True)
    yield from _prove(report, "cut", "def cut(", "The code that cuts a conversation", whole=True)
    yield from _call("finish_step")
    yield from _prove(report, "verify", "def verify(self", "The check of a manifest", whole=True)
    yield from _prove(report, "replay", "class Replayer", "The code that replays a request")
    yield from _call("finish_step")
    if names := re.findall(r'"(\w+)"', reasons):
        report.append(f"The reasons are {', '.join(names)}.")
    yield [types.Part(text="\n".join(report))]
    hits = [hit for hit in _HIT.findall((yield from _call("search_text", text="{base}/"))) if "texts" in hit[2]]
    answer = ["In the folder that the store's layout names:", *(f"- {path}:{at}: {line}" for path, at, line in hits)]
    yield [types.Part(text="\n".join(answer) if hits else "Unknown: no tool showed where the store keeps texts.")]
    while True:
        yield [types.Part(text="The report is finished.")]


def _call(name: str, /, **arguments: Any) -> _Play[str]:
    results = yield [types.Part.from_function_call(name=name, args=arguments)]
    return results[0] if results else ""


def _prove(report: list[str], item: str, text: str, claim: str, *, whole: bool = False) -> _Play[str]:
    """Records the lines at a text's first hit as evidence, and reports the claim; returns what was recorded.

    With ``whole`` the file is read from beginning to end first.
    """
    hit = _HIT.search((yield from _call("search_text", text=text)))
    if hit is None:
        report.append(f"- {claim}: unknown, no line contains {text!r}.")
        return ""
    path, first, line = hit[1], int(hit[2]), hit[3]
    if whole:
        yield from _call("read_file", path=path)
    summary = f"{claim} begins at line {first} of {path}: {line}"
    lines = {"path": path, "first_line": first, "last_line": first + 11}
    recorded = yield from _call("add_evidence", **lines, summary=summary, covers=[item])
    uri = recorded.split(maxsplit=1)[0] if recorded.startswith("artifact://") else f"{path}:{first}"
    report.append(f"- {claim}: {path}:{first} `{line}` ({uri})")
    return recorded


# The agent on ADK's own runner: its tools, its session, and the scripted model.

LIKE = "gemini-2.5-flash"
"""The model whose token counts and prices the script is given."""


class Folder:
    """A folder of Python files but one; nothing outside it is reached. The model reads the methods' docstrings."""

    def __init__(self, root: Path, *, without: str = "") -> None:
        self._root, self._without = root.resolve(), without

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
            f"{path}:{number}: {line.strip()[:160]}"
            for path, content in self._texts()
            for number, line in enumerate(content.splitlines(), start=1)
            if text and text in line
        ]
        return "\n".join(hits[:40]) or f"No line contains {text!r}."

    def _lines(self, path: str) -> list[str] | None:
        try:
            wanted = (self._root / path).resolve()
            inside = wanted.is_relative_to(self._root) and wanted.suffix == ".py"
            return wanted.read_text(encoding="utf-8").splitlines() if inside else None
        except (OSError, ValueError):
            return None

    def _texts(self) -> list[tuple[str, str]]:
        """Path and text of each file, in the order of their paths."""
        names = sorted(path.relative_to(self._root).as_posix() for path in self._root.rglob("*.py"))
        texts = [(name, self._lines(name)) for name in names if name != self._without]
        return [(name, "\n".join(lines) + "\n") for name, lines in texts if lines is not None]


class ScriptedModel(BaseLlm):
    _play: _Play[None] = PrivateAttr(default_factory=_script)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        # What the calls before returned, as it stands at the request's end; the script begins with nothing.
        parts = (llm_request.contents[-1].parts if llm_request.contents else None) or ()
        found = [part.function_response.response for part in parts if part.function_response is not None]
        move = self._play.send([str(next(iter((response or {"": ""}).values()))) for response in found] or None)
        # 0 is "no data" to the packs; without any usage ADK logs a warning at every call.
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=0)
        yield LlmResponse(content=types.Content(role="model", parts=move), usage_metadata=usage)


async def research(*, model: str | None, plugin: BasePlugin, root: Path) -> tuple[str, list[tuple[str, str]]]:
    """Runs the agent over a folder of Python files, once through its plan and once for a question.

    Without a ``model`` the script answers. Returns the session's id, and the pairs of question and answer.
    """
    folder = Folder(root, without="demo.py")

    async def add_evidence(
        path: str, first_line: int, last_line: int, summary: str, covers: list[str], tool_context: ToolContext
    ) -> str:
        """Keeps lines of a file as proof. covers names the ids of the acceptance items that they prove."""
        lines = folder.read_file(path, first_line, last_line)
        knowledge = tool_context.state["knowledge"]
        name = f"evidence/{len(knowledge['evidence']) + 1}.txt"
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
        tool_context.state["plan"] = _plan_at(at + 1)
        return f"Step {names[at]} is finished. The step is now {names[at + 1]}."

    scripted = ScriptedModel(model=f"{LIKE}-scripted")
    agent = LlmAgent(
        name="researcher",
        model=model or scripted,
        instruction=_INSTRUCTION,
        tools=[folder.list_files, folder.read_file, folder.search_text, add_evidence, finish_step],
    )
    runner = InMemoryRunner(app=App(name="demo", root_agent=agent, plugins=[plugin]))
    state = {"plan": _plan_at(0), "knowledge": _KNOWLEDGE}
    session = await runner.session_service.create_session(app_name="demo", user_id="reader", state=state)
    answers = []
    for question in (QUESTION, FOLLOW_UP):
        message = types.Content(role="user", parts=[types.Part(text=question)])
        answer = ""
        async for event in runner.run_async(user_id="reader", session_id=session.id, new_message=message):
            if event.is_final_response() and event.content is not None:
                answer = "".join(part.text or "" for part in event.content.parts or ())
        answers.append((question, answer))
    await runner.close()
    return session.id, answers
