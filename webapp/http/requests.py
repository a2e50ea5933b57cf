"""Reading of cookies and queries from untrusted requests.

Risks: a request costs more to read than to send. The framework parses cookies in quadratic time and
caches the last thousand cookies, queries and paths. Cookies are therefore split here in one pass
and not decoded, because our own cookies need no decoding. Queries are parsed here too. An address
that is longer than any of this server's is refused before the framework reads it. An author's own
routes receive everything unchanged.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Protocol, TypeAlias
from urllib.parse import parse_qs

from webapp.http.answer import send_answer
from webapp.http.connection import ASGIApp, Receive, Scope, Send

PATH_BYTES_AT_MOST = 4 * 1024
QUERY_BYTES_AT_MOST = 8 * 1024
_FIELDS_AT_MOST = 1000

Fields: TypeAlias = dict[str, list[str]]


class ReadRequest(Protocol):
    """A request of any framework."""

    @property
    def scope(self) -> Mapping[str, Any]: ...


class Bounded:
    """Middleware that refuses requests whose path or query is too long for our pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_request = scope["type"] in ("http", "websocket")
        if not is_request or (
            len(scope["path"]) <= PATH_BYTES_AT_MOST
            and len(scope["query_string"]) <= QUERY_BYTES_AT_MOST
        ):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            body = b"The address of this request is longer than any of this server.\n"
            headers = {"content-type": "text/plain; charset=utf-8"}
            await send_answer(send, HTTPStatus.REQUEST_URI_TOO_LONG, body, headers)


def cookies_of(request: ReadRequest) -> dict[str, str]:
    """Return the cookies as sent; of two with the same name, the last."""
    found: dict[str, str] = {}
    for name, value in request.scope["headers"]:
        if name == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                key, equals, word = pair.partition("=")
                if equals:
                    found[key.strip()] = word.strip()
    return found


def query_of(request: ReadRequest) -> Fields:
    """Return the fields of the query, or none if there are too many."""
    return parsed(request.scope["query_string"])


def parsed(text: bytes) -> Fields:
    """Return the fields of a form or a query, or none if there are too many."""
    try:
        return parse_qs(
            text.decode("utf-8", "replace"),
            keep_blank_values=True,
            max_num_fields=_FIELDS_AT_MOST,
        )
    except ValueError:
        return {}
