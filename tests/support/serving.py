"""An ASGI app on a real port of this machine, under uvicorn, in the test's own loop.

Or without a port; either way what it answers is heard (support/leaks.py). The socket is bound
before the app is made, so the app can know its own address; a failed start is raised where it is
awaited, and nothing is left running.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import httpx
import uvicorn

from tests.support.leaks import overheard
from webapp.http.connection import ASGIApp
from webapp.identity.accepting import Accepted


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve the app; yields its address, without a slash at the end."""
    async with serving_at(lambda _: app, host=host, port=port) as url:
        yield url


@contextlib.asynccontextmanager
async def serving_at(
    make: Callable[[str], ASGIApp], *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Serve an app that is made from its own address."""
    with bound(host, port=port) as listener:
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            overheard(make(url)),
            http=Accepted,
            log_config=None,
            access_log=False,
            proxy_headers=False,
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
            # Those that uvicorn cancelled because they held on too long.
            await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


def transport_to(
    app: object,
    *,
    client: tuple[str, int] = ("127.0.0.1", 123),
    root_path: str = "",
    raises: bool = True,
) -> httpx.ASGITransport:
    """A way to the app without a port; unless it `raises`, it answers as a real server does."""
    return httpx.ASGITransport(
        cast("Any", overheard(cast("ASGIApp", app))),
        client=client,
        root_path=root_path,
        raise_app_exceptions=raises,
    )


@contextlib.contextmanager
def bound(host: str, *, port: int = 0) -> Iterator[socket.socket]:
    """A socket that has its port, so that nobody can take it between choosing and listening."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio leaves Nagle's algorithm on and answers wait up to 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        yield listener


def free_port() -> int:
    """One that nobody has now, for a process that must know its address before it starts."""
    with bound("127.0.0.1") as listener:
        return int(listener.getsockname()[1])


class _Server(uvicorn.Server):
    """uvicorn that says when it is up, stops when told, and leaves the signals to pytest."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.started_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stop = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # it would end the whole test run
            self.should_exit = True
            self.started_up.set_exception(RuntimeError("the app did not start; see the log"))
        else:
            self.started_up.set_result(None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, without its sleeps of a tenth of a second."""
        state = self.server_state
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
        await self.on_tick(0)  # writes the default headers
        await self.stop.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
