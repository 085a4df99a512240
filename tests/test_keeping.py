"""Evidence kept by hand: by a tool of the app's own, by the ready tool, and as packs and readers know it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.adk.tools.tool_context import ToolContext
from scripted import Chat, call, grow, state_of

from aether_context import PackPolicy
from aether_context.adk import keep_evidence
from aether_context.evidence import EvidenceRecord

PAGE = "\n".join(f"Clause {at}: the tenant keeps item {at} in order." for at in range(1, 600))
PAGE = PAGE.replace("Clause 377: the tenant keeps item 377 in order.", "Clause 377: the retention period is 41 days.")
PLAN = {
    "task_id": "t1",
    "step": {
        "id": "s1",
        "text": "Read the lease.",
        "acceptance": [{"id": "a1", "text": "The retention period is known.", "needs_evidence": True}],
    },
}


def keeping(content: Any, **settings: Any):
    """A tool of an app that keeps something; what it raised is in ``raised``."""
    raised: list[Exception] = []

    async def fetch(tool_context: ToolContext) -> dict[str, Any]:
        """Fetches."""
        try:
            return {"kept": (await keep_evidence(tool_context, content, **settings)).uri}
        except Exception as error:
            raised.append(error)
            return {"error": str(error)}

    return fetch, raised


def known(talk: Chat) -> list[dict[str, Any]]:
    return state_of(talk).get("knowledge", {}).get("evidence", [])


def kept_in(talk: Chat) -> list[EvidenceRecord]:
    """What was kept by hand; the store also has the tools' own answers."""
    return [one for one in talk.store.evidence("shop", "ann", "s1") if not one.arguments]


def chat(script, tools, **settings: Any) -> Chat:
    settings = {"policy": PackPolicy(max_input_tokens=16_000), "state": {"plan": PLAN}, **settings}
    return Chat(script=script, tools=tools, **settings)


@pytest.mark.parametrize(
    ("name", "data", "media_type", "ending"),
    [
        ("page.html", b"<p>one</p>", "text/html", ".txt"),
        ("rows.csv", b"id,name\n1,ann\n2,bob\n", "text/csv", None),
        ("drawing.svg", b"<svg></svg>", "text/plain", ".txt"),
        ("scan.pdf", b"%PDF-1.7\n\xff\xfe\x00", "application/pdf", ".bin"),
        ("odd.txt", b"caf\xe9", "application/octet-stream", ".bin"),
        ("none", b"\x00\xff\x00", "application/octet-stream", ".bin"),
    ],
)
def test_files_are_kept_by_their_bytes(tmp_path: Path, name, data, media_type, ending):
    path = tmp_path / name
    path.write_bytes(data)
    fetch, _ = keeping(path, source=name)
    talk = chat([call("fetch"), "done"], [fetch])
    talk.say("go")
    (held,) = kept_in(talk)
    assert talk.store.evidence_data("shop", "ann", held.digest) == data
    assert held.media_type == media_type
    assert ending is None or held.uri.endswith(ending)
    assert known(talk)[0]["summary"]


LONG = "\n".join(f"2025-01-01 10:00:{at % 60:02d} INFO step {at} took {at * 37 % 1009} ms" for at in range(800))


def read_status(name: str, tool_context: ToolContext) -> str:
    """Reads a status, which changes with every second call."""
    calls = tool_context.state.get("calls", 0)
    tool_context.state["calls"] = calls + 1
    return f"{LONG}\nstatus {[1, 2, 2, 1][calls % 4]} of {name}"


def test_a_later_result_says_which_one_it_supersedes_and_nothing_sent_changes():
    reads = [call("read_status", name="a"), call("read_status", name="b"), *[call("read_status", name="a")] * 3]
    talk = chat([*reads, "one", "two"], [read_status], state={"calls": 0, "plan": PLAN})
    talk.say("go", "again")
    said = [(one["artifact"].split(" ")[0], one.get("supersedes")) for one in talk.sent[-1].answers("read_status")]
    first, of_b, second, third, last = (uri for uri, _ in said)
    assert len({first, of_b, second, third}) == 4 - (first == third)
    before = [earlier for _, earlier in said]
    assert before[:2] == [None, None]
    assert before[2] == (first if first != second else None)
    assert before[3] == (second if third != second else None)
    assert before[4] == (third if last != third else None)
    assert any(before)
    assert grow(talk.sent[: len(reads) + 1])
    talk.replays()
