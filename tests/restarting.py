"""A plugin that is new at every model call, as in a process that begins then, and what it must not change."""

from __future__ import annotations

import re
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from scripted import Chat

from aether_context.adk import ContextPackPlugin

_TIME = re.compile(r"\b\d\d:\d\d (?=\w+ said: )")


def same_requests(one: Chat, other: Chat) -> None:
    """The same but for the minute in which a recalled turn was said."""

    def wires(chat: Chat) -> list[list[str]]:
        return [[_TIME.sub("", wire) for wire in sent.wires] for sent in chat.sent]

    assert wires(one) == wires(other)
    assert [sent.system for sent in one.sent] == [sent.system for sent in other.sent]
    assert [sent.declared for sent in one.sent] == [sent.declared for sent in other.sent]


class Restarting(BasePlugin):
    """A new plugin, as in a new process, for every model call."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(name="restarting")
        self.settings = settings
        self.latest = ContextPackPlugin(**settings)

    @property
    def _packer(self) -> Any:
        """By which a plugin knows itself among those of the app."""
        return self.latest._packer

    async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> LlmResponse | None:
        await self.latest.close()
        self.latest = ContextPackPlugin(**self.settings)
        return await self.latest.before_model_callback(callback_context=callback_context, llm_request=llm_request)

    async def after_model_callback(self, *, callback_context: Any, llm_response: LlmResponse) -> LlmResponse | None:
        return await self.latest.after_model_callback(callback_context=callback_context, llm_response=llm_response)

    async def after_tool_callback(self, **given: Any) -> dict[str, Any] | None:
        return await self.latest.after_tool_callback(**given)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        await self.latest.close()
