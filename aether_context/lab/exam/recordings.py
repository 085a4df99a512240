"""Recorded sessions as sequences of model calls: the input of each, and the model's answer.

Exam and tuning read a store through it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any

from aether_context.errors import AetherContextError, BlobNotFound, ReplayIncomplete
from aether_context.evidence.show import is_text
from aether_context.pack import RECALLED, Candidate, Content, PackInput
from aether_context.policy import PackPolicy
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer
from aether_context.text.entities import SCHEME


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFolder:
    """A session of a store: the places of its packs. ``options`` are the store's."""

    url: str
    places: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def store(self) -> PackStore:
        return PackStore(self.url, **self.options)

    @property
    def name(self) -> str:
        """Application, user and session, as they are written in the store."""
        return "/".join(self.places[0].split("/")[-5:-2])


def folders(stores: Sequence[PackStore | str], **selection: str | None) -> list[SessionFolder]:
    """The sessions of stores, by their URLs or as they are; all or those of an app, a user or a session."""
    whose = [selection.get(name) for name in ("app", "user", "session")]
    opened = [PackStore(store) if isinstance(store, str) else store for store in dict.fromkeys(stores)]
    return [
        SessionFolder(url=url, places=tuple(places), options=store.files.options)
        for url, store in {store.url: store for store in opened}.items()
        for _, places in groupby(sorted(store.listed(*whose)), key=lambda place: place.rpartition("/")[0])
    ]


def recorded_policies(folder: SessionFolder) -> Mapping[tuple[str, str], int] | str:
    """The number of calls by profile and policy, as canonical JSON; or why the session cannot be read."""
    try:
        replayer = Replayer(folder.store)
        manifests = [replayer.store.read(place) for place in folder.places]
        by_digest = {manifest.policy: manifest for manifest in manifests}
        policies = {digest: replayer.policy(manifest).canonical for digest, manifest in by_digest.items()}
        return Counter((manifest.profile, policies[manifest.policy]) for manifest in manifests)
    except AetherContextError as error:
        return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One model call.

    ``source`` is the pack's input without contents and without recalled turns, since both depend on the policy. The
    host's contents are the first ``length`` of ``history``, a list that calls share while contents are only appended;
    ``times`` has for each the time when it first appeared, seconds since 1970 UTC. ``request_index`` is the index of
    the message that is answered. ``answer`` is the model's answer, empty where no later call holds it.
    """

    manifest: Manifest
    policy: PackPolicy
    source: PackInput
    history: Sequence[Content]
    times: Sequence[float]
    length: int
    request_index: int | None
    answer: tuple[Content, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSession:
    """The calls of one agent in one session, in their order; ``counts`` are the recorded token counts."""

    agent: str
    calls: tuple[RecordedCall, ...]
    counts: Mapping[str, int]


def stored_texts(folder: SessionFolder) -> Mapping[str, str]:
    """The whole texts of the results and messages of which a session's packs show extracts, by their addresses."""
    store = folder.store
    manifests = list(store.files.at_once(store.read, folder.places))
    manifest, texts = manifests[0], dict[str, str]()
    for address in {address for manifest in manifests for address in manifest.saved}:
        message = store.message(*manifest.session_key, address.removeprefix(SCHEME))
        texts[address] = (message or b"").decode(errors="replace")
    for record in store.evidence(*manifest.session_key):
        if is_text(record.media_type):
            with suppress(BlobNotFound):  # its time to be kept is over
                data = store.evidence_data(manifest.app, manifest.user, record.digest)
                texts[record.uri] = data.decode(errors="replace")
    return texts


def recorded_sessions(folder: SessionFolder, replayer: Replayer | None = None) -> Iterator[RecordedSession]:
    """The recorded calls of one session, for each branch and agent.

    Args:
        replayer: one that reads the same store already.

    Raises:
        AetherContextError: a pack cannot be read, or its texts were not recorded.
    """
    replayer = replayer or Replayer(folder.store)

    def line(manifest: Manifest) -> tuple[str, str]:
        return manifest.branch, manifest.agent

    manifests = [replayer.store.read(place) for place in folder.places]
    manifests.sort(key=lambda item: (*line(item), item.last_event_time, item.call, item.pack_id))
    for (_, agent), group in groupby(manifests, key=line):
        of_agent = list(group)
        counts = dict(chain.from_iterable(replayer.resolve(manifest).counts.items() for manifest in of_agent))
        yield RecordedSession(agent=agent, calls=_calls(replayer, of_agent), counts=counts)


def _calls(replayer: Replayer, manifests: Sequence[Manifest]) -> tuple[RecordedCall, ...]:
    calls: list[RecordedCall] = []
    history: list[Content] = []
    times: list[float] = []
    candidates: tuple[Candidate, ...] = ()
    for manifest in manifests:
        source = replayer.pack_input(manifest)
        request = source.request
        given = dict(zip(request.positions, request.contents, strict=True))
        total = max(request.positions, default=-1) + 1
        if total < len(history) or any(
            content.digest != given[place].digest for place, content in enumerate(history) if place in given
        ):
            history = [given.get(place, content) for place, content in enumerate(history[:total])]
            times = times[:total]
        if any(place not in given for place in range(len(history), total)):
            raise ReplayIncomplete([f"{manifest.pack_id} names contents that no pack of its session holds"])
        history.extend(given[place] for place in range(len(history), total))
        times.extend([manifest.last_event_time] * (total - len(times)))
        if calls and calls[-1].length < total and history[calls[-1].length].role == "model":
            calls[-1] = replace(calls[-1], answer=(history[calls[-1].length],))
        if manifest.chose:
            candidates = tuple(candidate for candidate in source.candidates if candidate.source != RECALLED)
        bare = source._replace(
            request=request._replace(contents=(), positions=(), request_index=None),
            candidates=candidates,
            search=source.search._replace(turns=None, remaining=None),
        )
        calls.append(
            RecordedCall(
                manifest=manifest,
                policy=replayer.policy(manifest),
                source=bare,
                history=history,
                times=times,
                length=total,
                request_index=None if request.request_index is None else request.positions[request.request_index],
            )
        )
    return tuple(calls)
