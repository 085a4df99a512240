"""What a user could pick instead, as ADK plugins: ADK's own filter, and the textbook form of two methods.

Tokens are those of tool_runs.py: UTF-8 bytes / 4 for each block, and 4. None of them keeps a request inside its window
come what may; what each does there is part of the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from google.adk.agents.callback_context import CallbackContext
from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.genai import types
from tool_runs import block, read, tokens

Contents: TypeAlias = list[types.Content]


class Method(BasePlugin):
    """Edits contents once a request is above a share of the window."""

    share = 1.0

    def __init__(self, window: int) -> None:
        super().__init__(name=type(self).__name__)
        self.window = window

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        whole = sum(map(tokens, read(llm_request).blocks))
        sizes = [size(content) for content in llm_request.contents]
        room = int(self.share * self.window) - (whole - sum(sizes))
        llm_request.contents = self.edit(list(llm_request.contents), sizes, room)

    def edit(self, contents: Contents, sizes: Sequence[int], room: int) -> Contents:
        """The contents to send, of which ``room`` tokens would fit."""
        raise NotImplementedError


class Placeholders(Method):
    """Responses and the model's words become placeholders, up to a boundary that only moves forward: all but the last
    ten messages of the model once 80% of the window are passed, and one more at a time while they still are."""

    share = 0.8
    keep = 10

    def __init__(self, window: int) -> None:
        super().__init__(window)
        self.boundary = 0

    def edit(self, contents: Contents, sizes: Sequence[int], room: int) -> Contents:
        left = [*map(blank, contents[: self.boundary]), *contents[self.boundary :]]
        used = sum(map(size, left))
        if used > room:
            models = [at for at, content in enumerate(left) if content.role == "model"]
            end = models[-self.keep] if len(models) > self.keep else 0
            while self.boundary < len(left) and (self.boundary < end or used > room):
                made = blank(left[self.boundary])
                used -= size(left[self.boundary]) - size(made)
                left[self.boundary] = made
                self.boundary += 1
        return left


class ClearedResults(Method):
    """All but the last three results are cleared while 80% of the window are passed."""

    share = 0.8
    keep = 3

    def edit(self, contents: Contents, sizes: Sequence[int], room: int) -> Contents:
        if sum(sizes) <= room:
            return contents
        results = [at for at, content in enumerate(contents) if has_response(content)]
        cleared = set(results[: -self.keep])
        return [blank(content, "[cleared]") if at in cleared else content for at, content in enumerate(contents)]


PEERS: Mapping[str, Callable[[int], list[BasePlugin]]] = {
    "full history": lambda window: [],
    "ADK's filter, 2 invocations": lambda window: [ContextFilterPlugin(num_invocations_to_keep=2)],
    "placeholders at 80%": lambda window: [Placeholders(window)],
    "clearing tool results": lambda window: [ClearedResults(window)],
}


def size(content: types.Content) -> int:
    return sum(tokens(block(content.role or "", part)[0]) for part in content.parts or ())


def has_response(content: types.Content) -> bool:
    return any(part.function_response for part in content.parts or ())


def blank(content: types.Content, text: str = "[trimmed]") -> types.Content:
    """The content with a placeholder for each response and each text of the model."""
    return types.Content(role=content.role, parts=[_blank(part, content.role, text) for part in content.parts or ()])


def _blank(part: types.Part, role: str | None, text: str) -> types.Part:
    response = part.function_response
    if response is not None:
        short = types.FunctionResponse(id=response.id, name=response.name, response={"result": text})
        return types.Part(function_response=short)
    return types.Part(text=text) if part.text and role == "model" else part
