"""A connected account as a tool gets it; its access token goes to the provider's hosts only.

Risks: the access token leaks through a redirect, a hook or a full URL in a tool's request. So the
transport adds the token as the last step, and only if the request's origin is one of the
provider's. Another risk: a tool returns or logs the account, and the token with it. BearerAuth and
Account are therefore no dataclasses: serializers find no members in them and use the repr, which
does not contain the token.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NoReturn, TypeAlias

import httpx
import msgspec
from msgspec.structs import replace

from flows.elicitation.misuse import Explained
from flows.elicitation.states import Json
from flows.oauth.declaration import Carrier
from flows.oauth.dpop import HEADER, proof_of, wanted_nonce
from flows.question import OnWire, Resources, verb

Newer: TypeAlias = tuple[str, str | None] | None  # a token and the key that it is bound to
Renew: TypeAlias = Callable[[str], Coroutine[Any, Any, Newer]]
Wait: TypeAlias = Callable[[Coroutine[Any, Any, Newer]], Newer]
_CHAIN = "elicit.redirects"


class _RedirectChain:
    """A request of a client, and the redirects that follow it.

    `carried` is the token in the latest request. After a request to another host, no later request
    of the chain gets the token: the other host could otherwise choose how the token is used.
    """

    __slots__ = ("carried", "has_left", "of")

    def __init__(self, of: "BearerAuth") -> None:
        self.of = of
        self.carried: str | None = None
        self.has_left = False


class BearerAuth(httpx.Auth):
    """An httpx authentication that adds the access token to requests to `origins` only.

    A request that the client handles never contains the token: `on_wire` adds it to the copy that
    the transport sends (`KeyTransport`). So neither the client's hooks nor its redirects can take
    the token to another host.

    If the provider's API refuses a request's token (401), `renew` is called once with that token.
    It returns a newer token and the key that this token is bound to, or None. The request is then
    sent again if its body allows that. In a synchronous client, the function `wait` runs `renew`
    and returns its result.

    If the token is bound to `key`, each request has a proof of that key (DPoP) with the time that
    `now` returns. If the API requires a nonce, the request is sent once more for each token.
    """

    __slots__ = (
        *("_carrier", "_key", "_nonces", "_now", "_origins", "_renew", "_token", "_tokens"),
        "_wait",
    )

    def __init__(
        self,
        token: str,
        *,
        origins: tuple[str, ...],
        renew: Renew | None = None,
        wait: Wait | None = None,
        carrier: Carrier | None = None,
        key: str | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._token = token
        self._tokens = {token}
        self._key = key
        self._now = now
        self._nonces: dict[str, str] = {}
        self._carrier = carrier or Carrier()
        self._origins = frozenset(origins)
        self._renew = renew
        self._wait = wait

    def is_for(self, url: httpx.URL) -> bool:
        """Return True if requests to this URL get the access token."""
        return _origin(url) in self._origins

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.extensions[_CHAIN] = _RedirectChain(
            self
        )  # httpx copies the extensions to each redirect
        yield request

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        sent, can_be_resent = self._token, _can_be_resent(request)
        (first,) = self.auth_flow(request)
        reply = yield first
        if can_be_resent and self._lacks_nonce(reply):
            (again,) = self.auth_flow(request)
            reply = yield again
        if self._is_refused(reply, sent):
            # Renew even if the request cannot be repeated, to notice a revoked token.
            if self._token == sent and self._renew is not None:
                self._replace_token(await self._renew(sent))
            if can_be_resent and self._has_new_token(request, sent):
                (again,) = self.auth_flow(request)
                reply = yield again
                if self._lacks_nonce(reply):  # the token may be the first with this key
                    (again,) = self.auth_flow(request)
                    yield again

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        sent, can_be_resent = self._token, _can_be_resent(request)
        (first,) = self.auth_flow(request)
        reply = yield first
        if can_be_resent and self._lacks_nonce(reply):
            (again,) = self.auth_flow(request)
            reply = yield again
        if self._is_refused(reply, sent):
            if self._token == sent and self._renew is not None and self._wait is not None:
                self._replace_token(self._wait(self._renew(sent)))
            if can_be_resent and self._has_new_token(request, sent):
                (again,) = self.auth_flow(request)
                reply = yield again
                if self._lacks_nonce(reply):
                    yield from self.auth_flow(request)

    @property
    def token(self) -> str:
        """The access token that the next request carries."""
        return self._token

    def on_wire(self, request: httpx.Request) -> httpx.Request:
        """Return the copy of a request that the transport sends.

        The copy has the token if this authentication handles the request and the request goes to
        one of the origins. In a request to another host, headers and query parameters with the
        token are removed: a hook may have added them.
        """
        sent = httpx.Request(
            request.method,
            request.url,
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        if not self.is_for(sent.url):
            self._remove_tokens(sent)
        chain = self._chain_of(sent)
        if chain is None:
            return sent
        chain.has_left = chain.has_left or not self.is_for(sent.url)
        chain.carried = None if chain.has_left else self._token
        if chain.carried is not None:
            carrier = self._carrier if self._key is None else Carrier(scheme=HEADER)
            carrier.put(sent, chain.carried)
            if self._key is not None and self._now is not None:
                sent.headers[HEADER] = proof_of(
                    self._key,
                    method=sent.method,
                    url=sent.url,
                    now=self._now(),
                    nonce=self._nonces.get(_origin(sent.url)),
                    token=chain.carried,
                )
        return sent

    def _chain_of(self, request: httpx.Request) -> _RedirectChain | None:
        chain = request.extensions.get(_CHAIN)
        return chain if isinstance(chain, _RedirectChain) and chain.of is self else None

    def _remove_tokens(self, request: httpx.Request) -> None:
        for name, value in request.headers.items():
            if not self._tokens.isdisjoint([value, *value.replace(",", " ").split()]):
                del request.headers[name]
        pairs = request.url.params.multi_items()
        others = [(name, value) for name, value in pairs if value not in self._tokens]
        if others != pairs:
            request.url = request.url.copy_with(params=others)

    def _replace_token(self, newer: Newer) -> None:
        if newer is not None:
            self._token, self._key = newer
            self._tokens.add(self._token)

    def _is_refused(self, reply: httpx.Response, sent: str) -> bool:
        """Return True if the API refused this token. Refusals by a redirect's host do not count."""
        chain = self._chain_of(reply.request)
        return reply.status_code == 401 and chain is not None and chain.carried == sent

    def _lacks_nonce(self, reply: httpx.Response) -> bool:
        """Return True if the API refused the request for lack of a nonce, and store the nonce."""
        if self._key is None or not self.is_for(reply.request.url):
            return False
        nonce, origin = wanted_nonce(reply), _origin(reply.request.url)
        if nonce is None or nonce == self._nonces.get(origin):
            return False
        self._nonces[origin] = nonce
        return True

    def _has_new_token(self, request: httpx.Request, sent: str) -> bool:
        return self._token != sent and self.is_for(request.url)

    def __repr__(self) -> str:
        return f"BearerAuth('***', origins={tuple(sorted(self._origins))!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an access token cannot be pickled or copied")


class KeyTransport(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """A transport that passes each request through `on_wire`, and sends the result with `inner`."""

    def __init__(
        self, inner: httpx.AsyncBaseTransport | httpx.BaseTransport, on_wire: OnWire
    ) -> None:
        self._inner: Any = inner
        self._on_wire = on_wire

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        reply: httpx.Response = self._inner.handle_request(self._on_wire(request))
        return reply

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        reply: httpx.Response = await self._inner.handle_async_request(self._on_wire(request))
        return reply


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _can_be_resent(request: httpx.Request) -> bool:
    """Return True if the request can be sent again: a streamed body can be sent only once."""
    return isinstance(request.stream, httpx.ByteStream)


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The account data that the service passes to the tool."""

    provider: str
    id: str
    label: str
    name: str | None = None
    picture: str | None = None
    scopes: tuple[str, ...]
    missing: tuple[str, ...] = ()
    tenant: str | None = None
    details: Mapping[str, str] = {}
    access_token: str
    dpop_key: str | None = None  # the private key that the access token is bound to
    carrier: Carrier = Carrier()
    api: str
    api_hosts: tuple[str, ...]
    connection: str | None = None  # the connection's id, to get a newer access token with
    team: str | None = None

    def __repr__(self) -> str:
        return f"Content({self.provider!r}, {self.label!r})"


class Account(Explained):
    """A connected account: its person, its granted scopes, and HTTP clients that may use it.

    `missing` are scopes that the tool asked for and that were not granted. The person is not asked
    for them again, unless the tool asks with `again=True`. `tenant` is the host of the account's
    tenant. `details` has the values that the provider's declaration stores with its option `keep`,
    such as members of the token reply. `team` is the name of the team that owns the account, or
    None for the person's own account.
    """

    __slots__ = (
        *("_auth", "_content", "_resources"),
        *("api", "api_hosts", "details", "id", "label", "missing", "name", "picture"),
        *("provider", "scopes", "team", "tenant"),
    )

    def __init__(self, content: Content, *, resources: Resources) -> None:
        self.provider: str = content.provider
        self.id: str = content.id
        self.label: str = content.label
        self.name: str | None = content.name
        self.picture: str | None = content.picture
        self.scopes: tuple[str, ...] = content.scopes
        self.missing: tuple[str, ...] = content.missing
        self.tenant: str | None = content.tenant
        self.details: Mapping[str, str] = content.details
        self.team: str | None = content.team
        self.api: str = content.api
        self.api_hosts: tuple[str, ...] = content.api_hosts
        self._content = content
        self._resources = resources
        connection = content.connection
        renew = None if connection is None else partial(resources.renew, connection)
        # All clients of the account share this object, so all of them use a renewed token.
        self._auth = BearerAuth(
            content.access_token,
            origins=content.api_hosts,
            renew=renew,
            wait=resources.wait,
            carrier=content.carrier,
            key=content.dpop_key,
            now=resources.now,
        )

    @property
    def access_token(self) -> str:
        """The access token as it was when the tool got the account, for use with other libraries.

        For an account that was connected with `elicit.api_key`, it is the API key. For a user name
        and a password, it is both in the encoding of HTTP Basic.

        A `client()` adds the access token itself, and renews it when the provider rejects it. A
        token that is bound to a key (`dpop`) works in a `client()` only.
        """
        return self._content.access_token

    @verb
    async def invalidate(self) -> None:
        """Report that the provider's API refused `access_token`, for example with 401.

        Call this if you use the token without `client()`, which reports refusals itself. The next
        `elicit.oauth` then renews the token, once across all processes, or asks the person to
        connect the account again. This object keeps the refused token. Nothing happens if the token
        was replaced already, or if it was issued less than 30 seconds ago: another new token would
        be refused as well.

        Returns:
            None, once the refusal is stored.

        Raises:
            NotSupported: The program asks over the HTTP API, where the server renews the token.
            StoreUnavailable: The refusal could not be stored.
        """
        connection = self._content.connection or ""
        await self._resources.invalidate(connection, self._content.access_token)

    def client(self) -> httpx.AsyncClient:
        """Return an httpx client that sends the access token to the provider's API hosts only.

        The client decompresses responses of any size. If you do not trust the API with that, send
        `accept-encoding: identity` and stream the response.

        Returns:
            A client whose base address is `api`. Use it as a context manager.
        """
        auth = self._auth
        return self._resources.client(base_url=self.api, auth=auth, on_wire=auth.on_wire)

    def sync_client(self) -> httpx.Client:
        """Return a synchronous client for a `def` tool, which runs in a worker thread.

        Returns:
            A client like that of `client()`.

        Raises:
            ElicitError: The caller is on the event loop, which the client would block.
        """
        auth = self._auth
        return self._resources.sync_client(base_url=self.api, auth=auth, on_wire=auth.on_wire)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Account):
            return NotImplemented
        return self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash((self.provider, self.id))

    def __repr__(self) -> str:
        return (
            f"Account(provider={self.provider!r}, id={self.id!r}, label={self.label!r}, "
            f"scopes={self.scopes!r}, access_token='***')"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "an account cannot be pickled or copied, because it contains an access token and "
            "the current call"
        )

    def _facts(self) -> Content:
        return replace(self._content, connection=None)


def account_of(content: Json, resources: Resources) -> Account:
    """Return the account that an accepted answer's `content` describes.

    Raises:
        msgspec.ValidationError: The content is not an account.
    """
    return Account(msgspec.convert(content, Content), resources=resources)
