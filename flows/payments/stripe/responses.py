"""The checks and conversion of Stripe's replies.

Risks: an error page arrives instead of an answer, the reply is about another session, or a charge
is read as a refund. Each case raises Failed with a sentence for the person.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeVar

import httpx
import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments import responses as gateway_replies
from flows.payments.claims import ProviderClaim
from flows.payments.listing import SessionPage
from flows.payments.money import Money
from flows.payments.receipt import Payment, Refund
from flows.payments.responses import (
    GIVING_BACK,
    ProviderRefund,
    refund_made,
    unreadable,
)
from flows.payments.session import REFERENCE_KEY, Id, Malformed
from flows.payments.stripe.account import StripeAccount, charged
from flows.payments.stripe.events import REFUND_ENDED, claimed_in, stage_in
from flows.payments.stripe.session import CheckoutSession, listed_session, read_session

T = TypeVar("T")


class _Error(Struct, frozen=True, kw_only=True):
    code: str | None = None
    type: str | None = None


class _ErrorReply(Struct, frozen=True, kw_only=True):
    error: _Error


class _SessionList(Struct, frozen=True, kw_only=True):
    data: tuple[dict[str, Json], ...]
    has_more: bool = False


class _Intent(Struct, frozen=True, kw_only=True):
    id: Id
    metadata: Mapping[str, Annotated[str, Meta(max_length=500)]] = {}


class _Refund(ProviderRefund, frozen=True, kw_only=True):
    standing = frozenset({"pending", "requires_action", "succeeded"})
    done = "succeeded"
    ended = REFUND_ENDED
    amount: Annotated[int, Meta(ge=0)]
    currency: Annotated[str, Meta(pattern=r"^[a-z]{3}\Z")]

    @property
    def price(self) -> Money:
        try:
            return charged(self.amount, self.currency.upper())
        except InvalidQuestion:
            raise Malformed("amount") from None


REFUND_STATUSES = _Refund.standing | _Refund.ended


class _Refunds(Struct, frozen=True, kw_only=True):
    data: tuple[_Refund, ...]


class _Dispute(Struct, frozen=True, kw_only=True):
    id: Id
    payment_intent: Id
    status: str
    amount: int | None = None
    currency: str | None = None


class _Disputes(Struct, frozen=True, kw_only=True):
    data: tuple[_Dispute, ...]


def session_in(reply: httpx.Response, seller: StripeAccount, *, doing: str) -> CheckoutSession:
    """Decode a session. Raises Failed."""
    data = _decode(reply, seller, dict[str, Json], doing=doing)
    try:
        return read_session(data)
    except Malformed:
        raise unreadable(seller, doing=doing) from None


def is_key_used(reply: httpx.Response) -> bool:
    """Return True if the idempotency key was used for a request with other parameters."""
    try:
        error = msgspec.json.decode(reply.content, type=_ErrorReply).error
    except (ValueError, RecursionError):
        return False
    return reply.status_code == 400 and error.type == "idempotency_error"


def sessions_in(reply: httpx.Response, seller: StripeAccount) -> SessionPage:
    """Return the listed sessions that name a question of this server. Raises Failed."""
    doing = "list its payment pages"
    listed = _decode(reply, seller, _SessionList, doing=doing)
    named = tuple(session for data in listed.data if (session := listed_session(data)) is not None)
    last = listed.data[-1].get("id") if listed.data and listed.has_more else None
    if listed.has_more and not isinstance(last, str):
        raise unreadable(seller, doing=doing)
    return SessionPage(sessions=named, next=last if isinstance(last, str) else None)


def same_session(session: str, reply: httpx.Response, seller: StripeAccount) -> CheckoutSession:
    """Decode a session and check that it is the requested one. Raises Failed."""
    doing = "report the status of the payment"
    found = session_in(reply, seller, doing=doing)
    if found.id != session:
        raise unreadable(seller, doing=doing)
    return found


def reference_in(reply: httpx.Response, payment: str, seller: StripeAccount) -> str | None:
    """Return the elicitation of the payment, or None if it is not ours. Raises Failed."""
    doing = "report a payment"
    if reply.status_code == 404:
        return None
    found = _decode(reply, seller, _Intent, doing=doing)
    if found.id != payment:
        raise unreadable(seller, doing=doing)
    return found.metadata.get(REFERENCE_KEY)


def claims_in(
    reply: httpx.Response, payment: str, seller: StripeAccount
) -> tuple[ProviderClaim, ...]:
    """Return all disputes of this payment with their stages. Raises Failed."""
    doing = "list the disputes of a payment"
    listed = _decode(reply, seller, _Disputes, doing=doing)
    if any(one.payment_intent != payment for one in listed.data):
        raise unreadable(seller, doing=doing)
    return tuple(_claim(one) for one in listed.data)


def _claim(found: _Dispute) -> ProviderClaim:
    amount, currency = claimed_in({"amount": found.amount, "currency": found.currency})
    return ProviderClaim(
        id=found.id, stage=stage_in(found.status), amount=amount, currency=currency
    )


def read_refund(reply: httpx.Response, payment: Payment, seller: StripeAccount) -> Refund:
    """Decode a new refund. Raises Failed, also if Stripe could not make the refund."""
    found = _decode(reply, seller, _Refund, doing=GIVING_BACK)
    return refund_made(found, payment, seller, at_most=payment.amount)


def refunds_in(reply: httpx.Response, seller: StripeAccount) -> Sequence[ProviderRefund]:
    """Decode a list of refunds. Raises Failed."""
    return _decode(reply, seller, _Refunds, doing=GIVING_BACK).data


def _decode(reply: httpx.Response, seller: StripeAccount, shape: type[T], *, doing: str) -> T:
    return gateway_replies.decode(reply, shape, seller=seller, doing=doing, code_of=code_of)


def code_of(body: bytes) -> str:
    error = msgspec.json.decode(body, type=_ErrorReply).error
    return error.code or error.type or ""
