"""`aether-context preview`: what the next model call of a session would be sent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aether_context.cli import inspection, replay
from aether_context.cli.terminal import console, grid, number, plain, print_canonical, print_json
from aether_context.conversation import Conversation, Selection, select_strategy
from aether_context.policy import PackPolicy
from aether_context.store import PackStore
from aether_context.store.replay import request_json

if TYPE_CHECKING:
    from google.adk.sessions.session import Session

    from aether_context.adk.preview import StrategyPreview


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a session is: a file, or a database and the names under which it is there."""

    path: str | None = None
    database: str | None = None
    app: str = ""
    user: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Who is called, and with what."""

    message: str | None
    name: str | None
    model: str
    system: str


def show(
    source: Source,
    agent: Agent,
    *,
    policy: str | None,
    window: int | None,
    store: str | None,
    request: bool,
    everything: bool,
    as_json: bool,
) -> None:
    """Prints the account of the next pack, or the request itself.

    Raises:
        PolicyError: the policy is wrong, or under it no request would be sent.
        SessionError: the session cannot be read.
    """
    from aether_context.adk.preview import make_preview

    made = make_preview(_read(source), **_options(agent, policy, window))
    manifest = made.recording.manifest
    if store is not None:
        manifest = PackStore(store).write(made.recording)
    if not request:
        inspection.show_alone(manifest, everything=everything, as_json=as_json)
    elif as_json:
        print_canonical(request_json(made.pack))
    else:
        replay.show_request(made.pack, plain(manifest.pack_id), everything=everything)


def show_strategies(
    source: Source, agent: Agent, *, policy: str | None, window: int | None, by_hand: bool, as_json: bool
) -> None:
    """Prints what each strategy would do to the next request, and which one suits the conversation.

    Raises:
        PolicyError: the policy is wrong.
        SessionError: the session cannot be read.
    """
    from aether_context.adk.preview import preview_strategies

    found = preview_strategies(_read(source), by_hand=by_hand, **_options(agent, policy, window))
    suggested = _suggested(found[0])
    rows = [_row(one, chosen=at == 0) for at, one in enumerate(found)]
    if as_json:
        print_json({"strategies": rows, "suggested": {"strategy": suggested.strategy, "rule": suggested.rule}})
        return
    out = console()
    shown = grid("strategy", ">removed", ">replaced", ">tokens", ">freed", ">read anew", "")
    for row in rows:
        figures = [number(row[name]) for name in ("removed", "replaced", "tokens", "freed_tokens", "lost_tokens")]
        shown.add_row(", ".join(row["strategy"]), *figures, "the policy's" if row["chosen"] else "")
    out.print(shown)
    out.print(f"suggested: {suggested.strategy} ({suggested.rule})")


def _options(agent: Agent, policy: str | None, window: int | None) -> dict[str, Any]:
    overrides = {"max_input_tokens": window} if window is not None else {}
    return {
        "policy": PackPolicy.load(policy or os.environ.get("AETHER_CONTEXT_POLICY") or None, **overrides),
        "message": agent.message,
        "agent_name": agent.name,
        "model": agent.model,
        "system": agent.system,
    }


def _row(one: StrategyPreview, *, chosen: bool) -> dict[str, Any]:
    return {
        "strategy": list(one.strategy),
        "chosen": chosen,
        "removed": one.removed,
        "replaced": one.replaced,
        "tokens": one.pack.request_tokens,
        "freed_tokens": one.freed_tokens,
        "lost_tokens": one.lost_tokens,
    }


def _suggested(one: StrategyPreview) -> Selection:
    source = one.pack.source
    request = source.request
    return select_strategy(
        Conversation.of(
            request.contents, window=source.window, system=request.system, tools=request.tools, model=request.model
        )
    )


def _read(source: Source) -> Session:
    from aether_context.adk.preview import fetch_session, read_session

    if source.database is not None:
        return fetch_session(source.database, app=source.app, user=source.user, session=source.session)
    return read_session(source.path or "")
