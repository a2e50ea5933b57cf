"""Accepted connections: the owner of each, and the limits of their number and reading time.

Risks: a client closes its connection as soon as it has sent the request. A later search for the
owner of its socket finds nothing, or another user's program on the same port. The kernel is
therefore asked immediately, and its answer counts only if the accepted socket is still open
afterwards: while the socket is open, no other program can use the client's port.

Risks: uvicorn limits the request head only with h11; with httptools, an endless head would be
buffered until the timeout. Trailers of a chunked body (RFC 9112, 7.1.2) would be appended to the
head of a request that is already being answered. A request for another host's absolute URL (RFC
9112, 3.2.2) would be answered as one for this host.
"""

import asyncio
import logging
import os
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from webapp.http.exchange import PEER_KEY, ASGIApp, Receive, Scope, Send
from webapp.identity.local_peer import (
    Peer,
    PeerConnection,
    is_peer_lookup_fast,
    loopback_of,
    uid_of_peer,
)
from webapp.limits import Arrivals

HEAD_BYTES_AT_MOST = 64 * 1024  # large enough for the cookies of all programs on 127.0.0.1


class _ReadHead(list[tuple[bytes, bytes]]):
    """The headers of a request whose head is complete. Trailers are ignored."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


class FastProtocol(HttpToolsProtocol):
    """An HTTP protocol in which exceptions of the callbacks become a 400 response."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # Number of bytes of the current head after its first chunk; None outside of a head.
        self._head_bytes: int | None = None

    def data_received(self, data: bytes) -> None:
        goes_on = self._head_bytes is not None
        super().data_received(data)
        if goes_on and self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_AT_MOST and not self.transport.is_closing():
                self._refuse()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        read_bytes = sum([len(name) + len(value) for name, value in self.headers], len(self.url))
        if read_bytes > HEAD_BYTES_AT_MOST:
            raise ValueError("the head is too long")
        if not self.url.startswith(b"/") and self.url != b"*":
            raise ValueError("the request target is not a path")
        super().on_headers_complete()
        self.headers = _ReadHead(self.headers)

    def _refuse(self) -> None:
        earlier: Any = self.cycle  # None before the first request
        if earlier is None or earlier.response_complete:
            self.send_400_response("The head of the request is too long.")
        else:
            self.transport.close()


if TYPE_CHECKING:  # for type checkers, in place of the installed parser
    from uvicorn.protocols.http.h11_impl import H11Protocol as HTTPProtocol

    _Base: TypeAlias = HTTPProtocol
else:
    _Base = object
    try:
        from webapp.identity.accepting import FastProtocol as HTTPProtocol
    except ImportError:  # httptools has no wheel for some machines
        from uvicorn.protocols.http.h11_impl import H11Protocol as HTTPProtocol

_Reading: TypeAlias = tuple[str, object]
_log = logging.getLogger(__name__)
LINGER_SECONDS = 0.5
_RETRY_SECONDS = 30
_TURNED_AWAY = {
    HTTPStatus.SERVICE_UNAVAILABLE: (
        "This server has as many open connections as it allows. Try again in a minute.\n"
    ),
    HTTPStatus.REQUEST_TIMEOUT: "The request did not arrive in time. Send it again.\n",
}
_ESTABLISHED = 1  # linux/tcp_states.h; the first byte of struct tcp_info


class Arriving(_Base):
    """A mixin for uvicorn's parsers: limits connections and stores their owner in the scope."""

    def __init__(self, *arguments: Any, arrivals: Arrivals | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._arrivals = arrivals or Arrivals()
        self._reading: _Reading | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        # the connection is between two requests: no byte of the next one has arrived
        self._is_idle = False
        self._is_ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        peer = None
        if is_peer_lookup_fast():
            peer = peer_of(transport)
            if peer is not None:
                self.app = _with_peer(self.app, peer)
        else:
            self.app = _with_peer(self.app, self.loop.create_task(_searched(transport)))
        is_own = peer is not None and peer.uid == os.getuid()
        at_most = self._arrivals.connections + (self._arrivals.own_user if is_own else 0)
        if len(self.connections) > at_most:
            _log.warning("connection.no_room", extra={"connections": len(self.connections)})
            self._turn_away(HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            self._update_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._close_timer is not None:
            self._close_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._is_idle = False
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        if self._is_ending and cycle is not None:
            cycle.keep_alive = False  # close the connection after this response
        self._update_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._idle_since = self.loop.time()
        self._is_idle = not self._has_begun()
        self._update_timer()

    def shutdown(self) -> None:
        """Close the connection, and let a client that used it a moment ago send one more request.

        A browser sends its next request on the connection of the previous request. If the server
        closed that connection at the same moment, the next request would get no response.
        """
        self._is_ending = True
        wait = self._idle_since + LINGER_SECONDS - self.loop.time()
        if wait > 0:
            self._close_timer = self.loop.call_later(wait, super().shutdown)
        else:
            super().shutdown()

    def _update_timer(self) -> None:
        """Start the time limit of the head or body that is being read, unless it runs already."""
        cycle: Any = self.cycle  # None before the first request
        reading: _Reading | None = None
        if getattr(self, "pipeline", None):
            pass  # uvicorn reads nothing while pipelined requests wait
        elif cycle is None or cycle.response_complete:
            # uvicorn ends a connection that stays idle.
            reading = None if self._is_idle else ("head", cycle)
        elif cycle.more_body:
            reading = ("body", cycle)
        if reading != self._reading:
            self._stop_timer()
            self._reading = reading
            if reading is not None:
                seconds = self._arrivals.reading.total_seconds()
                self._timer = self.loop.call_later(seconds, self._end_slow_request, reading)

    def _has_begun(self) -> bool:
        """Return True if a part of the next head arrived together with the previous request."""
        h11 = getattr(self, "conn", None)
        if h11 is not None:
            return bool(h11.trailing_data[0])
        return getattr(self, "_head_bytes", None) is not None

    def _end_slow_request(self, reading: "_Reading") -> None:
        if self.transport.get_protocol() is not self:
            return  # the connection was upgraded to a websocket
        self._update_timer()
        if self._reading == reading and not self.transport.is_closing():
            _log.info("request.too_slow", extra={"part": reading[0]})
            is_answered = reading[0] == "body" and self.cycle.response_started
            self._turn_away(None if is_answered else HTTPStatus.REQUEST_TIMEOUT)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn_away(self, status: HTTPStatus | None) -> None:
        if status is not None:
            text = _TURNED_AWAY[status]
            head = f"HTTP/1.1 {int(status)} {status.phrase}\r\n"
            head += f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(text)}\r\n"
            if status is HTTPStatus.SERVICE_UNAVAILABLE:
                head += f"retry-after: {_RETRY_SECONDS}\r\n"
            self.transport.write(f"{head}connection: close\r\n\r\n{text}".encode())
        self.transport.close()


class Accepted(Arriving, HTTPProtocol):
    """uvicorn's protocol, with the parser that is installed: uvicorn.run(app, http=Accepted)."""


def peer_of(transport: asyncio.BaseTransport) -> Peer | None:
    """Return the owner of a connection from this machine, or None for another machine."""
    connection = _connection_of(transport)
    return (
        None
        if connection is None
        else _peer_unless_closed(uid_of_peer(connection), connection, transport)
    )


async def _searched(transport: asyncio.BaseTransport) -> Peer | None:
    """Return the owner like `peer_of`, but search in a thread, because the search takes time."""
    connection = _connection_of(transport)
    if connection is None:
        return None
    uid = await asyncio.get_running_loop().run_in_executor(None, uid_of_peer, connection)
    return _peer_unless_closed(uid, connection, transport)


def _connection_of(transport: asyncio.BaseTransport) -> PeerConnection | None:
    ends = {
        "client": transport.get_extra_info("peername"),
        "server": transport.get_extra_info("sockname"),
    }
    if not all(isinstance(end, tuple) for end in ends.values()):
        return None  # a Unix socket
    return loopback_of(ends)


def _peer_unless_closed(
    uid: int | None, connection: PeerConnection, transport: asyncio.BaseTransport
) -> Peer:
    is_gone = not _is_connected(transport)
    return Peer(uid=None if is_gone else uid, is_gone=is_gone, connection=connection)


def _is_connected(transport: asyncio.BaseTransport) -> bool:
    """Return True if both ends are open.

    Some systems (macOS) do not report the state of a socket. On these systems, the peer address is
    checked instead. A socket that was reset has no peer address. A socket whose client closed its
    end still has a peer address, but then the client's port stays in use until we close our end.
    """
    # the socket may be closed, and another socket may have its file descriptor now
    if transport.is_closing():
        return False
    number = transport.get_extra_info("socket").fileno()
    with socket.fromfd(number, socket.AF_INET, socket.SOCK_STREAM) as same:
        if hasattr(socket, "TCP_INFO"):
            state = same.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
            return state[0] == _ESTABLISHED
        try:
            return bool(same.getpeername() == transport.get_extra_info("peername"))
        except OSError:
            return False


def _with_peer(app: ASGIApp, known: "Peer | asyncio.Task[Peer | None]") -> ASGIApp:
    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        peer = known if isinstance(known, Peer) else await asyncio.shield(known)
        if peer is not None:
            scope[PEER_KEY] = peer
        await app(scope, receive, send)

    return noting
