"""Media in tools' results, in every form in which ADK 2.13 hands them over, and evidence that is kept by hand."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from scripted import Chat, call, faults, grow, state_of

from aether_context import PackPolicy
from aether_context.adk import keep_evidence


def png(width: int, height: int, seed: int = 0) -> bytes:
    """A PNG with a header that is valid, and pixels that do not compress."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = bytes((at * 7919 + seed) % 251 for at in range(6_000))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", header), (b"IDAT", body), (b"IEND", b""))
    )


LARGE, OTHER, SMALL = png(3_000, 2_000), png(3_000, 2_000, 1), png(200, 100)
PART = types.Part.from_bytes(data=LARGE, mime_type="image/png")
TINY = types.Part.from_bytes(data=SMALL, mime_type="image/png")
ENCODED = base64.b64encode(LARGE).decode()
MODEL = "gemini-3-pro-preview"
"""It takes media in the answers of tools, and counts 1,120 for an image."""

RESULTS: dict[str, Any] = {
    "a part alone": PART,
    "a part in an object": {"label": "before", "image": PART},
    "a part in a list": ["before", PART],
    "a part deep inside": {"page": {"images": [{"label": "before", "image": PART}]}},
    "an image of MCP": {"content": [{"type": "image", "data": ENCODED, "mimeType": "image/png"}]},
    "a resource of MCP": {"content": [{"type": "resource", "resource": {"mimeType": "image/png", "blob": ENCODED}}]},
    "a data URI": {"image_url": {"url": f"data:image/png;base64,{ENCODED}"}},
    "bytes": {"label": "before", "image": LARGE},
}


def drawing(result: Any):
    def draw(name: str) -> Any:
        """Draws."""
        return result(name) if callable(result) else result

    return draw


def talk_of(result: Any, script: list[Any] | None = None, **settings: Any) -> Chat:
    offload = settings.pop("offload", {"tools": {"draw": "always"}})
    talk = Chat(
        script=script or [call("draw", name="a"), "done"],
        tools=[drawing(result)],
        policy=PackPolicy(offload=offload, max_input_tokens=settings.pop("window", 16_000)),
        model=settings.pop("model", MODEL),
        **settings,
    )
    talk.say("draw a plan")
    return talk


def answers(talk: Chat, name: str = "draw") -> list[types.FunctionResponse]:
    held = [part.function_response for one in talk.sent[-1].contents for part in one.parts or ()]
    return [one for one in held if one is not None and one.name == name]


def kept(talk: Chat) -> list[Any]:
    return [one for one in talk.store.evidence("shop", "ann", "s1") if one.piece]


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS)
def test_media_go_to_the_store_and_their_address_stays(result):
    talk = talk_of(result)
    (answer,) = answers(talk)
    (record,) = kept(talk)
    assert (record.media_type, record.size_bytes, record.form) == ("image/png", len(LARGE), "described")
    assert talk.store.evidence_data("shop", "ann", record.digest) == LARGE
    assert answer.parts is None
    assert f"{record.uri} (image/png, 6 KB): read_artifact shows it" in str(answer.response)
    assert ENCODED[:40] not in str(answer.response)
    assert "before" in str(answer.response) or "before" not in str(result)
    assert talk.latest().artifact_uris == (record.uri,)
    talk.replays()


def test_a_long_text_beside_an_image_is_offloaded_and_the_image_stays():
    text = "\n".join(f"order {at * 37 % 1009} was sent to box_{at * 53 % 2003}" for at in range(800))
    talk = talk_of({"text": text, "images": [TINY, PART]}, model="claude-sonnet-4-5", offload={})
    (answer,) = answers(talk)
    assert [one.inline_data.data for one in answer.parts] == [SMALL, LARGE]
    assert "[… lines " in answer.response["text"]
    talk.replays()


def test_the_model_sees_a_medium_again_where_it_can():
    script = [call("draw", name="a"), "seen"]
    talk = talk_of(PART, script)
    (record,) = kept(talk)
    talk.llm.script += [call("read_artifact", uri=record.uri), "done", "on"]
    talk.say("look at it", "and on")
    (answer,) = answers(talk, "read_artifact")
    assert answer.response == {"shown": "image/png, 6 KB"}
    assert [one.inline_data.data for one in answer.parts] == [LARGE]
    assert faults(talk.sent[-1].contents) == []
    talk.replays()


@pytest.mark.parametrize(
    ("model", "window", "said"), [("gemini-2.5-flash", None, "takes in no tool's answer"), (MODEL, 1_500, "room for")]
)
def test_a_medium_that_cannot_be_shown_is_answered_clearly(model, window, said):
    talk = talk_of(PART, [call("draw", name="a"), "seen"], model=model, window=window)
    (record,) = kept(talk)
    talk.llm.script += [
        call("read_artifact", uri=record.uri),
        call("search_artifact", uri=record.uri, query="x"),
        "done",
    ]
    talk.say("look at it")
    assert said in answers(talk, "read_artifact")[0].response["error"]
    assert "cannot be read as text" in answers(talk, "search_artifact")[0].response["error"]


def test_text_in_a_part_can_be_read_and_what_is_no_text_is_told():
    rows = "\n".join(f"{at},box_{at}" for at in range(3_000)).encode()
    parts = [types.Part.from_bytes(data=data, mime_type="text/csv; x=y") for data in (rows, b"\xff" * 9_000)]
    talk = talk_of(parts, [call("draw", name="a"), "seen"])
    good, bad = sorted(kept(talk), key=lambda one: one.piece)
    talk.llm.script += [
        call("read_artifact", uri=good.uri, start_line=7, max_lines=1),
        call("read_artifact", uri=bad.uri),
        "done",
    ]
    talk.say("read")
    first, second = answers(talk, "read_artifact")
    assert first.response["text"] == "6,box_6"
    assert "not text in UTF-8" in second.response["error"]


@pytest.mark.parametrize(
    "value",
    [
        {"data": "plain words that are no base64 at all, though they are quite long, " * 3, "mimeType": "image/png"},
        {"data": "QUJD" * 30, "mimeType": "text/plain"},
        {"data": "QUJD" * 30, "mimeType": 7},
        {"data": "QUJD", "mimeType": "image/png"},
        "data:image/png;base64,*" * 20,
        "QUJD" * 100,
    ],
)
def test_what_only_looks_like_media_is_text(value):
    talk = talk_of(value, offload={})
    assert kept(talk) == []
    assert talk.sent[-1].answers("draw") == [value if isinstance(value, dict) else {"result": value}]


PLAN = {
    "task_id": "t1",
    "step": {
        "id": "s1",
        "text": "Read the lease.",
        "acceptance": [{"id": "a1", "text": "The retention period is known.", "needs_evidence": True}],
    },
}


def known(talk: Chat) -> list[dict[str, Any]]:
    return state_of(talk).get("knowledge", {}).get("evidence", [])


def kept_in(talk: Chat) -> list[Any]:
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
        ("drawing.svg", b"<svg></svg>", "image/svg+xml", ".txt"),
        ("scan.pdf", b"%PDF-1.7\n\xff\xfe\x00", "application/pdf", ".bin"),
        ("odd.txt", b"caf\xe9", "application/octet-stream", ".bin"),
        ("none", b"\x00\xff\x00", "application/octet-stream", ".bin"),
    ],
)
def test_files_are_kept_by_their_bytes(tmp_path: Path, name, data, media_type, ending):
    path = tmp_path / name
    path.write_bytes(data)

    async def fetch(tool_context: ToolContext) -> dict[str, Any]:
        """Fetches."""
        return {"kept": (await keep_evidence(tool_context, path, source=name)).uri}

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
