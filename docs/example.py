"""The example of the design document (task 42, step 3), played by a team through ADK's Runner.

    python docs/example.py    prints the packs, and the document's lines beside those of the Operator's pack

`generate.py` puts the same into the page on steps. The models are scripts, so it runs offline and always alike.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import warnings
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.apps import App
from google.adk.artifacts import InMemoryArtifactService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types
from pydantic import Field

from aether_context import PackPolicy
from aether_context.adk import ContextPackPlugin, HybridMemoryService, evidence_tools, planning_tools
from aether_context.packing.payload import FIRST_LINE

APP, USER, SESSION = "example", "user", "task-42"
REPORT, INDEX = "tasks/42/step-3/report.md", "tasks/42/step-3/source_index.json"
REQUEST = "Summarize what sets our competitors apart, with sources."
PLAN = {
    "task_id": "42",
    "task": "Competitor analysis",
    "goal": "Summarize competitor analysis with sources.",
    "constraints": ["Latency <= 8s; cost <= $0.20"],
    "steps": [
        {
            "id": "3",
            "role": "Operator",
            "text": "Extract top 5 differentiators.\nProvide risks and gaps.",
            "tools": ["search_web", "file_read"],
            "acceptance": [{"id": "3.a1", "text": "include sources + evidence links", "needs_evidence": True}],
        },
        {
            "id": "4",
            "role": "Reviewer",
            "text": "Check the summary.",
            "tools": ["file_read"],
            "acceptance": [{"id": "4.a1", "text": "each differentiator has a source"}],
            "depends_on": ["3"],
        },
    ],
}
KNOWLEDGE = {
    "evidence": [
        {"uri": f"artifact://{REPORT}", "summary": "five vendors compared by price, support and reach"},
        {"uri": f"artifact://{INDEX}", "summary": ""},
    ]
}

DOCUMENT = """\
ROLE:
- You are the Operator executing step 3.
GOAL:
- Summarize competitor analysis with sources.
STEP:
- Extract top 5 differentiators.
- Provide risks and gaps.
CONSTRAINTS:
- Latency <= 8s; cost <= $0.20
- Acceptance: include sources + evidence links
TOOLS (step-only):
- search_web(query, max_results)
- file_read(path)
EVIDENCE:
- artifact://tasks/42/step-3/report.md (summary: ...)
- artifact://tasks/42/step-3/source_index.json
MEMORY:
- User prefers concise output (2026-01-20)
USER REQUEST (VERBATIM):
- ...original user request text...
CONVERSATION TAIL:
- (omitted here; kept as prior messages in `contents[]` to avoid duplication)
- If the conversation tail is truncated, include a short CONVERSATION SUMMARY here instead.
"""
"""The document's serialization example, without its blank lines."""
ELSEWHERE = {
    "- ...original user request text...": f"`{REQUEST}`",
    "CONVERSATION TAIL:": "earlier messages stay messages",
    "- (omitted here; kept as prior messages in `contents[]` to avoid duplication)": "so here",
    "- If the conversation tail is truncated, include a short CONVERSATION SUMMARY here instead.": (
        "it stands where they stood ([why](decisions.md))"
    ),
}
"""Lines of the document that no line of the pack has the words of, with what is there in their place."""


def search_web(query: str, max_results: int) -> dict[str, str]:
    """Searches the web."""
    lines = [f"Vendor {at}: {query}, from {19 + 7 * at} dollars" for at in range(1, max_results + 1)]
    return {"result": "\n".join(lines)}


def file_read(path: str) -> str:
    """Reads a file."""
    return f"{path}: vendor 1 answers within a day, vendor 2 within a week"


class Script(BaseLlm):
    """Answers from a script, and keeps the text of the message that it was to answer."""

    script: list[Any]
    messages: list[str] = Field(default_factory=list)

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        texts = [part.text or "" for content in llm_request.contents for part in content.parts or ()]
        packs = [text for text in texts if text.startswith(f"{FIRST_LINE}\n")]
        self.messages.append((packs or texts)[-1])
        part = self.script.pop(0)
        part = types.Part(text=part) if isinstance(part, str) else part
        # Without any usage ADK logs a warning at every call; 0 says that there is no data.
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=0)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)


def call(name: str, /, **arguments: Any) -> types.Part:
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments))


class Played(NamedTuple):
    """What the team came to: the first message to each agent's model, the last answer, and the plan at the end."""

    messages: Mapping[str, str]
    answer: str
    plan: Mapping[str, Any]


def agents() -> dict[str, LlmAgent]:
    """The team, by name."""
    settings: dict[str, dict[str, Any]] = {
        "planner": {"output_key": "plan"},
        "operator": {"tools": [search_web, file_read, *planning_tools(), *evidence_tools()]},
        "reviewer": {"tools": [search_web, file_read, *planning_tools()]},
    }
    scripts: dict[str, list[Any]] = {
        "planner": [json.dumps(PLAN)],
        "operator": [
            call("search_web", query="analytics for shops", max_results=5),
            call("file_read", path="notes.md"),
            call("record_evidence", uri=f"artifact://{REPORT}", summary="prices and support", covers=["3.a1"]),
            call("complete_step", step_id="3"),
            f"They differ in price, support and reach (artifact://{REPORT}). Gap: nothing on privacy.",
        ],
        "reviewer": [
            call("file_read", path="notes.md"),
            call("complete_step", step_id="4"),
            f"3.a1 met: artifact://{REPORT}. 4.a1 met.",
        ],
    }
    return {
        name: LlmAgent(name=name, model=Script(model="gpt-4.1", script=scripts[name]), **settings[name])
        for name in settings
    }


_numbers = itertools.count(1)


async def play() -> Played:
    """Plays the example to its end."""
    sessions, artifacts, memories = (
        InMemorySessionService(),
        InMemoryArtifactService(),
        HybridMemoryService(embedder="none"),
    )
    scope = {"app_name": APP, "user_id": USER, "session_id": SESSION}
    await sessions.create_session(**scope, state={"knowledge": KNOWLEDGE})
    for name, text in ((REPORT, "# Five vendors compared\n"), (INDEX, '["https://vendors.example/prices"]')):
        await artifacts.save_artifact(**scope, filename=name, artifact=types.Part(text=text))
    wish = MemoryEntry(
        content=types.Content(role="user", parts=[types.Part(text="User prefers concise output")]),
        timestamp=datetime(2026, 1, 20, tzinfo=UTC).isoformat(),
        custom_metadata={"kind": "preference"},
    )
    await memories.add_memory(app_name=APP, user_id=USER, memories=[wish])
    team = agents()
    policy = PackPolicy.load("research", max_input_tokens=128_000)
    plugin = ContextPackPlugin(policy=policy, store=f"memory://example-{next(_numbers)}", on_error="raise")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "SequentialAgent is deprecated", DeprecationWarning)
        root = SequentialAgent(name="team", sub_agents=list(team.values()))
    app = App(name=APP, root_agent=root, plugins=[plugin])
    runner = Runner(app=app, session_service=sessions, artifact_service=artifacts, memory_service=memories)
    message, answer = types.UserContent(parts=[types.Part(text=REQUEST)]), ""
    async for event in runner.run_async(user_id=USER, session_id=SESSION, new_message=message):
        if event.is_final_response():
            answer = "".join(part.text or "" for part in event.content.parts or ()) if event.content else ""
    await runner.close()
    session = await sessions.get_session(**scope)
    assert session is not None
    messages = {name: one.canonical_model.messages[0] for name, one in team.items()}  # type: ignore[attr-defined]
    return Played(messages, answer, session.state["plan"])


def compared(pack: str) -> list[tuple[str, str]]:
    """Each line of the document with the line of a pack that has most of its words, or what is there in its place.

    Raises:
        ValueError: neither is there.
    """
    lines, rows = pack.splitlines(), []
    for line in DOCUMENT.splitlines():
        header, words = re.sub(r" \(.*\):", ":", line), _words(line)
        best = max(lines, key=lambda other: (len(words & _words(other)), -len(_words(other))))
        if line.endswith(":") and header in lines:
            rows.append((line, header))
        elif line in ELSEWHERE:
            rows.append((line, ELSEWHERE[line]))
        elif 2 * len(words & _words(best)) >= len(words):
            rows.append((line, best.strip()))
        else:
            raise ValueError(f"the pack has no line for {line!r}")
    return rows


def _words(line: str) -> set[str]:
    return set(re.findall(r"[a-z0-9_.]+", line.lower()))


def page() -> str:
    """The three packs, and the comparison, in Markdown."""
    played = asyncio.run(play())
    pieces = []
    for name, message in played.messages.items():
        pieces.append(f"{name.title()}:\n\n```text\n{message}\n```")
    pairs = compared(played.messages["operator"])
    same = ", ".join(f"`{line}`" for line, other in pairs if line == other)
    rows = [f"- `{line.replace('`', '')}` → {_code(other)}" for line, other in pairs if line != other]
    listed = "\n".join([*rows, f"- the same: {same}"])
    return "\n\n".join([*pieces, f"The document's lines and the Operator's:\n\n{listed}"])


def _code(line: str) -> str:
    return line if line in ELSEWHERE.values() else f"`{line}`"


if __name__ == "__main__":
    print(page())
