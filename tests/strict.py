"""A model that refuses what is longer than it takes, and a conversation that becomes so."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai.errors import ClientError
from scripted import Chat, Reply, Scripted, size

LIMIT = 12_000


class Strict(Scripted):
    """Refuses what is longer than it takes, as Gemini does.

    It counts so many tokens for one of `size`, and reports the same.
    """

    limit: int = LIMIT
    counts: float = 1.0
    streams: bool = False
    says: bool = False
    refused: list[int] = []

    def _response(self, reply: Reply, reported: int) -> LlmResponse:
        return super()._response(reply, int(self.counts * reported))

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        tokens = int(self.counts * size(llm_request))
        if tokens <= self.limit:
            async for response in super().generate_content_async(llm_request, stream):
                yield response
            return
        self.refused.append(tokens)
        if self.streams:
            yield LlmResponse(partial=True)
        text = f"The input token count ({tokens}) exceeds the maximum number of tokens allowed ({self.limit})."
        if self.says:
            yield LlmResponse(error_code="INVALID_ARGUMENT", error_message=text)
            return
        raise ClientError(400, {"error": {"code": 400, "message": text, "status": "INVALID_ARGUMENT"}})


def message(number: int) -> str:
    return f"Question {number}. " + f"note {number} of the long report says something new; " * 90


def strict(**settings: Any) -> Strict:
    return Strict(sent=[], refused=[], **settings)


def turns(chat: Chat, numbers: range, **options: Any) -> list[int]:
    """Runs turns; returns the numbers of those that failed."""
    failed = []
    for number in numbers:
        try:
            events = chat.say(message(number), **options)
        except ClientError:
            failed.append(number)
        else:
            failed += [number] * any(event.error_code for event in events)
    return failed
