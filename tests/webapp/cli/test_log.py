"""The log of a running server: one short line for a long tool error or an aborted upload."""

import asyncio
import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from mcp import Client

from tests.support.cli import ended, serving

TOOLS = """
from {module} import {name}

mcp = {name}("my tools")

@mcp.tool()
async def fail(text: str) -> str:
    raise ValueError("no such thing: " + text)
"""
LIBRARIES = [("mcp.server.mcpserver", "MCPServer"), ("fastmcp", "FastMCP")]


@pytest.mark.parametrize(("module", "name"), LIBRARIES)
async def test_tool_error_with_long_text_is_a_single_log_line(
    tmp_path: Path, module: str, name: str
) -> None:
    # finding: R9
    (tmp_path / "my_tools.py").write_text(TOOLS.format(module=module, name=name))
    async with serving("my_tools:mcp", home=tmp_path, extra={"ELICIT_LOG": "json"}) as server:
        async with Client(f"{server.url}/mcp", mode="legacy") as client:
            for _ in range(3):
                assert (await client.call_tool("fail", {"text": "x[" * 20_000})).is_error
        server.process.terminate()
        log = (await ended(server.process)).err
    lines = [json.loads(line) for line in log.splitlines()]
    assert [line.get("repeated") for line in lines] == [None, 2]
    assert "ValueError: no such thing" in str(lines[0].get("cause") or lines[0]["error"])
    assert "my_tools.py:8 fail" in lines[0]["at"]
    assert "in fail" in lines[0]["trace"]
    assert lines[0]["call"]
    assert max(map(len, log.splitlines())) < 20_000


async def test_aborted_upload_is_a_short_log_line(tmp_path: Path) -> None:
    # finding: R9
    async with serving(home=tmp_path) as server:
        there = urlsplit(server.url)
        for path in ("/mcp", "/webhooks/stripe", "/mcp"):
            _, writer = await asyncio.open_connection(there.hostname, there.port)
            head = (
                f"POST {path} HTTP/1.1\r\nhost: {there.netloc}\r\ncontent-length: 1000\r\n"
                "content-type: application/json\r\naccept: application/json, text/event-stream\r\n"
            )
            writer.write(head.encode() + b"\r\n{")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        server.process.terminate()
        lines = (await ended(server.process)).err.splitlines()
    assert all(len(line) < 200 and "request.aborted" in line for line in lines), lines
    assert 1 <= len(lines) <= 3
