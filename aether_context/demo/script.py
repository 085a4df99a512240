"""What the demo's agent is asked to do, and what its model does when no live one is called."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias

# What the demo's agent is asked to do: its plan, step by step, and what it knows beforehand.

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


# What the demo's model does when no live one is called: moves that depend on what the tools return.
#
# A play is a generator. It yields moves, each a set of calls or an answer, and is sent the results of the calls as
# the model got to see them: shortened, where the pack had to shorten them.

Results: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One answer of the model: what it says, and the tools it calls, by name with arguments."""

    say: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


Play: TypeAlias = Generator[Move, Results, None]

_HIT = re.compile(r"^(\S+\.py):(\d+): (.*)$", re.MULTILINE)
_FILE = re.compile(r"^(\S+\.py) (\d+) (\d+)$", re.MULTILINE)
_MANY = 4
_PROOF_LINES = 12
_REASONS = "The reasons for leaving out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A claim with its proof: where it stands, the line that matched, and what add_evidence returned."""

    claim: str
    place: str
    line: str
    recorded: str

    @property
    def uri(self) -> str:
        return self.recorded.split(maxsplit=1)[0] if self.recorded.startswith("artifact://") else self.place


def researcher() -> Play:
    """The plan's steps, the report, and one question on it."""
    listing = yield from _call("list_files")
    largest = sorted(_FILE.findall(listing), key=lambda one: (-int(one[2]), one[0]))[:_MANY]
    yield Move(
        say=f"The listing has {len(_FILE.findall(listing))} files. The largest come first.",
        calls=tuple(("read_file", {"path": path}) for path, _, _ in largest),
    )
    limits = yield from _prove("limits", "class BudgetSettings", "The budget's settings")
    yield from _call("finish_step")
    reasons = yield from _prove("set", "Reason: TypeAlias", _REASONS, whole=True)
    cut = yield from _prove("cut", "def cut(", "The code that cuts a conversation", whole=True)
    yield from _call("finish_step")
    verify = yield from _prove("verify", "def verify(self", "The check of a manifest", whole=True)
    replay = yield from _prove("replay", "class Replayer", "The code that replays a request")
    yield from _call("finish_step")
    yield Move(say=_report([limits, reasons, cut, verify, replay]))
    found = yield from _call("search_text", text="{base}/")
    yield Move(say=_answer(found))
    while True:
        yield Move(say="The report is finished.")


def _call(name: str, /, **arguments: Any) -> Generator[Move, Results, str]:
    results = yield Move(calls=((name, arguments),))
    return results[0] if results else ""


def _prove(item: str, text: str, claim: str, *, whole: bool = False) -> Generator[Move, Results, Finding | str]:
    """Searches for a text and records the lines at the first hit as evidence; the claim is unknown without a hit.

    Args:
        whole: whether the file is read from beginning to end first.
    """
    hit = _HIT.search((yield from _call("search_text", text=text)))
    if hit is None:
        return f"{claim}: unknown, no line contains {text!r}."
    path, first, line = hit[1], int(hit[2]), hit[3]
    if whole:
        yield from _call("read_file", path=path)
    recorded = yield from _call(
        "add_evidence",
        path=path,
        first_line=first,
        last_line=first + _PROOF_LINES - 1,
        summary=f"{claim} begins at line {first} of {path}: {line}",
        covers=[item],
    )
    return Finding(claim=claim, place=f"{path}:{first}", line=line, recorded=recorded)


def _report(findings: list[Finding | str]) -> str:
    lines = ["What limits a request, what is left out of it, and how a recorded one is checked:"]
    for one in findings:
        lines.append(f"- {one}" if isinstance(one, str) else f"- {one.claim}: {one.place} `{one.line}` ({one.uri})")
    reasons = [one.recorded for one in findings if isinstance(one, Finding) and one.claim == _REASONS]
    names = re.findall(r'"(\w+)"', reasons[0]) if reasons else []
    if names:
        lines.append(f"The reasons are {', '.join(names)}.")
    return "\n".join(lines)


def _answer(found: str) -> str:
    hits = [hit for hit in _HIT.findall(found) if "texts" in hit[2]]
    if not hits:
        return "Unknown: no tool showed where the store keeps texts."
    return "\n".join(
        ["In the folder that the store's layout names:", *(f"- {path}:{at}: {line}" for path, at, line in hits)]
    )
