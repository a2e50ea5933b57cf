"""A session at the sandbox's Stripe, its payment, and Stripe's format of both and of webhooks.

A session's success URL has a placeholder for the session's id. It is replaced only for the
browser's redirect, so the API returns the URL as it was sent.
"""

import hmac
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from flows.elicitation.states import Json
from flows.payments.money import Money
from flows.payments.receipt import Dispute
from flows.payments.stripe.messages import charged
from webapp.sandbox.checkout.deliveries import SandboxEvent
from webapp.sandbox.checkout.sales import (
    GO_BACK,
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

API_VERSION = "2026-10-28.endive"
_NONE: Mapping[str, Json] = {"reason": None, "metadata": {}}
_PAYMENT_STATUS = {
    SaleState.PAID: "succeeded",
    SaleState.AWAITED: "processing",
    SaleState.FAILED: "requires_payment_method",
}
_DISPUTE_STATUS = {
    Dispute.INQUIRY: "warning_needs_response",
    Dispute.CLOSED: "warning_closed",
    Dispute.OPEN: "needs_response",
    Dispute.LOST: "lost",
    Dispute.APPEALED: "appeal_under_review",
    Dispute.WON: "won",
}
_NOTES = {
    Dispute.INQUIRY: "The bank asks about the payment (inquiry).",
    Dispute.CLOSED: "The bank ended its inquiry without a dispute.",
    Dispute.OPEN: "The bank disputes the payment (chargeback).",
    Dispute.LOST: "The bank has taken it back.",
    Dispute.APPEALED: "The bank has taken it back, and the seller has appealed.",
    Dispute.WON: "The seller won the dispute.",
}
_BECAME = {
    (SaleState.OPEN, SaleState.PAID): "checkout.session.completed",
    (SaleState.OPEN, SaleState.AWAITED): "checkout.session.completed",
    (SaleState.OPEN, SaleState.OVER): "checkout.session.expired",
    (SaleState.AWAITED, SaleState.PAID): "checkout.session.async_payment_succeeded",
    (SaleState.AWAITED, SaleState.FAILED): "checkout.session.async_payment_failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeSession(Sale):
    """A checkout session, with its payment intent and its one charge.

    `asked` has the session's parameters, and `payment_metadata` has the metadata of its payment,
    both as they were sent. `number` is part of the ids of the payment, its charge and its dispute.
    `claimed` is the disputed amount in minor units. With `refunds_slowly`, a refund is pending
    until it arrives or fails.
    """

    url: str
    asked: Mapping[str, Json]
    payment_metadata: Mapping[str, str]
    number: str
    claimed: int | None = None
    refunds_slowly: bool = False

    @property
    def amount(self) -> int:
        return counted(self.price)

    @property
    def refunded(self) -> int:
        standing = (one.price.minor_units for one in self.refunds if _status(one) != "failed")
        return sum(standing)

    @property
    def payment(self) -> str | None:
        return f"pi_{self.number}" if self.state in _PAYMENT_STATUS else None

    @property
    def charge(self) -> str:
        return f"ch_{self.number}"

    @property
    def status(self) -> str:
        ended = "expired" if self.state is SaleState.OVER else "complete"
        return "open" if self.is_open else ended

    def as_json(self) -> dict[str, Json]:
        return {
            **self.asked,
            "id": self.id,
            "object": "checkout.session",
            "amount_subtotal": self.amount,
            "amount_total": self.amount,
            "expires_at": _seconds(self.until),
            "mode": "payment",
            "payment_intent": self.payment,
            "payment_method_types": ["card", "customer_balance"],
            "payment_status": "paid" if self.is_paid else "unpaid",
            "status": self.status,
            "url": self.url if self.is_open else None,
            **self._about(self.made_at),
        }

    def payment_as_json(self, *, with_charge: bool = False) -> dict[str, Json]:
        charge: Json = self.charge_as_json() if with_charge else self.charge
        return {
            "id": self.payment,
            "object": "payment_intent",
            "amount": self.amount,
            "amount_received": self.amount if self.is_paid else 0,
            "latest_charge": charge if self.is_paid else None,
            "metadata": self.payment_metadata,
            "status": _PAYMENT_STATUS[self.state],
            **self._about(self.taken_at),
        }

    def charge_as_json(self) -> dict[str, Json]:
        return {
            "id": self.charge,
            "object": "charge",
            "amount": self.amount,
            "amount_captured": self.amount,
            "amount_refunded": self.amount - self.remaining_amount,
            "disputed": self.dispute is not None,
            "metadata": self.payment_metadata,
            "paid": self.is_paid,
            "payment_intent": self.payment,
            "refunded": self.remaining_units == 0,
            "status": "succeeded",
            **self._about(self.taken_at),
        }

    @property
    def remaining_amount(self) -> int:
        return counted(Money.from_minor_units(self.remaining_units, self.price.currency))

    def dispute_as_json(self) -> dict[str, Json]:
        """Return the dispute. Its charge stays marked as disputed after the dispute has ended."""
        claimed = self.price.minor_units if self.claimed is None else self.claimed
        assert self.dispute is not None
        return {
            "id": f"dp_{self.number}",
            "object": "dispute",
            "amount": counted(Money.from_minor_units(claimed, self.price.currency)),
            "charge": self.charge,
            "metadata": {},
            "payment_intent": self.payment,
            "reason": "fraudulent",
            "status": _DISPUTE_STATUS[self.dispute],
            **self._about(self.disputed_at),
        }

    def refund_as_json(self, refund: SaleRefund) -> dict[str, Json]:
        return {
            "id": refund.id,
            "object": "refund",
            "amount": counted(refund.price),
            "charge": self.charge,
            "payment_intent": self.payment,
            **_NONE,
            **refund.about,
            "status": _status(refund),
            **self._about(refund.made_at),
        }

    def _about(self, created: datetime | None) -> dict[str, Json]:
        return {
            "created": None if created is None else _seconds(created),
            "currency": self.price.currency.lower(),
            "livemode": False,
        }


def _decline(sales: Sales[StripeSession], session: StripeSession) -> None:
    """Decline the card. The session stays open."""
    sales.keep(replace(session, was_declined=True))


def _refund_slowly(sales: Sales[StripeSession], session: StripeSession) -> None:
    sales.keep(replace(session, refunds_slowly=True))


def _claim_half(sales: Sales[StripeSession], session: StripeSession) -> None:
    claimed = max(session.price.minor_units // 2, 1)
    now = sales.clock()
    sales.keep(replace(session, dispute=Dispute.OPEN, disputed_at=now, claimed=claimed))


def _status(refund: SaleRefund) -> Json:
    return refund.about.get("status", "succeeded")


def _becomes_refund(status: str) -> Act:
    """Return the effect that sets this status on the latest refund that can have the status."""

    def act(sales: Sales[StripeSession], session: StripeSession) -> None:
        refunds = [*session.refunds]
        number = max(n for n, one in enumerate(refunds) if _can_become(one, status))
        about = {**refunds[number].about, "status": status}
        refunds[number] = replace(refunds[number], about=about)
        sales.keep(replace(session, refunds=tuple(refunds)))

    return act


def _can_become(refund: SaleRefund, status: str) -> bool:
    return _status(refund) in (("pending",) if status == "succeeded" else ("pending", "succeeded"))


def _has_refund(status: str) -> Callable[[StripeSession], bool]:
    return lambda session: any(_can_become(one, status) for one in session.refunds)


def _is_at(*stages: Dispute | None) -> Callable[[StripeSession], bool]:
    return lambda session: session.is_paid and session.dispute in stages


_BUTTONS = (
    Button(name="card", label="Pay with a test card", look="primary", act=becomes(SaleState.PAID)),
    Button(name="declined", label="Card that is declined", act=_decline, stays=True),
    Button(
        name="bank", label="Pay by bank, arrives later", act=becomes(SaleState.AWAITED), stays=True
    ),
    GO_BACK,
    *TRANSFER,
    refund_half(lambda session: session.remaining_units),
    Button(
        name="slow",
        label="Let refunds take days",
        act=_refund_slowly,
        when=lambda session: session.is_paid and not session.refunds_slowly,
        stays=True,
    ),
    Button(
        name="refund_arrives",
        label="Let a refund arrive",
        act=_becomes_refund("succeeded"),
        when=_has_refund("succeeded"),
        stays=True,
    ),
    Button(
        name="refund_fails",
        label="Let a refund fail",
        act=_becomes_refund("failed"),
        when=_has_refund("failed"),
        stays=True,
    ),
    *(
        dispute_button(name, label=label, dispute=stage, when=_is_at(*before))
        for name, label, stage, before in (
            ("inquiry", "Let the bank ask about it", Dispute.INQUIRY, (None,)),
            ("closed", "Let the bank end its inquiry", Dispute.CLOSED, (Dispute.INQUIRY,)),
            ("claim", "Let the bank claim it back", Dispute.OPEN, (None, Dispute.INQUIRY)),
            ("won", "Win against the bank", Dispute.WON, (Dispute.OPEN, Dispute.APPEALED)),
            ("lost", "Lose against the bank", Dispute.LOST, (Dispute.OPEN, Dispute.APPEALED)),
            ("appeal", "Appeal", Dispute.APPEALED, (Dispute.LOST,)),
        )
    ),
    Button(
        name="claim_part",
        label="Let the bank claim half of it",
        act=_claim_half,
        when=_is_at(None),
        stays=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeVendor:
    """Stripe's behaviour. Implements Vendor."""

    webhook_url: str
    secret: str = field(repr=False)
    clock: Callable[[], datetime]
    label: str = "Stripe Checkout"
    buttons: tuple[Button, ...] = _BUTTONS

    def refund_id(self) -> str:
        return f"re_{secrets.token_hex(12)}"

    def notes(self, sale: StripeSession) -> Iterable[str]:
        if sale.refunds_slowly:
            yield "Refunds take days."
        if sale.dispute is not None:
            yield _NOTES[sale.dispute]

    def event(self, before: StripeSession, after: StripeSession) -> SandboxEvent | None:
        if before.state is not after.state:
            return self._event(_BECAME[before.state, after.state], after.as_json())
        if len(before.refunds) != len(after.refunds):
            return self._event("charge.refunded", after.charge_as_json())
        for was, one in zip(before.refunds, after.refunds, strict=True):
            if was != one:
                what = "failed" if _status(one) == "failed" else "updated"
                return self._event(f"refund.{what}", after.refund_as_json(one))
        if before.dispute is not after.dispute:
            has_ended = after.dispute in (Dispute.CLOSED, Dispute.WON, Dispute.LOST)
            what = "created" if before.dispute is None else "closed" if has_ended else "updated"
            return self._event(f"charge.dispute.{what}", after.dispute_as_json())
        return None

    def headers(self, event: SandboxEvent) -> Sequence[tuple[str, str]]:
        """Return the headers with a new signature, since a signature is valid for minutes only."""
        signature = signature_of(event.body, secret=self.secret, now=self.clock())
        return [("content-type", "application/json; charset=utf-8"), signature]

    def _event(self, event_type: str, about: Json) -> SandboxEvent:
        id = f"evt_{secrets.token_hex(12)}"
        body = {
            "id": id,
            "object": "event",
            "api_version": API_VERSION,
            "created": _seconds(self.clock()),
            "data": {"object": about},
            "livemode": False,
            "pending_webhooks": 1,
            "request": {"id": None, "idempotency_key": None},
            "type": event_type,
        }
        url = self.webhook_url
        return SandboxEvent(id=id, type=event_type, url=url, body=msgspec.json.encode(body))


def signature_of(body: bytes, *, secret: str, now: datetime) -> tuple[str, str]:
    """Return the signature header. The HMAC key is the secret with its prefix `whsec_`.

    See docs.stripe.com/webhooks/signature. This code is separate from our verifier: shared code
    would repeat the verifier's defects.
    """
    time = _seconds(now)
    mac = hmac.digest(secret.encode(), f"{time}.".encode() + body, "sha256").hex()
    return ("Stripe-Signature", f"t={time},v1={mac}")


def counted(price: Money) -> int:
    """Return the amount in Stripe's own units, the inverse of `charged`."""
    return price.minor_units * 100 // charged(100, price.currency).minor_units


def _seconds(at: datetime) -> int:
    return int(at.timestamp())
