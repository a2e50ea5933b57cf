"""A paid tool that fails after its connection was cut: the payment stays open."""

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.crash.account_env import open_customer, open_market
from tests.crash.shop_env import ProcessPool, no_certificates, open_process_pool
from tests.support.mcp_server import LEGACY, CutOffCaller

FINDING = "M10"
_LINK = re.compile(r'"url": ?"(http://[^"]+/e/[^"]+)"')


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_process_pool("tests.crash.account_server") as process_pool:
        for _ in range(times):
            yield (
                "a repeated call gets the same error, and the person pays once",
                await _is_paid_once(process_pool),
            )


async def _is_paid_once(process_pool: ProcessPool) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_market(process_pool, Path(folder)) as account_env,
            open_customer() as customer,
            account_env.start(),
            httpx.AsyncClient(verify=no_certificates(), timeout=300) as http,
        ):
            url = f"http://127.0.0.1:{account_env.port}/mcp"
            caller = CutOffCaller(http, url, LEGACY)
            await caller.connect()
            async with _called(http, url, caller.headers) as lines:
                link = await _first(lines, _LINK)
                assert link is not None
                assert await customer.walk(link) == "Paid 9.00 €"
                while not account_env.work:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.01)
            (Path(folder) / "go").touch()  # the connection has been cut; now let the tool fail
            await account_env.until("finished", kind="run")
            for words in ("out of leaves", "tea for 9.00 EUR"):
                async with _called(http, url, caller.headers) as lines:
                    first = await _first(lines, re.compile(f"({words})|/e/"))
                    if first != words:  # the call asks to pay again
                        return False
                await account_env.until("delivered", kind="run")
            return len(set(account_env.work)) == 1


@asynccontextmanager
async def _called(
    http: httpx.AsyncClient, url: str, headers: dict[str, str]
) -> AsyncGenerator[AsyncIterator[str]]:
    call: dict[str, Any] = {"name": "spoil", "arguments": {}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    async with http.stream("POST", url, json=request, headers=headers) as reply:
        yield reply.aiter_lines()


async def _first(lines: AsyncIterator[str], words: re.Pattern[str]) -> str | None:
    async for line in lines:
        if found := words.search(line):
            return found[1]
    return None
