"""A small version of Mollie's Payments v2: the part that our own gateway calls.

Risks: a payment or a refund is made twice. Like Mollie, this module does not prevent that: an
idempotency key is forgotten after an hour, and refunds can exceed the payment.
"""

import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, TypeAlias, TypeVar
from urllib.parse import parse_qs

import msgspec
from litestar import Router
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.mollie.gateway import LIFE_WITHOUT_A_METHOD
from flows.payments.money import Money
from flows.payments.receipt import Dispute
from flows.payments.responses import minor_units, written
from flows.payments.session import Malformed
from webapp.sandbox.authorization.granted import bearer_of
from webapp.sandbox.checkout.answers import (
    Answer,
    ApiCall,
    Key,
    SandboxAsked,
    SandboxRefused,
    provider_router,
)
from webapp.sandbox.checkout.deliveries import Outside, SandboxEvent
from webapp.sandbox.checkout.sales import (
    CANCEL,
    TRANSFER,
    Act,
    Button,
    Sale,
    SaleRefund,
    Sales,
    SaleState,
    becomes,
    dispute_button,
    refund_half,
)
from webapp.sandbox.settings import Sandbox

ID_BYTES = 10
_PROFILE = "pfl_sandbox"
_REFUND_TAKES = timedelta(days=1)
_TRANSFER_LIFE = timedelta(days=12)
_BY_HAND: dict[str, Json] = {"description": "By hand", "metadata": None}
_STATUS = {
    SaleState.OPEN: "open",
    SaleState.AWAITED: "pending",
    SaleState.PAID: "paid",
    SaleState.FAILED: "failed",
}
Words = Annotated[str, Meta(min_length=1, max_length=255)]
_Address = Annotated[str, Meta(pattern=r"^https?://[!-~]{1,2000}\Z")]


class MollieAmount(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z")]
    value: str


class PaymentWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    amount: MollieAmount
    description: Words
    redirect_url: _Address
    cancel_url: _Address | None = None
    webhook_url: _Address | None = None
    metadata: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MolliePaid(Sale):
    """A payment. Until the person has chosen a `method`, the shop cannot cancel the payment."""

    api: str
    page: str
    asked: PaymentWish
    method: str | None = None
    is_cancelled: bool = False

    @property
    def is_cancelable(self) -> bool:
        return self.is_open and self.method is not None

    @property
    def is_charged_back(self) -> bool:
        return self.dispute is Dispute.LOST

    def as_json(self) -> dict[str, Json]:
        links: dict[str, Json] = {"self": _link(self.api, "application/hal+json")}
        if self.is_open:
            links["checkout"] = _link(self.page, "text/html")
        ended = "canceled" if self.is_cancelled else "expired"
        found: dict[str, Json] = {
            "resource": "payment",
            "id": self.id,
            "mode": "test",
            "createdAt": _time(self.made_at),
            "amount": _amount(self.price),
            "description": self.asked.description,
            "method": self.method,
            "metadata": self.asked.metadata,
            "status": _STATUS.get(self.state, ended),
            "isCancelable": self.is_cancelable,
            "profileId": _PROFILE,
            "sequenceType": "oneoff",
            "redirectUrl": self.asked.redirect_url,
            "cancelUrl": self.asked.cancel_url,
            "webhookUrl": self.asked.webhook_url,
            "_links": links,
        }
        if self.is_open:
            found["expiresAt"] = _time(self.until)
        if self.is_paid:
            found["amountRefunded"] = self._part(self.refunded)
            found["amountRemaining"] = self._part(max(self.remaining_units, 0))
        if self.is_charged_back:
            found["amountChargedBack"] = _amount(self.price)
        return found

    def refund_as_json(self, refund: SaleRefund, *, now: datetime) -> dict[str, Json]:
        return {
            "resource": "refund",
            "id": refund.id,
            "mode": "test",
            "amount": _amount(refund.price),
            "status": "refunded" if now >= refund.made_at + _REFUND_TAKES else "pending",
            "paymentId": self.id,
            "createdAt": _time(refund.made_at),
            **_BY_HAND,
            **refund.about,
        }

    def _part(self, units: int) -> Json:
        return _amount(Money.from_minor_units(units, self.price.currency))


def _ends(state: SaleState) -> Act:
    def act(sales: Sales[MolliePaid], payment: MolliePaid) -> None:
        sales.become(replace(payment, method=payment.method or "creditcard"), state)

    return act


def cancel(sales: Sales[MolliePaid], payment: MolliePaid) -> MolliePaid:
    return sales.end(replace(payment, is_cancelled=True))


def _promise(sales: Sales[MolliePaid], payment: MolliePaid) -> None:
    """Choose a bank transfer: the payment stays open for days, and no webhook is sent."""
    until = sales.clock() + _TRANSFER_LIFE
    sales.keep(replace(payment, method="banktransfer", until=until))


def _is_new(payment: MolliePaid) -> bool:
    return payment.is_open and payment.method is None


_BUTTONS = (
    Button(name="paid", label="Paid", look="primary", act=_ends(SaleState.PAID)),
    Button(name="failed", label="Failed", act=_ends(SaleState.FAILED), when=_is_new),
    Button(
        name="open",
        label="Open: a bank transfer, paid later on this page",
        act=_promise,
        when=_is_new,
    ),
    Button(
        name="pending",
        label="Pending: a direct debit, arrives later",
        act=becomes(SaleState.AWAITED),
        when=_is_new,
    ),
    Button(name="expired", label="Expired", act=becomes(SaleState.OVER)),
    Button(name=CANCEL, act=cancel),
    *TRANSFER,
    refund_half(lambda payment: payment.price.minor_units),
    dispute_button(
        "chargeback",
        label="Let the bank take it back",
        dispute=Dispute.LOST,
        when=lambda payment: payment.is_paid and not payment.is_charged_back,
    ),
    dispute_button(
        "won",
        label="Let the bank return it",
        dispute=Dispute.WON,
        when=lambda payment: payment.is_charged_back,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MollieVendor:
    """Mollie's behaviour. Implements Vendor."""

    label: str = "Mollie"
    buttons: tuple[Button, ...] = _BUTTONS

    def refund_id(self) -> str:
        return f"re_{secrets.token_hex(ID_BYTES)}"

    def notes(self, sale: MolliePaid) -> Iterable[str]:
        if sale.is_cancelable:
            yield "The payment is open, like a bank transfer: the shop received no webhook."
        if sale.is_charged_back:
            yield "The bank has taken it back."

    def event(self, before: MolliePaid, after: MolliePaid) -> SandboxEvent | None:
        """Return Mollie's unsigned webhook, which names the payment and not its state."""
        url = after.asked.webhook_url
        if url is None or (before.state, before.refunds, before.dispute) == (
            after.state,
            after.refunds,
            after.dispute,
        ):
            return None
        return SandboxEvent(id=after.id, type="payment", url=url, body=f"id={after.id}".encode())

    def headers(self, _: SandboxEvent) -> Sequence[tuple[str, str]]:
        return [("content-type", "application/x-www-form-urlencoded")]


def _amount(price: Money) -> dict[str, str]:
    """Return Mollie's amount.

    The amount can be zero; flows.payments.responses.written does not accept zero.
    """
    return {"currency": price.currency, "value": str(price.amount)}


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")


def _link(href: str, media_type: str) -> Json:
    return {"href": href, "type": media_type}


# The API.

_KEY_RETENTION = timedelta(hours=1)
_MORE_AT_MOST = 2500  # minor units that can be refunded beyond the price
_LISTED_AT_MOST = 250
_LISTED_BY_DEFAULT = 50
_CREATED = {"POST": HTTPStatus.CREATED}
T = TypeVar("T")
MollieAct: TypeAlias = Callable[["MollieApi", ApiCall], Json]


class MollieError(SandboxRefused):
    """An error in the format of Mollie's error object."""

    def __init__(self, detail: str, *, status: int = 422, field: str | None = None) -> None:
        super().__init__(detail, status=status)
        self.field = field

    def as_json(self) -> Json:
        facts: dict[str, Json] = {
            "status": self.status,
            "title": HTTPStatus(self.status).phrase,
            "detail": self.message,
        }
        return facts if self.field is None else {**facts, "field": self.field}


class MollieRefundWish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    amount: MollieAmount
    description: Words = "Refund"
    metadata: Json = None


def mollie_api(sandbox: Sandbox, outside: Outside) -> "MollieApi":
    sales = Sales(MollieVendor(), outside)
    origins = sandbox.redirect_origins
    return MollieApi(url=sandbox.url, origins=origins, key=sandbox.mollie_key, sales=sales)


@dataclass(frozen=True, slots=True, kw_only=True)
class MollieApi:
    """Mollie's API for callers with the key, with webhooks only to `origins`.

    Implements ProviderApi.
    """

    url: str
    origins: tuple[str, ...]
    key: str = field(repr=False)
    sales: Sales[MolliePaid]

    def require_key(self, call: ApiCall) -> None:
        given = bearer_of(call.request.headers) or ""
        if not hmac.compare_digest(given.encode(), self.key.encode()):
            raise MollieError("Missing authentication, or failed to authenticate", status=401)

    def ask(self, call: ApiCall, act: MollieAct) -> SandboxAsked:
        self.require_key(call)
        method = call.request.method
        name = call.request.headers.get("idempotency-key") if call.changes else None
        asked = (method, call.path, call.body)
        conflict = MollieError("The key was used for another request")
        return SandboxAsked(
            act=lambda: Answer(body=act(self, call), status=_CREATED.get(method, HTTPStatus.OK)),
            changes=call.changes,
            key=Key(name=name, asked=asked, life=_KEY_RETENTION, conflict=conflict)
            if name
            else None,
        )

    def refusal(self, words: str, status: HTTPStatus) -> MollieError:
        return MollieError(words, status=status)

    def headers(self, _: bool) -> Mapping[str, str]:  # noqa: FBT001 - the only argument
        return {}

    # Routes. Each raises MollieError.

    def create(self, call: ApiCall) -> Json:
        wish = _read(call.body, PaymentWish)
        allowed = tuple(f"{origin}/" for origin in self.origins)
        if wish.webhook_url is not None and not wish.webhook_url.startswith(allowed):
            raise MollieError("The webhook URL is unreachable", field="webhookUrl")
        now, id = self.sales.clock(), f"tr_{secrets.token_hex(ID_BYTES)}"
        payment = MolliePaid(
            id=id,
            api=f"{self.url}/mollie/v2/payments/{id}",
            page=f"{self.url}/pay/{id}",
            price=_price(wish.amount),
            what=(wish.description,),
            back_url=wish.redirect_url,
            cancel_url=wish.cancel_url or wish.redirect_url,
            asked=wish,
            made_at=now,
            until=now + LIFE_WITHOUT_A_METHOD,
        )
        return self.sales.keep(payment).as_json()

    def list_payments(self, call: ApiCall) -> Json:
        """List the payments, the latest first. `from` is the id of the first payment to list."""
        limit, first = _limit(call.query), _given(call.query, "from")
        found = self.sales.all()[::-1]
        if first is not None:
            start = next((n for n, one in enumerate(found) if one.id == first), len(found))
            found = found[start:]
        links: dict[str, Json] = {"previous": None, "next": None}
        if len(found) > limit:
            href = f"{self.url}/mollie/v2/payments?from={found[limit].id}&limit={limit}"
            links["next"] = {"href": href, "type": "application/hal+json"}
        payments: list[Json] = [self._known(one.id).as_json() for one in found[:limit]]
        return {"count": len(payments), "_embedded": {"payments": payments}, "_links": links}

    def show(self, call: ApiCall) -> Json:
        return self._known(call.id).as_json()

    def cancel(self, call: ApiCall) -> Json:
        payment = self._known(call.id)
        if not payment.is_cancelable:
            raise MollieError("The payment cannot be canceled")
        return cancel(self.sales, payment).as_json()

    def refund(self, call: ApiCall) -> Json:
        """Refund a payment or a part of it."""
        wish, payment = _read(call.body, MollieRefundWish), self._known(call.id)
        price = _price(wish.amount)
        if not payment.is_paid:
            raise MollieError("The payment cannot be refunded")
        if price.currency != payment.price.currency:
            raise MollieError("The currency is not that of the payment", field="amount")
        if price.minor_units > payment.remaining_units + _MORE_AT_MOST:
            raise MollieError("The amount is higher than the maximum", field="amount")
        about: dict[str, Json] = {"description": wish.description, "metadata": wish.metadata}
        refund = self.sales.refund(payment, price.minor_units, about)
        return payment.refund_as_json(refund, now=self.sales.clock())

    def list_refunds(self, call: ApiCall) -> Json:
        """List the refunds of a payment, the latest first."""
        limit, payment, now = _limit(call.query), self._known(call.id), self.sales.clock()
        refunds: list[Json] = [
            payment.refund_as_json(one, now=now) for one in payment.refunds[::-1][:limit]
        ]
        return {"count": len(refunds), "_embedded": {"refunds": refunds}, "_links": {}}

    def _known(self, id: str) -> MolliePaid:
        payment = self.sales.find(id)
        if payment is None:
            raise MollieError("No payment exists with this id", status=404)
        return payment


def mollie_routes() -> Router:
    payment = "/v2/payments/{id:str}"
    routes = {
        "POST /v2/payments": MollieApi.create,
        "GET /v2/payments": MollieApi.list_payments,
        f"GET {payment}": MollieApi.show,
        f"DELETE {payment}": MollieApi.cancel,
        f"POST {payment}/refunds": MollieApi.refund,
        f"GET {payment}/refunds": MollieApi.list_refunds,
    }
    return provider_router("mollie", routes)


def _price(amount: MollieAmount) -> Money:
    """Return the price of an amount.

    Raises:
        MollieError: The amount is invalid, or is not written with all its decimals.
    """
    try:
        units = minor_units(amount.value, amount.currency)
        price = Money.from_minor_units(units, amount.currency)
        if written(price) == amount.value:
            return price
    except (Malformed, InvalidQuestion):
        pass
    raise MollieError("The amount is not valid in this currency", field="amount")


def _read(body: bytes, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.ValidationError as error:
        raise MollieError(f"{error}.") from None
    except (ValueError, RecursionError):
        raise MollieError("The body is not JSON", status=400) from None


def _given(query: bytes, name: str) -> str | None:
    """Return the first value of a query parameter, or None.

    Raises:
        ValueError: The query is invalid.
    """
    found = parse_qs(query.decode("ascii"), max_num_fields=8).get(name, [])
    return found[0] if found else None


def _limit(query: bytes) -> int:
    try:
        given = _given(query, "limit")
        limit = int(given) if given else _LISTED_BY_DEFAULT
    except ValueError:
        limit = 0
    if not 0 < limit <= _LISTED_AT_MOST:
        raise MollieError(
            f"The limit must be a number from 1 to {_LISTED_AT_MOST}", status=400, field="limit"
        )
    return limit
