"""Rate limits for pages: browsers that are faster than people are slowed down, programs are not."""

from datetime import timedelta

from tests.support.clock import Clock
from webapp.http.edge import Edge, Guard
from webapp.http.exchange import Message, Receive, Scope, Send
from webapp.http.rate_limit import Rates


class Door:
    """An app behind the rate limiter that records the requests which came through."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.came: list[str] = []
        rates = Rates(burst=3, every=timedelta(seconds=2), clock=self.clock)
        self.credentials: dict[str, str] = {}  # paths with a valid credential
        self._app = Edge(
            self._pass,
            guard=Guard(public_url="https://tools.example.com"),
            rates=rates,
            credential=lambda scope: self.credentials.get(scope["path"]),
        )

    async def ask(self, path: str, *, address: str = "203.0.113.7") -> tuple[int, dict[str, str]]:
        messages: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            messages.append(message)

        scope: Scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "client": (address, 5),
            "headers": [(b"host", b"tools.example.com")],
        }
        await self._app(scope, receive, send)
        headers = {k.decode(): v.decode() for k, v in messages[0]["headers"]}
        return messages[0]["status"], headers

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.came.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def test_burst_of_page_requests_is_limited() -> None:
    door = Door()
    assert [(await door.ask("/e/x"))[0] for _ in range(5)] == [200, 200, 200, 429, 429]
    door.clock.tick(seconds=2)
    assert [(await door.ask("/e/x"))[0] for _ in range(2)] == [200, 429]


async def test_limited_response_has_retry_after() -> None:
    door = Door()
    for _ in range(3):
        await door.ask("/")
    status, headers = await door.ask("/")
    assert (status, headers["retry-after"]) == (429, "2")
    assert headers["cache-control"] == "no-store"


async def test_valid_link_has_own_limit_independent_of_address() -> None:
    # finding: XS5
    door = Door()
    door.credentials = {"/e/a": "link a", "/e/b": "link b"}
    assert [(await door.ask("/e/made-up"))[0] for _ in range(9)][-1] == 429
    for path in ("/e/a", "/e/b"):
        assert [(await door.ask(path))[0] for _ in range(4)] == [200, 200, 200, 429]
    assert (await door.ask("/e/made-up"))[0] == 429


async def test_addresses_have_separate_limits() -> None:
    door = Door()
    for _ in range(4):
        await door.ask("/")
    assert (await door.ask("/", address="203.0.113.8"))[0] == 200


async def test_paths_for_programs_are_not_limited() -> None:
    door = Door()
    for path in ("/mcp", "/webhooks/stripe", "/static/app.css"):
        assert [(await door.ask(path))[0] for _ in range(9)] == [200] * 9
    assert (await door.ask("/e/x"))[0] == 200
