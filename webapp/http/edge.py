"""The edge: the one layer that every request passes, before the application that its path names.

It begins the `exchange`, which reads the request once, lets the guard check it, limits page
requests, and adds Strict-Transport-Security (RFC 6797) to every response: browsers use only https
for this host for some time.

Risks: that header applies to every port of the host and cannot be revoked before it expires, so
other services on the host become unreachable over http. The operator therefore has to enable it. It
never includes subdomains (includeSubDomains), which may not belong to the operator.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from http import HTTPStatus

from webapp.http.browser import page_headers
from webapp.http.connection import ASGIApp, Receive, Scope, Send, send_answer
from webapp.http.exchange import Exchange
from webapp.http.guard import FOR_PROGRAMS, Guard
from webapp.http.rate_limit import Rates, TooOften, address_key

# Programs are not limited by address: their tokens and signatures identify the caller.
_UNLIMITED = FOR_PROGRAMS | {"static"}


class Edge:
    """The outermost ASGI application, which routes each request by the first segment of its path.

    If an address is over its limit, a page request with a valid link, session or other token is
    counted by that token instead, so people who share an address cannot block each other.
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
            wait = self._rates.allow(address_key(admitted))
            if wait and (credential := self._credential(admitted)) is not None:
                wait = self._rates.allow(credential)
            if wait:
                await _slow_down(exchange.send, TooOften(wait))
                return
        if exchange.has_unread_body:
            receive = exchange.hear
        await self._routes.get(segment, self._app)(admitted, receive, exchange.send)


async def _slow_down(send: Send, error: TooOften) -> None:
    about = {"content-type": "text/plain; charset=utf-8", "retry-after": str(error.seconds)}
    status = HTTPStatus.TOO_MANY_REQUESTS
    await send_answer(send, status, str(error).encode(), {**page_headers(), **about})
