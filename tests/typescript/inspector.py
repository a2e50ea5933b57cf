"""The Inspector's command lines: one call of one process, and a connection that many commands use.

What the first is asked it does not draw, and does not say that it could; the second prints it, and
another command answers.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.processes import ended, start
from tests.typescript.packages import PACKAGES

ERAS = {"2025-11-25": "legacy", "2026-07-28": "modern"}
_CLIENTS = PACKAGES / "@modelcontextprotocol" / "inspector" / "clients"
_SAYS_ERROR = 5  # its status where the tool's result is an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspector:
    """It keeps what it has to keep in `home`."""

    node: str
    home: Path
    url: str
    revision: str

    async def call_once(self, tool: str) -> dict[str, Any]:
        """`inspector --cli`; the result."""
        said = await self._run(
            "launcher/build/index.js",
            *(
                "--cli",
                self.url,
                "--format",
                "json",
                "--transport",
                "http",
                "--protocol-era",
                ERAS[self.revision],
            ),
            *("--method", "tools/call", "--tool-name", tool),
        )
        result: dict[str, Any] = said["result"]
        return result

    @asynccontextmanager
    async def connected(self, *names: str) -> AsyncIterator[None]:
        """`mcpdo`, with connections of these names, and a daemon that ends with them."""
        where = ("--era", ERAS[self.revision], "--transport", "http", self.url)
        try:
            for name in names:
                await self._do("--connection", name, "connect", *where)
            yield
        finally:
            await self._do("daemon", "stop")

    async def call(self, connection: str, tool: str) -> dict[str, Any]:
        return await self._do("--connection", connection, "tools/call", tool)

    async def asked(self, connection: str, tool: str) -> str:
        """Call a tool; the id of what it asks."""
        said = await self.call(connection, tool)
        return str(said["elicitationPending"]["elicitationId"])

    async def decline(self, connection: str, asked: str) -> dict[str, Any]:
        """Decline it; the result of the call."""
        answer = ("elicitation/respond", asked, "--decline")
        return await self._do("--connection", connection, *answer)

    async def _do(self, *command: str) -> dict[str, Any]:
        return await self._run("mcpdo/build/mcp-bin.js", "--format", "json", *command)

    async def _run(self, program: str, *command: str) -> dict[str, Any]:
        process = await start(
            *(self.node, str(_CLIENTS / program), *command),
            name="the Inspector",
            env={
                "HOME": str(self.home),
                "PATH": "/usr/bin:/bin",
                "MCP_INSPECTOR_SECRET_STORE": "memory",
                # Its daemon is whoever's knows these two, and no other.
                "MCP_INSPECTOR_DAEMON_DIR": str(self.home / "d"),
                "MCP_INSPECTOR_DAEMON_TOKEN": "t" * 43,
            },
        )
        end = await ended(process)
        assert end.status in (0, _SAYS_ERROR), end
        said: dict[str, Any] = json.loads(end.out)
        return said
