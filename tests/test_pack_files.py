"""A pack as one file: little is written, and all of it is read."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import packs
import pytest
from click.testing import CliRunner
from failing import FailingFileSystem
from pack_inputs import recording
from scripted import Chat

from aether_context import Manifest, PackPolicy, PackStore, build_pack
from aether_context.adk import ContextPackPlugin
from aether_context.adk.services.recorder import Recorder
from aether_context.canonical import canonical_json, hash_bytes
from aether_context.cli import main
from aether_context.errors import ManifestError, PackNotFound
from aether_context.pack import Content, Tool
from aether_context.store import record
from aether_context.store.files import Files
from aether_context.store.pack_file import ENDING, MANIFEST_BYTES, member
from aether_context.store.replay import Replayer
from aether_context.store.spool import Spool, SpooledFiles
from aether_context.tokens import counter_for


def whole(store: PackStore) -> int:
    """How many packs verify and replay; all have to."""
    replayer, count = Replayer(store), 0
    for manifest in store.manifests():
        manifest.verify()
        assert replayer.replay(manifest).matches
        count += 1
    return count


@pytest.fixture
def store(tmp_path: Path) -> PackStore:
    return PackStore(tmp_path / "store")


def gone(store: PackStore, manifest: Manifest) -> None:
    store.files.delete(f"{store.place(manifest)}{ENDING}")


def test_each_file_is_three_lines_that_zcat_shows(store: PackStore) -> None:
    manifest = store.write(recording(), {"input_tokens": 5})
    data = store.files.read(f"{store.place(manifest)}{ENDING}")
    first, texts, outcome = gzip.decompress(data).splitlines()
    assert first.decode() == manifest.to_json()
    assert json.loads(texts).keys() >= {"contents", "setting"}
    assert json.loads(outcome)["outcome"] == {"input_tokens": 5}


def test_a_chain_holds_each_thing_once_and_stands_alone(store: PackStore) -> None:
    first, *others = packs.chain(store, 6)
    assert first.extends is None
    assert first.settings is not None
    for before, manifest in pairwise([first, *others]):
        assert (manifest.extends, manifest.settings) == (before.pack_id, None)
        assert (manifest.number, manifest.before) == (before.number + 1, before.digest)
        assert "setting" not in store.texts(manifest)
        assert len(manifest.contents.added) == 2
    assert whole(store) == 6
    assert len(store.files.below(store.files.root)) == 6


def recorded(store: PackStore, requests: Sequence[tuple[Sequence[Content], Sequence[Tool]]]) -> list[Manifest]:
    """Packs of one agent, each with contents and tools of its own."""
    tip, manifests = None, []
    for at, (contents, tools) in enumerate(requests):
        source = packs.pack_input(contents, tools=tools, identity=packs.IDENTITY._replace(call=at + 1))
        made = record(build_pack(source, PackPolicy()), PackPolicy(), counter_for(packs.MODEL).name, tip)
        tip = made.tip
        manifests.append(store.write(made))
    return manifests


def test_contents_that_come_back_are_not_written_again(store: PackStore) -> None:
    first, second, third = (packs.said(f"content {at}") for at in range(3))
    requests = [[first, second], [first, third], [first, second, third], [third, first, second]]
    manifests = recorded(store, [(contents, ()) for contents in requests])
    assert [len(one.contents.added) for one in manifests] == [2, 1, 0, 2]
    assert [one.contents.ranges for one in manifests] == [((0, 2),), ((0, 1), (2, 3)), ((0, 3),), ((2, 5),)]
    assert [len(store.texts(one).get("contents", ())) for one in manifests] == [2, 1, 0, 0]
    assert whole(store) == 4


def test_a_setting_that_comes_back_is_told_from_the_one_between(store: PackStore) -> None:
    search, read = packs.tool("search"), packs.tool("read")
    manifests = recorded(store, [([packs.said("go")], tools) for tools in ([search], [search, read], [search])])
    assert ["setting" in store.texts(one) for one in manifests] == [True, True, False]
    assert manifests[2].setting == manifests[0].setting != manifests[1].setting
    assert whole(store) == 3


def test_the_texts_of_a_pack_stand_behind_its_manifest(store: PackStore) -> None:
    first, second = packs.chain(store, 2)
    for manifest in (first, second):
        texts = packs.lines_of(store, manifest)[1]
        assert manifest.texts == hash_bytes(texts)
        assert store.texts(manifest) == json.loads(texts)
    assert b"result 1" in packs.lines_of(store, second)[1]
    assert b"Find out" not in packs.lines_of(store, second)[1]
    assert not any("result 1" in str(store.files.read(one.path)) for one in store.files.below(store.files.root))


def test_hashes_alone_leave_no_text(store: PackStore) -> None:
    manifests = packs.chain(store, 3, PackPolicy(record="hashes"))
    assert [packs.lines_of(store, one)[1] for one in manifests] == [b"", b"", b""]
    assert [one.texts for one in store.manifests()] == ["", "", ""]


def test_each_chain_replays_without_those_before_it(store: PackStore) -> None:
    manifests = packs.talk(store, turns=16)
    begins = [at for at, one in enumerate(manifests) if one.extends is None]
    assert len(begins) > 2
    for one in manifests[: begins[-1]]:
        gone(store, one)
    assert whole(PackStore(store.url)) == len(manifests) - begins[-1]


def test_a_file_that_holds_more_than_a_pack_can_is_damaged(store: PackStore) -> None:
    (manifest,) = packs.chain(store, 1)
    path = f"{store.place(manifest)}{ENDING}"
    good = store.files.read(path)
    for data, fault in (
        (good[:-20], "ends too soon"),
        (member(bytes(MANIFEST_BYTES + 1)) + good, f"holds more than {MANIFEST_BYTES:,} bytes"),
        (gzip.compress(b"{}\n"), "does not begin as a pack does"),
        (good + good, "more than three members"),
    ):
        store.files.replace(path, data)
        with pytest.raises(ManifestError, match=fault):
            store.texts(store.read(store.place(manifest)))


def bomb(size: int) -> bytes:
    """A member of a line that begins like a manifest and goes on for ``size`` bytes."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    start = stream.compress(b"{") + stream.flush(zlib.Z_FULL_FLUSH)
    block = stream.compress(b" " * 2**24) + stream.flush(zlib.Z_FULL_FLUSH)  # it stands for itself, and may be repeated
    return member(b"{}")[:19] + start + block * (size // 2**24)


DAMAGED = {
    "a bomb": bomb(2 * 2**30),
    "a bomb of texts": member(b"{}") + bomb(2**30),
    "many members": member(b"{}") * 10_000,
    "too deep": member(b"[" * 100_000),
    "invalid UTF-8": member(b'{"schema_version":1,"app":"\xff"}'),
    "a torn file": member(b"{}")[:-9],
    "text": b"hello",
    "nothing": b"",
}
FIELDS = {
    "NaN": ("last_event_time", "NaN"),
    "infinity": ("last_event_time", "1e999"),
    "many digits": ("window", "9" * 5_000),
    "a number that no float holds": ("window", "9" * 400),
    "a key twice": ("app", '"other","app":"app"'),
    "a deep epoch": ("epoch", '{"number":1,"strategies":' + '{"a":' * 400 + "1" + "}" * 400 + "}"),
    "white space": ("app", ' "app"'),
    "another kind": ("rows", '"none"'),
    "a surrogate": ("agent", '"\\ud800"'),
}


@pytest.mark.parametrize("case", [*DAMAGED, *FIELDS])
def test_a_damaged_pack_is_named_and_the_others_are_shown(tmp_path: Path, case: str) -> None:
    """In little memory and time, whatever its first line would grow to."""
    store = PackStore(tmp_path)
    whole_pack = store.write(recording())
    other = store.write(recording("Another", session="other"))
    CliRunner().invoke(main, ["usage", "--store", str(tmp_path)])  # what it imports is no part of the measure
    if case in DAMAGED:
        data = DAMAGED[case]
    else:
        line, texts = packs.lines_of(store, other)
        name, value = FIELDS[case]
        old = canonical_json({name: json.loads(line)[name]})[1:-1]
        assert old in line.decode()
        data = member(line.decode().replace(old, f'"{name}":{value}', 1).encode()) + member(texts)
    store.files.replace(f"{store.place(other)}{ENDING}", data)
    began = time.process_time()
    tracemalloc.start()
    runs = {
        words: CliRunner().invoke(main, [*words.split(), "--store", str(tmp_path)])
        for words in ("list", "list --json", "verify", "usage", "forget --older-than 9", "forget --app app --user user")
    }
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    for words, result in runs.items():
        assert result.exception is None or isinstance(result.exception, SystemExit), (words, result.exception)
        assert result.exit_code in (0, 1, 3), words
    assert whole_pack.pack_id in runs["list --json"].stdout
    assert runs["verify"].exit_code == 1
    assert f"failed  {other.pack_id}" in runs["verify"].output
    assert "1 of 2 packs passed" in runs["verify"].output
    assert time.process_time() - began < 20
    assert peak < 1.2 * 2**30


def test_a_pack_that_is_gone_is_named_by_those_that_extend_it(store: PackStore) -> None:
    first, second, _ = packs.chain(store, 3)
    gone(store, first)
    fresh = PackStore(store.url)
    named = f"{second.pack_id} extends {first.pack_id}, which is not in"
    with pytest.raises(PackNotFound, match=named):
        Replayer(fresh).resolve(fresh.read(store.place(second)))
    assert len(list(fresh.manifests())) == 2


def test_a_pack_under_another_id_is_still_what_the_next_one_extends(store: PackStore) -> None:
    packs.chain(store, 1, window=9_000)  # takes the id
    session = packs.Session(store, tools=[packs.tool("search")])
    first = session.ask("Find out who approves refunds.")
    assert first.pack_id.endswith("-2")
    assert session._tip is not None
    session._tip = session._tip._replace(pack_id=first.pack_id)
    assert session.use("search", "nobody").extends == first.pack_id
    assert whole(store) == 3


# outcomes


def test_an_outcome_is_added_to_the_file_of_its_pack(store: PackStore) -> None:
    manifest = store.write(recording())
    path = f"{store.place(manifest)}{ENDING}"
    before = store.files.read(path)
    store.write_outcome(manifest, {"input_tokens": 5})
    store.write_outcome(manifest, {"input_tokens": 7})
    assert store.outcome(manifest) == {"input_tokens": 5}
    assert store.files.read(path).startswith(before)
    assert whole(store) == 1


def test_an_outcome_that_is_known_goes_with_its_pack(store: PackStore) -> None:
    recorder = Recorder(store)
    replaced: list[str] = []
    recorder.store.files.replace = lambda path, data: replaced.append(path)  # type: ignore[method-assign]
    chat = Chat(plugin=ContextPackPlugin(store=store, on_error="raise"), script=["done"])
    chat.plugin._packer._recorder = recorder
    chat.say("go")
    (manifest,) = store.manifests()
    assert store.outcome(manifest) is not None
    assert not [path for path in replaced if ENDING in path]


def test_an_outcome_brings_no_deleted_pack_back(store: PackStore) -> None:
    made = recording()
    manifest = store.write(made)
    store.files.delete(f"{store.place(manifest)}{ENDING}")
    with pytest.raises(PackNotFound):
        store.write_outcome(manifest, {"input_tokens": 5})
    store.write_outcome(manifest, {"input_tokens": 5}, made.data)
    assert store.places() == []


def test_an_outcome_spares_another_pack_in_its_place(store: PackStore) -> None:
    made = recording()
    other = store.write(recording("Another question"))
    store.write_outcome(made.manifest, {"input_tokens": 5}, made.data)
    assert store.outcome(other) is None
    assert whole(store) == 1


@pytest.mark.parametrize("down", ["before", "between", "while it is delivered"])
def test_an_outcome_finds_its_pack_through_an_outage(down: str, tmp_path: Path) -> None:
    url = f"failing://outcome-{down.replace(' ', '-')}"
    spool = Spool(tmp_path / "spool")
    files = SpooledFiles(Files(url), spool)
    files.deliver = lambda: None  # type: ignore[method-assign]
    there, store = PackStore(url), PackStore(url).through(files)
    made = recording()
    try:
        FailingFileSystem.down = down != "between"
        manifest = store.write(made)
        if down == "while it is delivered":  # the first version arrives, and is not yet taken out of the spool
            FailingFileSystem.down = False
            for path in list(there.files.fs.find(there.files.root)):
                there.files.delete(path)
            PackStore(url).write(made)
        FailingFileSystem.down = True
        store.write_outcome(manifest, {"input_tokens": 5}, made.data)
        assert store.outcome(manifest) == {"input_tokens": 5}
        FailingFileSystem.down = False
        assert files._deliver_all()
        assert spool.paths() == {}
        assert there.outcome(manifest) == {"input_tokens": 5}
        assert whole(there) == 1
    finally:
        FailingFileSystem.down = False


def test_an_outcome_reaches_a_pack_that_a_failed_attempt_has_written(store: PackStore) -> None:
    made = recording()
    store.write(made)
    assert store.write(made, {"input_tokens": 5}) == made.manifest
    assert store.outcome(made.manifest) == {"input_tokens": 5}
    store.write(made, {"input_tokens": 7})
    assert store.outcome(made.manifest) == {"input_tokens": 5}
    assert whole(store) == 1


def test_what_cannot_be_read_in_a_packs_place_holds_nothing_back(store: PackStore) -> None:
    made = recording()
    store.files.create(f"{store.place(made.manifest)}{ENDING}", made.data[:40])
    manifest = store.write(made)
    assert manifest.pack_id == f"{made.manifest.pack_id}-2"
    assert store.read(store.place(manifest)) == manifest


def test_an_outcome_that_waited_brings_no_deleted_pack_back(tmp_path: Path) -> None:
    files = SpooledFiles(Files("failing://outcome-deleted"), Spool(tmp_path / "spool"))
    files.deliver = lambda: None  # type: ignore[method-assign]
    there, store = PackStore(files.url), PackStore(files.url).through(files)
    made = recording()
    manifest = store.write(made)
    try:
        FailingFileSystem.down = True
        store.write_outcome(manifest, {"input_tokens": 5}, made.data)
    finally:
        FailingFileSystem.down = False
    there.files.delete(f"{there.place(manifest)}{ENDING}")
    assert files._deliver_all()
    assert (there.places(), files.spool.paths()) == ([], {})


def test_a_pack_that_waited_spares_what_another_process_made_of_it(tmp_path: Path) -> None:
    files = SpooledFiles(Files("failing://outcome-faster"), Spool(tmp_path / "spool"))
    files.deliver = lambda: None  # type: ignore[method-assign]
    there, made = PackStore(files.url), recording()
    try:
        FailingFileSystem.down = True
        PackStore(files.url).through(files).write(made)
    finally:
        FailingFileSystem.down = False
    there.write_outcome(there.write(made), {"input_tokens": 5})
    assert files._deliver_all()
    assert files.spool.paths() == {}
    assert there.outcome(made.manifest) == {"input_tokens": 5}


def test_an_outcome_goes_with_a_pack_that_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aether_context.adk.services.recorder._MOST_WAITING", 10)
    monkeypatch.setenv("AETHER_CONTEXT_SPOOL", "off")
    plugin = ContextPackPlugin(store="failing://given-up")
    recorder = plugin._packer._recorder
    chat = Chat(plugin=plugin, on_error="passthrough")
    try:
        FailingFileSystem.down = True
        chat.say(*(f"message {at}" for at in range(30)))
        assert len(recorder._waiting) <= 10
        assert len(recorder._outcomes) <= 10
    finally:
        FailingFileSystem.down = False
    asyncio.run(plugin.close())
    assert not recorder._outcomes
