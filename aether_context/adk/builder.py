"""`build_pack` at the edge: with the counter of the call's model, and off the event loop where that would be felt."""

from __future__ import annotations

import asyncio
import threading
import time

from aether_context.adk.models.gemini import register_counters
from aether_context.errors import TokenCountingError
from aether_context.pack import Pack, PackInput
from aether_context.packing import build_pack, extend_pack
from aether_context.policy import PackPolicy, TokenSettings
from aether_context.tokens import Counters, Pick, counter_for
from aether_context.tokens.cache import TokenCache
from aether_context.tokens.model_limits import model_window

_INSTANT_CHARACTERS = 500_000
_INSTANT_TOOLS = 50


class Builder:
    """Builds packs, and keeps what their texts count."""

    def __init__(self, settings: TokenSettings) -> None:
        register_counters()
        self._counters = Counters(settings, clock=time.monotonic)
        self._cache = TokenCache()
        threading.Thread(target=_warm, name="aether-context-warm-up", daemon=True).start()

    async def pick(self, model: str) -> Pick:
        """The best counter of a model that works."""
        ready = self._counters.ready(model)
        return ready if ready is not None else await asyncio.to_thread(self._counters.pick, model)

    def failed(self, model: str, pick: Pick, error: TokenCountingError) -> None:
        """Passes over a counter for a while."""
        self._counters.fail(model, pick, error)

    async def build(self, source: PackInput, policy: PackPolicy, pick: Pick) -> Pack:
        """A pack; what is felt are large contents, many tools to choose from for the first time, or a provider that is
        asked."""
        latest = source.request.contents[-8:]
        large = sum(len(part.text) for content in latest for part in content.parts) > _INSTANT_CHARACTERS
        many = len(source.request.tools) > _INSTANT_TOOLS and not source.epoch.tools
        if large or many or pick.remote:
            return await asyncio.to_thread(build_pack, source, policy, counter=pick.counter, cache=self._cache)
        return build_pack(source, policy, counter=pick.counter, cache=self._cache)

    async def extend(self, before: Pack, source: PackInput, policy: PackPolicy, pick: Pick) -> Pack | None:
        """A pack with the contents that came since, where that is all that changed."""
        if pick.remote:
            return await asyncio.to_thread(extend_pack, before, source, policy, counter=pick.counter, cache=self._cache)
        return extend_pack(before, source, policy, counter=pick.counter, cache=self._cache)


def _warm() -> None:
    """Loads what the first model call would otherwise wait for: numpy, the token table, the list of models."""
    counter_for("gemini").count("warm")
    model_window("gemini-2.5-flash")
