"""A paid result that is sent while the store is unavailable: it must never be refunded."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from tests.crash.account_env import REFUNDS, AccountEnv, open_customer, open_market
from tests.crash.shop_env import ProcessPool, calling, held, open_process_pool
from tests.outside.by_command import output_of
from tests.outside.sales import STORE_KINDS
from tests.support.shared_stores import STORES
from tests.support.ways import with_stores

FINDING = "XV1"
PATIENCE_SECONDS = 300
AGO = -90  # sets the server's clock back: for a command, the server's leases have expired
EIGHT_DAYS = 8 * 24 * 60 * 60


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_process_pool("tests.crash.account_server") as process_pool:
        for _ in range(times):
            for dies, store in with_stores((False, True), STORE_KINDS, whole=times > 1):
                case = "the process died" if dies else "the store came back"
                is_right = await _is_not_refunded(process_pool, store, dies=dies)
                yield f"the result arrived, and {case} ({store})", is_right


async def _is_not_refunded(process_pool: ProcessPool, store: str, *, dies: bool) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with AsyncExitStack() as stack:
            address = await stack.enter_async_context(STORES[store](folder))
            env = await stack.enter_async_context(
                open_market(process_pool, folder, address=address)
            )
            (folder / "away").touch()
            async with env.start(later=AGO) as server, open_customer() as customer:
                async with calling(server, "buy", mode="legacy") as call:
                    await customer.walk(await held(server, call, mode="legacy"))
                    result = await call.result()
                await server.says("away")
                if dies:
                    server.kill()
                (folder / "away").unlink()
                if not dies:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(PATIENCE_SECONDS):
                            await env.until("spent", "payment")
            if not dies:
                is_noted = await env.statuses("payment") == ["spent"]
                return is_noted and env.is_served_once(result)
            return await _is_on_the_list(env)


async def _is_on_the_list(env: AccountEnv) -> bool:
    """Check eight days later that the sweeper left the payment to the operator's list.

    By then, the sweeper would have refunded an unused payment.
    """
    async with env.start(later=EIGHT_DAYS) as server:
        for _ in range(2):  # the second sweep begins after the work of the first
            await server.says("looks")
        rows = await output_of(env, "listed")
    refunds = (await env.stripe(REFUNDS))["data"]
    return "result made, delivery not confirmed" in rows and refunds == []
