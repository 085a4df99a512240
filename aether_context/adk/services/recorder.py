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

from aether_context.adk.call import AgentKey, Position, SessionKey, agent_key, session_key
from aether_context.canonical import hash_text
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
from aether_context.store.pack_file import MANIFEST, outcome_line
from aether_context.store.spool import TIMEOUT_SECONDS, SpooledFiles, spool_of
from aether_context.text.entities import SCHEME

if TYPE_CHECKING:
    from aether_context.store import Manifest
    from aether_context.store.packs import Answered

# One thread a store writes in order. It starts with the first recording, ends when nothing was recorded for a while,
# and starts again when it is needed, in a forked process, too. What the store cannot take, or not as fast as it comes,
# waits in a local spool, the only queue that outlives the process. The jobs here wait in memory because a manifest is
# made from its pack by them, and by what the store says of the one before. Where there is no spool or its disk is full
# they are tried again, and the oldest are given up once more than a thousand wait for what fails.
#
# On an object store each file is a request. So what a run records of a session is a batch, which is written at its end,
# or after half a minute: one segment of the log and the manifests, 1.3 writes a call in the place of 3.2
# (`tests/bench/steps.py`). Meanwhile it is in the spool, where the next process finds it if this one is killed.
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
_BATCH_SECONDS = 30.0
_DAY_SECONDS = 86_400.0
"""So long may a chain be: a rule of the store deletes what is older than some days, whatever needs it."""
_CALM_SECONDS = 60.0
"""Failures that are less apart are one outage, and one line in the log."""


CallKey: TypeAlias = tuple[AgentKey, str, int]
"""A model call: its agent in a session, the invocation, and its number."""
_Record: TypeAlias = "Callable[[], tuple[Recording, Tip | None]]"


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


@dataclass(slots=True)
class _Batch:
    """Packs and outcomes of a session that are to be written, by their calls.

    ``packs`` are recordings, each with the tip that it extends and the function that records it anew. ``files`` are the
    names of the spool's files that hold the same.
    """

    packs: dict[CallKey, tuple[Recording, Tip | None, _Record]] = field(default_factory=dict)
    outcomes: dict[CallKey, Answered] = field(default_factory=dict)
    files: dict[str, CallKey] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)


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
        self._batching = spool if spool is not None and not files.is_local else None
        """Where batches wait; None where all is written at once, as to a folder."""
        if self._spooled is not None:
            self._spooled.spool.release()
            self._spooled.deliver()
        self._waiting: deque[tuple[Callable[[], object], CallKey | None]] = deque()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._flushes: set[Future[bool | None]] = set()
        self._tips: LRUCache[AgentKey, Tip] = LRUCache(_MOST_NAMES, lambda tip: min(_MOST_NAMES, tip.size))
        self._unanswered: LRUCache[CallKey, Manifest] = LRUCache(_MOST_CHAINS)
        self._newest: LRUCache[SessionKey, _Newest] = LRUCache(_MOST_CHAINS)
        self._written: LRUCache[SessionKey, _Written] = LRUCache(_MOST_CHAINS)
        self._first_numbers: LRUCache[SessionKey, int] = LRUCache(_MOST_CHAINS)
        self._artifacts: LRUCache[SessionKey, set[str]] = LRUCache(_MOST_CHAINS)
        self._batches: dict[SessionKey, _Batch] = {}
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
        identity = pack.identity
        of_call, session = (agent_key(identity), identity.invocation, identity.call), agent_key(identity)[:3]
        name = pack_id(identity, pack.source.step)
        # Masked once, however often it is tried to write it.
        masked = cache(partial(self._masked.of, pack, policy, name))
        with self._starting:
            newest = self._newest_pack(session, events, identity.invocation)
            number, turn = newest.position
            position = Position(number + 1, turn if newest.invocation == identity.invocation else turn + 1)
            self._newest[session] = newest._replace(position=position, pack_id=name, invocation=identity.invocation)

        def recorded() -> tuple[Recording, Tip | None]:
            previous, tip = self._pack_before(session, newest), self._tip(identity)
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
            return recording, tip

        def write() -> None:
            batch = self._batches.setdefault(session, _Batch())
            if of_call not in batch.packs:  # a job that failed is tried again
                self._gather(batch, of_call, recorded)
            self._finish(session)

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
                outcome = self.store.outcomes([earlier]).name(earlier) or ""
                self._written[session] = _Written(earlier.number, earlier.digest, outcome)
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
        of_call, session = (agent_key(identity), identity.invocation, identity.call), agent_key(identity)[:3]
        self._outcomes.setdefault(of_call, values)

        def write() -> None:
            if of_call in self._unanswered:
                self._answer(self._batches.setdefault(session, _Batch()), of_call)
            self._outcomes.pop(of_call, None)
            self._finish(session)

        self.later(write, of_call)

    def _gather(self, batch: _Batch, of_call: CallKey, recorded: _Record) -> None:
        recording, tip = recorded()
        manifest = self._unanswered[of_call] = recording.manifest
        session = of_call[0][:3]
        batch.packs[of_call] = recording, tip, recorded
        self._tips[of_call[0]] = recording.tip
        self._written[session] = _Written(manifest.number, manifest.digest)
        self.store.files.settle_written(self.store.files.place(*session), manifest.stored)
        self._spool(batch, of_call, [recording], [])
        self._answer(batch, of_call)

    def _answer(self, batch: _Batch, of_call: CallKey) -> None:
        """Takes in the outcome of a pack that was recorded, where it is known."""
        if (values := self._outcomes.pop(of_call, None)) is None:
            return
        manifest = self._unanswered.pop(of_call)
        batch.outcomes[of_call] = manifest, values
        last = self._written.get(of_call[0][:3], _Written())
        if last.digest == manifest.digest:
            line = outcome_line(manifest.number, manifest.record, values)
            self._written[of_call[0][:3]] = last._replace(outcome=hash_text(line))
        self._spool(batch, of_call, [], [(manifest, values)])

    def _spool(self, batch: _Batch, of_call: CallKey, packs: list[Recording], outcomes: list[Answered]) -> None:
        """Puts a part of a batch into the spool; where that has no room it is in memory alone."""
        if self._batching is not None:
            files = self.store.files_of(packs, outcomes)
            files |= {f"{self.store.place(pack.manifest)}/{MANIFEST}": pack.data for pack in packs}
            with suppress(StoreError):
                batch.files |= {self._batching.keep(path, data): of_call for path, data in files.items()}

    def _finish(self, session: SessionKey, *, of_run: bool = False) -> None:
        """Writes the batch of a session, to an object store at the end ``of_run`` alone."""
        if (self._batching is not None and not of_run) or (batch := self._batches.pop(session, None)) is None:
            return
        try:
            self._renew(session, batch)
            recordings = [recording for recording, *_ in batch.packs.values()]
            manifests = self.store.write_all(recordings, [*batch.outcomes.values()])
        except AetherContextError:
            self._batches[session] = batch
            raise
        if self._batching is not None:
            self._batching.take_out(*batch.files)
        for recording, manifest in zip(recordings, manifests, strict=True):
            if manifest.pack_id != recording.manifest.pack_id:
                logger.info("%s is in the store as %s", recording.manifest.pack_id, self.store.uri(manifest))
                self._written.pop(session, None)
            if self._recorded is not None:
                self._recorded(manifest, recording)

    def _renew(self, session: SessionKey, batch: _Batch) -> None:
        """Leaves out what was forgotten of a batch, and records the rest anew where a pack that it extends was deleted.

        So it does where the store does not say, since what needs a pack that is gone can never be built.
        """
        folder, packs, outcomes = partial(self.store.files.place, *session), batch.packs, batch.outcomes
        if self._batching is not None:
            is_forgotten = partial(self._batching.is_forgotten, path=f"{folder()}/")
            forgotten = {of_call for name, of_call in batch.files.items() if is_forgotten(name)}
            packs = {of_call: pack for of_call, pack in packs.items() if of_call not in forgotten}
        extended = {tip.pack_id for _, tip, _ in packs.values() if tip is not None}
        extended |= {manifest.pack_id for manifest, _ in outcomes.values()}
        extended -= {recording.manifest.pack_id for recording, *_ in packs.values()}
        try:
            if all(self.store.files.get(f"{folder()}/packs/{name}/{MANIFEST}", 1) for name in extended):
                return
            batch.outcomes = {}
        except StoreError:
            batch.outcomes = {of_call: end for of_call, end in outcomes.items() if of_call not in batch.packs}
        if self._batching is not None:
            self._batching.take_out(*batch.files)
        self._written.pop(session, None)
        for agent, *_ in (*batch.packs, *outcomes):
            self._tips.pop(agent, None)
        batch.packs, batch.files = {}, {}
        for of_call, (recording, _, recorded) in packs.items():
            for name in recording.manifest.stored:
                self.store.files.note_written(folder(), name)
            if of_call in outcomes:
                self._outcomes[of_call] = outcomes[of_call][1]
            self._gather(batch, of_call, recorded)

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

    def _tip(self, identity: Identity) -> Tip | None:
        """The end of the chain that an agent's next pack extends; None where it cannot stand on it.

        Where a write was set aside or is refused all chains begin anew. See `_look` for what was deleted.
        """
        missing = self._spooled.spool.missing() if self._spooled is not None else 0
        if missing > self._missing:
            self._tips.clear()
        self._missing = missing
        tip = self._tips.get(agent_key(identity))
        return None if tip is not None and identity.last_event_time - tip.began > _DAY_SECONDS else tip

    async def flush(self, timeout_seconds: float = 5.0, invocation: InvocationContext | None = None) -> bool:
        """Waits until all that is queued by now is written; False where that took too long or the store failed.

        With an invocation, the batches of other sessions are not meant.
        What is queued meanwhile is not waited for. With a spool, the store itself gets `_STORE_SECONDS`; from half of
        them on it is spared, so that what it lacks is on the disk, and not lost with the process.
        """
        began = time.monotonic()
        store_seconds = timeout_seconds if self._spooled is None else min(timeout_seconds, _STORE_SECONDS)
        reached: Future[bool | None] = Future()
        """Whether the store itself has all; None where it failed, or there is no room for what it lacks."""

        def reach() -> None:
            for owner in list(self._batches) if invocation is None else [session_key(invocation)]:
                self._finish(owner, of_run=True)
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
            due = time.monotonic() - _BATCH_SECONDS
            for session in [session for session, batch in self._batches.items() if batch.since < due]:
                self.later(partial(self._finish, session, of_run=True))
            quiet = 0.0 if self._waiting or self._batches else quiet + _LOOK_SECONDS
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
