"""Evidence kept by hand: by a tool of the app's own, by the ready tool, and as packs and readers know it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from google.adk.tools.tool_context import ToolContext
from pydantic import BaseModel
from scripted import Chat, call, faults, new_store

from aether_context import PackPolicy
from aether_context.adk import evidence_tools, keep_evidence
from aether_context.cli import main
from aether_context.errors import KnowledgeError, StateError, StoreError
from aether_context.evidence import EvidenceRecord
from aether_context.store.replay import Replayer

PAGE = "\n".join(f"Clause {at}: the tenant keeps item {at} in order." for at in range(1, 600))
PAGE = PAGE.replace("Clause 377: the tenant keeps item 377 in order.", "Clause 377: the retention period is 41 days.")
URL = "https://example.org/lease?lang=en"
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


def state(talk: Chat) -> dict[str, Any]:
    held = asyncio.run(talk.sessions.get_session(app_name="shop", user_id="ann", session_id="s1"))
    return held.state


def known(talk: Chat) -> list[dict[str, Any]]:
    return state(talk).get("knowledge", {}).get("evidence", [])


def kept_in(talk: Chat) -> list[EvidenceRecord]:
    """What was kept by hand; the store also has the tools' own answers."""
    return [one for one in talk.store.evidence("shop", "ann", "s1") if not one.arguments]


def answers(talk: Chat, name: str) -> list[dict[str, Any]]:
    parts = [part for content in talk.sent[-1].contents for part in content.parts or ()]
    return [
        one.function_response.response for one in parts if one.function_response and one.function_response.name == name
    ]


def chat(script, tools, **settings: Any) -> Chat:
    settings = {"policy": PackPolicy(max_input_tokens=16_000), "state": {"plan": PLAN}, **settings}
    return Chat(script=script, tools=tools, **settings)


def test_a_text_is_kept_whole_and_summarized_in_its_own_lines():
    fetch, raised = keeping(PAGE, source=URL, covers=["a1"])
    talk = chat([call("fetch"), "done", "on"], [fetch])
    talk.say("what does the lease say?", "and?")
    assert raised == []
    (record,) = known(talk)
    assert "Clause 377: the retention period is 41 days." in record["summary"]
    lines = [one for one in record["summary"].splitlines() if not one.startswith(("[…", "(also"))]
    assert set(lines) <= set(PAGE.splitlines())
    assert len(record["summary"]) < len(PAGE) / 20
    (held,) = kept_in(talk)
    assert (held.uri, held.source, held.form) == (record["uri"], URL, "extract")
    assert talk.store.evidence_data("shop", "ann", held.digest).decode() == PAGE
    last = list(talk.store.manifests())[-1]
    assert held.uri in last.artifact_uris
    assert last.evidence_needed == ()
    assert "the retention period is 41 days" in talk.sent[-1].text


def test_the_readers_resolve_what_was_kept():
    fetch, _ = keeping(PAGE, source=URL)
    talk = chat([call("fetch"), "done"], [fetch])
    talk.say("go")
    talk.llm.script += [call("search_artifact", uri=known(talk)[0]["uri"], query="41 days"), "done"]
    talk.say("search")
    assert "Clause 377" in answers(talk, "search_artifact")[0]["found"][0]["text"]


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


@pytest.mark.parametrize(
    ("content", "settings", "error", "said"),
    [
        (" \n", {}, KnowledgeError, "nothing in what was given"),
        (Path("/nowhere/at/all.txt"), {}, KnowledgeError, "/nowhere/at/all.txt"),
        ("text", {"covers": ["a9"]}, KnowledgeError, "covers takes 'a1'"),
    ],
)
def test_what_cannot_be_kept_is_said_and_leaves_nothing(content, settings, error, said):
    fetch, raised = keeping(content, **settings)
    talk = chat([call("fetch"), "done"], [fetch])
    talk.say("go")
    assert isinstance(raised[0], error)
    assert said in str(raised[0])
    assert not any(key in state(talk) for key in ("aether:evidence", "knowledge"))
    assert kept_in(talk) == []


def test_a_store_that_is_down_raises_and_leaves_the_state_alone():
    store = new_store()

    def down(*arguments: Any) -> None:
        raise StoreError("no route to host")

    store.write_evidence = down  # type: ignore[method-assign]
    fetch, raised = keeping(PAGE)
    talk = chat([call("fetch"), "done"], [fetch, *evidence_tools()], store=store)
    talk.say("go")
    assert isinstance(raised[0], StoreError)
    talk.llm.script += [call("keep_evidence", text="x", source="y", covers=[]), "done"]
    talk.say("again")
    assert answers(talk, "keep_evidence") == [{"error": "no route to host"}]
    assert not any(key in state(talk) for key in ("aether:evidence", "knowledge"))


def test_an_app_without_the_plugin_has_to_give_a_store():
    fetch, raised = keeping("text")
    talk = Chat(script=[call("fetch"), "done"], tools=[fetch], use_plugin=False)
    talk.say("go")
    assert isinstance(raised[0], StoreError)
    assert "give store" in str(raised[0])
    store = new_store()
    talk = Chat(
        script=[call("keep_evidence", text="said", source="ann", covers=[]), "done"],
        tools=evidence_tools(store),
        use_plugin=False,
    )
    talk.say("go")
    assert [one.source for one in store.evidence("shop", "ann", "s1")] == ["ann"]


def test_a_state_schema_without_knowledge_refuses_before_anything_is_stored():
    class Shape(BaseModel):
        plan: Any = None

    fetch, raised = keeping("text")
    talk = chat([call("fetch"), "done"], [fetch], state={})
    talk.agent.state_schema = Shape
    talk.say("go")
    assert isinstance(raised[0], StateError)
    assert "knowledge" in str(raised[0])
    assert kept_in(talk) == []


def test_the_tool_keeps_a_text_and_answers_with_its_address():
    said = "  Ann: forty-one days.\n"
    talk = chat(
        [
            call("keep_evidence", text=said, source="Ann", covers=["a1"]),
            call("keep_evidence", text=said, source="Ann", covers=["zz"]),
            call("keep_evidence", text="", source="Ann", covers=[]),
            "done",
        ],
        evidence_tools(),
    )
    talk.say("go")
    kept, wrong, empty = answers(talk, "keep_evidence")
    (held,) = kept_in(talk)
    assert (kept["uri"], kept["covers"]) == (held.uri, ["a1"])
    assert talk.store.evidence_data("shop", "ann", held.digest).decode() == said
    assert "covers takes 'a1'" in wrong["error"]
    assert "needs a content" in empty["error"]


LONG = "\n".join(f"2025-01-01 10:00:{at % 60:02d} INFO step {at} took {at * 37 % 1009} ms" for at in range(800))


def read_status(name: str, tool_context: ToolContext) -> str:
    """Reads a status, which changes with every second call."""
    calls = tool_context.state.get("calls", 0)
    tool_context.state["calls"] = calls + 1
    return f"{LONG}\nstatus {[1, 2, 2, 1][calls % 4]} of {name}"


def addresses_of(talk: Chat) -> list[str]:
    return [one["artifact"].split(" ")[0] for one in answers(talk, "read_status")]


def test_manifests_name_results_that_a_later_equal_call_differs_from():
    reads = [call("read_status", name="a")] * 4
    script = [*reads[:3], "one", reads[3], "two"]
    talk = chat(script, [read_status], state={})
    talk.say("go", "again")
    old, new, same, again = addresses_of(talk)
    assert (new, again) == (same, old)
    by_call = [(one.artifact_uris, dict(one.superseded)) for one in talk.store.manifests()]
    both = tuple(sorted([old, new]))
    assert by_call[0] == ((), {})
    assert by_call[1] == ((old,), {})
    assert by_call[2] == by_call[3] == (both, {old: new})
    assert by_call[-1] == (both, {new: old})
    replayer = Replayer(talk.store)
    assert all(replayer.replay(one).matches for one in talk.store.manifests())


def test_a_later_result_says_which_one_it_supersedes_and_nothing_sent_changes():
    reads = [call("read_status", name="a"), call("read_status", name="b"), *[call("read_status", name="a")] * 3]
    talk = chat(
        [*reads, "one", "two"],
        [read_status],
        state={"calls": 0, "plan": PLAN},
    )
    talk.say("go", "again")
    said = [(one["artifact"].split(" ")[0], one.get("supersedes")) for one in answers(talk, "read_status")]
    first, of_b, second, third, last = (uri for uri, _ in said)
    assert len({first, of_b, second, third}) == 4 - (first == third)
    before = [earlier for _, earlier in said]
    assert before[:2] == [None, None]
    assert before[2] == (first if first != second else None)
    assert before[3] == (second if third != second else None)
    assert before[4] == (third if last != third else None)
    assert any(before)
    sent = [one.wires for one in talk.sent[: len(reads) + 1]]
    for earlier, later in zip(sent, sent[1:], strict=False):
        assert later[: len(earlier)] == earlier
    talk.replays()


def test_readers_and_the_payload_say_what_is_superseded():
    prices = iter((4, 5))

    async def look(tool_context: ToolContext) -> str:
        """Looks up the price."""
        await keep_evidence(tool_context, f"the price is {next(prices)}", source=URL, covers=["a1"])
        return "kept"

    talk = chat([call("look"), call("look"), "noted"], [look])
    talk.say("go")
    old, new = (one["uri"] for one in known(talk))
    talk.llm.script += [call("read_artifact", uri=old), call("read_artifact", uri=new), "done"]
    talk.say("read them")
    assert f"{old} [covers a1] [superseded by {new}] (summary: the price is 4)" in talk.sent[-1].text
    assert f"{new} [covers a1] (summary: the price is 5)" in talk.sent[-1].text
    before, after = answers(talk, "read_artifact")
    assert before == {"lines": "1 of 1", "text": "the price is 4", "superseded_by": new}
    assert "superseded_by" not in after
    talk.replays()


def test_a_later_text_from_the_same_place_supersedes_an_earlier_one(capsys):
    store = new_store()
    talk = chat(
        [
            call("keep_evidence", text="the price is 4", source=URL, covers=[]),
            call("keep_evidence", text="the price is 5", source=URL, covers=[]),
            call("keep_evidence", text="a thing", source="", covers=[]),
            call("keep_evidence", text="another thing", source="", covers=[]),
            "done",
        ],
        evidence_tools(),
        store=store,
    )
    talk.say("go")
    old, new = (one["uri"] for one in answers(talk, "keep_evidence")[:2])
    assert [one.get("supersedes") for one in answers(talk, "keep_evidence")] == [None, old, None, None]
    last = list(store.manifests())[-1]
    assert dict(last.superseded) == {old: new}
    with pytest.raises(SystemExit, match="0"):
        main(["inspect", last.pack_id, "--store", store.url])
    printed = capsys.readouterr().out
    assert f"{old} by {new}" in " ".join(printed.split())


@pytest.mark.slow
def test_results_that_a_cut_took_are_still_named_by_their_addresses():
    def read_part(name: str) -> str:
        """Reads a part of a log."""
        return "\n".join(f"order {name}/{at * 37 % 1009} was sent to box_{at * 53 % 2003}" for at in range(800))

    names = [f"part-{at}" for at in range(60)]
    script = [reply for name in names for reply in (call("read_part", name=name), f"{name} is read")]
    talk = chat(
        script,
        [read_part],
        state={},
    )
    talk.say(*(f"read {name}" for name in names))
    manifests = list(talk.store.manifests())
    assert max(one.epoch.cut_count for one in manifests) > 0
    records = talk.store.evidence("shop", "ann", "s1")
    shown = str(answers(talk, "read_part"))
    cut = [one.uri for one in records if one.uri not in shown]
    assert len(records) == len(names)
    assert len(cut) > 10
    assert all(f"read_part: {uri}" in talk.sent[-1].text for uri in cut[-10:])
    assert set(cut[-10:]) <= set(manifests[-1].artifact_uris)
    assert all(faults(one.contents) == [] for one in talk.sent)
