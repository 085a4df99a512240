"""What was acknowledged outlives ``kill -9``: receipts and evidence in store or spool, memories in their file."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import lives
import pytest
from lives import APP, USER, House, Life
from object_stores import Server
from wording import SPOOL_FOLDER

from aether_context import verify
from aether_context.errors import AetherContextError
from aether_context.memory import Memories
from aether_context.store.files import File
from aether_context.store.spool import Spool, SpooledFiles, spool_of

Live = Callable[..., Life]
Figure = Callable[[str, float], None]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with lives.server(tmp_path_factory.mktemp("lives")) as live:
        yield live


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    house = House(tmp_path / "house")
    house.build()
    monkeypatch.setenv(SPOOL_FOLDER, str(house.spool))
    return house


def spool(house: House) -> Spool:
    spool = spool_of(house.store().files)
    assert spool is not None
    return spool


def sound(path: Path) -> list[str]:
    """What is wrong with an SQLite file."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(path)) as database:
        (found,) = database.execute("PRAGMA integrity_check").fetchone()
    return [] if found == "ok" else [f"{path.name}: {found}"]


class FilesAndWaiting(SpooledFiles):
    """A store's files, and those that wait for it in the spool, in its log, too."""

    def files(self, path: str, size: int | None = None) -> list[File]:
        waiting = [name for name in self.spool.paths() if name.rpartition("/")[0] == path]
        files = {file.path: file for file in super().files(path, size)}
        return [*({name: File(name, 0, None) for name in waiting} | files).values()]


def lost_of(house: House, life: Life) -> list[str]:
    """What a life was told to be kept and is nowhere."""
    waiting = spool(house)
    plain = house.store()
    store = plain.through(FilesAndWaiting(plain.files, waiting))
    lost = sound(house.memories)
    with closing(Memories(house.memories)) as memories:
        remembered = {one.name for one in memories.all(APP, USER)}
    for said in life["said"]:
        lost += [f"memory {name}" for name in said.get("memories", ()) if name not in remembered]
        for name in said.get("packs", ()):
            place = f"{store.files.place(APP, USER, said['session'])}/packs/{name}"
            try:
                manifest = store.read_sound(place)
                assert manifest.record in store.log(manifest).texts
                if store.outcome(manifest) is None:
                    lost.append(f"outcome of {name}")
            except AetherContextError:
                lost.append(f"pack {name}")
        if shown := said.get("evidence", ()):
            known = {record.digest for record in store.evidence(APP, USER, said["session"])}
            for digits in shown:
                found = store.evidence_digests(APP, USER, digits)
                if not known.intersection(found) or not store.evidence_data(APP, USER, found[0]):
                    lost.append(f"evidence {digits}")
    return lost


def unreadable(house: House) -> list[str]:
    """Files in the store that are not whole, and packs that do not verify or replay to what was sent.

    The packs of a life that was killed before it said so may be missing: nobody was told of them.
    """
    found = verify(house.store(), replays=True)
    return [f"{path}: {fault}" for path, fault in found.faults.items() if "is missing" not in fault] + found.foreign


def told(seed: int, outages: bool) -> dict[str, Any]:
    """When a life is killed, and when its store goes and comes."""
    choice = random.Random(seed)
    life: dict[str, Any] = {"seed": seed, "lines": choice.choice([1, 2, 3, 5]), "seconds": choice.uniform(0.0, 0.3)}
    if outages:
        first = choice.choice([0.0, choice.uniform(0.0, 0.2)])
        life["down"] = [first, first + choice.uniform(0.0, 0.2)][: choice.choice([1, 2])]
    return life


def kill(live: Live, house: House, outages: bool, number: int, figure: Figure) -> None:
    """Lets so many lives be lived and killed, and looks for what they were told is kept.

    What waited in the spool is in the store after one more life, which nobody kills.
    """
    lived, lost = [live(house, **told(seed, outages)) for seed in range(number)], set[str]()
    lived.append(live(house, seed=number, turns=2))
    assert spool(house).paths() == {}
    for life in lived:
        lost.update(lost_of(house, life))
    figure("lives", len(lived) - 1)
    figure("lost", len(lost))
    assert lost == set()
    assert unreadable(house) == []
    acknowledged = sum(len(said.get("packs", ())) for life in lived for said in life["said"])
    assert acknowledged > len(lived) / 2


@pytest.mark.parametrize("outages", [pytest.param(False, marks=pytest.mark.soak), True])
def test_what_was_acknowledged_outlives_kills(live: Live, house: House, outages: bool, figure: Figure) -> None:
    kill(live, house, outages, 6, figure)


@pytest.mark.soak
@pytest.mark.parametrize("outages", [False, True])
def test_what_was_acknowledged_outlives_many_kills(live: Live, house: House, outages: bool, figure: Figure) -> None:
    kill(live, house, outages, 250, figure)


@pytest.fixture
def bucket(s3: Server, house: House, request: pytest.FixtureRequest) -> House:
    """The house with its store in a bucket of its own."""
    assert s3.process is not None
    house.bucket = f"s3://bucket/{request.node.name[-40:].strip('[]')}", s3.options, s3.process.pid
    return house


@pytest.mark.integration
def test_what_was_acknowledged_outlives_kills_beside_an_object_store(live: Live, bucket: House, figure: Figure) -> None:
    kill(live, bucket, True, 6, figure)


@pytest.mark.soak
@pytest.mark.parametrize("outages", [False, True])
def test_what_was_acknowledged_outlives_many_kills_beside_an_object_store(
    live: Live, bucket: House, outages: bool, figure: Figure
) -> None:
    kill(live, bucket, outages, 60, figure)
