"""The second try of a call that its provider refused as too long, or for its signed thoughts."""

from __future__ import annotations

from collections.abc import Mapping

from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

_SET_BY_ADK = ("labels", "http_options")
"""What ADK and its clients put into a configuration after all callbacks."""


def copy_of(request: LlmRequest) -> LlmRequest:
    """A request whose lists can be changed without changing the other's."""
    config = request.config
    if config is not None:
        # Readers are declared inside the lists that ADK made.
        tools = [
            tool.model_copy(update={"function_declarations": list(tool.function_declarations or ()) or None})
            if isinstance(tool, types.Tool)
            else tool
            for tool in config.tools or ()
        ]
        config = config.model_copy(update={"tools": tools or None})
    update = {"contents": list(request.contents), "config": config, "tools_dict": dict(request.tools_dict)}
    return request.model_copy(update=update)


class FirstTry:
    """A request as ADK handed it over, and as it was when it had been packed: what a second try needs where its
    provider refuses the pack as too long."""

    def __init__(self, request: LlmRequest) -> None:
        self._request = copy_of(request)
        self._contents: list[types.Content] = []
        self._config: Mapping[str, object] = {}

    def record(self, request: LlmRequest) -> FirstTry:
        """Takes in how the request left the packer."""
        self._contents, self._config = list(request.contents), _settings(request)
        return self

    def again(self, sent_request: LlmRequest) -> LlmRequest | None:
        """The request to be packed again; None where another callback changed it behind the packer, whose change would
        be lost."""
        # ADK's clients may put a message behind them; a `FallbackModel` puts equal copies in their places.
        if sent_request.contents[: len(self._contents)] != self._contents or _settings(sent_request) != self._config:
            return None
        if sent_request.config is not None and self._request.config is not None:
            for name in _SET_BY_ADK:
                setattr(self._request.config, name, getattr(sent_request.config, name))
        return self._request


def _settings(request: LlmRequest) -> dict[str, object]:
    return {name: value for name, value in dict(request.config or ()).items() if name not in _SET_BY_ADK}


async def ask_again(invocation: InvocationContext, request: LlmRequest) -> LlmResponse | None:
    """Asks the agent's model and returns its answer in one piece; ADK counts the call. None where the agent has no
    model to ask."""
    llm = getattr(invocation.agent, "canonical_model", None)
    if not isinstance(llm, BaseLlm):
        return None
    invocation.increment_llm_call_count()
    answer = None
    async for response in llm.generate_content_async(request, stream=False):
        answer = response
    return answer
