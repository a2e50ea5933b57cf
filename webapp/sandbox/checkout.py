"""The sandbox's payment pages, where a person pays with nothing, and the router of all of them.

What could go wrong: a form of another site pays in this browser, or the page is taken for a real
one and somebody types a card. So each form carries a mark bound to the browser's cookie, and there
is no field in which a card could be typed.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from litestar import MediaType, Response, Router, get, post
from litestar.background_tasks import BackgroundTask
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException, NotFoundException
from litestar.params import FromPath, RawBody

from webapp.http.browser import Browser
from webapp.http.parts import AnyRequest, part, provided
from webapp.http.requests import cookies_of
from webapp.sandbox.answers import BODY_BYTES_AT_MOST
from webapp.sandbox.deliveries import Pause
from webapp.sandbox.mollie_api import mollie_counter, mollie_routes
from webapp.sandbox.pages import SandboxPages
from webapp.sandbox.paypal_api import paypal_counter, paypal_routes
from webapp.sandbox.purchases import Counter, Purchase
from webapp.sandbox.settings import Sandbox
from webapp.sandbox.stripe_api import stripe_counter, stripe_routes

_FIELDS_AT_MOST = 10
_log = logging.getLogger(__name__)


def checkout_parts(
    sandbox: Sandbox,
    *,
    clock: Callable[[], datetime],
    deliver: Callable[[httpx.Request], Awaitable[httpx.Response]],
    pause: Pause = asyncio.sleep,
) -> dict[str, Any]:
    """What the routes need, by name.

    `deliver` sends a webhook; `pause` passes the seconds before one is sent again.
    """
    about: Any = {"clock": clock, "deliver": deliver, "pause": pause}
    stripe, stripe_api = stripe_counter(sandbox, **about)
    paypal, paypal_api = paypal_counter(sandbox, **about)
    mollie, mollie_api = mollie_counter(sandbox, **about)
    csrf_key = secrets.token_bytes(32)
    checkout = Checkout(
        counters=(stripe, paypal, mollie),
        browser=Browser(public_url=sandbox.url, csrf_keys=lambda: [csrf_key]),
        # A shop's addresses come with each purchase, from whoever has the key.
        pages=SandboxPages(form_targets=("http:", "https:")),
        style=files("webapp.sandbox").joinpath("pay.css").read_bytes(),
    )
    apis = {"stripe": stripe_api, "paypal": paypal_api, "mollie": mollie_api}
    return {**apis, "checkout": checkout}


def checkout_routes() -> list[Router]:
    """The APIs under /stripe, /paypal and /mollie, and their pages under /pay."""
    checkout_of: Callable[[AnyRequest], Checkout] = part("checkout")

    def refusal(request: AnyRequest, error: HTTPException) -> Response[Any]:
        return checkout_of(request).refusal(request, error)

    def failure(request: AnyRequest, error: Exception) -> Response[Any]:
        return checkout_of(request).failure(request, error)

    pages = Router(
        "/",
        route_handlers=[show, press, stylesheet],
        request_max_body_size=BODY_BYTES_AT_MOST,
        # By type; that for HTTPException covers what the framework itself refuses.
        exception_handlers={HTTPException: refusal, Exception: failure},
        dependencies=provided(checkout="checkout"),
    )
    return [stripe_routes(), paypal_routes(), mollie_routes(), pages]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """What a person meets: a page for each standing of a purchase, and what its buttons do."""

    counters: tuple[Counter, ...]
    browser: Browser
    pages: SandboxPages
    style: bytes

    def find(self, id: str) -> tuple[Counter, Purchase]:
        """Raises NotFoundException."""
        for counter in self.counters:
            purchase = counter.purchase(id)
            if purchase is not None:
                return counter, purchase
        raise NotFoundException

    def page(self, counter: Counter, purchase: Purchase, request: AnyRequest) -> Response[Any]:
        """The page of a purchase, as it stands."""
        cookie = self.browser.cookie_of(cookies_of(request))
        is_new = cookie is None
        cookie = cookie or self.browser.fresh()
        values = {
            "purchase": purchase,
            "shop": urlsplit(purchase.back_url).netloc,
            "csrf": self.browser.csrf(cookie, subject=purchase.id),
            "here": f"/pay/{purchase.id}",
        }
        sets = self.browser.set_cookies(cookie) if is_new else ()
        page = self.pages.page(f"{purchase.standing}.html", values, sets=sets)
        return _behind(counter, page)

    def press(self, counter: Counter, purchase: Purchase, button: str) -> Response[Any]:
        """Do what the button says, and send the browser on."""
        url = counter.press(purchase.id, button) or f"/pay/{purchase.id}"
        headers = {"location": url, "cache-control": "no-store", "referrer-policy": "no-referrer"}
        return _behind(
            counter,
            Response(
                b"",
                status_code=HTTPStatus.SEE_OTHER,
                media_type=MediaType.TEXT,
                headers=headers,
            ),
        )

    def is_ours(self, purchase: Purchase, request: AnyRequest, body: bytes) -> bool:
        """Whether a form came from our page in this browser."""
        try:
            fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=_FIELDS_AT_MOST)
        except ValueError:  # more fields than our form has
            return False
        marks = fields.get("csrf", [])
        return len(marks) == 1 and self.browser.is_csrf(
            marks[0], cookies_of(request), subject=purchase.id
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


@get("/pay/{id:str}")
async def show(
    request: AnyRequest, id: FromPath[str], checkout: NamedDependency[Checkout]
) -> Response[Any]:
    """What there is to pay, or what became of it."""
    counter, purchase = checkout.find(id)
    return checkout.page(counter, purchase, request)


@post("/pay/{id:str}/{button:str}", status_code=HTTPStatus.SEE_OTHER)
async def press(
    request: AnyRequest,
    *,
    id: FromPath[str],
    button: FromPath[str],
    body: RawBody,
    checkout: NamedDependency[Checkout],
) -> Response[Any]:
    """Press one of the ways, cancel; or arrive or fail, for a transfer under way."""
    counter, purchase = checkout.find(id)
    if not checkout.is_ours(purchase, request, body):
        return checkout.pages.trouble(
            "Please start from the page",
            "The form did not come from this page in this browser. Are cookies switched off?",
            status=HTTPStatus.FORBIDDEN,
        )
    return checkout.press(counter, purchase, button)


@get("/pay.css", sync_to_thread=False)
def stylesheet(checkout: NamedDependency[Checkout]) -> Response[bytes]:
    return Response(
        checkout.style,
        media_type="text/css",
        headers={"cache-control": "max-age=3600", "x-content-type-options": "nosniff"},
    )


def _behind(counter: Counter, response: Response[Any]) -> Response[Any]:
    """The answer, with the events that it caused leaving behind it."""
    response.background = BackgroundTask(counter.deliveries.send, counter.deliveries.changes())
    return response
