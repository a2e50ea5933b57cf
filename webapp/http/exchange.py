"""The HTTP exchange: the facts of its request, read once, and the wrapper of its response.

Every layer behind the edge uses the same facts. A layer that needs something in the response sets
it in the exchange before the response starts, so only one function stands between a framework's
`send` and the server's.

Risks: the facts belong to another request, because another application put them into the scope, or
a layer in between changed the request. The facts of a scope are therefore used only if everything
that they were read from is still in the scope, unchanged. Otherwise the scope is read again.

The exchange also tracks delivery: whether the last byte of the response was sent while the client
was connected. Sent does not mean received. `True` means that the server accepted the last byte
before it noticed a lost connection. `True` is also reported if the client disconnects at that
moment, or if the network drops the bytes. Code that acts on `True` therefore stores the result for
a while. If the application does not read a request's body to its end, the connection is not
monitored, and a loss is only noticed when the server's own `send` raises.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeAlias

from webapp.http.address import Authority

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
# Each framework has its own types for these three arguments; this type accepts all of them.
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

# the name in the log lines of earlier versions
_logger = logging.getLogger("webapp.http.connection")


class ClientConnection:
    """A request and its response. Records if the client disconnects before the last byte."""

    __slots__ = ("_at_break", "_at_end", "_is_delivered", "is_broken", "pieces")

    def __init__(self) -> None:
        self.pieces = 0  # non-empty body chunks passed on while the client was connected
        self.is_broken = False  # True if the client disconnected before the last byte
        self._is_delivered: bool | None = None
        self._at_break: list[Callable[[], None]] = []
        self._at_end: list[Callable[[bool], None]] = []

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the client disconnects before the last byte.

        If the client has already done so, call `callback` now.
        """
        if self.is_broken:
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

    def on_arrival(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` once when the exchange ends, with True if the result has arrived.

        Call this method when the result is known and not sent yet. A client may close a stream once
        it has the result, before the empty last chunk, so one chunk is enough.
        """
        before = self.pieces
        self.on_end(lambda is_delivered: callback(is_delivered or self.pieces > before))

    def _break(self) -> None:
        if self._is_delivered is not None:
            return
        self.is_broken = True
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


# The scope key of the owner of the connection, see webapp.identity.local_peer.
PEER_KEY = "elicit.peer"
# Set in the scope of a request that a configured proxy passed on: such a request does not come from
# this machine's user.
PROXIED_KEY = "elicit.proxied"
_KEY = "elicit.exchange"
# Limits for reading the rest of a body if the request is refused before its body was read.
_UNREAD_BYTES_AT_MOST = 64 * 1024
_UNREAD_SECONDS_AT_MOST = 1.0


class Facts:
    """The facts of a request.

    `headers` has the values of each header, by its name in lower case. `cookies` belongs to
    webapp.http.browser, which reads the cookies when a page first needs them. `judged` belongs to
    webapp.identity.local_peer: the object that decided whether the sender is local, and its
    decision. `caller` belongs to webapp.mcp.callers: the object that identified the caller, the
    token, and the caller.
    """

    __slots__ = ("_host", "caller", "cookies", "headers", "judged", "peer", "read")

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.headers: dict[bytes, list[str]] = {}
        for name, value in scope["headers"]:
            self.headers.setdefault(name.lower(), []).append(value.decode("latin-1").strip())
        self.cookies: Mapping[str, str] | None = None
        self._host: tuple[str, Authority | None] | None = None
        self.note(scope)

    def note(self, scope: Mapping[str, Any]) -> None:
        """Note what the facts are read from, because the edge or a session layer has changed it."""
        self.judged: tuple[object, str | None] | None = None
        self.caller: tuple[object, object, object] | None = None
        pairs = [(name, value) for name, value in scope["headers"]]
        ends = [tuple(end) if (end := scope.get(key)) else None for key in ("client", "server")]
        self.read = (pairs, *ends, scope.get("http_version"), scope.get(PROXIED_KEY))
        self.peer = scope.get(PEER_KEY)

    def replaced(self, scope: Scope, name: bytes, value: str) -> Scope:
        """Return the request with another value of a header, and change this fact too."""
        written = value.encode("latin-1")
        pairs = [(key, written if key.lower() == name else old) for key, old in scope["headers"]]
        scope = {**scope, "headers": pairs}
        self.headers[name] = [value]
        self.note(scope)
        return scope

    def host(self, *, scheme: str) -> Authority | None:
        """Return the authority in the Host header; None if missing, repeated or malformed."""
        if self._host is None or self._host[0] != scheme:
            hosts = self.headers.get(b"host", [])
            found = Authority.parse(hosts[0], scheme=scheme) if len(hosts) == 1 else None
            self._host = scheme, found
        return self._host[1]


class Exchange(ClientConnection):
    """A request and its response. `facts` describe the request as the application sees it.

    `segment` is the first segment of its path, below the root path.

    For the response, `added` are headers to add. `root_path` is put before redirects to our own
    paths, and `suffix` is a header's name and the text to put after its value. `status` is None
    until the response starts.

    `has_unread_body` is True until `next_message` has received the last part of the request's body.
    If it is still True when the client is refused or redirected, a short body is read before the
    response starts. Otherwise a proxy written in Go, such as Caddy, sometimes drops the response,
    because it starts before the proxy has sent the whole request.

    In `run`, the exchange also finds out if the client disconnected before the last byte.
    """

    __slots__ = (
        *("_has_trailers", "_is_ending", "_is_handed_over", "_is_marked", "_pump", "_pumped"),
        *("_has_no_body", "_has_pumped", "_is_hearing", "_read_ahead"),
        *("_receive", "_send", "added", "facts", "status"),
        *("has_unread_body", "is_watched", "root_path", "segment", "suffix"),
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin the exchange, and store it in the scope for the layers behind."""
        super().__init__()
        self._receive = receive
        self._send = send
        self.facts = Facts(scope)
        self.added: list[tuple[bytes, bytes]] = []
        self.segment = ""
        self.root_path: bytes = b""
        self.suffix: tuple[bytes, bytes] = b"", b""
        self.status: int | None = None
        self.is_watched = False
        headers = self.facts.headers
        is_http1 = str(scope.get("http_version", "")).startswith("1")
        lengths = headers.get(b"content-length", [])
        has_body = b"transfer-encoding" in headers or any(size != "0" for size in lengths)
        self._has_no_body = is_http1 and not has_body
        # A client that sends Expect waits for permission to send the body.
        self.has_unread_body = is_http1 and has_body and b"expect" not in headers
        self._is_hearing = False
        self._read_ahead: list[Message] = []
        self._pump: asyncio.Task[None] | None = None
        self._has_trailers = self._is_ending = self._is_marked = self._is_handed_over = False
        scope[_KEY] = self

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Let `app` answer, and watch if the client disconnects before the last byte."""
        self.is_watched = True
        # not a Queue, because its three deques would use memory in each open call
        self._pumped: list[Message | Exception] = []
        self._has_pumped = asyncio.Event()
        try:
            if self._has_no_body:
                self._pump = asyncio.create_task(self._listen())
            await app(scope, self.receive, self.send)
        finally:
            try:
                if self._pump is not None and self._is_handed_over and self._is_delivered is None:
                    await asyncio.sleep(0)  # let the pump report an earlier loss first
            finally:
                try:
                    if self._pump is not None:
                        await _stop(self._pump)
                finally:
                    if not self._is_handed_over:  # otherwise `_deliver` reports the end
                        self._end(is_delivered=False)

    async def receive(self) -> Message:
        """Receive the next message in `run`."""
        if self._pump is None:
            # The app reads its body at its own pace; reading ahead would disable the server's
            # back-pressure.
            message = await self.next_message()
            if message["type"] == "http.request" and not message.get("more_body", False):
                self._pump = asyncio.create_task(self._listen())
            return message
        while not self._pumped:
            await self._has_pumped.wait()
        # Every later reader receives the error or the disconnect too.
        if isinstance(pumped := self._pumped[0], Exception):
            raise pumped
        if pumped["type"] != "http.disconnect":
            del self._pumped[0]
            if not self._pumped:
                self._has_pumped.clear()
        return pumped

    async def send(self, message: Message) -> None:
        is_last = False
        if message["type"].endswith("http.response.start"):
            self.status = status = int(message["status"])
            self._has_trailers = bool(message.get("trailers", False))
            if self.has_unread_body and status >= HTTPStatus.MULTIPLE_CHOICES:
                await self._read_rest()
            if self.added or self.root_path or self.suffix[0]:
                message = self._changed(message)
        elif self.is_watched and (is_last := self._is_last(message)):
            self._is_ending = True
            asyncio.get_running_loop().call_soon(self._mark)
        try:
            await self._send(message)
            if message.get("body") and not self.is_broken:
                self.pieces += 1
        except OSError:  # raised by servers if the client is gone (ASGI 2.4)
            self._break()
            raise
        if is_last:
            self._is_handed_over = True
            # in the next turn of the event loop: an earlier loss is reported first
            asyncio.get_running_loop().call_soon(self._deliver)

    def _changed(self, message: Message) -> Message:
        """Return the first message of the response with this exchange's changes."""
        suffixed, suffix = self.suffix
        headers = list[tuple[bytes, bytes]]()
        for name, value in message.get("headers", ()):
            if (lower := name.lower()) == suffixed:
                headers.append((name, value + suffix))
            elif lower == b"location" and value.startswith(b"/"):
                headers.append((name, self.root_path + value))
            else:
                headers.append((name, value))
        return {**message, "headers": headers + self.added}

    async def _listen(self) -> None:
        while True:
            message: Message | Exception
            try:
                message = await self.next_message()
            except Exception as error:  # noqa: BLE001 - raised again from the app's next receive
                message = error
            self._pumped.append(message)
            self._has_pumped.set()
            if isinstance(message, Exception) or message["type"] == "http.disconnect":
                return

    async def next_message(self) -> Message:
        """Receive the next message, and detect whether a disconnect means that the client was lost.

        Some servers let `receive` return a disconnect after each complete response, which is no
        loss. `send` schedules `_mark` before the last byte. If the server knew of a loss before
        that, this task wakes before `_mark` runs. If the last send itself ended the exchange, this
        task wakes after `_mark`.
        """
        was_open = not self._is_ending
        self._is_hearing = True
        try:
            message = self._read_ahead.pop(0) if self._read_ahead else await self._receive()
        except Exception:
            self._break()
            raise
        finally:
            self._is_hearing = False
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.has_unread_body = False
        if message["type"] == "http.disconnect" and (
            not self._is_handed_over or (was_open and not self._is_marked)
        ):
            self._break()
        return message

    async def _read_rest(self) -> None:
        """Read a short body to its end, and put what was read in front of the next messages."""
        # If the application is receiving at this moment, it reads the body itself.
        if self._is_hearing or _is_too_long(self.facts.headers):
            return
        size = 0
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_UNREAD_SECONDS_AT_MOST):
                while self.has_unread_body and size < _UNREAD_BYTES_AT_MOST:
                    message = await self._receive()
                    self._read_ahead.append(message)
                    if message["type"] != "http.request":
                        return
                    size += len(message.get("body", b""))
                    self.has_unread_body = bool(message.get("more_body", False))

    def _mark(self) -> None:
        self._is_marked = True

    def _deliver(self) -> None:
        self._end(is_delivered=True)

    def _is_last(self, message: Message) -> bool:
        match message["type"]:
            case "http.response.body":
                return not message.get("more_body", False) and not self._has_trailers
            case "http.response.pathsend":
                return not self._has_trailers
            case "http.response.trailers":
                return not message.get("more_trailers", False)
            case _:
                return False


def facts_of(scope: Mapping[str, Any]) -> Facts:
    """Return the facts that the edge read, or read them again if the request has changed since."""
    exchange, get = scope.get(_KEY), scope.get
    if type(exchange) is Exchange:
        found = exchange.facts
        ends = get("client"), get("server")
        if found.peer is get(PEER_KEY) and (
            found.read == (scope["headers"], *ends, get("http_version"), get(PROXIED_KEY))
        ):
            return found
    return Facts(scope)


def exchange_of(scope: Scope, receive: Receive, send: Send) -> Exchange:
    """Return the exchange that `send` belongs to. Begin one if the request bypassed the edge."""
    found = scope.get(_KEY)
    if type(found) is Exchange and found.send == send:
        return found
    return Exchange(scope, receive, send)


def exchange_in(scope: Mapping[str, Any]) -> Exchange | None:
    """Return the exchange of this request, or None if none has begun."""
    found = scope.get(_KEY)
    return found if type(found) is Exchange else None


def client_connection_of(scope: Mapping[str, Any]) -> ClientConnection | None:
    """Return the connection of this request, or None if nothing watches it."""
    found = scope.get(_KEY)
    return found if type(found) is Exchange and found.is_watched else None


def _is_too_long(headers: Mapping[bytes, list[str]]) -> bool:
    """Return True if the request declares a body of more than _UNREAD_BYTES_AT_MOST bytes."""
    declared = headers.get(b"content-length", ["0"])[0]
    is_number = declared.isdecimal() and len(declared) <= len(str(_UNREAD_BYTES_AT_MOST))
    return not is_number or int(declared) > _UNREAD_BYTES_AT_MOST


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
