"""`aether-context export --parquet` over packs that ADK's own Runner recorded, and the queries of docs/export.md."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import packs
import pytest
from click.testing import CliRunner, Result
from plans import NARROW, planned
from scripted import Chat, Memories, call, delete_all, look_up, remembered, send_mail

from aether_context import Manifest, PackPolicy, PackStore
from aether_context.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "export.md").read_text(encoding="utf-8")
HOSTILE = "x\ny\ud800\u202e\x1b[31m"


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["export", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PackStore:
    """Two sessions: a long one that is cut, and a planned one with memories, tools that are left out, and a failure."""
    store = PackStore(tmp_path_factory.mktemp("export") / "packs")
    script = [reply for at in range(8) for reply in ([call("look_up", key=f"k{at}")], f"answer {at}")]
    long = Chat(store=store, tools=[look_up], policy=PackPolicy(max_input_tokens=2_000), script=script)
    long.say(*(f"question {at}" for at in range(8)))
    memories = Memories(remembered("the key A-17 hangs by the door"), remembered("zebras graze before dawn"))
    tools = [look_up, send_mail, delete_all]
    short = Chat(store=store, user=HOSTILE, session="s2", tools=tools, state=planned(NARROW), memory=memories)
    short.say("Where is the key A-17?", "Thank you.")
    return store


@pytest.fixture(scope="module")
def query(store: PackStore, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Runs SQL over the tables of the store, which are in `tables`."""
    pytest.importorskip("pyarrow", reason="tables need the extra parquet")
    duckdb = pytest.importorskip("duckdb", reason="queries need duckdb")
    folder = tmp_path_factory.mktemp("tables")
    run("--parquet", folder / "tables", "--store", store.url)
    connection = duckdb.connect()
    for statement in statements()[0]:
        connection.execute(statement.replace("'tables/", f"'{folder}/tables/"))
    return lambda sql: connection.execute(sql).fetchall()


def statements() -> list[list[str]]:
    """The statements of each fence of the page."""
    fences = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [[text.strip() for text in fence.split(";") if text.strip()] for fence in fences]


def test_every_pack_is_a_row_with_what_its_manifest_says(store: PackStore, query: Callable[[str], Any]) -> None:
    manifests = {one.pack_id: one for one in store.manifests()}
    columns = "request_tokens, window_tokens, memory_tokens, shared_tokens, broken_by, tools_left_out, unpacked_tokens"
    rows = {row[0]: row[1:] for row in query(f"SELECT pack_id, {columns} FROM packs")}
    assert rows.keys() == manifests.keys()
    for name, manifest in manifests.items():
        tokens, window, memory, shared, broken, left_out, unpacked = rows[name]
        assert (tokens, window) == (manifest.request_tokens, manifest.window)
        assert memory == manifest.allocation["memory"].used
        assert (shared, broken) == (manifest.prefix.shared_tokens, manifest.prefix.broken_by)
        assert left_out == list(manifest.tools.left_out)
        assert unpacked > 0
    assert any(row[5] for row in rows.values())
    first = min(manifests.values(), key=lambda one: one.last_event_time)
    ((day, time),) = query(f"SELECT day, epoch(time) FROM packs WHERE pack_id = '{first.pack_id}'")
    assert f"pack_{day:%Y%m%d}" == first.pack_id[:13]
    assert time == pytest.approx(first.last_event_time, abs=1e-3)


def test_candidates_events_and_outcomes_are_all_there(store: PackStore, query: Callable[[str], Any]) -> None:
    manifests = list(store.manifests())
    found = query("SELECT pack_id, candidate_id, state, reason, tokens, sent_tokens, similarity FROM candidates")
    assert len(found) == sum(len(one.rows) for one in manifests)
    said = {(name, candidate): rest for name, candidate, *rest in found}
    for manifest in manifests:
        for row in manifest.rows:
            state, reason, tokens, sent, similarity = said[manifest.pack_id, row.id]
            assert (state, reason, tokens, similarity) == (
                row.state,
                row.reason,
                row.tokens,
                row.scores.get("similarity"),
            )
            assert sent == 0 if state in ("dropped", "hidden", "in_tail") else sent > 0
    ((count, freed),) = query("SELECT count(*), sum(tokens_before - tokens_after) FROM events")
    events = [event for one in manifests for event in one.truncation_events]
    assert (count, freed) == (len(events), sum(event.tokens_before - event.tokens_after for event in events))
    rows = query("SELECT pack_id, input_tokens, cached_tokens, finish_reason, cost_usd FROM outcomes")
    outcomes = {one.pack_id: store.outcome(one) or {} for one in manifests}
    assert len(rows) == len(manifests)
    for name, read, cached, finish, cost in rows:
        given = outcomes[name]
        assert (read, cached, finish) == (given["input_tokens"], given["cached_tokens"], given["finish_reason"])
        assert cost > 0


def test_names_that_no_file_holds_are_escaped(query: Callable[[str], Any]) -> None:
    users = {user for (user,) in query("SELECT DISTINCT user_id FROM packs")}
    assert users == {"ann", HOSTILE.replace("\ud800", r"\ud800")}


@pytest.mark.parametrize("number", range(1, len(statements())))
def test_the_queries_of_the_page_find_something(query: Callable[[str], Any], number: int) -> None:
    for statement in statements()[number]:
        assert query(statement), statement


def test_sessions_without_packs_are_what_usage_says(store: PackStore, query: Callable[[str], Any]) -> None:
    ((packed, unpacked),) = query("SELECT sum(request_tokens), sum(unpacked_tokens) FROM packs")
    usage = CliRunner().invoke(main, ["usage", "--json", "--store", store.url]).stdout
    sides = json.loads(usage)["comparison"]
    assert (packed, unpacked) == (sides["packed"]["tokens"], sides["unpacked"]["tokens"])
    assert packed < unpacked


def test_the_same_export_again_replaces_its_files(store: PackStore, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    run("--parquet", tmp_path / "t", "--store", store.url)
    before = {path: path.read_bytes() for path in (tmp_path / "t").rglob("*.parquet")}
    value = json.loads(run("--parquet", tmp_path / "t", "--store", store.url, "--json").stdout)
    assert {path: path.read_bytes() for path in (tmp_path / "t").rglob("*.parquet")} == before
    assert value["rows"]["packs"] == len(list(store.manifests()))
    assert value["bytes"] == sum(map(len, before.values()))
    error = run("--parquet", tmp_path / "t", "--user", "ann", "--store", store.url, code=3).stderr
    assert "of other packs" in error
    shown = run("--parquet", tmp_path / "own", "--user", "ann", "--store", store.url).stdout
    assert shown.startswith("16 packs, ")


def test_days_before_are_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = PackStore(tmp_path / "packs")
    packs.talk(store, turns=2)  # on the first of January 2025
    assert run("--parquet", tmp_path / "t", "--since", "2025-01-02", "--store", store.url).stdout.startswith("0 packs")
    assert not (tmp_path / "t").exists()
    assert run("--parquet", tmp_path / "t", "--since", "2025-01-01", "--store", store.url).stdout.startswith("2 packs")
    assert (tmp_path / "t" / "packs" / "day=2025-01-01" / "all.parquet").is_file()


def test_any_fsspec_url_is_a_place(store: PackStore) -> None:
    pytest.importorskip("pyarrow")
    run("--parquet", "memory://tables-of-a-test", "--store", store.url)
    assert PackStore("memory://tables-of-a-test").files.below("/tables-of-a-test/packs")


def test_an_unreadable_pack_is_told_and_the_rest_goes(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    store = PackStore(tmp_path / "packs")
    manifests: list[Manifest] = packs.talk(store, turns=3)
    packs.rewrite(store, manifests[1], lambda line: b"{")
    result = run("--parquet", tmp_path / "t", "--store", store.url, code=3)
    assert result.stdout.startswith("2 packs")
    assert "unreadable: not a manifest" in result.stderr


def test_without_the_extra_it_says_what_to_install(
    store: PackStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    error = run("--parquet", tmp_path / "t", "--store", store.url, code=3).stderr
    assert 'pip install "aether-context-adk[parquet]"' in error
    assert not (tmp_path / "t").exists()


def test_nothing_to_export_is_an_error(store: PackStore, tmp_path: Path) -> None:
    error = run("--parquet", tmp_path / "t", "--app", "none", "--store", store.url, code=3).stderr
    assert f"no packs of app 'none' in {store.url}" in error
