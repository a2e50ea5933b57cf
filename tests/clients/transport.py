"""An HTTP transport that calls the application in memory, without a socket.

Unlike the client of a library, a test with this transport can answer late or never, answer a
question of a call that has ended, and cut a stream. The official Python client uses it too.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2

from tests.support.mcp_server import UID
from webapp.http.exchange import PEER_KEY, ASGIApp, Message, Scope
from webapp.identity.local_peer import Peer

Json = dict[str, Any]
_ACCEPTS = "application/json, text/event-stream"


def from_here(app: ASGIApp) -> ASGIApp:
    """Wrap the application so that each request comes from this machine's own user."""

    async def reached(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope[PEER_KEY] = Peer(uid=UID)
        await app(scope, receive, send)

    return reached


class Exchange:
    """A request and its response, which is read as it arrives."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        url: str,
        *,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
    ) -> None:
        parts = urlsplit(url)
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": parts.scheme,
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "root_path": "",
            "query_string": parts.query.encode(),
            "headers": headers,
            "client": (parts.hostname, 50000),
            "server": (parts.hostname, parts.port),
        }
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.begun = asyncio.Event()
        self._body: bytes | None = body
        self._came: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self.running = asyncio.create_task(self._run(from_here(app), scope))

    def header(self, name: str) -> str:
        """Return a response header, or an empty string."""
        return next((v.decode() for n, v in self.headers if n.decode().lower() == name), "")

    async def pieces(self) -> AsyncIterator[bytes]:
        while (piece := await self._came.get()) is not None:
            yield piece

    async def messages(self) -> AsyncIterator[Json]:
        """Yield the JSON-RPC messages, until the server ends the response."""
        text = ""
        async for piece in self.pieces():
            text += piece.decode().replace("\r\n", "\n")
            if "event-stream" in self.header("content-type"):
                *events, text = text.split("\n\n")
                for event in events:
                    lines = event.split("\n")
                    data = "\n".join(line[5:] for line in lines if line.startswith("data:"))
                    if data.strip():  # otherwise a ping, or the start of the stream
                        yield cast("Json", json.loads(data))
        if text:
            yield cast("Json", json.loads(text))

    async def hang_up(self) -> None:
        """Cut the connection."""
        self._gone.set()
        await self.running

    async def _run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            await app(scope, self._receive, self._send)
        finally:
            self.begun.set()
            self._came.put_nowait(None)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
            self.begun.set()
        elif message.get("body"):
            self._came.put_nowait(message["body"])


class Transport(httpx2.AsyncBaseTransport):
    """A client's transport to the server's `/mcp`. `headers` are sent with each `post`."""

    def __init__(self, app: ASGIApp, *, url: str) -> None:
        self._app = app
        self.url = url
        self.headers: dict[str, str] = {}

    def post(self, message: Json, headers: Mapping[str, str] | None = None) -> Exchange:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        sent = {
            "host": urlsplit(self.url).netloc,
            "accept": _ACCEPTS,
            "content-type": "application/json",
            "content-length": str(len(body)),
            **self.headers,
            **(headers or {}),
        }
        pairs = [(name.encode(), value.encode()) for name, value in sent.items()]
        return Exchange(self._app, "POST", self.url, headers=pairs, body=body)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = Exchange(
            self._app,
            request.method,
            str(request.url),
            headers=[(name.lower(), value) for name, value in request.headers.raw],
            body=await request.aread(),
        )
        await exchange.begun.wait()
        stream = _Stream(exchange)
        return httpx2.Response(exchange.status, headers=exchange.headers, stream=stream)


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._exchange.pieces():
            yield piece

    async def aclose(self) -> None:
        await self._exchange.hang_up()
