"""`aether-context serve` and `aether-context report`: packs in a browser, from a server or from a file."""

from __future__ import annotations

import ipaddress
from contextlib import suppress

import click

from aether_context.cli import packs
from aether_context.cli.terminal import tell
from aether_context.errors import PackNotFound
from aether_context.store import PackStore


def serve(url: str, *, host: str, port: int, token: str | None) -> None:
    """Serves a store until it is stopped; only this machine may read it where there is no token.

    Raises:
        click.UsageError: another machine could reach it, and there is no token.
    """
    if token is None and not _is_loopback(host):
        raise click.UsageError(
            f"{host} can be reached from other machines, and whoever reaches it reads every pack: "
            "set AETHER_CONTEXT_TOKEN to a long random text, or leave --host out"
        )
    if token is not None and len(token) < 16:
        raise click.UsageError("a token of fewer than 16 characters can be guessed: give a longer one")
    import uvicorn

    from aether_context.viewer.server import LOOPBACK, create_app

    store = packs.require(PackStore(url))
    # Without a token only the host name protects from requests that a web site makes the browser send (DNS rebinding).
    app = create_app(store, token=token, hosts=None if token else (*LOOPBACK, _in_url(host)))
    rows = app.state.rows
    rows.all(most_seconds=0.5)
    while rows.unread:
        tell(f"{rows.unread:,} packs left to read")
        rows.all(most_seconds=5)
    tell(f"{store.url} at http://{_in_url(host)}:{port}/{'?token=…' if token else ''}, until Ctrl-C")
    with suppress(KeyboardInterrupt):
        uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, server_header=False)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def write_report(
    url: str,
    session: str,
    *,
    app: str | None,
    user: str | None,
    output: str,
    limit: int,
    everything: bool,
) -> None:
    """Writes the pages of one session into a file.

    Raises:
        PackNotFound: there is no such session, or more than one.
    """
    from aether_context.viewer.single_file import report

    store = packs.require(PackStore(url))
    folders = [folder for folder in store.sessions(app, user, session) if store.pack_files(folder)]
    whose = packs.whose(app=app, user=user, session=session)
    if not folders:
        raise PackNotFound(f"no packs{whose} in {store.url}: `{store.command('list')}` shows what is there")
    if len(folders) > 1:
        raise PackNotFound(f"{len(folders)} sessions are{whose}: give --app and --user, too")
    text = report(store, folders[0].removeprefix(f"{store.files.root}/"), most=limit, whole=everything)
    with click.open_file(output, "w", encoding="utf-8", atomic=output != "-") as file:
        file.write(text)
    if output != "-":
        tell(f"{output}: {len(text.encode()):,} bytes; it holds what the agent was sent: mind whom you give it to")
