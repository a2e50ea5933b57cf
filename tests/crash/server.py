"""A server in its own process that kills itself at a given point, like a kill -9.

It uses the real store and the real application. The point is recognized from outside of them: in
the written records, in the sent bytes, or in the tool's own body.
"""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NoReturn
from urllib.parse import urlencode

import httpx
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request

from flows import Ending, elicit
from flows.crypto.tokens import Ring
from flows.elicitation.states import Json
from tests.support.approving import AT_ONCE as UNHELD
from tests.support.approving import TWO_DAYS, shop
from tests.support.issuer import Issuing
from tests.support.serving import serving, transport_to
from tests.support.settings import AT_ONCE
from webapp.app import open_app
from webapp.deadline import UNSURE
from webapp.http.exchange import ASGIApp, Message, Receive, Scope, Send
from webapp.identity.users import Users
from webapp.limits import CallLimits
from webapp.notifications.delivery import NotifyTable
from webapp.service import Service
from webapp.settings.identity import IdentitySettings
from webapp.settings.quotas import ListedClient
from webapp.settings.settings import Settings
from webapp.stores import Record, Store, WatchHint, open_store
from webapp.stores.store import Fences

_ORDERS = list["Orders"]()  # of this process
SECRET = b"a secret that outlives every one of the processes"
ELSEWHERE = "https://shop.example"
# On a busy machine a person can take minutes to answer. No call may end before that.
PATIENT = CallLimits(call=timedelta(minutes=4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write of the store. The process dies before or after the write is durable."""

    when: Literal["before", "after"]
    is_it: Callable[[Record], bool]


# Each is a point in the store's writes. The tests use other points too.
WRITES: Mapping[str, Write] = {
    # The record is durable, and no byte of the response has been sent.
    "stored": Write(when="after", is_it=lambda r: _is(r, "elicitation", "pending", version=0)),
    # The attempt is durable, and the redirect has not been sent.
    "opened": Write(when="after", is_it=lambda r: _is(r, "elicitation", "opened")),
    # The answer is durable, and no waiter was woken: that happens after the write returns.
    "settled": Write(when="after", is_it=lambda r: _is(r, "elicitation", "accepted")),
    # Another process stored the answer. This process's first write is the woken request's claim.
    "woken": Write(when="before", is_it=lambda r: _is(r, "elicitation", "accepted")),
    "taken from another process": Write(
        when="after", is_it=lambda r: _is(r, "elicitation", "accepted")
    ),
    # A program's claim or its work's result is durable, and the program has not received it.
    "work claimed": Write(when="after", is_it=lambda r: _is(r, "once", "doing")),
    "work kept": Write(when="after", is_it=lambda r: _is(r, "once", "done")),
    # The work's result is durable, and the tool has not received it.
    "work written": Write(when="after", is_it=lambda r: r.kind == "once"),
    # The tool's result is durable, and no byte of the result has been sent.
    "finished": Write(when="after", is_it=lambda r: _is(r, "run", "finished")),
    # The result was sent, and the delivery is not stored.
    "delivering": Write(when="before", is_it=lambda r: _is(r, "run", "delivered")),
    "delivered": Write(when="after", is_it=lambda r: _is(r, "run", "delivered")),
    # The state is used, and the provider was not asked yet.
    "exchanging": Write(when="after", is_it=lambda r: _is(r, "elicitation", "exchanging")),
    # The provider has answered the exchange, and nothing of the answer is durable.
    "exchanged": Write(when="before", is_it=lambda r: _is(r, "elicitation", "accepted")),
    # A webhook was verified, and nothing of the webhook is durable.
    "verified": Write(when="before", is_it=lambda r: r.kind == "hook"),
    # The webhook is durable, and the 2xx response has not been sent.
    "hook written": Write(when="after", is_it=lambda r: r.kind == "hook"),
    # The callback is registered, and the tool has not gone on.
    "registered": Write(when="after", is_it=lambda r: _is(r, "ending", "registered", version=0)),
    # The call has ended, and its callback is due: no process has claimed the callback.
    "ending due": Write(when="after", is_it=lambda r: _is(r, "ending", "due", version=1)),
    # The callback is claimed, and has not begun.
    "ending claimed": Write(when="after", is_it=lambda r: _is(r, "ending", "due", version=2)),
    # The callback has run. Its end is not stored yet ("done"), or was just stored ("stored").
    "ending done": Write(when="before", is_it=lambda r: _is(r, "ending", "done")),
    "ending stored": Write(when="after", is_it=lambda r: _is(r, "ending", "done")),
    # An approver's vote has arrived. It is not durable, or it is durable and no response was sent.
    "voting": Write(when="before", is_it=lambda r: _is(r, "elicitation", "pending")),
    "voted": Write(when="after", is_it=lambda r: _is(r, "elicitation", "pending")),
    # The last vote has decided the question. The inbox still shows it, or shows it no longer.
    "inbox closing": Write(when="before", is_it=lambda r: _is(r, "inbox", "decided")),
    "inbox closed": Write(when="after", is_it=lambda r: _is(r, "inbox", "decided")),
    # The escalation is due and claimed. It is not durable yet, or has just become durable.
    "escalating": Write(when="before", is_it=lambda r: _is(r, "inbox", "waiting")),
    "escalated": Write(when="after", is_it=lambda r: _is(r, "inbox", "waiting")),
    # The message to the managers is claimed but not sent, or was sent but is not stored as sent.
    "message claimed": Write(when="after", is_it=lambda r: _is(r, "notification", "waiting")),
    "message sent": Write(when="before", is_it=lambda r: _is(r, "notification", "ended")),
    # The refund is durable, and the tool has not received it.
    "refunded": Write(when="after", is_it=lambda r: _is(r, "payment", "refunded")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The configuration of a server: `die` names its point, `later` moves its clock.

    The server listens on `port`. Its public address has `public_port`, because several processes
    are one server to their callers.
    """

    port: int
    public_port: int
    folder: str
    die: str | None = None
    later: int = 0
    hangs: bool = False  # the tool's work never ends
    store: str = ""  # the store's address, or empty for a file in the folder
    key: str = ""  # the API key of a program, or empty for a server
    issuer: str = ""  # where people sign in; the server then asks for approvals
    mail: str = ""  # the address that is notified of an escalation


def settings_of(
    *, public_port: int, folder: str, store: str = "", issuer: str = "", mail: str = ""
) -> Settings:
    who = Issuing(issuer).who(approvers=TWO_DAYS) if issuer else IdentitySettings()
    return Settings(
        url=f"http://127.0.0.1:{public_port}",
        ring=Ring([SECRET]),
        store=store or f"sqlite:///{Path(folder) / 'elicit.db'}",
        uid=os.getuid(),
        identity=who,
        notify=(NotifyTable(name="managers", to=(mail,)),) if mail else (),
        # this client shows every question
        policies=replace(AT_ONCE, clients=(ListedClient(name="caller"),), audit=bool(issuer)),
    )


async def serve_orders(text: bytes, line: socket.socket) -> None:
    await serve(Orders(**json.loads(text)), line)


async def serve(orders: Orders, line: socket.socket) -> None:
    """Serve until killed.

    Reads and writes are reported as lines; a line `later N` moves the clock.
    """
    _ORDERS[:] = [orders]
    reader, writer = await asyncio.open_connection(sock=line)
    clock = ChildClock(later=orders.later)

    def say(what: str) -> None:
        writer.write(f"{what}\n".encode())

    settings = settings_of(
        public_port=orders.public_port,
        folder=orders.folder,
        store=orders.store,
        issuer=orders.issuer,
        mail=orders.mail,
    )
    store = DyingStore(await open_store(settings.store), die=orders.die, say=say)
    async with (
        open_app(
            settings,
            shop(ran=Paid(Path(orders.folder) / "work")) if orders.issuer else _tools(orders, say),
            store=store,
            clock=clock,
            limits=UNHELD if orders.issuer else PATIENT,
            built=clock.settle,
            users=None if orders.issuer else Users(application="shop", who=by_cookie),
        ) as app,
        serving(Dying(app, die=orders.die), port=orders.port),
    ):
        say("serving")
        while order := await reader.readline():
            clock.pass_until(int(order.split()[1]))


class Paid(list[str]):
    """The orders that a tool has refunded, which are also lines of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def append(self, order: str, /) -> None:
        with self._path.open("a") as file:
            file.write(f"{order}\n")


class ChildClock:
    """The clock of a child. The server sees each step as elapsed time, not as a changed clock."""

    def __init__(self, *, later: int) -> None:
        self._later = float(later)
        self._up = 0.0

    def __call__(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._later + self._up)

    def ticks(self) -> float:
        return time.monotonic() + self._later + self._up

    def settle(self, _: Service) -> None:
        """Move the clock past the first seconds, in which the server lets no lease expire."""
        self._up = UNSURE.total_seconds()

    def pass_until(self, later: int) -> None:
        self._later = float(later)


def by_cookie(request: Request) -> str | None:
    return request.cookies.get("user")


async def warm_up() -> None:
    """Use the slow parts once before the forks, so that every child has them loaded."""
    settings = settings_of(public_port=80, folder="nowhere")
    store = await open_store("memory:")
    tools = _tools(Orders(port=80, public_port=80, folder="nowhere"), lambda _: None)
    async with (
        open_app(settings, tools, store=store, limits=PATIENT) as app,
        httpx.AsyncClient(transport=transport_to(app), base_url=settings.url) as client,
    ):
        assert (await client.get("/")).status_code == 200


def _tools(orders: Orders, say: Callable[[str], None]) -> MCPServer:
    server = MCPServer("shop")

    @server.tool()
    async def book(item: str = "tea") -> str:
        """Book something in somebody's name."""
        answer = await elicit.url(
            "In whose name?",
            lambda link: f"{ELSEWHERE}/?{urlencode({'callback': link.callback_url})}",
            origins=[ELSEWHERE],
        )
        if orders.die == "taken":  # the `await` has returned, and its result is not used yet
            die()

        async def work(key: str) -> Json:
            say("working")
            if orders.hangs:
                await asyncio.Event().wait()
            with (Path(orders.folder) / "work").open("a") as file:
                file.write(f"{key}\n")
            if orders.die == "worked":  # the work is done, and its record is not written
                die()
            return key

        return f"{item} for {answer['name']} under {await elicit.once('work', work)}"

    @server.tool()
    async def reserve(seat: str = "14") -> str:
        """Reserve a seat while the person says in whose name."""
        await elicit.on_end(release, key=seat)
        answer = await elicit.url(
            "In whose name?",
            lambda link: f"{ELSEWHERE}/?{urlencode({'callback': link.callback_url})}",
            origins=[ELSEWHERE],
        )
        return f"seat for {answer['name']}"

    return server


async def release(ending: Ending) -> None:
    """Record each ending once, by its idempotency key, as an author would in a database table."""
    (orders,) = _ORDERS
    if orders.die == "ending begun":
        die()
    with suppress(FileExistsError), (Path(orders.folder) / "endings").open("a") as file:
        (Path(orders.folder) / ending.idempotency_key).touch(exist_ok=False)
        file.write(f"{ending.how}\n")
    if orders.die == "ending worked":
        die()


class DyingStore:
    """A store that reports reads and writes, and in which the process can die."""

    def __init__(self, inner: Store, *, die: str | None, say: Callable[[str], None]) -> None:
        self._inner = inner
        self._point = WRITES.get(die or "")
        self._say = say

    @property
    def address(self) -> str | None:
        return self._inner.address

    async def write(self, *records: Record) -> tuple[Record, ...]:
        point = self._point
        is_here = point is not None and any(map(point.is_it, records))
        if is_here and point is not None and point.when == "before":
            die()
        written = await self._inner.write(*records)
        if is_here:
            die()
        for record in written:
            self._say(f"wrote {record.kind} {record.status} {record.version}")
        return written

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        self._say(f"read {kind}")
        return await self._inner.read(owner, kind, id)

    async def find(self, owner: str, kind: str, key: str) -> Record | None:
        return await self._inner.find(owner, kind, key)

    async def list(
        self,
        kind: str,
        *,
        owner: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Record]:
        return await self._inner.list(kind, owner=owner, status=status, after=after, limit=limit)

    async def due(self, now: datetime, *, hold: timedelta, limit: int = 100) -> Sequence[Record]:
        return await self._inner.due(now, hold=hold, limit=limit)

    def watch(self) -> AsyncIterator[Record | WatchHint | None]:
        return self._inner.watch()

    async def erase(
        self, *, owner: str | None = None, before: datetime | None = None, limit: int = 1000
    ) -> int:
        return await self._inner.erase(owner=owner, before=before, limit=limit)

    async def check(self) -> None:
        await self._inner.check()

    def scan(self) -> AsyncIterator[Sequence[Record]]:
        return self._inner.scan()

    async def load(self, *records: Record, behind: str) -> None:
        await self._inner.load(*records, behind=behind)

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        await self._inner.fence(why, instead_of=instead_of)

    async def fenced(self) -> str | None:
        return await self._inner.fenced()

    async def aclose(self) -> None:
        await self._inner.aclose()


class Dying:
    """The application, in which the process dies after it has sent certain bytes."""

    def __init__(self, app: ASGIApp, *, die: str | None) -> None:
        self._app = app
        self._die = die

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""

        async def sending(message: Message) -> None:
            nonlocal body
            await send(message)
            body += message.get("body", b"")
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            match self._die:
                # The client has the link, on an open stream or in a complete response.
                case "link out" if b"/e/" in body and (is_last or b"elicitation/create" in body):
                    die()
                # The request was woken, and its client was notified that the person is done.
                case "completion told" if b"notifications/elicitation/complete" in body:
                    die()
                # The complete result was sent, and the delivery is not stored.
                case "arrived" if b"tea for" in body and is_last:
                    die()

        await self._app(scope, receive, sending)


def _is(record: Record, kind: str, status: str, *, version: int | None = None) -> bool:
    return (record.kind, record.status) == (kind, status) and version in (None, record.version)


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")
