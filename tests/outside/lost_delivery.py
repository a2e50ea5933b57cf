"""A result that was delivered after a backup: the restored store must not refund the payment."""

from collections.abc import AsyncIterator
from datetime import timedelta

from msgspec.structs import replace

from tests.crash.account_env import REFUNDS, AccountEnv
from tests.crash.shop_env import calling, held, open_process_pool
from tests.outside.by_command import output_of
from tests.outside.sales import LEGACY, STORE_KINDS, selling
from webapp.connecting import utc_now
from webapp.deadline import UNSURE
from webapp.records.high_water import MARK, restored
from webapp.records.owners import SERVICE

FINDING = "XV1 x XV2"
LATER = int(timedelta(days=8).total_seconds())


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_process_pool("tests.crash.account_server") as process_pool:
        for store in STORE_KINDS:
            for _ in range(times):
                async with selling(process_pool, store) as (sales, server):
                    async with calling(server, "buy", mode=LEGACY) as call:
                        there = await sales.customer.to_provider(
                            await held(server, call, mode=LEGACY)
                        )
                    await sales.customer.press(there)
                    await sales.env.until("open", "payment")
                    async with sales.copied(store) as env:
                        await _is_restored(env)
                        async with calling(server, "buy", mode=LEGACY) as call:
                            await call.result()
                        await sales.env.until("spent", "payment")
                        server.kill()
                        async with env.start(later=LATER):
                            is_left = await _is_left_to_the_operator(env)
                        refunds = (await env.stripe(REFUNDS))["data"]
                    yield f"{store}: delivered after the backup", is_left and refunds == []


async def _is_restored(env: AccountEnv) -> None:
    """Record in the copied store, as `elicit restore` does, that later writes may be missing."""
    now = utc_now() + UNSURE  # the time by the server's clock, see ChildClock.settle
    mark = await env.store.read(SERVICE, MARK, SERVICE)
    noted = restored(mark, made_at=now, now=now)
    await env.store.write(*(replace(each, version=each.version - 1) for each in noted))


async def _is_left_to_the_operator(env: AccountEnv) -> bool:
    """Wait until the sweeper decides. Return True if it left the payment to the operator."""
    while await env.statuses("payment") == ["open"]:
        if "may have been used by a call that the store lost" in await output_of(env, "listed"):
            return True
    return False
