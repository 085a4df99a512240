"""The model of the samples: Gemini where GOOGLE_API_KEY is set, else a script, so that they run offline.

A script is a generator. It is given the user's words, yields calls of tools, is sent the result of each, and returns
its answer. Where it yields an answer instead, it is sent what another agent says to that. It is played from the
beginning at every request, with the replies that the request holds, so that one script serves any number of sessions.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from typing import Any, TypeAlias

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

OBJECTIONS = ("For context:", "The answer is not accepted yet.")
"""How what another agent says begins, and what the gate says: words that the user did not say."""
Play: TypeAlias = Generator[types.Part, str, str]
Script: TypeAlias = Callable[[str], Play]


def model(script: Script) -> str | BaseLlm:
    """What an agent's ``model`` is set to."""
    if os.environ.get("GOOGLE_API_KEY"):
        return "gemini-flash-latest"
    return ScriptedModel(model="gemini-flash-latest-scripted", script=script)


def call(name: str, /, **arguments: Any) -> types.Part:
    """A call of a tool, for a script to yield."""
    return types.Part(function_call=types.FunctionCall(name=name, args=arguments))


def say(text: str) -> types.Part:
    """An answer that another agent may object to, for a script to yield."""
    return types.Part(text=text)


class ScriptedModel(BaseLlm):
    """Answers each request with the next part of its script."""

    script: Script

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        part = _next_part(self.script, llm_request.contents)
        # Without any usage ADK logs a warning at every call; 0 says that there is no data.
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=0)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)


def _next_part(script: Script, contents: Sequence[types.Content]) -> types.Part:
    at, asked = max(((at, words) for at, one in enumerate(contents) if (words := _words(one))), default=(0, ""))
    play = script(asked)
    try:
        part = next(play)
        for reply in _replies(contents[at:]):
            part = play.send(reply)
    except StopIteration as end:
        return types.Part(text=end.value)
    return part


def _words(content: types.Content) -> str:
    """What the user said: in a packed message it stands at the end; what other agents said is quoted or handed over."""
    text = "\n".join(part.text for part in content.parts or () if part.text) if content.role == "user" else ""
    if text.startswith("CONTEXT PACK\n"):
        head, _, text = text.partition("\nUSER REQUEST:\n")
        text = "" if "\nHANDED OVER:\n" in head else text
    return "" if text.startswith(OBJECTIONS) else text


def _replies(contents: Sequence[types.Content]) -> list[str]:
    """Results of tools, a line each value, and what other agents say right after an answer."""
    replies: list[str] = []
    answered = False
    for content in contents:
        parts = content.parts or ()
        responses = [part.function_response for part in parts if part.function_response]
        replies += ["\n".join(map(str, (one.response or {}).values())) for one in responses]
        text = "\n".join(part.text for part in parts if part.text)
        if answered and text.startswith(OBJECTIONS):
            replies.append(text)
        answered = content.role == "model" and not any(part.function_call for part in parts)
    return replies
