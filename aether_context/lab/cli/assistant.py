"""`aether-context serve --mcp`: the commands that explain a store, as tools that a coding assistant calls."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from threading import Lock
from typing import Literal

import click

from aether_context.errors import MissingExtra
from aether_context.lab.cli import packs
from aether_context.lab.cli.commands import main
from aether_context.store import PackStore

_PRINTING = Lock()


def serve_tools(url: str) -> None:
    """Serves the tools over standard input and output until the assistant closes these.

    Raises:
        MissingExtra: the SDK of the Model Context Protocol is not installed.
    """
    packs.require(PackStore(url))
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise MissingExtra("mcp", "a store as tools of an assistant") from error
    logging.getLogger("mcp").setLevel(logging.CRITICAL)  # its lines would stand in the answers
    server = MCPServer("aether-context", instructions=main.help)
    for name, tool in tools(url).items():
        annotations = ToolAnnotations.model_validate({"readOnlyHint": True})
        server.add_tool(tool, name, description=main.commands[name].help, annotations=annotations)
    server.run("stdio")


def tools(url: str) -> Mapping[str, Callable[..., str]]:
    """The tools by the names of their commands; each gives what its command prints."""

    def run(name: str, *operands: str, **options: str | int) -> str:
        named = [f"--{option}={value}" for option, value in options.items() if value]
        # The connection keeps the stream that it was opened with.
        with _PRINTING, redirect_stdout(output := io.StringIO()), redirect_stderr(output):
            try:
                main([name, f"--store={url}", *named, "--", *filter(None, operands)], standalone_mode=False)
            except click.ClickException as error:
                return error.format_message()
        return output.getvalue()

    def list_(session: str = "", limit: int = 50) -> str:
        return run("list", session=session, limit=limit)

    def inspect(call: str | int = "latest", session: str = "") -> str:
        return run("inspect", str(call), session=session)

    def why(text: str, session: str = "", agent: str = "", call: int = 0) -> str:
        return run("why", text, session=session, agent=agent, call=call)

    def diff(call: str | int = "latest", other: str | int = "", session: str = "") -> str:
        return run("diff", str(call), str(other), session=session)

    def usage(session: str = "", by: Literal["agent", "day", "model", "session", "tool"] = "agent") -> str:
        return run("usage", session=session, by=by)

    def regrets(session: str = "") -> str:
        return run("regrets", session=session)

    every: tuple[Callable[..., str], ...] = (list_, inspect, why, diff, usage, regrets)
    return {tool.__name__.strip("_"): tool for tool in every}
