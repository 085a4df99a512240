"""Each content is read once, and again only where it would be sent otherwise; state of one agent reaches no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import date
from typing import Any
from unittest.mock import patch

import pytest
from google.genai import types
from house import walking
from plans import loop, small, turns
from scripted import Chat, call, look_up

from aether_context.adk import packer
from aether_context.adk.request import gather


def arguments(content: types.Content) -> Any:
    return content.parts[0].function_call.args


def response(content: types.Content) -> Any:
    return content.parts[0].function_response.response


EDITS: list[tuple[str, Callable[[types.Content], Any]]] = [
    ("result", lambda content: response(content).update(count=-2)),
    ("words", lambda content: setattr(content.parts[0], "text", "Other words")),
    ("words", lambda content: setattr(content.parts[0], "thought", True)),
    ("words", lambda content: setattr(content, "role", "model")),
    ("words", lambda content: content.parts.append(types.Part(text="more"))),
    ("words", lambda content: content.parts.clear()),
    ("call", lambda content: arguments(content).update(path="b.py")),
    ("call", lambda content: arguments(content)["lines"].append(3)),
    ("call", lambda content: arguments(content)["lines"].__setitem__(0, True)),
    ("call", lambda content: arguments(content)["lines"].__setitem__(0, 1.0)),
    ("call", lambda content: arguments(content)["deep"].update(is_open=1)),
    ("call", lambda content: arguments(content)["deep"].update(share=1)),
    ("call", lambda content: arguments(content)["deep"].update(none=False)),
    ("call", lambda content: arguments(content)["deep"].update(new=None)),
    ("call", lambda content: setattr(content.parts[0], "thought_signature", b"signed")),
    ("call", lambda content: setattr(content.parts[0].function_call, "id", "c2")),
    ("result", lambda content: response(content).update(count=-1.0)),
    ("result", lambda content: response(content).update(result="another text")),
    ("result", lambda content: response(content).update(pair=(1, -1))),
    ("result", lambda content: setattr(content.parts[0].function_response, "name", "walk")),
    ("message", lambda content: setattr(content.parts[1].inline_data, "data", b"GIF89b")),
    ("message", lambda content: setattr(content.parts[1].inline_data, "mime_type", "image/png")),
]


def run(path: str, lines: list[int], deep: dict[str, Any]) -> dict[str, Any]:
    """Runs a file."""
    return {"result": "text " * 50, "count": -1, "at": date(2026, 1, 1)}


def kind_of(content: types.Content) -> str:
    part = (content.parts or [types.Part()])[0]
    is_message = content.parts is not None and len(content.parts) > 1
    return (
        "call" if part.function_call else "result" if part.function_response else "message" if is_message else "words"
    )


def edited(kind: str, edit: Callable[[types.Content], Any] | None, restarts: bool = False) -> Chat:
    """A session whose first content of a kind a callback edits before the last two calls."""

    def alter(context: Any, request: Any) -> None:
        if edit is not None and len(request.contents) > 6:
            edit(next(content for content in request.contents if kind_of(content) == kind))

    arguments = {"path": "a.py", "lines": [1, 2], "deep": {"is_open": True, "share": 1.0, "none": None}}
    picture = types.Part(inline_data=types.Blob(data=b"GIF89a", mime_type="image/gif"))
    chat = Chat(script=[call("run", **arguments), "Done.", "Seen.", "Fine.", "So it is."], tools=[run], alter=alter)
    for parts in ([types.Part(text="Only words")], [types.Part(text="Look at this"), picture]):
        chat.say(types.Content(role="user", parts=parts))
    for message in ("And now?", "And then?"):
        if restarts:
            chat.restart()
        chat.say(message)
    return chat


@pytest.fixture(scope="module")
def untouched() -> tuple[str, ...]:
    return edited("words", None).raw[-1].wires


@pytest.mark.parametrize(("kind", "edit"), EDITS)
@pytest.mark.rows(12)
def test_an_edit_is_seen_as_by_a_process_that_knows_nothing(
    kind: str, edit: Callable[[types.Content], Any], untouched: tuple[str, ...]
) -> None:
    chat, other = edited(kind, edit), edited(kind, edit, restarts=True)
    assert [sent.wires for sent in chat.sent] == [sent.wires for sent in other.sent]
    assert chat.raw[-1].wires != untouched
    assert chat.latest().checksum == other.latest().checksum, "the receipt is of what is sent"
    assert chat.manifests()  # which replays them


STATIC = {"static_instruction": "You help."}
"""Beside which an agent's instruction stands among the contents."""


def entered(turns: int, settings: dict[str, Any]) -> int:
    """The functions of the package that a message and its two model calls enter behind so many turns."""
    script = [item for at in range(turns + 1) for item in (call("look_up", key=f"k{at}"), f"found {at}")]
    chat = Chat(script=script, tools=[look_up], instruction="The day is {day?}.", settings=settings)
    chat.say(*(f"question {at}" for at in range(turns)))
    with walking() as steps:
        chat.say("one more question")
    return len(steps)


@pytest.mark.parametrize("settings", [{}, STATIC], ids=["plain", "an instruction among the contents"])
def test_a_call_reads_only_what_is_new(settings: dict[str, Any]) -> None:
    more_contents = 4 * (9 - 3)
    assert entered(9, settings) - entered(3, settings) < 30 * more_contents, "to read one enters 150 functions"


def test_what_a_cut_took_is_compared_once_for_each_message() -> None:
    chat = Chat(policy=small(1_500), script=[*["ok"] * 30, *loop(5), "done"], tools=[look_up])
    chat.say(*turns(30))
    assert chat.latest().epoch.cut_count > 50
    with walking() as steps:
        chat.say("one more question")
    assert len(chat.sent) == 36
    assert 60 < [name.rpartition(".")[2] for _, name, _ in steps].count("key_hash") < 2 * 60


@pytest.mark.parametrize("turn", [0, 2])
def test_what_a_callback_does_to_an_old_message_is_in_the_pack(turn: int) -> None:
    edited: list[types.Part] = []

    def alter(context: Any, request: Any) -> None:
        texts = [
            part for content in request.contents for part in content.parts or () if part.text == f"question {turn}"
        ]
        for part in texts if len(request.contents) > 12 else ():
            part.text = f"question {turn}, as a callback has it"
            edited.append(part)

    script = [item for at in range(8) for item in (call("look_up", key=f"k{at}"), f"found {at}")]
    chat = Chat(script=script, tools=[look_up], alter=alter)
    chat.say(*(f"question {at}" for at in range(6)))
    assert edited
    assert "as a callback has it" in chat.sent[-1].text
    assert chat.manifests()  # which replays them


def test_the_same_words_of_two_users_are_read_for_each() -> None:
    chat = Chat(script=["one", "two", "three", "four"])
    for user in ("ada", "bob"):
        chat.say("My secret is Falcon", user=user)
    sessions = chat.plugin._packer._parts.sessions._sessions.values()  # type: ignore[union-attr]
    states = [state for session in sessions for state in session.agents.values()]
    assert len({state.key for state in states}) == len(states) == 2
    assert states[0].entries is not states[1].entries
    chat.say("What is it?", user="ada")
    assert "Falcon" in chat.sent[-1].text


def test_a_run_beside_one_of_another_model_sends_what_others_hid_with_escapes() -> None:
    """The second run reads all contents anew, for its own model, while the first is being packed."""

    def fetch(key: str) -> dict[str, str]:
        """Fetches a page."""
        return {"page": "A page about gardens\x1b[31m"}

    def alter(context: Any, request: Any) -> None:
        if "second" in context.user_content.parts[0].text:
            request.model = "gemini-2.5-pro"

    async def both(chat: Chat) -> None:
        first = asyncio.ensure_future(chat.tell("The first run"))
        await asyncio.to_thread(packing.wait)
        await asyncio.gather(first, chat.tell("The second run"))

    packing, has_read = threading.Event(), threading.Event()
    build, aside = packer.build_pack, gather.aside

    def build_late(source: Any, *arguments: Any, **options: Any) -> Any:
        packing.set()
        has_read.wait()
        return build(source, *arguments, **options)

    async def read_late(size: int, act: Callable[[], Any]) -> Any:
        if packing.is_set():
            has_read.set()
            await asyncio.sleep(0.1)  # the first run goes on, before this one has read anything
        return await aside(size, act)

    chat = Chat(tools=[fetch], script=[call("fetch", key="a"), "Done.", "One.", "Two."], alter=alter)
    chat.say("Please fetch.")
    with patch.object(packer, "build_pack", build_late), patch.object(gather, "aside", read_late):
        asyncio.run(both(chat))
    assert len(chat.sent) == 4
    assert not any("\x1b" in answer["page"] for sent in chat.sent for answer in sent.answers("fetch"))


def test_a_call_sends_its_own_contents_whatever_one_beside_it_reads() -> None:
    """Two runs of one session, whose results have the same place and id, and other texts that have to be cleaned."""
    texts = iter(["one\x1b[31m", "two\x1b[31m"])

    async def run_aside() -> str:
        """Runs something that takes a moment."""
        text = next(texts)
        await asyncio.sleep(0)
        return text

    async def both(chat: Chat) -> None:
        await chat.tell("Begin.")
        await asyncio.gather(chat.tell("Go."), chat.tell("Go."))

    beside = types.Part(function_call=types.FunctionCall(name="run_aside", id="c1", args={}))
    chat = Chat(script=["Begun.", beside, beside, "Done.", "Done."], tools=[run_aside])
    asyncio.run(both(chat))
    results = {answer["result"] for sent in chat.sent for answer in sent.answers("run_aside")}
    assert {result[:3] for result in results} == {"one", "two"}
    assert not any("\x1b" in result for result in results)
