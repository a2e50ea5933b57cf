"""Refunds and disputes of a payment, as Stripe's webhooks report them."""

from typing import Any

from flows.payments.receipt import Payment
from tests.support.paying import give_up
from tests.support.payment_events import sent_event
from tests.support.shop_env import Buying, Shop

CREATED, CLOSED = "charge.dispute.created", "charge.dispute.closed"


async def unused_payment(shop: Shop, buy: Buying) -> Payment:
    """Return a payment that was paid and that no call has used."""
    await give_up(shop, buy)
    await buy.person.pay(buy.link)
    await shop.send_all()
    assert await shop.ledger() == ["open"]
    return (await shop.payments())[-1]


def claim(payment: Payment, kind: str = CREATED, **about: Any) -> dict[str, Any]:
    """Return a dispute's webhook. Only `payment_intent` shows which payment is disputed."""
    dispute = {
        "id": "dp_1",
        "object": "dispute",
        "amount": payment.amount,
        "charge": "ch_1",
        "currency": payment.currency.lower(),
        "metadata": {},
        "payment_intent": payment.payment_intent,
        "status": "needs_response",
        **about,
    }
    return sent_event(kind, dispute, id=f"evt_{dispute['id']}_{kind.rsplit('.', 1)[1]}")


async def claimed(shop: Shop, payment: Payment, kind: str = CREATED, **about: Any) -> str:
    """Deliver the dispute's webhook, run the sweeper, and return the payment's status."""
    answer = await shop.send(claim(payment, kind, **about))
    assert (answer.status_code, answer.json()) == (200, {"received": "waiting"})
    await shop.sweep()
    return next(str(p.status) for p in await shop.payments() if p.id == payment.id)
