"""`aether-context serve`: packs in a browser, from a server or from a file."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click

from aether_context.errors import PackNotFound
from aether_context.lab.cli import packs
from aether_context.lab.cli.assistant import serve_tools
from aether_context.lab.cli.terminal import say_error
from aether_context.store import PackStore


def serve_pages(
    url: str, *, file: str | None, host: str, port: int, token: str | None, mcp: bool, **selection: str | None
) -> None:
    if mcp:
        serve_tools(url)
    elif file is not None:
        _write_report(url, file, selection)
    elif any(selection.values()):
        raise click.UsageError("--session, --app and --user say which session --report FILE writes")
    else:
        _serve(url, host, port, token)


def _serve(url: str, host: str, port: int, token: str | None) -> None:
    """Serves a store until it is stopped; only this machine may read it where there is no token."""
    if token is None and not _is_loopback(host):
        raise click.UsageError(
            f"{host} can be reached from other machines, and whoever reaches it reads every pack: "
            "set AETHER_CONTEXT_TOKEN to a long random text, or leave --host out"
        )
    if token is not None and len(token) < 16:
        raise click.UsageError("a token of fewer than 16 characters can be guessed: give a longer one")
    import uvicorn

    from aether_context.lab.viewer.server import LOOPBACK, create_app

    store = packs.require(PackStore(url))
    # Without a token only the host name protects from requests that a web site makes the browser send (DNS rebinding).
    app = create_app(store, token=token, hosts=None if token else (*LOOPBACK, _in_url(host)))
    say_error(f"{store.url} at http://{_in_url(host)}:{port}/{'?token=…' if token else ''}, until Ctrl-C")
    with suppress(KeyboardInterrupt):
        uvicorn.run(app, host=host, port=port, log_level="warning", access_log=False, server_header=False)


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _write_report(url: str, file: str, selection: Mapping[str, str | None]) -> None:
    from aether_context.lab.viewer import report
    from aether_context.lab.viewer.calls import CallReader, SessionView, by_session

    store, folder = packs.require(PackStore(url)), Path(file).parent
    if not folder.is_dir():
        raise click.UsageError(f"--report {file}: there is no folder {folder}: make it first, or name another file")
    sessions, whose = by_session(store.places(**selection)), packs.whose(**selection)
    if not sessions:
        raise PackNotFound(f"no packs{whose} in {store.url}: `{store.command('list')}` shows what is there")
    if len(sessions) > 1:
        raise PackNotFound(f"{len(sessions)} sessions are{whose or ' there'}: say which by --session, --app and --user")
    text = report(store, *SessionView(CallReader(store).of(sessions[0][-20:])).owner)
    try:
        with click.open_file(file, "w", encoding="utf-8", atomic=True) as output:
            output.write(text)
    except OSError as error:
        raise click.UsageError(f"--report {file} cannot be written: {error.strerror or error}") from error
    say_error(f"{file}: {len(text.encode()):,} bytes; it holds what the agent was sent: mind whom you give it to")
