"""`serve --mcp`: what a coding assistant is told of a store, through the SDK's own client."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import Chat, call, look_up
from terminal import run

from aether_context import PackStore

READING = {"list", "inspect", "why", "diff", "usage", "regrets"}


def talk(store: PackStore) -> Chat:
    chat = Chat(script=[call("look_up", key="a"), "done"], tools=[look_up], store=store)
    chat.say("Know that the green crate is QX-4471.", "And now?")
    return chat


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., str]]:
    """The tools that a stand-in of the SDK is given to serve."""
    tools = dict[str, Callable[..., str]]()
    server = SimpleNamespace(add_tool=lambda tool, name, **_: tools.update({name: tool}), run=lambda _: None)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", SimpleNamespace(MCPServer=lambda *_, **__: server))
    annotations = SimpleNamespace(model_validate=dict)
    monkeypatch.setitem(sys.modules, "mcp.types", SimpleNamespace(ToolAnnotations=annotations))
    return tools


def test_each_tool_says_what_its_command_prints(given: dict[str, Callable[..., str]]) -> None:
    store = talk(PackStore("memory://assistant")).store
    run("serve", "--mcp", store=store)
    assert given.keys() == READING
    assert given["why"](text="green crate") == run("why", "green crate", store=store).output
    assert given["list"](limit=2) == run("list", "--limit", "2", store=store).output
    for name, arguments in {"inspect": {"call": "2"}, "diff": {}, "usage": {"by": "tool"}, "regrets": {}}.items():
        assert "Error" not in given[name](**arguments)
    assert "no packs" in given["usage"](session="another")
    assert "--yes" not in given["why"](text="--yes"), "no argument becomes an option"


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    store = talk(PackStore("memory://assistant-less")).store
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert 'pip install "aether-context-adk[mcp]"' in run("serve", "--mcp", store=store, code=3).output


@pytest.mark.slow
def test_the_sdks_own_client_reads_a_store(tmp_path: Path) -> None:
    pytest.importorskip("mcp.server.mcpserver")
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    talk(PackStore(str(tmp_path)))
    arguments = ["-m", "aether_context", "serve", "--mcp", "--store", str(tmp_path)]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))
    before = sorted(tmp_path.rglob("*"))

    async def ask() -> tuple[list[Any], str]:
        async with stdio_client(server) as streams, ClientSession(*streams) as session:
            await session.initialize()
            told = await session.call_tool("why", {"text": "green crate"})
            return list((await session.list_tools()).tools), told.content[0].text  # type: ignore[union-attr]

    offered, answer = asyncio.run(ask())
    assert {tool.name for tool in offered} == READING
    assert all(tool.annotations.model_dump(by_alias=True)["readOnlyHint"] for tool in offered)
    assert "message of user, for clerk in session s1" in answer
    assert sorted(tmp_path.rglob("*")) == before
