"""The edge: the one layer that every request passes, before the application that its path names.

The edge begins the `exchange`, which reads the request once. Then the edge lets the guard check the
request, limits page requests, and adds Strict-Transport-Security (RFC 6797) to every response. This
header makes browsers use only https for this host until the header expires.

Risks: that header applies to every port of the host and cannot be revoked before it expires, so
other services on the host become unreachable over http. The operator therefore has to enable it. It
never includes subdomains (includeSubDomains), which may not belong to the operator.

The guard checks Host, Origin and path.

MCP libraries check nothing by default, so a web page that rebinds its host name to 127.0.0.1 could
run tools as the person who reads the page. A client address in a header is only trusted if a
configured proxy sent the request.

`/mcp` accepts only the origins that the operator names, and refuses even the origin of our pages.
The reason is an attack by another user of this machine: that user runs a server on our port at
another address, lets a browser load a page from it, and stops the server. Requests of that page
would then reach us with our own origin. A service worker that such a page installed would stay in
the browser, so the guard answers a request for a service worker script with a script that
unregisters the worker.

Browsers send `Origin: null` for our own forms, because our pages set `Referrer-Policy:
no-referrer`. Sandboxed frames send it too, so forms need CSRF tokens anyway.
"""

import logging
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from html import escape
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any, TypeAlias

from webapp.http.address import (
    Authority,
    Misplaced,
    PublicAddress,
    origin_of,
    placed,
    plain_ip,
    written_path,
)
from webapp.http.browser import page_headers
from webapp.http.exchange import (
    PROXIED_KEY,
    ASGIApp,
    Exchange,
    Facts,
    Receive,
    Scope,
    Send,
    problem,
    send_answer,
)
from webapp.http.rate_limit import Rates, TooOften, address_key

Network: TypeAlias = IPv4Network | IPv6Network

# First path segments that programs request. Programs use different names of loopback and do not
# follow redirects well, so their requests are not redirected to the public host name.
FOR_PROGRAMS = frozenset(
    ("mcp", ".well-known", "live", "ready", "health", "metrics", "webhooks", "api")
)

# Parts of a path that two parsers can read as different routes: dot segments, empty segments,
# backslashes, encoded separators and dots (also encoded twice), incomplete escapes, control
# characters.
_CROOKED = re.compile(
    r"//|\\|/\.{1,2}(?:/|$)|%2[ef]|%5c|%(?![0-9a-f]{2})|[\x00-\x20\x7f]", re.IGNORECASE
)
_CROOKED_DECODED = re.compile(r"//|\\|/\.{1,2}(?:/|$)|%2[ef]|%5c|[\x00-\x1f\x7f]", re.IGNORECASE)

_CALLS = "mcp"
# A form on a provider's page posts to this path (`response_mode=form_post`). The POST route reads
# no cookie and changes nothing: it redirects to the same path, where the callback is checked.
_PROVIDERS_FORM = re.compile(r"/callback/[a-z][a-z0-9_]{0,31}")
PROBES = ("/ready", "/health")
_OTHER_SITE = "A page of another site sent this request, so the server refused it."
_NO_CALLER = (
    "A page in a browser made this call, and its origin is not in ELICIT_ORIGINS, so the server "
    "refused it."
)
_WORKER = b"""\
self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil((async () => {
  await self.registration.unregister();
  const pages = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  await Promise.all(pages.map((page) => page.navigate(page.url).catch(() => null)));
})()));
"""
_WORKER_HEADERS = {"content-type": "text/javascript", "service-worker-allowed": "/"}
_COMMON = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}

_logger = logging.getLogger("webapp.http.guard")  # the name in the log lines of earlier versions


class _Refusal(Exception):
    """A refused request. `do` tells the operator what to configure."""

    def __init__(
        self, *, status: HTTPStatus, code: str, detail: str, do: str | None = None
    ) -> None:
        super().__init__(code)
        self.do = do
        self.status = status
        self.code = code
        self.detail = detail


class Guard:
    """The checks that refuse requests not meant for this server."""

    def __init__(
        self,
        *,
        public_url: str,
        allowed_origins: frozenset[str] = frozenset(),
        trusted_proxies: tuple[Network, ...] = (),
        stripped_path: str = "",
        any_host_paths: frozenset[str] = frozenset(),
    ) -> None:
        """`stripped_path` is the prefix that a proxy strips before the request arrives here.

        `any_host_paths` are served for any host name, because browsers cannot use them. Raises
        ValueError for an invalid address or origin.
        """
        self._address = PublicAddress.parse(public_url)
        self._named_origins = {_required_origin(text) for text in allowed_origins}
        own = (self._address.scheme, self._address.authority)
        self._page_origins = {*self._named_origins, own}
        self._trusted_proxies = trusted_proxies
        self._stripped_path = stripped_path
        self._any_host_paths = any_host_paths
        self._warned = set[str]()  # codes of the refusals that were already logged as a warning

    async def admit(self, scope: Scope, receive: Receive, exchange: Exchange) -> Scope | None:
        """Return the scope as the application sees it, or answer the request and return None."""
        facts, send, address = exchange.facts, exchange.send, self._address
        try:
            if facts.headers.keys() >= {b"transfer-encoding", b"content-length"}:
                raise _two_lengths()
            if b"service-worker" in facts.headers and self._is_for_worker(scope, facts):
                await send_answer(send, HTTPStatus.OK, _WORKER, {**_COMMON, **_WORKER_HEADERS})
                return None
            _check_path(scope)
            try:
                scope = placed(
                    scope,
                    url=address.url,
                    root_path=address.root_path,
                    stripped=self._stripped_path,
                )
            except Misplaced as error:
                raise self._misplaced(scope, error) from error
            exchange.segment = scope["path"].split("/", 2)[1]
            if self._trusted_proxies:
                scope = self._seen_past_proxies(scope, exchange)
            is_elsewhere = self._check_host(scope, exchange)
            self._check_origin(scope, exchange)
        except _Refusal as refusal:
            self._log(refusal)
            await self._refuse(refusal, facts, scope, receive, send)
            return None
        if is_elsewhere:
            await self._redirect(scope, send)
            return None
        return scope

    def _is_for_worker(self, scope: Scope, facts: Facts) -> bool:
        """Return True if a browser requests a service worker script, at any path."""
        return (
            self._address.is_on_loopback
            and scope["type"] == "http"
            and facts.headers.get(b"service-worker") == ["script"]
            and facts.host(scheme=self._address.scheme)
            in {self._address.authority, *self._address.aliases}
        )

    def _misplaced(self, scope: Scope, error: Misplaced) -> _Refusal:
        if error.is_mounted:
            status, code = HTTPStatus.BAD_REQUEST, "path-mounted"
        else:
            status, code = HTTPStatus.NOT_FOUND, "path-elsewhere"
        # only the operator can fix the address, and the operator monitors the health checks
        if written_path(scope) in PROBES:
            status = HTTPStatus.SERVICE_UNAVAILABLE
        detail = f"This server answers at {self._address.url} only."
        return _Refusal(status=status, code=code, detail=detail, do=str(error))

    def _log(self, refusal: _Refusal) -> None:
        """Log a refusal, once as a warning if the operator can fix its cause, else as info."""
        if refusal.do is None or refusal.code in self._warned:
            _logger.info("guard.refused", extra={"code": refusal.code})
        else:
            self._warned.add(refusal.code)
            _logger.warning("guard.refused: %s", refusal.do, extra={"code": refusal.code})

    def _check_host(self, scope: Scope, exchange: Exchange) -> bool:
        """Return True to redirect the request: its host is another name of this machine."""
        host = exchange.facts.host(scheme=self._address.scheme)
        if host is None:
            raise _bad_request("host-malformed", "A request must name its host exactly once.")
        if host == self._address.authority or scope["path"] in self._any_host_paths:
            return False
        if host in self._address.aliases:
            if exchange.segment in FOR_PROGRAMS:
                return False
            if scope["type"] == "http" and scope["method"] in {"GET", "HEAD"}:
                return True
        raise _Refusal(
            status=HTTPStatus.MISDIRECTED_REQUEST,
            code="host-foreign",
            detail=f"This server answers at {self._address.url} only.",
            do=f"ELICIT_URL is {self._address.url}; set it to the address that people open.",
        )

    def _check_origin(self, scope: Scope, exchange: Exchange) -> None:
        if scope.get("method") == "POST" and _PROVIDERS_FORM.fullmatch(scope["path"]):
            return
        headers = exchange.facts.headers
        origins, sites = headers.get(b"origin"), headers.get(b"sec-fetch-site", [])
        calls = exchange.segment == _CALLS
        if not origins:
            # Browsers omit Origin in some same-origin requests, and then send Sec-Fetch-Site.
            is_meant = not calls or sites in ([], ["none"])
        elif origins == ["null"]:
            # Accepted except for /mcp, because each form has a CSRF token. Browsers that send
            # Sec-Fetch-Site say whether our own page sent the form; other browsers omit the header.
            is_meant = not calls and sites in ([], ["same-origin"])
        else:
            allowed = self._named_origins if calls else self._page_origins
            is_meant = len(origins) == 1 and origin_of(origins[0]) in allowed
        if not is_meant:
            raise _Refusal(
                status=HTTPStatus.FORBIDDEN,
                code="origin-foreign",
                detail=_NO_CALLER if calls else _OTHER_SITE,
            )

    def _seen_past_proxies(self, scope: Scope, exchange: Exchange) -> Scope:
        """Return the scope as the proxy saw it, if a configured proxy sent the request."""
        client = scope.get("client")
        if not client or not self._is_trusted(client[0]):
            return scope
        changes: dict[str, Any] = {PROXIED_KEY: True}
        chains = exchange.facts.headers.get(b"x-forwarded-for", [])
        if len(chains) > 1:
            raise _bad_proxy("The request has more than one X-Forwarded-For header.")
        for chain in chains:
            # The client at the first untrusted address wrote all entries to the left of it.
            for text in reversed(chain.split(",")):
                try:
                    address = plain_ip(text.strip())
                except ValueError:
                    raise _bad_proxy("X-Forwarded-For does not contain an IP address.") from None
                changes["client"] = (address, 0)
                if not self._is_trusted(address):
                    break
        schemes = exchange.facts.headers.get(b"x-forwarded-proto", [])
        if schemes:
            if len(schemes) > 1 or schemes[0].lower() not in {"http", "https"}:
                raise _bad_proxy("X-Forwarded-Proto is neither http nor https.")
            is_secure = schemes[0].lower() == "https"
            plain = "ws" if scope["type"] == "websocket" else "http"
            changes["scheme"] = plain + "s" * is_secure
        scope = {**scope, **changes}
        exchange.facts.note(scope)
        return scope

    def _is_trusted(self, text: str) -> bool:
        try:
            address = ip_address(plain_ip(text))
        except ValueError:
            return False
        return any(address in network for network in self._trusted_proxies)

    async def _redirect(self, scope: Scope, send: Send) -> None:
        query = scope.get("query_string", b"").decode("latin-1")
        target = written_path(scope) + (f"?{query}" if query else "")
        headers = {**_COMMON, "location": self._address.url + target}
        await send_answer(send, HTTPStatus.TEMPORARY_REDIRECT, b"", headers)

    async def _refuse(
        self, refusal: _Refusal, facts: Facts, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if _prefers_html(",".join(facts.headers.get(b"accept", []))):
            media_type, body = "text/html; charset=utf-8", _page(refusal, url=self._address.url)
        else:
            media_type = "application/problem+json"
            body = problem(refusal.status, detail=refusal.detail, code=refusal.code)
        prefix = ""
        if scope["type"] == "websocket":
            await receive()  # the handshake event must precede the response
            if "websocket.http.response" not in (scope.get("extensions") or {}):
                await send({"type": "websocket.close", "code": 1008})
                return
            prefix = "websocket."
        headers = {**_COMMON, "content-type": media_type}
        if refusal.code == "length-twice":  # the connection's later bytes are ambiguous too
            headers["connection"] = "close"
        await send_answer(send, refusal.status, body, headers, prefix=prefix)


def _page(refusal: _Refusal, *, url: str) -> bytes:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(refusal.status.phrase)}</title></head><body><main>"
        f"<h1>{escape(refusal.status.phrase)}</h1><p>{escape(refusal.detail)}</p>"
        f'<p>The address of this server is <a href="{escape(url)}/">{escape(url)}</a>.</p>'
        "</main></body></html>"
    ).encode()


def _prefers_html(accept: str) -> bool:
    """Return True if the header prefers HTML to JSON; wildcards are ignored (RFC 9110, 12.5.1)."""
    weights = {"html": 0.0, "json": 0.0}
    for choice in accept.lower().split(","):
        media_type, *parameters = (part.strip() for part in choice.split(";"))
        kind = media_type.rpartition("/")[2].rpartition("+")[2]
        if media_type == "text/html" or kind == "json":
            weight = next((value[2:] for value in parameters if value.startswith("q=")), "1")
            is_number = re.fullmatch(r"[01](\.[0-9]{0,3})?", weight) is not None
            weights[kind] = max(weights[kind], float(weight) if is_number else 0.0)
    return weights["html"] > weights["json"]


def _check_path(scope: Scope) -> None:
    raw = scope.get("raw_path")
    written = scope["path"] if raw is None else raw.decode("latin-1")
    pattern = _CROOKED_DECODED if raw is None else _CROOKED
    if (
        not written.startswith("/")
        or pattern.search(written)
        or _CROOKED_DECODED.search(scope["path"])
    ):
        raise _bad_request("path-malformed", "The path of this request is not normalized.")


def _two_lengths() -> _Refusal:
    """Return the refusal of a request with two body lengths (RFC 9112, 6.1).

    A proxy in front of this server may use one length, and this server the other.
    """
    return _bad_request(
        "length-twice",
        "A request must have either one Content-Length or one Transfer-Encoding: chunked, not "
        "both.",
    )


def _bad_request(code: str, detail: str) -> _Refusal:
    return _Refusal(status=HTTPStatus.BAD_REQUEST, code=code, detail=detail)


def _bad_proxy(detail: str) -> _Refusal:
    return _bad_request("proxy-malformed", detail)


def _required_origin(text: str) -> tuple[str, Authority]:
    origin = origin_of(text)
    if origin is None:
        raise ValueError(f"{text!r} is not an origin like https://app.example.com")
    return origin


# Programs are not limited by address: their tokens and signatures identify the caller.
_UNLIMITED = FOR_PROGRAMS | {"static"}


class Edge:
    """The outermost ASGI application, which routes each request by the first segment of its path.

    Page requests are counted by client address. If an address is over its limit, a request with a
    valid link, session or other token is counted by that token instead. People who share an address
    therefore cannot block each other.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        guard: Guard,
        routes: Mapping[str, ASGIApp] | None = None,
        rates: Rates | None = None,
        credential: Callable[[Scope], str | None] = lambda _: None,
        hsts: timedelta | None = None,
    ) -> None:
        """`app` serves the paths whose first segment is not in `routes`.

        `rates` limits page requests; `credential` returns the name of a request's valid token, or
        None.
        """
        self._app = app
        self._guard = guard
        self._routes = routes or {}
        self._rates = rates
        self._credential = credential
        self._added = list[tuple[bytes, bytes]]()
        if hsts is not None:
            value = f"max-age={int(hsts.total_seconds())}"
            self._added.append((b"strict-transport-security", value.encode()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        scope = {**scope}
        exchange = Exchange(scope, receive, send)
        exchange.added = self._added
        admitted = await self._guard.admit(scope, receive, exchange)
        if admitted is None:
            return
        segment = exchange.segment
        if self._rates is not None and scope["type"] == "http" and segment not in _UNLIMITED:
            wait = self._rates.consume(address_key(admitted))
            if wait and (credential := self._credential(admitted)) is not None:
                wait = self._rates.consume(credential)
            if wait:
                await _slow_down(exchange.send, TooOften(wait))
                return
        if exchange.has_unread_body:
            receive = exchange.next_message
        await self._routes.get(segment, self._app)(admitted, receive, exchange.send)


async def _slow_down(send: Send, error: TooOften) -> None:
    about = {"content-type": "text/plain; charset=utf-8", "retry-after": str(error.seconds)}
    status = HTTPStatus.TOO_MANY_REQUESTS
    await send_answer(send, status, str(error).encode(), {**page_headers(), **about})
