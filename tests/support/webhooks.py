"""Webhooks, signed as the provider signs them, and the log of received webhooks."""

from typing import Any

from tests.support import signing
from tests.support.clock import Clock
from tests.support.shop_env import Buying, Shop
from webapp.cli.webhooks import replay_hook
from webapp.records.ids import tail_of
from webapp.records.values import StoredWebhook


async def paid(shop: Shop, buy: Buying) -> bytes:
    """Pay, and return the event of the payment."""
    await buy.person.pay(buy.link)
    return shop.post.pop()


def signed(shop: Shop, body: bytes, *, secret: str | None = None, **ago: float) -> list[Any]:
    at = Clock(shop.clock()).tick(**{unit: -amount for unit, amount in ago.items()})
    return signing.stripe(body, secret=secret or shop.sandbox.webhook_secret, now=at)


async def only(shop: Shop, status: str) -> StoredWebhook:
    (found,) = [hook for hook in await shop.webhooks() if hook.status == status]
    return found


async def replayed(shop: Shop, hook: StoredWebhook) -> str:
    (line,) = await replay_hook(shop.service, tail_of(hook))
    return line


async def a_session(shop: Shop, **changes: Any) -> dict[str, Any]:
    """Return a paid session of the shop's account that the shop did not start."""
    return {
        "id": "cs_test_elsewhere",
        "object": "checkout.session",
        "amount_total": 900,
        "currency": "eur",
        "livemode": False,
        "payment_intent": "pi_elsewhere",
        "payment_status": "paid",
        "status": "complete",
        **changes,
    }
