"""An account that a person connected, and the key to it, which goes to the provider's hosts only.

What could go wrong: the key leaves. By a redirect or a full address in a call: it is added only
where a request's origin is one of the provider's. By a tool that returns its account or logs it:
neither class is a dataclass, so what serialises those finds no members and is left with the repr.
"""

from collections.abc import Generator
from typing import NoReturn

import httpx
import msgspec

from flows.elicitation import Json
from flows.question import Reach


class BearerAuth(httpx.Auth):
    """Adds the key to what goes to one of these origins, and to nothing else."""

    __slots__ = ("_origins", "_token")

    def __init__(self, token: str, *, origins: tuple[str, ...]) -> None:
        self._token = token
        self._origins = frozenset(origins)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        # httpx follows redirects below this and takes the header off where the origin changes.
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        if origin in self._origins:
            request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    def __repr__(self) -> str:
        return f"BearerAuth('***', origins={tuple(sorted(self._origins))!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a key to an account is not pickled or copied")


class Account:
    """Whose account it is, what it may be used for, and a way to use it."""

    __slots__ = (
        "_access_token",
        "_reach",
        "api",
        "api_hosts",
        "id",
        "label",
        "name",
        "picture",
        "provider",
        "scopes",
    )

    def __init__(
        self,
        *,
        provider: str,
        id: str,
        label: str,
        name: str | None = None,
        picture: str | None = None,
        scopes: tuple[str, ...],
        access_token: str,
        api: str,
        api_hosts: tuple[str, ...],
        reach: Reach,
    ) -> None:
        self.provider = provider
        self.id = id
        self.label = label
        self.name = name
        self.picture = picture
        self.scopes = scopes
        self.api = api
        self.api_hosts = api_hosts
        self._access_token = access_token
        self._reach = reach

    @property
    def access_token(self) -> str:
        """The key itself, for a library that wants it; `client()` needs no one to hold it."""
        return self._access_token

    def client(self) -> httpx.AsyncClient:
        """Make a client for the provider's API, authorised there and nowhere else."""
        auth = BearerAuth(self._access_token, origins=self.api_hosts)
        return self._reach.client(base_url=self.api, auth=auth)

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

    def _facts(self) -> tuple[object, ...]:
        return (
            self.provider,
            self.id,
            self.label,
            self.name,
            self.picture,
            self.scopes,
            self._access_token,
            self.api,
            self.api_hosts,
        )


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

    def __repr__(self) -> str:
        return f"Content({self.provider!r}, {self.label!r})"


def account_of(content: Json, reach: Reach) -> Account:
    """Make the account of what an accepted question holds; raises msgspec.ValidationError."""
    found = msgspec.convert(content, Content)
    return Account(
        provider=found.provider,
        id=found.id,
        label=found.label,
        name=found.name,
        picture=found.picture,
        scopes=found.scopes,
        access_token=found.access_token,
        api=found.api,
        api_hosts=found.api_hosts,
        reach=reach,
    )
