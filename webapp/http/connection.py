"""Delivery tracking: whether the last byte of a response was sent while the client was connected.

Sent does not mean received. `True` means that the server accepted the last byte before it noticed a
lost connection. `True` is also reported if the client disconnects at that moment, or if the network
drops the bytes. Code that acts on `True` therefore stores the result for a while. If the
application does not read a request's body to its end, the connection is not monitored, and a loss
is only noticed when the server's own `send` raises.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
# Each framework has its own types for these three arguments; this type accepts all of them.
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

_SCOPE_KEY = "elicit.wire"

_logger = logging.getLogger(__name__)


class ClientConnection:
    """A request and its response: whether the client disconnected before the last byte."""

    __slots__ = ("_at_break", "_at_end", "_is_broken", "_is_delivered", "pieces")

    def __init__(self) -> None:
        self.pieces = 0  # non-empty body chunks passed on while the client was connected
        self._is_broken = False
        self._is_delivered: bool | None = None
        self._at_break: list[Callable[[], None]] = []
        self._at_end: list[Callable[[bool], None]] = []

    @property
    def is_broken(self) -> bool:
        """True if the client disconnected before the last byte."""
        return self._is_broken

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the client disconnects before the last byte, or now if it did."""
        if self._is_broken:
            _call(callback)
        elif self._is_delivered is None:
            self._at_break.append(callback)

    def on_end(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` once when the exchange ends, or now if it has ended.

        The argument is True if the last byte went to a connection that was still open. True is
        reported with the last byte, not when the application returns. False is reported as soon as
        True is impossible.
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
        """Record the first result; later results are ignored."""
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
    """A connection whose end is reported by the writer of the stream."""

    __slots__ = ()

    def end(self, *, is_delivered: bool) -> None:
        self._end(is_delivered=is_delivered)

    def lose(self) -> None:
        """Report that the client disconnected before the answer."""
        self._break()


class ClientConnections:
    """The exchanges of one connection that carries several requests, by request id."""

    def __init__(self) -> None:
        self._unanswered: dict[int | str, StreamConnection] = {}

    def begin(self, request_id: int | str) -> None:
        replaced = self.pop(request_id)
        self._unanswered[request_id] = StreamConnection()
        if replaced is not None:  # the client reused a request id
            replaced.end(is_delivered=False)

    def find(self, request_id: int | str) -> ClientConnection | None:
        return self._unanswered.get(request_id)

    def pop(self, request_id: int | str) -> StreamConnection | None:
        """Return and forget a request's connection; the caller reports its end from now on."""
        return self._unanswered.pop(request_id, None)

    def break_all(self) -> None:
        """Report that the client is gone: answers that are not sent yet cannot be delivered."""
        while self._unanswered:
            self._unanswered.popitem()[1].lose()


def watched(app: ASGIApp) -> ASGIApp:
    """Wrap an ASGI app so that each HTTP request has a ClientConnection in its scope."""

    async def watching(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        exchange = _Exchange(receive, send)
        await exchange.run(app, {**scope, _SCOPE_KEY: exchange})

    return watching


def client_connection_of(scope: Mapping[str, Any]) -> ClientConnection | None:
    """Return the connection of this request, or None if the app is not wrapped in `watched`."""
    connection = scope.get(_SCOPE_KEY)
    return connection if isinstance(connection, ClientConnection) else None


class _Exchange(ClientConnection):
    """The connection with wrapped receive and send, and a task that listens for a disconnect."""

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
            # The app reads its body at its own pace; reading ahead would disable the server's
            # back-pressure.
            message = await self._hear()
            if message["type"] == "http.request" and not message.get("more_body", False):
                self._start_pump()
            return message
        pumped = await self._pumped.get()
        if isinstance(pumped, Exception):
            self._pumped.put_nowait(pumped)
            raise pumped
        if pumped["type"] == "http.disconnect":
            self._pumped.put_nowait(pumped)  # every later reader receives the disconnect too
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
            await asyncio.sleep(0)  # one turn of the event loop: an earlier loss is reported first
        finally:
            self._end(is_delivered=True)

    async def _hand_over(self, message: Message) -> None:
        try:
            await self._send(message)
            if message.get("body") and not self.is_broken:
                self.pieces += 1
        except OSError:  # raised by servers if the client is gone (ASGI 2.4)
            self._break()
            raise

    def _start_pump(self) -> None:
        if self._pump is None:
            self._pump = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            try:
                message = await self._hear()
            except Exception as error:  # noqa: BLE001 - raised again from the app's next receive
                self._pumped.put_nowait(error)
                return
            self._pumped.put_nowait(message)
            if message["type"] == "http.disconnect":
                return

    async def _hear(self) -> Message:
        """Receive a message, and detect whether a disconnect means that the client was lost.

        Some servers end `receive` after the response, which is no loss. `send` schedules `_mark`
        before the last byte. If the server knew of a loss before that, this task wakes before
        `_mark` runs. If the last send itself ended the exchange, this task wakes after `_mark`.
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
    """Return True if an HTTP/1 request has no body (RFC 9112, 6.3)."""
    if not str(scope.get("http_version", "")).startswith("1"):
        return False
    return not any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in scope["headers"]
    )


async def _stop(task: asyncio.Task[None]) -> None:
    """Cancel the task and wait until it has ended, even if the caller is cancelled too."""
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
