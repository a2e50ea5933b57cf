"""The table of our routes, compiled once. Each request carries the parts of its own server.

A route is listed either for people or for programs. That decides whether an error is answered with
a page or with problem details.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from litestar import Litestar, Response, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException

from webapp.http.address import PLAIN_PATH
from webapp.http.connection import Receive, Scope, Send
from webapp.http.parts import AnyRequest, bring, part, provided
from webapp.http.requests import Bounded
from webapp.http.root_path import under
from webapp.identity.users import note_request
from webapp.routes.answers import Answers
from webapp.routes.callbacks import called_back, come_back, provider_answers, provider_returns
from webapp.routes.connections import connections, disconnect, keep, reconnect, switch, unshare
from webapp.routes.decisions import approve_request, decline_request, inbox, look, revoke
from webapp.routes.home import alive, home, ready, static
from webapp.routes.links import allow, decline, go_on, live, show, show_user_code
from webapp.routes.page_request import page_request
from webapp.routes.payments import payments, request_refund
from webapp.routes.signin import offer_pairing, pair, sign_in, sign_out, signed_in
from webapp.routes.webhooks import hooked
from webapp.service import Service
from webapp.telemetry.work import working

BODY_BYTES_AT_MOST = 64 * 1024


@cache
def routes() -> Litestar:
    """Return our routes. They read the server's parts from the scope of each request."""
    answers_of: Callable[[AnyRequest], Answers] = part("answers")

    def page(request: AnyRequest, error: Exception) -> Response[Any]:
        return answers_of(request).page_for_error(request, error)

    def details(request: AnyRequest, error: Exception) -> Response[Any]:
        return answers_of(request).problem_for_error(request, error)

    def either(request: AnyRequest, error: Exception) -> Response[Any]:
        return answers_of(request).for_error(request, error)

    # Error handlers by type. HTTPException is what the framework itself raises.
    for_people = Router(
        "/",
        route_handlers=[
            show,
            go_on,
            allow,
            decline,
            show_user_code,
            sign_in,
            signed_in,
            sign_out,
            offer_pairing,
            pair,
            come_back,
            provider_answers,
            provider_returns,
            connections,
            disconnect,
            unshare,
            keep,
            switch,
            reconnect,
            payments,
            request_refund,
            inbox,
            look,
            approve_request,
            decline_request,
            revoke,
            home,
        ],
        exception_handlers={Exception: page, HTTPException: page},
    )
    for_programs = Router(
        "/",
        route_handlers=[live, called_back, hooked, alive, ready, static],
        exception_handlers={Exception: details, HTTPException: details},
    )
    return Litestar(
        [for_people, for_programs],
        dependencies={
            **provided(service="service", served="served"),
            "page": Provide(page_request),
        },
        exception_handlers={Exception: either, HTTPException: either},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=BODY_BYTES_AT_MOST,
    )


class Ours:
    """The ASGI application of our routes for one server."""

    def __init__(self, *, service: Service, parts: Mapping[str, object], root_path: str) -> None:
        self._app = Bounded(routes())
        self._parts = {"service": service, **parts}
        self._tracer = service.telemetry.tracer
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        note_request(scope)
        bring(scope, self._parts)
        # The framework refuses websocket requests.
        name = f"{scope.get('method', 'GET')} /{scope['path'].split('/')[1]}"
        with working(name, tracer=self._tracer):
            await self._app(scope, receive, under(self._root_path, send))


def why_unknown(path: str, *, url: str) -> str | None:
    """Return a hint for the operator if the path without its first segment is ours, else None."""
    prefix, _, rest = path[1:].partition("/")
    if not (rest and PLAIN_PATH.fullmatch(f"/{prefix}") and is_ours(f"/{rest}")):
        return None
    return (
        f"A proxy forwards requests with the path prefix /{prefix}, which ELICIT_URL ({url}) does "
        f"not have. Set ELICIT_URL to {url}/{prefix}, or make the proxy remove the prefix."
    )


def is_ours(path: str) -> bool:
    exact, beginnings = _paths()
    return path in exact or path.startswith(beginnings)


@cache
def _paths() -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the paths of routes without a parameter, and the prefixes of those with one."""
    split = [route.path.partition("{") for route in routes().routes]
    exact = frozenset(path for path, parameter, _ in split if not parameter)
    return exact, tuple({beginning for beginning, parameter, _ in split if parameter})
