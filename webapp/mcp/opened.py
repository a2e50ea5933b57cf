"""ASGI middleware before the MCP library: limits messages, and manages HTTP sessions (2025-11-25).

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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeAlias

from mcp_types import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from webapp.http.exchange import (
    ASGIApp,
    Exchange,
    Message,
    Receive,
    Scope,
    Send,
    exchange_in,
    facts_of,
)
from webapp.identity.identity import Sender
from webapp.mcp.messages import TooLarge, read_message
from webapp.mcp.resuming import Streams

# Limits for sessions of 2025-11-25: how many may be open, and how long without use.
#
# Risks: anonymous callers open all sessions that the server can hold, and everybody else is
# refused. Each address, each person and all anonymous callers together therefore have separate
# limits. Some sessions are reserved for this machine's own user, and an unused session ends.

# Look for unused sessions at most once a second, because each search reads all sessions.
_SWEEP_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits: numbers of open sessions, and the seconds after which an unused session ends."""

    for_all: int = 10_000  # the library's own limit
    for_own_user: int = 500  # reserved for this machine's own user
    for_nameless: int = 2_000
    for_address: int = 100  # for the anonymous callers of one address
    for_person: int = 500
    idle_without_call: float = 5 * 60.0
    idle: float = 30 * 60.0  # the library's own limit


@dataclass(slots=True, kw_only=True, eq=False)
class ClientSession:
    """A session that is open or being opened."""

    sender: Sender
    user: object  # the user that the library saw when the session was opened
    used_at: float
    in_flight: int = 1
    has_called: bool = False  # a tool was called in this session


@dataclass(slots=True, kw_only=True)
class Shares:
    limits: SessionLimits = field(default_factory=SessionLimits)
    _sessions: dict[ClientSession, None] = field(default_factory=dict[ClientSession, None])
    _counts: Counter[str] = field(default_factory=Counter[str])
    _nameless: int = 0
    _swept_at: float = 0.0

    def __len__(self) -> int:
        return len(self._sessions)

    def can_open(self, sender: Sender) -> bool:
        """Return True if the sender may open one more session now."""
        limits, used = self.limits, self._counts[sender.share]
        if sender.is_nameless:
            if used >= limits.for_address or self._nameless >= limits.for_nameless:
                return False
        elif used >= limits.for_person:
            return False
        reserved = 0 if sender.is_own_user else limits.for_own_user
        return len(self._sessions) < limits.for_all - reserved

    def open(self, sender: Sender, *, user: object, now: float) -> ClientSession:
        """Count and return a new session, before the library opens it."""
        session = ClientSession(sender=sender, user=user, used_at=now)
        self._sessions[session] = None
        self._counts[sender.share] += 1
        self._nameless += sender.is_nameless
        return session

    def close(self, session: ClientSession) -> None:
        """Stop counting a session."""
        if session in self._sessions:
            del self._sessions[session]
            self._counts[session.sender.share] -= 1
            if not self._counts[session.sender.share]:
                del self._counts[session.sender.share]
            self._nameless -= session.sender.is_nameless

    def unused(self, now: float) -> list[ClientSession]:
        """Return the sessions that were unused for too long.

        If the last search was less than a second ago, return none.
        """
        if now - self._swept_at < _SWEEP_EVERY_SECONDS:
            return []
        self._swept_at = now
        return [each for each in self._idle(self._sessions) if now >= self._ends_at(each)]

    def longest_unused_of(self, sender: Sender) -> ClientSession | None:
        """Return the person's longest unused session, to be ended in favour of a new one."""
        own = (each for each in self._sessions if each.sender.share == sender.share)
        return min(self._idle(own), key=lambda each: each.used_at, default=None)

    def _idle(self, sessions: Iterable[ClientSession]) -> Iterable[ClientSession]:
        return (each for each in sessions if not each.in_flight)

    def _ends_at(self, session: ClientSession) -> float:
        limits = self.limits
        return session.used_at + (limits.idle if session.has_called else limits.idle_without_call)


SESSION_HEADER = b"mcp-session-id"
VERSION_HEADER = b"mcp-protocol-version"
_RETRY_AFTER = {HTTPStatus.TOO_MANY_REQUESTS: b"60", HTTPStatus.SERVICE_UNAVAILABLE: b"1"}
_SESSION_KEY = "elicit.session"
Headers: TypeAlias = Mapping[bytes, list[str]]
_log = logging.getLogger(__name__)


class OpenedSessions:
    """An ASGI application that forwards a session's requests only from the session's opener."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        sender: Callable[[Mapping[str, Any]], Sender | None],
        streams: Streams,
        limits: SessionLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wrap the library's application `app`. `clock` returns seconds.

        `sender` returns None if the connection ended before the sender was known.
        """
        self._app = app
        self._sender = sender
        self._streams = streams
        self._clock = clock
        self._shares = Shares(limits=limits or SessionLimits())
        self._open_ones: dict[str, ClientSession] = {}
        self._ids: dict[ClientSession, str] = {}

    def __len__(self) -> int:
        return len(self._open_ones)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = self._sender(scope)
        if sender is None:  # the connection has ended: do not run a tool for it
            await refuse(
                send, HTTPStatus.FORBIDDEN, "The server cannot identify the sender of this request."
            )
            return
        exchange, headers = exchange_in(scope), facts_of(scope).headers
        if exchange is None:  # a middleware of the author replaced the scope
            exchange = Exchange(scope, receive, send)
            send = exchange.send
        ids, versions = headers.get(SESSION_HEADER, []), headers.get(VERSION_HEADER, [])
        # if a header is repeated, the library might use a different value than this code does
        if len(ids) > 1 or len(versions) > 1:
            await refuse(
                send,
                HTTPStatus.BAD_REQUEST,
                "Mcp-Session-Id or MCP-Protocol-Version came more than once: send it once.",
            )
        elif not has_sessions(versions):
            await self._answer(scope, receive, send, headers)
        elif not ids:
            await self._open(scope, receive, send, exchange, headers, sender=sender)
        elif (session := self._open_ones.get(ids[0])) is None or session.sender.key != sender.key:
            await refuse(send, HTTPStatus.NOT_FOUND, "Session not found")
        else:
            await self._use(session, scope, receive, send, exchange, headers=headers)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """Let the library answer, unless the message is too large for it."""
        if scope["method"] == "POST":
            try:
                receive = await read_message(headers, receive)
            except TooLarge as error:
                await refuse(send, error.status, str(error))
                return
        await self._app(scope, receive, send)

    async def _open(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        exchange: Exchange,
        headers: Headers,
        *,
        sender: Sender,
    ) -> None:
        if not await self._end_longest_unused(sender):
            _log.warning("session.no_room", extra={"nameless": sender.is_nameless})
            await refuse(
                send,
                HTTPStatus.TOO_MANY_REQUESTS,
                "Too many sessions are open. End those that you do not use, or wait a minute.",
            )
            return
        session = self._shares.open(sender, user=scope.get("user"), now=self._clock())

        async def noting(message: Message) -> None:
            """Record the session when its response starts: no client knows the id before."""
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
                await self._answer(scope, receive, noting, headers)
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
        *,
        headers: Headers,
    ) -> None:
        id, method = self._ids[session], scope["method"]
        after = headers.get(b"last-event-id") if method == "GET" else None

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
                    answer = deleting if method == "DELETE" else send
                    await self._answer(scope, receive, answer, headers)
        finally:
            self._rest(session)
            if exchange.status == HTTPStatus.NOT_FOUND:  # the library has ended the session
                self._forget(id)

    def _rest(self, session: ClientSession) -> None:
        session.in_flight -= 1
        session.used_at = self._clock()

    async def _end_longest_unused(self, sender: Sender) -> bool:
        for session in self._shares.unused(self._clock()):
            await self._end(session)
        if not self._shares.can_open(sender) and not sender.is_nameless:
            unused = self._shares.longest_unused_of(sender)
            if unused is not None:
                await self._end(unused)
        return self._shares.can_open(sender)

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
    """Return False if a request names a later protocol revision, which has no sessions."""
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
