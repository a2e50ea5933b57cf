"""The HTTP server of this process: its socket, its recorded name, signals and graceful shutdown.

Risks: accounts, named secrets and approvals are stored by server name. So another server with the
same name would get access to the accounts, secrets and approvals of this server. The origin of a
name is therefore recorded when the name is first served. A server of another origin starts only
after the operator confirms that it is the same server.
"""

import asyncio
import contextlib
import gc
import logging
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

import uvicorn

from flows.errors import InvalidQuestion, StoreUnavailable, Unreadable
from webapp.app import open_app
from webapp.calls.replay import Replays
from webapp.command import (
    CommandRefused,
    must_be_unfenced,
    opened_store,
    store_refused,
    under_another_secret,
)
from webapp.connecting import utc_now
from webapp.http.exchange import ASGIApp, ClientConnections
from webapp.http.port import PortUnusable, bind, listen
from webapp.identity.accepting import LINGER_SECONDS, Accepted
from webapp.limits import Arrivals
from webapp.mcp.before import GateWithoutTool
from webapp.printing import printed
from webapp.records.owners import SERVICE, Owners, open_owners
from webapp.records.rows import Rows
from webapp.records.values import KnownServer
from webapp.sandbox.settings import Sandbox, new_sandbox
from webapp.service import Service
from webapp.settings.settings import DEFAULT_HOST, Settings
from webapp.stores import Conflict, Store


async def must_be_known(owners: Owners, *, name: str, place: str, now: datetime) -> None:
    """Record the origin of a new name. Raises CommandRefused if the name has another origin."""
    id = known_server_id(owners, name)
    fresh = KnownServer(id=id, owner=SERVICE, name=name, place=place, since=now)
    known = await _stored_or_new(owners, fresh)
    if known.place != place:
        raise CommandRefused(
            f"A server named {printed(name)!r} was served from {printed(known.place)} so far, but "
            f"this one is from {printed(place)}. It gets no access to the accounts, secrets and "
            "approvals stored under that name.",
            "If the code of the same server has moved, accept its new place, and nothing is lost: "
            f"elicit servers accept {shlex.quote(printed(name))} {shlex.quote(printed(place))}",
            "If it is a different server, give it its own name or its own ELICIT_STORE.",
        )


def known_server_id(owners: Owners, name: str) -> str:
    return owners.pepper.tag("server", name, size=18)


async def _stored_or_new(owners: Owners, fresh: KnownServer) -> KnownServer:
    """Return the stored record of the name, or store `fresh`."""
    rows = Rows(owners)
    found = await rows.read(KnownServer, owner=SERVICE, id=fresh.id)
    if found is None:
        try:
            await rows.write(fresh)
        except Conflict:  # another process was first
            found = await rows.read(KnownServer, owner=SERVICE, id=fresh.id)
    return found or fresh


GRACE_SECONDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Annex:
    """The sandbox and its own listening socket."""

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
    replays: Replays | None = None,
) -> None:
    """Serve until a signal arrives.

    Raises CommandRefused.

    `place` is the origin of the server. `ready` is called when the sockets listen. `options` are
    passed to the library's application. `sandbox` is a sandbox that another process serves. With
    `replays`, each tool's body runs again after each question.
    """
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(settings))
        sandbox = annex.sandbox if annex is not None else sandbox
        try:
            # Listen first: the application has task groups, which turn a refusal into a traceback.
            for each in (listener, *(() if annex is None else (annex.listener,))):
                listen(each)
        except PortUnusable as error:
            raise CommandRefused(str(error)) from error
        app, service = await opened_app(
            stack, settings, server, place=place, store=store, sandbox=sandbox, options=options
        )
        service.running_tools.replays = replays
        running = {listener: Pages(app, arrivals=settings.arrivals)}
        if annex is not None:
            running[annex.listener] = await outside_pages(stack, annex.sandbox, settings)
        stopping = asyncio.Event()

        def end() -> None:
            for pages in running.values():
                pages.stop()

        def stop() -> None:
            if stopping.is_set():  # second signal: do not wait for open calls
                end()
                end()
            stopping.set()

        stack.enter_context(stopped_by_signals(stop))
        # gc.freeze(): a full collection over start-up objects blocks the event loop.
        gc.collect()
        gc.freeze()
        ready()
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(
                drained(service, stopping, settings=settings, end=end, pages=running.values())
            )
            async with asyncio.TaskGroup() as serving:
                for its_listener, pages in running.items():
                    serving.create_task(pages.serve(sockets=[its_listener]))
            ending.cancel()


async def outside_pages(
    stack: contextlib.AsyncExitStack, sandbox: Sandbox, settings: Settings
) -> "Pages":
    """Return the server of the sandbox."""
    from webapp.sandbox.app import delivering_sandbox  # noqa: PLC0415 - most servers have none

    outside = await delivering_sandbox(stack, sandbox, clock=utc_now)
    return Pages(outside, arrivals=settings.arrivals)


async def opened_app(
    stack: contextlib.AsyncExitStack,
    settings: Settings,
    server: Any,
    *,
    place: str,
    store: Store,
    sandbox: Sandbox | None = None,
    connections: ClientConnections | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[ASGIApp, Service]:
    """Start the application and its service. They run until `stack` is closed.

    Raises CommandRefused.

    `place` is the origin of the server.
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
                connections=connections,
                sandbox=sandbox,
                built=services.append,
                options=options,
            )
        )
        return app, services[0]
    except (GateWithoutTool, InvalidQuestion) as error:
        raise CommandRefused(str(error), status=2) from error
    except Unreadable as error:
        raise under_another_secret(settings) from error
    except StoreUnavailable as error:
        raise store_refused(error) from error


def loop_factory() -> "Callable[[], asyncio.AbstractEventLoop] | None":
    """Return the factory of uvloop's event loop if it is installed; None for Python's own loop."""
    try:
        import uvloop  # noqa: PLC0415 - it has no wheel for every machine
    except ImportError:
        return None
    return uvloop.new_event_loop


async def drained(
    service: Service,
    stopping: asyncio.Event,
    *,
    settings: Settings,
    end: Callable[[], None],
    pages: "Collection[Pages]" = (),
) -> None:
    """Wait for the stop signal, answer held calls, let running calls finish, then call `end`.

    If one of `pages` has open requests at the signal, `end` is called LINGER_SECONDS after the
    last answer, because a client may open a new connection for its next request. For example, the
    client of the MCP SDK lists the tools after the first result of a tool. If it cannot connect,
    it raises an error, and the result is lost.
    """
    await stopping.wait()
    has_requests = any(each.server_state.tasks for each in pages)
    loop, grace = asyncio.get_running_loop(), settings.policies.grace
    ends_at = loop.time() + grace.total_seconds()
    await service.drain(within=grace)
    if has_requests:
        await asyncio.sleep(LINGER_SECONDS)
        # calls that arrived in the meantime
        await service.drain(within=timedelta(seconds=max(0, ends_at - loop.time())))
    end()


class Pages(uvicorn.Server):
    """A uvicorn server that stops on request and leaves signals and process exit to us."""

    def __init__(
        self, app: ASGIApp, *, arrivals: Arrivals, grace_seconds: int = GRACE_SECONDS
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("Any", partial(Accepted, arrivals=arrivals)),
                lifespan="off",
                proxy_headers=False,  # only the guard reads forwarded headers
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
        # Held calls and open event streams are cut off, which would be logged as errors.
        for logger in ("uvicorn.error", "mcp"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
        self.force_exit = self.should_exit  # True from the second call on
        self.should_exit = True


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Generator[None]:
    """Call `stop` on a signal within this block, even before serving has started."""
    loop = asyncio.get_running_loop()
    # only the main thread receives signals
    is_main = threading.current_thread() is threading.main_thread()
    # A closed terminal (SIGHUP) ends the server too, but held calls are still answered.
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
    """Bind a sandbox to the next port if it is free, else to any port. Raises CommandRefused."""
    port = listener.getsockname()[1] + 1
    try:
        try:
            annex = bind(DEFAULT_HOST, port)
        except (PortUnusable, OverflowError):
            annex = bind(DEFAULT_HOST, 0)
    except PortUnusable as error:
        raise CommandRefused(str(error)) from error
    with annex:
        url = f"http://{DEFAULT_HOST}:{annex.getsockname()[1]}"
        try:
            sandbox = new_sandbox(url=url, serves=settings.url)
        except ValueError as error:
            raise CommandRefused(f"ELICIT_URL: {error}", status=2) from error
        yield Annex(sandbox=sandbox, listener=annex)
