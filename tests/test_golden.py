"""Recorded packs in tests/golden/, as a store: they load, replay, and come out byte for byte the same when built again.

A folder a schema version. ``python tests/test_golden.py`` writes that of the present one anew; a change that makes this
necessary either is a mistake, or changes what is recorded on purpose.
"""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

import packs
import pytest
import scenarios

from aether_context import PackStore, build_pack, replay
from aether_context.canonical import hash_text
from aether_context.errors import ReplayMismatch
from aether_context.store import SCHEMA_VERSION
from aether_context.store.replay import Replayer

_OF_BYTES = re.compile(rb' "digest": "[^"]+",?\n')
FOLDER = Path(__file__).parent / "golden"
PRESENT = FOLDER / str(SCHEMA_VERSION)
RECORDED = (
    ("refund_research", "quality_first", 2_600, 4),
    ("payment_tests", "balanced", 12_000, 6),
    ("booking_requirements", "cost_first", 2_000, 2),
)
"""Scenario, preset, window and turns: both ladders down to the drop; nothing left out; a step that does not fit."""


def write(folder: Path) -> None:
    store = PackStore(folder)
    for name, preset, window, turns in RECORDED:
        scenario = scenarios.load(name)
        policy = scenario.policy(preset)
        packs.write(store, build_pack(scenario.pack_input(window, turns=turns), policy), policy)


def files(folder: Path) -> dict[str, bytes]:
    """What files hold, without what other bytes would change that another zlib gives for the same text."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    plain = {name: _OF_BYTES.sub(b"", data) for name, data in found.items() if not name.endswith(".gz")}
    segments = [(name.rpartition("-")[0], data) for name, data in found.items() if name.endswith(".gz")]
    return plain | {name: gzip.decompress(data) for name, data in segments}


def test_the_same_sessions_give_the_same_files_byte_for_byte(tmp_path: Path) -> None:
    write(tmp_path)
    made, golden = files(tmp_path), files(PRESENT)
    assert sorted(made) == sorted(golden)
    for name, data in golden.items():
        assert made[name] == data, name


@pytest.mark.parametrize("folder", sorted(FOLDER.glob("*")), ids=lambda one: one.name)
def test_recorded_packs_of_every_schema_version_load_and_replay(folder: Path) -> None:
    replayer = Replayer(PackStore(folder))
    manifests = list(replayer.store.manifests())
    assert manifests
    for manifest in manifests:
        manifest.verify()
        assert manifest.schema_version == int(folder.name)
        assert replayer.replay(manifest).matches


def test_a_request_other_than_the_recorded_one_is_no_replay() -> None:
    manifest = next(PackStore(PRESENT).manifests())
    with pytest.raises(ReplayMismatch):
        replay(manifest.model_copy(update={"checksum": hash_text("another request")}), PackStore(PRESENT))


def test_they_show_what_they_are_there_for() -> None:
    acts = {
        one.task_id: [(event.layer, event.stage) for event in one.truncation_events]
        for one in PackStore(PRESENT).manifests()
    }
    assert acts["refunds-2026"] == [
        ("memory", "compress"),
        ("evidence", "compress"),
        ("tools", "compress"),
        ("task", "compress"),
        ("memory", "drop"),
        ("evidence", "drop"),
        ("conversation", "cut"),
    ]
    assert acts["pay-42"] == []
    assert acts["rooms-7"][-1] == ("task", "emergency")


if __name__ == "__main__":
    shutil.rmtree(PRESENT, ignore_errors=True)
    write(PRESENT)
