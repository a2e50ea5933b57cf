"""What became of one exchange: did its last byte leave while the client was still there.

Written is not received. What is told here is that the server was handed the last byte before it
knew of a lost connection. A client that goes away in the same instant, or whose network swallows
the bytes, looks the same as one that got them; so whoever acts on `True` keeps the result for a
while. Where the app never reads a request's body to its end, nobody looks at the connection, and a
lost one is told only when the server's own `send` refuses.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
# Every framework has its own types for these three; this one fits them all.
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

_SCOPE_KEY = "elicit.wire"

_logger = logging.getLogger(__name__)


class ClientConnection:
    """One exchange: did the client go away, and did the last byte go out before that."""

    __slots__ = ("_at_break", "_at_end", "_is_broken", "_is_delivered", "pieces")

    def __init__(self) -> None:
        self.pieces = 0  # of the body, not empty, handed over while the client was there
        self._is_broken = False
        self._is_delivered: bool | None = None
        self._at_break: list[Callable[[], None]] = []
        self._at_end: list[Callable[[bool], None]] = []

    @property
    def is_broken(self) -> bool:
        """The client went away before the last byte."""
        return self._is_broken

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Call once when the client goes away before the last byte; at once if it has."""
        if self._is_broken:
            _call(callback)
        elif self._is_delivered is None:
            self._at_break.append(callback)

    def on_end(self, callback: Callable[[bool], None]) -> None:
        """Call once when the exchange is over; at once if it is.

        True: the last byte was handed to a connection that was still open. It comes with the last
        byte, not with the app's return; False comes as soon as nothing can make it True any more.
        """
        if self._is_delivered is None:
            self._at_end.append(callback)
        else:
            _call(callback, self._is_delivered)

    def _break(self) -> None:
        if self._is_delivered is not None:
            return
        self._is_broken = True
        self._is_delivered = False
        callbacks, self._at_break = self._at_break, []
        for callback in callbacks:
            _call(callback)
        self._finish()

    def _end(self, *, is_delivered: bool) -> None:
        """Keep the first verdict: a later one changes nothing."""
        if self._is_delivered is None:
            self._is_delivered = is_delivered
            self._finish()

    def _finish(self) -> None:
        assert self._is_delivered is not None
        callbacks, self._at_end = self._at_end, []
        self._at_break.clear()
        for callback in callbacks:
            _call(callback, self._is_delivered)


class StreamConnection(ClientConnection):
    """A wire whose end is told by whoever writes the stream."""

    __slots__ = ()

    def end(self, *, is_delivered: bool) -> None:
        self._end(is_delivered=is_delivered)

    def lose(self) -> None:
        """The client went away before the answer."""
        self._break()


class ClientConnections:
    """The exchanges of one connection that carries many at once, by the ids of their requests."""

    def __init__(self) -> None:
        self._unanswered: dict[int | str, StreamConnection] = {}

    def begin(self, request_id: int | str) -> None:
        replaced = self.take(request_id)
        self._unanswered[request_id] = StreamConnection()
        if replaced is not None:  # a client that uses an id twice
            replaced.end(is_delivered=False)

    def find(self, request_id: int | str) -> ClientConnection | None:
        return self._unanswered.get(request_id)

    def take(self, request_id: int | str) -> StreamConnection | None:
        """The wire of a request that has its answer, whose end the caller tells from now on."""
        return self._unanswered.pop(request_id, None)

    def break_all(self) -> None:
        """The client is gone: nothing that is not on its way by now will be delivered."""
        while self._unanswered:
            self._unanswered.popitem()[1].lose()


def watched(app: ASGIApp) -> ASGIApp:
    """Wrap an ASGI app so that each of its HTTP exchanges has a Wire in its scope."""

    async def watching(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        await exchange.run(app, {**scope, _SCOPE_KEY: exchange})

    return watching


def client_connection_of(scope: Mapping[str, Any]) -> ClientConnection | None:
    """Return the wire of this exchange, or None where no `watched` stands around the app."""
    wire = scope.get(_SCOPE_KEY)
    return wire if isinstance(wire, ClientConnection) else None


class _Exchange(ClientConnection):
    """The wire with the app's receive and send, and the pump that listens when the app does not."""

    def __init__(self, receive: Receive, send: Send) -> None:
        super().__init__()
        self._receive = receive
        self._send = send
        self._pump: asyncio.Task[None] | None = None
        self._pumped: asyncio.Queue[Message | Exception] = asyncio.Queue()
        self._has_trailers = False
        self._is_ending = False
        self._is_marked = False
        self._is_handed_over = False

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        try:
            if _has_no_body(scope):
                self._start_pump()
            await app(scope, self.receive, self.send)
        finally:
            try:
                if self._pump is not None:
                    await _stop(self._pump)
            finally:
                self._end(is_delivered=False)

    async def receive(self) -> Message:
        if self._pump is None:
            # The app reads its body at its own pace, or the server could not hold a fast sender
            # back.
            message = await self._hear()
            if message["type"] == "http.request" and not message.get("more_body", False):
                self._start_pump()
            return message
        pumped = await self._pumped.get()
        if isinstance(pumped, Exception):
            self._pumped.put_nowait(pumped)
            raise pumped
        if pumped["type"] == "http.disconnect":
            self._pumped.put_nowait(pumped)  # the end stays the end, for every reader
        return pumped

    async def send(self, message: Message) -> None:
        if not self._is_last(message):
            await self._hand_over(message)
            return
        self._is_ending = True
        asyncio.get_running_loop().call_soon(self._mark)
        await self._hand_over(message)
        self._is_handed_over = True
        try:
            await asyncio.sleep(0)  # one turn of the loop: a loss known before is heard first
        finally:
            self._end(is_delivered=True)

    async def _hand_over(self, message: Message) -> None:
        try:
            await self._send(message)
            if message.get("body") and not self.is_broken:
                self.pieces += 1
        except OSError:  # what a server raises for a client that is gone (ASGI 2.4)
            self._break()
            raise

    def _start_pump(self) -> None:
        if self._pump is None:
            self._pump = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            try:
                message = await self._hear()
            except Exception as error:  # noqa: BLE001 - it is the app's: raised from its next receive
                self._pumped.put_nowait(error)
                return
            self._pumped.put_nowait(message)
            if message["type"] == "http.disconnect":
                return

    async def _hear(self) -> Message:
        """Receive, and tell a client that left from a server that ends `receive` with the response.

        A server that knew of a loss before the last send has queued our waking ahead of the mark;
        where the send itself ended the exchange, we are woken behind it.
        """
        was_open = not self._is_ending
        try:
            message = await self._receive()
        except Exception:
            self._break()
            raise
        if message["type"] == "http.disconnect" and (
            not self._is_handed_over or (was_open and not self._is_marked)
        ):
            self._break()
        return message

    def _mark(self) -> None:
        self._is_marked = True

    def _is_last(self, message: Message) -> bool:
        match message["type"]:
            case "http.response.start":
                self._has_trailers = bool(message.get("trailers", False))
                return False
            case "http.response.body":
                return not message.get("more_body", False) and not self._has_trailers
            case "http.response.pathsend":
                return not self._has_trailers
            case "http.response.trailers":
                return not message.get("more_trailers", False)
            case _:
                return False


def _has_no_body(scope: Mapping[str, Any]) -> bool:
    """Tell whether nothing follows the head; only HTTP/1 says so in its headers (RFC 9112, 6.3)."""
    if not str(scope.get("http_version", "")).startswith("1"):
        return False
    return not any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in scope["headers"]
    )


async def _stop(task: asyncio.Task[None]) -> None:
    """Cancel and wait until it is over, even while we are cancelled ourselves."""
    task.cancel()
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


def _call(callback: Callable[..., None], *arguments: bool) -> None:
    try:
        callback(*arguments)
    except Exception:
        _logger.exception("wire.callback_failed")
