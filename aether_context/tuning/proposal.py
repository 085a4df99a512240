"""From recorded sessions to a recommended policy for each profile, with the results that it is based on."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aether_context import __version__
from aether_context.canonical import hash_json, short
from aether_context.errors import PackNotFound
from aether_context.policy import PackPolicy
from aether_context.store import PackStore
from aether_context.tuning.knobs import KNOBS, Knob, Values, with_values
from aether_context.tuning.simulation import Played
from aether_context.tuning.study import (
    Compared,
    Outcomes,
    Split,
    Study,
    choose,
    compare,
    decide,
    search,
    split,
)
from aether_context.tuning.workers import Folder, Journal, Pool, Task, folders, run_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Mover:
    """A session with a large difference: its results before and after, and the pack where most changed."""

    session: str
    before: Played
    after: Played
    pack: str

    @property
    def cost(self) -> float:
        """The relative difference in cost, in percent."""
        return 100 * (self.after.cost / self.before.cost - 1) if self.before.cost else 0.0

    @property
    def retention(self) -> float:
        """The difference in retention, in percentage points."""
        return (self.after.retention or 0.0) - (self.before.retention or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """Recorded sessions with calls of a profile, and how well they can be simulated.

    ``base`` is the policy that others are compared with: the one that was ``given``, else the one that most calls were
    recorded under. ``policies`` is the number of recorded ones: where they differ, all calls are played under ``base``.
    ``unusable`` are sessions that cannot be simulated, with the reasons. Of the ``calls``, ``same`` are built again
    byte for byte under the policy that was given, else under the recorded ones.
    """

    profile: str
    split: Split
    base: PackPolicy
    given: PackPolicy | None
    policies: int
    unusable: Mapping[str, str]
    calls: int
    same: int

    @property
    def sessions(self) -> tuple[Folder, ...]:
        return (*self.split.fit, *self.split.check, *self.split.held_out)

    @property
    def digest(self) -> str:
        """A hash that identifies these recordings."""
        return short(hash_json(sorted(folder.key for folder in self.sessions)))


class Tuner:
    """Simulates recorded sessions under other policies.

    Args:
        urls: URLs of the stores.
        seed: seed of the split, the search and the intervals.
        base: the policy that others are compared with; None takes the recorded ones.
        advance: is called for each session that was simulated.
    """

    def __init__(
        self,
        urls: Sequence[str],
        pool: Pool,
        journal: Journal,
        *,
        seed: int = 0,
        base: PackPolicy | None = None,
        advance: Callable[[object], None] = lambda _: None,
    ) -> None:
        self._folders = [folder for url in urls for folder in folders(PackStore(url))]
        if not self._folders:
            raise PackNotFound(f"no packs in {', '.join(urls)}: give the store that a plugin writes to")
        self._pool, self._journal, self._advance = pool, journal, advance
        self._seed, self._base = seed, base
        self._common: dict[str, PackPolicy] = {}

    def recordings(self, profile: str) -> Recordings:
        """The sessions of a profile that can be simulated, split in halves.

        Raises:
            PackNotFound: there is none.
        """
        self._common.pop(profile, None)
        results = self._results({}, self._folders, profile)
        usable = [folder for folder in self._folders if results[folder.name].played is not None]
        if not usable:
            reasons = {result.problem for result in results.values() if result.problem}
            raise PackNotFound("; ".join([f"no session of the profile {profile} can be played", *sorted(reasons)[:3]]))
        played = [result.played for folder in usable if (result := results[folder.name]).played is not None]
        recorded = Counter(digest for folder in usable for digest in results[folder.name].policies)
        base = self._base
        if base is None:
            digest = min(recorded, key=lambda digest: (-recorded[digest], digest))
            base = _policy_of(next(folder for folder in usable if digest in results[folder.name].policies), digest)
            if len(recorded) > 1:
                self._common[profile] = base
        return Recordings(
            profile=profile,
            split=split(usable, self._seed),
            base=base,
            given=self._base,
            policies=len(recorded),
            unusable={name: result.problem for name, result in results.items() if result.problem},
            calls=sum(len(session.kept) for session in played if session is not None),
            same=sum(session.same for session in played if session is not None),
        )

    def _results(self, values: Values, chosen: Sequence[Folder], profile: str, policy: PackPolicy | None = None) -> Any:
        base = policy or self._base or self._common.get(profile)
        tasks = {
            folder.name: Task(
                folder=folder,
                profile=profile,
                values=tuple(sorted(values.items())),
                base="" if base is None else base.canonical,
            )
            for folder in chosen
        }
        results = run_all(tasks.values(), self._pool, self._journal, self._advance)
        return {name: results[task] for name, task in tasks.items()}

    def play(
        self, values: Values, chosen: Sequence[Folder], profile: str, policy: PackPolicy | None = None
    ) -> Outcomes:
        """The results of sessions with other values for the knobs, or under another policy."""
        results = self._results(values, chosen, profile, policy)
        return {name: result.played for name, result in results.items() if result.played is not None}

    def study(
        self,
        recordings: Recordings,
        *,
        knobs: Sequence[Knob] = KNOBS,
        trials: int = 40,
        margin: float = 1.0,
        spend: float = 0.0,
    ) -> Study:
        """Searches on one half of the sessions, and tests the result on the other."""
        profile, parts = recordings.profile, recordings.split
        points = search(
            lambda values, chosen: self.play(values, chosen, profile), parts.fit, knobs, trials=trials, seed=self._seed
        )
        chosen = choose(points, margin, spend)

        def compared(part: Sequence[Folder]) -> Compared | None:
            if chosen is None or not part:
                return None
            return compare(self.play({}, part, profile), self.play(points[chosen].values, part, profile), self._seed)

        return decide(
            profile,
            points,
            chosen,
            fit=compared(parts.fit),
            check=compared(parts.check),
            held_out=compared(parts.held_out),
            margin=margin,
            spend=spend,
        )

    def against(self, recordings: Recordings, policy: PackPolicy) -> Compared:
        """Compares a policy with the base, over all sessions."""
        chosen = recordings.sessions
        return compare(
            self.play({}, chosen, recordings.profile),
            self.play({}, chosen, recordings.profile, policy),
            self._seed,
        )

    def movers(
        self, recordings: Recordings, values: Values, policy: PackPolicy | None = None, most: int = 10
    ) -> list[Mover]:
        """The sessions whose retention changes most under another policy, the largest change first."""
        profile, chosen = recordings.profile, recordings.sessions
        before = self._results({}, chosen, profile)
        after = self._results(values, chosen, profile, policy)
        movers: list[Mover] = []
        for name, result in before.items():
            played_before, played_after = result.played, after[name].played
            if (
                played_before is None
                or played_after is None
                or (played_before.cost, played_before.kept) == (played_after.cost, played_after.kept)
            ):
                continue
            losses = [a - b for a, b in zip(played_before.kept, played_after.kept, strict=True)]
            index = max(range(len(losses)), key=lambda index: (abs(losses[index]), -index))
            movers.append(Mover(session=name, before=played_before, after=played_after, pack=result.calls[index]))
        movers.sort(
            key=lambda mover: (-abs((mover.after.retention or 0) - (mover.before.retention or 0)), mover.session)
        )
        return movers[:most]


def _policy_of(folder: Folder, digest: str) -> PackPolicy:
    from aether_context.store.replay import Replayer

    store = PackStore(folder.url)
    return Replayer(store).policy(next(m for p in folder.places if (m := store.read(p)).policy == digest))


def policy_file(studies: Sequence[tuple[Recordings, Study]], *, urls: Sequence[str], seed: int, margin: float) -> str:
    """The policy that tuning recommends for the first profile that it changes, as a TOML file with its provenance.

    Where it recommends none, the file gives the reason and holds no settings.
    """
    lines = [f"# Tuned by aether-context {__version__} on {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, seed {seed}."]
    for recordings, study in studies:
        check = study.check
        lines.append(
            f"# {study.profile}: {study.verdict}, {study.reason}. {len(recordings.sessions)} sessions of "
            f"{', '.join(urls)} (recordings {recordings.digest}), base policy {short(recordings.base.digest)}."
        )
        if check is not None:
            lines.append(
                f"#   On {check.cost.sessions} sessions to check on: cost {_interval(check.cost, '%')}, retention "
                f"{_interval(check.retention, ' points')}; margin {margin:g}, chance {study.chance:.4f}."
            )
    tuned = next(((recordings, study) for recordings, study in studies if study.verdict == "tuned"), None)
    if tuned is None:
        return "\n".join([*lines, "# No change: the policy stays as it is.", ""])
    recordings, study = tuned
    policy = with_values(recordings.base.for_profile(study.profile), study.values)
    usual = PackPolicy.load(study.profile, preset=policy.preset)
    changed = _differing(policy.model_dump(mode="json"), usual.model_dump(mode="json"))
    chosen = {"profile": study.profile, "preset": policy.preset, **changed}
    return "\n".join([*lines, "", *_toml(chosen), ""])


def _differing(value: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The nested settings that differ from the usual ones. None, which TOML cannot hold, is left out."""
    changed: dict[str, Any] = {}
    for key, item in value.items():
        usual_item = usual.get(key)
        if isinstance(item, dict):
            changed_items = _differing(item, usual_item if isinstance(usual_item, dict) else {})
            if changed_items or not isinstance(usual_item, dict):
                changed[key] = changed_items
        elif item != usual_item and item is not None:
            changed[key] = item
    return changed


def _interval(difference: Any, unit: str) -> str:
    return f"{difference.mean:+.2f}{unit} [{difference.low:+.2f}, {difference.high:+.2f}]"


def _toml(value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """The TOML lines of a mapping of values and tables."""

    def written(item: Any) -> str:
        return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")

    def named(key: str) -> str:
        return key if key.isascii() and key.replace("_", "").isalnum() else written(key)

    plain = {key: item for key, item in value.items() if not isinstance(item, dict)}
    if path and (plain or not value):
        yield f"\n[{'.'.join(path)}]"
    for key, item in plain.items():
        yield f"{named(key)} = {written(item)}"
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _toml(item, (*path, named(key)))
