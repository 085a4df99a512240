"""What a host sends without the plugin, counted as the packs count it."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin

from aether_context.adk.request.reader import Reader
from aether_context.tokens import counter_for, framing_of
from aether_context.tokens.cache import PackCounter


class Reached(NamedTuple):
    """A request that reached the model: its tokens, and those that it begins with as the one before did."""

    tokens: int
    shared: int


class Witness(BasePlugin):
    """Counts the requests to each agent as they come: instruction, declarations and contents."""

    def __init__(self, model: str = "gemini-2.5-flash") -> None:
        super().__init__(name="witness")
        self.requests: list[Reached] = []
        self._model = model
        self._reader = Reader()
        self._counter = PackCounter(counter_for(model), framing=framing_of(model))
        self._before: dict[str, list[tuple[str, int]]] = {}

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        counter = self._counter
        head = self._reader.head(llm_request)
        system, tools = head.system, head.tools
        contents = [self._reader.content(content, self._model) for content in llm_request.contents]
        pieces = [
            (system, counter.system(system, declares=bool(tools))),
            *zip((tool.digest for tool in tools), counter.tools(tools), strict=True),
            *zip((content.digest for content in contents), counter.contents(contents), strict=True),
        ]
        before = self._before.get(callback_context.agent_name, [])
        same = takewhile(lambda pair: pair[0] == pair[1], zip(pieces, before, strict=False))
        shared = sum(tokens for (_, tokens), _ in same)
        self.requests.append(Reached(tokens=sum(tokens for _, tokens in pieces), shared=shared))
        self._before[callback_context.agent_name] = pieces
