"""ASGI applications on a real port under uvicorn, in the test's own event loop, or without a port.

Their responses are searched for leaks (support/leaks.py). The socket is bound before the
application is created, so that the application can know its address. If the application does not
start, `serving` raises and leaves nothing running.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, cast

import httpx
import uvicorn

from tests.support.leaks import overheard
from webapp.http.exchange import ASGIApp
from webapp.identity.accepting import Accepted, Arriving


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the app, and yield its address without a trailing slash."""
    async with serving_at(lambda _: app, host=host, port=port) as url:
        yield url


@contextlib.asynccontextmanager
async def serving_at(
    make: Callable[[str], ASGIApp],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    lifespan: Literal["auto", "on"] = "auto",
) -> AsyncIterator[str]:
    """Serve the app that `make` creates from its address.

    Set `lifespan="on"` for an app that has a lifespan: then a failure of its start is logged and
    raised. With "auto", uvicorn ignores the failure, as if the app had no lifespan.
    """
    with bound(host, port=port) as listener:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            overheard(make(url)),
            http=_Connection,
            lifespan=lifespan,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            # On a busy machine, a client would often use an idle connection just when it closes.
            timeout_keep_alive=300,
            timeout_graceful_shutdown=1,
        )
        server = _Server(config)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await server.started_up
            yield url
        finally:
            server.stop.set()
            await running
            # Tasks that uvicorn cancelled after its shutdown timeout.
            await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


def transport_to(
    app: object,
    *,
    client: tuple[str, int] = ("127.0.0.1", 123),
    root_path: str = "",
    raises: bool = True,
) -> httpx.ASGITransport:
    """Return a transport to the app without a port.

    Unless `raises`, an exception of the app becomes a response, as with a real server.
    """
    return httpx.ASGITransport(
        cast("Any", overheard(cast("ASGIApp", app))),
        client=client,
        root_path=root_path,
        raise_app_exceptions=raises,
    )


@contextlib.contextmanager
def bound(host: str, *, port: int = 0) -> Iterator[socket.socket]:
    """Provide a bound socket, so that no other process can take the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Pass IPPROTO_TCP, or asyncio leaves Nagle's algorithm on and responses wait up to 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        yield listener


def free_port() -> int:
    """Return a free port for a process that must know its address before it starts."""
    with bound("127.0.0.1") as listener:
        return int(listener.getsockname()[1])


class _Connection(Accepted):
    """A connection that does not wait for another request when the server stops."""

    def shutdown(self) -> None:
        super(Arriving, self).shutdown()


class _Server(uvicorn.Server):
    """A uvicorn server that reports its start, stops on an event, and leaves signals to pytest."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.started_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stop = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # SystemExit would end the complete test run
            self.should_exit = True
            self.started_up.set_exception(RuntimeError("the app did not start; see the log"))
        else:
            self.started_up.set_result(None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down like uvicorn, but without its sleeps of 0.1 seconds."""
        state = self.server_state
        loop = asyncio.get_running_loop()
        for listener in sockets or ():
            loop.remove_reader(listener)
        # After asyncio accepts a socket, it needs three turns until uvicorn knows the connection.
        # If the server is closed during these turns, the connection stays open.
        for _ in range(3):
            await asyncio.sleep(0)
        for open_one in (*self.servers, *(sockets or ())):
            open_one.close()
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110 - it has no event for it
                    await asyncio.sleep(0)
        except TimeoutError:
            for task in state.tasks:
                task.cancel()
        await self.lifespan.shutdown()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # creates the default headers
        await self.stop.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
