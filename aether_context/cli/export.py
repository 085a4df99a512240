"""`aether-context export`: a pack and what it stands on to another store, or tables of many packs as Parquet files."""

from __future__ import annotations

import datetime
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import click

from aether_context.canonical import JSON, hash_json, short
from aether_context.cli import packs
from aether_context.cli.terminal import NOT_THERE, Screen, print_json, progress, tell
from aether_context.cli.usage import answered
from aether_context.errors import AetherContextError, MissingExtra, PackNotFound, StoreError
from aether_context.pack import LAYERS
from aether_context.store import Manifest, PackStore
from aether_context.store.export import export_pack
from aether_context.store.files import Files
from aether_context.views import Comparison, Unpacked
from aether_context.views.difference import UNSENT

_OWNER = {"pack_id": "text", "time": "time", "app": "text", "user_id": "text", "session_id": "text", "agent": "text"}
_SENT = {f"{layer}_tokens": "integer" for layer in LAYERS if layer != "slack"}
_SCORES = ("similarity", "bm25", "mmr")
_REPORTED = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "tool_use_tokens")
_NAMED = ("branch", "invocation", "task_id", "step_id", "role", "validity", "model", "profile", "policy", "counter")
_COUNTED = ("call", "request_tokens", "counted_tokens", "over_window")

TABLES: Mapping[str, Mapping[str, str]] = {
    "packs": {
        **_OWNER,
        **dict.fromkeys((*_NAMED, "epoch_reason", "broken_by", "parent", "previous", "checksum"), "text"),
        **dict.fromkeys((*_COUNTED, "window_tokens", "epoch", "shared_tokens"), "integer"),
        **dict.fromkeys(("unpacked_tokens", "unpacked_shared_tokens", "unpacked_unknown"), "integer"),
        **_SENT,
        **dict.fromkeys(("tools_sent", "tools_left_out", "evidence_needed", "degradations"), "texts"),
    },
    "candidates": {
        **_OWNER,
        **dict.fromkeys(("candidate_id", "layer", "source", "state", "reason", "uri", "superseded_by", "hash"), "text"),
        **dict.fromkeys(("tokens", "sent_tokens"), "integer"),
        **dict.fromkeys(_SCORES, "number"),
        "said_at": "time",
    },
    "events": {
        **_OWNER,
        **dict.fromkeys(("layer", "stage", "reason", "strategy"), "text"),
        **dict.fromkeys(("number", "tokens_before", "tokens_after"), "integer"),
        "candidate_ids": "texts",
    },
    "outcomes": {
        **_OWNER,
        **dict.fromkeys(("model", "finish_reason", "error_code", "model_version"), "text"),
        **dict.fromkeys(_REPORTED, "integer"),
        "cost_usd": "number",
    },
}
"""The columns of each table, with their types."""


def export(
    url: str,
    pack: str | None,
    *,
    target: str | None,
    tables: str | None,
    raw: bool,
    app: str | None,
    user: str | None,
    session: str | None,
    since: datetime.datetime | None,
    as_json: bool,
) -> int:
    """Copies a pack, or writes tables of the packs of an app, a user or a session."""
    if (target is None) == (tables is None):
        raise click.UsageError("give either --to with a PACK, or --parquet")
    if target is not None:
        if pack is None or since is not None or (app, user, session) != (None, None, None):
            raise click.UsageError("--to goes with a PACK, and without --app, --user, --session and --since")
        _copy(url, pack, target, raw=raw, as_json=as_json)
        return 0
    if pack is not None:
        raise click.UsageError("--parquet goes without a PACK: --app, --user and --session say which packs are meant")
    store, selection = packs.require(PackStore(url)), {"app": app, "user": user, "session": session}
    places = store.places(app, user, session)
    if not places:
        raise PackNotFound(f"no packs{packs.whose(app=app, user=user, session=session)} in {store.url}")
    name = "all" if not any(selection.values()) else short(hash_json(selection), 12)
    first = "" if since is None else since.strftime("%Y-%m-%d")
    return _write_tables(store, places, Files(tables or ""), f"{name}.parquet", first, as_json)


def _copy(url: str, pack: str, target: str, *, raw: bool, as_json: bool) -> None:
    """Copies a pack and its ancestors to another store, with ``raw`` also the content of their addresses."""
    packs.require(PackStore(url))
    (store, place), target_store = packs.locate(url, pack), PackStore(target)
    target_store.files.is_there()  # raises where the target is a file, before anything is copied
    exported = export_pack(store, store.read(place), target_store, raw=raw)
    names = [manifest.pack_id for manifest in exported.manifests]
    if as_json:
        copied = {"packs": names, "files": exported.files, "bytes": exported.size, "target": target_store.url}
        print_json(copied | {"raw": list(exported.raw), "missing": list(exported.missing)})
        return
    out = Screen()
    out.print_line(f"{names[-1]} with its chain of {len(names):,}: {exported.files:,} files in {target_store.url}")
    if raw:
        out.print_line(f"raw evidence of {len(exported.raw):,} addresses is there")
    for uri in exported.missing:
        out.print_line(f"not in {store.url} (expired, or kept elsewhere): {uri}", "yellow")


def _write_tables(
    store: PackStore, places: Sequence[str], target: Files, name: str, first_day: str, as_json: bool
) -> int:
    """Writes a file of this name for each table and day, and replaces existing ones."""
    unpacked, unreadable = Unpacked(store), []
    written, size = dict.fromkeys(TABLES, 0), 0
    with progress("exporting", len(places)) as step:
        for digits, day_places in groupby(places, key=lambda place: packs.pack_name(place)[5:13]):
            day = f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"
            rows: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
            for place in day_places:
                step(place)
                try:
                    manifest = store.read(place)
                    for table, row in _rows(manifest, unpacked.compare(manifest), store.outcome(manifest)):
                        rows[table].append(row)
                except (AetherContextError, LookupError, ValueError) as error:
                    unreadable.append(packs.fault(place, error))
            if day < first_day:
                continue
            for table, table_rows in rows.items():
                folder = f"{target.root}/{table}/day={day}"
                if other_files := [file.name for file in target.files(folder) if file.name != name]:
                    raise StoreError(
                        f"{folder} holds {other_files[0]}, of other packs: export these to a place of their own"
                    )
                data = _parquet(table, table_rows)
                target.replace(f"{folder}/{name}", data)
                written[table], size = written[table] + len(table_rows), size + len(data)
    if as_json:
        print_json({"target": target.url, "rows": written, "bytes": size, "unreadable": len(unreadable)})
    else:
        counts = ", ".join(f"{count:,} {table}" for table, count in written.items())
        Screen().print_line(f"{counts} in {target.url} ({size:,} bytes)")
        for fault in unreadable:
            tell(f"unreadable: {fault}", "red")
    return NOT_THERE if unreadable else 0


def _rows(manifest: Manifest, compared: Comparison, outcome: JSON) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of one pack, each with its table."""
    owner = {
        "pack_id": manifest.pack_id,
        "time": manifest.last_event_time,
        "app": manifest.app,
        "user_id": manifest.user,
        "session_id": manifest.session,
        "agent": manifest.agent,
    }
    copied_fields = ("epoch_reason", "parent", "previous", "checksum", "evidence_needed", "degradations")
    yield (
        "packs",
        owner
        | {name: getattr(manifest, name) for name in (*copied_fields, *_NAMED, *_COUNTED)}
        | {f"{layer}_tokens": tokens.used for layer, tokens in manifest.allocation.items()}
        | {
            "window_tokens": manifest.window,
            "epoch": manifest.epoch.number,
            "shared_tokens": manifest.prefix.shared_tokens,
            "broken_by": manifest.prefix.broken_by,
            "tools_sent": manifest.tools.sent,
            "tools_left_out": tuple(manifest.tools.left_out),
            "unpacked_tokens": compared.unpacked.tokens,
            "unpacked_shared_tokens": compared.unpacked.shared,
            "unpacked_unknown": compared.unknown,
        },
    )
    for row in manifest.rows:
        row_fields = ("layer", "source", "state", "reason", "uri", "superseded_by", "hash", "tokens")
        sent = 0 if row.state in UNSENT else row.tokens if row.sent_tokens is None else row.sent_tokens
        renamed_fields = {"candidate_id": row.id, "sent_tokens": sent, "said_at": row.time}
        scores = {name: row.scores.get(name) for name in _SCORES}
        yield "candidates", owner | {name: getattr(row, name) for name in row_fields} | renamed_fields | scores
    for number, event in enumerate(manifest.truncation_events, start=1):
        event_fields = ("layer", "stage", "reason", "strategy", "tokens_before", "tokens_after")
        numbered = {"number": number, "candidate_ids": event.item_ids}
        yield "events", owner | {name: getattr(event, name) for name in event_fields} | numbered
    if isinstance(outcome, dict):
        call = answered(manifest, outcome)
        cost = None if call is None or call.cost_usd is None else float(call.cost_usd)
        yield "outcomes", outcome | owner | {"model": manifest.model, "cost_usd": cost}


def _parquet(table: str, rows: list[dict[str, Any]]) -> bytes:
    """The rows of a table as a Parquet file; values that do not fit their column's type become null."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtra("parquet", "tables as Parquet files") from error
    kinds = {
        "text": pa.string(),
        "integer": pa.int64(),
        "number": pa.float64(),
        "texts": pa.list_(pa.string()),
        "time": pa.timestamp("us", tz="UTC"),
    }
    columns = {name: [_value(kind, row.get(name)) for row in rows] for name, kind in TABLES[table].items()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in TABLES[table].items()])
    file = io.BytesIO()
    parquet.write_table(pa.Table.from_pydict(columns, schema=schema), file, compression="zstd")
    return file.getvalue()


def _value(kind: str, value: Any) -> Any:
    """A value for a column, None where it does not fit; lone surrogates in texts become escapes."""
    if kind == "texts":
        return [_value("text", text) for text in value or ()]
    if kind == "text" and isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if kind == "integer" and type(value) is int and abs(value) < 2**63:
        return value
    if kind in ("number", "time") and type(value) in (int, float):
        with suppress(OverflowError, ValueError, OSError):
            return float(value) if kind == "number" else datetime.datetime.fromtimestamp(value, datetime.UTC)
    return None
