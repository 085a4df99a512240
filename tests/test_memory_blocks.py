"""What a memory file keeps of its indexes: found alike with it and without, and never of what is deleted."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aether_context.memory import Memories, Memory, library
from aether_context.memory.database import Span
from aether_context.redaction import masker
from aether_context.retrieval.arrays import packed, unpacked
from aether_context.retrieval.embedders import unit
from aether_context.retrieval.terms import RULES, terms


class Letters:
    """A dimension a letter; counts what it embeds to be found."""

    local = True

    def __init__(self, name="letters"):
        self.name = name
        self.entries = 0

    def embed(self, texts, *, purpose="entry"):
        self.entries += len(texts) if purpose == "entry" else 0
        return unit(np.array([[text.count(one) for one in "abcdefgh"] for text in texts], dtype=np.float64))


def told(*numbers, session=""):
    return [
        Memory(name=f"m{at}", text=f"The badge of guest{at} is a{at % 7}b", session=session, author="Ann")
        for at in numbers
    ]


def found(memories, query="the badge of guest3 and a5b", user="ann"):
    return [(one.memory.name, one.memory.text, one.score) for one in memories.search("app", user, query, 1_000)]


def opened(path, embedder=None, **more):
    return Memories(path, embedder=embedder or Letters(), **more)


def fresh(path):
    """The memories of the file in an index made anew."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA recursive_triggers = ON")
        database.execute("DELETE FROM blocks")
        database.execute("DELETE FROM vectors")
        database.commit()
    with closing(opened(path)) as memories:
        return found(memories)


def spans(path):
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT user, first, last, rows FROM blocks ORDER BY user, first").fetchall()


def damaged(path, change):
    with closing(sqlite3.connect(path)) as database:
        ((id_, data, digest),) = database.execute("SELECT id, data, digest FROM blocks")
        database.execute("UPDATE blocks SET data = ?, digest = ? WHERE id = ?", (*change(data, digest), id_))
        database.commit()


@pytest.fixture
def path(tmp_path):
    """A file of 200 memories in a block, of which no vectors are kept beside it."""
    where = tmp_path / "m.sqlite"
    with closing(opened(where)) as memories:
        memories.add("app", "ann", told(*range(100), session="s"))
        memories.add("app", "ben", told(1))
        memories.add("app", "ann", told(*range(100, 200)))
    with closing(sqlite3.connect(where)) as database:
        database.execute("DELETE FROM vectors")
        database.commit()
    assert spans(where) == [("ann", 1, 201, 200)]
    return where


def test_a_file_opens_from_its_blocks(path):
    with closing(opened(path, "none")) as memories:
        memories.add("app", "ann", told(200))
    embedder = Letters()
    with closing(opened(path, embedder)) as memories:
        got = found(memories)
    assert embedder.entries == 1
    assert len(got) == 201
    assert got == fresh(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda data, digest: (data[:-1] + bytes([data[-1] ^ 1]), digest),
        lambda data, digest: (data[: len(data) // 2], digest),
        lambda data, digest: (b"", digest),
    ],
)
def test_a_damaged_block_is_not_used(path, change):
    damaged(path, change)
    embedder = Letters()
    with closing(opened(path, embedder)) as memories:
        got = found(memories)
    assert embedder.entries == 200
    assert got == fresh(path)


@pytest.mark.parametrize(
    "more", [{"embedder": Letters("others")}, {"redact": masker(["email"])}, {"redact": str.lower}]
)
def test_blocks_of_another_making_are_not_used(path, more):
    with closing(opened(path, **more)) as memories:
        assert len(found(memories)) == 200
        users = list(memories._users.values())
    assert users[0]._index._semantic._embedders[0].name in ("others", "letters")
    assert len(spans(path)) == (1 if more.get("redact") is str.lower else 2)


def test_blocks_of_another_version_are_dropped(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("""UPDATE blocks SET made = '["0.9","",["letters"]]'""")
        database.commit()
    with closing(opened(path)) as memories:
        assert len(found(memories)) == 200
    assert len(spans(path)) == 1
    assert fresh(path)


def test_a_masker_of_the_same_patterns_masks_alike(path):
    for patterns, embedded in ((["email"], 200), (["email"], 0), (["phone"], 200)):
        embedder = Letters(f"masked{len(patterns)}")
        with closing(opened(path, embedder, redact=masker(patterns))) as memories:
            found(memories)
        with closing(sqlite3.connect(path)) as database:
            database.execute("DELETE FROM vectors")
            database.commit()
        assert embedder.entries == embedded


def test_what_is_deleted_leaves_its_block(path):
    with closing(opened(path)) as memories:
        memories.add("app", "ann", [Memory(name="secret", text="the xylophone of zanzibar")])
        found(memories)
        memories._of("app", "ann").save()
    assert spans(path) == [("ann", 1, 202, 201)]
    with closing(opened(path)) as memories:
        memories.delete("app", "ann", name="secret")
        assert not any(b"zanzibar" in one.read_bytes() for one in path.parent.iterdir())
    with closing(opened(path)) as memories:
        found(memories)
    assert spans(path) == [("ann", 1, 201, 200)]
    assert not any(b"zanzibar" in one.read_bytes() for one in path.parent.iterdir())
    with closing(opened(path)) as memories:
        memories.delete("app", "ann")
        assert found(memories) == []
    assert spans(path) == []
    assert not any(b"guest7" in one.read_bytes() for one in path.parent.iterdir())


def test_a_row_that_another_program_deletes_takes_its_block_along(path):
    with closing(sqlite3.connect(path)) as database:
        database.execute("DELETE FROM memories WHERE name = 'm3'")
        database.commit()
    assert spans(path) == []
    with closing(opened(path)) as memories:
        assert "m3" not in [name for name, _, _ in found(memories)]


def test_a_block_of_what_has_gone_is_not_kept(path):
    with closing(opened(path)) as memories:
        file = memories.file
        span = Span(first=1, last=201, rows=200)
        (made,) = sqlite3.connect(path).execute("SELECT made FROM blocks").fetchone()
        data = file.block("app", "ann", made, span)
        assert not file.keep_block("app", "ann", made, Span(first=100, last=201, rows=99), data)
        assert file.keep_block("app", "ann", made, span, data)
        memories.delete("app", "ann", name="m5")
        assert not file.keep_block("app", "ann", made, span, data)
        assert not file.keep_block("app", "ben", made, span, data)
    assert all(one[3] < 200 for one in spans(path))


def test_rows_in_no_block_are_cut_into_blocks():
    living = np.array([1, 2, 5, 6, 7, 9, 12, 13, 14, 15, 20])

    def cut(*held):
        with patch.object(library, "BLOCK_ROWS", 4):
            return [numbers.tolist() for numbers in library.uncovered(living, held)]

    assert cut() == [[1, 2, 5, 6], [7, 9, 12, 13], [14, 15, 20]]
    whole, small = Span(first=5, last=9, rows=4), Span(first=14, last=14, rows=1)
    assert cut(whole, small) == [[1, 2], [12, 13, 14, 15], [20]]
    assert cut(Span(first=5, last=9, rows=5)) == cut()


def test_packed_arrays_come_back():
    arrays = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "empty": np.empty((0, 4)), "b": np.array([True])}
    back = unpacked(packed(arrays))
    assert back.keys() == arrays.keys()
    assert all(one.dtype == arrays[name].dtype and (one == arrays[name]).all() for name, one in back.items())
    with pytest.raises(ValueError, match="buffer"):
        unpacked(packed(arrays)[:-1])


def test_terms_change_with_their_rules():
    text = "Ann's max_input_tokens in src/auth/store.py were 3.5 — getUserName, 東京タワー, книги, running!"
    assert (RULES, terms(text)) == (
        2,
        ["ann", "s", "max_input_tokens", "max", "input", "token", "in", "src/auth/store.py", "src", "auth", "store",
         "py", "were", "3.5", "3", "5", "getusername", "get", "user", "name", "東京", "京タ", "タワ", "ワー", "книг",
         "run"],
    )  # fmt: skip


ACTS = st.lists(
    st.tuples(st.sampled_from(["add", "change", "delete", "search", "save", "reopen", "lose"]), st.integers(0, 12)),
    max_size=30,
)


@settings(max_examples=60)
@given(ACTS)
def test_blocks_never_change_what_is_found(tmp_path_factory, acts):
    path = tmp_path_factory.mktemp("blocks") / "m.sqlite"
    with patch.object(library, "BLOCK_ROWS", 4):
        memories, other, plain = opened(path), opened(path), Memories(embedder=Letters())
        for act, at in acts:
            if act in ("add", "change"):
                new = [Memory(name=f"m{at}", text=f"badge {at} {act}", session="s" if at % 2 else "")]
                for one in (memories, plain):
                    one.add("app", "ann", new, revive=True)
            elif act == "delete":
                for one in (other, plain):
                    one.delete("app", "ann", name=f"m{at}")
            elif act == "search":
                assert found(other, "badge 3 change") == found(plain, "badge 3 change")
            elif act == "save":
                memories._of("app", "ann").save()
            elif act == "reopen":
                memories.close()
                memories = opened(path)
            else:
                with closing(sqlite3.connect(path)) as database:
                    database.execute("DELETE FROM blocks WHERE id % 2 = ?", (at % 2,))
                    database.commit()
        expected = found(plain, "badge 3 change")
        memories._of("app", "ann").save()
        assert found(memories, "badge 3 change") == expected
        assert found(opened(path), "badge 3 change") == expected


def test_a_writer_that_is_killed_leaves_a_sound_file():
    script = Path(__file__).parent / "bench" / "memory_kills.py"
    done = subprocess.run([sys.executable, script, "--kills", "12"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("12 kills, ")
