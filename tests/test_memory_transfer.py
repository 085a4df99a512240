"""Memories on the move: exported as lines, imported from these, from ADK's services and from Vertex AI."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from google.adk.events.event import Event
from google.adk.memory._sqlite_memory_service import SqliteMemoryService
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.sessions.session import Session
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from aether_context.adk import HybridMemoryService
from aether_context.cli import main
from aether_context.errors import StoreError
from aether_context.memory import Imported, Memories, Memory, Owned, Refused, export_lines, import_memories
from aether_context.memory.rows import changes, owner_of

HEADER = '{"format":"aether-memories","version":1}'


def run(*arguments: str, code: int = 0, given: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(main, arguments, input=given)
    assert result.exit_code == code, result.output
    return result


def held(memories: Memories) -> dict[tuple[str, str], list[Memory]]:
    return {(app, user): list(memories.all(app, user)) for app, user, _ in memories.users()}


def some() -> Memories:
    memories = Memories(embedder="none")
    metadata = {"kind": "preference", "deep": [1, {"x": None}]}
    memories.add("home", "ann", [Memory(name="b", text="second\nby name, ü", author="Ann", metadata=metadata)])
    memories.add("home", "ann", [Memory(name="a", text="first", session="s1", timestamp="2024-05-01", role="model")])
    memories.add("home", "ben", [Memory(name="a", text="Ben's \u2028 words", session="s1")])
    memories.add("shop", "ann", [Memory(name="a", text="of the shop")])
    return memories


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def line(name: str, **fields: Any) -> str:
    return json.dumps({"app": "home", "user": "ann", "name": name, "text": name, **fields})


# lines


def test_what_is_exported_and_imported_is_the_same_and_in_the_same_order(tmp_path: Path) -> None:
    source, target = some(), Memories(tmp_path / "m.sqlite", embedder="none")
    path = written(tmp_path / "m.jsonl", *export_lines(source))
    assert import_memories(target, path) == Imported(read=4, written=4, refused=0)
    assert held(target) == held(source)
    assert [memory.name for memory in target.all("home", "ann")] == ["b", "a"]
    assert import_memories(target, path) == Imported(read=4, written=0, refused=0)
    assert held(target) == held(source)


def test_of_an_app_or_a_user_only_theirs_is_exported() -> None:
    def owners(*given: str | None) -> list[tuple[str, str]]:
        header, *lines = map(json.loads, export_lines(some(), *given))
        assert header == json.loads(HEADER)
        return [(one["app"], one["user"]) for one in lines]

    assert owners("home") == [("home", "ann"), ("home", "ann"), ("home", "ben")]
    assert owners(None, "ann") == [("home", "ann"), ("home", "ann"), ("shop", "ann")]
    assert owners("home", "ben") == [("home", "ben")]


def test_what_was_deleted_comes_back_only_where_that_is_asked_for(tmp_path: Path) -> None:
    memories = some()
    path = written(tmp_path / "m.jsonl", *export_lines(memories))
    memories.delete("home", "ann", name="a")
    assert import_memories(memories, path).written == 0
    assert [memory.name for memory in memories.all("home", "ann")] == ["b"]
    assert import_memories(memories, path, revive=True).written == 1
    assert sorted(memory.name for memory in memories.all("home", "ann")) == ["a", "b"]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ('{"app": "home", "user": "ann", "na', "it is not JSON in UTF-8: Unterminated string starting at"),
        ("[1]", "it is no object with the fields of a memory"),
        (line("x", text=" "), "text: String should match pattern"),
        (line("x", text=None), "text: Input should be a valid string"),
        (line("x", app=5), "app: Input should be a valid string"),
        (line("x", session=5), "session: Input should be a valid string"),
        (line("x", metadata=[]), "metadata: Input should be a valid dictionary"),
        (line("x", metdata={}), "metdata: Extra inputs are not permitted"),
        (line("x", user=None), "it names no user: give the import one for memories like this"),
        ('{"app": "home", "user": "ann", "text": "t"}', "name: Field required"),
        ("NaN", "it is no object"),
        ("[" * 100_000, "it is not JSON"),
    ],
)
def test_a_broken_line_is_named_and_none_of_the_others_is_lost(broken: str, reason: str, tmp_path: Path) -> None:
    memories, refused = Memories(embedder="none"), list[Refused]()
    path = written(tmp_path / "m.jsonl", HEADER, line("one"), broken, "", line("two"))
    done = import_memories(memories, path, on_refused=refused.append)
    assert (done.read, done.written, done.refused) == (2, 2, 1)
    assert [memory.text for memory in memories.all("home", "ann")] == ["one", "two"]
    (one,) = refused
    assert one.place.startswith("line 3")
    assert one.reason.startswith(reason)


def test_no_text_of_a_memory_is_told_by_a_refusal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"text": "secret"\n{"app": ["secret"], "user": "u", "name": "n", "text": 1}\n"secret \xff"\n')
    with caplog.at_level(logging.WARNING):
        assert import_memories(Memories(embedder="none"), path).refused == 3
    assert len(caplog.messages) == 3
    assert "secret" not in caplog.text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(["one", "two", "three"])), max_size=12))
def test_whatever_stands_between_them_whole_lines_are_added(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes | str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    whole = [line(one).encode() if isinstance(one, str) else one.replace(b"\n", b"") for one in lines]
    path.write_bytes(b"\n".join([HEADER.encode(), *whole]))
    memories = Memories(embedder="none")
    import_memories(memories, path, on_refused=lambda _: None)
    assert {memory.text for memory in memories.all("home", "ann")} == {one for one in lines if isinstance(one, str)}


words = st.text("ab", min_size=1, max_size=2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(words, words, words, words), max_size=20))
def test_a_memory_goes_to_whom_its_line_names(rows: list[tuple[str, str, str, str]]) -> None:
    memories = Memories(embedder="none")
    own = [
        Owned(app=app, user=user, memory=Memory(name=name, session=session, text=f"{app} {user} {name} {session}"))
        for app, user, name, session in rows
    ]
    import_memories(memories, own, app="other", user="other")
    found = {(app, user, one.name, one.session) for (app, user), of in held(memories).items() for one in of}
    assert found == set(rows)
    assert all(one.text.startswith(f"{app} {user} ") for (app, user), of in held(memories).items() for one in of)


def test_lines_that_name_no_owner_get_the_one_that_is_given(tmp_path: Path) -> None:
    memories = Memories(embedder="none")
    path = written(tmp_path / "m.jsonl", '{"name": "n", "text": "anybody\'s"}', line("mine", user="ben"))
    import_memories(memories, path, app="shop", user="ann")
    assert [(app, user) for app, user, _ in memories.users()] == [("home", "ben"), ("shop", "ann")]


def test_exports_behind_one_another_are_one_and_a_later_version_is_not_read(tmp_path: Path) -> None:
    memories = Memories(embedder="none")
    assert import_memories(memories, written(tmp_path / "m", HEADER, line("one"), HEADER, line("two"))).written == 2
    later = written(tmp_path / "later", HEADER.replace("1", "2"), line("three"))
    with pytest.raises(StoreError, match="line 1 begins 'aether-memories' of version 2"):
        import_memories(memories, later)


def test_an_import_keeps_no_more_than_it_writes_at_once() -> None:
    class Writes:
        taken = most = 0

        def add(self, app: str, user: str, memories: list[Memory], *, revive: bool) -> int:
            self.taken += len(memories)
            return len(memories)

    writes: Any = Writes()

    def many(text: str, count: int) -> Iterator[Owned]:
        for number in range(count):
            yield Owned(app="home", user=f"u{number % 7}", memory=Memory(name=f"m{number}", text=text))
            writes.most = max(writes.most, number + 1 - writes.taken)

    assert import_memories(writes, many("words", 25_000)).written == 25_000
    assert writes.most <= 10_000
    writes.taken = writes.most = 0
    assert import_memories(writes, many("words " * 100_000, 300)).written == 300
    assert writes.most <= 70


# the command line


def test_the_command_line_exports_and_imports(tmp_path: Path) -> None:
    source = Memories(tmp_path / "m.sqlite", embedder="none")
    import_memories(source, [Owned(app=a, user=u, memory=one) for (a, u), of in held(some()).items() for one in of])
    source.close()
    lines = run("export-memories", f"{tmp_path}/m.sqlite").stdout
    assert lines.split("\n") == [*export_lines(some()), ""]
    target = f"hybrid://{tmp_path}/other?embedder=none"
    said = run("import-memories", "-", "--to", target, given=lines)
    assert said.stdout == f"4 memories added to {target}, 0 were there or had been deleted, 0 refused\n"
    assert run("export-memories", target).stdout == lines
    done = run("import-memories", "-", "--to", target, "--json", given=lines + "{\n", code=3)
    assert json.loads(done.stdout) == {"read": 4, "written": 0, "refused": 1}
    assert done.stderr.startswith("refused: -, line 6: it is not JSON")


def test_the_command_line_says_what_is_not_there(tmp_path: Path) -> None:
    assert "no such file" in run("export-memories", f"{tmp_path}/none.sqlite", code=3).stderr
    assert list(tmp_path.iterdir()) == []
    Memories(tmp_path / "m.sqlite", embedder="none").add("home", "ann", [Memory(name="n", text="t")])
    assert "no memories of user 'ben'" in run("export-memories", f"{tmp_path}/m.sqlite", "--user", "ben", code=3).stderr
    to = ("--to", f"{tmp_path}/new.sqlite")
    assert "cannot be read" in run("import-memories", f"{tmp_path}/none", *to, code=3).stderr
    assert "export it, and import that" in run("import-memories", f"{tmp_path}/m.sqlite", *to, code=3).stderr
    run("import-memories", "x", code=2)


# ADK's services


def event(name: str, *parts: types.Part, author: str = "user") -> Event:
    content = types.Content(role="user" if author == "user" else "model", parts=list(parts))
    return Event(id=name, invocation_id="i", author=author, timestamp=1_700_000_000.25, content=content)


SESSIONS = [
    Session(
        id=name,
        app_name="home",
        user_id=user,
        last_update_time=0.0,
        events=[
            event("e1", types.Part(text="The keys are"), types.Part(text="under the sofa.")),
            event("e2", types.Part(text="a musing", thought=True), types.Part(text="Noted."), author="agent"),
            event("e3", types.Part(function_call=types.FunctionCall(name="look", args={}))),
        ],
    )
    for user, name in [("ann", "s1"), ("ann", "s2"), ("ben", "s1")]
]


async def told(service: Any) -> None:
    for session in SESSIONS:
        await service.add_session_to_memory(session)
    await service.add_events_to_memory(
        app_name="home", user_id="ann", events=[event("e9", types.Part(text="No session."))]
    )


@pytest.mark.parametrize("kind", ["sqlite", "sqlite killed", "in memory"])
def test_what_adks_services_remember_is_what_the_sessions_would_give(kind: str, tmp_path: Path) -> None:
    async def import_them() -> None:
        source: Any = tmp_path / "adk.db"
        theirs = InMemoryMemoryService() if kind == "in memory" else SqliteMemoryService(source)
        if kind == "sqlite killed":
            await theirs.search_memory(app_name="home", user_id="ann", query="makes the file")
            with sqlite3.connect(source) as reader:  # keeps the log from being written back, as a kill does
                reader.execute("SELECT count(*) FROM memory_events").fetchone()
                await told(theirs)
                source = tmp_path / "copy" / "adk.db"
                source.parent.mkdir()
                for file in (tmp_path / "adk.db", tmp_path / "adk.db-wal"):
                    shutil.copy(file, source.parent)
                assert (source.parent / "adk.db-wal").stat().st_size
            reader.close()
        else:
            await told(theirs)
        service = HybridMemoryService(embedder="none")
        done = await service.import_memories(theirs if kind == "in memory" else source)
        assert (done.read, done.written, done.refused) == (7, 7, 0)
        assert [one.name for one in service.memories.all("home", "ann")] == ["e1", "e2", "e1", "e2", "e9"]
        direct = HybridMemoryService(embedder="none")
        await told(direct)
        assert held(service.memories) == held(direct.memories)

        def there():
            return service.memories.database.run(lambda connection: changes(connection, owner_of("home", "ann"), 0))

        before = there()
        await told(service)
        assert there() == before
        assert (await service.import_memories(theirs if kind == "in memory" else source)).written == 0

    asyncio.run(import_them())


def test_a_spoilt_row_of_adks_file_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "adk.db"
    asyncio.run(told(SqliteMemoryService(path)))
    with sqlite3.connect(path) as database:
        database.execute("UPDATE memory_events SET content_json = '{\"parts\": 3}' WHERE id = 2")
        database.execute("UPDATE memory_events SET timestamp = 1e300 WHERE id = 3")
    database.close()
    refused = run("import-memories", str(path), "--to", f"{tmp_path}/m.sqlite", code=3).stderr.splitlines()
    assert [one.partition(f"{path}, ")[2][:5] for one in refused] == ["row 2", "row 3"]
    assert sum(count for *_, count in Memories(tmp_path / "m.sqlite", embedder="none").users()) == 5


def test_a_database_of_something_else_is_an_error(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("CREATE TABLE accounts (name TEXT)")
    database.close()
    error = run("import-memories", f"{tmp_path}/other.db", "--to", f"{tmp_path}/m.sqlite", code=3).stderr
    assert "has no table memory_events" in error


# Vertex AI


def remembered(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "name": f"projects/7/locations/us-central1/reasoningEngines/8/memories/{number}",
        "createTime": "2025-06-01T10:00:00Z",
        "updateTime": "2025-07-01T10:00:00.123456789Z",
        "scope": {"app_name": "home", "user_id": "ann"},
        "fact": f"I like tea number {number}.",
        "topics": [{"managedMemoryTopic": "USER_PREFERENCES"}],
        **fields,
    }


@pytest.mark.parametrize("way", ["pages", "one line a page", "a list", "lines", "of the SDK", "retrieved"])
def test_memories_of_vertex_are_read_however_they_were_fetched(way: str, tmp_path: Path) -> None:
    metadata = {"source": {"stringValue": "form"}, "sure": {"boolValue": True}, "odd": [1]}
    all_of_them = [remembered(number, metadata=metadata) for number in range(3)]
    snake = [
        {
            "name": one["name"],
            "create_time": None,
            "update_time": one["updateTime"],
            "fact": one["fact"],
            "metadata": {"source": {"string_value": "form"}},
            "scope": one["scope"],
        }
        for one in all_of_them
    ]
    pages = [{"memories": all_of_them[:2], "nextPageToken": "x"}, {"memories": all_of_them[2:]}]
    text = {
        "pages": "\n".join(json.dumps(page, indent=2) for page in pages),
        "one line a page": "\n".join(json.dumps(page) for page in pages),
        "a list": json.dumps(all_of_them, indent=2),
        "lines": "\n".join(map(json.dumps, all_of_them)),
        "of the SDK": "\n".join(map(json.dumps, snake)),
        "retrieved": json.dumps({"retrievedMemories": [{"memory": one, "distance": 0.5} for one in all_of_them]}),
    }[way]
    memories = Memories(embedder="none")
    assert import_memories(memories, written(tmp_path / "bank.json", text)) == Imported(read=3, written=3, refused=0)
    assert [owner for *owner, _ in memories.users()] == [["home", "ann"]]
    one = next(memories.all("home", "ann"))
    assert (one.name, one.text, one.author, one.role) == ("0", "I like tea number 0.", "user", "user")
    assert one.timestamp == "2025-07-01T10:00:00.123456789Z"
    assert one.time == pytest.approx(1_751_364_000.123, abs=0.001)
    assert one.metadata["source"] == "form"
    assert import_memories(memories, tmp_path / "bank.json").written == 0


def test_memories_of_vertex_that_cannot_be_placed_are_refused(tmp_path: Path) -> None:
    memories, refused = Memories(embedder="none"), list[Refused]()
    bank = [
        remembered(1, scope={"user_id": "ben"}),
        remembered(2, scope={"app_name": "home", "user_id": "ann", "tenant": "x"}),
        {name: value for name, value in remembered(3).items() if name != "fact"},
        remembered(4, scope="all"),
        remembered(5),
    ]
    path = written(tmp_path / "bank.json", json.dumps({"memories": bank, "nextPageToken": "more"}, indent=1))
    assert import_memories(memories, path, on_refused=refused.append).written == 1
    assert [(one.place, one.reason[:34]) for one in refused] == [
        ("line 1, memory 1", "it names no app: give the import o"),
        ("line 1, memory 2", "its scope has 'tenant' beside app_"),
        ("line 1, memory 3", "text: Input should be a valid stri"),
        ("line 1, memory 4", "its fields are not of the kinds th"),
        ("line 1", "its nextPageToken says that more f"),
    ]
    assert import_memories(memories, path, app="shop", on_refused=refused.append).written == 1
    assert [memory.name for memory in memories.all("shop", "ben")] == ["1"]


def test_a_bank_without_memories_and_a_page_that_is_cut_off(tmp_path: Path) -> None:
    assert import_memories(Memories(), written(tmp_path / "none.json", "{}")) == Imported(read=0, written=0, refused=0)
    text = json.dumps({"memories": [remembered(1)]}, indent=2)
    path = written(tmp_path / "cut.json", text + text[:-40])
    refused = list[Refused]()
    assert import_memories(Memories(embedder="none"), path, on_refused=refused.append).written == 1
    assert [one.reason.partition(":")[0] for one in refused] == ["it is not JSON in UTF-8"]
