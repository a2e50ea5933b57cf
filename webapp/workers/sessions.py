"""Sessions of 2025-11-25 of several workers: each request goes to the one that has its session.

A session lives in the process that opened it. So the id that its client sees ends with that
worker's name, which is taken off before the library sees it: `6f1c... .a-9d0e...`. A proxy may go
by it as well (docs/workers.md). What names a worker that is gone is a session that does not exist:
by the protocol the client begins a new one, and the same call, made in it, goes on.
"""

import logging
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from flows.crypto.vault import Ring
from flows.errors import StoreUnavailable
from webapp.http.address import headers_of
from webapp.http.connection import ASGIApp, Message, Receive, Scope, Send
from webapp.mcp.opened import SESSION_HEADER, VERSION_HEADER, refuse
from webapp.server import MCP_PATH, HostedApplication
from webapp.service import Service
from webapp.settings.settings import Settings
from webapp.stores import Store
from webapp.workers.relay import GREETING_SECONDS, Busy, Relay, RelayUnusable

_log = logging.getLogger(__name__)
_NAME = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,31}-)?(?P<socket>[0-9a-f]{16})")


def new_name(instance: str) -> str:
    """A worker's, used once: `instance` is what a proxy knows it by, if anything."""
    return f"{instance}-{secrets.token_hex(8)}" if instance else secrets.token_hex(8)


@asynccontextmanager
async def routed(
    app: ASGIApp,
    served: HostedApplication,
    *,
    settings: Settings,
    service: Service,
    store: Store,
    processes: int = 1,
) -> AsyncGenerator[ASGIApp]:
    """The application of one worker, which the others of the same server reach within it.

    What is kept in memory has one process. Raises StoreUnavailable where there are to be several
    `processes` and they cannot reach each other; else sessions are those of this one alone.
    """
    if served.server is None or store.address is None:
        yield app
        return
    about = f"{store.address}\n{settings.url}".encode()
    folder = settings.processes.folder(settings.uid) / sha256(about).hexdigest()[:16]
    name = new_name(settings.processes.instance)
    routing = RoutedSessions(app, name=name, folder=folder, ring=settings.ring)
    service.elicitations.waiters.at_drain.append(routing.let_go)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(routing.listening())
        except RelayUnusable as error:
            if processes > 1:
                raise StoreUnavailable(str(error)) from error
            _log.warning("workers.apart", extra={"why": str(error)})
        yield routing


class RoutedSessions:
    """Passes to the application what is of this worker's sessions, or of none."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        name: str,
        folder: Path,
        ring: Ring,
        greeting_seconds: float = GREETING_SECONDS,
    ) -> None:
        """`folder` is where the workers that share these sessions reach each other."""
        self._app = app
        self._suffix = f".{name}"
        self._own = _socket_of(name)
        self._relay = Relay(
            self._answer,
            name=self._own or name,
            folder=folder,
            ring=ring,
            greeting_seconds=greeting_seconds,
        )

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Reached by the other workers within it. Raises RelayUnusable."""
        async with self._relay.listening():
            yield

    def let_go(self) -> None:
        """This process ends: streams that others answer are taken up again at another one."""
        self._relay.let_go()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        other = _worker_of(scope)
        if scope["type"] != "http" or scope["path"] != MCP_PATH:
            await self._app(scope, receive, send)
        elif other in (None, self._own):
            await self._answer(scope, receive, send)
        else:
            await self._pass_on(str(other), scope, receive, send)

    async def _pass_on(self, to: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if not await self._relay.pass_on(to, scope, receive, send):
                await refuse(send, HTTPStatus.NOT_FOUND, "Session not found")
        except Busy:
            why = "The process that has this session is busy: send the same again in a moment"
            await refuse(send, HTTPStatus.SERVICE_UNAVAILABLE, why)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Without our name for the library, and with it for the client."""
        suffix = self._suffix.encode()

        async def naming(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {
                    **message,
                    "headers": [
                        (name, value + suffix if name.lower() == SESSION_HEADER else value)
                        for name, value in message.get("headers", ())
                    ],
                }
            await send(message)

        headers = [
            (name, value.removesuffix(suffix) if name == SESSION_HEADER else value)
            for name, value in scope["headers"]
        ]
        await self._app({**scope, "headers": headers}, receive, naming)


def _worker_of(scope: Scope) -> str | None:
    """Whose session a request is of, by its id; None where it is of none, or says it twice."""
    if scope["type"] != "http":
        return None
    ids, versions = headers_of(scope, SESSION_HEADER), headers_of(scope, VERSION_HEADER)
    has_none = any(version not in HANDSHAKE_PROTOCOL_VERSIONS for version in versions)
    if len(ids) != 1 or has_none:  # later revisions have no sessions
        return None
    id, _, name = ids[0].rpartition(".")
    return _socket_of(name) if id else None


def _socket_of(name: str) -> str | None:
    """The part of a worker's name that its socket has; None for what is no name."""
    found = _NAME.fullmatch(name)
    return None if found is None else found["socket"]
