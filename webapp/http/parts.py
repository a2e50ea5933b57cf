"""Routes that are compiled once a process; each request brings the parts of its own server."""

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from litestar import Request
from litestar.di import Provide

from webapp.http.connection import Receive, Scope, Send

_PARTS = "elicit_url.parts"
AnyRequest: TypeAlias = Request[Any, Any, Any]


def bring(scope: Scope, parts: dict[str, Any]) -> None:
    """Let the routes that this request comes to find the parts."""
    scope[_PARTS] = parts


def part(name: str) -> Callable[[AnyRequest], Any]:
    """How a route or an error's handler finds that part."""

    def find(request: AnyRequest) -> Any:
        return cast("Any", request.scope)[_PARTS][name]

    return find


def provided(**names: str) -> dict[str, Provide]:
    """Dependencies of routes: each parameter's name with the part's."""
    return {
        parameter: Provide(part(name), sync_to_thread=False) for parameter, name in names.items()
    }


async def nothing_to_begin(receive: Receive, send: Send) -> None:
    """The lifespan of what has nothing to begin or end."""
    for moment in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{moment}.complete"})
