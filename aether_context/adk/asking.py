"""Asking an ADK model for one text, besides the agent's own calls."""

from __future__ import annotations

from dataclasses import dataclass

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.registry import LLMRegistry

from aether_context.errors import PolicyError


@dataclass(slots=True)
class Cost:
    """Requests and tokens as the model's provider reported them."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def to_json(self) -> dict[str, int]:
        """Empty where no model was asked."""
        if not self.requests:
            return {}
        return {"requests": self.requests, "input_tokens": self.input_tokens, "output_tokens": self.output_tokens}


async def ask(model: BaseLlm, request: LlmRequest, cost: Cost) -> str:
    """The text that a model answers, thoughts aside. Raises what the model raises."""
    cost.requests += 1
    said = ""
    async for response in model.generate_content_async(request, stream=False):
        usage = response.usage_metadata
        if usage is not None:
            cost.input_tokens += usage.prompt_token_count or 0
            cost.output_tokens += usage.candidates_token_count or 0
        parts = (response.content.parts if response.content is not None else None) or ()
        said += "".join(part.text for part in parts if part.text and not part.thought)
    return said


def check_model(name: str, field: str, argument: str) -> None:
    """Raises PolicyError where ADK's registry knows no model of that name.

    Args:
        field: the policy's field that names it.
        argument: the plugin's argument that takes a model object instead.
    """
    try:
        LLMRegistry.resolve(name)
    except (ValueError, ImportError) as error:
        raise PolicyError(
            f"{field} = {name!r}: ADK's registry has no such model; name one that it has, or give the plugin a model "
            f"object as {argument}",
            field=field,
        ) from error
