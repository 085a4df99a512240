"""A real MCP server, as a process: its long results are offloaded and read again, its pictures leave an address."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted import Chat, call

from aether_context import PackPolicy

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]
SERVER = Path(__file__).parent.parent / "mcp_server.py"


@pytest.mark.parametrize("window", [4_000, 20_000])
def test_results_of_a_real_server(window: int, figure: Callable[[str, float], None]) -> None:
    pytest.importorskip("mcp.server.mcpserver")
    from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams
    from mcp import StdioServerParameters

    parameters = StdioServerParameters(command=sys.executable, args=[str(SERVER)])
    toolset = McpToolset(connection_params=StdioConnectionParams(server_params=parameters, timeout=60))
    chat = Chat(tools=[toolset], policy=PackPolicy(max_input_tokens=window))

    async def talk() -> None:
        for turn in range(4):
            names = ("report", "rows", "picture", "short")
            chat.llm.script[:] = [*(call(name, key=f"bridge{turn}") for name in names), f"answer {turn}"]
            await chat.tell(f"Question {turn}: what of bridge {turn}?")
        await toolset.close()

    asyncio.run(talk())
    last = "".join(wire for sent in chat.sent for wire in sent.wires)
    assert "artifact://evidence/" in last
    assert "bridge3 is sound" in last
    invalid = sum(bool(sent.faults) for sent in chat.sent)
    over = sum(manifest.over_window > 0 for manifest in chat.manifests())
    figure("invalid", invalid)
    figure("over_window", over)
    assert (invalid, over, len(chat.sent)) == (0, 0, 20)
    chat.replays(every=1)
