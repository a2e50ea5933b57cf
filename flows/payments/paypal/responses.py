"""The conversion of PayPal's replies and events to the common types.

Risks: an order has several parts or belongs to someone else, a declined or pending capture counts
as money, or a partial refund counts as a full refund.
"""

import re
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Annotated

import httpx
import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Elicitation
from flows.payments.gateway import MerchantAccount, ProviderSession, UnsignedNotice
from flows.payments.money import Money
from flows.payments.receipt import Payment, Refund
from flows.payments.responses import (
    GIVING_BACK,
    ProviderRefund,
    decode,
    minor_units,
    refund_made,
    unreadable,
)
from flows.payments.session import Id, Malformed, SessionStatus, checkout_of, terms_of

TAKEN = frozenset({"COMPLETED", "PARTIALLY_REFUNDED", "REFUNDED", "REVERSED"})
CAN_BE_PAID = frozenset({"CREATED", "SAVED", "APPROVED", "PAYER_ACTION_REQUIRED"})
EVENTS_TO_ASK_ABOUT = frozenset(
    {
        "CHECKOUT.ORDER.APPROVED",
        "CHECKOUT.ORDER.COMPLETED",
        "CHECKOUT.ORDER.VOIDED",
        "PAYMENT.CAPTURE.COMPLETED",
        "PAYMENT.CAPTURE.DECLINED",
        "PAYMENT.CAPTURE.DENIED",
        "PAYMENT.CAPTURE.PENDING",
        "PAYMENT.CAPTURE.REFUNDED",
        "PAYMENT.CAPTURE.REVERSED",
    }
)
_TOKEN = re.compile(r"[!-~]{1,4096}")
_CAPTURE = re.compile(r"https?://[^/?#]+(?:/[^?#]*)?/v2/payments/captures/([A-Za-z0-9_]{1,255})")
_REFERENCE = re.compile(r"[A-Za-z0-9_-]{1,200}")
_Reference = Annotated[str, Meta(pattern=rf"^{_REFERENCE.pattern}\Z")]


class _Amount(Struct, frozen=True, kw_only=True):
    currency_code: Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z")]
    value: str

    @property
    def units(self) -> int:
        return minor_units(self.value, self.currency_code)


class _Capture(Struct, frozen=True, kw_only=True):
    id: Id
    status: str
    amount: _Amount


class _Refund(ProviderRefund, frozen=True, kw_only=True):
    standing = frozenset({"PENDING", "COMPLETED"})
    done = "COMPLETED"
    ended = frozenset({"FAILED", "CANCELLED"})
    amount: _Amount

    @property
    def price(self) -> Money:
        return Money.from_minor_units(self.amount.units, self.amount.currency_code)


class _Payments(Struct, frozen=True, kw_only=True):
    captures: tuple[_Capture, ...] = ()
    refunds: tuple[_Refund, ...] = ()


class _Payee(Struct, frozen=True, kw_only=True):
    merchant_id: str | None = None


class _Unit(Struct, frozen=True, kw_only=True):
    amount: _Amount
    custom_id: str | None = None
    payee: _Payee | None = None
    payments: _Payments = _Payments()


class _Link(Struct, frozen=True, kw_only=True):
    rel: str
    href: str


class PayPalOrder(Struct, frozen=True, kw_only=True):
    """An order with exactly one purchase unit, like all orders that we create."""

    id: Id
    status: str
    purchase_units: Annotated[tuple[_Unit, ...], Meta(min_length=1, max_length=1)]
    links: tuple[_Link, ...] = ()

    @property
    def is_approved(self) -> bool:
        """True if the person has approved the order and it waits to be captured."""
        return self.status == "APPROVED"


class _Traced(Struct, frozen=True, kw_only=True):
    """A capture, reduced to its id and `custom_id`.

    `custom_id` is not validated: captures made by other programs can contain any text.
    """

    id: Id
    custom_id: str | None = None


class _Token(Struct, frozen=True, kw_only=True):
    access_token: str


class _Detail(Struct, frozen=True, kw_only=True):
    issue: str | None = None


class _Error(Struct, frozen=True, kw_only=True):
    name: str | None = None
    error: str | None = None  # the error code of the token endpoint
    details: tuple[_Detail, ...] = ()


class _Related(Struct, frozen=True, kw_only=True):
    order_id: Id | None = None


class _Supplement(Struct, frozen=True, kw_only=True):
    related_ids: _Related | None = None


class _Named(Struct, frozen=True, kw_only=True):
    custom_id: _Reference | None = None


class _Resource(Struct, frozen=True, kw_only=True):
    id: Id | None = None
    custom_id: _Reference | None = None
    purchase_units: tuple[_Named, ...] = ()
    supplementary_data: _Supplement | None = None
    links: tuple[_Link, ...] = ()


class _Envelope(Struct, frozen=True, kw_only=True):
    id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,255}\Z")]
    event_type: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,200}\Z")]


class _Event(_Envelope, frozen=True, kw_only=True):
    resource: _Resource


def token_in(reply: httpx.Response, seller: MerchantAccount) -> str:
    """Return the access token. Raises Failed."""
    doing = "issue an access token"
    token = decode(reply, _Token, seller=seller, doing=doing, code_of=issue_in).access_token
    if not _TOKEN.fullmatch(token):  # the token becomes a header value
        raise unreadable(seller, doing=doing)
    return token


def order_in(reply: httpx.Response, seller: MerchantAccount, *, doing: str) -> PayPalOrder:
    """Decode an order. Raises Failed."""
    return decode(reply, PayPalOrder, seller=seller, doing=doing, code_of=issue_in)


def same_order(order: str, reply: httpx.Response, seller: MerchantAccount) -> PayPalOrder:
    """Decode an order and check that it is the requested one. Raises Failed."""
    doing = "report the status of the payment"
    found = order_in(reply, seller, doing=doing)
    if found.id != order:
        raise unreadable(seller, doing=doing)
    return found


def is_key_used(reply: httpx.Response) -> bool:
    """Return True if the PayPal-Request-Id was used for another request."""
    try:
        return reply.is_client_error and issue_in(reply.content) == "DUPLICATE_REQUEST_ID"
    except (ValueError, RecursionError):
        return False


def has_lapsed(reply: httpx.Response, *, until: int) -> bool:
    """Return True if the order does not exist and had expired by PayPal's clock.

    `until` is in seconds since the epoch. PayPal's clock is the Date header. If a proxy added a
    second Date header, use the earlier of the two.
    """
    if reply.status_code != 404:
        return False
    try:
        dates = [parsedate_to_datetime(text) for text in reply.headers.get_list("date")]
    except (ValueError, OverflowError):
        return False
    seconds = [(date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() for date in dates]
    return bool(seconds) and min(seconds) >= until


def lapsed(
    elicitation: Elicitation, session: str, reply: httpx.Response, seller: MerchantAccount
) -> ProviderSession | None:
    """Return the session of an order that expired unpaid. Return None if that is not proven."""
    terms = terms_of(elicitation)
    for attempt in (elicitation.attempt, *elicitation.earlier_attempts):
        stored = checkout_of(attempt)
        if (
            stored is None
            or stored.session != session
            or not has_lapsed(reply, until=stored.expires_at)
        ):
            continue
        return ProviderSession(
            id=session,
            state=SessionStatus.CLOSED,
            amount=terms.amount,
            currency=terms.currency,
            reference=elicitation.id,
            is_live=seller.is_live,
        )
    return None


def reference_in(reply: httpx.Response, payment: str, seller: MerchantAccount) -> str | None:
    """Return the elicitation of a capture, or None if it is not ours. Raises Failed."""
    if reply.status_code == 404:
        return None
    doing = "report the purpose of a payment"
    found = decode(reply, _Traced, seller=seller, doing=doing, code_of=issue_in)
    if found.id != payment:
        raise unreadable(seller, doing=doing)
    is_one = found.custom_id is not None and _REFERENCE.fullmatch(found.custom_id)
    return found.custom_id if is_one else None


def session_of(order: PayPalOrder, seller: MerchantAccount) -> ProviderSession:
    """Convert a PayPal order to a ProviderSession.

    Raises Failed.

    The order does not say whether it is live, so the seller's setting is used.
    """
    doing = "report the status of the payment"
    [unit] = order.purchase_units
    captured = [one for one in unit.payments.captures if one.status in TAKEN]
    state = _state(order, unit.payments, is_captured=bool(captured))
    try:
        amounts = [one.amount for one in captured] or [unit.amount]
        amount = sum(one.units for one in amounts)
        refunded = _refunded(unit.payments)
        reversed_ = sum(one.amount.units for one in captured if one.status == "REVERSED")
    except Malformed:
        raise unreadable(seller, doing=doing) from None
    if state is None or len({one.currency_code for one in amounts}) > 1:
        raise unreadable(seller, doing=doing)
    return ProviderSession(
        id=order.id,
        state=state,
        amount=amount,
        currency=amounts[0].currency_code,
        reference=unit.custom_id,
        is_live=seller.is_live,
        payment=captured[0].id if captured else None,
        account=unit.payee.merchant_id if unit.payee is not None else None,
        refunded=refunded,
        charged_back=reversed_,
        url=_page(order) if state is SessionStatus.OPEN else None,
    )


def read_refund(reply: httpx.Response, payment: Payment, seller: MerchantAccount) -> Refund:
    """Decode a new refund. Raises Failed, also if PayPal could not make the refund."""
    found = decode(reply, _Refund, seller=seller, doing=GIVING_BACK, code_of=issue_in)
    return refund_made(found, payment, seller, at_most=payment.amount)


def refunds_in(
    reply: httpx.Response, payment: Payment, seller: MerchantAccount
) -> Sequence[ProviderRefund]:
    """Return all refunds of the payment's order. Raises Failed."""
    order = order_in(reply, seller, doing=GIVING_BACK)
    if order.id != payment.session:
        raise unreadable(seller, doing=GIVING_BACK)
    return order.purchase_units[0].payments.refunds


def unsigned_in(body: bytes) -> UnsignedNotice | None:
    """Return the order to fetch, from an unverified webhook. Raises Malformed."""
    try:
        envelope = msgspec.json.decode(body, type=_Envelope)
        if envelope.event_type not in EVENTS_TO_ASK_ABOUT:
            return None
        about = msgspec.json.decode(body, type=_Event).resource
    except (ValueError, RecursionError):
        raise Malformed("event") from None
    if envelope.event_type.startswith("CHECKOUT.ORDER."):
        named = about.purchase_units[0].custom_id if about.purchase_units else None
        order, capture = about.id, None
    else:
        named = about.custom_id
        related = about.supplementary_data and about.supplementary_data.related_ids
        order = related.order_id if related else None
        capture = _capture_above(about)
    return UnsignedNotice(
        id=envelope.id,
        type=envelope.event_type,
        reference=named,
        session=order,
        payment=capture,
    )


def _capture_above(about: _Resource) -> str | None:
    """Return the capture of a refund. In PayPal's own samples, only a link names the capture."""
    for link in about.links:
        found = _CAPTURE.fullmatch(link.href) if link.rel == "up" else None
        if found is not None:  # the link is never fetched, so its host does not matter
            return found[1]
    return None


def _state(order: PayPalOrder, payments: _Payments, *, is_captured: bool) -> SessionStatus | None:
    if is_captured:
        return SessionStatus.PAID
    if any(one.status == "PENDING" for one in payments.captures):
        return SessionStatus.PENDING
    if order.status in CAN_BE_PAID:  # also after a decline: another card may work
        return SessionStatus.OPEN
    if order.status == "COMPLETED" and payments.captures:
        return SessionStatus.FAILED
    return SessionStatus.CLOSED if order.status == "VOIDED" else None


def _refunded(payments: _Payments) -> int:
    fully_refunded = sum(one.amount.units for one in payments.captures if one.status == "REFUNDED")
    return max(fully_refunded, sum(one.amount.units for one in payments.refunds if one.stands))


def _page(order: PayPalOrder) -> str | None:
    # PayPal calls the link `payer-action` if the order has a payment source, otherwise `approve`.
    found = [link.href for link in order.links if link.rel in ("payer-action", "approve")]
    return found[0] if found else None


def issue_in(content: bytes) -> str:
    error = msgspec.json.decode(content, type=_Error)
    issue = error.details[0].issue if error.details else None
    return issue or error.name or error.error or ""
