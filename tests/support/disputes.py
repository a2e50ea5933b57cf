"""Refunds and disputes of a payment, as their provider tells them."""

from typing import Any

from flows.payments.receipt import Payment
from tests.support.paying import give_up
from tests.support.payment_events import told
from tests.support.shop_env import Buying, Shop

CREATED, CLOSED = "charge.dispute.created", "charge.dispute.closed"


async def kept(shop: Shop, buy: Buying) -> Payment:
    """Paid, and nobody has used it."""
    await give_up(shop, buy)
    await buy.person.pay(buy.link)
    await shop.tell_all()
    assert await shop.ledger() == ["open"]
    return (await shop.payments())[-1]


def claim(payment: Payment, kind: str = CREATED, **about: Any) -> dict[str, Any]:
    """A bank's claim, which names the payment only."""
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
    return told(kind, dispute, id=f"evt_{dispute['id']}_{kind.rsplit('.', 1)[1]}")


async def claimed(shop: Shop, payment: Payment, kind: str = CREATED, **about: Any) -> str:
    """The claim is told, and looked into; how the payment stands then."""
    answer = await shop.tell(claim(payment, kind, **about))
    assert (answer.status_code, answer.json()) == (200, {"received": "waiting"})
    await shop.sweep()
    return next(str(p.status) for p in await shop.payments() if p.id == payment.id)
