"""The parent process: a shop that is started and killed, its caller and its person."""

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import httpx
import httpx2
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    Implementation,
    TextContent,
)

from tests.crash.server import ELSEWHERE, Orders, settings_of
from tests.support.processes import close, open_process
from tests.support.serving import bound
from webapp.settings.settings import Settings
from webapp.stores import Store, open_store

TOP = Path(__file__).parents[2]
LEASE_OVER = 31
GIVEN_AGAIN_OVER = 121
_OPEN: "dict[str, ProcessPool]" = {}


class ProcessPool:
    """Starts each server as a separate process. A start is fast, because it is only a fork."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        assert control.recv(16) == b"ready"

    def start(self, orders: Orders) -> "Server":
        own_end, child_end = socket.socketpair()
        socket.send_fds(self._control, [json.dumps(asdict(orders)).encode()], [child_end.fileno()])
        child_end.close()
        pid = int(self._control.recv(16))
        return Server(pid, line=own_end, process_pool=self, orders=orders)

    def wait(self, pid: int) -> int:
        self._control.send(str(pid).encode())
        return int(self._control.recv(16))


@contextmanager
def open_process_pool(module: str = "tests.crash.process_pool") -> Iterator[ProcessPool]:
    """Start the process pool of `module`, or reuse the pool that an enclosing block has opened."""
    if module in _OPEN:
        yield _OPEN[module]
        return
    own_end, child_end = socket.socketpair()
    command = (sys.executable, "-m", module)
    with own_end:
        with child_end:
            process = open_process(
                *command, name=module, stdin=child_end.fileno(), cwd=TOP, passes_on=True
            )
        try:
            _OPEN[module] = ProcessPool(own_end)
            yield _OPEN[module]
        finally:
            _OPEN.pop(module, None)
            own_end.close()
            close(process)


class Server:
    """A server process."""

    def __init__(
        self, pid: int, *, line: socket.socket, process_pool: ProcessPool, orders: Orders
    ) -> None:
        self._pid = pid
        self._line = line
        self._nursery = process_pool
        self._exit: int | None = None
        self.orders = orders

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(sock=self._line)
        await self.says("serving")
        return self

    async def dies_at_any_time(self) -> None:
        """Wait until the server has killed itself, perhaps before it said "serving"."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._line)
        try:
            await self.died()
        finally:
            self._writer.close()
            if self._exit is None:
                self.kill()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()
        if self._exit is None:
            self.kill()

    async def says(self, words: str, *, before: str | None = None) -> str:
        """Read lines up to one that starts with `words`, and return that line.

        Fail if a line that starts with `before` comes first.
        """
        async with asyncio.timeout(300):
            async for line in self._reader:
                assert before is None or not line.decode().startswith(before)
                if line.decode().startswith(words):
                    return line.decode().rstrip()
        raise AssertionError(f"the server ended before it said {words!r}")

    async def died(self) -> None:
        """Wait until the server has killed itself."""
        async with asyncio.timeout(300):
            while await self._reader.readline():
                pass
        self._exit = self._nursery.wait(self._pid)
        assert self._exit == -signal.SIGKILL

    def kill(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._exit = self._nursery.wait(self._pid)

    async def set_clock(self, seconds: int) -> None:
        self._writer.write(f"later {seconds}\n".encode())
        await self._writer.drain()

    async def let_sweep(self) -> None:
        self._writer.write(b"sweep\n")
        await self._writer.drain()


class PortRouter:
    """Sends requests for the public address to one of the processes behind it."""

    def __init__(self, server: Server) -> None:
        self._port = server.orders.port

    async def __call__(self, request: Any) -> None:
        request.url = request.url.copy_with(port=self._port)  # its Host header is already set


def no_certificates() -> ssl.SSLContext:
    """Return a context without root certificates: loading them is slow, and no TLS is used."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(slots=True, kw_only=True)
class Person:
    """A person with one browser, and the service to which the person is sent."""

    browser: httpx.AsyncClient
    service: httpx.AsyncClient

    def is_led_to(self, server: Server) -> None:
        """Send all later requests of the browser and the service to this process."""
        self.browser.event_hooks = self.service.event_hooks = {"request": [PortRouter(server)]}

    async def heading(self, link: str) -> str:
        page = await self.browser.get(link)
        assert page.status_code == 200, page.text
        found = re.search(r"<h1[^>]*>(.*?)</h1>", page.text, re.DOTALL)
        assert found is not None
        return re.sub(r"<[^>]+>", "", found[1]).strip()

    async def go_on(self, link: str) -> str:
        """Press Continue, and return the callback address that the service receives."""
        page = await self.browser.get(link)
        assert page.status_code == 200, page.text
        field = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert field is not None
        sent_on = await self.browser.post(link, data={"csrf": field[1]})
        assert sent_on.status_code == 303, sent_on.text
        location = sent_on.headers["location"]
        assert location.startswith(ELSEWHERE)
        return parse_qs(urlsplit(location).query)["callback"][0]

    async def finish(self, callback: str, *, name: str = "ann") -> str:
        """Report completion as the service, and return the server's answer."""
        reply = await self.service.post(callback, json={"name": name})
        assert reply.is_success, reply.text
        return str(reply.json()["completion"])

    async def walk(self, link: str) -> str:
        return await self.finish(await self.go_on(link))


@asynccontextmanager
async def open_person() -> AsyncIterator[Person]:
    context = no_certificates()
    async with (
        httpx.AsyncClient(verify=context) as browser,
        httpx.AsyncClient(verify=context) as service,
    ):
        yield Person(browser=browser, service=service)


@dataclass(slots=True, kw_only=True)
class Calling:
    """A running tool call of an MCP client with one revision."""

    task: asyncio.Task[str] = field(init=False)
    links: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def link(self) -> str:
        async with asyncio.timeout(300):
            return await self.links.get()

    async def result(self) -> str:
        async with asyncio.timeout(300):
            return await self.task

    @property
    def times_asked(self) -> int:
        return self.links.qsize()


@asynccontextmanager
async def calling(
    server: Server,
    tool: str = "book",
    *,
    mode: str,
    pauses: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> AsyncIterator[Calling]:
    """Call the tool. The call is cancelled at the end of the block.

    With `pauses` the client holds its answer back until `may_go_on` is set.
    """
    call = Calling()
    if not pauses:
        call.may_go_on.set()

    async def agree(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestURLParams)
        call.links.put_nowait(params.url)
        await call.may_go_on.wait()
        return ElicitResult(action="accept")

    async def run() -> str:
        async with (
            httpx2.AsyncClient(
                verify=no_certificates(),
                timeout=300,
                event_hooks={"request": [PortRouter(server)]},
            ) as http_client,
            Client(
                streamable_http_client(
                    f"http://127.0.0.1:{server.orders.public_port}/mcp", http_client=http_client
                ),
                mode=mode,
                elicitation_callback=agree,
                client_info=Implementation(name="caller", version="1"),
            ) as client,
        ):
            result = await client.call_tool(tool, dict(arguments or {}))
        assert isinstance(result.content[0], TextContent)
        assert not result.is_error, result.content[0].text
        return result.content[0].text

    call.task = asyncio.create_task(run())
    try:
        yield call
    finally:
        call.task.cancel()
        await asyncio.gather(call.task, return_exceptions=True)


async def held(server: Server, call: Calling, *, mode: str) -> str:
    """Wait until a request of the call waits for the answer, and return the link."""
    link = await call.link()
    if mode != "legacy":
        # Wait until the call's second request has taken over the wait.
        await server.says("wrote elicitation pending 2")
    return link


@dataclass(slots=True, kw_only=True)
class Shop:
    """A store and a port for all restarts of the shop's servers."""

    process_pool: ProcessPool
    folder: Path
    port: int
    store: Store
    address: str = ""  # of the store, or empty for a file in the folder
    issuer: str = ""
    mail: str = ""

    def start(
        self, *, die: str | None = None, later: int = 0, hangs: bool = False, port: int = 0
    ) -> Server:
        return self.process_pool.start(
            Orders(
                issuer=self.issuer,
                mail=self.mail,
                port=port or self.port,
                public_port=self.port,
                folder=str(self.folder),
                die=die,
                later=later,
                hangs=hangs,
                store=self.address,
            )
        )

    @property
    def settings(self) -> Settings:
        return settings_of(
            public_port=self.port,
            folder=str(self.folder),
            store=self.address,
            issuer=self.issuer,
            mail=self.mail,
        )

    @property
    def endings(self) -> list[str]:
        """The ways in which calls ended, as the callbacks noted them."""
        path = self.folder / "endings"
        return path.read_text().splitlines() if path.exists() else []

    async def elicitations(self) -> list[tuple[str, str]]:
        """Return the id and status of every stored question."""
        return [(found.id, found.status) for found in await self.store.list("elicitation")]

    @property
    def work(self) -> list[str]:
        """The idempotency keys of the completed work, in order."""
        path = self.folder / "work"
        return path.read_text().splitlines() if path.exists() else []

    def is_booked_once(self, result: str) -> bool:
        return len(self.work) == 1 and result == f"tea for ann under {self.work[0]}"


@asynccontextmanager
async def open_shop(
    process_pool: ProcessPool, folder: Path, *, address: str = ""
) -> AsyncIterator[Shop]:
    # A socket that is bound but does not listen reserves the port for all restarts.
    with bound("127.0.0.1") as reserved:
        port = reserved.getsockname()[1]
        settings = settings_of(public_port=port, folder=str(folder), store=address)
        store = await open_store(settings.store)
        try:
            yield Shop(
                process_pool=process_pool, folder=folder, port=port, store=store, address=address
            )
        finally:
            await store.aclose()
