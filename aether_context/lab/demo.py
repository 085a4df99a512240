"""The demo's agent: it reads this package's own source in a window that is too small for it.

What an app needs is in `research`: an agent with tools of its own, the tools for plans and evidence, a plan and notes
in session state, and the plugin. Everything is real but the model: without a model's name a script stands in for it,
so that the demo runs offline and takes the same calls on every machine.
"""

from __future__ import annotations

import re
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
from google.genai import types
from pydantic import PrivateAttr

from aether_context.adk import evidence_tools, planning_tools

QUESTION = (
    "Read the source of this package and report: what limits a request to the model, for which reasons is something "
    "left out of it, and how can a recorded request be checked afterwards? Work through the plan, and give file and "
    "line for each claim."
)
FOLLOW_UP = "Where in the store would I look for the texts of a recorded request?"

_INSTRUCTION = (
    "You read source code and report on it. Take the plan's steps in order: search and read, keep the lines that prove "
    "an acceptance item with keep_evidence, call complete_step, and claim the next step. Report nothing that no tool "
    "has shown."
)

_SEARCH_TOOLS = ["read_file", "search_text"]
_PROOF_TOOLS = [*_SEARCH_TOOLS, "keep_evidence", "complete_step", "claim_step"]


def _step(name: str, role: str, text: str, tools: list[str], **acceptance: str) -> dict[str, Any]:
    """A step of the plan. An acceptance item that speaks of evidence needs some."""
    items = [{"id": item, "text": words, "needs_evidence": "evidence" in words} for item, words in acceptance.items()]
    return {"id": name, "text": text, "role": role, "acceptance": items, "tools": tools}


STEPS = (
    _step(
        "survey",
        "Researcher",
        "Survey the package: its files, the largest ones, and the settings that limit a request.",
        ["list_files", *_PROOF_TOOLS],
        files="The files and their sizes are listed.",
        limits="The budget's settings are in evidence, with file and line.",
    ),
    _step(
        "reasons",
        "Researcher",
        "Find every reason for which something is left out of a request, and the code that makes a cut.",
        ["list_files", *_PROOF_TOOLS],
        set="The set of reasons is in evidence.",
        cut="The code that makes a cut is in evidence, with file and line.",
    ),
    _step(
        "proof",
        "Reviewer",
        "Find out how a recorded request is verified, and how it is built again.",
        _PROOF_TOOLS,
        verify="The check of a manifest is in evidence.",
        replay="The code that replays it is in evidence, with file and line.",
    ),
    _step(
        "report",
        "Writer",
        "Write the report, and answer questions on it.",
        _SEARCH_TOOLS,
        cited="Every claim cites an artifact:// URI, or file and line.",
    ),
)


PLAN: dict[str, Any] = {
    "task_id": "source-audit",
    "task": "Audit what this package leaves out of a request.",
    "goal": "A short report in which every claim can be checked.",
    "steps": STEPS,
}
KNOWLEDGE: dict[str, Any] = {
    "notes": [
        {"id": "n-lines", "text": "The reader wants file and line for each claim in the report."},
        {"id": "n-again", "text": "The reader wants file and line for each claim in the report."},
        {"id": "n-frozen", "text": "The source must not be read before the review.", "expires": "2025-03-06"},
    ],
    "memories": [
        {"id": "m-reasons", "text": "A reason is recorded whenever something is left out.", "time": "2025-03-05"},
        {"id": "m-replay", "text": "A request is built again, and compared with its checksum.", "time": "2025-03-07"},
    ],
}

# The script yields moves, each the parts of an answer, and is sent what the model got to see of its calls' results.
_R = TypeVar("_R")
_Play: TypeAlias = Generator[list[types.Part], list[dict[str, Any]] | None, _R]
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
    yield from _next_step("survey", "reasons")
    reasons = yield from _prove(report, "set", "Reason: TypeAlias", "The reasons for leaving out", whole=True)
    yield from _prove(report, "cut", "def cut(", "The code that cuts a conversation", whole=True)
    yield from _next_step("reasons", "proof")
    yield from _prove(report, "verify", "def verify(self", "The check of a manifest", whole=True)
    yield from _prove(report, "replay", "class Replayer", "The code that replays a request")
    yield from _next_step("proof", "report")
    report.append("The reasons begin with " + ", ".join(re.findall(r'"(\w+)"', reasons)))
    yield [types.Part(text="\n".join(report))]
    hits = [hit for hit in _HIT.findall((yield from _call("search_text", text="{base}/"))) if "replay" in hit[2]]
    yield [types.Part(text="\n".join(f"- {path}:{at}: {line}" for path, at, line in hits) or "No tool showed that.")]


def _call(name: str, /, **arguments: Any) -> _Play[str]:
    results = yield [types.Part.from_function_call(name=name, args=arguments)]
    result = results[0] if results else {}
    return str(result.get("uri", next(iter(result.values()), "")))


def _next_step(done: str, claimed: str) -> _Play[None]:
    yield from _call("complete_step", step_id=done)
    yield from _call("claim_step", step_id=claimed)


def _prove(report: list[str], item: str, text: str, claim: str, *, whole: bool = False) -> _Play[str]:
    """Keeps the lines at a text's first hit as evidence, and reports the claim; returns the lines.

    With ``whole`` the file is read from beginning to end first.
    """
    hit = _HIT.search((yield from _call("search_text", text=text)))
    if hit is None:
        report.append(f"- {claim}: unknown, no line contains {text!r}.")
        return ""
    path, first, line = hit[1], int(hit[2]), hit[3]
    if whole:
        yield from _call("read_file", path=path)
    lines = yield from _call("read_file", path=path, first_line=first, last_line=first + 11)
    uri = yield from _call("keep_evidence", text=lines, source=f"{path}:{first}", covers=[item])
    report.append(f"- {claim}: {path}:{first} `{line}` ({uri})")
    return lines


# The agent on ADK's own runner: its tools, its session, and the scripted model.

_SCRIPTED = "gemini-flash-latest-scripted"
"""The script's name as a model: it has the token counts and prices of the one that it stands for."""


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
            file = (self._root / path).resolve()
            inside = file.is_relative_to(self._root) and file.suffix == ".py"
            return file.read_text(encoding="utf-8").splitlines() if inside else None
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
        responses = [part.function_response.response or {} for part in parts if part.function_response is not None]
        move = self._play.send(responses or None)
        # 0 is "no data" to the packs; without any usage ADK logs a warning at every call.
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=0)
        yield LlmResponse(content=types.Content(role="model", parts=move), usage_metadata=usage)


async def research(*, model: str | None, plugin: BasePlugin, root: Path) -> tuple[str, list[tuple[str, str]]]:
    """Runs the agent over a folder of Python files, once through its plan and once for a question.

    Without a ``model`` the script answers. Returns the session's id, and the pairs of question and answer.
    """
    folder = Folder(root, without="lab/demo.py")
    agent = LlmAgent(
        name="researcher",
        model=model or ScriptedModel(model=_SCRIPTED),
        instruction=_INSTRUCTION,
        tools=[folder.list_files, folder.read_file, folder.search_text, *evidence_tools(), *planning_tools()],
    )
    runner = InMemoryRunner(app=App(name="demo", root_agent=agent, plugins=[plugin]))
    state = {"plan": PLAN, "knowledge": KNOWLEDGE}
    session = await runner.session_service.create_session(app_name="demo", user_id="reader", state=state)
    conversation = []
    for question in (QUESTION, FOLLOW_UP):
        message = types.Content(role="user", parts=[types.Part(text=question)])
        answer = ""
        async for event in runner.run_async(user_id="reader", session_id=session.id, new_message=message):
            if event.is_final_response() and event.content is not None:
                answer = "".join(part.text or "" for part in event.content.parts or ())
        conversation.append((question, answer))
    await runner.close()
    return session.id, conversation
