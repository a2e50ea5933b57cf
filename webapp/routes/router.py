"""The applications behind the edge, and the table of our routes, which is compiled once.

Several servers can share the table: each request carries the dependencies of its own server.

A route is for people, unless `_FOR_PROGRAMS` lists it. That decides whether an error is answered
with a page or with problem details.
"""

import logging
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from typing import Any, Final

from litestar import Litestar, Response, Router
from litestar.di import Provide
from litestar.exceptions import HTTPException

from flows.question import asking
from webapp.http.address import PLAIN_PATH, ROOT_KEY
from webapp.http.edge import PROBES
from webapp.http.exchange import ASGIApp, Receive, Scope, Send, problem, send_answer
from webapp.http.parts import AnyRequest, answer_from, empty_lifespan, handlers_in, part, provided
from webapp.identity.users import Users, note_request
from webapp.routes import (
    callbacks,
    connections,
    decisions,
    home,
    links,
    operator,
    operator_access,
    operator_records,
    own_pages,
    payments,
    signin,
    webhooks,
)
from webapp.routes.answers import Answers
from webapp.routes.page_request import page_request
from webapp.server import MCP_PATH, HostedApplication
from webapp.service import Service
from webapp.telemetry.work import working

BODY_BYTES_AT_MOST = 64 * 1024
_FOR_PROGRAMS: Final = (
    *(links.live, own_pages.live_list, callbacks.called_back, webhooks.hooked),
    *(signin.end_sessions, home.alive, home.ready, home.static),
)
_log = logging.getLogger(__name__)


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

    of_people = [links, signin, callbacks, connections, payments, decisions, own_pages, home]
    of_people += [operator_access, operator, operator_records]
    handlers = [each for each in handlers_in(*of_people) if each not in _FOR_PROGRAMS]
    # Error handlers by type. HTTPException is what the framework itself raises.
    for_people = Router(
        "/",
        route_handlers=handlers,
        exception_handlers={Exception: page, HTTPException: page},
    )
    for_programs = Router(
        "/",
        route_handlers=_FOR_PROGRAMS,
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


def own_routes(
    *, service: Service, answers: Answers, served: HostedApplication, users: Users
) -> ASGIApp:
    """Return the application of all paths that the edge sends to no other application.

    Our own routes come first. The served application gets only requests for other paths for which
    it has a route.
    """
    parts = {"service": service, "answers": answers, "served": served}
    tracer, has_warned = service.elicitations.telemetry.tracer, False

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal has_warned
        if scope["type"] == "lifespan":  # everything has started by now
            await empty_lifespan(receive, send)
            return
        path: str = scope["path"]
        is_off = path.startswith(operator_access.HERE) and not service.operators.is_on
        if not (is_own := is_our_path(path) and not is_off) and served.has_route(scope):
            # The author's own routes may complete questions: in trusted code, or with a return
            # token.
            with asking(service.completing, is_tool=None):
                await served(scope, receive, send)
            return
        if path == f"{MCP_PATH}/" and scope["type"] == "http":  # as the MCP libraries do
            to = {"location": scope.get(ROOT_KEY, "") + MCP_PATH}
            await send_answer(send, HTTPStatus.TEMPORARY_REDIRECT, b"", to)
            return
        why = None if is_own else why_unknown(path, url=service.public_url)
        if why is not None:
            if not has_warned:
                has_warned = True
                _log.warning("path.unknown: %s", why)
            if scope["type"] == "http" and path.endswith(PROBES):
                status = HTTPStatus.SERVICE_UNAVAILABLE
                body = problem(status, detail=why, code="path-unknown")
                await send_answer(send, status, body, {"content-type": "application/problem+json"})
                return
        if users.who is not None:
            note_request(scope)
        # The framework refuses websocket requests.
        with working(f"{scope.get('method', 'GET')} /{path.split('/')[1]}", tracer=tracer):
            await answer_from(routes(), scope, receive, send, parts=parts)

    return route


def why_unknown(path: str, *, url: str) -> str | None:
    """Return a hint for the operator if a proxy added a prefix to one of our paths, else None."""
    prefix, _, rest = path[1:].partition("/")
    if not (rest and PLAIN_PATH.fullmatch(f"/{prefix}") and is_our_path(f"/{rest}")):
        return None
    return (
        f"A proxy forwards requests with the path prefix /{prefix}, which ELICIT_URL ({url}) does "
        f"not have. Set ELICIT_URL to {url}/{prefix}, or make the proxy remove the prefix."
    )


def is_our_path(path: str) -> bool:
    exact, beginnings = _paths()
    return path in exact or path.startswith(beginnings)


@cache
def _paths() -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the paths of routes without parameters, and the prefixes of routes with parameters."""
    split = [route.path.partition("{") for route in routes().routes]
    exact = frozenset(path for path, parameter, _ in split if not parameter)
    return exact, tuple({beginning for beginning, parameter, _ in split if parameter})
