"""The Inspector's command lines: `--cli` for one call, and `mcpdo` for a connection.

`--cli` shows no question, and does not declare elicitation. `mcpdo` prints a question, and another
`mcpdo` command answers it.
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
_SAYS_ERROR = 5  # the exit status of `--cli` if the tool's result is an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspector:
    """The Inspector, which stores its files in `home`."""

    node: str
    home: Path
    url: str
    revision: str

    async def call_once(self, tool: str) -> dict[str, Any]:
        """Call a tool with `inspector --cli`, and return the result."""
        reply = await self._run(
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
        result: dict[str, Any] = reply["result"]
        return result

    @asynccontextmanager
    async def connected(self, *names: str) -> AsyncIterator[None]:
        """Open `mcpdo` connections with these names. Their daemon ends with this block."""
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
        """Call a tool, and return the id of its question."""
        result = await self.call(connection, tool)
        return str(result["elicitationPending"]["elicitationId"])

    async def decline(self, connection: str, asked: str) -> dict[str, Any]:
        """Decline the question, and return the result of the call."""
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
                # Only commands with these two values reach this test's daemon.
                "MCP_INSPECTOR_DAEMON_DIR": str(self.home / "d"),
                "MCP_INSPECTOR_DAEMON_TOKEN": "t" * 43,
            },
        )
        end = await ended(process)
        assert end.status in (0, _SAYS_ERROR), end
        output: dict[str, Any] = json.loads(end.out)
        return output
