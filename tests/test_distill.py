"""The script that makes the static model: what it reads, what it starts from, what it learns and what it writes."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from aether_context.retrieval.embedders import _Model

VOCABULARY = ["[UNK]", "[PAD]", "the", "car", "automobile", "is", "broken", "soup", "##s", "["]


@pytest.fixture
def distill(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "tables"))
    return importlib.import_module("distill")


def test_the_table_that_is_written_is_the_model_that_is_read(distill: ModuleType, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = rng.normal(size=(len(VOCABULARY), 8)).astype(np.float32)
    distill.write(table, VOCABULARY, tmp_path / "out" / "static.npz")
    model = _Model((tmp_path / "out" / "static.npz").read_bytes())
    assert model.rows.dtype == np.int8
    assert not model.rows[:2].any(), "special entries say nothing"
    assert model.rows[VOCABULARY.index("[")].any()
    (sums,) = model.sums(["The soups"])
    assert (sums == model.rows[[2, 7, 8]].astype(int).sum(axis=0)).all()
    wanted = table[[2, 7, 8]].sum(axis=0)
    assert sums @ wanted / np.linalg.norm(sums) / np.linalg.norm(wanted) == pytest.approx(1, abs=0.02)
