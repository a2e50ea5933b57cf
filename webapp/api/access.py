"""Who calls: the key of a request, what it may do, and how often.

What could go wrong: a key that is guessed, or one whose program runs wild. So whoever brings none
that works is held back by their address before the store is asked again, and each key by its own
rate. A key in the address would stand in logs, and in a cookie a page could use it: neither is
looked at.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeAlias, cast

from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler

from flows.errors import NotAllowed
from webapp.deadline import Clock
from webapp.http.address import headers_of
from webapp.http.parts import AnyRequest, part
from webapp.http.rate_limit import Rates, address_key
from webapp.identity.api_keys import ApiKeyRefused, KeyScope
from webapp.records.values import ApiKey
from webapp.service import Service

REQUESTS_AT_ONCE: Final = 100
BETWEEN_REQUESTS: Final = timedelta(milliseconds=100)
REFUSED_AT_ONCE: Final = 30  # of one address
BETWEEN_REFUSED: Final = timedelta(seconds=1)
_KEY: Final = "elicit_url.api_key"
_AnyConnection: TypeAlias = ASGIConnection[Any, Any, Any, Any]
_Check: TypeAlias = Callable[[_AnyConnection, BaseRouteHandler], Awaitable[None]]


class Paces:
    """How often each key may call, and each address without one."""

    def __init__(self, *, clock: Clock) -> None:
        self.keys = Rates(burst=REQUESTS_AT_ONCE, every=BETWEEN_REQUESTS, clock=clock)
        self.refused = Rates(burst=REFUSED_AT_ONCE, every=BETWEEN_REFUSED, clock=clock)


def holds(*scopes: KeyScope) -> _Check:
    """A guard of routes: the request has a key with one of these scopes."""

    async def check(connection: _AnyConnection, _: BaseRouteHandler) -> None:
        request = cast("AnyRequest", connection)
        service, paces = _service(request), _paces(request)
        key = await _key_of(request, service, paces)
        paces.keys.require(key.id)
        if not set(scopes) & set(key.scopes):
            raise NotAllowed(
                f"This key may {' and '.join(key.scopes)}, and this needs one that may "
                f"{' or '.join(scopes)}: make it with `elicit api-keys new`."
            )
        cast("Any", connection.scope)[_KEY] = key

    return check


def key_of(request: AnyRequest, service: NamedDependency[Service]) -> ApiKey:
    """The key that the guard has found.

    It asks for the service so that it comes after it: Litestar makes a group of tasks for what it
    may bring at once, which took a tenth of the time of a request.
    """
    del service
    found: ApiKey = cast("Any", request.scope)[_KEY]
    return found


_service: Callable[[AnyRequest], Service] = part("service")
_paces: Callable[[AnyRequest], Paces] = part("paces")


async def _key_of(request: AnyRequest, service: Service, paces: Paces) -> ApiKey:
    """Raises ApiKeyRefused, TooOften."""
    address = address_key(request.scope)
    if paces.refused.wait(address):
        paces.refused.require(address)
    try:
        return await service.api_keys.of(_text_of(request))
    except ApiKeyRefused:
        paces.refused.allow(address)
        raise


def _text_of(request: AnyRequest) -> str:
    """The one key, in its one place. Raises ApiKeyRefused."""
    credentials = headers_of(cast("Any", request.scope), b"authorization")
    scheme, _, text = credentials[0].partition(" ") if len(credentials) == 1 else ("", "", "")
    if scheme.lower() != "bearer":
        raise ApiKeyRefused("This needs an API key, in one header: Authorization: Bearer KEY.")
    return text.strip(" ")
