"""A real MCP server on standard input and output, for `tests/trust/test_mcp.py`: long results, rows, a picture."""

from __future__ import annotations

from mcp.server.mcpserver import Image, MCPServer

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360000002000001e221bc330000"
    "000049454e44ae426082"
)
server = MCPServer("river")


@server.tool()
def report(key: str) -> str:
    """Gives a long report."""
    return "\n".join(f"entry {at}: gauge {at * 37 % 101} of {key} stood at {at * 53 % 997} mm" for at in range(2_500))


@server.tool()
def rows(key: str) -> list[dict[str, int]]:
    """Gives rows."""
    return [{"id": at, "length": len(key), "value": at * 7} for at in range(800)]


@server.tool()
def picture(key: str) -> Image:
    """Gives a picture."""
    return Image(data=PNG + key.encode() * 10_000, format="png")


@server.tool()
def short(key: str) -> str:
    """Gives a short answer."""
    return f"{key} is sound"


if __name__ == "__main__":
    server.run()
