"""Sessions and processes: each request goes to the worker that owns its MCP session (2025-11-25).

A session lives in the process that opened it. The session id that the client sees therefore ends
with that worker's name (`6f1c... .a-9d0e...`), which is removed before the MCP library sees the id.
A proxy may route by this name too (docs/how-to/deployment.md). A name of a worker that no longer
exists means that the session does not exist: by the protocol, the client starts a new session, and
repeating the same call there resumes it.

uvicorn and gunicorn can be configured by an option, a variable, a file or a program. Their
effective configuration is found on the call stack, because their code runs this code. For other
servers, the command line shows the number of workers (`--workers`, for some `-w`), and every worker
process has the same command line.
"""

import logging
import re
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path, PurePath
from types import FrameType

from flows.crypto.tokens import Ring
from flows.errors import StoreUnavailable
from webapp.http.exchange import (
    ASGIApp,
    Exchange,
    Receive,
    Scope,
    Send,
    exchange_of,
    facts_of,
)
from webapp.mcp.opened import SESSION_HEADER, VERSION_HEADER, has_sessions, refuse
from webapp.server import MCP_PATH
from webapp.service import Service
from webapp.settings.settings import Settings
from webapp.stores import Store
from webapp.workers.relay import GREETING_SECONDS, Busy, Relay, RelayUnusable

_log = logging.getLogger(__name__)
_NAME = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,31}-)?(?P<socket>[0-9a-f]{16})")


def new_name(instance: str) -> str:
    """Return a new unique worker name. `instance` is the name that a proxy knows, or empty."""
    return f"{instance}-{secrets.token_hex(8)}" if instance else secrets.token_hex(8)


@asynccontextmanager
async def routed(
    app: ASGIApp,
    *,
    settings: Settings,
    service: Service,
    store: Store,
    processes: int = 1,
) -> AsyncGenerator[ASGIApp]:
    """Wrap one worker's application so that the server's other workers can reach it in this block.

    Do nothing for the memory store, which allows one process only. If the relay cannot
    listen, other workers cannot reach this one: log a warning if `processes` is 1, else raise.

    Raises:
        StoreUnavailable: There are several `processes`, and the relay cannot listen.
    """
    if store.address is None:
        yield app
        return
    about = f"{store.address}\n{settings.url}".encode()
    folder = settings.processes.folder(settings.uid) / sha256(about).hexdigest()[:16]
    name = new_name(settings.processes.instance)
    routing = RoutedSessions(app, name=name, folder=folder, ring=settings.ring)
    service.elicitations.waiters.at_drain.append(routing.close_streams)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(routing.listening())
        except RelayUnusable as error:
            if processes > 1:
                raise StoreUnavailable(str(error)) from error
            _log.warning("workers.not_connected", extra={"why": str(error)})
        yield routing


class RoutedSessions:
    """ASGI middleware that answers requests of this worker's sessions and relays the others."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        name: str,
        folder: Path,
        ring: Ring,
        greeting_seconds: float = GREETING_SECONDS,
    ) -> None:
        """`folder` contains the sockets of the workers that share these sessions."""
        self._app = app
        self._suffix = f".{name}".encode()
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
        """Accept requests from the other workers within this block. Raises RelayUnusable."""
        async with self._relay.listening():
            yield

    def close_streams(self) -> None:
        """Close the streams that other workers answer, because this process ends.

        Clients resume these streams at another process.
        """
        self._relay.close_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = facts_of(scope).headers
        is_call = scope["type"] == "http" and scope["path"] == MCP_PATH
        if not is_call or not has_sessions(headers.get(VERSION_HEADER, [])):
            await self._app(scope, receive, send)
            return
        other = _worker_of(headers.get(SESSION_HEADER, []))
        if other in (None, self._own):
            await self._answer(scope, receive, send)
        else:
            await self._pass_on(str(other), scope, exchange_of(scope, receive, send))

    async def _pass_on(self, to: str, scope: Scope, exchange: Exchange) -> None:
        send = exchange.send
        try:
            if not await self._relay.pass_on(to, scope, exchange):
                await refuse(send, HTTPStatus.NOT_FOUND, "Session not found")
        except Busy:
            why = (
                "The process that has this session is busy. Send the same request again in a moment"
            )
            await refuse(send, HTTPStatus.SERVICE_UNAVAILABLE, why)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, adding the worker's name to session ids and removing it."""
        exchange = exchange_of(scope, receive, send)
        exchange.suffix = SESSION_HEADER, self._suffix
        exchange.facts = facts = facts_of(scope)
        ids = facts.headers.get(SESSION_HEADER, [])
        if len(ids) == 1:  # a request with several ids is refused later
            id = ids[0].removesuffix(self._suffix.decode())
            scope = facts.replaced(scope, SESSION_HEADER, id)
        await self._app(scope, receive, exchange.send)


def _worker_of(ids: Sequence[str]) -> str | None:
    """Return the worker that owns the session, or None if the request has no valid session id.

    A request with several session ids has no valid one.
    """
    if len(ids) != 1:
        return None
    id, _, name = ids[0].rpartition(".")
    return _socket_of(name) if id else None


def _socket_of(name: str) -> str | None:
    """Return the socket's part of a worker's name, or None if the name is invalid."""
    found = _NAME.fullmatch(name)
    return None if found is None else found["socket"]


# The module of each server, and the attribute of its `self` that has the configuration.
_SERVERS = {"uvicorn.server": "config", "gunicorn.arbiter": "cfg"}
_STARTERS = frozenset({"hypercorn", "granian"})
_START_ONE = (
    "start it with one worker: --workers 1 (and no other number in WEB_CONCURRENCY, "
    "GUNICORN_CMD_ARGS, gunicorn.conf.py or uvicorn.run(workers=)). One worker also serves many "
    "people at once."
)
_OPTION = re.compile(r"(?:--workers|-w)(?:=?(?P<number>\d+))?")


def must_share(
    arguments: Sequence[str],
    *,
    store: str,
    has_sandbox: bool = False,
    caller: FrameType | None = None,
) -> int:
    """Return how many processes the command or the server's configuration requests, by default 1.

    Raises StoreUnavailable if several processes cannot serve this application together.
    """
    number = max(_of_starter(arguments), _of_server(caller))
    if number > 1 and store == "memory:":
        raise StoreUnavailable(
            f"{number} processes would serve this application, but the store memory: is not shared "
            "between processes: a call that waits in one process does not receive an answer that "
            f"arrives at another. Set ELICIT_STORE to a file or a server, or {_START_ONE}"
        )
    if number > 1 and has_sandbox:
        raise StoreUnavailable(
            f"{number} processes would serve this application, and each would start its own "
            "sandbox, with its own accounts. Serve it with `elicit serve --sandbox --workers "
            f"{number}`, which shares one sandbox, or {_START_ONE}"
        )
    return number


def _of_server(frame: FrameType | None) -> int:
    """Return the worker count of the server whose code calls this frame."""
    number = 1
    while frame is not None:
        attribute = _SERVERS.get(frame.f_globals.get("__name__", ""))
        if attribute is not None:
            server = getattr(frame.f_locals.get("self"), attribute, None)
            number = max(number, getattr(server, "workers", None) or 1)
        frame = frame.f_back
    return number


def _of_starter(arguments: Sequence[str]) -> int:
    if not arguments or _starter(PurePath(arguments[0])) not in _STARTERS:
        return 1
    for at, word in enumerate(arguments):
        found = _OPTION.fullmatch(word)
        if found is not None:
            return _number(found["number"] or "".join(arguments[at + 1 : at + 2]))
    return 1


def _starter(program: PurePath) -> str:
    """Return the program's name, such as granian for `.../granian/__main__.py` (`python -m`)."""
    return program.parent.name if program.name == "__main__.py" else program.name


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 1
