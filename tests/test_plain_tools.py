"""Tools declared as plain functions, which ADK wraps anew at each call, cost no more than instances do."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai import types
from scripted import Chat, call, look_up


def loop(calls: int) -> list[types.Part]:
    return [call("look_up", key=f"k{at}") for at in range(calls)]


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
