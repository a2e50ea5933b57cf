"""The till: checkout sessions, payments and refunds, and the events that their changes cause.

Everything here happens between two awaits, so a change is never seen by halves. What could go
wrong: a session paid twice, or paid after its end. Each change therefore first looks whether its
session is still open.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Literal

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.payments.money import Money
from flows.payments.stripe.account import charged
from webapp.sandbox.deliveries import SandboxEvent
from webapp.sandbox.stripe_events import event
from webapp.sandbox.stripe_form import CheckoutForm, StripeError, missing_resource
from webapp.sandbox.stripe_sessions import StripeDispute, StripePayment, StripeSession

_OPEN_AT_LEAST_SECONDS = 30 * 60
_OPEN_AT_MOST_SECONDS = 24 * 60 * 60
_LATEST_TIME = 2**40
_AMOUNT_AT_MOST = 99_999_999  # Stripe takes eight digits
_ITEMS_AT_MOST = 100
_REFERENCE_AT_MOST = 200
_NAME_AT_MOST = 250
_LISTED_AT_MOST = 100
_LISTED_BY_DEFAULT = 10
_INTENT, _CHARGE = "payment_intent", "payment_intent.latest_charge"  # what can be held whole
# Stripe's hosted page would act on these; this one has nothing to do about them.
_WITHOUT_EFFECT = ("locale", "submit_type", "customer_email", "payment_intent_data[description]")


@dataclass(slots=True, kw_only=True)
class StripeBackend:
    """All that the checkout knows; it forgets when its process ends."""

    url: str
    webhook_url: str
    clock: Callable[[], datetime]
    tell: Callable[[SandboxEvent], None]
    _sessions: dict[str, StripeSession] = field(default_factory=dict[str, StripeSession])
    _payments: dict[str, StripePayment] = field(default_factory=dict[str, StripePayment])
    _refunds: dict[str, dict[str, Json]] = field(default_factory=dict[str, dict[str, Json]])

    def session(self, id: str) -> StripeSession | None:
        """The session as it is now: time alone ends one, which is noticed here."""
        session = self._sessions.get(id)
        if session is None or session.status != "open" or self._now() < session.expires_at:
            return session
        return self._end(session)

    # What Stripe's API does.

    def create(self, form: CheckoutForm) -> Json:
        now = self._now()
        whole = _expanded(form)
        form.choice("mode", "payment")
        what, amount, price = _items(form)
        id = f"cs_test_{secrets.token_hex(24)}"
        session = StripeSession(
            id=id,
            url=f"{self.url}/pay/{id}",
            what=what,
            amount=amount,
            price=price,
            success_url=form.url("success_url"),
            cancel_url=form.url_or_none("cancel_url"),
            client_reference_id=form.text_or_none(
                "client_reference_id", at_most=_REFERENCE_AT_MOST
            ),
            metadata=form.metadata("metadata"),
            payment_metadata=form.metadata("payment_intent_data[metadata]"),
            created=now,
            expires_at=_expiry(form, now=now),
        )
        for name in _WITHOUT_EFFECT:
            form.text_or_none(name)
        form.end()
        return self._shown(self._keep(session), whole=whole)

    def retrieve(self, id: str, form: CheckoutForm) -> Json:
        whole = _expanded(form)
        form.end()
        return self._shown(self._known_session(id), whole=whole)

    def expire(self, id: str, form: CheckoutForm) -> Json:
        whole = _expanded(form)
        form.end()
        session = self._known_session(id)
        if session.status != "open":
            raise StripeError(
                'Only Checkout Sessions with a status in ["open"] can be expired. This Checkout '
                f"Session has a status of {session.status}."
            )
        return self._shown(self._end(session), whole=whole)

    def retrieve_payment(self, id: str, form: CheckoutForm) -> Json:
        form.end()
        payment = self._payments.get(id)
        if payment is None:
            raise missing_resource("payment_intent", id, param="intent")
        return payment.as_json()

    def refund(self, form: CheckoutForm) -> Json:
        """Give back all of a payment that is left, or a part of it."""
        id = form.text("payment_intent")
        amount = form.whole_or_none("amount", least=1, most=_AMOUNT_AT_MOST)
        reason = form.choice_or_none("reason", "duplicate", "fraudulent", "requested_by_customer")
        metadata = form.metadata("metadata")
        form.end()
        payment = self._payments.get(id)
        if payment is None:
            raise missing_resource("payment_intent", id, param="payment_intent", status=400)
        if not payment.received:
            raise StripeError(
                f"This PaymentIntent ({id}) does not have a successful charge to refund.",
                code="resource_missing",
                param="payment_intent",
            )
        left = payment.amount - payment.refunded
        if left == 0:
            raise StripeError(
                f"Charge {payment.charge} has already been refunded.",
                code="charge_already_refunded",
            )
        if amount is not None and amount > left:
            raise StripeError(
                f"Refund amount ({amount}) is greater than unrefunded amount on charge ({left}).",
                param="amount",
            )
        return self._refund(payment, amount or left, reason=reason, metadata=metadata)

    def retrieve_refund(self, id: str, form: CheckoutForm) -> Json:
        form.end()
        refund = self._refunds.get(id)
        if refund is None:
            raise missing_resource("refund", id, param="refund")
        return refund

    def list_refunds(self, form: CheckoutForm) -> Json:
        """Those of a payment, or all, the latest first."""
        payment = form.text_or_none("payment_intent")
        limit = form.whole_or_none("limit", least=1, most=_LISTED_AT_MOST) or _LISTED_BY_DEFAULT
        form.end()
        found = [
            refund
            for refund in reversed(self._refunds.values())
            if payment in (None, refund["payment_intent"])
        ]
        return _listed(found, limit=limit, url="/v1/refunds")

    def list_disputes(self, form: CheckoutForm) -> Json:
        """Those of a payment, or all, the latest first; a payment has one at most here."""
        id = form.text_or_none("payment_intent")
        limit = form.whole_or_none("limit", least=1, most=_LISTED_AT_MOST) or _LISTED_BY_DEFAULT
        form.end()
        found = [
            payment.dispute_as_json()
            for payment in reversed(self._payments.values())
            if payment.dispute is not None and id in (None, payment.id)
        ]
        return _listed(found, limit=limit, url="/v1/disputes")

    # What a person does on the page. Each says whether it was still possible.

    def pay(self, session: StripeSession) -> bool:
        """Pay with a card that works."""
        if session.status != "open":
            return False
        payment = self._new_payment(session, status="succeeded")
        paid = replace(session, status="complete", payment_status="paid", payment=payment.id)
        self._tell("checkout.session.completed", self._keep(paid).as_json())
        return True

    def decline(self, session: StripeSession) -> bool:
        """Try a card that is declined: the session stays open."""
        if session.status != "open":
            return False
        self._keep(replace(session, was_declined=True))
        return True

    def pay_later(self, session: StripeSession) -> bool:
        """Promise a transfer: the session is complete, the money is not there yet."""
        if session.status != "open":
            return False
        payment = self._new_payment(session, status="processing")
        promised = replace(session, status="complete", payment=payment.id)
        self._tell("checkout.session.completed", self._keep(promised).as_json())
        return True

    def is_awaited(self, session: StripeSession) -> bool:
        """Whether a transfer is under way."""
        return self._payments[session.payment].status == "processing" if session.payment else False

    def arrive(self, session: StripeSession) -> bool:
        """The transfer arrives."""
        if session.payment is None or not self.is_awaited(session):
            return False
        payment = self._payments[session.payment]
        self._payments[payment.id] = replace(payment, status="succeeded")
        paid = self._keep(replace(session, payment_status="paid"))
        self._tell("checkout.session.async_payment_succeeded", paid.as_json())
        return True

    def bounce(self, session: StripeSession) -> bool:
        """The transfer fails."""
        if session.payment is None or not self.is_awaited(session):
            return False
        payment = self._payments[session.payment]
        self._payments[payment.id] = replace(payment, status="requires_payment_method")
        self._tell("checkout.session.async_payment_failed", session.as_json())
        return True

    def payment(self, session: StripeSession) -> StripePayment | None:
        return self._payments[session.payment] if session.payment else None

    # What may become of a payment afterwards.

    def give_part_back(self, payment: StripePayment) -> None:
        """Half of what is left of it."""
        amount = max((payment.amount - payment.refunded) // 2, 1)
        if payment.refunded < payment.amount:
            self._refund(payment, amount, reason=None, metadata={})

    def claim(self, payment: StripePayment) -> None:
        """The bank claims it back, once."""
        if payment.received and payment.dispute is None:
            dispute = StripeDispute(id=f"dp_{secrets.token_hex(12)}", created=self._now())
            self._dispute(payment, dispute, event_type="charge.dispute.created")

    def win(self, payment: StripePayment) -> None:
        """The bank's claim ends, and the money stays."""
        if payment.dispute is not None and payment.dispute.status != "won":
            won = replace(payment.dispute, status="won")
            self._dispute(payment, won, event_type="charge.dispute.closed")

    def _dispute(self, payment: StripePayment, dispute: StripeDispute, *, event_type: str) -> None:
        payment = self._payments[payment.id] = replace(payment, dispute=dispute)
        self._tell(event_type, payment.dispute_as_json())

    def _now(self) -> int:
        return int(self.clock().timestamp())

    def _shown(self, session: StripeSession, *, whole: frozenset[str]) -> Json:
        """The session, with its payment whole where that was asked for, and the charge in it."""
        shown = session.as_json()
        if whole and session.payment is not None:
            payment = self._payments[session.payment]
            shown["payment_intent"] = payment.as_json(with_charge=_CHARGE in whole)
        return shown

    def _known_session(self, id: str) -> StripeSession:
        session = self.session(id)
        if session is None:
            raise missing_resource("checkout.session", id, param="session")
        return session

    def _new_payment(
        self, session: StripeSession, *, status: Literal["succeeded", "processing"]
    ) -> StripePayment:
        payment = StripePayment(
            id=f"pi_{secrets.token_hex(12)}",
            charge=f"ch_{secrets.token_hex(12)}",
            amount=session.amount,
            currency=session.currency,
            metadata=session.payment_metadata,
            created=self._now(),
            status=status,
        )
        self._payments[payment.id] = payment
        return payment

    def _refund(
        self,
        payment: StripePayment,
        amount: int,
        *,
        reason: str | None,
        metadata: Mapping[str, str],
    ) -> Json:
        refund: dict[str, Json] = {
            "id": f"re_{secrets.token_hex(12)}",
            "object": "refund",
            "amount": amount,
            "charge": payment.charge,
            "created": self._now(),
            "currency": payment.currency,
            "metadata": metadata,
            "payment_intent": payment.id,
            "reason": reason,
            "status": "succeeded",
        }
        self._refunds[str(refund["id"])] = refund
        payment = replace(payment, refunded=payment.refunded + amount)
        self._payments[payment.id] = payment
        self._tell("charge.refunded", payment.charge_as_json())
        return refund

    def _end(self, session: StripeSession) -> StripeSession:
        ended = self._keep(replace(session, status="expired"))
        self._tell("checkout.session.expired", ended.as_json())
        return ended

    def _keep(self, session: StripeSession) -> StripeSession:
        self._sessions[session.id] = session
        return session

    def _tell(self, event_type: str, about: Json) -> None:
        one = event(event_type, about=about, url=self.webhook_url, now=self.clock())
        self.tell(one)


def _listed(found: Sequence[dict[str, Json]], *, limit: int, url: str) -> Json:
    return {
        "object": "list",
        "data": list(found[:limit]),
        "has_more": len(found) > limit,
        "url": url,
    }


def _expanded(form: CheckoutForm) -> frozenset[str]:
    return frozenset(name for name in (_INTENT, _CHARGE) if form.expands(name))


def _expiry(form: CheckoutForm, *, now: int) -> int:
    at = form.whole_or_none("expires_at", least=0, most=_LATEST_TIME)
    if at is None:
        return now + _OPEN_AT_MOST_SECONDS
    if not now + _OPEN_AT_LEAST_SECONDS <= at <= now + _OPEN_AT_MOST_SECONDS:
        raise StripeError(
            "The `expires_at` timestamp must be at least 30 minutes and at most 24 hours from "
            "Checkout Session creation.",
            param="expires_at",
        )
    return at


def _items(form: CheckoutForm) -> tuple[tuple[str, ...], int, Money]:
    """What is sold, and for how much in all."""
    what: list[str] = []
    total, currency = 0, ""
    while not what or form.has(f"line_items[{len(what)}]"):
        item = f"line_items[{len(what)}]"
        price = f"{item}[price_data]"
        this = form.text(f"{price}[currency]").upper()
        if currency not in ("", this):
            raise StripeError("All line items need the same currency.", param="line_items")
        currency = this
        amount = form.whole(f"{price}[unit_amount]", least=1, most=_AMOUNT_AT_MOST)
        total += amount * form.whole(f"{item}[quantity]", least=1, most=_AMOUNT_AT_MOST)
        what.append(form.text(f"{price}[product_data][name]", at_most=_NAME_AT_MOST))
        form.text_or_none(f"{price}[product_data][description]")
        if total > _AMOUNT_AT_MOST or len(what) > _ITEMS_AT_MOST:
            raise StripeError(
                "The Checkout Session's total amount is too large.",
                code="amount_too_large",
                param="line_items",
            )
    try:
        return tuple(what), total, charged(total, currency)
    except InvalidQuestion:
        raise StripeError(
            f"Invalid currency or amount: {total} {currency[:9].lower()}", param="line_items"
        ) from None
