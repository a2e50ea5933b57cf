"""The sessions of 2025-11-25 over HTTP: each belongs to whoever opened it.

What could go wrong: a session's id is known to somebody else, who answers in the opener's name what
a tool asks, ends the session, or listens to its streams. So whoever opened it is noted before the
id leaves, and every later request of any method is looked at: the library compares access tokens
only, and on one machine there are none. To others it is a session that does not exist.
"""

import json
import logging
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from mcp_types import INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from webapp.address import headers_of
from webapp.wire import ASGIApp, Message, Receive, Scope, Send

SESSION_HEADER = b"mcp-session-id"
VERSION_HEADER = b"mcp-protocol-version"
_log = logging.getLogger(__name__)


class OpenedSessions:
    """Passes to the library what a session's opener sends, and what is of no session."""

    def __init__(self, app: ASGIApp, *, who: Callable[[Mapping[str, Any]], str | None]) -> None:
        """`who` tells senders apart; None where a connection ended before that was known."""
        self._app = app
        self._who = who
        self._openers: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._openers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = self._who(scope)
        if who is None:  # its answer would reach nobody, and a body may do what lasts
            _log.info("session.refused", extra={"why": "gone"})
            await _refuse(send, HTTPStatus.FORBIDDEN, "It is not known who sent this.")
            return
        ids, versions = headers_of(scope, SESSION_HEADER), headers_of(scope, VERSION_HEADER)
        if len(ids) > 1 or len(versions) > 1:  # two readers could take two for the one
            await _refuse(send, HTTPStatus.BAD_REQUEST, "A header came more than once.")
        elif versions and versions[0] not in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._app(scope, receive, send)  # later revisions have no sessions
        elif not ids:
            await self._open(scope, receive, send, who=who)
        elif self._openers.get(ids[0]) != who:
            _log.info("session.refused", extra={"why": "of another"})
            await _refuse(send, HTTPStatus.NOT_FOUND, "Session not found")
        else:
            await self._use(ids[0], scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, send: Send, *, who: str) -> None:
        async def noting(message: Message) -> None:
            if (
                message["type"] == "http.response.start"
                and message["status"] < HTTPStatus.BAD_REQUEST
            ):
                for id in headers_of(message, SESSION_HEADER):
                    self._openers[id] = who
            await send(message)

        await self._app(scope, receive, noting)

    async def _use(self, id: str, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                is_deleted = scope["method"] == "DELETE" and message["status"] == HTTPStatus.OK
                if is_deleted or message["status"] == HTTPStatus.NOT_FOUND:
                    self._openers.pop(id, None)
            await send(message)

        await self._app(scope, receive, noting)


async def _refuse(send: Send, status: HTTPStatus, why: str) -> None:
    """As the library does it."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": why}}
    body = json.dumps(error).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})
