"""The child process for accounts, payments and secrets: a server that dies, and its sandbox.

Run as a module, it forks two kinds of children: a server whose tools ask for accounts, payments and
secrets, and the sandbox, which survives the server. The sandbox can withhold a reply, so that the
reply is lost with the server process that waited for it.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import httpx
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from flows import Money, elicit
from flows.elicitation.states import Json
from flows.errors import StoreUnavailable
from flows.providers import github
from tests.crash.post import HeldWebhooks, Post
from tests.crash.process_pool import raise_children
from tests.crash.server import (
    PATIENT,
    ChildClock,
    Dying,
    DyingStore,
    Orders,
    by_cookie,
    die,
    settings_of,
)
from tests.crash.shop_env import no_certificates
from tests.support.serving import serving, transport_to
from webapp.app import open_app
from webapp.http.exchange import ASGIApp, Message, Receive, Scope, Send
from webapp.identity.users import Users
from webapp.sandbox import Sandbox
from webapp.sandbox.app import SandboxApp
from webapp.sandbox.settings import new_sandbox
from webapp.stores import Record, Store, open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountOrders(Orders):
    """The configuration of a child. With `is_sandbox` the child is the sandbox.

    If `flying` is set, the server answers no webhook and reads at most one: see tests.crash.post.
    """

    sandbox: dict[str, Any]
    is_sandbox: bool = False
    flying: int = 0
    reads: str = ""
    waits_to_sweep: bool = False

    @property
    def settings(self) -> Sandbox:
        given: dict[str, Any] = dict(self.sandbox)
        given["redirect_origins"] = tuple(given["redirect_origins"])
        return Sandbox(**given)


async def serve_orders(text: bytes, line: socket.socket) -> None:
    await serve(AccountOrders(**json.loads(text)), line)


async def serve(orders: AccountOrders, line: socket.socket) -> None:
    """Serve until killed. The sandbox's clock is never moved."""
    reader, writer = await asyncio.open_connection(sock=line)
    clock = ChildClock(later=orders.later)

    def say(what: str) -> None:
        writer.write(f"{what}\n".encode())

    if orders.is_sandbox:
        # Do not reuse a connection, because its server may have died.
        no_keep_alive = httpx.Limits(max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(
                verify=no_certificates(), trust_env=False, limits=no_keep_alive, timeout=300
            ) as client,
            asyncio.TaskGroup() as group,
        ):
            post = Post(client, group)
            outside = SandboxApp(orders.settings, clock=clock, deliver=post.take)
            async with serving(Withholding(outside, post), port=orders.port):
                say("serving")
                await reader.read()
        return
    settings = settings_of(public_port=orders.public_port, folder=orders.folder, store=orders.store)
    may_sweep = asyncio.Event()
    if not orders.waits_to_sweep:
        may_sweep.set()
    inner = await open_store(settings.store)
    away = Path(orders.folder) / "away"
    store = AccountStore(inner, die=orders.die, say=say, may_sweep=may_sweep, away=away)
    opening = open_app(
        settings,
        tools(orders),
        store=store,
        clock=clock,
        sandbox=orders.settings,
        limits=PATIENT,
        built=clock.settle,
        users=Users(application="shop", who=by_cookie) if orders.key else None,
    )
    async with opening as opened:
        app: ASGIApp = Dying(opened, die=orders.die)
        if orders.flying:
            app = HeldWebhooks(app, reads=orders.reads, flying=orders.flying, say=say)
        async with serving(app, port=orders.port):
            say("serving")
            while order := await reader.readline():
                if order == b"sweep\n":
                    may_sweep.set()
                else:
                    clock.pass_until(int(order.split()[1]))


def tools(orders: AccountOrders) -> MCPServer:
    server = MCPServer("stand")

    async def work(key: str) -> Json:
        with (Path(orders.folder) / "work").open("a") as file:
            file.write(f"{key}\n")
        return key

    def have(answer: str) -> None:
        if orders.die == "taken":  # the `await` has returned, and its result is not used yet
            assert answer
            die()

    @server.tool()
    async def connect() -> str:
        account = await elicit.oauth(github, scopes=["repo"])
        have(account.access_token)
        async with account.client() as api:
            login = (await api.get("/user")).raise_for_status().json()["login"]
        return f"tea for {login} under {await elicit.once('work', work)}"

    @server.tool()
    async def buy() -> str:
        receipt = await elicit.payment(Money("9.00", "EUR"), "Tea")
        have(receipt.id)
        return f"tea for {receipt.price} under {await elicit.once('work', work)}"

    @server.tool()
    async def refund() -> str:
        receipt = await elicit.payment(Money("9.00", "EUR"), "Tea")
        refund = await receipt.refund(reason="out of tea")
        return f"{refund.price} back under {await elicit.once('work', work)}"

    @server.tool()
    async def unlock() -> str:
        key = await elicit.secret("The key of the tea room")
        have(key)
        return f"tea for {len(key)} letters under {await elicit.once('work', work)}"

    @server.tool()
    async def unlock_for_good() -> str:
        key = await elicit.secret("The key of the tea room", name="tea-room")
        have(key)
        return f"tea for {len(key)} letters under {await elicit.once('work', work)}"

    @server.tool()
    async def member(day: str) -> str:
        receipt = await elicit.payment(Money("9.00", "EUR"), "Membership", once=True)
        return f"{day} {receipt.id}"

    _add_order(server, work)
    _add_spoiler(server, Path(orders.folder))
    return server


def _add_order(server: MCPServer, work: Callable[[str], Awaitable[Json]]) -> None:
    @server.tool()
    async def order(number: int) -> str:
        receipt = await elicit.payment(
            Money("9.00", "EUR"), f"Tea {number}", timeout=timedelta(hours=3)
        )

        async def brew(key: str) -> Json:
            return await work(f"{number} {receipt.id} {key}")

        return f"tea {number} for {await elicit.once('brew', brew)}"


def _add_spoiler(server: MCPServer, folder: Path) -> None:
    @server.tool()
    async def spoil() -> str:
        """Fail on the first run, as soon as the file `go` exists. Succeed on later runs."""
        receipt = await elicit.payment(Money("9.00", "EUR"), "Tea")
        is_first = not (folder / "work").exists()
        with (folder / "work").open("a") as file:
            file.write(f"{receipt.id}\n")
        if is_first:
            while not (folder / "go").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
            raise ToolError("out of leaves")
        return f"tea for {receipt.price}"


class AccountStore(DyingStore):
    """A store that dies, and in which nothing is due before `may_sweep` is set.

    While the file `away` exists, the store refuses to record that a result was delivered.
    """

    def __init__(
        self,
        inner: Store,
        *,
        die: str | None,
        say: Callable[[str], None],
        may_sweep: asyncio.Event,
        away: Path,
    ) -> None:
        super().__init__(inner, die=die, say=say)
        self._may_sweep = may_sweep
        self._away = away

    async def write(self, *records: Record) -> tuple[Record, ...]:
        is_out = any((row.kind, row.status) == ("run", "delivered") for row in records)
        if is_out and self._away.exists():
            self._say("away")
            raise StoreUnavailable("the store is away")
        return await super().write(*records)

    async def due(self, now: datetime, *, hold: timedelta, limit: int = 100) -> Sequence[Record]:
        await self._may_sweep.wait()
        self._say("looks")
        return await super().due(now, hold=hold, limit=limit)


class Withholding:
    """The sandbox, with its requests recorded and a way to withhold one reply forever.

    `POST /withhold?path=` sets the path of the reply. `GET /withheld` answers once that request was
    handled, with the body of the lost reply. `GET /asked` lists the requests. `POST /again` sends
    all webhooks again, and `GET /delivered` answers when they have been sent.
    """

    def __init__(self, app: ASGIApp, post: Post) -> None:
        self._app = app
        self._post = post
        self._path: str | None = None
        self._withheld: asyncio.Future[bytes] | None = None
        self._asked: list[dict[str, str | None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        match scope["path"]:
            case "/withhold":
                self._path = parse_qs(scope["query_string"].decode())["path"][0]
                self._withheld = asyncio.get_running_loop().create_future()
                await _answer(send, b"{}")
            case "/withheld":
                assert self._withheld is not None
                await _answer(send, await self._withheld)
            case "/asked":
                await _answer(send, json.dumps(self._asked).encode())
            case "/again":
                self._post.resend_webhooks()
                await _answer(send, b"{}")
            case "/delivered":
                await _answer(send, json.dumps(await self._post.delivered()).encode())
            case path if path == self._path:
                await self._keep_back(scope, receive)
            case _:
                await self._app(scope, await self._noted(scope, receive), send)

    async def _keep_back(self, scope: Scope, receive: Receive) -> None:
        self._path = None
        assert self._withheld is not None
        body = bytearray()

        async def keep(message: Message) -> None:
            body.extend(message.get("body", b""))

        await self._app(scope, await self._noted(scope, receive), keep)
        self._withheld.set_result(bytes(body))
        while (await receive())["type"] != "http.disconnect":
            pass

    async def _noted(self, scope: Scope, receive: Receive) -> Receive:
        message = await receive()
        headers = dict(scope["headers"])
        key = headers.get(b"idempotency-key")
        self._asked.append(
            {
                "what": f"{scope['method']} {scope['path']}",
                "key": None if key is None else key.decode(),
                "body": message.get("body", b"").decode(),
            }
        )
        messages = [message]

        async def again() -> Message:
            return messages.pop() if messages else await receive()

        return again


async def _answer(send: Send, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def warm_up() -> None:
    """Use the slow parts once before the forks, so that every child has them loaded."""
    sandbox = asdict(new_sandbox(url="http://127.0.0.1:81", serves="http://127.0.0.1:80"))
    orders = AccountOrders(port=80, public_port=80, folder="nowhere", sandbox=sandbox)
    settings = settings_of(public_port=80, folder="nowhere")
    store = await open_store("memory:")
    outside: Any = SandboxApp(orders.settings, clock=_now, deliver=_nobody)
    opening = open_app(
        settings, tools(orders), store=store, sandbox=orders.settings, limits=PATIENT
    )
    async with opening as app:
        for one, url in ((app, settings.url), (outside, orders.settings.url)):
            transport = transport_to(one)
            async with httpx.AsyncClient(transport=transport, base_url=url) as client:
                assert (await client.get("/")).status_code < 500


def _now() -> datetime:
    return datetime.now(UTC)


async def _nobody(request: httpx.Request) -> httpx.Response:
    raise AssertionError(request)


if __name__ == "__main__":
    raise_children(warm_up(), serve=serve_orders)
