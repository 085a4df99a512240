"""A model that writes summaries as it is asked to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types


def brief(item: dict[str, Any]) -> str:
    """What a good model would write: words of the text, and few."""
    words = item["text"].split()[: item["max_words"] // 2]
    return f"BRIEF {' '.join(words)}" if item["kind"] != "conversation" else "* BRIEF of the talk\n\n* the limit is 200"


class Writer(BaseLlm):
    """A model that writes summaries in the form it is asked for; ``asked`` are the items of each request."""

    model: str = "writer-1"
    write: Callable[[dict[str, Any]], str] = brief
    answer: str | None = None
    error: Any = None
    delay_seconds: float = 0.0
    asked: list[list[dict[str, Any]]] = []
    requests: list[LlmRequest] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        items = json.loads(llm_request.contents[0].parts[0].text)  # type: ignore[index, arg-type]
        self.asked.append(items)
        self.requests.append(llm_request)
        await asyncio.sleep(self.delay_seconds)
        if self.error is not None:
            raise self.error
        made = json.dumps({"summaries": [{"id": one["id"], "text": self.write(one)} for one in items]})
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=300, candidates_token_count=40)
        text = made if self.answer is None else self.answer
        yield LlmResponse(
            content=types.Content(role="model", parts=[types.Part(text="hm", thought=True), types.Part(text=text)]),
            usage_metadata=usage,
        )


def writer(**settings: Any) -> Writer:
    return Writer(asked=[], requests=[], **settings)
