"""The script that makes the static model: what it reads, what it starts from, what it learns and what it writes."""

from __future__ import annotations

import gzip
import importlib
import random
from argparse import Namespace
from collections.abc import Sequence
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


def put(folder: Path, path: str, text: str) -> None:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    place.write_bytes(gzip.compress(data) if place.suffix == ".gz" else data)


def test_each_kind_of_file_gives_its_prose(distill: ModuleType, tmp_path: Path) -> None:
    put(
        tmp_path,
        "wordnet-base/usr/share/wordnet/data.noun",
        "  1 licence | not a gloss\n0001 03 n 01 car 0 001 @ 2 n | a motor vehicle with four wheels; a wheeled thing\n",
    )
    put(tmp_path, "packages.txt", "Package: a\nDescription: tool that counts words in many files\n more of it\n")
    put(tmp_path, "fortunes/usr/share/games/fortunes/one.u8", "A fool and his money are soon parted.\n%\nShort.\n")
    put(tmp_path, "chatterbot/chatterbot_corpus/data/english/ai.yml", "conversations:\n- - What is your name?\n")
    put(tmp_path, "manpages/usr/share/man/man1/cat.1.gz", ".TH CAT 1\n.PP\nThis copies each file to the output.\n")
    put(tmp_path, "python3/usr/share/doc/python3/tutorial.txt", "Lists have several methods. They can be sorted.\n")
    put(tmp_path, "debian-handbook/html/en-US/a.html", "<html><body><p>A package may need others.</p></body></html>")
    put(tmp_path, "python3/usr/share/doc/python3/broken.txt", "x")
    (tmp_path / "python3/usr/share/doc/python3/broken.txt").write_bytes(b"\xff\xfe\xfd")
    found = {
        kind: sorted(distill.texts_of(tmp_path, patterns, most, random.Random(0)))
        for kind, (most, patterns) in distill.SOURCES.items()
    }
    assert found["glosses"] == ["a motor vehicle with four wheels", "a wheeled thing"]
    assert found["packages"] == ["tool that counts words in many files"]
    assert found["talk"] == ["A fool and his money are soon parted.", "What is your name?"]
    assert found["manuals"] == ["This copies each file to the output."]
    assert " ".join(found["python"]).count("sorted") == 1
    assert found["handbooks"] == ["A package may need others."]


def test_texts_are_drawn_alike_each_time_and_no_more_than_asked(distill: ModuleType, tmp_path: Path) -> None:
    put(tmp_path, "packages.txt", "".join(f"Description: tool number {word} for files\n" for word in "abcdefgh"))
    draws = [distill.texts_of(tmp_path, ("packages.txt",), 5, random.Random(3)) for _ in range(2)]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) == 5


def test_sentences_are_prose_of_some_length(distill: ModuleType) -> None:
    text = "He said so. It is a long way home. No. 12 34 56 78 90 12 34 56. " + "X" + "x" * 400
    assert distill.sentences(text) == ["It is a long way home."]


def test_it_starts_from_the_teachers_words_the_usual_ones_light(distill: ModuleType) -> None:
    alone = np.array([[3, 1], [1, 3], [-1, -3]], dtype=np.float16)
    table = distill.initial({"alone": alone}, np.array([0] * 999 + [1]), np.eye(2, dtype=np.float32))
    assert table.shape == (3, 2)
    weights = np.linalg.norm(table, axis=1)
    assert weights[0] < weights[1] / 100
    assert table[1] @ table[2] < 0


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


def test_fitting_moves_texts_to_where_the_teacher_puts_them(
    distill: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(40, 6)).astype(np.float32)
    parts = [rng.choice(40, size=rng.integers(4, 9)) for _ in range(400)]
    wanted = np.stack([truth[part].sum(axis=0) for part in parts])
    target = torch.nn.functional.normalize(torch.from_numpy(wanted), dim=1)
    begins = np.cumsum([0, *map(len, parts)])[:-1]
    settings = Namespace(passes=12, batch=32, rate=0.05, dropout=0.0, between=1.0)
    start = rng.normal(size=(40, 6)).astype(np.float32)

    def cosine(rows: Sequence[Sequence[float]]) -> float:
        got = np.stack([np.asarray(rows)[part].sum(axis=0) for part in parts])
        lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
        return float(((got * wanted).sum(axis=1) / lengths).mean())

    before = cosine(start)
    table = distill.trained(start, np.concatenate(parts).astype(np.int64), begins, target, settings)
    assert before < 0.3
    assert cosine(table) > 0.9
    assert capsys.readouterr().out.count("cosine") == 12
