"""Plays sessions in processes of this machine, or on a Dask cluster whose workers can reach the stores.

A worker gets the places of a session's packs. It reads them once and keeps the result in a folder of its own, so that
no process holds more than one session in memory at a time.
"""

from __future__ import annotations

import atexit
import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import IO, TypeAlias

from aether_context import __version__
from aether_context.canonical import hash_json, short
from aether_context.errors import AetherContextError, MissingExtra
from aether_context.policy import PackPolicy
from aether_context.store import PackStore
from aether_context.tuning.knobs import Values, with_values
from aether_context.tuning.recordings import RecordedCall, RecordedSession, recorded_sessions
from aether_context.tuning.retention import Used, used
from aether_context.tuning.simulation import Played, play

_AHEAD = 4
"""Tasks submitted per worker, enough to keep it busy without submitting many thousands at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A session of a store: the folder of its packs. ``source`` is its application."""

    url: str
    path: str
    packs: tuple[str, ...]

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(f"{self.path}/{name}" for name in self.packs)

    @property
    def source(self) -> str:
        """The application, below the store's root."""
        return self.path.rsplit("/", 4)[-4]

    @property
    def name(self) -> str:
        return self.path.removesuffix("/packs")

    @property
    def key(self) -> str:
        return short(hash_json([self.url, self.path, list(self.packs)]), 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A session to play, with other values for knobs in its calls of a profile.

    ``base`` is the canonical JSON of the policy that replaces the recorded ones; empty keeps these.
    """

    folder: Folder
    profile: str
    values: tuple[tuple[str, float], ...] = ()
    base: str = ""

    @property
    def key(self) -> str:
        values = [list(pair) for pair in self.values]
        return short(hash_json([__version__, self.folder.key, self.profile, values, self.base]), 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a session. ``calls`` are the packs of the profile's calls, ``policies`` the digests of the policies
    that they were recorded under; ``problem`` says why it has no result."""

    played: Played | None
    calls: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    problem: str = ""


def folders(store: PackStore) -> list[Folder]:
    """The sessions of a store, sorted by path."""
    places = sorted(store.places())
    return [
        Folder(url=store.url, path=path, packs=tuple(place.rsplit("/", 1)[1] for place in group))
        for path, group in groupby(places, key=lambda place: place.rsplit("/", 1)[0])
    ]


def run(task: Task) -> Result:
    """Plays a session. Faults of its recording are returned as ``problem``, not raised."""
    try:
        sessions = _material(task.folder)
        base = PackPolicy(**json.loads(task.base)) if task.base else None
        values: Values = dict(task.values)
        policies: dict[str, PackPolicy] = {}

        def policy_of(call: RecordedCall) -> PackPolicy:
            policy = policies.get(call.policy.digest)
            if policy is None:
                policy = call.policy
                if call.profile == task.profile:
                    policy = with_values(policy if base is None else base.for_profile(call.profile), values)
                policies[call.policy.digest] = policy
            return policy

        played = [play(session, needs, policy_of, task.profile) for session, needs in sessions]
        calls = [call for session, _ in sessions for call in session.calls if call.profile == task.profile]
        return Result(
            played=_sum(played) if calls else None,
            calls=tuple(call.pack_id for call in calls),
            policies=tuple(call.policy.digest for call in calls),
        )
    except AetherContextError as error:
        return Result(played=None, problem=f"{type(error).__name__}: {error}")


def _sum(played: Sequence[Played]) -> Played:
    return Played(
        tokens=sum(session.tokens for session in played),
        cost=sum(session.cost for session in played),
        over=sum(session.over for session in played),
        cuts=sum(session.cuts for session in played),
        needed=sum(session.needed for session in played),
        kept=tuple(kept for session in played for kept in session.kept),
        same=sum(session.same for session in played),
    )


_Material: TypeAlias = list[tuple[RecordedSession, tuple[Used, ...]]]


@cache
def _own_folder() -> Path:
    """A private folder that is deleted when this process ends."""
    path = tempfile.mkdtemp(prefix="aether-context-tune-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def _material(folder: Folder) -> _Material:
    """The recorded sessions of a folder, with what their answers used."""
    cache_file = _own_folder() / f"{folder.key}.pickle"
    if cache_file.exists():
        found: _Material = pickle.loads(cache_file.read_bytes())  # this process wrote it
        return found
    sessions = recorded_sessions(PackStore(folder.url), folder.places)
    material = [(session, used(session)) for session in sessions]
    cache_file.write_bytes(pickle.dumps(material, protocol=pickle.HIGHEST_PROTOCOL))
    return material


class Pool:
    """Runs tasks in an executor, ``workers`` at once; without one, in this process, one after the other."""

    def __init__(self, executor: Executor | None = None, workers: int = 1) -> None:
        self._executor, self.workers = executor, workers

    def submit(self, act: Callable[[Task], Result], task: Task) -> Future[Result]:
        if self._executor is not None:
            return self._executor.submit(act, task)
        future: Future[Result] = Future()
        future.set_result(act(task))
        return future


@contextmanager
def pool(jobs: int | None = None, dask: str | None = None) -> Iterator[Pool]:
    """A pool of processes, by default one per core, or of a Dask cluster's workers.

    Args:
        dask: the address of its scheduler, such as ``tcp://scheduler:8786``.

    Raises:
        MissingExtra: Dask is not installed.
    """
    if dask is not None:
        try:
            from distributed import Client
        except ImportError as error:
            raise MissingExtra("dask", "a Dask cluster") from error
        with Client(dask) as client:  # type: ignore[no-untyped-call]
            yield Pool(client.get_executor(pure=False), max(1, sum(client.nthreads().values())))
        return
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield Pool()
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as executor:
        yield Pool(executor, jobs)


class Journal:
    """A file of results, so that a run that was stopped can be resumed. Without a path they are only in memory."""

    def __init__(self, path: Path | None) -> None:
        self._known: dict[str, Result] = {}
        self._file: IO[str] | None = None
        if path is None:
            return
        text = path.read_text("utf-8") if path.exists() else ""
        for line in text.splitlines():
            try:
                key, value = json.loads(line)
                played = value["played"] and Played(**{**value["played"], "kept": tuple(value["played"]["kept"])})
                packs = {name: tuple(value[name]) for name in ("calls", "policies")}
                self._known[key] = Result(played=played, **packs, problem=value["problem"])
            except (ValueError, KeyError, TypeError):  # the last line of a run that was stopped
                continue
        self._file = path.open("a", encoding="utf-8")
        if text and not text.endswith("\n"):
            self._file.write("\n")

    def get(self, task: Task) -> Result | None:
        return self._known.get(task.key)

    def put(self, task: Task, result: Result) -> None:
        self._known[task.key] = result
        if self._file is not None:
            self._file.write(json.dumps([task.key, asdict(result)]) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def run_all(
    tasks: Iterable[Task], pool: Pool, journal: Journal, advance: Callable[[object], None] = lambda _: None
) -> Mapping[Task, Result]:
    """Runs the tasks that are not in the journal. Results are in the order of the tasks."""
    results: dict[Task, Result] = {}
    pending: dict[Future[Result], Task] = {}

    def take(done: Iterable[Future[Result]]) -> None:
        for future in done:
            task = pending.pop(future)
            results[task] = future.result()
            journal.put(task, results[task])
            advance(task)

    order = list(tasks)
    try:
        for task in order:
            recorded = journal.get(task)
            if recorded is not None:
                results[task] = recorded
                advance(task)
                continue
            pending[pool.submit(run, task)] = task
            while len(pending) > _AHEAD * pool.workers:
                take(wait(pending, return_when=FIRST_COMPLETED).done)
        while pending:
            take(wait(pending, return_when=FIRST_COMPLETED).done)
    except BaseException:  # results that are ready go into the journal
        take([future for future in pending if future.done() and not future.exception()])
        raise
    return {task: results[task] for task in order}
