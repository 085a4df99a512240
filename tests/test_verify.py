"""The files of a pack, of which little is written and all is read; and verification: of every byte, of packs that are
missing, and of packs that somebody else made.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import time
import tracemalloc
import zlib
from itertools import pairwise
from pathlib import Path

import packs
import pytest
from failing import FailingFileSystem
from google.genai import types
from matrix import but_slow
from packs import paths_of, recording
from scripted import Chat, big_file, call, sound, was_cut
from terminal import run
from upkeep import by_kind, delete_older, kind_of
from wording import FORGOTTEN, MANIFEST

from aether_context import PackPolicy, PackStore, verify
from aether_context.adk import ContextPackPlugin, FsspecArtifactService
from aether_context.canonical import canonical_json, readable_json
from aether_context.errors import PackNotFound
from aether_context.store.files import File, Files
from aether_context.store.pack_file import manifest_file, outcome_line, read_segment
from aether_context.store.spool import Spool, SpooledFiles


@pytest.fixture
def store(tmp_path: Path) -> PackStore:
    return PackStore(tmp_path / "store")


def talked(store: PackStore, turns: int = 4, **settings: object) -> Chat:
    plugin = ContextPackPlugin(policy=PackPolicy(max_input_tokens=4_000), store=store, on_error="raise")
    script = [call("big_file", name="a", lines=300), "done", *("ok" for _ in range(turns))]
    chat = Chat(plugin=plugin, tools=[big_file], script=script, **settings)  # type: ignore[arg-type]
    chat.say("go", "word " * 9_000, *(f"message {at}" for at in range(turns - 2)))
    return chat


def test_a_flipped_bit_is_found_in_every_kind_of_file(store: PackStore) -> None:
    artifacts = FsspecArtifactService(store.url)
    chat = talked(store, user="Ann Ä", artifacts=artifacts)
    report = types.Part(text="All is well.")
    owner = {"app_name": chat.app_name, "user_id": chat.user, "session_id": chat.session}
    asyncio.run(artifacts.save_artifact(**owner, filename="report Q1.md", artifact=report))
    store.write_summary("shop", "Ann Ä", "sha256:" + "1" * 64, "A summary.")
    store.write_calibration("shop", "Ann Ä", "model", {"ratio": 1.1})
    store.note_forgotten("shop", "Ann Ä", "old", store.forgotten("shop", "Ann Ä", "old")._replace(packs=[1, 2]))
    assert verify(store, replays=True).faults == {}
    kinds = by_kind(store)
    assert kinds.keys() == {
        "pack", "segment", "message", "record", "evidence", "artifact", "name", "summary", "calibration", "forgotten",
    }  # fmt: skip
    chance = random.Random(1)
    for files in kinds.values():
        data = store.files.read(files[0].path)
        for at in chance.sample(range(len(data)), min(len(data), 4)):
            store.files.replace(
                files[0].path, data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]
            )
            path = files[0].path.rpartition("/")[0] if kind_of(files[0]) == "pack" else files[0].path
            assert store.files.below_base(path) in verify(store).faults, (files[0].path, at)
        store.files.replace(files[0].path, data)
    assert verify(store).faults == {}


def test_a_pack_in_the_place_of_another_is_told_by_the_next(store: PackStore) -> None:
    talked(store)
    other = PackStore(f"{store.url}-other")
    talked(other)
    second = list(store.manifests())[1]
    twin = next(one for one in other.manifests() if one.number == 2)
    for path in paths_of(store, second):
        store.files.delete(path)
    for path in paths_of(other, twin):
        name = other.files.below_base(path)
        store.files.create(f"{store.files.root}/{name}", other.files.read(path))
    faults = verify(store).faults
    assert "is not the one that it followed" in faults["shop/ann/s1"]


def test_what_was_forgotten_for_its_age_is_not_missed(store: PackStore) -> None:
    manifests = packs.talk(store, turns=16)
    assert [one.extends is None for one in manifests].count(True) > 2
    second = next(at for at, one in enumerate(manifests) if at and one.extends is None)
    below = store.files.below

    def aged(path: str) -> list[File]:
        old = {one.pack_id for one in manifests[:second]}
        return [
            file._replace(modified=file.modified - 40 * 86_400) if file.modified and name(file) in old else file
            for file in below(path)
        ]

    def name(file: File) -> str:
        return file.path.split("/")[-2]

    store.files.below = aged  # type: ignore[method-assign]
    now = max(file.modified or 0 for file in below(store.files.root))
    delete_older(store, 30 * 86_400, now)
    assert [one.number for one in store.manifests()] == [*range(second + 1, 17)]
    assert verify(store, replays=True).faults == {}
    assert any(file.name == FORGOTTEN for file in below(store.files.root))
    rest = list(store.manifests())
    store.files.delete(paths_of(store, rest[1])[0])
    assert f"number {rest[1].number} is missing" in verify(store).faults["shop/ada/s1"]


def test_a_pack_that_is_deleted_while_old_ones_are_looked_for_is_not_looked_for(store: PackStore) -> None:
    first, *_ = packs.chain(store, 3)
    path, below = paths_of(store, first)[0], store.files.below
    files = [file._replace(modified=0.0) if file.path == path else file for file in below(store.files.root)]
    store.files.below = lambda path: files  # type: ignore[method-assign]
    store.files.delete(path)
    assert path in delete_older(store, 86_400, time.time())


def test_a_segment_that_is_gone_is_missed_where_no_texts_are_recorded(store: PackStore) -> None:
    last = packs.chain(store, 3, PackPolicy(record="hashes"))[-1]
    store.files.delete(paths_of(store, last)[1])
    assert "which pack 3 needs" in str(verify(store).faults)


@pytest.mark.parametrize("added", [{"rows": []}, {"setting": "forged"}, {"hidden_turns": 0}], ids=str)
def test_what_is_added_to_a_manifest_is_found(store: PackStore, added: dict[str, object]) -> None:
    manifest = packs.chain(store, 1)[0]
    packs.rewrite(store, manifest, lambda data: manifest_file(json.loads(data) | added))
    assert "the manifest is not as it was written" in str(verify(store).faults)


def test_a_damaged_file_of_the_log_takes_nothing_from_another_of_its_number(store: PackStore) -> None:
    last = packs.chain(store, 2)[-1]
    folder = paths_of(store, last)[1].rpartition("/")[0]
    store.files.create(f"{folder}/000002-000002-00000000.jsonl.gz", b"damaged")
    assert [*verify(store, replays=True).faults] == ["shop/ada/s1/log/000002-000002-00000000.jsonl.gz"]


def test_a_forged_pack_is_told_where_a_key_is_set(store: PackStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHER_CONTEXT_KEY", "a secret of the operator")
    chat = talked(store)
    assert verify(store, asyncio.run(chat.held())).faults == {}
    first, *_ = manifests = list(store.manifests())
    outcome = store.outcome(first)
    # Whoever has no key can make all hashes anew, and cannot sign.
    monkeypatch.delenv("AETHER_CONTEXT_KEY")
    _, forged = first.sealed(role="Admin")
    packs.rewrite(store, first, lambda _: forged)
    monkeypatch.setenv("AETHER_CONTEXT_KEY", "a secret of the operator")
    assert "the manifest is not signed" in str(verify(store).faults)
    packs.rewrite(store, first, lambda _: manifests[0].to_json().encode())
    assert verify(store).faults == {}
    monkeypatch.setenv("AETHER_CONTEXT_KEY", "another secret")
    assert "was signed with another key, or forged" in str(verify(store).faults)
    assert all(store.files.below_base(store.place(one)) in verify(store).faults for one in manifests)
    monkeypatch.delenv("AETHER_CONTEXT_KEY")
    assert outcome is not None
    forged = outcome_line(first.number, first.record, {**outcome, "input_tokens": 1})
    line = store.log(first).texts[store.outcomes([first]).name(first)]
    packs.rewrite(store, first, lambda data: data.replace(line.encode(), forged.encode()), 1)
    monkeypatch.setenv("AETHER_CONTEXT_KEY", "a secret of the operator")
    assert "the outcome is not signed" in str(verify(store).faults)


def test_each_file_of_a_pack_is_json_that_other_programs_read(store: PackStore) -> None:
    manifest = store.write(recording(), {"input_tokens": 5})
    first, segment = (Path(path).read_bytes() for path in paths_of(store, manifest))
    assert json.loads(first)["pack_id"] == manifest.pack_id
    assert first.count(b"\n") > 50
    record, *texts = map(json.loads, gzip.decompress(segment).splitlines())
    assert record.keys() >= {"rows", "contents", "setting", "offered"}
    assert {"parts": [{"text": "hello"}], "role": "model"} in texts
    assert {"number": 1, "record": manifest.record, "outcome": {"input_tokens": 5}} in texts


def test_a_manifest_has_the_fields_of_the_founding_documents_by_their_names(store: PackStore) -> None:
    packs.talk(store)
    texts = [Path(path).read_text() for path in Path(store.url).rglob(MANIFEST)]
    manifests = [json.loads(text) for text in texts]
    assert len(manifests) == 12
    for manifest in manifests:
        assert manifest.keys() >= {
            "pack_id", "model", "window", "layer_budgets", "truncation_events", "artifact_uris", "checksum"
        }  # fmt: skip
        assert list(manifest["layer_budgets"])[-1] == "slack_min"
        assert round(sum(budget["share"] for budget in manifest["layer_budgets"].values()), 9) <= 1
        assert manifest["signals"].keys() == {
            "checklist_evidence_ratio", "expected_tool_calls", "risk_weight", "retrieval_hit_rate", "similarity",
            "freshness", "unresolved_questions", "dialogue_depth",
        }  # fmt: skip
    events = [event for manifest in manifests for event in manifest["truncation_events"]]
    assert any(event["layer"] == "conversation" and event["reason"] and event["dropped_ids"] for event in events)
    assert sorted(map(len, texts))[len(texts) // 2] <= 5_000


def test_rows_are_read_when_they_are_asked_for(store: PackStore) -> None:
    made = recording()
    store.write(made)
    (read,) = store.manifests()
    segment = paths_of(store, read)[1]
    data = store.files.read(segment)
    store.files.delete(segment)
    assert read.request_tokens == made.manifest.request_tokens
    with pytest.raises(PackNotFound):
        _ = read.rows
    store.files.create(segment, data)
    assert read.rows == made.manifest.rows
    assert read.model_dump() == made.manifest.model_dump()


def test_a_log_holds_each_text_once_across_cuts(store: PackStore) -> None:
    first, *others = manifests = packs.talk(store, turns=16)
    assert first.extends is None
    for before, manifest in pairwise(manifests):
        assert manifest.extends in (None, before.record)
        assert (manifest.number, manifest.before) == (before.number + 1, before.digest)
        assert manifest.record in store.log(manifest).texts
    assert [one.extends is None for one in others].count(True) == 2
    names = [name for one in manifests for name in read_segment(store.files.read(paths_of(store, one)[1]))[0]]
    assert len(names) == len(set(names))
    assert {first.setting, first.policy, *first.contents.added} < set(names)
    assert len(sound(store)) == 16
    assert len(store.files.below(store.files.root)) == 32


def test_a_process_that_starts_anew_relies_on_nothing_in_the_log(store: PackStore) -> None:
    chat = talked(store, turns=9)
    manifests = list(store.manifests())
    assert any(was_cut(manifest) for manifest in manifests)
    names = [name for manifest in manifests for name in read_segment(store.files.read(paths_of(store, manifest)[1]))[0]]
    assert len(names) == len(set(names))
    assert manifests[-1].segments != ()
    chat.restart()
    chat.llm.script[:] = ["ok"]
    chat.say("are you there?")
    last = list(store.manifests())[-1]
    assert (last.extends, last.segments) == (None, ())
    chat.replays()


def test_a_manifest_and_the_log_tell_all_of_a_call(store: PackStore) -> None:
    """No other manifest is read, and no segment but those that it names."""
    *others, last = packs.talk(store)
    needed = {last.number, *(number for start, stop in last.segments for number in range(start, stop))}
    assert len(needed) < last.number
    for manifest in others:
        for path in paths_of(store, manifest)[: 1 + (manifest.number not in needed)]:
            store.files.delete(path)
    assert len(sound(store)) == 1
    assert "segment" not in str(verify(store).faults)
    packs.rewrite(store, last, lambda text: text.replace(b"Question", b"Answer"), 1)
    assert "lacks 1 of its texts" in str(verify(store).faults)


def bomb(size: int) -> bytes:
    """A file with gzip of ``size`` bytes that begin like those of a segment."""
    stream = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    start = stream.compress(b"{") + stream.flush(zlib.Z_FULL_FLUSH)
    block = stream.compress(b" " * 2**24) + stream.flush(zlib.Z_FULL_FLUSH)  # it stands for itself, and may be repeated
    return start + block * (size // 2**24)


DAMAGED = {
    "too deep": b"[" * 100_000, "invalid UTF-8": b'{"schema_version":1,"app":"\xff"}', "a torn file": b'{"schema_ver',
    "text": b"hello", "nothing": b"",
}  # fmt: skip
REPLAYS = {
    "a bomb": bomb(2 * 2**30), "no gzip": b"hello", "another": gzip.compress(b"{}"), "torn": gzip.compress(b"{}")[:-9],
    "more": gzip.compress(b"{}") * 2,
}  # fmt: skip
FIELDS = {
    "NaN": ("last_event_time", "NaN"), "infinity": ("last_event_time", "1e999"),
    "many digits": ("window", "9" * 5_000), "a number that no float holds": ("window", "9" * 400),
    "a key twice": ("app", '"other","app":"app"'),
    "white space": ("app", '  "app"'), "another kind": ("tools", '"none"'), "a surrogate": ("agent", '"\\ud800"'),
}  # fmt: skip


@pytest.mark.parametrize("case", but_slow([*DAMAGED, *REPLAYS, *FIELDS], "a bomb"))
def test_a_damaged_pack_is_named_and_the_others_are_shown(tmp_path: Path, case: str) -> None:
    """In little memory and time, whatever its lines would grow to."""
    store = PackStore(tmp_path)
    whole_pack = store.write(recording())
    other = store.write(recording("Another", session="other"))
    run("usage", "--store", tmp_path)  # what it imports is no part of the measure
    path, replay = paths_of(store, other)
    if case in DAMAGED:
        store.files.replace(path, DAMAGED[case])
    elif case in REPLAYS:
        store.files.replace(replay, REPLAYS[case])
    else:
        text = store.files.read(path).decode()
        name, value = FIELDS[case]
        old = readable_json({name: json.loads(text)[name]})[1:-2].strip()
        assert old in text
        store.files.replace(path, text.replace(old, f'"{name}": {value}', 1).encode())
    began = time.process_time()
    tracemalloc.start()
    runs = {
        words: run(*words.split(), "--store", tmp_path, code=None)
        for words in ("list", "list --json", "verify", "usage", "forget --older-than 9", "forget --app app --user user")
    }
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    for words, result in runs.items():
        assert result.exit_code in (0, 1, 3), words
    assert whole_pack.pack_id in runs["list --json"].stdout
    assert runs["verify"].exit_code == 1
    assert f"failed  {other.pack_id}" in runs["verify"].output
    assert "1 of 2 packs passed" in runs["verify"].output
    assert time.process_time() - began < 20
    assert peak < 1.2 * 2**30


def test_of_two_outcomes_of_a_pack_the_same_is_always_read(store: PackStore) -> None:
    manifest = store.write(recording())
    before = {path: store.files.read(path) for path in paths_of(store, manifest)}
    for number in range(5, 9):
        store.write_all([], [(manifest, {"input_tokens": number})])
    assert store.outcome(manifest) == {"input_tokens": 5}
    assert {path: store.files.read(path) for path in before} == before
    assert len(sound(store)) == 1


def test_a_text_that_looks_like_an_outcome_is_none(store: PackStore) -> None:
    made = recording()
    text = outcome_line(made.manifest.number, made.manifest.record, {"input_tokens": 1})
    store.write(made._replace(lines=(*made.lines, canonical_json(text))))
    assert store.outcome(made.manifest) is None


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
        store.write_all([], [(manifest, {"input_tokens": 5})])
        FailingFileSystem.down = False
        assert files._deliver_all()
        assert spool.paths() == {}
        assert there.outcome(manifest) == {"input_tokens": 5}
        assert len(sound(there)) == 1
    finally:
        FailingFileSystem.down = False


def test_a_number_of_many_digits_in_a_result_can_be_read_again(tmp_path: Path) -> None:
    """As keys and factorials have."""

    def modulus(bits: int) -> dict[str, int]:
        """Gives a modulus."""
        return {"modulus": 2**bits - 1}

    chat = Chat(script=[call("modulus", bits=2_048)], tools=[modulus], store=PackStore(str(tmp_path)))
    chat.say("Which modulus is it?", "And now?")
    chat.replays()
    for words in (["verify", "--replay"], ["inspect"], ["why", "modulus"], ["replay", "3"]):
        run(*words, store=chat.store)


@pytest.mark.parametrize("strategy", ["epochs", "summarize"])
@pytest.mark.rows(1)
def test_a_masked_pack_that_keeps_its_summary_where_the_request_is_cut_again_is_replayed(strategy: str) -> None:
    def note(k: str) -> str:
        """n"""
        return f"value {k} " + "alpha beta " * 20

    script = [
        one
        for at in range(12)
        for one in (call("note", k=f"{at}"), call("note", k=f"{at}b"), f"fine {at}, mail a{at}.b@c.de")
    ]
    conversation = {"strategy": (strategy,)}
    policy = PackPolicy(max_input_tokens=2_500, redact=("personal",), conversation=conversation)
    chat = Chat(script=script, tools=[note], policy=policy)
    chat.say(*(f"Handle case {at}: " + "mail a.b@c.de " * 40 for at in range(12)))
    chat.replays()


def test_evidence_that_one_of_two_sessions_lost_is_missed(store: PackStore) -> None:
    for session in ("s1", "s2"):
        talked(store, turns=2, session=session)
    first, second = by_kind(store)["record"]
    assert first.path.split("/")[-3] != second.path.split("/")[-3]
    assert verify(store).faults == {}
    store.files.delete(second.path)
    assert [path for path, fault in verify(store).faults.items() if "is missing" in fault] == ["shop/ann/s2"]
    store.files.delete(first.path)
    assert len(verify(store).faults) == 2
