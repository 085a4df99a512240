"""Writes recordings off the model call's path: one thread a process, in order, all there after a flush.

The thread starts with the first recording and again after a fork. A write that fails is tried again with the next one
and at each flush; the oldest are given up, with an error in the log, once more than a thousand wait.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from aether_context.adk.epochs import Scope, scope_key
from aether_context.errors import AetherContextError
from aether_context.manifest import Manifest, Tip, record
from aether_context.pack import Identity, Pack
from aether_context.policy import PackPolicy
from aether_context.store import PackStore

logger = logging.getLogger("aether_context")

_MOST_WAITING = 1_000
_MOST_CHAINS = 512
_RETRY_SECONDS = 0.5


class Recorder:
    """The writing end of a store."""

    def __init__(self, store: PackStore) -> None:
        self.store = store
        self._waiting: deque[Callable[[], None]] = deque()
        self._ready = threading.Condition()
        self._busy = False
        self._process = 0
        self._tips: OrderedDict[Scope, Tip] = OrderedDict()
        self._written: OrderedDict[str, Manifest] = OrderedDict()
        self._warned = False

    def pack(self, pack: Pack, policy: PackPolicy, counter: str) -> None:
        """Queues a pack."""
        self._put(lambda: self._record(pack, policy, counter))

    def outcome(self, identity: Identity, values: Mapping[str, Any]) -> None:
        """Queues what became of the model call that `identity` names."""
        key = _call_key(identity)
        self._put(lambda: self._write_outcome(key, values))

    def flush(self, timeout_seconds: float = 5.0) -> bool:
        """Waits until everything queued is written; False where that took too long."""
        deadline = time.monotonic() + timeout_seconds
        with self._ready:
            while self._waiting or self._busy:
                self._ready.notify_all()
                left = deadline - time.monotonic()
                if left <= 0 or self._process != os.getpid():
                    return False
                self._ready.wait(min(left, 0.2))
        return True

    def _put(self, job: Callable[[], None]) -> None:
        with self._ready:
            if self._process != os.getpid():
                self._process, self._busy = os.getpid(), False
                threading.Thread(target=self._run, name="aether-context-recorder", daemon=True).start()
            self._waiting.append(job)
            if len(self._waiting) > _MOST_WAITING:
                self._waiting.popleft()
                logger.error("more than %d packs wait for %s: the oldest is given up", _MOST_WAITING, self.store.url)
            self._ready.notify_all()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._waiting:
                    self._ready.wait()
                job = self._waiting[0]
                self._busy = True
            done = self._attempt(job)
            with self._ready:
                self._busy = False
                if done and self._waiting and self._waiting[0] is job:
                    self._waiting.popleft()
                self._ready.notify_all()
                if not done:
                    self._ready.wait(_RETRY_SECONDS)

    def _attempt(self, job: Callable[[], None]) -> bool:
        """Runs a job; False where it should be tried again."""
        try:
            job()
        except AetherContextError as error:
            if not self._warned:
                logger.warning("packs wait to be written: %s", error)
            self._warned = True
            return False
        except Exception:
            logger.exception("a pack could not be recorded")
        else:
            self._warned = False
        return True

    def _record(self, pack: Pack, policy: PackPolicy, counter: str) -> None:
        scope = scope_key(pack.identity)
        recording = record(pack, policy, counter, self._tips.get(scope))
        manifest = self.store.write(recording)
        tip = recording.tip
        if manifest.pack_id != tip.pack_id:
            tip = replace(tip, pack_id=manifest.pack_id)
        _keep(self._tips, scope, tip, _MOST_CHAINS)
        _keep(self._written, _call_key(pack.identity), manifest, _MOST_CHAINS)

    def _write_outcome(self, key: str, values: Mapping[str, Any]) -> None:
        manifest = self._written.get(key)
        if manifest is not None:
            self.store.write_outcome(manifest, {"pack_id": manifest.pack_id, **values})


def _call_key(identity: Identity) -> str:
    return "\0".join([*scope_key(identity), identity.invocation, str(identity.call)])


def _keep(table: OrderedDict[Any, Any], key: object, value: object, most: int) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > most:
        table.popitem(last=False)
