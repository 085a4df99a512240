"""Questions that a model says in other words."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from aether_context.adk import HybridMemoryService, ModelExpander
from aether_context.errors import PolicyError
from aether_context.redaction import masker
from aether_context.retrieval import HybridIndex


class Writer(BaseLlm):
    """A model that says what it is told to, after some seconds, or raises."""

    says: str = ""
    seconds: float = 0
    raises: Any = None
    asked: list[str] = []

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        self.asked.append(llm_request.contents[0].parts[0].text)
        await asyncio.sleep(self.seconds)
        if self.raises is not None:
            raise self.raises
        usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=30, candidates_token_count=9)
        content = types.Content(role="model", parts=[types.Part(text=self.says)])
        yield LlmResponse(content=content, usage_metadata=usage)


def writer(says: str = "", **more: Any) -> Writer:
    return Writer(model="writer", says=says, asked=[], **more)


def test_an_index_searches_by_the_models_wordings_too() -> None:
    model = writer("1. Which automobile?\n- Which automobile?\n2023 sedan\n\nand more")
    expander = ModelExpander(model, count=2)
    index = HybridIndex("none", expander=expander)
    index.add_texts(["a", "b"], ["the automobile of Ann", "soup"])
    assert [hit.id for hit in index.search("her car?")] == ["a"]
    assert expander.expand("her car?") == ("Which automobile?", "2023 sedan")
    assert len(model.asked) == 1, "it is asked once for a question"
    assert "2 other wordings" in model.asked[0]
    assert model.asked[0].endswith("her car?")
    assert expander.cost.to_json() == {"requests": 1, "input_tokens": 30, "output_tokens": 9}


def test_an_answer_that_is_made_up_is_searched_by_as_a_whole() -> None:
    expander = ModelExpander(writer("Ann drives\na sedan."), method="hyde")
    assert expander.expand("her car?") == ("Ann drives\na sedan.",)
    assert ModelExpander(writer(" "), method="hyde").expand("her car?") == ()


@pytest.mark.parametrize("model", [writer(raises=RuntimeError("no")), writer("late", seconds=30)])
def test_a_model_that_fails_or_is_late_adds_nothing_and_is_asked_again(
    model: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    expander = ModelExpander(model, timeout_seconds=0.05)
    began = time.monotonic()
    assert expander.expand("her car?") == ()
    assert time.monotonic() - began < 10
    assert "searched by its own words alone" in caplog.text
    expander.expand("her car?")
    assert len(model.asked) == 2


def test_it_works_beside_a_running_event_loop() -> None:
    async def search() -> tuple[str, ...]:
        return tuple(await asyncio.to_thread(ModelExpander(writer("a sedan")).expand, "her car?"))

    assert asyncio.run(search()) == ("a sedan",)


@pytest.mark.parametrize("wrong", [{"model": "no such model"}, {"method": "guess"}, {"count": 0}])
def test_what_is_wrong_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyError) as error:
        ModelExpander(**{"model": writer(), **wrong})
    assert error.value.field == next(iter(wrong))


def test_a_memory_service_searches_by_them_and_masks_what_the_model_reads() -> None:
    model = writer("the automobile")
    service = HybridMemoryService(embedder="none", expander=ModelExpander(model), redact=masker(["email"]))
    who = {"app_name": "app", "user_id": "ann"}

    async def ask() -> list[str]:
        assert not (await service.search_memory(**who, query="the car of ann@example.org")).memories
        assert not model.asked, "there is nothing to search"
        told = types.Content(role="user", parts=[types.Part(text="My automobile is in the garage.")])
        await service.add_memory(**who, memories=[MemoryEntry(content=told)])
        found = await service.search_memory(**who, query="the car of ann@example.org")
        return [entry.content.parts[0].text for entry in found.memories]

    assert asyncio.run(ask()) == ["My automobile is in the garage."]
    assert "ann@example.org" not in model.asked[0]
