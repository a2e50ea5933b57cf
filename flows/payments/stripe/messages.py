"""Stripe's wire format: amounts, sessions, events and replies.

Risks: a price that is a hundred times too high, because Stripe counts a few currencies differently
from ISO 4217. Another risk is that an error page, or an object of which the reply contains only the
id, is read as the full answer. A third risk is that unsigned data, or an event of another account
or mode, is trusted. Events are therefore only read from verified deliveries, and the session in an
event is checked like any other session. An event shows the state at the time when it was created. A
reply that cannot be read raises Failed, with a sentence for the person.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, TypeVar

import httpx
import msgspec
from msgspec import Meta, Struct

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments import responses as gateway_replies
from flows.payments.claims import ProviderClaim
from flows.payments.gateway import MerchantAccount, Notice, ProviderSession
from flows.payments.listing import SessionPage
from flows.payments.money import Money, checked_units
from flows.payments.receipt import Dispute, Payment, PaymentChange, Refund, RefundChange
from flows.payments.responses import GIVING_BACK, ProviderRefund, refund_made, unreadable
from flows.payments.session import REFERENCE_KEY, Id, Malformed, SessionStatus

T = TypeVar("T")
# Factors (multiplier, divisor) from ISO 4217 minor units to Stripe's units, where they differ
# (docs.stripe.com/currencies, "Special cases" and "Zero-decimal currencies").
_SCALES: Mapping[str, tuple[int, int]] = {"ISK": (100, 1), "UGX": (100, 1), "MGA": (1, 100)}
_LAST_DIGIT_IS_ZERO = frozenset({"BHD", "JOD", "KWD", "OMR", "TND"})
# The values of the pinned API version. Stripe's own library says that there may be others.
STATUSES = frozenset({"open", "complete", "expired"})
PAYMENT_STATUSES = frozenset({"paid", "unpaid", "no_payment_required"})
# Statuses of a payment that brings no money: a delayed payment failed, or it was canceled.
_NO_MONEY_COMES = ("requires_payment_method", "canceled")
PAYMENT_FAILED = "checkout.session.async_payment_failed"
SETTLING_EVENTS = frozenset(
    {
        "checkout.session.completed",
        "checkout.session.async_payment_succeeded",
        PAYMENT_FAILED,
        "checkout.session.expired",
    }
)
REFUNDED = "charge.refunded"
# An accepted refund can fail days later. `charge.refund.updated` is from older API versions.
REFUND_EVENTS = frozenset({"refund.updated", "refund.failed"})
_REFUND_EVENTS = REFUND_EVENTS | {"refund.created", "charge.refund.updated"}
REFUND_ENDED = frozenset({"failed", "canceled"})
DISPUTE_EVENTS = frozenset(
    {"charge.dispute.created", "charge.dispute.updated", "charge.dispute.closed"}
)
# The values of Dispute.status in the pinned API version, and one of older versions.
STAGES: Mapping[str, Dispute] = {
    "warning_needs_response": Dispute.INQUIRY,
    "warning_under_review": Dispute.INQUIRY,
    "warning_closed": Dispute.CLOSED,
    "prevented": Dispute.CLOSED,
    "charge_refunded": Dispute.CLOSED,
    "needs_response": Dispute.OPEN,
    "under_review": Dispute.OPEN,
    "lost": Dispute.LOST,
    "appeal_needs_response": Dispute.APPEALED,
    "appeal_under_review": Dispute.APPEALED,
    "won": Dispute.WON,
}
_ID = re.compile(r"[A-Za-z0-9_]{1,255}")
_REFERENCE = re.compile(r"[A-Za-z0-9_-]{1,200}")
_LATEST_TIME = 253402300799  # in seconds; `datetime` cannot hold later times


def charge_amount(price: Money) -> int:
    """Convert a price to Stripe's units. Raises InvalidQuestion if it cannot be charged."""
    multiplier, divisor = _SCALES.get(price.currency, (1, 1))
    step = 10 if price.currency in _LAST_DIGIT_IS_ZERO else divisor
    if price.minor_units <= 0:
        raise InvalidQuestion(f"A price of {price} cannot be paid: it must be above zero.")
    if price.minor_units % step:
        raise InvalidQuestion(f"{price} has more decimals than can be charged in this currency.")
    return price.minor_units * multiplier // divisor


def charged(amount: int, currency: str) -> Money:
    """Convert an amount in Stripe's units to Money. Raises InvalidQuestion."""
    return Money.from_minor_units(charged_units(amount, currency), currency)


def charged_units(amount: int, currency: str) -> int:
    """Convert an amount of Stripe's to ISO 4217 minor units. Raises InvalidQuestion."""
    multiplier, divisor = _SCALES.get(currency, (1, 1))
    minor_units, rest = divmod(amount * divisor, multiplier)
    if rest:
        raise InvalidQuestion(f"{amount} is not a valid amount in {currency}.")
    return checked_units(minor_units, currency)


class _Charge(Struct, frozen=True, kw_only=True):
    amount_refunded: Annotated[int, Meta(ge=0)] = 0
    disputed: bool = False  # True also if the dispute has ended


class _SessionIntent(Struct, frozen=True, kw_only=True):
    id: Id | None = None
    status: str | None = None
    latest_charge: str | _Charge | None = None


class CheckoutSession(Struct, frozen=True, kw_only=True):
    """A session. `amount_total` is in Stripe's units.

    Only other programs' sessions may lack a status or amount. Stripe sends the payment and its
    charge either as an id or as an object.
    """

    id: Id
    status: str | None
    payment_status: str
    amount_total: Annotated[int, Meta(ge=0)] | None
    currency: Annotated[str, Meta(pattern=r"^[A-Za-z]{3}\Z")] | None = None
    livemode: bool
    client_reference_id: str | None = None
    payment_intent: Id | _SessionIntent | None = None
    url: str | None = None

    def __repr__(self) -> str:
        return f"CheckoutSession({self.id!r}, {self.status!r}, {self.payment_status!r})"

    @property
    def disputed_payment(self) -> str | None:
        """The id of the session's payment if its charge is or was disputed."""
        match self.payment_intent:
            case _SessionIntent(id=id, latest_charge=_Charge(disputed=True)):
                return id
            case _:
                return None


def read_session(data: Json) -> CheckoutSession:
    """Read a session. Raises Malformed."""
    try:
        return msgspec.convert(data, CheckoutSession)
    except msgspec.ValidationError:
        raise Malformed("payment session") from None


def listed_session(data: Mapping[str, Json]) -> ProviderSession | None:
    """Return a listed session that names one of our questions, or None.

    Anybody who pays at a payment link can set the session's reference. Only a holder of our API key
    can write its metadata.
    """
    named, metadata = data.get("client_reference_id"), data.get("metadata")
    reference = metadata.get(REFERENCE_KEY) if isinstance(metadata, Mapping) else None
    if not isinstance(named, str):
        return None
    try:
        session = provider_session(read_session(data))
    except Malformed:
        return None
    until, closes_at = data.get("expires_at"), None
    if isinstance(until, int) and 0 <= until <= _LATEST_TIME:
        closes_at = datetime.fromtimestamp(until, UTC)
    is_made_by_us = reference == named and data.get("payment_link") is None
    return replace(session, closes_at=closes_at, is_made_by_us=is_made_by_us)


def provider_session(
    session: CheckoutSession, *, has_failed: bool = False, is_now: bool = True
) -> ProviderSession:
    """Convert to a ProviderSession. `has_failed`: the event says that the payment failed."""
    currency = None if session.currency is None else session.currency.upper()
    intent = session.payment_intent
    if not isinstance(intent, _SessionIntent):
        intent = _SessionIntent(id=intent)
    refunded: int | None = None
    if isinstance(intent.latest_charge, _Charge):
        refunded = _units(intent.latest_charge.amount_refunded, currency)
    state = _state(session, intent.status)
    words = {session.status: STATUSES, session.payment_status: PAYMENT_STATUSES}
    return ProviderSession(
        id=session.id,
        state=SessionStatus.FAILED if has_failed and state is SessionStatus.PENDING else state,
        amount=_units(session.amount_total, currency),
        currency=currency,
        reference=session.client_reference_id,
        is_live=session.livemode,
        payment=intent.id,
        refunded=refunded or 0,
        url=session.url,
        is_now=is_now,
        unknown_word=next(
            (word for word, known in words.items() if word and word not in known), None
        ),
    )


def _state(session: CheckoutSession, intent_status: str | None) -> SessionStatus:
    """Return the status. An unknown value never ends a session: it is fetched again."""
    match session.status, session.payment_status:
        case _, "paid":
            return SessionStatus.PAID
        case "open" | None, _:
            return SessionStatus.OPEN
        case "expired", _:
            return SessionStatus.CLOSED
        case "complete", "no_payment_required":
            return SessionStatus.PAID
        case "complete", "unpaid" if intent_status in _NO_MONEY_COMES:
            return SessionStatus.FAILED
        case _:
            return SessionStatus.PENDING


@lru_cache(1024)
def _units(amount: int | None, currency: str | None) -> int | None:
    """Convert an amount to ISO 4217 minor units. Return None if it is no amount."""
    if amount is None or currency is None:
        return None
    try:
        return charged_units(amount, currency)
    except InvalidQuestion:
        return None


class _Envelope(Struct, frozen=True, kw_only=True):
    """The fields of every event, even of an unknown type."""

    id: Id
    type: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.]{1,200}\Z")]


class _Subject(Struct, frozen=True, kw_only=True):
    object: dict[str, Json]


class _Event(_Envelope, frozen=True, kw_only=True):
    created: Annotated[int, Meta(ge=0, le=_LATEST_TIME)]
    livemode: bool
    data: _Subject
    account: Id | None = None


_read_envelope = msgspec.json.Decoder(_Envelope).decode
_read_event = msgspec.json.Decoder(_Event).decode


def notice_in(body: bytes) -> Notice:
    """Read the event in the body of a delivery that was verified when it arrived.

    The notice has a session for SETTLING_EVENTS and `news` for later changes of a payment. Other
    events are acknowledged and ignored, and only need a readable id and type. Raises Malformed.
    """
    try:
        return _notice_of(_read_event(body))
    except (ValueError, RecursionError):
        pass  # not fully readable, which is fine for an ignored type
    try:
        envelope = _read_envelope(body)
    except (ValueError, RecursionError):
        raise Malformed("event") from None
    if envelope.type in SETTLING_EVENTS:
        raise Malformed("event")
    return Notice(id=envelope.id, type=envelope.type, is_live=False)


def stage_in(status: Json) -> Dispute:
    """Return the stage of a dispute. An unknown status counts as an open dispute."""
    return STAGES.get(status, Dispute.OPEN) if isinstance(status, str) else Dispute.OPEN


def _notice_of(event: _Event) -> Notice:
    about = event.data.object
    metadata = about.get("metadata")
    named = metadata.get(REFERENCE_KEY) if isinstance(metadata, Mapping) else None
    reference = _text(about.get("client_reference_id"), _REFERENCE) or _text(named, _REFERENCE)
    subject, at = _text(about.get("id"), _ID), datetime.fromtimestamp(event.created, UTC)
    payment = about.get("id" if about.get("object") == "payment_intent" else "payment_intent")
    if isinstance(payment, Mapping):
        payment = payment.get("id")
    change, session, transition = None, None, None
    if event.type in SETTLING_EVENTS:
        session = _session_in(about, event.type, is_made_by_us=reference is not None)
        transition = f"{subject} {event.type} {about.get('payment_status')}"
    elif (change := _changes(event.type, about, at=at)) is not None:
        refund = "" if change.refund is None else f" {about.get('status')}"
        transition = f"{subject} {event.type} {change.returned} {change.dispute}{refund}"
    # Stripe copies our metadata to other objects. An event with neither a session nor a payment
    # change is ignored, so its notice must not name a question.
    is_relevant = session is not None or change is not None
    return Notice(
        id=event.id,
        type=event.type,
        is_live=event.livemode,
        account=event.account,
        session=session,
        news=change,
        subject=subject if is_relevant else None,
        reference=reference if is_relevant else None,
        payment=_text(payment, _ID),
        transition=transition if is_relevant else None,
    )


def _session_in(
    about: Mapping[str, Json], kind: str, *, is_made_by_us: bool
) -> ProviderSession | None:
    """Read an event's session; None if it is invalid and names no question. Raises Malformed."""
    try:
        found = read_session(about)
    except Malformed:
        if is_made_by_us or about.get("object") != "checkout.session":
            raise
        return None
    return provider_session(found, has_failed=kind == PAYMENT_FAILED, is_now=False)


def _changes(kind: str, about: Mapping[str, Json], *, at: datetime) -> PaymentChange | None:
    if kind in DISPUTE_EVENTS:
        claimed, currency = _money(about.get("amount"), about.get("currency"))
        stage = stage_in(about.get("status"))
        return PaymentChange(dispute=stage, claimed=claimed, claimed_currency=currency, at=at)
    if kind in _REFUND_EVENTS:
        return _of_refund(about, at=at)
    returned, currency = _money(about.get("amount_refunded"), about.get("currency"))
    if kind != REFUNDED or returned is None:
        return None
    return PaymentChange(returned=returned, currency=currency, at=at)


def _of_refund(about: Mapping[str, Json], *, at: datetime) -> PaymentChange | None:
    """Read the status of a refund. Return None if the refund does not count.

    A refund that this server did not request counts only if it failed or was canceled.
    """
    id, status = _text(about.get("id"), _ID), about.get("status")
    amount, currency = _money(about.get("amount"), about.get("currency"))
    has_ended = status in REFUND_ENDED
    metadata = about.get("metadata")
    is_made_by_us = isinstance(metadata, Mapping) and REFERENCE_KEY in metadata
    if id is None or not (has_ended or is_made_by_us):
        return None
    refund = RefundChange(id=id, stands=not has_ended, is_done=status == "succeeded", amount=amount)
    return PaymentChange(refund=refund, currency=currency, at=at)


def _money(amount: Json, currency: Json) -> tuple[int | None, str | None]:
    if type(amount) is not int or not isinstance(currency, str):
        return None, None
    units = _units(amount, currency.upper())
    return (None, None) if units is None else (units, currency.upper())


def _text(value: Json, pattern: re.Pattern[str]) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None


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


def session_in(reply: httpx.Response, seller: MerchantAccount, *, doing: str) -> CheckoutSession:
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


def sessions_in(reply: httpx.Response, seller: MerchantAccount) -> SessionPage:
    """Return the listed sessions that name a question of this server. Raises Failed."""
    doing = "list its payment pages"
    listed = _decode(reply, seller, _SessionList, doing=doing)
    named = tuple(session for data in listed.data if (session := listed_session(data)) is not None)
    last = listed.data[-1].get("id") if listed.data and listed.has_more else None
    if listed.has_more and not isinstance(last, str):
        raise unreadable(seller, doing=doing)
    return SessionPage(sessions=named, next=last if isinstance(last, str) else None)


def same_session(session: str, reply: httpx.Response, seller: MerchantAccount) -> CheckoutSession:
    """Decode a session and check that it is the requested one. Raises Failed."""
    doing = "report the status of the payment"
    found = session_in(reply, seller, doing=doing)
    if found.id != session:
        raise unreadable(seller, doing=doing)
    return found


def reference_in(reply: httpx.Response, payment: str, seller: MerchantAccount) -> str | None:
    """Return the elicitation of the payment, or None if it is not ours. Raises Failed."""
    doing = "report a payment"
    if reply.status_code == 404:
        return None
    found = _decode(reply, seller, _Intent, doing=doing)
    if found.id != payment:
        raise unreadable(seller, doing=doing)
    return found.metadata.get(REFERENCE_KEY)


def claims_in(
    reply: httpx.Response, payment: str, seller: MerchantAccount
) -> tuple[ProviderClaim, ...]:
    """Return all disputes of this payment with their stages. Raises Failed."""
    doing = "list the disputes of a payment"
    listed = _decode(reply, seller, _Disputes, doing=doing)
    if any(one.payment_intent != payment for one in listed.data):
        raise unreadable(seller, doing=doing)
    return tuple(
        ProviderClaim(id=one.id, stage=stage_in(one.status), amount=amount, currency=currency)
        for one in listed.data
        for amount, currency in [_money(one.amount, one.currency)]
    )


def read_refund(reply: httpx.Response, payment: Payment, seller: MerchantAccount) -> Refund:
    """Decode a new refund. Raises Failed, also if Stripe could not make the refund."""
    found = _decode(reply, seller, _Refund, doing=GIVING_BACK)
    return refund_made(found, payment, seller, at_most=payment.amount)


def refunds_in(reply: httpx.Response, seller: MerchantAccount) -> Sequence[ProviderRefund]:
    """Decode a list of refunds. Raises Failed."""
    return _decode(reply, seller, _Refunds, doing=GIVING_BACK).data


def _decode(reply: httpx.Response, seller: MerchantAccount, shape: type[T], *, doing: str) -> T:
    return gateway_replies.decode(reply, shape, seller=seller, doing=doing, code_of=code_of)


def code_of(body: bytes) -> str:
    error = msgspec.json.decode(body, type=_ErrorReply).error
    return error.code or error.type or ""
