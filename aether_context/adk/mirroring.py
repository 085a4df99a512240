"""Manifests in the app's own artifact service, too, so that they show wherever its artifacts do."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.genai import types

from aether_context.adk.bounded import keep
from aether_context.store import Manifest, Recording
from aether_context.store.artifacts import SCHEME

_MOST_INVOCATIONS = 512
_MOST_WAITING = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """What is to be saved, and under which name."""

    name: str
    data: bytes
    media_type: str
    metadata: dict[str, str]


@dataclass(slots=True)
class _Saving:
    """What one invocation has waiting and under way; ``saved`` are versions that no event tells yet, by name."""

    waiting: list[_Copy] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    saved: dict[str, int] = field(default_factory=dict)


class Mirror:
    """Saves what was recorded as artifacts of the session, while the run goes on. A failure is told and forgotten.

    Args:
        tell: is told each failure.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._savings: OrderedDict[str, _Saving] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, manifest: Manifest, recording: Recording) -> None:
        """Takes what was written to the store, in whatever thread."""
        told = {"pack_id": manifest.pack_id, "step_id": manifest.step_id, "checksum": manifest.checksum}
        of, data = manifest.invocation, manifest.to_json().encode("utf-8", "surrogatepass")
        self.add(of, f"packs/{manifest.pack_id}.json", data, "application/json", told)
        for uri, text in recording.saved.items():
            self.add(of, uri.removeprefix(SCHEME), text.encode("utf-8", "surrogatepass"), "text/plain", told)

    def add(self, invocation: str, name: str, data: bytes, media_type: str, metadata: Mapping[str, str]) -> None:
        """Takes anything that is to be an artifact of an invocation's session, in whatever thread."""
        copy = _Copy(name=name, data=data, media_type=media_type, metadata=dict(metadata))
        with self._lock:
            saving = self._savings.get(invocation) or _Saving()
            saving.waiting = [*saving.waiting, copy][-_MOST_WAITING:]
            keep(self._savings, invocation, saving, _MOST_INVOCATIONS)

    def go_on(self, context: CallbackContext) -> None:
        """Begins to save what waits, and notes on the context's event what was saved since the last one."""
        saving = self._begun(context.get_invocation_context())
        if saving is not None:
            context.actions.artifact_delta.update(saving.saved)
            saving.saved.clear()

    async def finish(self, invocation: InvocationContext, timeout_seconds: float = 5.0) -> None:
        """Saves what is left of an invocation, and gives up on what takes longer."""
        saving = self._begun(invocation)
        with self._lock:
            self._savings.pop(invocation.invocation_id, None)
        if saving is None or not saving.tasks:
            return
        _, late = await asyncio.wait(saving.tasks, timeout=timeout_seconds)
        for task in late:
            task.cancel()
        if late:
            self._tell(f"{len(late)} artifacts were not mirrored within {timeout_seconds:g} s")

    def _begun(self, invocation: InvocationContext) -> _Saving | None:
        with self._lock:
            saving = self._savings.get(invocation.invocation_id)
            if saving is None:
                return None
            waiting, saving.waiting = saving.waiting, []
        for copy in waiting:
            task = asyncio.create_task(self._save(invocation, copy, saving))
            saving.tasks.add(task)
            task.add_done_callback(saving.tasks.discard)
        return saving

    async def _save(self, invocation: InvocationContext, copy: _Copy, saving: _Saving) -> None:
        service = invocation.artifact_service
        if service is None:
            self._tell("manifests are not mirrored: the app has no artifact service")
            return
        try:
            saving.saved[copy.name] = await service.save_artifact(
                app_name=invocation.app_name,
                user_id=invocation.user_id,
                session_id=invocation.session.id,
                filename=copy.name,
                artifact=types.Part(inline_data=types.Blob(data=copy.data, mime_type=copy.media_type)),
                custom_metadata=dict(copy.metadata),
            )
        except Exception as error:
            self._tell(f"{copy.name} was not mirrored: {type(error).__name__}: {error}")
