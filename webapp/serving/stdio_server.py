"""MCP over stdin and stdout, for clients that start servers themselves; the pages use a port.

Risks: a `print` in a tool ends up in the protocol. The process's own stdin and stdout are therefore
moved away before the author's code runs, so that prints go to stderr. Another risk is that a result
counts as delivered although it went into a broken pipe. The writing thread therefore reports
whether each write succeeded.
"""

import asyncio
import contextlib
import os
import queue
import socket
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Self

import anyio
import mcp_types as types
from mcp.shared.message import ServerMessageMetadata, SessionMessage

from flows.errors import Unreadable
from webapp.command import CommandRefused, opened_store, settings_for, under_another_secret
from webapp.http.exchange import ClientConnections
from webapp.http.port import PORT_OPTION, PortUnusable, SharedPort, listen, listening
from webapp.mcp.tools import is_fastmcp, low_level_of
from webapp.printing import print_text
from webapp.records.owners import open_owners
from webapp.serving.announcing import has_no_provider
from webapp.serving.http_server import (
    Annex,
    Pages,
    annex_of,
    drained,
    opened_app,
    outside_pages,
    stopped_by_signals,
)
from webapp.settings.settings import DEFAULT_HOST, Settings

_GRACE_SECONDS = 1
_FLUSH_SECONDS = 1.0
_PIECE_BYTES = 64 * 1024


class _Open:
    """A side of the connection, as a context manager.

    Leaving the context closes nothing: the end of the process closes both sides.
    """

    async def aclose(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class Incoming(_Open):
    """The client's messages, read in a thread because reading can block for ever."""

    def __init__(self, connections: ClientConnections) -> None:
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._lines = asyncio.Queue[bytes | None]()

    def start(self, source: int) -> None:
        threading.Thread(target=self._listen, args=(source,), daemon=True).start()

    def end(self) -> None:
        """Stop reading: the library ends the held calls and returns."""
        self._lines.put_nowait(None)

    async def receive(self) -> SessionMessage | Exception:
        line = await self._lines.get()
        if line is None:
            self.end()  # the next `receive` must end too
            raise anyio.EndOfStream
        try:
            message = types.jsonrpc_message_adapter.validate_json(
                line.decode("utf-8", "replace"), by_name=False
            )
        except ValueError as error:
            return error
        if not isinstance(message, types.JSONRPCRequest):
            return SessionMessage(message)
        self._connections.begin(message.id)
        forget = partial(self._forget, message.id)
        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=forget))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def _forget(self, request_id: int | str) -> None:
        connection = self._connections.pop(request_id)
        if connection is not None:
            connection.end(is_delivered=False)

    def _listen(self, source: int) -> None:
        begun = bytearray()
        # RuntimeError: the event loop is closed, because the process is ending
        with contextlib.suppress(RuntimeError):
            with contextlib.suppress(OSError):
                while piece := os.read(source, _PIECE_BYTES):
                    begun += piece
                    if b"\n" in piece:
                        *lines, begun = begun.split(b"\n")
                        for line in lines:
                            self._loop.call_soon_threadsafe(self._lines.put_nowait, bytes(line))
            if begun:
                self._loop.call_soon_threadsafe(self._lines.put_nowait, bytes(begun))
            self._loop.call_soon_threadsafe(self.end)


class Outgoing(_Open):
    """The server's messages, written in a thread because a client that does not read blocks."""

    def __init__(self, connections: ClientConnections, *, on_broken: Callable[[], None]) -> None:
        self._connections = connections
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._pieces = queue.SimpleQueue[tuple[bytes, asyncio.Future[bool]]]()
        self._unwritten = set[asyncio.Future[bool]]()

    def start(self, target: int) -> None:
        threading.Thread(target=self._write_pieces, args=(target,), daemon=True).start()

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message.

        Raises anyio.BrokenResourceError if the client no longer reads.

        Cancelling does not undo a write.
        """
        message = item.message
        written = self._loop.create_future()
        self._unwritten.add(written)
        written.add_done_callback(self._unwritten.discard)
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            connection = self._connections.pop(message.id) if message.id is not None else None
            if connection is not None:
                written.add_done_callback(lambda _: connection.end(is_delivered=written.result()))
        text = message.model_dump_json(by_alias=True, exclude_unset=True)
        self._pieces.put((text.encode() + b"\n", written))
        await asyncio.wait({written})
        if not written.result():
            raise anyio.BrokenResourceError

    async def flush(self) -> None:
        """Wait until everything is written, or until a time limit if the client does not read."""
        if self._unwritten:
            await asyncio.wait(self._unwritten, timeout=_FLUSH_SECONDS)
        for written in tuple(self._unwritten):
            written.set_result(False)

    def _write_pieces(self, target: int) -> None:
        is_open = True
        # RuntimeError: the event loop is closed, because the process is ending
        with contextlib.suppress(RuntimeError):
            while True:
                piece, written = self._pieces.get()
                try:
                    while piece and is_open:
                        piece = piece[os.write(target, piece) :]
                except OSError:
                    is_open = False
                self._loop.call_soon_threadsafe(self._settle, written, is_open)

    def _settle(self, written: asyncio.Future[bool], is_written: bool) -> None:  # noqa: FBT001
        if not written.done():
            written.set_result(is_written)
        if not is_written:
            self._on_broken()


def redirect_stdio() -> tuple[int, int]:
    """Return private copies of stdin and stdout, and redirect the standard descriptors.

    All other code reads an empty stdin, and its output to stdout goes to stderr. The redirection is
    at system level, so it also applies to programs that a tool starts.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        _print(
            "This command speaks MCP on stdin and stdout, and an MCP client has to start it; to "
            "stop: Ctrl+D."
        )
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)  # as stderr is
    return source, target


def must_be_local(settings: Settings) -> None:
    """Raise CommandRefused if ELICIT_URL is not on this machine."""
    if not settings.is_local:
        raise CommandRefused(
            f"ELICIT_URL: {settings.url} is not on this machine, but a server on stdin and stdout "
            "serves its pages here. Unset it, or use `elicit serve`.",
            status=2,
        )


def own_pages(stack: contextlib.ExitStack, *, port: int) -> tuple[Settings, socket.socket, Annex]:
    """Open this process's pages and sandbox, on `port` if free. Raises CommandRefused."""
    own = stack.enter_context(_own_port(port))
    settings = settings_for(os.environ, port=own.getsockname()[1])
    return settings, own, stack.enter_context(annex_of(settings, own))


def _own_port(port: int) -> socket.socket:
    """Return a socket on `port` if it is free, else on another. Raises CommandRefused."""
    try:
        try:
            return listening(DEFAULT_HOST, port)
        except PortUnusable:
            if os.environ.get("ELICIT_URL"):
                raise
            return listening(DEFAULT_HOST, 0)
    except PortUnusable as error:
        raise CommandRefused(str(error)) from error


async def serve_stdio(
    settings: Settings,
    server: Any,
    streams: tuple[int, int],
    *,
    port: int,
    place: str,
    annex: Annex | None = None,
    own: socket.socket | None = None,
    option: str = PORT_OPTION,
) -> None:
    """Serve until the client disconnects or a signal arrives.

    Raises CommandRefused.

    `streams` are the descriptors to read and write. `place` is the origin of the server. The pages
    are served on the listening socket `own`, or on `port`. If another of our processes owns the
    port, that process serves the pages until this process can take the port over. `option` is the
    command-line option that sets the port.
    """
    inner = low_level_of(server)
    inner.lifespan = _entered_once(inner.lifespan)
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened_store(settings))
        try:
            owners = await open_owners(store=store, ring=settings.ring)
            shared = SharedPort(
                DEFAULT_HOST, port, url=settings.url, pepper=owners.pepper, option=option
            )
            listener = own or await shared.own_or_find()
            if annex is not None:
                listen(annex.listener)
        except Unreadable as error:
            raise under_another_secret(settings) from error
        except PortUnusable as error:
            raise CommandRefused(str(error)) from error
        if listener is not None:
            stack.enter_context(listener)
        connections = ClientConnections()
        sandbox = annex.sandbox if annex is not None else None
        app, service = await opened_app(
            stack,
            settings,
            server,
            place=place,
            store=store,
            sandbox=sandbox,
            connections=connections,
        )
        if own is None:
            service.links.prove = shared.prove
        pages = Pages(app, arrivals=settings.arrivals, grace_seconds=_GRACE_SECONDS)
        incoming = Incoming(connections)
        outgoing = Outgoing(connections, on_broken=incoming.end)
        stopping = asyncio.Event()
        stack.enter_context(stopped_by_signals(stopping.set))
        async with asyncio.TaskGroup() as group:
            ending = group.create_task(
                drained(service, stopping, settings=settings, end=incoming.end)
            )
            outside = await _served_outside(stack, group, annex, settings)
            serving = group.create_task(_serve_pages(pages, listener, settings, shared=shared))
            if annex is None and has_no_provider(settings):
                _print("No provider of accounts or payments is set up; --sandbox simulates them.")
            incoming.start(streams[0])
            outgoing.start(streams[1])
            try:
                _name_transport(server)
                await inner.run(incoming, outgoing, inner.create_initialization_options())
            finally:
                ending.cancel()
                connections.break_all()
                await outgoing.flush()
                # let calls that are still running finish
                await service.drain(within=settings.policies.grace)
            for each in (pages, *outside):
                each.stop()
            if not pages.started:
                serving.cancel()


async def _served_outside(
    stack: contextlib.AsyncExitStack,
    group: asyncio.TaskGroup,
    annex: Annex | None,
    settings: Settings,
) -> list[Pages]:
    """Serve the sandbox, if there is one. Return the servers that were started."""
    if annex is None:
        return []
    pages = await outside_pages(stack, annex.sandbox, settings)
    group.create_task(pages.serve(sockets=[annex.listener]))
    _print(f"The sandbox at {annex.sandbox.url} simulates the providers that are not set up.")
    return [pages]


async def _serve_pages(
    pages: Pages, listener: socket.socket | None, settings: Settings, *, shared: SharedPort
) -> None:
    if listener is None:
        _print(f"The pages at {settings.url} are served by another of your processes.")
        listener = await shared.take_over(say=_print)
    _print(f"The pages at {settings.url} are served by this process.")
    with listener:
        await pages.serve(sockets=[listener])


def _entered_once(
    lifespan: Callable[[Any], AbstractAsyncContextManager[Any]],
) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """Share the author's lifespan between HTTP, which enters it first, and stdio."""
    entered: list[Any] = []

    @contextlib.asynccontextmanager
    async def once(server: Any) -> AsyncGenerator[Any]:
        if entered:
            yield entered[0]
            return
        async with lifespan(server) as state:
            entered.append(state)
            try:
                yield state
            finally:
                entered.clear()

    return once


def _name_transport(server: Any) -> None:
    """Tell FastMCP the transport, as its own stdio runner does. Callers then count as local."""
    if is_fastmcp(server):
        from fastmcp.server.context import set_transport  # noqa: PLC0415 - an optional library

        set_transport("stdio")


def _print(sentence: str) -> None:
    print_text(f"elicit: {sentence}", out=sys.stderr)
