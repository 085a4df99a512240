"""Each content is read once, and again only where it would be sent otherwise; state of one agent reaches no other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from google.genai import types
from scripted import Chat, call, look_up

from aether_context.adk.call import Contents
from aether_context.adk.request.contents import AgentContents, CallContents
from aether_context.adk.request.gather import Gatherer
from aether_context.adk.request.reader import Reader
from aether_context.pack import Content

NOTHING = Content(role="user", parts=(), wire="", digest="")


def a_call() -> types.Content:
    arguments = {"path": "a.py", "lines": [1, 2], "deep": {"is_open": True, "share": 1.0, "none": None}}
    return types.Content(role="model", parts=[types.Part(function_call=types.FunctionCall(name="run", args=arguments))])


def a_result() -> types.Content:
    response = types.FunctionResponse(name="run", id="c1", response={"result": "text " * 50, "count": 3})
    return types.Content(role="user", parts=[types.Part(function_response=response)])


def a_message() -> types.Content:
    picture = types.Part(inline_data=types.Blob(data=b"GIF89a", mime_type="image/gif"))
    return types.Content(role="user", parts=[types.Part(text="Look at this"), picture])


def words() -> types.Content:
    return types.Content(role="user", parts=[types.Part(text="Only words")])


def arguments(content: types.Content) -> Any:
    return content.parts[0].function_call.args


def response(content: types.Content) -> Any:
    return content.parts[0].function_response.response


EDITS: list[tuple[Callable[[], types.Content], Callable[[types.Content], Any]]] = [
    (words, lambda content: setattr(content.parts[0], "text", "Other words")),
    (words, lambda content: setattr(content.parts[0], "thought", True)),
    (words, lambda content: setattr(content, "role", "model")),
    (words, lambda content: content.parts.append(types.Part(text="more"))),
    (words, lambda content: content.parts.clear()),
    (a_call, lambda content: arguments(content).update(path="b.py")),
    (a_call, lambda content: arguments(content)["lines"].append(3)),
    (a_call, lambda content: arguments(content)["lines"].__setitem__(0, True)),
    (a_call, lambda content: arguments(content)["lines"].__setitem__(0, 1.0)),
    (a_call, lambda content: arguments(content)["deep"].update(is_open=1)),
    (a_call, lambda content: arguments(content)["deep"].update(share=1)),
    (a_call, lambda content: arguments(content)["deep"].update(none=False)),
    (a_call, lambda content: arguments(content)["deep"].update(new=None)),
    (a_call, lambda content: setattr(content.parts[0], "thought_signature", b"signed")),
    (a_call, lambda content: setattr(content.parts[0].function_call, "id", "c2")),
    (a_result, lambda content: response(content).update(count=3.0)),
    (a_result, lambda content: response(content).update(result="another text")),
    (a_result, lambda content: setattr(content.parts[0].function_response, "name", "walk")),
    (a_message, lambda content: setattr(content.parts[1].inline_data, "data", b"GIF89b")),
    (a_message, lambda content: setattr(content.parts[1].inline_data, "mime_type", "image/png")),
]


class CountingReader(Reader):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def freeze(self, content: types.Content, model: str) -> Any:
        self.reads += 1
        return super().freeze(content, model)


def call_contents(kept: AgentContents, reader: Reader, *loaded: types.Content) -> CallContents:
    return CallContents(
        kept, reader, "gemini-2.5-flash", Contents(loaded), lambda raw, content: content, lambda at: NOTHING
    )


@pytest.mark.parametrize("in_one_pass", [True, False])
@pytest.mark.parametrize(("made", "edit"), EDITS)
def test_an_edit_is_seen_and_a_copy_is_taken_over(made: Any, edit: Any, in_one_pass: bool) -> None:
    kept, reader, raw = AgentContents(), CountingReader(), made()
    first = call_contents(kept, reader, raw)[0]
    kept.answered_until = 1
    again = call_contents(kept, reader, copy.deepcopy(raw))
    again.take_over(range(in_one_pass))
    assert len(again) == in_one_pass
    assert again[0] is first
    assert not again.has_changed
    assert reader.reads == 1
    edit(raw)  # in place: what was kept of it is its own
    edited = call_contents(kept, reader, raw)
    edited.take_over(range(in_one_pass))
    assert not edited
    assert edited[0] == Reader().content(raw, "gemini-2.5-flash")
    assert edited.has_changed
    assert reader.reads == 2


def test_what_cannot_be_compared_is_read_by_what_would_be_sent() -> None:
    kept, reader = AgentContents(), CountingReader()

    def raw(pair: tuple[int, ...]) -> types.Content:
        content = a_result()
        response(content)["pair"] = pair
        return content

    first = call_contents(kept, reader, raw((1, 2)))[0]
    assert call_contents(kept, reader, raw((1, 2)))[0] is first
    assert call_contents(kept, reader, raw((1, 3)))[0] != first
    assert reader.reads == 2


def test_a_call_reads_only_what_is_new() -> None:
    reads: list[types.Content] = []
    freeze = Reader.freeze

    def counted(self: Reader, content: types.Content, model: str) -> Any:
        reads.append(content)
        return freeze(self, content, model)

    script = [item for at in range(12) for item in (call("look_up", key=f"k{at}"), f"found {at}")]
    chat = Chat(script=script, tools=[look_up])
    chat.say(*(f"question {at}" for at in range(8)))
    with patch.object(Reader, "freeze", counted):
        chat.say("question 8")
    assert 0 < len(reads) <= 6  # question, call and result, each maybe once more by its event


@pytest.mark.parametrize("turn", range(3))
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
    states = chat.plugin._packer._parts.states._states.values()  # type: ignore[union-attr]
    assert len({state.key for state in states}) == len(states) == 2
    assert states[0].contents is not states[1].contents
    chat.say("What is it?", user="ada")
    assert "Falcon" in chat.sent[-1].text


def test_long_loops_give_the_same_packs_as_a_process_that_knows_nothing() -> None:
    def run(forgets: bool) -> list[str]:
        script = [call("look_up", key=f"k{at}") for at in range(14)] + ["done"]
        chat = Chat(script=script, tools=[look_up])

        def alter(context: Any, request: Any) -> None:
            for state in chat.plugin._packer._parts.states._states.values() if forgets else ():  # type: ignore[union-attr]
                state.contents = AgentContents()

        chat.before.alter = alter
        chat.say("Look them all up", "And again")
        return [text for sent in chat.sent for text in sent.wires]

    assert run(forgets=False) == run(forgets=True)


def test_a_call_sends_its_own_contents_whatever_one_beside_it_reads() -> None:
    def beside(text: str) -> CallContents:
        response = types.FunctionResponse(name="run", id="c1", response={"result": text})
        raw = [types.Content(role="user", parts=[types.Part(function_response=response)])]
        return CallContents(kept, reader, "gemini", Contents(raw), lambda _, content: content, lambda _: NOTHING)

    def sent(contents: CallContents) -> str:
        return str(contents.sent_of([NOTHING], [0])[0].parts[0].function_response.response)  # type: ignore[union-attr, index]

    kept, reader = AgentContents(), Reader()
    first, second = beside("one\x1b[31m"), beside("two\x1b[31m")
    assert first[0] != second[0]
    assert "one" in sent(first)
    assert "\x1b" not in sent(first)
    kept.entries.clear()  # which a third one may do
    assert "two" in sent(second)
    assert "\x1b" not in sent(second)


def test_an_instruction_among_the_contents_has_nothing_read_twice() -> None:
    chat = Chat(
        script=[*(call("look_up", key=f"k{at}") for at in range(4)), "done", "fine"],
        tools=[look_up],
        instruction="The day is {day?}.",
        settings={"static_instruction": "You help."},
    )
    with patch.object(Gatherer, "gather", autospec=True, side_effect=Gatherer.gather) as gather:
        chat.say("hi", "again")
    assert gather.call_count == len(chat.sent) == 6
