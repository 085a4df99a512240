"""What reached the demo's model: the tokens of each request, and how many of them the request before began with."""

from __future__ import annotations

from dataclasses import dataclass

from google.adk.models.llm_request import LlmRequest

from aether_context.adk.request.reader import Reader, system_text
from aether_context.tokens import counter_for, framing_of
from aether_context.tokens.cache import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """One request: its tokens, and those at its beginning that it has in common with the request before."""

    tokens: int
    shared: int


class Meter:
    """Counts requests as they come.

    Args:
        model: whose tokens they are.
    """

    def __init__(self, model: str) -> None:
        self.requests: list[Reached] = []
        self._model = model
        self._reader = Reader()
        self._tally = Tally(counter_for(model), framing=framing_of(model))
        self._before: list[tuple[str, int]] = []

    def take(self, request: LlmRequest) -> None:
        """Counts a request: its declarations, its instruction, and its contents, in the order of the cache."""
        system, _ = system_text(request.config)
        tools = self._reader.tools(request.config, frozenset())
        contents = [self._reader.content(one, self._model) for one in request.contents]
        pieces = [
            *zip((tool.digest for tool in tools), self._tally.tools(tools), strict=True),
            (system, self._tally.system(system, declares=bool(tools))),
            *zip((one.digest for one in contents), self._tally.contents(contents), strict=True),
        ]
        shared = 0
        for piece, before in zip(pieces, self._before, strict=False):
            if piece != before:
                break
            shared += piece[1]
        self.requests.append(Reached(tokens=sum(tokens for _, tokens in pieces), shared=shared))
        self._before = pieces
