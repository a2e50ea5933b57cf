"""A command refunds a payment whose call claimed it and ended: by kill -9, cancel or purge."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import httpx

from tests.crash.account_env import AccountEnv, open_customer, open_market
from tests.crash.shop_env import ProcessPool, Server, no_certificates, open_process_pool
from tests.outside.by_command import output_of
from tests.outside.sales import STORE_KINDS
from tests.support.shared_stores import STORES
from tests.support.task_client import DECLARED, TaskClient
from tests.support.ways import with_stores

FINDING = "XD2"
AGO = -90  # sets the server's clock back: for a command, the server's leases have expired
Leaves = Callable[[AccountEnv, Server, TaskClient, str], Awaitable[object]]


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_process_pool("tests.crash.account_server") as process_pool:
        for _ in range(times):
            for (case, leaves), store in with_stores(
                [*CASES.items()], STORE_KINDS, whole=times > 1
            ):
                is_right = await _is_refunded(process_pool, store, leaves)
                yield f"the command refunds it after {case} ({store})", is_right


async def _is_refunded(process_pool: ProcessPool, store: str, leaves: Leaves) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            STORES[store](folder) as address,
            open_market(process_pool, folder, address=address) as env,
            env.start(later=AGO) as server,
            open_customer() as customer,
            httpx.AsyncClient(timeout=300, verify=no_certificates()) as http,
        ):
            url = f"http://127.0.0.1:{env.port}/mcp"
            client = TaskClient(http, url, "2025-11-25", declares=DECLARED, name="caller")
            await client.connect()
            task = await client.task("spoil")
            state = await client.until(task, "input_required")
            link = next(word for word in state["statusMessage"].split() if "/e/" in word)
            await customer.walk(link)
            await client.get(task)
            while not env.work:  # until the tool's body has claimed the payment
                await client.get(task)
            await leaves(env, server, client, task)
            (row,) = await env.records("payment")
            tail = row.id.removeprefix(row.owner)
            output = await output_of(env, "refund", tail)
            return "is refunded" in output and await env.statuses("payment") == ["refunded"]


async def _killed(env: AccountEnv, server: Server, client: TaskClient, task: str) -> None:
    server.kill()


async def _cancelled(env: AccountEnv, server: Server, client: TaskClient, task: str) -> None:
    await client.cancel(task)
    server.kill()


async def _purged(env: AccountEnv, server: Server, client: TaskClient, task: str) -> None:
    await output_of(env, "purge")
    server.kill()


CASES: Mapping[str, Leaves] = {
    "kill -9": _killed,
    "a cancel": _cancelled,
    "a purge": _purged,
}
