"""Serving from the command line: the socket, the server, the signals, trouble in plain words."""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import ssl
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import httpx
import uvicorn

from flows.errors import Unreadable
from webapp.app import open_app
from webapp.cli.arguments import port
from webapp.cli.pair import pairing_of
from webapp.cli.servers import must_be_known
from webapp.command import (
    CommandRefused,
    opened_store,
    quieten,
    settings_for,
    under_another_secret,
)
from webapp.connecting import utc_now
from webapp.demo.server import demo_server
from webapp.http.client import refuse_packed
from webapp.http.connection import ASGIApp, ClientConnections
from webapp.http.port import PortUnusable, bind, listen
from webapp.identity.accepting import Accepted
from webapp.identity.local_peer import can_tell_users
from webapp.limits import Arrivals
from webapp.mcp.gated_names import GateWithoutTool
from webapp.mcp.naming import must_be_named
from webapp.printing import tell
from webapp.records.owners import open_owners
from webapp.sandbox.settings import Sandbox, new_sandbox
from webapp.server import find_server, place_of
from webapp.service import Service
from webapp.settings.settings import DEFAULT_HOST, DEFAULT_PORT, Settings
from webapp.stores import Store

DEMO = "the demo"  # what no path looks like
GRACE_SECONDS = 3


_FLEETING = "   (all that is kept in it is lost when this ends: for trying only)"


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve an MCPServer or FastMCP server together with the pages that its tools need. "
        "Settings are read from the environment; on your own machine none is needed."
    )
    parser.add_argument(
        "server",
        nargs="?",
        metavar="MODULE:ATTRIBUTE",
        help="where your server is, such as my_tools:mcp; left out: the demo tools",
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="default: %(default)s")
    parser.add_argument(
        "--port", type=port, default=DEFAULT_PORT, help="default: %(default)s; 0 takes a free one"
    )
    parser.add_argument(
        "--sandbox",
        action="store_true",
        help="with a sandbox beside it, on a port of its own, that plays the providers for your "
        "tools; the demo tools always have it",
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        return _serve_bound(
            stack, options.server, host=options.host, port=options.port, has_sandbox=options.sandbox
        )


def _serve_bound(
    stack: contextlib.ExitStack, name: str | None, *, host: str, port: int, has_sandbox: bool
) -> int:
    try:
        listener = stack.enter_context(bind(host, port))
    except PortUnusable as error:
        settings_for(os.environ, host=host, port=port)  # whatever is wrong with these comes first
        raise CommandRefused(str(error)) from error
    settings = settings_for(os.environ, host=host, port=listener.getsockname()[1])
    # The demo has one, where only this machine reaches it.
    has_sandbox = has_sandbox or (name is None and settings.is_local)
    annex = stack.enter_context(_annex(settings, listener)) if has_sandbox else None
    server = demo_server(settings.url) if name is None else load(name)
    quieten(log=settings.log)
    place = DEMO if name is None else place_of(name)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(settings, server, listener, annex=annex, place=place))


def loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """What makes the event loop: uvloop, where it is installed; None for Python's own."""
    try:
        import uvloop  # noqa: PLC0415 - it has no wheel for every machine
    except ImportError:
        return None
    return uvloop.new_event_loop


def load(name: str) -> Any:
    """The author's server. Raises Refused."""
    try:
        server = find_server(name)
    except (ImportError, TypeError) as error:
        raise CommandRefused(str(error)) from error
    except Exception as error:
        traceback.print_exc()
        raise CommandRefused(
            f"{name} could not be imported; what it raised stands above."
        ) from error
    try:
        must_be_named(server)
    except ValueError as error:
        raise CommandRefused(str(error)) from error
    return server


async def opened_app(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    server: Any,
    *,
    place: str,
    store: Store,
    sandbox: Sandbox | None = None,
    wires: ClientConnections | None = None,
) -> tuple[ASGIApp, Service]:
    """The application and its service, running until the stack is left. Raises Refused.

    `place` is where the server comes from.
    """
    services = list[Service]()
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
            )
        )
        return app, services[0]
    except GateWithoutTool as error:
        raise CommandRefused(str(error), status=2) from error
    except Unreadable as error:
        raise under_another_secret(settings) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Annex:
    """The sandbox and the port that it has to itself."""

    sandbox: Sandbox
    listener: socket.socket


async def _serve(
    settings: Settings, server: Any, listener: socket.socket, *, annex: Annex | None, place: str
) -> int:
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(settings))
        sandbox = annex.sandbox if annex is not None else None
        app, service = await opened_app(
            stack, settings, server, place=place, store=store, sandbox=sandbox
        )
        running = {listener: Pages(app, arrivals=settings.arrivals)}
        if annex is not None:
            from webapp.sandbox.app import SandboxApp  # noqa: PLC0415 - most have none

            client = await stack.enter_async_context(
                # It delivers webhooks to this machine, where nothing speaks TLS.
                httpx.AsyncClient(
                    verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                    trust_env=False,
                    event_hooks={"response": [refuse_packed]},
                )
            )
            outside = SandboxApp(annex.sandbox, clock=utc_now, deliver=client.send)
            running[annex.listener] = Pages(outside, arrivals=settings.arrivals)
        try:
            for its_listener in running:
                listen(its_listener)
        except PortUnusable as error:
            raise CommandRefused(str(error)) from error

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
        _announce(settings, server.name, is_demo=place == DEMO, sandbox=sandbox)
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(drained(service, told, settings=settings, end=end))
            async with asyncio.TaskGroup() as serving:
                for its_listener, pages in running.items():
                    serving.create_task(pages.serve(sockets=[its_listener]))
            ending.cancel()
    return 0


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
    caught = (signal.SIGINT, signal.SIGTERM)
    for number in caught:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _annex(settings: Settings, listener: socket.socket) -> Generator[Annex]:
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


def _announce(settings: Settings, name: str, *, is_demo: bool, sandbox: Sandbox | None) -> None:
    lines = [
        f"{name} is served.",
        f"  address  {settings.url}",
        f"  MCP      {settings.url}/mcp",
        f"  store    {settings.store}{_FLEETING if settings.store == 'memory:' else ''}",
    ]
    if sandbox is not None:
        lines.append(f"  sandbox  {sandbox.url}")
    if settings.is_local and settings.identity.issuer is None:
        if not can_tell_users():
            lines += pairing_of(settings)
        elif settings.identity.pairs_for_yes:
            lines += pairing_of(settings)[:1]  # clients are told apart here without a key
    lines.append("  stop     Ctrl+C")
    if is_demo:
        at = "" if settings.url == "http://127.0.0.1:8765" else f" --url {settings.url}"
        lines.append(f"  try      .venv/bin/elicit demo{at}   (in a second terminal)")
    tell("\n".join(lines))
