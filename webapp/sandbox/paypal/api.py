"""A small version of PayPal's Orders v2: the part that our own gateway calls.

Risks: an order is captured twice, two orders have one invoice, or a repeated request is executed
twice. As at PayPal, a second capture or invoice is refused. Requests with the same
PayPal-Request-Id are executed once, and the response to a repeated request has the current state of
the order. An unpaid order expires after three hours, and is then not found.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, cast
from urllib.parse import parse_qs

import msgspec
from litestar import MediaType, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, RawBody
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.money import Money
from flows.payments.paypal.gateway import CURRENCIES, ORDER_LIFE
from flows.payments.responses import minor_units
from flows.payments.session import Malformed
from webapp.http.parts import AnyRequest
from webapp.sandbox.authorization.granted import basic_of, bearer_of
from webapp.sandbox.checkout.answers import (
    Answer,
    ApiCall,
    Key,
    SandboxAnswers,
    SandboxAsked,
    SandboxRefused,
    provider_router,
    trace,
)
from webapp.sandbox.checkout.deliveries import Outside
from webapp.sandbox.checkout.sales import Sales, SaleState
from webapp.sandbox.paypal.certificates import (
    CERTIFICATE_ID,
    CertificateAuthority,
    sandbox_scheme,
)
from webapp.sandbox.paypal.orders import (
    Order,
    PayPalAmount,
    PayPalUnit,
    PayPalVendor,
    Words,
    amount_of,
    new_id,
    refund_as_json,
    with_parameters,
)
from webapp.sandbox.settings import Sandbox

_PAYER = "SANDBOXPAYER1"
_DESCRIPTION_BYTES_AT_MOST = 127
_COMPLETED_RETENTION = timedelta(days=365)
_ORDER_KEY_RETENTION = timedelta(hours=6)
_REFUND_KEY_RETENTION = timedelta(days=45)
_KEY_AT_MOST = 108
_TOKEN_LIFE = timedelta(hours=9)
_Address = Annotated[str, Meta(pattern=r"^https?://[!-~]{1,2000}\Z")]
T = TypeVar("T")
# The effect of a route. It returns a function that reads the current state: for the first response,
# and again for the response to each repeated request.
Act: TypeAlias = Callable[["PayPalApi", ApiCall], Callable[[], Json]]


class PayPalError(SandboxRefused):
    """An error in the format of PayPal's error object."""

    def __init__(self, issue: str, *, status: int = 422, name: str | None = None) -> None:
        super().__init__(issue, status=status)
        self.name = name or HTTPStatus(status).phrase.upper().replace(" ", "_")

    def as_json(self) -> Json:
        return {
            "name": self.name,
            "message": "The sandbox refused this request.",
            "debug_id": trace(),
            "details": [{"issue": self.message, "description": self.message}],
        }


class PayPalTokenError(PayPalError):
    """An authentication error in the format of OAuth."""

    def as_json(self) -> Json:
        return {
            "error": self.message,
            "error_description": "The sandbox refused this client.",
        }


class _Context(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    return_url: _Address
    cancel_url: _Address
    user_action: Literal["CONTINUE", "PAY_NOW"] = "CONTINUE"
    shipping_preference: Literal["NO_SHIPPING"]


class _Wallet(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    experience_context: _Context


class _Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    paypal: _Wallet


class OrderWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    intent: Literal["CAPTURE"]
    purchase_units: Annotated[tuple[PayPalUnit, ...], Meta(min_length=1, max_length=1)]
    payment_source: _Source


class PayPalRefundWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    amount: PayPalAmount | None = None
    custom_id: Words | None = None


def paypal_api(sandbox: Sandbox, outside: Outside) -> "PayPalApi":
    vendor = PayPalVendor(
        url=sandbox.url,
        webhook_url=sandbox.paypal_webhook_url,
        webhook_id=sandbox.paypal_webhook_id,
        clock=outside.clock,
        authority=CertificateAuthority(sandbox_scheme(sandbox.url), clock=outside.clock),
    )
    return PayPalApi(
        url=sandbox.url,
        client_id=sandbox.client_id,
        client_secret=sandbox.paypal_secret,
        sales=Sales(vendor, outside, forgets=True),
        authority=vendor.authority,
    )


@dataclass(slots=True, kw_only=True)
class PayPalApi:
    """PayPal's API for callers with a token, which is issued for the client's secret.

    Implements ProviderApi.
    """

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    sales: Sales[Order]
    authority: CertificateAuthority
    _tokens: dict[str, datetime] = field(default_factory=dict[str, datetime], repr=False)

    def grant(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Issue an access token for the client's password.

        Raises:
            PayPalTokenError: The password or the grant type is wrong.
        """
        given = basic_of(headers) or ("", "")
        if not _is_same(":".join(given), f"{self.client_id}:{self.client_secret}"):
            raise PayPalTokenError("invalid_client", status=401)
        if parse_qs(body.decode("ascii", "replace")) != {"grant_type": ["client_credentials"]}:
            raise PayPalTokenError("unsupported_grant_type", status=400)
        token = f"A21AA{secrets.token_urlsafe(24)}"
        self._tokens[token] = self.sales.clock() + _TOKEN_LIFE
        seconds = int(_TOKEN_LIFE.total_seconds())
        return Answer(body={"access_token": token, "token_type": "Bearer", "expires_in": seconds})

    def require_key(self, call: ApiCall) -> None:
        """Check that the bearer is the client's password.

        Raises:
            PayPalTokenError: The bearer is wrong or missing.
        """
        if not _is_same(bearer_of(call.request.headers) or "", self.client_secret):
            raise PayPalTokenError("invalid_client", status=401)

    def ask(self, call: ApiCall, act: Act) -> SandboxAsked:
        until = self._tokens.get(bearer_of(call.request.headers) or "")
        if until is None or self.sales.clock() >= until:
            raise PayPalTokenError("invalid_token", status=401)
        first = HTTPStatus.CREATED if call.changes else HTTPStatus.OK

        def once() -> Answer:
            now = act(self, call)
            return Answer(body=now(), status=first, again=lambda: Answer(body=now()))

        key = _key(call) if call.changes else None
        return SandboxAsked(act=once, changes=call.changes, key=key)

    def refusal(self, _: str, status: HTTPStatus) -> "PayPalError":
        return PayPalError(status.phrase.upper().replace(" ", "_"), status=status)

    def headers(self, _: bool) -> Mapping[str, str]:  # noqa: FBT001 - there is one
        """Return the headers. A server uses `date` to tell whether a missing order has expired."""
        date = format_datetime(self.sales.clock().astimezone(UTC), usegmt=True)
        return {"paypal-debug-id": trace(), "date": date}

    # Routes. Each raises PayPalError.

    def create(self, call: ApiCall) -> Callable[[], Json]:
        wish, now, id = _read(call.body, OrderWish), self.sales.clock(), new_id()
        [unit] = wish.purchase_units
        context = wish.payment_source.paypal.experience_context
        if len((unit.description or "").encode()) > _DESCRIPTION_BYTES_AT_MOST:
            raise PayPalError("INVALID_STRING_LENGTH", status=400)
        self._require_unpaid(unit.invoice_id)
        self.sales.keep(
            Order(
                id=id,
                page=f"{self.url}/pay/{id}",
                api=f"{self.url}/paypal/v2/checkout/orders/{id}",
                price=_price(unit.amount),
                what=(unit.description,) if unit.description else (),
                asked=unit,
                back_url=with_parameters(context.return_url, token=id, PayerID=_PAYER),
                cancel_url=with_parameters(context.cancel_url, token=id),
                made_at=now,
                until=now + ORDER_LIFE,
                capture=new_id(),
            )
        )
        return lambda: self._known(id).as_json()

    def show(self, call: ApiCall) -> Callable[[], Json]:
        return self._known(call.id).as_json

    def capture(self, call: ApiCall) -> Callable[[], Json]:
        """Capture the money of an approved order."""
        order = self._known(call.id)
        if order.is_captured:
            raise PayPalError("ORDER_ALREADY_CAPTURED")
        if order.state is not SaleState.AGREED:
            raise PayPalError("ORDER_NOT_APPROVED")
        self._require_unpaid(order.asked.invoice_id)
        if order.funding == "declined":
            self.sales.become(replace(order, was_declined=True), SaleState.OPEN)
            raise PayPalError("INSTRUMENT_DECLINED")
        state = SaleState.AWAITED if order.funding == "bank" else SaleState.PAID
        until = self.sales.clock() + _COMPLETED_RETENTION
        self.sales.become(replace(order, until=until), state)
        return lambda: self._known(call.id).as_json()

    def show_capture(self, call: ApiCall) -> Callable[[], Json]:
        return self._captured(call.id).capture_as_json

    def refund(self, call: ApiCall) -> Callable[[], Json]:
        """Refund the remaining amount of a capture, or a part of that amount."""
        order, wish = self._captured(call.id), _read(call.body, PayPalRefundWish)
        if order.state is SaleState.AWAITED:
            raise PayPalError("PENDING_CAPTURE")
        if not order.is_paid or order.dispute is not None:
            raise PayPalError("REFUND_NOT_ALLOWED")
        if order.remaining_units == 0:
            raise PayPalError("CAPTURE_FULLY_REFUNDED")
        price = _price(wish.amount) if wish.amount else order.price
        if price.currency != order.price.currency:
            raise PayPalError("REFUND_CAPTURE_CURRENCY_MISMATCH")
        units = price.minor_units if wish.amount else order.remaining_units
        if units > order.remaining_units:
            raise PayPalError("REFUND_AMOUNT_EXCEEDED")
        about: dict[str, Json] = {"custom_id": wish.custom_id} if wish.custom_id else {}
        refund = self.sales.refund(order, units, about)
        return lambda: refund_as_json(refund)

    def _known(self, id: str) -> Order:
        order = self.sales.find(id)
        if order is None:
            raise _not_found()
        return order

    def _captured(self, capture: str) -> Order:
        """Return the order of a capture."""
        for order in self.sales.all():
            if order.is_captured and order.capture == capture:
                return order
        raise _not_found()

    def _require_unpaid(self, invoice: str | None) -> None:
        paid = [one.asked.invoice_id for one in self.sales.all() if one.is_captured]
        if invoice is not None and invoice in paid:
            raise PayPalError("DUPLICATE_INVOICE_ID")


Answers: TypeAlias = NamedDependency[SandboxAnswers]


@post("/v1/oauth2/token")
async def token(request: AnyRequest, body: RawBody, answers: Answers) -> Response[Any]:
    api = cast("PayPalApi", answers.api)
    return answers.give(
        lambda: SandboxAsked(act=lambda: api.grant(request.headers, body), changes=False)
    )


@get("/v1/notifications/certs/{id:str}")
async def certificate(id: FromPath[str], answers: Answers) -> Response[Any]:
    if id != CERTIFICATE_ID:
        raise NotFoundException
    return _pem(cast("PayPalApi", answers.api).authority.issued.certificate)


@get("/root.pem")
async def root(answers: Answers) -> Response[Any]:
    """Return the root certificate of this sandbox's webhooks. PayPal has no such route."""
    return _pem(cast("PayPalApi", answers.api).authority.issued.root)


def paypal_routes() -> Router:
    orders, captures = "/v2/checkout/orders", "/v2/payments/captures"
    routes = {
        f"POST {orders}": PayPalApi.create,
        f"GET {orders}/{{id:str}}": PayPalApi.show,
        f"POST {orders}/{{id:str}}/capture": PayPalApi.capture,
        f"GET {captures}/{{id:str}}": PayPalApi.show_capture,
        f"POST {captures}/{{id:str}}/refund": PayPalApi.refund,
    }
    return provider_router("paypal", routes, token, certificate, root)


def _pem(content: bytes) -> Response[Any]:
    return Response(content.decode(), media_type=MediaType.TEXT)


def _key(call: ApiCall) -> Key | None:
    name = call.request.headers.get("paypal-request-id")
    if name is None:
        return None
    if not 0 < len(name) <= _KEY_AT_MOST:
        raise PayPalError("INVALID_STRING_LENGTH", status=400, name="INVALID_REQUEST")
    life = _REFUND_KEY_RETENTION if call.path.endswith("/refund") else _ORDER_KEY_RETENTION
    conflict = PayPalError("DUPLICATE_REQUEST_ID")
    return Key(name=f"{call.path} {name}", asked=(call.body,), life=life, conflict=conflict)


def _read(body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except (ValueError, RecursionError):
        raise PayPalError("MALFORMED_REQUEST", status=400, name="INVALID_REQUEST") from None


def _price(amount: PayPalAmount) -> Money:
    currency = amount.currency_code
    if currency not in CURRENCIES:
        raise PayPalError("CURRENCY_NOT_SUPPORTED")
    try:
        price = Money.from_minor_units(minor_units(amount.value, currency), currency)
        amount_of(price)
    except (Malformed, InvalidQuestion):
        raise PayPalError("INVALID_PARAMETER_VALUE", status=400) from None
    return price


def _not_found() -> PayPalError:
    return PayPalError("INVALID_RESOURCE_ID", status=404, name="RESOURCE_NOT_FOUND")


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
