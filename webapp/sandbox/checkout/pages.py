"""The sandbox's payment pages, on which a person pays without money.

Risks: somebody takes the page for a real one and types a card number. So the page has no field for
a card number.
"""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from litestar import MediaType, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, RawBody

from webapp.http.browser import parsed
from webapp.http.parts import AnyRequest, provided
from webapp.sandbox.checkout.sales import Sale, Sales
from webapp.sandbox.pages import NO_STORE, SandboxPages


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
