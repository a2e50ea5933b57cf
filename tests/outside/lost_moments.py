"""A store that lost its latest writes: the customer must not pay twice.

The lost writes recorded that a payment page was created and paid.
"""

from collections.abc import AsyncIterator

from tests.crash.shop_env import Calling, calling, held, open_process_pool
from tests.outside.sales import LEGACY, STORE_KINDS, selling

FINDING = "XV2"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_process_pool("tests.crash.account_server") as process_pool:
        for store in STORE_KINDS:
            for _ in range(times):
                async with selling(process_pool, store) as (sales, server):
                    async with calling(server, "buy", mode=LEGACY) as call:
                        link = await held(server, call, mode=LEGACY)
                    async with sales.copied(store) as env:
                        await sales.customer.walk(link)
                        await sales.env.until("open", "payment")
                        server.kill()
                        async with (
                            env.start() as again,
                            calling(again, "buy", mode=LEGACY) as call,
                        ):
                            link = await held(again, call, mode=LEGACY)
                            there = await sales.customer.press(link)
                            if there != link:  # the link leads to a payment page
                                await sales.customer.come_back(await sales.customer.press(there))
                            is_bought = await _arrives(call)
                    is_one = is_bought and await sales.charges() == 1
                    yield f"{store}: paid in the lost moment, one price paid", is_one


async def _arrives(call: Calling) -> bool:
    try:
        await call.result()
    except AssertionError:  # the tool's error
        return False
    return True
