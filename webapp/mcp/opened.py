"""The layer before the MCP library: the size of messages, and the sessions of 2025-11-25 over HTTP.

Each session belongs to the sender that opened it. The events of its streams are stored while the
library answers its requests (`resuming`).

Risks: somebody else knows a session's id, and answers a tool's questions in the opener's name, ends
the session, or reads its streams. The opener is therefore recorded before the id is sent, and every
later request of any method is checked: for other senders the session does not exist. (The library
compares only access tokens, and a server on a person's own machine has none.)
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from mcp_types import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from webapp.http.connection import ASGIApp, Message, Receive, Scope, Send
from webapp.http.exchange import Exchange, exchange_in, facts_of
from webapp.identity.identity import Sender
from webapp.mcp.messages import TooLarge, read_message
from webapp.mcp.resuming import Streams
from webapp.mcp.shares import ClientSession, SessionRoom, Shares

SESSION_HEADER = b"mcp-session-id"
VERSION_HEADER = b"mcp-protocol-version"
_RETRY_AFTER = {HTTPStatus.TOO_MANY_REQUESTS: b"60", HTTPStatus.SERVICE_UNAVAILABLE: b"1"}
_SESSION_KEY = "elicit.session"
_log = logging.getLogger(__name__)


class OpenedSessions:
    """An ASGI application that passes a session's requests on only if its opener sent them."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        sender: Callable[[Mapping[str, Any]], Sender | None],
        streams: Streams,
        room: SessionRoom | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap the library's application `app`. `clock` returns seconds.

        `sender` returns None if the connection ended before the sender was known.
        """
        self._app = app
        self._sender = sender
        self._streams = streams
        self._clock = clock
        self._shares = Shares(room=room or SessionRoom())
        self._open_ones: dict[str, ClientSession] = {}
        self._ids: dict[ClientSession, str] = {}

    def __len__(self) -> int:
        return len(self._open_ones)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = self._sender(scope)
        if sender is None:  # the connection has ended: do not start a body for it
            await refuse(
                send, HTTPStatus.FORBIDDEN, "The server cannot identify the sender of this request."
            )
            return
        exchange, headers = exchange_in(scope), facts_of(scope).headers
        if exchange is None:  # a middleware of the author replaced the scope
            exchange = Exchange(scope, receive, send)
            send = exchange.send
        ids, versions = headers.get(SESSION_HEADER, []), headers.get(VERSION_HEADER, [])
        if len(ids) > 1 or len(versions) > 1:  # the library might read another one than this code
            await refuse(
                send,
                HTTPStatus.BAD_REQUEST,
                "Mcp-Session-Id or MCP-Protocol-Version came more than once: send it once.",
            )
        elif not has_sessions(versions):
            await self._answer(scope, receive, send)
        elif not ids:
            await self._open(scope, receive, send, exchange, sender=sender)
        elif (session := self._open_ones.get(ids[0])) is None or session.sender.key != sender.key:
            await refuse(send, HTTPStatus.NOT_FOUND, "Session not found")
        else:
            await self._use(session, scope, receive, send, exchange)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the library answer, unless the message is too large for it."""
        if scope["method"] == "POST":
            try:
                receive = await read_message(facts_of(scope).headers, receive)
            except TooLarge as error:
                await refuse(send, error.status, str(error))
                return
        await self._app(scope, receive, send)

    async def _open(
        self, scope: Scope, receive: Receive, send: Send, exchange: Exchange, *, sender: Sender
    ) -> None:
        if not await self._make_room(sender):
            _log.warning("session.no_room", extra={"nameless": sender.is_nameless})
            await refuse(
                send,
                HTTPStatus.TOO_MANY_REQUESTS,
                "Too many sessions are open. End those that you do not use, or wait a minute.",
            )
            return
        session = self._shares.open(sender, user=scope.get("user"), now=self._clock())

        async def noting(message: Message) -> None:
            """Record the session before its id is sent, even if a middleware holds the response."""
            is_start = message["type"] == "http.response.start"
            if is_start and message["status"] < HTTPStatus.BAD_REQUEST:
                for name, value in message.get("headers", ()):
                    if name.lower() == SESSION_HEADER:
                        id = value.decode("latin-1").strip()
                        self._open_ones[id] = session
                        self._ids[session] = id
                        self._streams.opened(id, here)
            await send(message)

        try:
            with self._streams.request(None, _watched(exchange)) as here:
                await self._answer(scope, receive, noting)
        finally:
            self._rest(session)
            if session not in self._ids:  # no session was opened
                self._shares.close(session)

    async def _use(
        self,
        session: ClientSession,
        scope: Scope,
        receive: Receive,
        send: Send,
        exchange: Exchange,
    ) -> None:
        id, method = self._ids[session], scope["method"]
        after = facts_of(scope).headers.get(b"last-event-id") if method == "GET" else None

        async def deleting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.OK:
                here.end_session()
                self._forget(id)
            await send(message)

        session.in_flight += 1
        scope[_SESSION_KEY] = session
        try:
            with self._streams.request(id, _watched(exchange)) as here:
                if after and after[-1]:
                    here.last_event_id = after[-1]
                    await self._streams.resume(self._app, scope, receive, send, here)
                else:
                    await self._answer(scope, receive, deleting if method == "DELETE" else send)
        finally:
            self._rest(session)
            if exchange.status == HTTPStatus.NOT_FOUND:  # the library has ended the session
                self._forget(id)

    def _rest(self, session: ClientSession) -> None:
        session.in_flight -= 1
        session.used_at = self._clock()

    async def _make_room(self, sender: Sender) -> bool:
        for session in self._shares.unused(self._clock()):
            await self._end(session)
        if not self._shares.has_room(sender) and not sender.is_nameless:
            unused = self._shares.longest_unused_of(sender)
            if unused is not None:
                await self._end(unused)
        return self._shares.has_room(sender)

    async def _end(self, session: ClientSession) -> None:
        """End the session at the library with the request that its client would send."""
        id = self._ids.get(session)
        if id is None or session.in_flight:
            return
        self._forget(id)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "DELETE",
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "root_path": "",
            "query_string": b"",
            "headers": [(SESSION_HEADER, id.encode())],
            "user": session.user,
        }
        _log.info("session.ended", extra={"why": "unused"})
        await self._app(scope, _nothing_more, _discard)

    def _forget(self, id: str) -> None:
        session = self._open_ones.pop(id, None)
        if session is not None:
            self._ids.pop(session, None)
            self._shares.close(session)


def has_sessions(versions: Sequence[str]) -> bool:
    """Return False if a request names a later protocol revision, because these have no sessions."""
    return all(version in HANDSHAKE_PROTOCOL_VERSIONS for version in versions)


def note_call(scope: Mapping[str, Any]) -> None:
    """Record that a tool is called in the session of this request, if it has a session."""
    session = scope.get(_SESSION_KEY)
    if isinstance(session, ClientSession):
        session.has_called = True


def _watched(exchange: Exchange) -> Exchange | None:
    return exchange if exchange.is_watched else None


async def _nothing_more() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _discard(message: Message) -> None:
    pass


async def refuse(send: Send, status: HTTPStatus, why: str) -> None:
    """Send an error response in the library's format."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": why}}
    body = json.dumps(error).encode()
    headers = [
        *([(b"retry-after", _RETRY_AFTER[status])] if status in _RETRY_AFTER else []),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
