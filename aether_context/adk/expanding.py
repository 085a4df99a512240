"""A question in a model's other words, or in those of an answer, for an index to search by."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Literal

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.registry import LLMRegistry
from google.genai import types

from aether_context.adk.asking import Cost, ask, check_model
from aether_context.adk.bounded import keep
from aether_context.errors import PolicyError

_MOST_HELD = 256
_PATIENCE = 1.5
"""Times the deadline until a model that cannot be interrupted is left to itself."""
_BULLET = re.compile(r"^(?:[-*•]|\d{1,2}[.)])\s+")
_ORDERS = {
    "multi_query": "Write {count} other wordings of the question below, for a search engine. One a line, nothing else.",
    "hyde": "Write a short passage that answers the question below, as a document would. Make up what you do not know. "
    "Nothing else.",
}

logger = logging.getLogger("aether_context")


class ModelExpander:
    """Asks an ADK model for texts to search by beside a question: ``HybridIndex(expander=ModelExpander("model"))``.

    A model that fails or is late adds nothing, and a warning is logged. The latest 256 answers are remembered. ``cost``
    is what the provider reported.

    Args:
        model: an ADK model, or the name of one in ADK's registry.
        method: ``multi_query`` asks for other wordings, ``hyde`` for what an answer might say (Gao et al., 2023).
        count: most wordings, at least 1.
        timeout_seconds: longest that a question may take.

    Raises:
        PolicyError: there is no such model or method, or ``count`` is less than 1.
    """

    def __init__(
        self,
        model: BaseLlm | str,
        *,
        method: Literal["multi_query", "hyde"] = "multi_query",
        count: int = 3,
        timeout_seconds: float = 5.0,
    ) -> None:
        if method not in _ORDERS:
            raise PolicyError(f"method = {method!r}: it is 'multi_query' or 'hyde'", field="method")
        if count < 1:
            raise PolicyError(f"count = {count}: ask for one wording at least", field="count")
        if isinstance(model, str):
            check_model(model, "model", "model")
        self._model = LLMRegistry.new_llm(model) if isinstance(model, str) else model
        self._order = _ORDERS[method].format(count=count)
        self._most = count if method == "multi_query" else 1
        self._timeout_seconds = timeout_seconds
        self._held: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._lock = Lock()
        self.cost = Cost()

    def expand(self, query: str) -> Sequence[str]:
        """Texts to search by beside the query; none where the model gives none.

        It waits for the model: within an event loop search in a thread.
        """
        with self._lock:
            if query in self._held:
                return self._held[query]
        try:
            said = self._asked(query)
        except Exception as error:  # whatever a model raises, and a timeout
            logger.warning("a question is searched by its own words alone: %s: %s", type(error).__name__, error)
            return ()
        with self._lock:
            return keep(self._held, query, self._texts(said), _MOST_HELD)

    def _asked(self, query: str) -> str:
        """The model's answer, by an event loop of its own."""
        content = types.Content(role="user", parts=[types.Part(text=f"{self._order}\n\n{query}")])
        request = LlmRequest(model=self._model.model, contents=[content], config=types.GenerateContentConfig())

        async def answer() -> str:
            async with asyncio.timeout(self._timeout_seconds):
                return await ask(self._model, request, self.cost)

        thread = ThreadPoolExecutor(1, thread_name_prefix="aether-context-expander")
        try:
            return thread.submit(asyncio.run, answer()).result(_PATIENCE * self._timeout_seconds)
        finally:
            thread.shutdown(wait=False)

    def _texts(self, said: str) -> tuple[str, ...]:
        if self._most == 1:
            return (said.strip(),) if said.strip() else ()
        lines = (_BULLET.sub("", line.strip()) for line in said.splitlines())
        return tuple(dict.fromkeys(line for line in lines if line))[: self._most]
