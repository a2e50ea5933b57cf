"""Stripe's replies, held against what was asked of it.

What could go wrong: an error page where an answer was expected, another session than the one that
was asked for, money taken for given back. Each ends as Failed, in words for the person.
"""

from collections.abc import Mapping
from typing import Annotated, TypeVar

import httpx
import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import Failed, InvalidQuestion
from flows.payments import responses as gateway_replies
from flows.payments.money import Money
from flows.payments.receipt import Dispute, Payment, Refund, RefundStatus
from flows.payments.responses import GIVING_BACK, problem, unreadable
from flows.payments.session import REFERENCE_KEY, Id, Malformed
from flows.payments.stripe.account import StripeAccount, charge_amount, charged
from flows.payments.stripe.events import dispute_in
from flows.payments.stripe.session import CheckoutSession, read_session

T = TypeVar("T")


class _Error(Struct, frozen=True, kw_only=True):
    code: str | None = None
    type: str | None = None


class _ErrorReply(Struct, frozen=True, kw_only=True):
    error: _Error


class _Intent(Struct, frozen=True, kw_only=True):
    id: Id
    metadata: Mapping[str, Annotated[str, Meta(max_length=500)]] = {}


class _Refund(Struct, frozen=True, kw_only=True):
    id: Id
    amount: Annotated[int, Meta(ge=0)]
    currency: Annotated[str, Meta(pattern=r"^[a-z]{3}\Z")]
    status: str | None = None

    @property
    def stands(self) -> bool:
        return self.status in ("pending", "requires_action", "succeeded")


class _Refunds(Struct, frozen=True, kw_only=True):
    data: tuple[_Refund, ...]


class _Dispute(Struct, frozen=True, kw_only=True):
    id: Id
    payment_intent: Id
    status: str


class _Disputes(Struct, frozen=True, kw_only=True):
    data: tuple[_Dispute, ...]


def session_in(reply: httpx.Response, seller: StripeAccount, *, doing: str) -> CheckoutSession:
    """Raises Failed."""
    data = _decode(reply, seller, dict[str, Json], doing=doing)
    try:
        return read_session(data)
    except Malformed:
        raise unreadable(seller, doing=doing) from None


def same_session(session: str, reply: httpx.Response, seller: StripeAccount) -> CheckoutSession:
    """The session that was asked for, and no other. Raises Failed."""
    doing = "say what became of the payment"
    found = session_in(reply, seller, doing=doing)
    if found.id != session:
        raise unreadable(seller, doing=doing)
    return found


def reference_in(reply: httpx.Response, payment: str, seller: StripeAccount) -> str | None:
    """The elicitation that the payment was begun for; None: for something else. Raises Failed."""
    doing = "tell of a payment"
    if reply.status_code == 404:
        return None
    found = _decode(reply, seller, _Intent, doing=doing)
    if found.id != payment:
        raise unreadable(seller, doing=doing)
    return found.metadata.get(REFERENCE_KEY)


def claims_in(
    reply: httpx.Response, payment: str, seller: StripeAccount
) -> tuple[tuple[str, Dispute], ...]:
    """How far each bank's claim of this payment is, by its id. Raises Failed."""
    doing = "tell of a bank's claim"
    listed = _decode(reply, seller, _Disputes, doing=doing)
    if any(one.payment_intent != payment for one in listed.data):
        raise unreadable(seller, doing=doing)
    return tuple((one.id, dispute_in(one.status)) for one in listed.data)


def read_refund(reply: httpx.Response, payment: Payment, seller: StripeAccount) -> Refund:
    """Raises Failed, also where the provider tried in vain."""
    found = _decode(reply, seller, _Refund, doing=GIVING_BACK)
    if not found.stands:
        why = f"refund {found.id} is {found.status}"
        raise Failed(f"{seller.label} could not {GIVING_BACK} ({why}).")
    try:
        price = charged(found.amount, found.currency.upper())
    except InvalidQuestion:
        raise unreadable(seller, doing=GIVING_BACK) from None
    if price.currency != payment.currency or price.minor_units > payment.amount:
        raise unreadable(seller, doing=GIVING_BACK)
    return Refund(id=found.id, price=price, status=_status(found))


def refunded_so_far(
    reply: httpx.Response, payment: Payment, seller: StripeAccount
) -> tuple[int, int]:
    """How much of it went back, in Stripe's units, and in how many refunds. Raises Failed."""
    listed, standing = _listed(reply, payment, seller)
    return sum(one.amount for one in standing), len(listed)


def standing_refund(
    reply: httpx.Response,
    payment: Payment,
    seller: StripeAccount,
    *,
    price: Money,
    refused: httpx.Response,
) -> Refund:
    """The refund of so much of it that is there, though `refused` made none. Raises Failed."""
    _, standing = _listed(reply, payment, seller)
    if not standing or sum(one.amount for one in standing) < charge_amount(price):
        why = problem(refused, code_of=_code_of)
        raise Failed(f"{seller.label} could not {GIVING_BACK} ({why}).")
    are_done = all(_status(one) is RefundStatus.SUCCEEDED for one in standing)
    return Refund(
        id=standing[0].id,
        price=price,
        status=RefundStatus.SUCCEEDED if are_done else RefundStatus.PENDING,
    )


def _listed(
    reply: httpx.Response, payment: Payment, seller: StripeAccount
) -> tuple[tuple[_Refund, ...], list[_Refund]]:
    """All its refunds, and those that stand."""
    listed = _decode(reply, seller, _Refunds, doing=GIVING_BACK).data
    ours = payment.currency.lower()
    return listed, [one for one in listed if one.stands and one.currency == ours]


def _status(refund: _Refund) -> RefundStatus:
    return RefundStatus.SUCCEEDED if refund.status == "succeeded" else RefundStatus.PENDING


def _decode(reply: httpx.Response, seller: StripeAccount, shape: type[T], *, doing: str) -> T:
    return gateway_replies.decode(reply, shape, seller=seller, doing=doing, code_of=_code_of)


def _code_of(body: bytes) -> str:
    error = msgspec.json.decode(body, type=_ErrorReply).error
    return error.code or error.type or ""
