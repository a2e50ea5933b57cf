"""Two partial refunds of one payment at the same moment, by commands in two processes."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.crash.account_env import REFUNDS, AccountEnv, open_customer, open_market
from tests.crash.shop_env import ProcessPool, calling, held, open_process_pool
from tests.outside.by_command import output_of, outputs_of
from tests.support.shared_stores import STORES

FINDING = "XM2"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_process_pool("tests.crash.account_server") as process_pool:
        for _ in range(times):
            for store in ("sqlite", "postgres"):
                is_right = await _is_one_refund(process_pool, store)
                yield f"3.00 and 6.00 in all, asked for at once ({store})", is_right


async def _is_one_refund(process_pool: ProcessPool, store: str) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            STORES[store](folder) as address,
            open_market(process_pool, folder, address=address) as env,
        ):
            id = await paid_in_vain(env)
            outputs = await outputs_of(env, ("refund", id, "3.00"), ("refund", id, "6.00"))
            refunds = (await env.stripe(REFUNDS))["data"]
            given = sum(one["amount"] for one in refunds)
            rows = await output_of(env, "listed")
            # Either command can be first, so the refunds are 3.00 or 6.00, and never 9.00.
            is_shown = f"{given // 100}.00 EUR of it refunded" in rows
            return 0 < given <= 600 and is_shown and all(outputs)


async def paid_in_vain(env: AccountEnv) -> str:
    """Return the id of a payment that no call waits for any more."""
    async with env.start() as server, open_customer() as customer:
        async with calling(server, "buy", mode="legacy") as call:
            link = await held(server, call, mode="legacy")
        await customer.walk(link)
        await env.until("open", "payment")
    (row,) = await env.records("payment")
    return row.id.removeprefix(row.owner)
