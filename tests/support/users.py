"""Requests over connections of another user of this machine, without an HTTP library.

A socket belongs to the user who created it, so root creates a socket as another user. Each
connection sends exactly one request. An HTTP library could send other requests too.
"""

import asyncio
import json
import os
import pwd
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

ME = os.getuid()
NOBODY = pwd.getpwnam("nobody").pw_uid
AS_ROOT = pytest.mark.skipif(ME != 0, reason="needs root, to act as another user")
PATIENCE_SECONDS = 300.0
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
_OPENING: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"elicitation": {"form": {}, "url": {}}},
    "clientInfo": {"name": "mcp", "version": "1"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: str = ""


class Talk:
    """A request and its response, which is read only as far as a test needs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def head(self) -> Answer:
        lines = (await self._soon(self._reader.readuntil(b"\r\n\r\n"))).decode().split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        return Answer(status=int(lines[0].split()[1]), headers=headers)

    async def until(self, text: str) -> str:
        """Read until this text has arrived, and return what was read."""
        return (await self._soon(self._reader.readuntil(text.encode()))).decode()

    async def rest(self) -> str:
        return (await self._soon(self._reader.read())).decode("utf-8", "replace")

    async def whole(self) -> Answer:
        head = await self.head()
        body = await self.rest()
        self.close()
        return Answer(status=head.status, headers=head.headers, body=body)

    def close(self) -> None:
        self._writer.close()

    async def _soon(self, reading: Any) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            found: bytes = await reading
            return found


async def sent(
    url: str,
    *,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    message: Mapping[str, Any] | None = None,
    uid: int = ME,
) -> Talk:
    """Send one request over a connection of this user."""
    parts = urlsplit(url)
    body = b"" if message is None else json.dumps({"jsonrpc": "2.0", **message}).encode()
    lines = {
        "host": parts.netloc,
        "connection": "close",
        **ACCEPT,
        "content-length": str(len(body)),
        **(headers or {}),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    connection = _socket_of(uid)
    await asyncio.get_running_loop().sock_connect(
        connection, (parts.hostname or "", parts.port or 80)
    )
    reader, writer = await asyncio.open_connection(sock=connection)
    writer.write(f"{method} {parts.path} HTTP/1.1\r\n{head}\r\n".encode() + body)
    await writer.drain()
    return Talk(reader, writer)


async def answered(url: str, **options: Any) -> Answer:
    """Send one request and return its complete response."""
    return await (await sent(url, **options)).whole()


async def opened_session(
    url: str, *, uid: int = ME, headers: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Open a session of 2025-11-25, and return the headers of its later requests."""
    opening: dict[str, Any] = {"id": 0, "method": "initialize", "params": _OPENING}
    answer = await answered(url, message=opening, uid=uid, headers=headers)
    assert answer.status == 200, answer
    session = {
        **(headers or {}),
        "mcp-session-id": answer.headers["mcp-session-id"],
        "mcp-protocol-version": "2025-11-25",
    }
    ready = {"method": "notifications/initialized"}
    assert (await answered(url, message=ready, uid=uid, headers=session)).status == 202
    return session


def calling(tool: str, *, id: int = 1, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"id": id, "method": "tools/call", "params": params}


def _socket_of(uid: int) -> socket.socket:
    if uid != ME:
        os.seteuid(uid)
    try:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    finally:
        if uid != ME:
            os.seteuid(ME)
    made.setblocking(False)
    return made
