"""`aether-context preview`: what the next model call of a session would be sent."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from aether_context.canonical import JSON
from aether_context.cli.rendering import print_pack, print_request
from aether_context.cli.terminal import Screen, grid, print_json
from aether_context.conversation import Conversation, select_strategy
from aether_context.policy import PackPolicy
from aether_context.store import PackStore
from aether_context.store.recording import request_json
from aether_context.views import view_of

if TYPE_CHECKING:
    from aether_context.adk.preview import StrategyPreview


def show(
    *,
    path: str | None,
    database: str | None,
    app: str | None,
    user: str | None,
    session: str | None,
    policy: str | None,
    window: int | None,
    url: str | None,
    request: bool,
    strategies: bool,
    by_hand: bool,
    everything: bool,
    as_json: bool,
    **call: Any,
) -> None:
    """Prints the next pack, its request, or what each strategy would do to it.

    Args:
        call: arguments of `make_preview`: the message, and the agent's name, model and instruction.
    """
    if (path is None) == (database is None):
        raise click.UsageError("give either a file or --db")
    if database is not None and not (app and user and session):
        raise click.UsageError("--db needs --app, --user and --session")
    if strategies and (request or everything or url):
        raise click.UsageError("--strategies goes without --request, --all and --store")
    if by_hand and not strategies:
        raise click.UsageError("--by-hand goes with --strategies")
    from aether_context.adk.preview import fetch_session, make_preview, preview_strategies, read_session

    if database is not None:
        loaded_session = fetch_session(database, app=app or "", user=user or "", session=session or "")
    else:
        loaded_session = read_session(path or "")
    overrides = {"max_input_tokens": window} if window is not None else {}
    call["policy"] = PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None, **overrides)
    if strategies:
        _show_strategies(preview_strategies(loaded_session, by_hand=by_hand, **call), as_json)
        return
    preview = make_preview(loaded_session, **call)
    manifest = preview.recording.manifest
    if url is not None:
        manifest = PackStore(url).write(preview.recording)
    if as_json and request:
        click.echo(request_json(preview.pack).encode())
    elif as_json:
        print_json(manifest.model_dump(mode="json"))
    elif request:
        print_request(view_of(preview.pack, manifest), everything=everything)
    else:
        print_pack(view_of(preview.pack, manifest), everything=everything)


def _show_strategies(previews: Sequence[StrategyPreview], as_json: bool) -> None:
    """Prints what each strategy would do, the policy's own first, and which one suits the conversation."""
    source = previews[0].pack.source
    request = source.request
    conversation = Conversation.of(
        request.contents, window=source.window, system=request.system, tools=request.tools, model=request.model
    )
    suggested = select_strategy(conversation)
    rows: list[dict[str, JSON]] = [
        {
            "strategy": list(preview.strategy),
            "chosen": preview is previews[0],
            "removed": preview.removed,
            "replaced": preview.replaced,
            "tokens": preview.pack.request_tokens,
            "freed_tokens": preview.freed_tokens,
            "lost_tokens": preview.lost_tokens,
        }
        for preview in previews
    ]
    if as_json:
        print_json({"strategies": rows, "suggested": {"strategy": suggested.strategy, "rule": suggested.rule}})
        return
    out = Screen()
    table = grid("strategy", ">removed", ">replaced", ">tokens", ">freed", ">read anew", "")
    for row in rows:
        figures = [f"{row[name]:,}" for name in ("removed", "replaced", "tokens", "freed_tokens", "lost_tokens")]
        table.add_row(", ".join(row["strategy"]), *figures, "the policy's" if row["chosen"] else "")
    out.print(table)
    out.print(f"suggested: {suggested.strategy} ({suggested.rule})")
