"""Tools declared as plain functions, which ADK wraps anew at each call, cost no more than instances do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.genai import types
from scripted import Chat, call, look_up

from aether_context.adk.request.reader import key_of


def loop(calls: int) -> list[types.Part]:
    return [call("look_up", key=f"k{at}") for at in range(calls)]


def first_response(contents: list[types.Content]) -> types.FunctionResponse:
    found = (part.function_response for content in contents for part in content.parts or ())
    return next(one for one in found if one is not None)


def response(edit: Callable[[types.FunctionResponse], None]) -> Callable[[list[types.Content]], None]:
    """Edits a copy of the first response: the session's own is not the host's to change for one request."""

    def act(contents: list[types.Content]) -> None:
        for content in contents:
            for part in content.parts or []:
                if part.function_response is not None:
                    part.function_response = part.function_response.model_copy(deep=True)
                    edit(part.function_response)
                    return

    return act


def replace_text(contents: list[types.Content]) -> None:
    at = next(at for at, one in enumerate(contents) if one.role == "user" and one.parts and one.parts[0].text)
    contents[at] = types.Content(role="user", parts=[types.Part(text="edited")])


def edit_arguments(contents: list[types.Content]) -> None:
    for content in contents:
        for part in content.parts or []:
            if part.function_call is not None and part.function_call.args == {"key": "k1"}:
                part.function_call = part.function_call.model_copy(update={"args": {"key": "edited"}})


def add_part(contents: list[types.Content]) -> None:
    contents[1].parts = [*(contents[1].parts or []), types.Part(text="edited")]


EDITS: dict[str, Callable[[list[types.Content]], None]] = {
    "a content": replace_text,
    "an answer": response(lambda held: setattr(held, "response", {"edited": True})),
    "inside an answer": response(lambda held: held.response.update(lines="edited")),  # type: ignore[union-attr]
    "arguments": edit_arguments,
    "a further part": add_part,
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_in_the_middle_of_what_is_known_is_sent(edit: str) -> None:
    def alter(context: Any, request: Any) -> None:
        if len(chat.raw) >= 5:
            EDITS[edit](request.contents)

    chat = Chat(script=[*loop(6), "done"], tools=[look_up], alter=alter)
    chat.say("look them up")
    edited = [number for number, one in enumerate(chat.sent) if "edited" in "".join(one.wires)]
    assert edited == [5, 6]
    chat.replays()


@pytest.mark.parametrize("field", ["description", "schema", "new"])
def test_a_changed_declaration_is_sent_and_counted(field: str) -> None:
    def alter(context: Any, request: Any) -> None:
        declared = request.config.tools[0].function_declarations
        if len(chat.raw) < 3:
            return
        if field == "description":
            declared[0].description = "edited " * 50
        elif field == "schema":
            declared[0].parameters_json_schema = {"type": "object", "properties": {"edited": {"type": "string"}}}
            declared[0].parameters = None
        else:
            declared.append(types.FunctionDeclaration(name="edited", description="A new one."))

    chat = Chat(script=[*loop(5), "done"], tools=[look_up], alter=alter)
    chat.say("look them up")
    manifests = chat.manifests()
    assert manifests[2].allocation["tools"].used != manifests[3].allocation["tools"].used
    chat.replays()


def part(**held: Any) -> types.Content:
    return types.Content(role="user", parts=[types.Part(function_response=types.FunctionResponse(name="t", **held))])


SAME = {"a": "x", "b": [1, True, None, 1.5, {"c": "d"}]}
OTHERS: list[Any] = [
    {**SAME, "a": "y"},
    {**SAME, "b": [True, True, None, 1.5, {"c": "d"}]},
    {**SAME, "b": [1, True, None, 1.5, {"c": "e"}]},
    {**SAME, "b": [1, True, None, 1.5]},
    {**SAME, "more": None},
    {"b": SAME["b"]},
]


def alike(one: types.Content, other: types.Content) -> bool:
    return key_of(one) == key_of(other)


def test_what_reads_alike_has_one_key() -> None:
    known = part(response=SAME)
    assert alike(known, part(response={**SAME}))
    assert not any(alike(known, part(response=other)) for other in OTHERS)
    assert not alike(known, part(response=SAME, id="x"))
    assert not alike(known, types.Content(role="model", parts=known.parts))
    assert not alike(known, types.Content(role="user", parts=[*(known.parts or []), types.Part(text="")]))
    edited = part(response={"a": "x"})
    before = key_of(edited)
    first_response([edited]).response["a"] = "y"  # type: ignore[index]
    assert key_of(edited) != before
