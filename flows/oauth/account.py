"""An account that a person connected, and the key to it, which goes to the provider's hosts only.

What could go wrong: the key leaves. By a redirect or a full address in a call: it is added only
where a request's origin is one of the provider's. By a tool that returns its account or logs it:
neither class is a dataclass, so what serialises those finds no members and is left with the repr.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import partial
from typing import Any, NoReturn, TypeAlias

import httpx
import msgspec
from msgspec.structs import replace

from flows.elicitation.states import Json
from flows.question import Resources

Renew: TypeAlias = Callable[[str], Coroutine[Any, Any, str | None]]
Wait: TypeAlias = Callable[[Coroutine[Any, Any, str | None]], str | None]


class BearerAuth(httpx.Auth):
    """Adds the key to what goes to one of these origins, and to nothing else.

    `renew` is asked once for each request whose key the provider's API refused (401), and told
    which: it gives a newer one, or None. What can be sent again then is. A client in a worker
    thread waits for it by `wait`.
    """

    __slots__ = ("_origins", "_renew", "_token", "_wait")

    def __init__(
        self,
        token: str,
        *,
        origins: tuple[str, ...],
        renew: Renew | None = None,
        wait: Wait | None = None,
    ) -> None:
        self._token = token
        self._origins = frozenset(origins)
        self._renew = renew
        self._wait = wait

    def is_for(self, url: httpx.URL) -> bool:
        """Whether what goes there gets the key."""
        return f"{url.scheme}://{url.netloc.decode('ascii')}" in self._origins

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        # httpx follows redirects below this and takes the header off where the origin changes.
        if self.is_for(request.url):
            request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        sent, is_whole = self._token, _is_whole(request)
        (first,) = self.auth_flow(request)
        reply = yield first
        if self._is_refused(reply, sent):
            # Also where nothing can be sent again: else a revoked key is never found out.
            if self._token == sent and self._renew is not None:
                self._token = await self._renew(sent) or sent
            if is_whole and self._is_other(request, sent):
                (again,) = self.auth_flow(request)
                yield again

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        sent, is_whole = self._token, _is_whole(request)
        (first,) = self.auth_flow(request)
        reply = yield first
        if self._is_refused(reply, sent):
            if self._token == sent and self._renew is not None and self._wait is not None:
                self._token = self._wait(self._renew(sent)) or sent
            if is_whole and self._is_other(request, sent):
                yield from self.auth_flow(request)

    def _is_refused(self, reply: httpx.Response, sent: str) -> bool:
        return reply.status_code == 401 and self._has_carried(reply.request, sent)

    def _is_other(self, request: httpx.Request, sent: str) -> bool:
        return self._token != sent and self.is_for(request.url)

    def _has_carried(self, request: httpx.Request, token: str) -> bool:
        """It was answered at home, with the key: not where a redirect led to."""
        is_ours = request.headers.get("Authorization") == f"Bearer {token}"
        return is_ours and self.is_for(request.url)

    def __repr__(self) -> str:
        return f"BearerAuth('***', origins={tuple(sorted(self._origins))!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a key to an account is not pickled or copied")


def _is_whole(request: httpx.Request) -> bool:
    """Whether it can be sent again: a body that is a stream is gone once it was sent."""
    return isinstance(request.stream, httpx.ByteStream)


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """An account as the service hands it to the tool."""

    provider: str
    id: str
    label: str
    name: str | None = None
    picture: str | None = None
    scopes: tuple[str, ...]
    access_token: str
    api: str
    api_hosts: tuple[str, ...]
    connection: str | None = None  # what is asked for a newer key

    def __repr__(self) -> str:
        return f"Content({self.provider!r}, {self.label!r})"


class Account:
    """Whose account it is, what it may be used for, and a way to use it."""

    __slots__ = (
        *("_auth", "_content", "_resources"),
        *("api", "api_hosts", "id", "label", "name", "picture", "provider", "scopes"),
    )

    def __init__(self, content: Content, *, resources: Resources) -> None:
        self.provider = content.provider
        self.id = content.id
        self.label = content.label
        self.name = content.name
        self.picture = content.picture
        self.scopes = content.scopes
        self.api = content.api
        self.api_hosts = content.api_hosts
        self._content = content
        self._resources = resources
        connection = content.connection
        renew = None if connection is None else partial(resources.renew, connection)
        # One for all its clients: what one of them was given, the others use too.
        self._auth = BearerAuth(
            content.access_token, origins=content.api_hosts, renew=renew, wait=resources.wait
        )

    @property
    def access_token(self) -> str:
        """The key as it was handed out, for a library that wants it.

        `client()` needs no one to hold it, and goes on with a newer one where this one is over.
        """
        return self._content.access_token

    def client(self) -> httpx.AsyncClient:
        """Make a client for the provider's API, authorised there and nowhere else.

        It is httpx's own: it unpacks what comes, of any size. Where that is not to be trusted, ask
        for `accept-encoding: identity` and stream.
        """
        return self._resources.client(base_url=self.api, auth=self._auth)

    def sync_client(self) -> httpx.Client:
        """The same for a `def` tool, which runs in a worker thread and may block there.

        Raises ElicitError on the event loop, which it would stop for everybody.
        """
        return self._resources.sync_client(base_url=self.api, auth=self._auth)

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
        raise TypeError("an account is not pickled or copied: it holds a key and a call")

    def _facts(self) -> Content:
        return replace(self._content, connection=None)


def account_of(content: Json, resources: Resources) -> Account:
    """Make the account of what an accepted question holds; raises msgspec.ValidationError."""
    return Account(msgspec.convert(content, Content), resources=resources)
