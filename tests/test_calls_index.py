"""The index of a user's calls saves reads and changes no answer: whatever becomes of its blocks, `list`, `usage`, `why`
and `manifests` say what the packs say. What is forgotten is forgotten there, too."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from failing import FailingFileSystem
from packs import paths_of, recording, rewrite
from scripted import Chat
from terminal import run, told
from upkeep import by_kind, delete_older, forget
from wording import MANIFEST

from aether_context import Manifest, PackPolicy, PackStore, verify
from aether_context.canonical import canonical_json, hash_bytes, short
from aether_context.errors import ManifestError
from aether_context.store.files import File, Files

CALLS = 170


class CountedFiles(Files):
    """Files of a store that count what is read, by name."""

    reads: Counter[str]

    def files(self, path: str, size: int | None = None) -> list[File]:
        self.reads["listed"] += "/packs/" in path
        return super().files(path, size)

    def read(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self.reads[path.rsplit("/", 1)[-1].split("-")[0]] += 1
        return super().read(path, start, end)


def counted(store: PackStore) -> tuple[PackStore, Counter[str]]:
    files = CountedFiles(store.url)
    files.reads = Counter()
    return store.through(files), files.reads


def fill(store: PackStore, numbers: Sequence[int] = range(CALLS), sessions: int = 2, outcomes: bool = True) -> None:
    """Packs of several sessions of a user, a second apart."""
    template = recording()
    for number in numbers:
        name = f"pack_20260101T{number // 60:02}{number % 60:02}00.000000Z_{number:08x}"
        session = f"s{number % sessions}"
        position = {"number": number // sessions + 1, "turn": number // sessions + 1}
        made = template.changed(pack_id=name, session=session, last_event_time=1e9 + number, **position)
        store.write(made, {"input_tokens": 100 + number, "output_tokens": number} if outcomes else None)


def blocks(store: PackStore) -> list[File]:
    return by_kind(store).get("index", [])


def answers(store: PackStore) -> list[object]:
    """All that commands say of a store's calls."""
    runs = [run(*words.split(), store=store, code=None) for words in ("list --json", "usage --json")]
    return [*((run.exit_code, run.output) for run in runs), list(store.manifests())]


def text_of(store: PackStore, block: File) -> str:
    """The copies in a block, behind the hash of them."""
    return gzip.decompress(store.files.read(block.path)).decode().partition("\n")[2]


def in_block(store: PackStore, block: File) -> list[str]:
    """The places of the packs in a block, below the folder of the user."""
    return [place for place, *_ in json.loads(text_of(store, block))]


def rewrite_block(store: PackStore, block: File, *way: tuple[str, str]) -> None:
    """Writes a block with other words in its copies, as whoever can write to the store could."""
    text = text_of(store, block)
    calls = [
        (place, *(copy and copy.replace(*way[at]) for at, copy in enumerate(of))) for place, *of in json.loads(text)
    ]
    content = canonical_json(calls).encode()
    data = gzip.compress(hash_bytes(content).encode() + b"\n" + content)
    store.files.delete(block.path)
    store.files.create(f"{block.path.rpartition('-')[0]}-{short(hash_bytes(data))}.json.gz", data)


@pytest.fixture(params=["memory", pytest.param("folder", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> PackStore:
    return PackStore(tmp_path / "store" if request.param == "folder" else f"memory://calls-{tmp_path.name}")


def test_few_folders_are_listed_for_the_newest_calls(store: PackStore) -> None:
    fill(store, sessions=4)
    through, reads = counted(store)
    assert [*through.listed(newest=3)] == [*store.listed()][-3:]
    assert reads["listed"] == 3
    newest = store.places()[-1]
    store.files.delete(f"{newest}/{MANIFEST}")
    assert newest not in through.listed(newest=1), "without a manifest it is no pack"
    assert len(through.listed(newest=1)) == 1


def test_a_call_is_found_by_its_number_with_few_reads() -> None:
    fill(store := PackStore("failing://numbers"))
    calls = FailingFileSystem.calls
    assert told("inspect", "7", "--session", "s1", store=store)["number"] == 7
    assert FailingFileSystem.calls - calls <= 16
    for number in range(1, 4):  # the session begins anew, under the same name
        name = f"pack_20270101T00000{number}.000000Z_{number:08x}"
        store.write(recording().changed(pack_id=name, session="s1", number=number, words="anew"))
    found = [told("inspect", number, "--session", "s1", store=store) for number in "237"]
    assert [manifest["words"] == "anew" for manifest in found] == [True, True, False]


def test_inspect_reads_one_chain() -> None:
    url = "failing://reads"
    Chat(store=PackStore(url)).say("hi", "ho", *(f"message {number}" for number in range(6)))
    calls = FailingFileSystem.calls
    run("inspect", "--store", url)
    assert FailingFileSystem.calls - calls <= 20


def test_many_calls_are_read_from_few_files_and_say_the_same(store: PackStore) -> None:
    fill(store)
    through, reads = counted(store)
    calls = list(through.calls(through.listed(), outcomes=True))
    assert len(calls) == CALLS
    copied = 64 * len(blocks(store))
    assert (copied, sum(reads.values())) == (128, 2 + 2 * (CALLS - 128))
    assert verify(store).faults == {}
    said = answers(store)
    assert [call.outcome and call.outcome["output_tokens"] for call in calls] == list(range(CALLS))
    for block in blocks(store):
        store.files.delete(block.path)
    assert answers(store) == said
    assert verify(store).faults == {}


def test_a_session_of_few_calls_reads_no_more_blocks_than_packs(store: PackStore) -> None:
    fill(store)
    template = recording()
    store.write(template.changed(pack_id="pack_20260101T000100.500000Z_00abcdef", session="short"))
    through, reads = counted(store)
    assert [one.session for one in through.manifests(session="short")] == ["short"]
    assert sum(reads.values()) == 1


@pytest.mark.parametrize("fault", ["torn", "empty", "of another user", "other text"])
@pytest.mark.rows(2)
def test_a_damaged_block_changes_no_answer_and_is_told(store: PackStore, fault: str) -> None:
    fill(store)
    said = answers(store)
    for block in blocks(store):
        data = store.files.read(block.path)
        path = block.path.replace("/user/", "/other/") if fault == "of another user" else block.path
        changed = {
            "torn": data[:-40],
            "empty": b"",
            "other text": gzip.compress(gzip.decompress(data).replace(b"dog", b"cat")),
        }
        store.files.replace(path, changed.get(fault, data))
    assert answers(store) == said
    assert len(verify(store).faults) == (2 if fault != "of another user" else 0)


def test_what_changed_after_its_block_is_read_from_its_pack(store: PackStore) -> None:
    fill(store)
    manifests = list(store.manifests())
    rewrite(store, manifests[5], lambda data: data.replace(b'"writer"', b'"editor"'))
    rewrite(store, manifests[7], lambda data: data[:-30])
    with pytest.raises(ManifestError):
        list(store.manifests())
    store.files.delete(paths_of(store, manifests[7])[0])
    agents = [manifest.agent for manifest in store.manifests()]
    assert (len(agents), agents.index("editor")) == (CALLS - 1, 5)


def test_an_outcome_that_came_after_its_block_is_read(store: PackStore) -> None:
    fill(store, outcomes=False)
    assert len(blocks(store)) == 2
    for manifest in list(store.manifests()):
        store.write_all([], [(manifest, {"input_tokens": 5})])
    outcomes = [call.outcome or {} for call in store.calls(store.listed(), outcomes=True)]
    assert [outcome.get("input_tokens") for outcome in outcomes] == [5] * CALLS


@pytest.mark.slow
def test_two_writers_of_a_session_lose_nothing_of_each_other(store: PackStore) -> None:
    writers = [store, PackStore(store.url)]
    for number in range(CALLS):
        fill(writers[number % 2], [number], sessions=1)
    places = [place for block in blocks(store) for place in in_block(store, block)]
    assert (len(places), len(set(places))) == (2 * 64, 2 * 64)
    assert [manifest.number for manifest in store.manifests()] == list(range(1, CALLS + 1))
    assert verify(store).faults == {}


def test_a_copy_that_is_not_what_the_pack_holds_is_told(store: PackStore) -> None:
    fill(store)
    first, second = blocks(store)
    rewrite_block(store, first, ('"writer"', '"editor"'), ("", ""))
    rewrite_block(store, second, ("", ""), ("100", "999"))
    faults = verify(store).faults
    assert set(faults) == {store.files.below_base(block.path) for block in blocks(store)}
    assert ["is not what the pack holds" in fault for fault in faults.values()] == [True, True]


def test_what_is_forgotten_is_in_no_block(store: PackStore) -> None:
    fill(store)
    forget(store, "app", "user", "s0")
    assert blocks(store) == []  # both held calls of both sessions
    assert {manifest.session for manifest in store.manifests()} == {"s1"}
    assert verify(store).faults == {}
    forget(store, "app", "user")
    assert store.files.below(store.files.root) == []


def test_what_goes_for_its_age_goes_from_blocks(store: PackStore) -> None:
    fill(store)
    assert not [path for path in delete_older(store, 1e6, 0.0) if "/index/" in path]
    delete_older(store, -1e12, 0.0)
    assert store.files.below(store.files.root) == []


def test_calls_that_wait_for_their_block_while_they_are_forgotten_are_not_written(store: PackStore) -> None:
    fill(store, range(70))
    forget(PackStore(store.url), "app", "user", "s0")
    fill(store, range(70, 90))
    assert len(blocks(store)) == 1
    assert {place.split("/")[0] for place in in_block(store, blocks(store)[0])} == {"s1"}


def test_nothing_unmasked_is_in_a_block() -> None:
    chat = Chat(policy=PackPolicy(redact=["secrets"]), script=["ok"] * 90)
    for at in range(82):
        chat.say(f"My password = hunter2swordfish{at}")
    (block,) = blocks(chat.store)
    text = text_of(chat.store, block)
    assert "[password]" in text
    assert "hunter2" not in text
    manifests: list[Manifest] = list(chat.store.manifests())
    assert [manifest.number for manifest in manifests] == list(range(1, 83))


def test_a_copy_that_cannot_be_read_has_its_pack_read(store: PackStore) -> None:
    fill(store)
    said = answers(store)
    for block in blocks(store):
        rewrite_block(store, block, ('"pack_id"', '"pack'), ("", ""))
    assert answers(store) == said


@pytest.mark.slow
def test_of_many_users_in_turn_each_has_blocks_and_few_calls_wait() -> None:
    store, template = PackStore("memory://many-users-in-turn"), recording()
    for number in range(3_000):
        name = f"pack_20260101T{number // 3600:02}{number // 60 % 60:02}{number % 60:02}.000000Z_{number:08x}"
        store.write(template.changed(pack_id=name, user=f"user{number % 50}"))
    copied = [place for block in blocks(store) for place in in_block(store, block)]
    assert 3_000 - len(copied) <= 2_048
    assert len({block.path.split("/")[-3] for block in blocks(store)}) > 10
