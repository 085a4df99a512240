"""From recorded sessions to a verdict and a policy for each profile."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from multiprocessing import get_context
from typing import Any, TypeAlias, TypeVar

from aether_context.canonical import hash_text
from aether_context.errors import MissingExtra, PackNotFound, PolicyError, StoreUnavailable
from aether_context.lab.exam.intervals import LEAST_SESSIONS
from aether_context.lab.exam.recordings import SessionFolder, folders, recorded_policies
from aether_context.lab.tuning.simulation import Change, ChangedCall, Played, play, play_change
from aether_context.lab.tuning.verdict import (
    Compared,
    Outcomes,
    TuningVerdict,
    compare,
    decide,
    few_sessions,
    search,
)
from aether_context.pack import FLEXIBLE_LAYERS, Layer
from aether_context.policy import PackPolicy

_Result = TypeVar("_Result")


@contextmanager
def executor(jobs: int | None = None, scheduler: str | None = None) -> Iterator[Executor]:
    """Makes an executor that plays sessions: processes of this machine, by default one per core, or workers of the Dask
    cluster whose scheduler has an address such as ``tcp://scheduler:8786``.

    Raises:
        MissingExtra: Dask is not installed.
        StoreUnavailable: there is no scheduler at this address.
    """
    if scheduler is not None:
        try:
            from distributed import Client
        except ImportError as error:
            raise MissingExtra("distributed", "a Dask cluster", is_package=True) from error
        try:
            client = Client(scheduler)  # type: ignore[no-untyped-call]
        except (OSError, ValueError) as error:
            raise StoreUnavailable(f"no Dask scheduler answers at {scheduler}: {error}") from error
        with client, client.get_executor(pure=False) as workers:  # type: ignore[no-untyped-call]
            yield workers
        return
    # Started anew, since a fork copies locks that other threads hold; Ctrl-C is for the process that gives them work.
    ignored = {"initializer": signal.signal, "initargs": (signal.SIGINT, signal.SIG_IGN)}
    processes = partial(ProcessPoolExecutor, jobs or os.cpu_count(), mp_context=get_context("spawn"), **ignored)
    with ThreadPoolExecutor(1) if jobs == 1 else processes() as workers:
        try:
            yield workers
        except KeyboardInterrupt:
            workers.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """The sessions with calls of a profile: those that are searched, and those to test on.

    ``base`` is the policy that others are compared with: the one that was given, else the one that most calls were
    recorded under, with the tables of agents. ``others`` are the other ones that were recorded, beside
    the forms that a policy's tables give it: settings in which any differ stay as recorded, unless a base was given.
    """

    profile: str
    base: PackPolicy
    others: tuple[PackPolicy, ...]
    searched: tuple[SessionFolder, ...]
    tested: tuple[SessionFolder, ...]


class Tuner:
    """Plays recorded sessions under other policies.

    ``unusable`` are the sessions that cannot be played, with the reasons. Of a profile's ``calls`` that were played
    under the base policy, ``same`` became byte for byte what was recorded.

    Args:
        base: the policy that others are compared with; None takes the recorded ones.
        seed: seed of the halves and of the intervals.
        advance: called with the number of sessions that are read or played, and of all.

    Raises:
        PackNotFound: the stores hold no packs, or none that can be read.
    """

    def __init__(
        self,
        urls: Sequence[str],
        executor: Executor,
        *,
        base: PackPolicy | None = None,
        seed: int = 0,
        advance: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        self._executor, self._base, self._seed, self._advance = executor, base, seed, advance
        all_folders = folders(urls)
        if not all_folders:
            raise PackNotFound(f"no packs in {', '.join(urls)}: give the store that a plugin writes to")
        self._recorded: dict[SessionFolder, Mapping[tuple[str, str], int]] = {}
        self.unusable: dict[str, str] = {}
        self.calls, self.same = Counter[str](), Counter[str]()
        for folder, policies in self._each(recorded_policies, all_folders):
            if isinstance(policies, str):
                self.unusable[folder.name] = policies
            else:
                self._recorded[folder] = policies
        if not self._recorded:
            raise PackNotFound(f"no session can be read: {'; '.join(sorted(set(self.unusable.values()))[:3])}")

    @property
    def profiles(self) -> list[str]:
        """The profiles that have recorded sessions."""
        return sorted({profile for policies in self._recorded.values() for profile, _ in policies})

    def recordings(self, profile: str) -> Recordings:
        """The sessions of a profile, in halves by a hash of their names and the seed.

        Raises:
            PackNotFound: there is none.
        """
        calls = Counter[str]()
        of_profile: list[SessionFolder] = []
        for folder, policies in self._recorded.items():
            counts = {policy: count for (name, policy), count in policies.items() if name == profile}
            calls.update(counts)
            of_profile += [folder] if counts else []
        if not of_profile:
            raise PackNotFound(f"no session has calls of the profile {profile!r}, but of {', '.join(self.profiles)}")
        recorded = min(calls, key=lambda policy: (-calls[policy], policy))
        # An agent that has a table is recorded with what that makes of the app's policy, which alone holds the tables.
        texts = sorted({text for counted in self._recorded.values() for _, text in counted})
        candidates = [PackPolicy(**json.loads(text)) for text in (recorded, *texts)]
        with_tables = (each for each in candidates if each.agents and recorded in _forms(each, profile))
        app_policy = next(with_tables, candidates[0])
        of_profile.sort(key=lambda folder: (hash_text(f"{self._seed} {folder.name}"), folder.url, folder.places))
        return Recordings(
            profile=profile,
            base=(self._base or app_policy).for_profile(profile),
            others=tuple(PackPolicy(**json.loads(text)) for text in sorted(calls.keys() - _forms(app_policy, profile))),
            searched=tuple(of_profile[::2]),
            tested=tuple(of_profile[1::2]),
        )

    def tune(self, recordings: Recordings, *, margin: float = 1.0, spend: float = 0.0) -> TuningVerdict:
        """Searches on one half of the sessions, and tests the result on the other."""
        policies = grid(recordings.base)
        first, rest = recordings.searched[:_FIRST_SESSIONS], recordings.searched[_FIRST_SESSIONS:]
        base, *outcomes = self._play(recordings, first, [recordings.base, *policies.values()])
        played = dict(zip(policies, outcomes, strict=True))
        if rest:
            trials = search(base, played, self._seed)
            names = _leading(trials, margin, spend)
            more_of_base, *more = self._play(recordings, rest, [recordings.base, *(policies[name] for name in names)])
            base = {**base, **more_of_base}
            played |= {name: {**played[name], **outcome} for name, outcome in zip(names, more, strict=True)}

        def test(name: str) -> Compared:
            base_outcome, tuned_outcome = self._play(recordings, recordings.tested, [recordings.base, policies[name]])
            return compare(base_outcome, tuned_outcome, self._seed)

        trials = search(base, played, self._seed)
        recorded = len(recordings.searched) + len(recordings.tested)
        if 0 < recorded < LEAST_SESSIONS:
            return TuningVerdict(kind="no change", reason=few_sessions(recorded), trials=trials)
        return decide(trials, test, margin=margin, spend=spend)

    def check(self, recordings: Recordings, change: Change) -> tuple[Compared, list[ChangedCall]]:
        """Compares all sessions with what they are after a change; with the calls that it alters, the worst first."""
        outcomes, calls = (dict[SessionFolder, Played](), dict[SessionFolder, Played]()), list[ChangedCall]()
        profile, base, other_policies = recordings.profile, recordings.base, self._other_policies(recordings)
        act = partial(play_change, change=change, profile=profile, base=base, other_policies=other_policies)
        for folder, played in self._each(act, recordings.searched + recordings.tested):
            if isinstance(played, str):
                self.unusable[folder.name] = played
                continue
            outcomes[0][folder], outcomes[1][folder], altered = played
            calls += altered
            self._count(profile, outcomes[1][folder])
        calls.sort(key=lambda call: (-len(call.lost_texts), -call.cost, call.pack_id))
        return compare(*outcomes, self._seed, frozenset(outcomes[0])), calls

    def _other_policies(self, recordings: Recordings) -> Sequence[PackPolicy] | None:
        return recordings.others if self._base is None else None

    def _count(self, profile: str, played: Played) -> None:
        self.calls[profile] += len(played.kept)
        self.same[profile] += played.same

    def _each(
        self, act: Callable[[SessionFolder], _Result], picked: Sequence[SessionFolder]
    ) -> Iterator[tuple[SessionFolder, _Result]]:
        """Sessions with the results of an act on each, which `executor` carries out."""
        self._advance(0, len(picked))
        for done, result in enumerate(self._executor.map(act, picked)):
            yield picked[done], result
            self._advance(done + 1, len(picked))

    def _play(
        self, recordings: Recordings, picked: Sequence[SessionFolder], policies: Sequence[PackPolicy]
    ) -> list[Outcomes]:
        """The results of sessions under each policy, the base first."""
        outcomes: list[dict[SessionFolder, Played]] = [{} for _ in policies]
        act = partial(play, profile=recordings.profile, policies=policies, others=self._other_policies(recordings))
        for folder, played in self._each(act, picked):
            if isinstance(played[0], str):
                self.unusable[folder.name] = played[0]
                continue
            self._count(recordings.profile, played[0])
            for outcome, result in zip(outcomes, played, strict=True):
                outcome |= {} if isinstance(result, str) else {folder: result}
        return list(outcomes)


_FIRST_SESSIONS, _LEADING = 12, 3
"""The sessions that all policies are tried on, and how many of those that save most there, and of those that keep most,
are tried on the others, too. All 24 on all sessions take three times as long."""


def _leading(trials: Mapping[str, Compared], margin: float, spend: float) -> list[str]:
    """The policies that may still be chosen, and the one that keeps most at whatever cost."""
    usable = [(name, trial) for name, trial in trials.items() if trial.over <= 0 and not trial.unplayed]
    # Of equals the first is taken, so that those that lead differ.
    first = {(trial.cost.mean, trial.retention.mean): name for name, trial in reversed(usable)}
    allowed = {name: trials[name] for name in first.values()}
    keeping = sorted(allowed, key=lambda name: -allowed[name].retention.mean)
    cheaper = (name for name in allowed if allowed[name].retention.mean >= -margin)
    saving = sorted(cheaper, key=lambda name: allowed[name].cost.mean)
    affordable = [name for name in keeping if allowed[name].cost.mean <= spend + margin]
    return list(dict.fromkeys((*saving[:_LEADING], *affordable[:_LEADING], *keeping[:1])))


def _forms(policy: PackPolicy, profile: str) -> set[str]:
    """A policy as agents have it, those with a table and others, as canonical JSON."""
    return {policy.for_agent(name, profile).canonical for name in ("", *policy.agents)}


# The policies that tuning tries in the place of another one.

_Trial: TypeAlias = tuple[tuple[Layer, Layer] | None, tuple[float, float] | None, int | None]
"""A layer whose share rises and one whose share falls; ``compact_at`` and ``compact_to``; ``memory_k``."""

# One factor at a time comes first, so that what each does can be told apart: every pair of layers both ways, the depth
# of a cut alone, earlier cuts at two depths each, and fewer and more memories. 1.0 and 0.42 are the defaults, which
# mend a policy that was set too tight. Combined are factors that make room for each other: memories with the layers
# that take or give their place, and the conversation's share with the depth of its cuts. The last two save and keep
# most.
_TRIALS: tuple[_Trial, ...] = (
    *((move, None, None) for move in permutations(FLEXIBLE_LAYERS, 2)),
    *((None, (1.0, compact_to), None) for compact_to in (0.2, 0.3, 0.42, 0.55, 0.7)),
    *((None, marks, None) for marks in ((0.8, 0.3), (0.8, 0.5), (0.6, 0.25), (0.6, 0.42))),
    *((None, None, memories) for memories in (4, 24)),
    (("evidence", "conversation"), (1.0, 0.3), None),
    (("evidence", "conversation"), None, 4),
    (("evidence", "memory"), None, 4),
    (("memory", "conversation"), None, 24),
    (("conversation", "memory"), (1.0, 0.55), 4),
    (("conversation", "evidence"), (1.0, 0.7), None),
    (None, (0.6, 0.25), 4),
    (None, (1.0, 0.7), 24),
)

_PART = 2 / 3
"""How far a share moves, as a part of the way to the end of its range or the other's, whichever is nearer: for
``research`` evidence to 65%, at the conversation's expense. What is left of the ranges is for signals to move it in."""


def grid(base: PackPolicy) -> Mapping[str, PackPolicy]:
    """The policies to try by name, 24 for the usual ones, each once and none equal to the base."""
    policies: dict[str, PackPolicy] = {}
    digests = {base.digest}
    for move, marks, memories in _TRIALS:
        names: list[str] = []
        settings: dict[str, Any] = {}
        if move is not None:
            names.append(f"{move[0]} for {move[1]}")
            settings["budget"] = {"shares": _moved(base, *move)}
        if marks is not None:
            names.append("cut at {:g} to {:g}".format(*marks))
            settings["conversation"] = dict(zip(("compact_at", "compact_to"), marks, strict=True))
        if memories is not None:
            names.append(f"{memories} memories")
            settings["retrieval"] = {"memory_k": memories}
        try:
            policy = base.changed(**settings)
        except PolicyError:  # the base's own ranges leave no room for it
            continue
        if policy.digest not in digests:
            digests.add(policy.digest)
            policies[", ".join(names)] = policy
    return policies


def _moved(base: PackPolicy, to: Layer, source: Layer) -> dict[str, Any]:
    """The ranges of two layers with their middles moved by the same amount, each inside the range that it had."""
    rising, falling = (getattr(base.budget.shares, layer) for layer in (to, source))
    cut = _PART * min(rising.high - rising.low, falling.high - falling.low)
    return {
        to: {"low": round(rising.low + cut, 4), "high": rising.high},
        source: {"low": falling.low, "high": round(falling.high - cut, 4)},
    }
