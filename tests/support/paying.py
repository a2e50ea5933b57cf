"""People who pay, disconnect, or open two payment pages."""

import asyncio

from tests.support.mcp_server import cut, eventually
from tests.support.shop_env import EXPIRE, Buying, Shop


async def give_up(shop: Shop, buy: Buying) -> None:
    """Disconnect the client. The question stays open."""
    await cut(buy.call)
    await eventually(lambda: not len(shop.service.elicitations.waiters))


async def paid_in_vain(shop: Shop, buy: Buying) -> str:
    """Disconnect the client, then pay. Return the payment's id as the page shows it."""
    await give_up(shop, buy)
    await buy.pay()
    (payment,) = await shop.payments()
    assert payment.status == "open"
    return payment.id.removeprefix(payment.owner)


async def results_are_noted(shop: Shop) -> None:
    """Wait until the use of every payment is recorded."""
    while any(payment.status == "open" for payment in await shop.payments()):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def two_tabs(shop: Shop, buy: Buying) -> tuple[str, str]:
    """Open two payment pages. Return both addresses; the second belongs to `buy.person`.

    The first page was opened in another browser. The provider reports its session as expired.
    """
    earlier = await (await shop.person()).go_on(buy.link)
    shop.line.broken.append(EXPIRE)
    shop.line.amends["status"] = "expired"
    latest = await buy.person.go_on(buy.link)
    shop.line.amends.clear()
    shop.line.broken.remove(EXPIRE)
    assert earlier != latest
    return earlier, latest
