"""The edge passes each request to the application that the first segment of its path names."""

from collections import Counter
from datetime import timedelta

import pytest

from tests.support.clock import Clock
from webapp.http.edge import Edge, Guard
from webapp.http.exchange import ASGIApp, Message, Receive, Scope, Send
from webapp.http.rate_limit import Rates

URL = "https://tools.example.com"


class Door:
    """An edge in front of three applications. `came` counts the requests to each application."""

    def __init__(self, *, url: str = URL, hsts: timedelta | None = None) -> None:
        self.came = Counter[str]()
        self.messages: list[Message] = []
        self._edge = Edge(
            self._app("other"),
            guard=Guard(public_url=url),
            routes={"mcp": self._app("mcp"), "api": self._app("api")},
            rates=Rates(burst=1, every=timedelta(seconds=2), clock=Clock()),
            hsts=hsts,
        )

    async def ask(self, path: str, *, kind: str = "http", host: str = "tools.example.com") -> None:
        await self._edge(
            {
                "type": kind,
                "method": "GET",
                "path": path,
                "raw_path": path.encode(),
                "headers": [(b"host", host.encode())],
                "client": ("203.0.113.7", 5),
            },
            self._receive,
            self._send,
        )

    def _app(self, name: str) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            self.came[name] += 1
            await send({"type": "http.response.start", "status": 200})

        return app

    async def _receive(self) -> Message:
        return {"type": "websocket.connect"}

    async def _send(self, message: Message) -> None:
        self.messages.append(message)


@pytest.mark.parametrize(
    ("path", "reached"),
    [
        ("/mcp", "mcp"),
        ("/mcp/", "mcp"),
        ("/mcp/below", "mcp"),
        ("/api/questions/1", "api"),
        ("/mcpx", "other"),
        ("/MCP", "other"),
        ("/x/mcp", "other"),
        ("/", "other"),
    ],
)
async def test_first_path_segment_decides_which_application_gets_the_request(
    path: str, reached: str
) -> None:
    for kind in ("http", "websocket"):
        door = Door()
        await door.ask(path, kind=kind)
        assert door.came == {reached: 1}


async def test_segment_after_the_root_path_selects_the_application() -> None:
    door = Door(url=f"{URL}/tools")
    await door.ask("/tools/mcp")
    await door.ask("/tools/tools/mcp")
    assert door.came == {"mcp": 1, "other": 1}


async def test_refused_request_reaches_no_application() -> None:
    door = Door()
    for path in ("/mcp", "/api/questions", "/", "//mcp", "/%6dcp/../mcp"):
        await door.ask(path, host="evil.example")
    assert not door.came


async def test_rate_limit_applies_to_paths_that_only_begin_like_program_paths() -> None:
    door = Door()
    for path in ("/mcpx", "/staticfiles", "/webhooks-x"):
        await door.ask(path)
    assert door.came == {"other": 1}
    for path in ("/mcp", "/mcp", "/static/a.css", "/webhooks/stripe"):
        await door.ask(path)
    assert door.came == {"other": 3, "mcp": 2}


async def test_responses_and_refusals_of_the_edge_have_the_hsts_header() -> None:
    door = Door(hsts=timedelta(days=1))
    await door.ask("/", host="evil.example")
    await door.ask("/")
    await door.ask("/")
    starts = [one for one in door.messages if one["type"] == "http.response.start"]
    assert [one["status"] for one in starts] == [421, 200, 429]
    header = (b"strict-transport-security", b"max-age=86400")
    assert all(one["headers"].count(header) == 1 for one in starts)


@pytest.mark.parametrize("host", ["tools.example.com", "evil.example"])
@pytest.mark.parametrize("reads", [True, False])
async def test_body_is_read_once_before_a_refusal(host: str, reads: bool) -> None:
    order = list[str]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if reads:
            await receive()
        await send({"type": "http.response.start", "status": 404})

    async def receive() -> Message:
        order.append("read")
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Message) -> None:
        order.append(message["type"].removeprefix("http.response."))

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "client": ("203.0.113.7", 5),
        "headers": [(b"host", host.encode()), (b"content-length", b"2")],
    }
    await Edge(app, guard=Guard(public_url=URL))(scope, receive, send)
    assert order[:2] == ["read", "start"]
    assert order.count("read") == 1
