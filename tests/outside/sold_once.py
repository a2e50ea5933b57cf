"""A permanent purchase by two calls with different arguments: it must be paid for only once."""

import asyncio
import re
from collections.abc import AsyncIterator

from tests.crash.shop_env import Calling, calling, held, open_process_pool
from tests.outside.sales import LEGACY, STORE_KINDS, Sales, selling

FINDING = "XM1"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_process_pool("tests.crash.account_server") as process_pool:
        for store in STORE_KINDS:
            for _ in range(times):
                async with selling(process_pool, store) as (sales, server):
                    monday, tuesday = {"day": "monday"}, {"day": "tuesday"}
                    async with calling(server, "member", mode=LEGACY, arguments=monday) as first:
                        links = [await held(server, first, mode=LEGACY)]
                        async with calling(
                            server, "member", mode=LEGACY, arguments=tuesday
                        ) as second:
                            links.append(await _shown(second))
                        reported = [await _paid(sales, first, links)]
                    async with calling(server, "member", mode=LEGACY, arguments=tuesday) as second:
                        reported.append(await second.result())
                    is_one = len({one.split()[1] for one in reported}) == await sales.charges() == 1
                    yield f"{store}: two calls, one receipt, one price paid", is_one


async def _shown(call: Calling) -> str:
    """Return the link that the client shows, or the link in the result if the call ended first."""
    asked = asyncio.create_task(call.link())
    await asyncio.wait({asked, call.task}, return_when=asyncio.FIRST_COMPLETED)
    if asked.done():
        return asked.result()
    asked.cancel()
    (found,) = re.findall(r"http://\S+/e/\S+", str(call.task.exception() or call.task.result()))
    return str(found)


async def _paid(sales: Sales, call: Calling, links: list[str]) -> str:
    """Pay on each page that is not paid yet, and return the call's result."""
    for link in links:
        if not (await sales.customer.page(link)).heading.startswith("Paid"):
            await sales.customer.walk(link)
    return await call.result()
