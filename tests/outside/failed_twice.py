"""Paid, the tool fails, the line is cut, and its failure is told again: the receipt stays open."""

import asyncio
import re
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.crash.account_env import open_customer, open_market
from tests.crash.shop_env import Nursery, no_certificates, open_nursery
from tests.support.mcp_server import LEGACY, CutOffCaller

FINDING = "M10"
_LINK = re.compile(r'"url": ?"(http://[^"]+/e/[^"]+)"')


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_nursery("tests.crash.account_server") as nursery:
        for _ in range(times):
            yield "a failure is told twice, and nobody pays twice", await _is_paid_once(nursery)


async def _is_paid_once(nursery: Nursery) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_market(nursery, Path(folder)) as market,
            open_customer() as customer,
            market.start(),
            httpx.AsyncClient(verify=no_certificates(), timeout=300) as http,
        ):
            url = f"http://127.0.0.1:{market.port}/mcp"
            caller = CutOffCaller(http, url, LEGACY)
            await caller.connect()
            async with _called(http, url, caller.headers) as lines:
                link = await _first(lines, _LINK)
                assert link is not None
                assert await customer.walk(link) == "Paid 9.00 €"
                while not market.work:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.01)
            (Path(folder) / "go").touch()  # the line is cut, and now the tool fails
            await market.until("finished", kind="run")
            for words in ("out of leaves", "tea for 9.00 EUR"):
                async with _called(http, url, caller.headers) as lines:
                    said = await _first(lines, re.compile(f"({words})|/e/"))
                    if said != words:  # it asks to pay again
                        return False
                await market.until("delivered", kind="run")
            return len(set(market.work)) == 1


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
