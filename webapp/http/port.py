"""The port of the pages: which process owns it, and which takes it over.

If several processes use one store, one of them serves the pages for all.

Risks: the port belongs to another program that may impersonate us. The owner of the port must
therefore prove that it serves the same store at the same address, with a proof that is useless
elsewhere. The owner may end and another program may take the port, so every other process checks
the owner again before it sends a link.
"""

import asyncio
import errno
import hmac
import math
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Literal, Protocol

import httpx
from msgspec import Struct
from msgspec.json import decode

from flows.errors import ElicitError
from webapp.printing import printed

PORT_OPTION = "--port"
RETRY_SECONDS = 0.5
_ANSWER_SECONDS = 5.0
_BETWEEN_OWNERS_SECONDS = 10.0
_PATIENCE_SECONDS = 20.0  # a process can take this long to start on a busy machine
_ANSWER_BYTES_AT_MOST = 4096
_BACKLOG = 2048
_NONCE_BYTES = 24
_NAME_CHARACTERS_AT_MOST = 80
_PROOF_BYTES = 30


class _Health(Struct):
    proof: str
    server: str = ""
    sandbox_of: str = ""  # the server for which a sandbox simulates providers


class PortUnusable(Exception):
    """The port cannot be used. The message is shown on the terminal."""


def bind(host: str, port: int, *, option: str = PORT_OPTION) -> socket.socket:
    """Return a bound socket that does not listen yet.

    Raises PortUnusable.

    `option` names the setting of the port in the error.
    """
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise PortUnusable(_why_not(error, host, port, option=option)) from error
    return listener


def listen(listener: socket.socket, *, option: str = PORT_OPTION) -> None:
    """Start to listen. Raises PortUnusable if another bound socket already listens."""
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise PortUnusable(_why_not(error, *listener.getsockname()[:2], option=option)) from error


def listening(host: str, port: int, *, option: str = PORT_OPTION) -> socket.socket:
    """Return a listening socket on the port. Raises PortUnusable."""
    listener = bind(host, port, option=option)
    try:
        listen(listener, option=option)
    except PortUnusable:
        listener.close()
        raise
    return listener


class Tagging(Protocol):
    """An object that computes keyed hashes, which requires the store's secrets."""

    def tag(self, purpose: str, *parts: str, size: int = ...) -> str: ...


def proof(pepper: Tagging, *, url: str, nonce: str) -> str:
    """Return the proof that only a process with this store and this public address can compute."""
    return pepper.tag("port", url, nonce, size=_PROOF_BYTES)


async def own_or_find(
    host: str, port: int, *, url: str, pepper: Tagging, option: str = PORT_OPTION
) -> socket.socket | None:
    """Return a listening socket, or None if another of our processes owns the port.

    Raises PortUnusable if another program owns the port.
    """
    loop = asyncio.get_running_loop()
    patient_until = loop.time() + _PATIENCE_SECONDS
    while True:
        try:
            return listening(host, port, option=option)
        except PortUnusable as error:
            if not _is_in_use(error):
                raise
            found = await is_owned_by_us(host, port, url=url, pepper=pepper)
            if found:
                return None
            # An owner that is starting or ending may not answer.
            if found is False or loop.time() > patient_until:
                raise await with_owner(error, host, port, url=url, option=option) from error
        await asyncio.sleep(RETRY_SECONDS)


class PagesTaken(ElicitError):
    """Another program answers on the pages' port, or no program does, so no link may be sent."""

    name = "ELICITATION_PAGES_TAKEN"
    http_status = 503

    def __init__(self, url: str, *, is_answered: bool, option: str = PORT_OPTION) -> None:
        why = "is now used by another program" if is_answered else "does not answer"
        super().__init__(
            f"The address of this server's pages, {url}, {why}, so no link was created. Call again "
            "in a minute. If the error stays, the operator of this server has to stop the program "
            f"that uses this port, or choose another port with {option}."
        )


class SharedPort:
    """A port that several of our processes share and one of them owns."""

    def __init__(
        self, host: str, port: int, *, url: str, pepper: Tagging, option: str = PORT_OPTION
    ) -> None:
        self._host, self._port, self._url, self._pepper = host, port, url, pepper
        self._option = option
        self._listener: socket.socket | None = None
        self._proven_at = -math.inf
        self._asking = asyncio.Lock()

    async def own_or_find(self) -> socket.socket | None:
        """Return a listening socket, or None if another of our processes owns the port.

        Raises PortUnusable if another program owns the port.
        """
        self._listener = await own_or_find(
            self._host, self._port, url=self._url, pepper=self._pepper, option=self._option
        )
        return self._listener

    async def take_over(self, *, say: Callable[[str], object]) -> socket.socket:
        """Wait until the owner is gone and return a listening socket.

        If another program takes the port, `say` is called once, with the error message.
        """
        has_reported = False
        while True:
            try:
                self._listener = listening(self._host, self._port, option=self._option)
            except PortUnusable as error:
                if not has_reported and await self._is_owned_by_us() is False:
                    say(str(error))
                    has_reported = True
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return self._listener

    async def prove(self) -> None:
        """Check the owner before a link is sent.

        The check is repeated for some seconds, because no process replies while the owner changes.

        Raises:
            PagesTaken: Another program owns the port, or no process replies.
        """
        loop = asyncio.get_running_loop()
        since = loop.time()
        async with self._asking:
            # A caller that waited for the lock uses the result of the previous caller.
            while self._listener is None and self._proven_at < since:
                asked_at = loop.time()
                is_own = await self._is_owned_by_us()
                if is_own:
                    self._proven_at = asked_at
                elif is_own is False or loop.time() > since + _BETWEEN_OWNERS_SECONDS:
                    raise PagesTaken(self._url, is_answered=is_own is False, option=self._option)
                else:
                    await asyncio.sleep(RETRY_SECONDS)

    async def _is_owned_by_us(self) -> bool | None:
        return await is_owned_by_us(self._host, self._port, url=self._url, pepper=self._pepper)


async def is_owned_by_us(host: str, port: int, *, url: str, pepper: Tagging) -> bool | None:
    """Return True if one of our processes owns the port, None if no process replies, else False."""
    nonce = secrets.token_urlsafe(_NONCE_BYTES)
    health = await _health_of(host, port, url=url, nonce=nonce)
    if not isinstance(health, _Health):
        return health
    return hmac.compare_digest(
        health.proof.encode("utf-8", "replace"), proof(pepper, url=url, nonce=nonce).encode()
    )


async def with_owner(
    error: PortUnusable, host: str, port: int, *, url: str, option: str = PORT_OPTION
) -> PortUnusable:
    """Return the error with the name of the owning server, if it is an elicit server."""
    if not _is_in_use(error):
        return error
    # A server has the first of these addresses, a sandbox the second.
    for address in dict.fromkeys((url, f"http://127.0.0.1:{port}")):
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        health = await _health_of(host, port, url=address, nonce=nonce)
        if isinstance(health, _Health) and (health.server or health.sandbox_of):
            return PortUnusable(_in_use_message(host, port, _named(health), option=option))
    return error


def _named(health: _Health) -> str:
    if health.server:
        return f"elicit, which serves {printed(health.server[:_NAME_CHARACTERS_AT_MOST])!r}"
    served = printed(health.sandbox_of[:_NAME_CHARACTERS_AT_MOST])
    return (
        f"the sandbox of elicit's server at {served}, which uses the port number after the "
        "server's port"
    )


async def _health_of(
    host: str, port: int, *, url: str, nonce: str
) -> _Health | Literal[False] | None:
    """Return the owner's health report, None if there is no reply, or False for another program."""
    at, body = httpx.URL(url), b""
    root_path = at.path.rstrip("/")
    try:
        async with (
            asyncio.timeout(_ANSWER_SECONDS),
            # No TLS on loopback, and no proxy from the environment.
            httpx.AsyncClient(
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), trust_env=False
            ) as client,
            client.stream(
                "GET",
                httpx.URL(scheme="http", host=host, port=port, path=f"{root_path}/health"),
                params={"nonce": nonce},
                headers={"host": at.netloc.decode()},
            ) as response,
        ):
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > _ANSWER_BYTES_AT_MOST:
                    return False
    except (httpx.ConnectError, httpx.ReadError, TimeoutError, httpx.TimeoutException):
        return None
    except httpx.HTTPError:
        return False
    try:
        return decode(body, type=_Health)
    except (ValueError, RecursionError):
        return False


def _is_in_use(error: PortUnusable) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE


def _why_not(error: OSError, host: str, port: int, *, option: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return _in_use_message(host, port, "another program", option=option)
    return f"Port {port} of {host} cannot be used: {error.strerror or error}."


def _in_use_message(host: str, port: int, owner: str, *, option: str) -> str:
    return (
        f"Port {port} of {host} is already used by {owner}. Stop that program, or choose another "
        f"port with {option}."
    )
