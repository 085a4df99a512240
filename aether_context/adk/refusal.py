"""How a plugin ends a run with an error that its caller can catch."""

from __future__ import annotations

from google.adk.models.llm_response import LlmResponse
from google.genai import types
from pydantic import PrivateAttr

from aether_context.errors import AetherContextError


class Refusal(LlmResponse):
    """An answer in the model's place that raises its error where ADK's flow looks whether there is an answer.

    ADK turns whatever a plugin's callback raises into a `RuntimeError`, but not what is raised there, so that a caller
    catches the same error as with agent callbacks. A flow that does not look so gets the answer: no model is called.
    """

    _error: AetherContextError = PrivateAttr()

    @classmethod
    def of(cls, error: AetherContextError) -> Refusal:
        made = cls(content=types.ModelContent(str(error)), error_code=type(error).__name__, error_message=str(error))
        made._error = error
        return made

    def __bool__(self) -> bool:
        error = self._error
        raised = type(error).__new__(type(error), *error.args)
        raised.__dict__.update(error.__dict__)
        raise raised from error
