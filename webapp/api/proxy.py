"""The proxy: sends a program's request to an account's provider and adds the access token.

Risks: the access token leaks. So requests go only to the hosts that the account allows, the URL
has one valid spelling, redirects are returned and not followed, and a token that the provider
repeats in its response is replaced by stars. A slow provider could use up the server's capacity, so
responses have a maximum size and duration, and each program has a limit of concurrent requests.

A browser, a cache, a proxy server or the program's HTTP library could mistake the provider's
response for a response of this server. So only listed response headers pass, and this server's own
headers override them. An HTTP library that follows a redirect to this server would send the API
key, so URLs in headers are made absolute against the requested URL, and URLs of this server are
removed. When libraries follow a redirect to another host they drop the key but send
`User-Access-Token`. So if the request had a person's token, the redirect's URL is returned in a
header that no library follows.
"""

import re
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import httpx
from litestar import HttpMethod, Response, route
from litestar.params import FromPath, QueryParameter

from flows.errors import Failed, InvalidQuestion
from flows.oauth.account import BearerAuth, Newer
from flows.oauth.connection import Connection
from flows.origin import URL_AT_MOST, origin_of
from webapp.api.access import ApiLimits, CurrentRequester, Requester, requires
from webapp.api.accounts import ProviderFailed, user_of_accounts, working_account_of
from webapp.api.representations import Whose
from webapp.http.address import PublicAddress
from webapp.http.parts import AnyRequest, part
from webapp.identity.api_keys import KeyScope
from webapp.service import Service

REQUEST_BYTES_AT_MOST: Final = 1024 * 1024
ANSWER_BYTES_AT_MOST: Final = 4 * 1024 * 1024
SECONDS_AT_MOST: Final = 30.0
_STARS: Final = b"***"
_OF_THE_CONNECTION: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length"),
    }
)
# Headers that identify the program to this server, or that a proxy on the way has added.
_OWN_HEADERS: Final = frozenset(
    {
        *("authorization", "user-access-token", "cookie", "host", "expect", "accept-encoding"),
        *("dpop", "origin", "referer", "forwarded", "via", "x-real-ip"),
    }
)
_FORWARDED: Final = ("x-forwarded-", "sec-", "x-elicit-")
# Headers of a provider's response that pass. None of them affects browsers, caches or proxies.
_PASSED: Final = frozenset(
    {
        *("content-type", "content-language", "content-disposition", "content-range"),
        *("accept-ranges", "allow", "etag", "last-modified", "retry-after", "deprecation"),
        *("sunset", "ratelimit", "request-id", "x-request-id", "x-correlation-id", "x-total"),
        *("x-total-count", "x-total-pages", "x-page", "x-per-page", "x-next-page", "x-prev-page"),
        *("x-next-cursor", "x-poll-interval", "x-oauth-scopes", "x-accepted-oauth-scopes"),
    }
)
_PASSED_FAMILIES: Final = ("ratelimit-", "x-ratelimit-", "x-rate-limit-")
_ADDRESSES: Final = ("location", "content-location")
# Matches a header value that is a URL, for example the URL of a next page. It finds URLs in headers
# that are not in `_ADDRESSES`.
_AN_ADDRESS: Final = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?[/\\]", re.IGNORECASE)
UNFOLLOWED_LOCATION: Final = "elicit-location"
_LINK: Final = re.compile(  # RFC 8288, 3
    r"\s*<([^<>\s\"]*)>"
    r"((?:\s*;\s*[\w!#$&+.^`|~-]+\*?(?:\s*=\s*(?:\"[^\"\\]*\"|[^\s\",;]+))?)*)\s*(?:,|$)"
)
_LINK_PARAMETER: Final = re.compile(
    r"(?:^|;)\s*((?:rel|title|type|hreflang)\s*=\s*(?:\"[^\"]*\"|[^\s\",;]+))"
)
_METHODS: Final = (
    *(HttpMethod.GET, HttpMethod.HEAD, HttpMethod.POST, HttpMethod.PUT),
    *(HttpMethod.PATCH, HttpMethod.DELETE),
)


class NotTheProvider(InvalidQuestion):
    """The account's token is not sent to this URL."""

    name = "NOT_THE_PROVIDER"


class ProviderTooSlow(ProviderFailed):
    """The provider took too long; the request may have had an effect."""

    name = "PROVIDER_TOO_SLOW"
    http_status = 504


_paces: Callable[[AnyRequest], ApiLimits] = part("paces")
_address_of = lru_cache(maxsize=16)(PublicAddress.parse)


@route(
    "/api/accounts/{account_id:str}/proxy",
    http_method=list(_METHODS),
    guards=[requires(KeyScope.ASK)],
    request_max_body_size=REQUEST_BYTES_AT_MOST,
    status_code=HTTPStatus.OK,
)
async def proxied(
    request: AnyRequest,
    *,
    account_id: FromPath[str],
    url: Annotated[str, QueryParameter(min_length=1, max_length=URL_AT_MOST)],
    requester: CurrentRequester,
    user: Whose = None,
) -> Response[bytes]:
    """Send this request to `url` at the account's provider, with the account's token.

    The method, body and headers are sent to the provider. The response has the provider's status,
    headers and body. Redirects are not followed.
    """
    service = requester.service
    body = await request.body()  # before a slot is occupied, because the program may send slowly
    found = await working_account_of(requester, account_id, user=user)
    auth = _auth(requester, found)
    asked = httpx.Request(
        request.method,
        _checked(url, auth),
        headers=_sent_on(request.headers.multi_items()),
        content=body or None,
        extensions={"timeout": httpx.Timeout(SECONDS_AT_MOST).as_dict()},
    )
    with _paces(request).proxied.one(requester.who):
        reply, tokens = await _answer(service, found, asked, auth=auth)
    if not HTTPStatus.OK <= reply.status_code < 600:
        raise ProviderFailed("The provider's response has an invalid status.")
    headers = _response_headers(
        reply, asked.url, tokens=tokens, public_address=_address_of(service.public_url)
    )
    if requester.person is not None and reply.is_redirect and "location" in headers:
        headers[UNFOLLOWED_LOCATION] = headers.pop("location")
    return _response(reply, headers, tokens=tokens, is_head=request.method == HttpMethod.HEAD)


def _auth(requester: Requester, found: Connection) -> BearerAuth:
    service = requester.service
    accounts = service.kinds.accounts
    _, origins = accounts.connections.reach(found)
    provider = accounts.connections.provider(found)
    tool, client = user_of_accounts(requester)
    return BearerAuth(
        found.access_token,
        origins=origins,
        carrier=None if provider is None else provider.carrier,
        key=found.dpop_key,
        now=service.clock,
        renew=partial(_newer, service, found, tool=tool, client=client),
    )


async def _newer(service: Service, found: Connection, refused: str, **whose: Any) -> Newer:
    keys = service.kinds.accounts.keys
    return await keys.instead_of(found.owner, found.id, refused=refused, **whose)


def _checked(url: str, auth: BearerAuth) -> httpx.URL:
    """Return the parsed URL. Raises NotTheProvider, which says how to write the URL."""
    try:
        origin_of(url)
        found = httpx.URL(url)
    except (InvalidQuestion, httpx.InvalidURL) as error:
        raise NotTheProvider(f"url: {error}") from None
    if found.fragment or not auth.is_for(found):
        raise NotTheProvider(
            "url is not at a host of this account's provider, and the token is sent only to those "
            "hosts: write the whole https address, without a fragment."
        )
    return found


def _sent_on(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    pairs = [(name.lower(), value) for name, value in headers]
    forwarded = _without_the_connections(pairs)
    return [
        pair
        for pair in forwarded
        if pair[0] not in _OWN_HEADERS and not pair[0].startswith(_FORWARDED)
    ]


def _without_the_connections(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Remove the hop-by-hop headers, which must not be forwarded (RFC 9110, 7.6.1)."""
    named = {
        word.strip().lower()
        for name, value in pairs
        if name == "connection"
        for word in value.split(",")
    }
    return [pair for pair in pairs if pair[0] not in _OF_THE_CONNECTION | named]


async def _answer(
    service: Service, found: Connection, asked: httpx.Request, *, auth: BearerAuth
) -> tuple[httpx.Response, set[str]]:
    """Return the provider's response and all tokens that were sent. Raises ProviderFailed."""
    client = service.kinds.accounts.connections.client(found)
    is_authors = client is None or not client.is_operators
    flow: AsyncGenerator[httpx.Request, httpx.Response] = auth.async_auth_flow(asked)
    tokens = set[str]()
    try:
        request = await anext(flow)
        while True:
            tokens.add(auth.token)
            reply = await service.outbound.send(
                auth.on_wire(request),
                bytes_at_most=ANSWER_BYTES_AT_MOST,
                seconds_at_most=SECONDS_AT_MOST,
                is_authors=is_authors,
                operation="proxy",
                provider="other" if is_authors else found.provider,
            )
            try:
                request = await flow.asend(reply)
            except StopAsyncIteration:
                return reply, tokens
    except httpx.TimeoutException:
        raise ProviderTooSlow(
            f"The provider did not finish its response within {SECONDS_AT_MOST:.0f} seconds. It "
            "could have executed the request anyway: check before you send it again."
        ) from None
    except httpx.HTTPError as error:
        raise ProviderFailed(
            f"The provider could not be reached ({type(error).__name__}): try again later."
        ) from None
    except Failed as error:
        raise ProviderFailed(str(error)) from None
    finally:
        await flow.aclose()


def _response_headers(
    reply: httpx.Response, asked: httpx.URL, *, tokens: set[str], public_address: PublicAddress
) -> dict[str, str]:
    """Return the response headers that pass; `asked` is the requested URL."""
    pairs = [
        (name.decode("latin-1").lower(), _starred(value, tokens).decode("latin-1"))
        for name, value in reply.headers.raw
    ]
    received: dict[str, list[str]] = {}
    for name, value in _without_the_connections(pairs):
        received.setdefault(name, []).append(value)
    headers = {
        name: ", ".join(values)
        for name, values in received.items()
        if name in _PASSED or name.startswith(_PASSED_FAMILIES)
    }
    named = [name for name, value in headers.items() if _AN_ADDRESS.match(value)]
    for name in named:
        del headers[name]
    for name in (*_ADDRESSES, *named):
        values = received.get(name, [])
        found = (
            _absolute(values[0], asked, public_address=public_address) if len(values) == 1 else None
        )
        if found is not None:
            headers[name] = found
    if links := _links(", ".join(received.get("link", [])), asked, public_address=public_address):
        headers["link"] = links
    return headers


def _absolute(value: str, asked: httpx.URL, *, public_address: PublicAddress) -> str | None:
    """Return the URL made absolute, or None if it is ambiguous or points to this server."""
    if not (value.isascii() and value.isprintable()) or "\\" in value or " " in value:
        return None
    try:
        url = str(asked.join(value))
        origin = origin_of(url)
    except (InvalidQuestion, httpx.InvalidURL, ValueError):
        return None
    return None if public_address.is_at(origin) else url


def _links(value: str, asked: httpx.URL, *, public_address: PublicAddress) -> str:
    """Return the allowed links of a Link header, or "" if the header cannot be parsed."""
    found, at = list[str](), 0
    if len(value) > URL_AT_MOST:
        return ""
    while at < len(value):
        link = _LINK.match(value, at)
        if link is None:
            return ""
        at = link.end()
        if (url := _absolute(link[1], asked, public_address=public_address)) is not None:
            found.append("; ".join([f"<{url}>", *_LINK_PARAMETER.findall(link[2])]))
    return ", ".join(found)


def _response(
    reply: httpx.Response, headers: dict[str, str], *, tokens: set[str], is_head: bool
) -> Response[bytes]:
    has_none = is_head or reply.status_code in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
    return Response(
        b"" if has_none else _starred(reply.content, tokens),
        status_code=reply.status_code,
        media_type=headers.get("content-type", "application/octet-stream"),
        headers=headers,
    )


def _starred(text: bytes, tokens: set[str]) -> bytes:
    for token in tokens:
        text = text.replace(token.encode(), _STARS)
    return text
