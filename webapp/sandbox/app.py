"""The sandbox as one ASGI application on its own origin.

Risks: a stranger's page that rebinds its DNS name to this machine, or a sandbox that strangers can
reach. The sandbox answers only under its own host and port, and only on loopback.

`elicit serve` serves the sandbox itself. `embedded_sandbox` serves it next to an application that
is served in another way.
"""

import asyncio
import contextlib
import logging
import secrets
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cache, partial
from http import HTTPStatus
from typing import Any

import httpx
import msgspec
import uvicorn
from litestar import Litestar, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException
from litestar.params import RawBody

from flows.origin import written_origin
from webapp.http.client import refuse_packed
from webapp.http.edge import Edge, Guard
from webapp.http.exchange import Receive, Scope, Send
from webapp.http.parts import AnyRequest, answer_from, empty_lifespan, part, provided
from webapp.sandbox.authorization.granted import bearer_of
from webapp.sandbox.authorization.habits import Faults, SimulatedFault
from webapp.sandbox.authorization.server import authorization_parts, authorization_routes
from webapp.sandbox.checkout.answers import BODY_BYTES_AT_MOST, ProviderApi, SandboxAnswers
from webapp.sandbox.checkout.deliveries import Deliver, Outside, Pause
from webapp.sandbox.mollie import mollie_api, mollie_routes
from webapp.sandbox.pages import NO_STORE, Checkout, SandboxPages, assets, checkout_routes
from webapp.sandbox.paypal.api import paypal_api, paypal_routes
from webapp.sandbox.settings import Sandbox, new_sandbox, require_loopback
from webapp.sandbox.stripe.api import stripe_api, stripe_routes

_log = logging.getLogger(__name__)


class SandboxApp:
    """The ASGI application of the sandbox.

    `deliver` posts the webhooks of the checkout, and `pause` waits before a retry.

    Raises:
        ValueError: The sandbox or the server that it serves is not on loopback.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        clock: Callable[[], datetime],
        deliver: Deliver,
        pause: Pause = asyncio.sleep,
    ) -> None:
        for url in (sandbox.url, *sandbox.redirect_origins):
            require_loopback(url)
        require_loopback(written_origin(sandbox.webhook_url))
        self._faults = faults = Faults()
        pages = SandboxPages(url=sandbox.url, form_targets=sandbox.redirect_origins)
        outside = Outside(clock=clock, deliver=deliver, pause=pause)
        apis: dict[str, ProviderApi] = {
            "stripe": stripe_api(sandbox, outside),
            "paypal": paypal_api(sandbox, outside),
            "mollie": mollie_api(sandbox, outside),
        }
        # For callers that run the sandbox in their own process.
        self.sales = tuple(api.sales for api in apis.values())
        checkout = Checkout(
            sales=self.sales,
            # The shop's addresses come with each sale, from the program with the API key.
            pages=SandboxPages(url=sandbox.url, form_targets=("http:", "https:")),
        )
        self._parts: dict[str, Any] = {
            "sandbox": sandbox,
            "faults": faults,
            "pages": pages,
            **authorization_parts(sandbox, clock=clock, faults=faults, pages=pages),
            **{name: SandboxAnswers(api) for name, api in apis.items()},
            "checkout": checkout,
        }
        # The edge wraps the complete routing: a middleware would not see unknown paths.
        self._guarded = Edge(
            partial(answer_from, _routes(), parts=self._parts), guard=Guard(public_url=sandbox.url)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await empty_lifespan(receive, send)
            self._faults.release()
            return
        await self._guarded(scope, receive, send)


@cache
def _routes() -> Litestar:
    return Litestar(
        [
            *authorization_routes(),
            stripe_routes(),
            paypal_routes(),
            mollie_routes(),
            checkout_routes(),
            Router(
                "/",
                route_handlers=[asset, control, health],
                dependencies=provided(sandbox="sandbox", faults="faults"),
            ),
        ],
        exception_handlers={Exception: _for_error, HTTPException: _for_error},
        openapi_config=None,
        logging_config=None,
        request_max_body_size=BODY_BYTES_AT_MOST,
    )


@get(list(assets()), sync_to_thread=False)
def asset(request: AnyRequest) -> Response[Any]:
    """Return a public asset, which can be cached for an hour."""
    content, media_type = assets()[request.scope["path"]]
    headers = {
        "cache-control": "max-age=3600",
        "x-content-type-options": "nosniff",
        "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    }
    return Response(content, media_type=media_type, headers=headers)


@get("/health", sync_to_thread=False)
def health(sandbox: NamedDependency[Sandbox]) -> dict[str, str]:
    """Return which server this sandbox serves. `elicit` asks this if its port is in use."""
    return {"proof": "", "sandbox_of": sandbox.serves}


class FaultWish(msgspec.Struct):
    next: SimulatedFault | msgspec.UnsetType = msgspec.UNSET
    release: bool = False


@post("/control", status_code=HTTPStatus.OK, sync_to_thread=False)
def control(
    request: AnyRequest,
    body: RawBody,
    *,
    sandbox: NamedDependency[Sandbox],
    faults: NamedDependency[Faults],
) -> Response[Any]:
    """Plan a fault with {"next": "500"}, or release held replies with {"release": true}."""
    key = (bearer_of(request.headers) or "").encode()
    if not secrets.compare_digest(key, sandbox.client_secret.encode()):
        return _problem(HTTPStatus.UNAUTHORIZED, "The bearer token must be the client secret.")
    try:
        wish = msgspec.json.decode(body, type=FaultWish)
    except msgspec.DecodeError:
        known = ", ".join(SimulatedFault)
        return _problem(HTTPStatus.BAD_REQUEST, f'Send JSON, with "next" set to one of {known}.')
    if wish.next is not msgspec.UNSET:
        faults.plan(wish.next)
    if wish.release:
        faults.release()
    return Response({"next": faults.planned}, headers=NO_STORE)


def _for_error(request: AnyRequest, error: Exception) -> Response[Any]:
    """Return a page for a browser and problem details for a program."""
    if isinstance(error, HTTPException) and error.status_code < 500:
        status = HTTPStatus(error.status_code)
        detail = f"{status.phrase}."
    else:
        _log.error("sandbox.failed", exc_info=error)
        status, detail = HTTPStatus.INTERNAL_SERVER_ERROR, "The sandbox failed: see its log."
    if "text/html" in request.headers.get("accept", ""):
        title = "There is no such page" if status == 404 else "That did not work"
        pages: SandboxPages = part("pages")(request)
        return pages.trouble(title, detail, status=status)
    return _problem(status, detail)


def _problem(status: HTTPStatus, detail: str) -> Response[Any]:
    """Return problem details (RFC 9457)."""
    problem = {"type": "about:blank", "title": status.phrase, "status": status, "detail": detail}
    return Response(
        problem, status_code=status, media_type="application/problem+json", headers=NO_STORE
    )


async def delivering_sandbox(
    stack: contextlib.AsyncExitStack, sandbox: Sandbox, *, clock: Callable[[], datetime]
) -> SandboxApp:
    """Return the sandbox, which delivers its webhooks until the stack is closed."""
    # Webhooks are delivered to this machine, where no server uses TLS.
    client = await stack.enter_async_context(
        httpx.AsyncClient(
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            event_hooks={"response": [refuse_packed]},
        )
    )
    return SandboxApp(sandbox, clock=clock, deliver=client.send)


# The sandbox next to an application, on a port of its own.

_LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def embedded_sandbox(
    *, serves: str, clock: Callable[[], datetime]
) -> AsyncGenerator[Sandbox]:
    """Serve a sandbox for the application at `serves`.

    Raises:
        ValueError: The application is not at an origin on loopback.
    """
    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(socket.create_server((_LOOPBACK, 0)))
        url = f"http://{_LOOPBACK}:{listener.getsockname()[1]}"
        sandbox = new_sandbox(url=url, serves=serves)
        app = await delivering_sandbox(stack, sandbox, clock=clock)
        pages = _Pages(
            uvicorn.Config(
                app, lifespan="off", access_log=False, log_config=None, log_level="warning"
            )
        )
        serving = asyncio.create_task(pages.serve(sockets=[listener]))
        try:
            yield sandbox
        finally:
            pages.should_exit = pages.force_exit = True
            await serving


class _Pages(uvicorn.Server):
    """A uvicorn server that leaves signals to the server of the application."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield
