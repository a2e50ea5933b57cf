"""The place in a request that carries an account's access token or API key.

Risks: a key in a query parameter appears in logs, errors and traces, which all write a request's
URL. So the URL that carries a key is written without the key. Or a redirect takes a key to another
host: httpx removes the Authorization header then, but no other header (see `BearerAuth`).
"""

import httpx
from msgspec import Struct

AUTHORIZATION = "Authorization"
# Headers that each request sets itself; a declaration must not repeat them.
OUR_HEADERS = frozenset(
    {
        "accept",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "transfer-encoding",
        "user-agent",
    }
)
# Headers that cannot carry a key: a proxy or a client uses or removes them.
NO_KEY_HEADERS = (OUR_HEADERS - {"authorization"}) | {
    *("accept-encoding", "expect", "forwarded", "origin", "proxy-authorization", "range"),
    *("referer", "set-cookie", "te", "trailer", "upgrade", "via"),
}


class Carrier(Struct, frozen=True, kw_only=True):
    """A header with the token after its scheme, or the query parameter `query`."""

    header: str = AUTHORIZATION
    scheme: str = "Bearer"
    query: str | None = None

    def put(self, request: httpx.Request, token: str) -> None:
        """Add the token to the request, in place of one that it has already."""
        if self.query is None:
            request.headers[self.header] = self._value(token)
        else:
            request.url = _KeyedUrl(str(request.url), name=self.query, key=token)

    def _value(self, token: str) -> str:
        return f"{self.scheme} {token}" if self.scheme else token


class _KeyedUrl(httpx.URL):
    """A URL that is sent with a key in its query, and written without the key."""

    def __init__(self, url: str, *, name: str, key: str) -> None:
        super().__init__(httpx.URL(url).copy_set_param(name, key))
        self._shown = url

    def __str__(self) -> str:
        return self._shown

    def __repr__(self) -> str:
        return f"_KeyedUrl({self._shown!r})"
