"""Writes recordings off the model call's path, and manifests into the app's artifact service."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from cachetools import LRUCache
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events.event import Event
from google.genai import types

from aether_context.adk.call import AgentKey, Position, SessionKey, agent_key
from aether_context.errors import AetherContextError, ArtifactError, PackNotFound, StoreError
from aether_context.evidence import evidence_key
from aether_context.pack import Identity, Pack, noted, pack_of_event
from aether_context.policy import PackPolicy
from aether_context.store import PackStore, Recording, Tip, pack_id, record
from aether_context.store.artifacts import ArtifactFiles, artifact_owner
from aether_context.store.files import Files
from aether_context.store.index import write_time
from aether_context.store.layout import pack_at
from aether_context.store.masking import MaskedPacks
from aether_context.store.pack_file import LOG, MANIFEST
from aether_context.store.spool import TIMEOUT_SECONDS, SpooledFiles, spool_of
from aether_context.text.entities import SCHEME

if TYPE_CHECKING:
    from aether_context.store import Manifest

# One thread a store writes in order. It starts with the first recording, ends when nothing was recorded for a while,
# and starts again when it is needed, in a forked process, too. What the store cannot take, or not as fast as it comes,
# waits in a local spool, the only queue that outlives the process. The jobs here wait in memory because a manifest is
# made from its pack by them, and by what the store says of the one before. Where there is no spool or its disk is full
# they are tried again, and the oldest are given up once more than a thousand wait for what fails.
#
# The spool has a thread of its own, since that may hang on a store for seconds: but for the write that finds it down,
# this one never waits for a store that is away, and what is recorded meanwhile is on the disk at once.

logger = logging.getLogger("aether_context")

_MOST_WAITING = 1_000
_MANY_WAITING = 64
"""So many wait for a store that is slower than the run: from there on it is spared."""
_MOST_INTERRUPTED = 3
_MOST_CHAINS = 512
_MOST_NAMES = 60_000
"""Of rows, counts and texts in the ends of all chains, of about 100 bytes each."""
_MOST_MANIFEST_BYTES = 2**20
_RETRY_SECONDS = 0.5
_LOOK_SECONDS = 0.05
_QUIET_SECONDS = 10.0
_STORE_SECONDS = 0.4
_CALM_SECONDS = 60.0
"""Failures that are less apart are one outage, and one line in the log."""


CallKey: TypeAlias = tuple[str | int, ...]
"""A model call: its agent in a session, the invocation, and its number."""


def _names_in(end: tuple[str, Tip]) -> int:
    return min(_MOST_NAMES, end[1].size)


def _call_key(identity: Identity) -> CallKey:
    return (*agent_key(identity), identity.invocation, identity.call)


class _Newest(NamedTuple):
    """The newest pack of a session that is known: by this process, or by the events up to ``event_id``."""

    position: Position = Position()
    pack_id: str = ""
    invocation: str = ""
    event_id: str = ""


class _Written(NamedTuple):
    """The pack of a session that was written last: its number, its digest, and the hash of its outcome, empty where
    that is not written."""

    number: int = 0
    digest: str = ""
    outcome: str = ""


class Recorder:
    """The writing end of a store, which first writes what an earlier process left in the spool.

    ``store`` reads what the spool holds, too. ``recorded`` is told each pack, in the thread that writes.
    """

    def __init__(self, store: PackStore, recorded: Callable[[Manifest, Recording], None] | None = None) -> None:
        self._recorded = recorded
        spool = spool_of(store.files)
        self._spooled = SpooledFiles(store.files, spool) if spool is not None else None
        files = self._spooled or Files(store.files.url, store.files.options, TIMEOUT_SECONDS)
        self.store = store if files.is_in_memory else store.through(files)
        if self._spooled is not None:
            self._spooled.deliver()
        self._waiting: deque[tuple[Callable[[], object], CallKey | None]] = deque()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._flushes: set[Future[bool | None]] = set()
        self._tips: LRUCache[AgentKey, tuple[str, Tip]] = LRUCache(_MOST_NAMES, _names_in)
        self._unanswered: LRUCache[CallKey, Manifest] = LRUCache(_MOST_CHAINS)
        self._newest: LRUCache[SessionKey, _Newest] = LRUCache(_MOST_CHAINS)
        self._written: LRUCache[SessionKey, _Written] = LRUCache(_MOST_CHAINS)
        self._first_numbers: LRUCache[SessionKey, int] = LRUCache(_MOST_CHAINS)
        self._artifacts: LRUCache[SessionKey, set[str]] = LRUCache(_MOST_CHAINS)
        self._masked = MaskedPacks()
        self._outcomes: dict[CallKey, Mapping[str, Any]] = {}
        self._missing = self._spooled.spool.missing() if self._spooled is not None else 0
        self.off: tuple[str, ...] = ()
        """The agents of whose calls nothing is recorded."""
        self.fails = False
        """Whether the store refused what was written last."""
        self._gave_up = False
        self._warn_at = 0.0
        self._interrupted = 0

    def pack(self, pack: Pack, policy: PackPolicy, counter: str, events: Sequence[Event]) -> Position:
        """Queues a pack; gives its place in its session.

        Its number is one more than the highest that this process or an event of the session knows: another worker's
        calls are told by their events, or by the store where one of them left no event.
        """
        of_call, identity = _call_key(pack.identity), pack.identity
        session = (identity.app, identity.user, identity.session)
        name = pack_id(identity, pack.source.step)
        # Masked once, however often it is tried to write it.
        masked = cache(partial(self._masked.of, pack, policy, name))
        with self._starting:
            newest = self._newest_pack(session, events, identity.invocation)
            number, turn = newest.position
            position = Position(number + 1, turn if newest.invocation == identity.invocation else turn + 1)
            self._newest[session] = newest._replace(position=position, pack_id=name, invocation=identity.invocation)

        attempts: list[tuple[Tip | None, Recording]] = []

        def recorded() -> Recording:
            """The recording, the same at each attempt: one that failed may have written it."""
            previous, tip = self._pack_before(session, newest), self._tip(identity, position.number)
            if attempts and attempts[-1][0] is tip:
                return attempts[-1][1]
            recording = record(
                masked(),
                policy,
                counter,
                tip,
                sent=pack if masked() is not pack else None,
                **position._asdict(),
                before=previous.digest,
                outcome_before=previous.outcome,
                first_number=self._first_numbers.get(session, 1),
                stored=self._stored(session, masked()),
                off=self.off,
            )
            attempts.append((tip, recording))
            return recording

        def write() -> None:
            recording, outcome = recorded(), self._outcomes.get(of_call)
            manifest = self.store.write(recording)
            outcome_hash = self.store.write_outcome(manifest, outcome, is_new=True) if outcome is not None else ""
            if manifest.pack_id != recording.manifest.pack_id:
                logger.info("%s is in the store as %s", recording.manifest.pack_id, self.store.uri(manifest))
                recording = recording.changed(pack_id=manifest.pack_id)
            self._tips[agent_key(identity)] = identity.invocation, recording.tip
            self._written[session] = _Written(position.number, manifest.digest, outcome_hash)
            self.store.files.settle_written(self.store.files.place(*session), manifest.stored)
            if outcome is None:
                self._unanswered[of_call] = manifest
            else:
                self._outcomes.pop(of_call, None)
            if self._recorded is not None:
                self._recorded(manifest, recording)

        self.later(write, of_call)
        return position

    def _newest_pack(self, session: SessionKey, events: Sequence[Event], invocation: str) -> _Newest:
        """The newest pack of a session, with what its events tell that were not read before."""
        newest = recorded = self._newest.get(session, _Newest())
        last_of_others: Event | None = None
        for event in reversed(events):
            if event.id == recorded.event_id:
                break
            # What only changes state, as a cut by hand does, comes of no model call.
            says = event.content is not None or event.error_code is not None
            if last_of_others is None and says and event.invocation_id not in (invocation, recorded.invocation):
                last_of_others = event
            number, name = pack_of_event(event)
            if number > newest.position.number:
                turn = noted(event).get("turn")
                position = Position(number, turn if type(turn) is int else newest.position.turn)
                newest = newest._replace(position=position, pack_id=name, invocation=event.invocation_id)
        if last_of_others is not None and not pack_of_event(last_of_others)[0]:
            newest = self._newest_stored(session, newest)
        return newest._replace(event_id=events[-1].id if events else "")

    def _newest_stored(self, session: SessionKey, newest: _Newest) -> _Newest:
        """The newest pack in the store where that has a higher number: an invocation of another worker ended without
        an answer of a model, as it does where the model failed, so that no event tells its last call."""
        with suppress(AetherContextError, ValueError):
            packs = self.store.files.folders(f"{self.store.files.place(*session)}/packs", 0)
            data = self.store.files.get(f"{max(packs, key=write_time)}/{MANIFEST}", _MOST_MANIFEST_BYTES)
            from aether_context.store import Manifest

            manifest = Manifest.parse(data or b"")
            if manifest.number > newest.position.number:
                position = Position(manifest.number, manifest.turn)
                return newest._replace(position=position, pack_id=manifest.pack_id, invocation=manifest.invocation)
        return newest

    def _pack_before(self, session: SessionKey, newest: _Newest) -> _Written:
        """The pack with the number before, by what this process wrote, or by what the store holds of another's."""
        number = newest.position.number
        if number and self._written.get(session, _Written()).number < number:
            path = f"{self.store.files.place(*session)}/packs/{newest.pack_id}"
            try:
                earlier = self.store.read(path)
                self._written[session] = _Written(earlier.number, earlier.digest, self.store.outcome_hash(path))
                self._first_numbers[session] = earlier.first_number
            except PackNotFound:
                self._note_gone(session, number + 1)
            except AetherContextError:  # nobody can tell
                pass
        last = self._written.get(session, _Written())
        return last if last.number == number else _Written()

    def _note_gone(self, session: SessionKey, number: int) -> None:
        """Lets a session begin anew with a pack's number where the store holds none of the packs before it."""
        with suppress(StoreError):
            if self.store.places(*session):
                return
            logger.warning("no pack of session %r is in %s any more: it begins anew", session[2], self.store.url)
            self._first_numbers[session] = number
            folder = self.store.files.place(*session)
            self.store.files.settle_written(folder, self.store.files.written(folder))

    def _stored(self, session: SessionKey, pack: Pack) -> tuple[str, ...]:
        """The files written to a session since the pack before, and the artifacts in the store that its requests are
        the first to name."""
        files, stored = self.store.files, self._artifacts.setdefault(session, set())
        folder = files.place(*session)
        for uri in sorted(pack.verdict.artifact_uris - stored):
            stored.add(uri)
            name = uri.removeprefix(SCHEME)
            if evidence_key(uri) is None and pack_at(name) is None and not name.startswith("messages/"):
                with suppress(ArtifactError, StoreError):
                    owner, name, _ = artifact_owner(uri, session)
                    if ArtifactFiles(files).versions(owner, name):
                        files.note_written(folder, uri)
        return files.written(folder)

    def outcome(self, identity: Identity, values: Mapping[str, Any]) -> None:
        """Queues what became of the model call that `identity` names; it goes with its pack where that waits, too."""
        of_call = _call_key(identity)
        self._outcomes.setdefault(of_call, values)

        def write() -> None:
            manifest = self._unanswered.get(of_call)
            if manifest is not None and of_call in self._outcomes:
                last = self._written.get(manifest.session_key, _Written())
                try:
                    last = last._replace(outcome=self.store.write_outcome(manifest, self._outcomes[of_call]))
                except PackNotFound:  # it was forgotten meanwhile
                    self._tips.pop(agent_key(identity), None)
                    self._note_gone(manifest.session_key, manifest.number + 1)
                if last.digest == manifest.digest:
                    self._written[manifest.session_key] = last
            self._unanswered.pop(of_call, None)
            self._outcomes.pop(of_call, None)

        self.later(write, of_call)

    def later(self, job: Callable[[], object], of_call: CallKey | None = None) -> None:
        """Queues a write without waking the thread: one that wakes here takes its time from the model call.

        Args:
            of_call: the call whose outcome goes, too, where the write is given up.
        """
        self._waiting.append((job, of_call))
        if len(self._waiting) > _MOST_WAITING and self.fails:
            _, given_up = self._waiting.popleft()
            if given_up is not None:
                self._outcomes.pop(given_up, None)
            if not self._gave_up:
                logger.error("more than %d packs wait for %s: the oldest are given up", _MOST_WAITING, self.store.url)
            self._gave_up = True
        self._ensure_thread()

    def _tip(self, identity: Identity, number: int) -> Tip | None:
        """The end of the chain that an agent's next pack extends; None where it cannot stand on it.

        Where a write was set aside or is refused all chains begin anew. Whether the last pack and the oldest segment
        that it needs are still there, and were not forgotten by another process or by a rule of the store, is looked at
        once an invocation; where the store does not say, the pack is whole, since one that needs what is gone can never
        be built again.
        """
        missing = self._spooled.spool.missing() if self._spooled is not None else 0
        if missing > self._missing:
            self._tips.clear()
        self._missing = missing
        chain_head = self._tips.get(agent_key(identity))
        if chain_head is None:
            return None
        invocation, tip = chain_head
        session = (identity.app, identity.user, identity.session)
        folder = self.store.files.place(*session)
        if invocation == identity.invocation:
            return tip
        try:  # a store that is spared is asked, too
            oldest = min({*tip.chain, *tip.texts.values()})
            ends = {oldest: f"{LOG}/{oldest}", tip.chain[-1]: f"packs/{tip.pack_id}/{MANIFEST}"}
            if all(self.store.files.get(f"{folder}/{name}", 1) for name in ends.values()):
                return tip
        except StoreError:
            return None
        self._note_gone(session, number)
        return None

    async def flush(self, timeout_seconds: float = 5.0) -> bool:
        """Waits until all that is queued by now is written; False where that took too long or the store failed.

        What is queued meanwhile is not waited for. With a spool, the store itself gets `_STORE_SECONDS`; from half of
        them on it is spared, so that what it lacks is on the disk, and not lost with the process.
        """
        began = time.monotonic()
        store_seconds = timeout_seconds if self._spooled is None else min(timeout_seconds, _STORE_SECONDS)
        reached: Future[bool | None] = Future()
        """Whether the store itself has all; None where it failed, or there is no room for what it lacks."""

        def reach() -> None:
            if reached in self._flushes:
                self._flushes.discard(reached)
                reached.set_result(self._spooled is None or self._spooled.flush(0))

        self._flushes.add(reached)
        self.later(reach)
        self._hurry.set()
        written = asyncio.wrap_future(reached)
        await asyncio.wait({written}, timeout=store_seconds / 2)
        if not written.done():
            self._spare_store()
            await asyncio.wait({written}, timeout=timeout_seconds - store_seconds / 2)
        if not written.done() or written.result() is None:
            return False
        remaining = began + store_seconds - time.monotonic()
        return (
            self._spooled is None or written.result() is True or await asyncio.to_thread(self._spooled.flush, remaining)
        )

    def _ensure_thread(self) -> None:
        if self._thread is not None and self._thread.is_alive():  # a forked process has no threads of its parent
            return
        with self._starting:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="aether-context-recorder", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Writes what waits, looks again every few milliseconds, and ends after a quiet while."""
        quiet = 0.0
        while quiet < _QUIET_SECONDS:
            self._hurry.wait(_LOOK_SECONDS)
            self._hurry.clear()
            quiet = 0.0 if self._waiting else quiet + _LOOK_SECONDS
            while self._waiting:
                first = self._waiting[0]
                flushes = set(self._flushes)
                self._hurry.clear()
                if len(self._waiting) > _MANY_WAITING:
                    self._spare_store()
                if self._attempt(first[0]):
                    self.fails = self._gave_up = False
                    if self._waiting and self._waiting[0] is first:
                        self._waiting.popleft()
                else:
                    self.fails = True
                    for flush in flushes & self._flushes:  # one that began meanwhile waits for the next attempt
                        self._flushes.discard(flush)
                        flush.set_result(None)
                    self._hurry.wait(_RETRY_SECONDS)
        self._thread = None
        if self._waiting:  # it was queued at the last moment, for a thread that ends
            self._ensure_thread()

    def _spare_store(self) -> None:
        """Lets the spool take what comes, but for a local folder: that is as fast as the spool."""
        if self._spooled is not None and not self._spooled.is_local:
            self._spooled.spare()

    def _attempt(self, job: Callable[[], object]) -> bool:
        """Runs a job; False where it should be tried again."""
        try:
            job()
        except AetherContextError as error:
            now = time.monotonic()
            if now >= self._warn_at:
                logger.warning("packs wait to be written: %s", error)
            self._warn_at = now + _CALM_SECONDS
            return False
        except Exception:
            logger.exception("a pack could not be recorded")
        except BaseException as error:  # an exit out of what others wrote ends its write, not this thread
            self._interrupted += 1
            if self._interrupted < _MOST_INTERRUPTED:
                return False
            logger.exception("a pack could not be recorded: %s", type(error).__name__)
        self._interrupted = 0
        return True


# Manifests in the app's own artifact service, too, so that they show wherever its artifacts do.


@dataclass(slots=True)
class _Saving:
    """The artifacts of one invocation: waiting, as arguments of ``save_artifact``, under way, and saved but not yet
    named in an event."""

    waiting: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_WAITING))
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    saved: dict[str, int] = field(default_factory=dict)


class Mirror:
    """Saves what was recorded as artifacts of the session, while the run goes on. ``report`` is told each failure."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._savings: LRUCache[str, _Saving] = LRUCache(_MOST_CHAINS)
        self._lock = threading.Lock()

    def put(self, manifest: Manifest, recording: Recording) -> None:
        """Takes what was written to the store, in whatever thread."""
        metadata = {"pack_id": manifest.pack_id, "step_id": manifest.step_id, "checksum": manifest.checksum}
        texts = [(manifest.uri.removeprefix(SCHEME), manifest.to_json(), "application/json")]
        texts += [(uri.removeprefix(SCHEME), text, "text/plain") for uri, text in recording.saved.items()]
        with self._lock:
            saving = self._savings.setdefault(manifest.invocation, _Saving())
            for name, text, media_type in texts:
                blob = types.Blob(data=text.encode("utf-8", "surrogatepass"), mime_type=media_type)
                part = types.Part(inline_data=blob)
                saving.waiting.append({"filename": name, "artifact": part, "custom_metadata": dict(metadata)})

    def go_on(self, context: CallbackContext) -> None:
        """Begins to save what waits, and notes on the context's event what was saved since the last one."""
        if context.invocation_id not in self._savings:  # ADK copies the invocation at each look
            return
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
        _, pending = await asyncio.wait(saving.tasks, timeout=timeout_seconds)
        for task in pending:
            task.cancel()
        if pending:
            self._report(f"{len(pending)} artifacts were not mirrored within {timeout_seconds:g} s")

    def _begun(self, invocation: InvocationContext) -> _Saving | None:
        with self._lock:
            saving = self._savings.get(invocation.invocation_id)
            while saving is not None and saving.waiting:
                task = asyncio.create_task(self._save(invocation, saving.waiting.popleft(), saving))
                saving.tasks.add(task)
                task.add_done_callback(saving.tasks.discard)
        return saving

    async def _save(self, invocation: InvocationContext, copy: dict[str, Any], saving: _Saving) -> None:
        service, name = invocation.artifact_service, copy["filename"]
        if service is None:
            self._report("manifests are not mirrored: the app has no artifact service")
            return
        try:
            saving.saved[name] = await service.save_artifact(
                app_name=invocation.app_name, user_id=invocation.user_id, session_id=invocation.session.id, **copy
            )
        except Exception as error:
            self._report(f"{name} was not mirrored: {type(error).__name__}: {error}")
