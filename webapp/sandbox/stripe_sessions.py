"""What the sandbox's checkout keeps, a session and its payment, and how Stripe would write them.

A session's success address has a place for its id. It is filled only when the browser leaves, so
that the API gives back what it was given.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flows.elicitation.states import Json
from flows.payments.money import Money

_ID_PLACE = "{CHECKOUT_SESSION_ID}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeSession:
    """One visit to the checkout."""

    id: str
    url: str
    what: tuple[str, ...]
    amount: int  # as Stripe counts
    price: Money  # the same, for people
    success_url: str
    cancel_url: str | None
    client_reference_id: str | None
    metadata: Mapping[str, str]
    payment_metadata: Mapping[str, str]
    created: int
    expires_at: int
    status: Literal["open", "complete", "expired"] = "open"
    payment_status: Literal["paid", "unpaid"] = "unpaid"
    payment: str | None = None
    was_declined: bool = False

    @property
    def currency(self) -> str:
        return self.price.currency.lower()

    @property
    def back_url(self) -> str:
        """Where the browser goes after a payment."""
        return self.success_url.replace(_ID_PLACE, self.id)

    def as_json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "object": "checkout.session",
            "amount_subtotal": self.amount,
            "amount_total": self.amount,
            "cancel_url": self.cancel_url,
            "client_reference_id": self.client_reference_id,
            "created": self.created,
            "currency": self.currency,
            "expires_at": self.expires_at,
            "livemode": False,
            "metadata": self.metadata,
            "mode": "payment",
            "payment_intent": self.payment,
            "payment_method_types": ["card", "customer_balance"],
            "payment_status": self.payment_status,
            "status": self.status,
            "success_url": self.success_url,
            "url": self.url if self.status == "open" else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StripeDispute:
    """A bank's claim; its charge stays disputed when it is over."""

    id: str
    created: int
    status: Literal["needs_response", "won"] = "needs_response"


@dataclass(frozen=True, slots=True, kw_only=True)
class StripePayment:
    """A payment intent together with its one charge."""

    id: str
    charge: str
    amount: int
    currency: str
    metadata: Mapping[str, str]
    created: int
    status: Literal["succeeded", "processing", "requires_payment_method"]
    refunded: int = 0
    dispute: StripeDispute | None = None

    @property
    def received(self) -> int:
        return self.amount if self.status == "succeeded" else 0

    def as_json(self, *, with_charge: bool = False) -> dict[str, Json]:
        charge: Json = self.charge_as_json() if with_charge else self.charge
        return {
            "id": self.id,
            "object": "payment_intent",
            "amount": self.amount,
            "amount_received": self.received,
            "created": self.created,
            "currency": self.currency,
            "latest_charge": charge if self.received else None,
            "livemode": False,
            "metadata": self.metadata,
            "status": self.status,
        }

    def charge_as_json(self) -> dict[str, Json]:
        return {
            "id": self.charge,
            "object": "charge",
            "amount": self.amount,
            "amount_captured": self.received,
            "amount_refunded": self.refunded,
            "created": self.created,
            "currency": self.currency,
            "disputed": self.dispute is not None,
            "livemode": False,
            "metadata": self.metadata,
            "paid": bool(self.received),
            "payment_intent": self.id,
            "refunded": self.refunded == self.amount,
            "status": "succeeded",
        }

    def dispute_as_json(self) -> dict[str, Json]:
        """Of a payment that is claimed, or was."""
        assert self.dispute is not None
        return {
            "id": self.dispute.id,
            "object": "dispute",
            "amount": self.amount,
            "charge": self.charge,
            "created": self.dispute.created,
            "currency": self.currency,
            "livemode": False,
            "metadata": {},
            "payment_intent": self.id,
            "reason": "fraudulent",
            "status": self.dispute.status,
        }
