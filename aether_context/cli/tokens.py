"""`aether-context tokens`: the tokens of a request or a text, by layer and by counter."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aether_context.canonical import short
from aether_context.cli import packs
from aether_context.cli.terminal import Screen, cell, grid, plain, print_json, tell
from aether_context.errors import StoreError
from aether_context.pack import Pack
from aether_context.packing import recount
from aether_context.policy import PackPolicy, TokenSettings
from aether_context.store import PackStore
from aether_context.store.replay import Replayer
from aether_context.tokens import Counters, TokenCounter, counter_for, framing_of
from aether_context.tokens.cache import PackCounter
from aether_context.tokens.choice import OFFERS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A pack or a text. ``recorded`` are counts of contents with media, since recordings do not hold media data."""

    title: str
    model: str
    counted: Pack | str
    recorded: Mapping[str, int] = field(default_factory=dict)


def show(
    source: str,
    *,
    model: str | None,
    counters: Sequence[str],
    vocabulary: str | None,
    policy: str | None,
    url: str,
    as_json: bool,
) -> None:
    """Prints tokens, a row for each layer and a column for each counter.

    Args:
        source: the path of a session, a manifest or a text, or a pack's id.
        counters: names of counters; without any, the policy's counter and the estimate are used.
        vocabulary: the path of the model's vocabulary, which adds a column.
    """
    counted_source = _read_source(source, model, url)
    settings = PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None).tokens
    if vocabulary is not None:
        settings = settings.model_copy(update={"files": {counted_source.model: vocabulary}})
        if not {"file", "tiktoken"} & set(counters):
            counters = ["file", *(counters or ["estimate"])]
    columns: dict[str, tuple[TokenCounter, Mapping[str, int]]] = {}
    for counter in _counters(counted_source.model, counters, settings):
        if isinstance(counted_source.counted, Pack):
            cached = PackCounter(counter, recorded=counted_source.recorded, framing=framing_of(counted_source.model))
            layers = {str(layer): tokens for layer, tokens in recount(counted_source.counted, cached).items()}
        else:
            layers = {"text": counter.count(counted_source.counted)}
        columns[counter.name] = counter, layers
    if as_json:
        by_counter = {
            name: {"accuracy": counter.accuracy, "layers": layers, "total": sum(layers.values())}
            for name, (counter, layers) in columns.items()
        }
        print_json({"source": counted_source.title, "model": counted_source.model, "counters": by_counter})
        return
    out = Screen()
    out.print_heading(f"{counted_source.title} for {counted_source.model}")
    table = grid("layer", *(f">{plain(name)}" for name in columns))
    for layer in layers:
        table.add_row(layer, *(f"{counts[layer]:,}" for _, counts in columns.values()))
    if len(layers) > 1:
        table.add_row("total", *(f"{sum(counts.values()):,}" for _, counts in columns.values()), style="bold")
    table.add_row("texts counted", *(cell(counter.accuracy) for counter, _ in columns.values()), style="dim")
    out.print(table)


def _counters(model: str, names: Sequence[str], settings: TokenSettings) -> Iterator[TokenCounter]:
    """The named counters, which may use the network; else the policy's counter and the estimate."""
    if settings.network or not OFFERS.keys() >= {*names, settings.counter} - {"auto"}:
        from aether_context.adk.models.gemini import register_counters

        register_counters()
    if not names:
        pick = Counters(settings, clock=time.monotonic).pick(model)
        for problem in pick.problems:
            tell(f"passed over: {problem}", "yellow")
        yield pick.counter
        yield counter_for(model)
    for name in names:
        yield counter_for(model, settings.model_copy(update={"counter": name, "network": True}))


def _read_source(source: str, model: str | None, url: str) -> _Source:
    path, is_file = Path(source), os.path.isfile(source)
    try:
        located = packs.in_file(url, path) if is_file else packs.locate(url, source)
    except StoreError as error:
        if is_file:
            raise
        raise type(error)(f"{source!r} is neither a file nor a pack: {error}") from error
    if located is not None:
        return _pack_source(*located, model)
    text = path.read_bytes().decode("utf-8", "replace")
    try:
        value = json.loads(text) if text.lstrip().startswith("{") else {}
    except (ValueError, RecursionError):
        value = {}
    model = model or "gemini-2.5-flash"
    if "events" in value and ("app_name" in value or "appName" in value):
        from aether_context.adk.preview import preview, read_session

        return _Source(title=source, model=model, counted=preview(read_session(path), model=model))
    return _Source(title=source, model=model, counted=text)


def _pack_source(store: PackStore, place: str, model: str | None) -> _Source:
    manifest = store.read(place)
    manifest.verify()
    replayer = Replayer(store)
    pack = replayer.replay(manifest).pack
    counts = replayer.resolve(manifest).counts
    contents = [item.content for item in pack.contents]
    with_media = [content for content in contents if any(part.kind in ("media", "other") for part in content.parts)]
    keys = {short(content.digest, 16) for content in with_media} & counts.keys()
    recorded = {key: counts[key] for key in keys}
    return _Source(title=manifest.pack_id, model=model or manifest.model, counted=pack, recorded=recorded)
