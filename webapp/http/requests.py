"""What our own routes read of a request, whatever a stranger puts into it.

What could go wrong: a request that costs more than it took to send. The framework reads cookies in
time that grows with their square, and keeps the last thousand cookies, queries and paths that it
saw. So cookies are split here, in one pass, and never decoded: those that we set need no decoding.
A query is split here too, and what is longer than any address of ours is refused before the
framework sees it. Routes of an author's own get everything as it came.
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
    """A request of any framework's."""

    @property
    def scope(self) -> Mapping[str, Any]: ...


class Bounded:
    """Passes on what could be a request of one of our pages, by the length of its address."""

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
    """Each cookie as it was sent; of two by one name the last. Foreign ones are no harm."""
    found: dict[str, str] = {}
    for name, value in request.scope["headers"]:
        if name == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                key, equals, word = pair.partition("=")
                if equals:
                    found[key.strip()] = word.strip()
    return found


def query_of(request: ReadRequest) -> Fields:
    """What stands in the query; nothing if it has more fields than any address of ours."""
    return parsed(request.scope["query_string"])


def parsed(text: bytes) -> Fields:
    """The fields of a form or a query; none if there are more than any form of ours has."""
    try:
        return parse_qs(
            text.decode("utf-8", "replace"),
            keep_blank_values=True,
            max_num_fields=_FIELDS_AT_MOST,
        )
    except ValueError:
        return {}
