"""Serving over HTTP in this process: the socket, the server, the signals, an end that waits."""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import httpx
import uvicorn

from flows.errors import StoreUnavailable, Unreadable
from webapp.app import open_app
from webapp.command import (
    CommandRefused,
    must_be_unfenced,
    opened_store,
    store_refused,
    under_another_secret,
)
from webapp.connecting import utc_now
from webapp.http.client import refuse_packed
from webapp.http.connection import ASGIApp, ClientConnections
from webapp.http.port import PortUnusable, bind, listen
from webapp.identity.accepting import Accepted
from webapp.limits import Arrivals
from webapp.mcp.gated_names import GateWithoutTool
from webapp.records.owners import open_owners
from webapp.sandbox.settings import Sandbox, new_sandbox
from webapp.service import Service
from webapp.serving.known_servers import must_be_known
from webapp.settings.settings import DEFAULT_HOST, Settings
from webapp.stores import Store

GRACE_SECONDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Annex:
    """The sandbox and the port that it has to itself."""

    sandbox: Sandbox
    listener: socket.socket


async def serve_http(
    settings: Settings,
    server: Any,
    listener: socket.socket,
    *,
    place: str,
    ready: Callable[[], None],
    annex: Annex | None = None,
    sandbox: Sandbox | None = None,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Serve until a signal comes; `place` is where the server comes from. Raises Refused.

    `ready` is called when the sockets listen; `options` are for the library's application, and
    `sandbox` is one that another process serves.
    """
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(settings))
        sandbox = annex.sandbox if annex is not None else sandbox
        try:
            # Before the application: in its task groups a refusal would become a traceback.
            for each in (listener, *(() if annex is None else (annex.listener,))):
                listen(each)
        except PortUnusable as error:
            raise CommandRefused(str(error)) from error
        app, service = await opened_app(
            stack, settings, server, place=place, store=store, sandbox=sandbox, options=options
        )
        running = {listener: Pages(app, arrivals=settings.arrivals)}
        if annex is not None:
            running[annex.listener] = await outside_pages(stack, annex.sandbox, settings)
        told = asyncio.Event()

        def end() -> None:
            for pages in running.values():
                pages.stop()

        def stop() -> None:
            if told.is_set():  # told twice: nobody is waited for
                end()
                end()
            told.set()

        stack.enter_context(stopped_by_signals(stop))
        # What stands by now stays: a collection that looks through it stops the loop for long.
        gc.collect()
        gc.freeze()
        ready()
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(drained(service, told, settings=settings, end=end))
            async with asyncio.TaskGroup() as serving:
                for its_listener, pages in running.items():
                    serving.create_task(pages.serve(sockets=[its_listener]))
            ending.cancel()


async def outside_pages(
    stack: contextlib.AsyncExitStack, sandbox: Sandbox, settings: Settings
) -> "Pages":
    """What serves the sandbox."""
    from webapp.sandbox.app import SandboxApp  # noqa: PLC0415 - most have none

    client = await stack.enter_async_context(
        # It delivers webhooks to this machine, where nothing speaks TLS.
        httpx.AsyncClient(
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            event_hooks={"response": [refuse_packed]},
        )
    )
    outside = SandboxApp(sandbox, clock=utc_now, deliver=client.send)
    return Pages(outside, arrivals=settings.arrivals)


async def opened_app(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    server: Any,
    *,
    place: str,
    store: Store,
    sandbox: Sandbox | None = None,
    wires: ClientConnections | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[ASGIApp, Service]:
    """The application and its service, running until the stack is left. Raises Refused.

    `place` is where the server comes from.
    """
    services = list[Service]()
    await must_be_unfenced(store)
    try:
        owners = await open_owners(store=store, ring=settings.ring)
        await must_be_known(owners, name=str(server.name), place=place, now=utc_now())
        app = await stack.enter_async_context(
            open_app(
                settings,
                server,
                store=store,
                wires=wires,
                sandbox=sandbox,
                built=services.append,
                options=options,
            )
        )
        return app, services[0]
    except GateWithoutTool as error:
        raise CommandRefused(str(error), status=2) from error
    except Unreadable as error:
        raise under_another_secret(settings) from error
    except StoreUnavailable as error:
        raise store_refused(error) from error


def loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """What makes the event loop: uvloop, where it is installed; None for Python's own."""
    try:
        import uvloop  # noqa: PLC0415 - it has no wheel for every machine
    except ImportError:
        return None
    return uvloop.new_event_loop


async def drained(
    service: Service, told: asyncio.Event, *, settings: Settings, end: Callable[[], None]
) -> None:
    """When told to stop: answer the calls that are held, let those at work finish, then end."""
    await told.wait()
    await service.drain(within=settings.policies.grace)
    end()


class Pages(uvicorn.Server):
    """uvicorn that stops when told, and leaves it to us to end the process after the store."""

    def __init__(
        self, app: ASGIApp, *, arrivals: Arrivals, grace_seconds: int = GRACE_SECONDS
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("Any", partial(Accepted, arrivals=arrivals)),
                lifespan="off",
                proxy_headers=False,  # the guard alone reads forwarded headers
                server_header=False,
                access_log=False,
                log_config=None,
                log_level="warning",
                timeout_keep_alive=int(arrivals.idle.total_seconds()),
                timeout_graceful_shutdown=grace_seconds,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    def stop(self) -> None:
        # Calls that are held and pages that listen are cut off, which would be reported as errors.
        for logger in ("uvicorn.error", "mcp"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        self.force_exit = self.should_exit  # told twice
        self.should_exit = True


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Generator[None]:
    """Within it a signal ends the serving, also one that comes before the serving began."""
    loop = asyncio.get_running_loop()
    is_main = threading.current_thread() is threading.main_thread()  # no other thread gets any
    # A terminal that is closed (SIGHUP) is a reason to end, and none to drop what is held.
    caught = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if is_main else ()
    for number in caught:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def annex_of(settings: Settings, listener: socket.socket) -> Generator[Annex]:
    """A sandbox on the port after that one if it is free, else on another. Raises Refused."""
    port = listener.getsockname()[1] + 1
    try:
        try:
            beside = bind(DEFAULT_HOST, port)
        except (PortUnusable, OverflowError):
            beside = bind(DEFAULT_HOST, 0)
    except PortUnusable as error:
        raise CommandRefused(str(error)) from error
    with beside:
        url = f"http://{DEFAULT_HOST}:{beside.getsockname()[1]}"
        try:
            sandbox = new_sandbox(url=url, serves=settings.url)
        except ValueError as error:
            raise CommandRefused(f"ELICIT_URL: {error}", status=2) from error
        yield Annex(sandbox=sandbox, listener=beside)
