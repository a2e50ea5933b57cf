"""Access to the server's parts for routes that are compiled once for each process."""

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from litestar import Request
from litestar.di import Provide

from webapp.http.connection import Receive, Scope, Send

_PARTS = "elicit_url.parts"
AnyRequest: TypeAlias = Request[Any, Any, Any]


def bring(scope: Scope, parts: dict[str, Any]) -> None:
    """Store the server's parts in the scope for the routes."""
    scope[_PARTS] = parts


def part(name: str) -> Callable[[AnyRequest], Any]:
    """Return a function that finds the named part for a route or an error handler."""

    def find(request: AnyRequest) -> Any:
        return cast("Any", request.scope)[_PARTS][name]

    return find


def provided(**names: str) -> dict[str, Provide]:
    """Return dependencies for routes, from parameter names to part names."""
    return {
        parameter: Provide(part(name), sync_to_thread=False) for parameter, name in names.items()
    }


async def nothing_to_begin(receive: Receive, send: Send) -> None:
    """Run the lifespan of an application that has nothing to start or stop."""
    for moment in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{moment}.complete"})
