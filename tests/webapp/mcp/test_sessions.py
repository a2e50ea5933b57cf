"""Limits on sessions of 2025-11-25: how many, for whom, and for how long."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from tests.support.mcp_server import server_env
from tests.support.serving import serving
from tests.support.users import AS_ROOT, NOBODY, answered, calling, opened_session
from webapp.http.exchange import ASGIApp, Message, Receive, Scope, Send
from webapp.identity.identity import Caller, Sender
from webapp.mcp.opened import OpenedSessions, SessionLimits, note_call
from webapp.mcp.resuming import Streams
from webapp.server import HostedServer

LIMITS = SessionLimits(
    for_all=12, for_own_user=4, for_nameless=6, for_address=3, for_person=4, idle_without_call=300
)
CALLER = Caller(owner=None, client="")
OWN = Sender(key="own/", share="own", caller=CALLER, is_own_user=True)


class Library:
    """A stand-in for the MCP library. It opens a session for each request without a session id."""

    def __init__(self) -> None:
        self.now = 0.0
        self.open: set[str] = set()
        self._made = 0
        self.layer = self.before(self, sender=lambda scope: scope["sender"])

    def before(
        self, app: ASGIApp, *, sender: Callable[[Mapping[str, Any]], Sender]
    ) -> OpenedSessions:
        return OpenedSessions(
            app,
            streams=Streams(clock=lambda: datetime.now(UTC)),
            limits=LIMITS,
            clock=lambda: self.now,
            sender=sender,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = dict(scope["headers"]).get(b"mcp-session-id")
        status, headers = HTTPStatus.OK, list[tuple[bytes, bytes]]()
        if named is None:
            self._made += 1
            self.open.add(str(self._made))
            headers = [(b"mcp-session-id", str(self._made).encode())]
        elif scope["method"] == "DELETE":
            self.open.remove(named.decode())
        elif scope["method"] == "CALL":
            note_call(scope)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if scope["method"] == "GET":
            await scope["closed"].wait()

    async def send(
        self, sender: Sender, id: str | None = None, method: str = "POST", **more: Any
    ) -> tuple[int, str]:
        """Send a request and return its status and the session's id."""
        messages: list[Message] = []

        async def send(message: Message) -> None:
            messages.append(message)

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        headers = [] if id is None else [(b"mcp-session-id", id.encode())]
        scope = {"type": "http", "method": method, "headers": headers, "sender": sender, **more}
        await self.layer(scope, receive, send)
        answered_with: dict[bytes, bytes] = dict(messages[0]["headers"])
        return messages[0]["status"], answered_with.get(b"mcp-session-id", b"").decode()


def nameless(address: int) -> Sender:
    share = f"uid:None@192.0.2.{address}"
    return Sender(key="uid:None", share=share, caller=CALLER, is_nameless=True)


def person(number: int) -> Sender:
    return Sender(key=f"{number}/client", share=str(number), caller=CALLER)


async def test_anonymous_sessions_leave_capacity_for_others():
    # finding: S10
    library = Library()
    statuses = [(await library.send(nameless(1)))[0] for _ in range(5)]
    assert statuses == [200, 200, 200, 429, 429]  # one address has its own limit
    statuses = [(await library.send(nameless(n)))[0] for n in (2, 3, 4, 5, 6)]
    assert statuses == [200, 200, 200, 429, 429]  # all anonymous callers share another limit
    for number in (1, 2):
        assert (await library.send(person(number)))[0] == 200
    # The remaining sessions are reserved for the owner.
    assert (await library.send(person(3)))[0] == 429
    for _ in range(10):
        assert (await library.send(OWN))[0] == 200
    assert len(library.open) == len(library.layer) == 12


async def test_persons_least_recently_used_session_is_closed_for_a_new_session():
    # finding: S10
    library = Library()
    ids: list[str] = []
    for _ in range(4):
        ids.append((await library.send(OWN))[1])
        library.now += 1
    await library.send(OWN, ids[0])
    closed = asyncio.Event()
    listening = asyncio.create_task(library.send(OWN, ids[1], "GET", closed=closed))
    await asyncio.sleep(0)
    assert (await library.send(OWN))[0] == 200
    # The third session is closed: the first was used again, and the second has an open stream.
    assert ids[2] not in library.open
    assert {ids[0], ids[1], ids[3]} < library.open
    closed.set()
    await listening


async def test_unused_session_expires_sooner_than_a_used_session():
    # finding: S10
    library = Library()
    used, unused, received = [(await library.send(nameless(1)))[1] for _ in range(3)]
    await library.send(nameless(1), used, "CALL")
    closed = asyncio.Event()
    listening = asyncio.create_task(library.send(nameless(1), received, "GET", closed=closed))
    await asyncio.sleep(0)
    library.now = 299
    assert (await library.send(nameless(1)))[0] == 429
    library.now = 300.5
    assert (await library.send(nameless(1)))[0] == 200
    assert unused not in library.open
    assert {used, received} < library.open
    assert (await library.send(nameless(1), unused))[0] == 404
    closed.set()
    await listening
    library.now = 1801
    assert (await library.send(nameless(1)))[0] == 200
    assert used not in library.open


async def test_failed_initialization_uses_no_session_capacity():
    library = Library()

    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 400, "headers": []})

    library.layer = layer = library.before(refusing, sender=lambda _: nameless(1))
    for _ in range(10):
        assert (await library.send(nameless(1)))[0] == 400
    assert not len(layer)


@AS_ROOT
async def test_session_flood_by_others_does_not_lock_out_the_owner(server):
    # finding: S10
    @server.tool()
    async def plain() -> str:
        return "plain"

    async with server_env(server) as env:
        url = env.mcp_url
        for _ in range(SessionLimits().for_address):
            await opened_session(url, uid=NOBODY)
        opening: dict[str, Any] = {"id": 0, "method": "initialize", "params": {}}
        refused = await answered(url, message=opening, uid=NOBODY)
        assert refused.status == 429
        assert "Too many sessions" in refused.body
        session = await opened_session(url)
        assert "plain" in (await answered(url, message=calling("plain"), headers=session)).body


async def test_session_closed_for_a_new_session_is_closed_in_the_library(server):
    # finding: S10
    inner: list[ASGIApp] = []

    def around(app: ASGIApp, streams: Streams) -> ASGIApp:
        inner.append(app)
        limits = SessionLimits(for_person=1)
        return OpenedSessions(app, sender=lambda _: OWN, streams=streams, limits=limits)

    served = HostedServer(server, clock=lambda: datetime.now(UTC), around=around)
    async with serving(served) as url:
        first = await opened_session(f"{url}/mcp")
        second = await opened_session(f"{url}/mcp")
        ping = {"id": 3, "method": "ping"}
        assert (await answered(f"{url}/mcp", message=ping, headers=second)).status == 200
        async with serving(inner[0]) as bare:  # without our middleware
            assert (await answered(f"{bare}/mcp", message=ping, headers=first)).status == 404
            assert (await answered(f"{bare}/mcp", message=ping, headers=second)).status == 200
