"""What the demo's agent is asked to do: its plan, step by step, and what it knows beforehand."""

from __future__ import annotations

from typing import Any

QUESTION = (
    "Read the source of this package and report: what limits a request to the model, for which reasons is something "
    "left out of it, and how can a recorded request be checked afterwards? Work through the plan, and give file and "
    "line for each claim."
)
FOLLOW_UP = "Where in the store would I look for the texts of a recorded request?"

INSTRUCTION = (
    "You read source code and report on it. Take the plan's steps in order: search and read, record proof for each "
    "acceptance item with add_evidence, then call finish_step. Claim nothing that no tool has shown."
)

_LOOK = ["list_files", "read_file", "search_text", "add_evidence", "finish_step"]
_PROVE = ["read_file", "search_text", "add_evidence", "finish_step"]
_WRITE = ["read_file", "search_text"]

STEPS: tuple[dict[str, Any], ...] = (
    {
        "id": "survey",
        "text": "Survey the package: its files, the largest ones, and the settings that limit a request.",
        "role": "Researcher",
        "acceptance": [
            {"id": "files", "text": "The files and their sizes are listed."},
            {"id": "limits", "text": "The budget's settings are named with file and line.", "needs_evidence": True},
        ],
        "tools": _LOOK,
    },
    {
        "id": "reasons",
        "text": "Find every reason for which something is left out of a request, and the code that makes a cut.",
        "role": "Researcher",
        "acceptance": [
            {"id": "set", "text": "The set of reasons is quoted.", "needs_evidence": True},
            {"id": "cut", "text": "The code that makes a cut is named with file and line.", "needs_evidence": True},
        ],
        "tools": _LOOK,
    },
    {
        "id": "proof",
        "text": "Find out how a recorded request is verified, and how it is built again.",
        "role": "Reviewer",
        "acceptance": [
            {"id": "verify", "text": "The check of a manifest is quoted.", "needs_evidence": True},
            {"id": "replay", "text": "The code that replays it is named with file and line.", "needs_evidence": True},
        ],
        "tools": _PROVE,
    },
    {
        "id": "report",
        "text": "Write the report, and answer questions on it.",
        "role": "Writer",
        "acceptance": [{"id": "cited", "text": "Every claim cites an artifact:// URI, or file and line."}],
        "tools": _WRITE,
    },
)


def plan_at(step: int) -> dict[str, Any]:
    """The plan as session state holds it, at one of the steps."""
    return {
        "task_id": "source-audit",
        "task": "Audit what this package leaves out of a request.",
        "goal": "A short report in which every claim can be checked.",
        "step": STEPS[step],
        "constraints": {"risk": "medium", "notes": ["Read only; change no file."]},
        "expected_tool_calls": 6,
        "open_questions": [one["text"] for one in STEPS[step]["acceptance"] if one.get("needs_evidence")],
        "next": [one["text"] for one in STEPS[step + 1 : step + 2]],
        "stop_when": ["Every acceptance item is met, or its proof cannot be found."],
    }


_MARCH_2025 = 1_741_000_000.0
_DAY = 86_400.0


def _note(name: str, text: str, day: int, **more: float) -> dict[str, Any]:
    return {"id": name, "text": text, "time": _MARCH_2025 + day * _DAY, **more}


KNOWLEDGE: dict[str, Any] = {
    "notes": [
        _note("n-lines", "The reader wants file and line for each claim in the report.", 0),
        _note("n-again", "The reader wants file and line for each claim in the report.", 1),
        _note("n-frozen", "The source must not be read before the review.", 1, expires=_MARCH_2025 + 2 * _DAY),
    ],
    "memories": [
        _note("m-reasons", "An earlier audit found that a reason is recorded whenever something is left out.", 2),
        _note("m-settings", "The settings of the budget are frozen models, one for each stage.", 3),
        _note("m-replay", "A recorded request can be built again: replay compares it with its checksum.", 4),
    ],
    "evidence": [
        {
            "id": "brief",
            "uri": "artifact://brief.txt",
            "summary": "The commission for this audit: read-only, by one person, with a short report.",
            "time": _MARCH_2025,
        }
    ],
}
