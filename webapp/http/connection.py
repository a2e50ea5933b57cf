"""Delivery tracking: whether the last byte of a response was sent while the client was connected.

Sent does not mean received. `True` means that the server accepted the last byte before it noticed a
lost connection. `True` is also reported if the client disconnects at that moment, or if the network
drops the bytes. Code that acts on `True` therefore stores the result for a while. If the
application does not read a request's body to its end, the connection is not monitored, and a loss
is only noticed when the server's own `send` raises.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
# Each framework has its own types for these three arguments; this type accepts all of them.
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

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


def _call(callback: Callable[..., None], *arguments: bool) -> None:
    try:
        callback(*arguments)
    except Exception:
        _logger.exception("wire.callback_failed")


# Responses that a middleware sends itself, before any framework handles the request.

_COMMON = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


async def send_answer(
    send: Send,
    status: HTTPStatus,
    body: bytes,
    headers: Mapping[str, str],
    *,
    is_head: bool = False,
    prefix: str = "",
) -> None:
    """Send a full response, without the body for HEAD. `prefix` precedes ASGI's message types."""
    sent = {**_COMMON, "content-length": str(len(body)), **headers}
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
    start = {"type": f"{prefix}http.response.start", "status": int(status), "headers": pairs}
    await send(start)
    await send({"type": f"{prefix}http.response.body", "body": b"" if is_head else body})


def problem(status: HTTPStatus, *, detail: str, code: str) -> bytes:
    """Return a problem document (RFC 9457), sent as application/problem+json."""
    about = {"type": "about:blank", "title": status.phrase, "status": int(status)}
    return json.dumps({**about, "detail": detail, "code": code}).encode()
