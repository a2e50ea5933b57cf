"""The outbound HTTP client: runs a flow's requests over the network, within limits.

Risks: a provider is slow, sends an endless reply, redirects elsewhere, or its address is inside our
own network. So the time and the size of a reply are limited, redirects are not followed, and
internal addresses are refused. A compressed reply is unpacked before its size is known, and three
kilobytes can become gigabytes. So each request asks for an uncompressed reply, and a compressed
reply is refused unread.

Known gap: the host name is resolved again when the request is sent, so its owner can return another
address (DNS rebinding).
"""

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from opentelemetry.trace import StatusCode

from flows.elicitation.flow import Talk
from flows.errors import Failed
from flows.oauth.account import KeyTransport
from flows.oauth.provider import Client
from flows.oauth.requests import Unreachable
from flows.question import OnWire
from webapp.http.address import TrustedHost
from webapp.telemetry.families import UNOBSERVED, Observer
from webapp.telemetry.work import current_work

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

T = TypeVar("T")
_NOT_PUBLIC = (
    "The other server's address is not on the public internet. The operator of this server can "
    "allow it in ELICIT_TRUSTED_HOSTS."
)
_log = logging.getLogger(__name__)
SECONDS_A_REQUEST = 10.0
REPLY_BYTES_AT_MOST = 1024 * 1024
OTHER = "other"
_FETCH = "fetch"
UNPACKED = {"accept-encoding": "identity"}

# IPv6 addresses that contain an IPv4 address, which may be internal: NAT64, 6to4, Teredo,
# translated, compatible and mapped. Also addresses that Python treats as public: site-local (RFC
# 3879) and segment identifiers (RFC 9602).
_CARRIERS = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        *("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::ffff:0:0:0/96", "::/80"),
        *("fec0::/10", "5f00::/16"),
    )
)
CLIENT_SECONDS = 30.0
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Transport(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """A transport for sync and async clients that replaces the network."""


class _AsyncAccountClient(httpx.AsyncClient):
    """A client that passes each request through `on_wire` before it is sent, even to a proxy."""

    def __init__(self, *, on_wire: OnWire, **options: Any) -> None:
        super().__init__(**options)
        self._on_wire = on_wire

    def _transport_for_url(self, url: httpx.URL) -> httpx.AsyncBaseTransport:
        return KeyTransport(super()._transport_for_url(url), self._on_wire)


class _AccountClient(httpx.Client):
    """A synchronous client that passes each request through `on_wire` before it is sent."""

    def __init__(self, *, on_wire: OnWire, **options: Any) -> None:
        super().__init__(**options)
        self._on_wire = on_wire

    def _transport_for_url(self, url: httpx.URL) -> httpx.BaseTransport:
        return KeyTransport(super()._transport_for_url(url), self._on_wire)


class _Asking:
    """An outbound request as metrics and traces record it: provider, operation and result.

    If an author's code declares the provider, its name is untrusted and is not recorded.
    """

    def __init__(self, request: httpx.Request, *, provider: str, operation: str) -> None:
        self._provider, self._operation = provider, operation
        self._began = perf_counter()
        work = current_work()
        about: dict[str, AttributeValue] = {
            "http.request.method": request.method,
            "elicit.provider": provider,
            "elicit.operation": operation,
        }
        self._span = None if work is None else work.child(f"{operation} {provider}", about=about)

    def end(self, observer: Observer, reply: httpx.Response | None) -> None:
        seconds, result = perf_counter() - self._began, "failed"
        if reply is not None:
            result = (
                "ok"
                if reply.status_code < HTTPStatus.BAD_REQUEST
                else f"{reply.status_code // 100}xx"
            )
        observer.provider_answered(self._provider, self._operation, seconds=seconds, result=result)
        if self._span is not None:
            if reply is not None:
                self._span.set_attribute("http.response.status_code", reply.status_code)
            if result != "ok":
                self._span.set_status(StatusCode.ERROR, result)
            self._span.end()


class Outbound:
    """The outbound HTTP client. It sends the requests of a Talk and passes the replies to the Talk.

    - `allow_loopback`: for a server that is itself on loopback (development, tests).
    - `trusted`: hosts in the operator's own network.
    - `transport`: replaces the network for the clients that tools use.
    """

    def __init__(
        self,
        client: httpx.AsyncClient | None,
        *,
        allow_loopback: bool,
        resolve: Resolve | None = None,
        trusted: Sequence[TrustedHost] = (),
        trust: ssl.SSLContext | bool = True,
        transport: Transport | None = None,
    ) -> None:
        self._client = client
        self._transport = transport
        self._names: Mapping[str, str] = {}
        self._observer = UNOBSERVED
        self._trust = trust
        self._allow_loopback = allow_loopback
        self._trusted = trusted
        self._resolve = resolve or _addresses

    @classmethod
    def none(cls) -> "Outbound":
        """Return an instance without network, for a service that only completes questions."""
        return cls(None, allow_loopback=False)

    def be_observed(self, observer: Observer, *, names: Mapping[str, str]) -> None:
        """Set the observer. `names` maps URL prefixes to the provider names that it records."""
        self._observer, self._names = observer, names

    def client(self, *, base_url: str, auth: httpx.Auth, on_wire: OnWire) -> httpx.AsyncClient:
        """Return an HTTP client for a tool that calls a provider's API.

        The caller closes the client. Each request passes through `on_wire` before it is sent.

        The client decompresses replies and has no size limit, because only the tool knows its data.
        """
        return _AsyncAccountClient(on_wire=on_wire, **self._options(base_url, auth))

    def sync_client(self, *, base_url: str, auth: httpx.Auth, on_wire: OnWire) -> httpx.Client:
        """Return a synchronous client for a tool in a worker thread."""
        return _AccountClient(on_wire=on_wire, **self._options(base_url, auth))

    def _options(self, base_url: str, auth: httpx.Auth) -> Mapping[str, Any]:
        return {
            "base_url": base_url,
            "auth": auth,
            "timeout": CLIENT_SECONDS,
            "verify": self._trust,
            "mounts": no_proxy() if self._transport is None else None,
            "transport": self._transport,
        }

    async def run(self, talk: Talk[T], *, to: Client | None = None) -> T:
        """Send the talk's requests, pass it the replies, and return its result.

        The talk can reach the operator's network unless `to` is a provider that an author's code
        declares.

        Raises:
            Failed: The other server cannot be reached. Errors of the talk are also raised.
        """
        is_authors = to is not None and not to.is_operators
        operation = str(getattr(talk, "__name__", _FETCH)).strip("_")
        send = partial(
            self.send,
            is_authors=is_authors,
            operation=operation,
            provider=OTHER if is_authors or to is None else to.provider.name,
        )
        try:
            return await run_talk(talk, send)
        except httpx.HTTPError as error:
            raise Failed(f"No reply from the other server: {type(error).__name__}.") from error

    async def send(
        self,
        request: httpx.Request,
        *,
        bytes_at_most: int = REPLY_BYTES_AT_MOST,
        seconds_at_most: float = SECONDS_A_REQUEST,
        is_authors: bool = False,
        operation: str = _FETCH,
        provider: str = OTHER,
    ) -> httpx.Response:
        """Send one request.

        Redirects are not followed and replies are not decompressed.

        With `bytes_at_most=0`, the body is not read. With `is_authors` (an author's code declares
        the address), the request cannot reach the operator's network. Raises Failed or
        httpx.HTTPError.
        """
        if self._client is None:
            raise Failed("This server makes no outbound requests.")
        if provider == OTHER and not is_authors:
            provider = self._name_at(request.url)
        asking, reply = _Asking(request, provider=provider, operation=operation), None
        try:
            reply = await self._send(
                request,
                bytes_at_most=bytes_at_most,
                seconds_at_most=seconds_at_most,
                is_authors=is_authors,
            )
            return reply
        finally:
            asking.end(self._observer, reply)

    def _name_at(self, url: httpx.URL) -> str:
        address = str(url)
        return next((n for begins, n in self._names.items() if address.startswith(begins)), OTHER)

    async def _send(
        self,
        request: httpx.Request,
        *,
        bytes_at_most: int,
        seconds_at_most: float,
        is_authors: bool,
    ) -> httpx.Response:
        assert self._client is not None
        request.headers.update(UNPACKED)
        try:
            async with asyncio.timeout(seconds_at_most):
                await self._check_address(request.url, trusted=() if is_authors else self._trusted)
                reply = await self._client.send(request, stream=True, follow_redirects=False)
                try:
                    body = await _body_of(reply, bytes_at_most) if bytes_at_most else b""
                finally:
                    await reply.aclose()
        except TimeoutError as error:
            raise httpx.ReadTimeout("the request took too long in all", request=request) from error
        # httpx parses a redirect's address even if it does not follow the redirect
        except httpx.InvalidURL as error:
            message = "the reply redirects to an invalid address"
            raise httpx.RemoteProtocolError(message, request=request) from error
        # Keep the headers as bytes: some are not ASCII.
        headers = [pair for pair in reply.headers.raw if pair[0].lower() not in _OF_THE_TRANSFER]
        return httpx.Response(reply.status_code, headers=headers, content=body, request=request)

    async def _check_address(self, url: httpx.URL, *, trusted: Sequence[TrustedHost] = ()) -> None:
        port = url.port or (443 if url.scheme == "https" else 80)
        found = [text.partition("%")[0] for text in await self._resolve(url.host, port)]
        if url.scheme == "https" and any(one.is_of(url.host, port, found) for one in trusted):
            return
        for address in map(ipaddress.ip_address, found):
            if address.is_loopback and self._allow_loopback:
                continue
            if url.scheme != "https" or not _is_public(address):
                _log.warning("outbound.not_public", extra={"host": url.host, "port": port})
                fix = f"if {url.host} is in your own network, set ELICIT_TRUSTED_HOSTS to it"
                raise Unreachable(_NOT_PUBLIC, fix=fix, is_lasting=True)


async def run_talk(talk: Talk[T], send: Callable[[httpx.Request], Awaitable[httpx.Response]]) -> T:
    """Send the talk's requests, pass it the replies or the errors, and return its result.

    Raises:
        Failed: `send` or the talk raised it. An httpx.HTTPError that the talk does not handle is
        raised, too.
    """
    try:
        request = next(talk)
        while True:
            try:
                reply = await send(request)
            except (httpx.HTTPError, Failed) as error:
                request = talk.throw(error)
            else:
                request = talk.send(reply)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        talk.close()


async def _body_of(reply: httpx.Response, at_most: int) -> bytes:
    if _is_packed(reply):
        raise Unreachable(
            "The other server's reply is compressed, although this server asked for an "
            "uncompressed one.",
            fix="let the server, or the proxy before it, obey `Accept-Encoding: identity`",
            is_lasting=True,
        )
    body = bytearray()
    async for chunk in reply.aiter_bytes():
        body += chunk
        if len(body) > at_most:
            raise Unreachable(
                "The other server's reply is too large.",
                fix="check that the address is right: its reply has more than a megabyte",
                is_lasting=True,
            )
    return bytes(body)


_OF_THE_TRANSFER = (b"content-encoding", b"content-length", b"transfer-encoding")


def no_proxy() -> dict[str, None]:
    """Return httpx mounts that bypass the environment's proxy for loopback addresses."""
    return {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}


async def refuse_packed(reply: httpx.Response) -> None:
    """Refuse a compressed reply, as a response hook. Raises httpx.DecodingError."""
    if _is_packed(reply):
        raise httpx.DecodingError(
            "it is compressed, although this server asked for an uncompressed reply",
            request=reply.request,
        )


def _is_packed(reply: httpx.Response) -> bool:
    encodings = reply.headers.get_list("content-encoding", split_commas=True)
    return any(each.strip().lower() not in {"", "identity"} for each in encodings)


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return (
        address.is_global
        and not address.is_multicast
        and not any(address in network for network in _CARRIERS)
    )


async def _addresses(host: str, port: int) -> Sequence[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # a label of more than 63 characters raises UnicodeError
    except (OSError, UnicodeError) as error:
        raise Unreachable(
            "The other server's host name cannot be resolved.",
            fix="correct the host name, or this machine's DNS",
        ) from error
    return [str(entry[4][0]) for entry in found]
