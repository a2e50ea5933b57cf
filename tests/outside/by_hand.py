"""A minimal MCP client without a library, and a proxy that loses responses."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import urlsplit

import httpx
import mcp_types as types

LEGACY, MODERN = "2025-11-25", "2026-07-28"
PATIENCE_SECONDS = 300.0


class ByHand:
    """A client on one revision. On the older revision it has a session."""

    def __init__(self, http: httpx.AsyncClient, url: str, revision: str) -> None:
        self._http = http
        self.url = url
        self.revision = revision
        self.headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": revision,
        }
        self.events: list[str] = []  # event ids of the last call
        self._number = 0

    async def connect(self) -> "ByHand":
        if self.revision == LEGACY:
            opening = {
                "protocolVersion": LEGACY,
                "capabilities": {},
                "clientInfo": {"name": "by hand", "version": "1"},
            }
            answer = await self.post({"id": 0, "method": "initialize", "params": opening})
            self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
            await self.post({"method": "notifications/initialized"})
        return self

    async def call(self, tool: str, *, url: str | None = None, **arguments: object) -> Any:
        """Return the call's result. `url` is another address of the server.

        Raises:
            httpx.HTTPError: The response was lost.
        """
        return result_in((await self.post(self.calling(tool, arguments), url=url)).text)

    def calling(self, tool: str, arguments: dict[str, object]) -> dict[str, Any]:
        self._number += 1
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if self.revision == MODERN:
            params["_meta"] = {
                types.PROTOCOL_VERSION_META_KEY: MODERN,
                types.CLIENT_INFO_META_KEY: {"name": "by hand", "version": "1"},
                types.CLIENT_CAPABILITIES_META_KEY: {},
            }
        return {"id": self._number, "method": "tools/call", "params": params}

    async def post(self, message: dict[str, Any], *, url: str | None = None) -> httpx.Response:
        # Through a proxy, the Host header still names this server.
        headers = {**self.headers_for(message), "host": urlsplit(self.url).netloc}
        # Use a connection of its own, so that a proxy's reset affects no other request.
        headers["connection"] = "close"
        return await self._http.post(
            url or self.url, json={"jsonrpc": "2.0", **message}, headers=headers
        )

    async def get(self, headers: dict[str, str]) -> httpx.Response:
        """Read a stream to its end."""
        return await self._http.get(self.url, headers={**self.headers, **headers})

    def headers_for(self, message: dict[str, Any]) -> dict[str, str]:
        if self.revision == MODERN:
            name = message["params"]["name"]
            return {**self.headers, "mcp-method": message["method"], "mcp-name": name}
        return self.headers


def result_in(text: str) -> Any:
    """Return the result in a response, which is JSON or an event stream."""
    lines = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
    for line in lines or [text]:
        if line.strip():
            message = json.loads(line)
            if "result" in message:
                return message["result"]
    raise AssertionError(f"there is no result in {text!r}")


def texts_in(result: Any) -> list[str]:
    return [part["text"] for part in result["content"]]


class Losing:
    """A proxy that loses the response that contains `marker`, and records what it has read.

    The proxy resets the client's connection as soon as it reads the marker. With `reads_on` it
    first reads the server's response to the end.
    """

    def __init__(self, port: int, *, marker: bytes, reads_on: bool) -> None:
        self._port = port
        self._marker = marker
        self._reads_on = reads_on
        self.seen = b""
        self.lost = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        up = asyncio.create_task(_pass_on(reader, back))
        seen = b""
        try:
            while data := await there.read(65536):
                seen += data
                if self._marker in seen:
                    while self._reads_on and not seen.endswith(b"0\r\n\r\n"):
                        data = await there.read(65536)
                        seen += data
                        if not data or b"content-length:" in seen.lower():
                            break
                    self.seen = seen
                    break
                writer.write(data)
                await writer.drain()
        finally:
            up.cancel()
            for one in (writer, back):
                one.transport.abort()
            self.lost.set()


@contextlib.asynccontextmanager
async def losing(port: int, *, marker: bytes, reads_on: bool) -> AsyncGenerator[tuple[Losing, str]]:
    """Provide the proxy, and the address of /mcp through it."""
    proxy = Losing(port, marker=marker, reads_on=reads_on)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        yield proxy, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
