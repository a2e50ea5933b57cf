"""The sandbox's hosted checkout: the page where a person pays with nothing, and its router.

What could go wrong: a form of another site pays in this browser, or the page is taken for a real
one and somebody types a card. So each form carries a mark bound to the browser's cookie, and there
is no field in which a card could be typed.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from litestar import MediaType, Response, Router, get, post
from litestar.background_tasks import BackgroundTask
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, RawBody

from webapp.browser import Browser
from webapp.sandbox.pages import SandboxPages
from webapp.sandbox.settings import Sandbox
from webapp.sandbox.stripe_api import BODY_BYTES_AT_MOST, AnyRequest, StripeApi, api_router
from webapp.sandbox.stripe_events import Deliveries, Pause
from webapp.sandbox.stripe_sessions import Session
from webapp.sandbox.stripe_till import Till

_FIELDS_AT_MOST = 10
_log = logging.getLogger(__name__)


def checkout_router(
    sandbox: Sandbox,
    *,
    clock: Callable[[], datetime],
    deliver: Callable[[httpx.Request], Awaitable[httpx.Response]],
    pause: Pause = asyncio.sleep,
) -> Router:
    """The checkout's API under /stripe and its pages under /pay.

    `deliver` sends a webhook; `pause` passes the seconds before one is sent again.
    """
    deliveries = Deliveries(
        url=sandbox.webhook_url,
        secret=sandbox.webhook_secret,
        clock=clock,
        deliver=deliver,
        pause=pause,
    )
    till = Till(url=sandbox.url, clock=clock)
    api = StripeApi(key=sandbox.stripe_key, till=till, deliveries=deliveries, clock=clock)
    csrf_key = secrets.token_bytes(32)
    checkout = Checkout(
        till=till,
        deliveries=deliveries,
        browser=Browser(public_url=sandbox.url, csrf_keys=lambda: [csrf_key]),
        # A shop's addresses come with each session, from whoever has the key.
        pages=SandboxPages(form_targets=("http:", "https:")),
        style=files("webapp.sandbox").joinpath("pay.css").read_bytes(),
    )

    # Litestar copies what a method is bound to, and with it all the state; a function it does not.
    def refusal(request: AnyRequest, error: HTTPException) -> Response[Any]:
        return checkout.refusal(request, error)

    def failure(request: AnyRequest, error: Exception) -> Response[Any]:
        return checkout.failure(request, error)

    pages = Router(
        "/",
        route_handlers=[show, press, stylesheet],
        request_max_body_size=BODY_BYTES_AT_MOST,
        # By type; that for HTTPException covers what the framework itself refuses.
        exception_handlers={HTTPException: refusal, Exception: failure},
    )
    return Router(
        "/",
        route_handlers=[api_router(), pages],
        dependencies={
            "api": Provide(lambda: api, sync_to_thread=False),
            "checkout": Provide(lambda: checkout, sync_to_thread=False),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """What a person meets: a page for each state of a session, and what its buttons do."""

    till: Till
    deliveries: Deliveries
    browser: Browser
    pages: SandboxPages
    style: bytes

    def page(self, session: Session, request: AnyRequest) -> Response[Any]:
        """The page of a session, as it stands."""
        cookie = self.browser.cookie_of(request.cookies)
        is_new = cookie is None
        cookie = cookie or self.browser.fresh()
        values = {
            "session": session,
            "shop": urlsplit(session.success_url).netloc,
            "until": datetime.fromtimestamp(session.expires_at, UTC),
            "csrf": self.browser.csrf(cookie, subject=session.id),
            "here": f"/pay/{session.id}",
        }
        response = self._behind(self.pages.page(self._template(session), values))
        if is_new:
            response.headers["set-cookie"] = self.browser.set_cookie(cookie)
        return response

    def press(self, session: Session, button: str) -> Response[Any]:
        """Do what the button says, and send the browser on."""
        here = f"/pay/{session.id}"
        match button:
            case "card" if self.till.pay(session):
                url = session.back_url
            case "arrive" if self.till.arrive(session):
                url = session.back_url
            case "fail" if self.till.bounce(session):
                url = session.back_url
            case "cancel" if session.cancel_url is not None and session.status == "open":
                url = session.cancel_url
            case "declined":
                self.till.decline(session)
                url = here
            case "bank":
                self.till.pay_later(session)
                url = here
            case _:  # too late: the page tells what became of it
                url = here
        headers = {"location": url, "cache-control": "no-store", "referrer-policy": "no-referrer"}
        return self._behind(
            Response(
                b"",
                status_code=HTTPStatus.SEE_OTHER,
                media_type=MediaType.TEXT,
                headers=headers,
            )
        )

    def is_ours(self, session: Session, request: AnyRequest, body: bytes) -> bool:
        """Whether a form came from our page in this browser."""
        cookie = self.browser.cookie_of(request.cookies)
        try:
            fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS_AT_MOST)
        except ValueError:  # more fields than our form has
            return False
        marks = fields.get("csrf", [])
        return (
            cookie is not None
            and len(marks) == 1
            and self.browser.is_csrf(marks[0], cookie, subject=session.id)
        )

    def refusal(self, _: AnyRequest, error: HTTPException) -> Response[Any]:
        status = HTTPStatus(error.status_code)
        if status == HTTPStatus.NOT_FOUND:
            return self.pages.page("pay_unknown.html", {}, status=status)
        return self.pages.trouble("This did not work", f"{status.phrase}.", status=status)

    def failure(self, _: AnyRequest, error: Exception) -> Response[Any]:
        _log.error("checkout.failed", exc_info=error)
        return self.pages.trouble(
            "This did not work",
            "Something broke in the sandbox.",
            status=HTTPStatus.INTERNAL_SERVER_ERROR,
        )

    def _template(self, session: Session) -> str:
        if session.status == "open":
            return "pay.html"
        if session.status == "expired":
            return "pay_expired.html"
        if session.payment_status == "paid":
            return "paid.html"
        return "pay_awaited.html" if self.till.is_awaited(session) else "pay_failed.html"

    def _behind(self, response: Response[Any]) -> Response[Any]:
        """The answer, with the events that it caused leaving behind it."""
        response.background = BackgroundTask(self.deliveries.send, self.till.news())
        return response


@get("/pay/{id:str}")
async def show(
    request: AnyRequest, id: FromPath[str], checkout: NamedDependency[Checkout]
) -> Response[Any]:
    """What there is to pay, or what became of it."""
    return checkout.page(_known(id, checkout), request)


@post("/pay/{id:str}/{button:str}", status_code=HTTPStatus.SEE_OTHER)
async def press(
    request: AnyRequest,
    *,
    id: FromPath[str],
    button: FromPath[str],
    body: RawBody,
    checkout: NamedDependency[Checkout],
) -> Response[Any]:
    """Press card, declined, bank, cancel; or arrive or fail, for a transfer under way."""
    session = _known(id, checkout)
    if not checkout.is_ours(session, request, body):
        return checkout.pages.trouble(
            "Please start from the page",
            "The form did not come from this page in this browser. Are cookies switched off?",
            status=HTTPStatus.FORBIDDEN,
        )
    return checkout.press(session, button)


@get("/pay.css", sync_to_thread=False)
def stylesheet(checkout: NamedDependency[Checkout]) -> Response[bytes]:
    return Response(
        checkout.style,
        media_type="text/css",
        headers={"cache-control": "max-age=3600", "x-content-type-options": "nosniff"},
    )


def _known(id: str, checkout: Checkout) -> Session:
    session = checkout.till.session(id)
    if session is None:
        raise NotFoundException
    return session
