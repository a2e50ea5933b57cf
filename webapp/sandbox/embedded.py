"""The sandbox next to an application, on a port of its own, while the application is served.

`elicit serve` has a sandbox of its own; this module is for other ways to serve an application. Both
the sandbox and the application must be on loopback.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from datetime import datetime

import httpx
import uvicorn

from webapp.http.client import refuse_packed
from webapp.sandbox.app import SandboxApp
from webapp.sandbox.settings import Sandbox, new_sandbox

HOST = "127.0.0.1"


@asynccontextmanager
async def embedded_sandbox(
    *, serves: str, clock: Callable[[], datetime]
) -> AsyncGenerator[Sandbox]:
    """Serve a sandbox for the application at `serves`.

    Raises:
        ValueError: The application is not at an origin on loopback.
    """
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(socket.create_server((HOST, 0)))
        url = f"http://{HOST}:{listener.getsockname()[1]}"
        sandbox = new_sandbox(url=url, serves=serves)
        # The client delivers webhooks to this machine, where no server uses TLS.
        client = httpx.AsyncClient(
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            event_hooks={"response": [refuse_packed]},
        )
        await stack.enter_async_context(client)
        app = SandboxApp(sandbox, clock=clock, deliver=client.send)
        pages = _Pages(
            uvicorn.Config(
                app, lifespan="off", access_log=False, log_config=None, log_level="warning"
            )
        )
        serving = asyncio.create_task(pages.serve(sockets=[listener]))
        try:
            yield sandbox
        finally:
            pages.should_exit = pages.force_exit = True
            await serving


class _Pages(uvicorn.Server):
    """A uvicorn server that leaves signals to the server of the application."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
