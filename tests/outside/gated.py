"""A served gated tool, and a raw request to it (2026-07-28)."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.cli import serving

LIBRARIES = ("mcp", "fastmcp")
# A short timeout, so that an open request ends.
_TOOLS = """
from datetime import timedelta
from pathlib import Path
from flows import elicit
{imports}

@server.tool()
@elicit.gate(timeout=timedelta(seconds=2))
def run(command: str, amount: float = 1, again: bool = False) -> str:
    Path("ran").touch()
    return "done"
"""
_IMPORTS = {
    "mcp": "from mcp.server.mcpserver import MCPServer\nserver = MCPServer('gated')",
    "fastmcp": "from fastmcp import FastMCP\nserver = FastMCP('gated')",
}
_META = "io.modelcontextprotocol/"


class Calling:
    """Calls `run`. `has_run` is True if the tool's body has started."""

    def __init__(self, http: httpx.AsyncClient, url: str, folder: Path) -> None:
        self._http = http
        self._url = url
        self._folder = folder

    @property
    def has_run(self) -> bool:
        return (self._folder / "ran").exists()

    async def __call__(
        self,
        arguments: str,
        *,
        modes: str,
        more: Mapping[str, Any] | None = None,
        tool: str = "run",
    ) -> httpx.Response:
        """Call the tool. `arguments` and `modes` are JSON that is sent unchanged."""
        meta = {
            f"{_META}protocolVersion": "2026-07-28",
            f"{_META}clientInfo": {"name": "client", "version": "1"},
            f"{_META}clientCapabilities": {"elicitation": "MODES"},
        }
        params = {"name": tool, "arguments": "ARGUMENTS", "_meta": meta, **(more or {})}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        text = json.dumps(request).replace('"MODES"', modes).replace('"ARGUMENTS"', arguments)
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": tool,
        }
        answer = await self._http.post(self._url, content=text, headers=headers)
        return httpx.Response(answer.status_code, text=_message(answer.text))


@asynccontextmanager
async def calling(library: str, folder: Path, tools: str = _TOOLS) -> AsyncIterator[Calling]:
    (folder / "gated_tools.py").write_text(tools.format(imports=_IMPORTS[library]))
    async with (
        serving("gated_tools:server", home=folder) as served,
        httpx.AsyncClient(timeout=300) as http,
    ):
        yield Calling(http, f"{served.url}/mcp", folder)


def _message(text: str) -> str:
    """Return the only message of a response, streamed or not."""
    lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    return next((line for line in lines if line), text)
