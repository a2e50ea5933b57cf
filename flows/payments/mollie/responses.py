"""The conversion of Mollie's replies and webhooks to the common types.

Risks: an authorisation counts as money, a cancelled refund counts as made, or the id in a webhook
contains a path, which would change the URL that the server fetches. Anyone can send a webhook, so
no Delivery is created from it. Its id only says which payment to fetch. The payment counts only if
this server created it.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final, Literal
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import msgspec
from msgspec import Meta, Struct, field

from flows.elicitation.states import Json
from flows.errors import Failed, Unverified
from flows.payments.gateway import (
    MerchantAccount,
    ProviderSession,
    UnsignedNotice,
)
from flows.payments.listing import SessionPage
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
from flows.payments.session import REFERENCE_KEY, Malformed, SessionStatus

NOTICE_BYTES_AT_MOST: Final = 1024
ASKING = "report the status of the payment"
_STATES = {
    "open": SessionStatus.OPEN,
    "pending": SessionStatus.PENDING,
    "authorized": SessionStatus.PENDING,
    "paid": SessionStatus.PAID,
    "canceled": SessionStatus.CLOSED,
    "expired": SessionStatus.CLOSED,
    "failed": SessionStatus.FAILED,
}
_FIELDS_AT_MOST = 20
_NOTICE_FIELDS_AT_MOST = 8
_Reference = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,200}\Z")]
_PAYMENT_ID = re.compile(r"tr_[0-9A-Za-z]{1,64}")
_PaymentId = Annotated[str, Meta(pattern=rf"^{_PAYMENT_ID.pattern}\Z")]


class _Amount(Struct, frozen=True, kw_only=True):
    currency: Annotated[str, Meta(pattern=r"^[A-Z]{3}\Z")]
    value: str

    @property
    def units(self) -> int:
        return minor_units(self.value, self.currency)


class _Link(Struct, frozen=True, kw_only=True):
    href: str


class _Links(Struct, frozen=True, kw_only=True):
    checkout: _Link | None = None


class MolliePayment(Struct, frozen=True, kw_only=True, rename="camel"):
    id: _PaymentId
    mode: Literal["live", "test"]
    status: str
    amount: _Amount
    metadata: Json = None
    profile_id: str | None = None
    amount_refunded: _Amount | None = None
    amount_charged_back: _Amount | None = None
    is_cancelable: bool | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    links: _Links = field(default=_Links(), name="_links")


class _Refund(ProviderRefund, frozen=True, kw_only=True, rename="camel"):
    standing = frozenset({"queued", "pending", "processing", "refunded"})
    done = "refunded"
    ended = frozenset({"failed", "canceled"})
    amount: _Amount
    metadata: Json = None

    @property
    def price(self) -> Money:
        return Money.from_minor_units(self.amount.units, self.amount.currency)

    @property
    def receipt(self) -> str | None:
        """The receipt for which we requested the refund, if we did."""
        return _text(self.metadata, "receipt")


class _Embedded(Struct, frozen=True, kw_only=True):
    refunds: tuple[_Refund, ...]


class _List(Struct, frozen=True, kw_only=True):
    embedded: _Embedded = field(name="_embedded")


class _Next(Struct, frozen=True, kw_only=True):
    next: _Link | None = None


class _Listed(Struct, frozen=True, kw_only=True):
    payments: tuple[dict[str, Json], ...]


class _PaymentList(Struct, frozen=True, kw_only=True):
    embedded: _Listed = field(name="_embedded")
    links: _Next = field(default=_Next(), name="_links")


class _Error(Struct, frozen=True, kw_only=True):
    field: str | None = None


def payment_in(reply: httpx.Response, seller: MerchantAccount, *, doing: str) -> MolliePayment:
    """Decode a payment. Raises Failed."""
    return decode(reply, MolliePayment, seller=seller, doing=doing, code_of=field_in)


def same_payment(payment: str, reply: httpx.Response, seller: MerchantAccount) -> MolliePayment:
    """Decode a payment and check that it is the requested one. Raises Failed."""
    found = payment_in(reply, seller, doing=ASKING)
    if found.id != payment:
        raise unreadable(seller, doing=ASKING)
    return found


def payments_in(reply: httpx.Response, seller: MerchantAccount, *, since: datetime) -> SessionPage:
    """Return the listed payments that name a question of this server.

    Mollie lists the latest first and accepts no date. Raises Failed.
    """
    doing = "list its payments"
    listed = decode(reply, _PaymentList, seller=seller, doing=doing, code_of=field_in)
    found: list[ProviderSession] = []
    is_older = False
    for data in listed.embedded.payments:
        try:
            payment = msgspec.convert(data, MolliePayment)
            session = session_of(payment, seller)
        except (msgspec.ValidationError, Failed):
            continue  # made by another program: payments that we create are always readable
        created_at = payment.created_at
        is_older = created_at is not None and created_at.tzinfo is not None and created_at < since
        if session.reference is not None and not is_older:
            found.append(session)
    following = listed.links.next
    after = parse_qs(urlsplit(following.href).query).get("from") if following else None
    is_last = is_older or not after or not _PAYMENT_ID.fullmatch(after[0])
    return SessionPage(sessions=tuple(found), next=None if is_last or not after else after[0])


def session_of(payment: MolliePayment, seller: MerchantAccount) -> ProviderSession:
    """Convert a Mollie payment to a ProviderSession. Raises Failed."""
    state = _STATES.get(payment.status)
    none = _Amount(currency=payment.amount.currency, value="0")
    amounts = (payment.amount, payment.amount_refunded or none, payment.amount_charged_back or none)
    try:
        amount, refunded, charged_back = (one.units for one in amounts)
    except Malformed:
        raise unreadable(seller, doing=ASKING) from None
    is_aware = payment.expires_at is None or payment.expires_at.tzinfo is not None
    if state is None or not is_aware or len({one.currency for one in amounts}) > 1:
        raise unreadable(seller, doing=ASKING)
    checkout = payment.links.checkout
    return ProviderSession(
        id=payment.id,
        state=state,
        amount=amount,
        currency=payment.amount.currency,
        reference=_text(payment.metadata, REFERENCE_KEY),
        is_live=payment.mode == "live",
        payment=payment.id if state is SessionStatus.PAID else None,
        account=payment.profile_id,
        refunded=refunded,
        charged_back=charged_back,
        url=checkout.href if checkout is not None and state is SessionStatus.OPEN else None,
        closes_at=payment.expires_at,
        is_made_by_us=_text(payment.metadata, REFERENCE_KEY) is not None,
    )


def refunds_in(
    reply: httpx.Response, payment: Payment, seller: MerchantAccount
) -> Sequence[ProviderRefund]:
    """Return all refunds of the payment, those requested by us first. Raises Failed."""
    listed = decode(reply, _List, seller=seller, doing=GIVING_BACK, code_of=field_in)
    found = listed.embedded.refunds
    of_payment = [one for one in found if one.receipt == payment.id]
    return [*of_payment, *(one for one in found if one not in of_payment)]


def read_refund(
    reply: httpx.Response, payment: Payment, seller: MerchantAccount, *, at_most: int
) -> Refund:
    """Decode a new refund. Raises Failed, also if Mollie could not make the refund."""
    found = decode(reply, _Refund, seller=seller, doing=GIVING_BACK, code_of=field_in)
    return refund_made(found, payment, seller, at_most=at_most)


def unsigned_in(body: bytes, *, query: str) -> UnsignedNotice | None:
    """Return the payment to fetch, from an unsigned webhook.

    The query of our webhook URL names the elicitation. Return None unless it names exactly one.

    Raises:
        Unverified: The body is too large, or does not have exactly one valid payment id.
    """
    payment = read_id(body)
    try:
        references = parse_qs(query, max_num_fields=_FIELDS_AT_MOST).get(REFERENCE_KEY, [])
        [reference] = msgspec.convert(references, list[_Reference])
    except ValueError:  # includes ValidationError
        return None
    return UnsignedNotice(type="payment", reference=reference, session=payment)


def read_id(body: bytes) -> str:
    """Return the only id in the form body of a classic, unsigned webhook.

    Raises Unverified with the reason too_large or malformed_body.
    """
    if len(body) > NOTICE_BYTES_AT_MOST:
        raise Unverified("too_large")
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=_NOTICE_FIELDS_AT_MOST
        )
    except ValueError:
        raise Unverified("malformed_body") from None
    ids = [value for name, value in fields if name == "id"]
    if len(ids) != 1 or not _PAYMENT_ID.fullmatch(ids[0]):
        raise Unverified("malformed_body")
    return ids[0]


def _text(metadata: Json, key: str) -> str | None:
    value = metadata.get(key) if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else None


def field_in(content: bytes) -> str:
    return msgspec.json.decode(content, type=_Error).field or ""
