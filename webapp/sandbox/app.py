"""The sandbox as one ASGI application on an origin of its own.

What could go wrong: a stranger's page that rebinds its name to this machine, or a sandbox that
strangers reach. It answers under its own host and port only, and is not made for anything but
loopback.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import cache
from http import HTTPStatus
from typing import Any

import httpx
from litestar import Litestar, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, RawBody

from webapp.http.browser import Browser
from webapp.http.connection import Receive, Scope, Send
from webapp.http.guard import Guard
from webapp.http.parts import AnyRequest, bring, nothing_to_begin, part, provided
from webapp.http.requests import Bounded
from webapp.sandbox.authorization import authorization_parts, authorization_routes
from webapp.sandbox.authorization_client import bearer_of
from webapp.sandbox.authorization_faults import Faults, PlayedFault
from webapp.sandbox.checkout import checkout_parts, checkout_routes
from webapp.sandbox.deliveries import Pause
from webapp.sandbox.pages import NO_STORE, SandboxPages, assets
from webapp.sandbox.people import person_of
from webapp.sandbox.settings import Sandbox, require_loopback

BODY_BYTES_AT_MOST = 64 * 1024
_CSRF_KEY_BYTES = 32
_log = logging.getLogger(__name__)


class SandboxApp:
    """Everything of the sandbox; `deliver` posts what the checkout has to tell.

    `pause` passes the seconds before it is posted again. Raises ValueError unless it stands on
    loopback and serves nothing but loopback.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        clock: Callable[[], datetime],
        deliver: Callable[[httpx.Request], Awaitable[httpx.Response]],
        pause: Pause = asyncio.sleep,
    ) -> None:
        for url in (sandbox.url, *sandbox.redirect_origins):
            require_loopback(url)
        require_loopback(_origin(sandbox.webhook_url))
        self._faults = faults = Faults()
        pages = SandboxPages(form_targets=sandbox.redirect_origins)
        csrf_key = secrets.token_bytes(_CSRF_KEY_BYTES)
        browser = Browser(public_url=sandbox.url, csrf_keys=lambda: [csrf_key])
        self._parts: dict[str, Any] = {
            "sandbox": sandbox,
            "faults": faults,
            "pages": pages,
            **authorization_parts(
                sandbox, clock=clock, faults=faults, pages=pages, browser=browser
            ),
            **checkout_parts(sandbox, clock=clock, deliver=deliver, pause=pause),
        }
        # Around the routing too: a middleware would not see a path that nobody has.
        self._guarded = Guard(Bounded(_routes()), public_url=sandbox.url)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await nothing_to_begin(receive, send)
            self._faults.release()
            return
        bring(scope, self._parts)
        await self._guarded(scope, receive, send)


@cache
def _routes() -> Litestar:
    return Litestar(
        [
            *authorization_routes(),
            *checkout_routes(),
            Router(
                "/",
                route_handlers=[style, icon, picture, control],
                dependencies=provided(sandbox="sandbox", faults="faults"),
            ),
        ],
        exception_handlers={Exception: _for_error, HTTPException: _for_error},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=BODY_BYTES_AT_MOST,
    )


@get("/sandbox.css", sync_to_thread=False)
def style() -> Response[Any]:
    return _asset("sandbox.css")


@get("/sandbox.svg", sync_to_thread=False)
def icon() -> Response[Any]:
    return _asset("sandbox.svg")


@get("/people/{name:str}", sync_to_thread=False)
def picture(name: FromPath[str]) -> Response[Any]:
    person = person_of(name.removesuffix(".png"))
    if person is None:
        raise NotFoundException
    return _public(person.picture, media_type="image/png")


@post("/control", status_code=HTTPStatus.OK, sync_to_thread=False)
def control(
    request: AnyRequest,
    body: RawBody,
    *,
    sandbox: NamedDependency[Sandbox],
    faults: NamedDependency[Faults],
) -> Response[Any]:
    """Plan a fault: {"next": "500"}; let held replies go: {"release": true}."""
    key = (bearer_of(request.headers) or "").encode()
    if not secrets.compare_digest(key, sandbox.client_secret.encode()):
        return _problem(HTTPStatus.UNAUTHORIZED, "The bearer must be the client's password.")
    try:
        wish = json.loads(body)
        fault = PlayedFault(wish["next"]) if "next" in wish else None
        is_released = wish.get("release", False) is True
    except (ValueError, TypeError, AttributeError, RecursionError):
        known = ", ".join(PlayedFault)
        return _problem(HTTPStatus.BAD_REQUEST, f'Say "next" with one of {known}.')
    if fault is not None:
        faults.plan(fault)
    if is_released:
        faults.release()
    return Response({"next": faults.planned}, headers=NO_STORE)


def _for_error(request: AnyRequest, error: Exception) -> Response[Any]:
    """A page for a browser, problem details for a program."""
    if isinstance(error, HTTPException) and error.status_code < 500:
        status = HTTPStatus(error.status_code)
        detail = f"{status.phrase}."
    else:
        _log.error("sandbox.failed", exc_info=error)
        status, detail = HTTPStatus.INTERNAL_SERVER_ERROR, "Something broke in the sandbox."
    if "text/html" in request.headers.get("accept", ""):
        title = "There is no such page" if status == 404 else "That did not work"
        pages: SandboxPages = part("pages")(request)
        return pages.trouble(title, detail, status=status)
    return _problem(status, detail)


def _problem(status: HTTPStatus, detail: str) -> Response[Any]:
    """RFC 9457."""
    problem = {"type": "about:blank", "title": status.phrase, "status": status, "detail": detail}
    return Response(
        problem, status_code=status, media_type="application/problem+json", headers=NO_STORE
    )


def _asset(name: str) -> Response[Any]:
    content, media_type = assets()[name]
    return _public(content, media_type=media_type)


def _public(content: bytes, *, media_type: str) -> Response[Any]:
    headers = {
        "cache-control": "max-age=3600",
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    }
    return Response(content, media_type=media_type, headers=headers)


def _origin(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
