"""The sandbox's pages, and the headers of all its responses.

Risks: another site's page presses a button in a person's name. So each form has a CSRF field, which
is valid only for this browser and this subject. Another risk: somebody mistakes a payment page for
a real one and types a card number. So the page has no field for a card number.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import MediaType, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, RawBody

from webapp.http.browser import Browser, cookies_of, page_headers, parsed
from webapp.http.parts import AnyRequest, Reply, provided
from webapp.sandbox.checkout.sales import Sale, Sales, shown

NO_STORE: Mapping[str, str] = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_CSRF_KEY_BYTES = 32
_FOLDER = Path(__file__).resolve().parent


class SandboxPages:
    """Renders the sandbox's templates.

    `form_targets` are the origins that its forms can lead to.
    """

    def __init__(self, *, url: str, form_targets: tuple[str, ...]) -> None:
        # Browsers apply form-action to every redirect after a form.
        self._headers = page_headers(form_targets=form_targets)
        csrf_key = secrets.token_bytes(_CSRF_KEY_BYTES)
        self._browser = Browser(public_url=url, csrf_keys=lambda: [csrf_key])

    def page(
        self, template: str, values: Mapping[str, Any], *, status: HTTPStatus = HTTPStatus.OK
    ) -> Reply:
        return Reply(
            _environment().get_template(template).render(values),
            status_code=status,
            media_type=MediaType.HTML,
            headers=self._headers,
        )

    def form(
        self, template: str, values: Mapping[str, Any], *, request: AnyRequest, subject: str
    ) -> Response[Any]:
        """Return a page with forms about the subject, bound to this browser."""
        known = self._browser.cookie_of(cookies_of(request))
        cookie = known or self._browser.fresh()
        page = self.page(template, {**values, "csrf": self._browser.csrf(cookie, subject=subject)})
        page.sets = self._browser.set_cookies(cookie) if known is None else ()
        return page

    def is_valid_csrf(self, csrf: str | None, *, request: AnyRequest, subject: str) -> bool:
        """Return True if a form came from the page about `subject` in this browser."""
        return self._browser.is_csrf(csrf or "", cookies_of(request), subject=subject)

    def trouble(
        self, title: str, detail: str, *, status: HTTPStatus = HTTPStatus.BAD_REQUEST
    ) -> Response[Any]:
        """Return an error page for the person."""
        return self.page("error.html", {"title": title, "detail": detail}, status=status)


@cache
def _environment() -> Environment:
    """Return the shared environment, which compiles each template once."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters["shown"] = shown
    return environment


@cache
def assets() -> dict[str, tuple[bytes, str]]:
    """Return the assets of the pages by path: their bytes and media types."""
    types = {".css": "text/css", ".svg": "image/svg+xml"}
    return {
        f"/{path.name}": (path.read_bytes(), types[path.suffix])
        for path in _FOLDER.iterdir()
        if path.suffix in types
    }


# The payment pages.


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """The payment pages: one for each state of a sale, with its buttons."""

    sales: tuple[Sales[Any], ...]
    pages: SandboxPages

    def find(self, id: str) -> tuple[Sales[Any], Sale] | None:
        for sales in self.sales:
            sale = sales.find(id)
            if sale is not None:
                return sales, sale
        return None

    def unknown(self) -> Response[Any]:
        return self.pages.page("pay_unknown.html", {}, status=HTTPStatus.NOT_FOUND)


Found: TypeAlias = NamedDependency[Checkout]


def checkout_routes() -> Router:
    """Return the routes under /pay."""
    return Router("/", route_handlers=[show, press], dependencies=provided(checkout="checkout"))


@get("/pay/{id:str}")
async def show(request: AnyRequest, id: FromPath[str], checkout: Found) -> Response[Any]:
    """Show the sale to pay, or its outcome."""
    found = checkout.find(id)
    if found is None:
        return checkout.unknown()
    sales, sale = found
    values = {
        "sale": sale,
        "provider": sales.vendor.label,
        "ways": sales.buttons(sale),
        "notes": sales.notes(sale),
        "shop": urlsplit(sale.back_url).netloc,
        "here": f"/pay/{id}",
    }
    template = f"{sale.state}.html"
    return sales.deliveries.behind(
        checkout.pages.form(template, values, request=request, subject=id)
    )


@post("/pay/{id:str}/{button:str}", status_code=HTTPStatus.SEE_OTHER)
async def press(
    request: AnyRequest, *, id: FromPath[str], button: FromPath[str], body: RawBody, checkout: Found
) -> Response[Any]:
    """Press a button of the sale: pay, cancel, or let a pending transfer arrive or fail."""
    found = checkout.find(id)
    if found is None:
        return checkout.unknown()
    sales, sale = found
    marks = parsed(body).get("csrf", [])
    if len(marks) != 1 or not checkout.pages.is_valid_csrf(marks[0], request=request, subject=id):
        return checkout.pages.trouble(
            "Please start from the page",
            "The form did not come from this page in this browser. Are cookies switched off?",
            status=HTTPStatus.FORBIDDEN,
        )
    headers = {**NO_STORE, "location": sales.press(sale, button) or f"/pay/{id}"}
    status = HTTPStatus.SEE_OTHER
    return sales.deliveries.behind(
        Response(b"", status_code=status, media_type=MediaType.TEXT, headers=headers)
    )
