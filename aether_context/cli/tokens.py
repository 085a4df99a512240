"""`aether-context tokens`: what a request or a text costs, by layer and by counter."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aether_context.canonical import short
from aether_context.cli import packs
from aether_context.cli.terminal import cell, console, grid, heading, number, plain, print_json, tell
from aether_context.errors import SessionError, StoreError
from aether_context.pack import LAYERS, Pack
from aether_context.packing import recount
from aether_context.policy import PackPolicy, TokenSettings
from aether_context.store import Manifest, PackStore
from aether_context.store.replay import Replayer
from aether_context.tokens import Counters, TokenCounter, counter_for, framing_of
from aether_context.tokens.cache import PackCounter
from aether_context.tokens.choice import OFFERS

DEFAULT_MODEL = "gemini-2.5-flash"
_ABOVE_A_PACK = 5
"""Folders between a store and a manifest: application, user, session, ``packs``, pack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counted:
    """What is counted: a pack, or a text where ``pack`` is None.

    ``recorded`` are counts of contents with media, whose data a recording does not hold.
    """

    title: str
    model: str
    text: str = ""
    pack: Pack | None = None
    recorded: Mapping[str, int]


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
        counters: names of counters; none takes the one that the policy would take, and the estimate.
        vocabulary: the path of the model's vocabulary, which is then a column beside those that are named.

    Raises:
        MissingExtra: a counter that is named needs a package that is not installed.
        ChecksumMismatch: the pack's manifest is not what was written.
        PackNotFound: there is neither a file nor a pack of that name.
        PolicyError: the policy is wrong, or nobody has registered a counter of that name.
        SessionError: the session cannot be packed.
        TokenCountingError: a counter that is named cannot count, or the vocabulary cannot be read.
    """
    counted = _read(source, model, url)
    loaded = PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None).tokens
    settings, names = loaded, list(counters)
    if vocabulary is not None:
        settings = loaded.model_copy(update={"files": {counted.model: vocabulary}})
        names = names if {"file", "tiktoken"} & set(names) else ["file", *(names or ["estimate"])]
    columns = {one.name: (one, _layers(counted, one)) for one in _counters(counted.model, names, settings)}
    if as_json:
        print_json(
            {
                "source": counted.title,
                "model": counted.model,
                "counters": {
                    name: {"accuracy": one.accuracy, "layers": layers, "total": sum(layers.values())}
                    for name, (one, layers) in columns.items()
                },
            }
        )
        return
    _print(counted, columns)


def _print(counted: _Counted, columns: Mapping[str, tuple[TokenCounter, Mapping[str, int]]]) -> None:
    out = console()
    heading(out, f"{plain(counted.title)} for {plain(counted.model)}")
    table = grid("layer", *(f">{plain(name)}" for name in columns))
    (_, first), *_ = columns.values()
    for layer in first:
        table.add_row(layer, *(number(layers[layer]) for _, layers in columns.values()))
    if len(first) > 1:
        table.add_row("total", *(number(sum(layers.values())) for _, layers in columns.values()), style="bold")
    table.add_row("texts counted", *(cell(one.accuracy) for one, _ in columns.values()), style="dim")
    out.print(table)


def _counters(model: str, names: Sequence[str], settings: TokenSettings) -> Iterator[TokenCounter]:
    """The counters that are named, which is leave to use the network; else the policy's and the estimate."""
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


def _layers(counted: _Counted, counter: TokenCounter) -> dict[str, int]:
    if counted.pack is None:
        return {"text": counter.count_all([counted.text])[0]}
    cached = PackCounter(counter, recorded=counted.recorded, framing=framing_of(counted.model))
    layers = recount(counted.pack, cached)
    return {layer: layers[layer] for layer in LAYERS if layer in layers}


def _read(source: str, model: str | None, url: str) -> _Counted:
    path = Path(source)
    if not path.is_file():
        store = PackStore(url)
        try:
            place = packs.find(store, source)
        except StoreError as error:
            raise type(error)(f"{source!r} is neither a file nor a pack: {error}") from error
        return _of_pack(store, store.read(place), model)
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise SessionError(f"{source} cannot be read: {error.strerror or error}") from error
    value = _json_object(text)
    if "pack_id" in value and "schema_version" in value:
        above = path.absolute().parents
        if path.name == "manifest.json" and len(above) > _ABOVE_A_PACK and above[1].name == "packs":
            base = above[_ABOVE_A_PACK]
            store = PackStore(base)
            return _of_pack(store, store.read(f"{store.files.root}/{above[0].relative_to(base).as_posix()}"), model)
        store = PackStore(url)
        return _of_pack(store, store.read(packs.find(store, str(value["pack_id"]))), model)
    if "events" in value and ("app_name" in value or "appName" in value):
        return _of_session(source, model or DEFAULT_MODEL)
    return _Counted(title=source, model=model or DEFAULT_MODEL, text=text, recorded={})


def _json_object(text: str) -> Mapping[str, object]:
    """The JSON object that a text is; empty where it is none."""
    try:
        value = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _of_pack(store: PackStore, manifest: Manifest, model: str | None) -> _Counted:
    manifest.verify()
    replayer = Replayer(store)
    pack = replayer.replay(manifest).pack
    counts = replayer.resolve(manifest).counts
    media = [one.content for one in pack.contents if any(part.kind in ("media", "other") for part in one.content.parts)]
    keys = [short(content.digest, 16) for content in media]
    return _Counted(
        title=manifest.pack_id,
        model=model or manifest.model,
        pack=pack,
        recorded={key: counts[key] for key in keys if key in counts},
    )


def _of_session(path: str, model: str) -> _Counted:
    from aether_context.adk.preview import make_preview, read_session

    made = make_preview(read_session(path), model=model)
    return _Counted(title=path, model=model, pack=made.pack, recorded={})
