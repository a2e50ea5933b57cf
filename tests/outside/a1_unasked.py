"""A served tool that creates a question and forgets `await`: it must deliver nothing."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from mcp import Client
from mcp_types import TextContent

from tests.support.cli import serving

FINDING = "A1"
TOOLS = """
from flows import Money, elicit
from {module} import {name}

server = {name}("shop")

@server.tool()
async def waits() -> str:
    elicit.payment(Money("9.00", "EUR"), "A report")
    return "the goods"

@server.tool()
def does_not_wait() -> str:
    elicit.payment(Money("9.00", "EUR"), "A report")
    return "the goods"

@server.tool()
async def visits() -> str:
    elicit.url("Sign in", "https://shop.example/login")
    return "the goods"
"""
LIBRARIES = {"MCPServer": "mcp.server.mcpserver", "FastMCP": "fastmcp"}
REVISIONS = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for name, module in LIBRARIES.items():
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            (home / "tools.py").write_text(TOOLS.format(module=module, name=name))
            async with serving("tools:server", home=home) as server:
                for revision, mode in REVISIONS.items():
                    async with Client(f"{server.url}/mcp", mode=mode) as client:
                        for _ in range(times):
                            for tool in ("waits", "does_not_wait", "visits"):
                                case = f"{name}, {revision}, {tool}: withheld, with the line"
                                yield case, await _is_withheld(client, tool)


async def _is_withheld(client: Client, tool: str) -> bool:
    result = await client.call_tool(tool, {})
    text = "".join(part.text for part in result.content if isinstance(part, TextContent))
    return bool(result.is_error) and "goods" not in text and "tools.py:" in text
