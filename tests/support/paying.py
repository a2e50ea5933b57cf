"""People who pay, give up, or press twice."""

import asyncio

from tests.support.mcp_server import cut, eventually
from tests.support.shop_env import EXPIRE, Buying, Shop


async def give_up(shop: Shop, buy: Buying) -> None:
    """The client goes away; the question stays."""
    await cut(buy.call)
    await eventually(lambda: not len(shop.service.elicitations.waiters))


async def paid_in_vain(shop: Shop, buy: Buying) -> str:
    """The client goes away, and then the person pays; the payment's id, as it is shown."""
    await give_up(shop, buy)
    await buy.pay()
    (payment,) = await shop.payments()
    assert payment.status == "open"
    return payment.id.removeprefix(payment.owner)


async def results_are_noted(shop: Shop) -> None:
    """What was used is known to have arrived."""
    while any(payment.status == "open" for payment in await shop.payments()):  # noqa: ASYNC110
        await asyncio.sleep(0)


async def two_tabs(shop: Shop, buy: Buying) -> tuple[str, str]:
    """Two pages that can be paid at; the latest is second, and the person's.

    The provider says of the earlier one, which was opened in another browser, that it is closed.
    """
    earlier = await (await shop.person()).go_on(buy.link)
    shop.line.broken.append(EXPIRE)
    shop.line.amends["status"] = "expired"
    latest = await buy.person.go_on(buy.link)
    shop.line.amends.clear()
    shop.line.broken.remove(EXPIRE)
    assert earlier != latest
    return earlier, latest
