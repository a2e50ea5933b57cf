"""Access to the server's parts for routes that are compiled once for each process."""

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from types import ModuleType
from typing import Any, Final, TypeAlias, cast

from litestar import HttpMethod, Request, Response
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.response.base import ASGIResponse

from webapp.http.address import ROOT_KEY
from webapp.http.browser import FirstCookie
from webapp.http.exchange import ASGIApp, Receive, Scope, Send, exchange_of, send_answer

PATH_BYTES_AT_MOST = 4 * 1024
QUERY_BYTES_AT_MOST = 8 * 1024
# The methods of a read-only route (RFC 9110, 9.3.2). Monitors and scanners send HEAD.
READ: Final = (HttpMethod.GET, HttpMethod.HEAD)
_PARTS = "elicit_url.parts"
AnyRequest: TypeAlias = Request[Any, Any, Any]


async def answer_from(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, *, parts: Mapping[str, Any]
) -> None:
    """Run one of our own applications. Its routes find the server's `parts` in the scope.

    A request is refused before the framework reads it if its path or query is longer than any that
    this server uses. The application does not know the root path, so the exchange adds the root
    path to redirects to our own paths.
    """
    scope[_PARTS] = parts
    exchange_of(scope, receive, send).root_path = scope.get(ROOT_KEY, "").encode()
    if (
        len(scope["path"]) <= PATH_BYTES_AT_MOST
        and len(scope["query_string"]) <= QUERY_BYTES_AT_MOST
    ):
        await app(scope, receive, send)
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008})
    else:
        body = b"The address of this request is longer than any of this server.\n"
        headers = {"content-type": "text/plain; charset=utf-8"}
        await send_answer(send, HTTPStatus.REQUEST_URI_TOO_LONG, body, headers)


def part(name: str) -> Callable[[AnyRequest], Any]:
    """Return a function that finds the named part for a route or an error handler."""

    def find(request: AnyRequest) -> Any:
        return cast("Any", request.scope)[_PARTS][name]

    return find


def handlers_in(*modules: ModuleType) -> list[HTTPRouteHandler]:
    """Return the route handlers that the modules define, in their order."""
    values = [value for module in modules for value in vars(module).values()]
    return [value for value in values if isinstance(value, HTTPRouteHandler)]


def provided(**names: str) -> dict[str, Provide]:
    """Return dependencies for routes, from parameter names to part names."""
    return {
        parameter: Provide(part(name), sync_to_thread=False) for parameter, name in names.items()
    }


async def empty_lifespan(receive: Receive, send: Send) -> None:
    """Run the lifespan of an application that has nothing to start or stop."""
    for moment in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{moment}.complete"})


class Reply(Response[Any]):
    """A response that can set several cookies; each is a full Set-Cookie header."""

    def __init__(self, content: object, *, sets: Sequence[str] = (), **options: Any) -> None:
        super().__init__(content, **options)
        self.sets = tuple(sets)

    def to_asgi_response(self, *given: Any, **options: Any) -> ASGIResponse:
        response = cast("ASGIResponse", cast("Any", super()).to_asgi_response(*given, **options))
        for cookie in self.sets:
            response.headers.add("set-cookie", cookie)
        if any(isinstance(cookie, FirstCookie) and cookie.clears for cookie in self.sets):
            response.headers["clear-site-data"] = '"storage"'
        return response
