"""A pack as one file: little is written, and all of it is read."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
import zlib
from itertools import pairwise
from pathlib import Path

import packs
import pytest
from click.testing import CliRunner
from failing import FailingFileSystem
from packs import recording
from scripted import sound

from aether_context import PackStore
from aether_context.canonical import canonical_json
from aether_context.cli import main
from aether_context.errors import PackNotFound
from aether_context.store.files import Files
from aether_context.store.pack_file import ENDING, member
from aether_context.store.spool import Spool, SpooledFiles


@pytest.fixture
def store(tmp_path: Path) -> PackStore:
    return PackStore(tmp_path / "store")


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
    assert len(sound(store)) == 6
    assert len(store.files.below(store.files.root)) == 6


def bomb(size: int) -> bytes:
    """A member of a line that begins like a manifest and goes on for ``size`` bytes."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    start = stream.compress(b"{") + stream.flush(zlib.Z_FULL_FLUSH)
    block = stream.compress(b" " * 2**24) + stream.flush(zlib.Z_FULL_FLUSH)  # it stands for itself, and may be repeated
    return member(b"{}")[:19] + start + block * (size // 2**24)


DAMAGED = {
    "a bomb": bomb(2 * 2**30), "a bomb of texts": member(b"{}") + bomb(2**30),
    "many members": member(b"{}") * 10_000, "too deep": member(b"[" * 100_000),
    "invalid UTF-8": member(b'{"schema_version":1,"app":"\xff"}'), "a torn file": member(b"{}")[:-9],
    "text": b"hello", "nothing": b"",
}  # fmt: skip
FIELDS = {
    "NaN": ("last_event_time", "NaN"), "infinity": ("last_event_time", "1e999"),
    "many digits": ("window", "9" * 5_000), "a number that no float holds": ("window", "9" * 400),
    "a key twice": ("app", '"other","app":"app"'),
    "a deep epoch": ("epoch", '{"number":1,"strategies":' + '{"a":' * 400 + "1" + "}" * 400 + "}"),
    "white space": ("app", ' "app"'), "another kind": ("rows", '"none"'), "a surrogate": ("agent", '"\\ud800"'),
}  # fmt: skip


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


def test_an_outcome_is_added_to_the_file_of_its_pack(store: PackStore) -> None:
    manifest = store.write(recording())
    path = f"{store.place(manifest)}{ENDING}"
    before = store.files.read(path)
    store.write_outcome(manifest, {"input_tokens": 5})
    store.write_outcome(manifest, {"input_tokens": 7})
    assert store.outcome(manifest) == {"input_tokens": 5}
    assert store.files.read(path).startswith(before)
    assert len(sound(store)) == 1


def test_an_outcome_brings_no_deleted_pack_back(store: PackStore) -> None:
    made = recording()
    manifest = store.write(made)
    store.files.delete(f"{store.place(manifest)}{ENDING}")
    with pytest.raises(PackNotFound):
        store.write_outcome(manifest, {"input_tokens": 5})
    store.write_outcome(manifest, {"input_tokens": 5}, made.data)
    assert store.places() == []


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
        assert len(sound(there)) == 1
    finally:
        FailingFileSystem.down = False
