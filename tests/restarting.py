"""A plugin that is new at every model call, as in a process that begins then, and what it must not change."""

from __future__ import annotations

from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from scripted import Chat

from aether_context.adk import ContextPackPlugin


def same_requests(one: Chat, other: Chat) -> None:
    assert [sent.wires for sent in one.sent] == [sent.wires for sent in other.sent]
    assert [sent.system for sent in one.sent] == [sent.system for sent in other.sent]
    assert [sent.declared for sent in one.sent] == [sent.declared for sent in other.sent]


class Restarting(BasePlugin):
    """A new plugin, as in a new process, for every model call."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(name="restarting")
        self.settings = settings
        self.latest = ContextPackPlugin(**settings)

    async def before_model_callback(self, *, callback_context: Any, llm_request: LlmRequest) -> LlmResponse | None:
        await self.latest.close()
        self.latest = ContextPackPlugin(**self.settings)
        return await self.latest.before_model_callback(callback_context=callback_context, llm_request=llm_request)

    async def after_model_callback(self, *, callback_context: Any, llm_response: LlmResponse) -> LlmResponse | None:
        return await self.latest.after_model_callback(callback_context=callback_context, llm_response=llm_response)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        await self.latest.close()
