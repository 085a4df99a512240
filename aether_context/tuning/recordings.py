"""Recorded sessions as sequences of model calls: the input of each, and the model's answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from aether_context.canonical import hash_json
from aether_context.errors import AetherContextError
from aether_context.pack import RECALLED, Candidate, Content, PackInput
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer


class UnusableRecording(AetherContextError):
    """A session's packs do not hold the whole input of its calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One model call.

    ``source`` is the pack's input without contents and without recalled turns, since both depend on the policy. The
    host's contents are the first ``length`` of ``history``, a list that calls share while contents are only appended;
    ``times`` has for each the time when it first appeared, seconds since 1970 UTC. ``human`` is the index of the
    message that is answered. ``answer`` is the model's answer, empty where no later call holds it. ``checksum`` is that
    of the recorded request, ``counted`` its counted tokens, ``price`` the price of cached input as a share of other
    input.
    """

    pack_id: str
    profile: str
    policy: PackPolicy
    source: PackInput
    history: Sequence[Content]
    times: Sequence[float]
    length: int
    human: int | None
    answer: tuple[Content, ...]
    checksum: str
    counted: int
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSession:
    """The calls of one agent in one session, in their order.

    ``source`` is the application, ``name`` identifies the session, ``counts`` are the recorded token counts.
    """

    source: str
    name: tuple[str, ...]
    calls: tuple[RecordedCall, ...]
    counts: Mapping[str, int]

    @property
    def digest(self) -> str:
        """A hash that distinguishes this recording from others of the same session."""
        return hash_json([list(self.name), [call.checksum for call in self.calls]])


def recorded_sessions(store: PackStore, places: Sequence[str]) -> Iterator[RecordedSession]:
    """The sessions of one folder, one for each agent and branch.

    Args:
        places: the places of the folder's packs.

    Raises:
        AetherContextError: a pack cannot be read, or its texts were not recorded.
    """
    replayer = Replayer(store)

    def line(manifest: Manifest) -> tuple[str, str]:
        return manifest.branch, manifest.agent

    manifests = [store.read(place) for place in places]
    manifests.sort(key=lambda item: (*line(item), item.last_event_time, item.call, item.pack_id))
    for (branch, agent), group in groupby(manifests, key=line):
        calls = _calls(replayer, list(group))
        last = manifests[-1]
        counts: dict[str, int] = {}
        for manifest in manifests:
            if line(manifest) == (branch, agent):
                counts |= replayer.resolve(manifest).counts
        name = (store.url, last.app, last.user, last.session, branch, agent)
        yield RecordedSession(source=last.app, name=name, calls=calls, counts=counts)


def _calls(replayer: Replayer, manifests: Sequence[Manifest]) -> tuple[RecordedCall, ...]:
    calls: list[RecordedCall] = []
    history: list[Content] = []
    times: list[float] = []
    candidates: tuple[Candidate, ...] = ()
    for manifest in manifests:
        source = replayer.pack_input(manifest)
        request, now = source.request, manifest.last_event_time
        contents_by_place = dict(zip(request.positions, request.contents, strict=True))
        total = max(request.positions, default=-1) + 1
        changed = total < len(history) or any(
            history[place].digest != content.digest
            for place, content in contents_by_place.items()
            if place < len(history)
        )
        if changed:
            history = [contents_by_place.get(place, content) for place, content in enumerate(history[:total])]
            times = times[:total]
        missing = [place for place in range(len(history), total) if place not in contents_by_place]
        if missing:
            raise UnusableRecording(f"{manifest.pack_id} names contents that no pack of its session holds")
        history.extend(contents_by_place[place] for place in range(len(history), total))
        times.extend([now] * (total - len(times)))
        if manifest.chose:
            candidates = tuple(candidate for candidate in source.candidates if candidate.source != RECALLED)
        calls.append(
            RecordedCall(
                pack_id=manifest.pack_id,
                profile=manifest.profile,
                policy=replayer.policy(manifest),
                source=source._replace(
                    request=request._replace(contents=(), positions=(), human=None),
                    candidates=candidates,
                    searched=None,
                ),
                history=history,
                times=times,
                length=total,
                human=None if request.human is None else request.positions[request.human],
                answer=(),
                checksum=manifest.checksum,
                counted=manifest.counted_tokens,
                price=manifest.cached_price,
            )
        )
    return tuple(
        replace(call, answer=_answer(call, after)) for call, after in zip(calls, [*calls[1:], None], strict=True)
    )


def _answer(call: RecordedCall, following: RecordedCall | None) -> tuple[Content, ...]:
    """The model's answer to a call, from the history of the following one."""
    if following is None or following.length <= call.length:
        return ()
    content = following.history[call.length]
    return (content,) if content.role == "model" else ()
