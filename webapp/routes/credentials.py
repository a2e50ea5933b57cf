"""The server's own token in a browser's request, which identifies the browser for rate limits.

Risks: a rate limit on an address blocks people for the requests of others at the same address, for
example in an office or behind a proxy. A request with a valid sealed token is therefore counted by
its token. A request with an invalid token, or without one, is counted by its address.
"""

from dataclasses import dataclass
from typing import Final

from flows.crypto.tokens import Purpose
from flows.errors import InvalidToken
from webapp.http.browser import cookies_of, query_of
from webapp.http.exchange import Scope
from webapp.service import Service

_IN_PATHS: Final = (("/e/", Purpose.LINK), ("/callback/url/", Purpose.CALLBACK))
_IN_QUERIES: Final = (("state", Purpose.STATE), ("elicitation", Purpose.RETURN))
_COOKIES_BYTES_AT_MOST: Final = 8192  # ours are shorter; parsing more is too expensive in a flood


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    scope: Scope


def credential_of(service: Service, scope: Scope) -> str | None:
    """Return the name of this request's valid link, return token or session, or None."""
    request, path = _Request(scope=scope), scope["path"]
    tried = [
        (path.removeprefix(begins).partition("/")[0], purpose)
        for begins, purpose in _IN_PATHS
        if path.startswith(begins)
    ]
    query = query_of(request)
    tried += [(text, purpose) for name, purpose in _IN_QUERIES for text in query.get(name, [])[:1]]
    for text, purpose in tried:
        try:
            claims = service.links.read(text, purpose=purpose, now=service.clock())
        except InvalidToken:
            continue
        return f"link {claims.id}"
    if sum(len(value) for name, value in scope["headers"] if name == b"cookie") > (
        _COOKIES_BYTES_AT_MOST
    ):
        return None
    return service.identity.sessions.named(cookies_of(request))
