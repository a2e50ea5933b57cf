"""Two served processes on a PostgreSQL with a standby, and requests to them during a failover."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from mcp import Client

from tests.support.cli import PROJECT, Server, run, serving
from tests.support.processes import error_of
from tests.support.standby import Pair, replicating
from webapp.demo.client import text_of

PATIENCE_SECONDS = 300


async def comes(is_so: Callable[[], Awaitable[bool]]) -> bool:
    """Return True if the condition becomes true within PATIENCE_SECONDS."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not await is_so():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.1)
    return True


class Instances:
    """Two processes with the same home and store. Their tools append each action to `till`."""

    def __init__(self, servers: Sequence[Server], *, home: Path, extra: dict[str, str]) -> None:
        self.servers, self.home, self.extra = servers, home, extra
        self.till = home / "till"

    async def are_ready(self) -> bool:
        async with httpx.AsyncClient(timeout=PATIENCE_SECONDS) as anybody:
            replies = [await anybody.get(f"{each.url}/ready") for each in self.servers]
        return all(reply.status_code == 200 for reply in replies)

    def which_logged(self, event: str) -> list[bool]:
        return [event in error_of(each.process) for each in self.servers]

    async def order(self, what: str) -> list[str]:
        """Place the order at each process, and return the idempotency keys."""
        for number, each in enumerate(self.servers):
            async with Client(f"{each.url}/mcp") as client:
                text_of(await client.call_tool("order", {"what": f"{what} {number}"}))
        return [line.split()[-1] for line in self.till.read_text().splitlines() if what in line]

    async def doctor(self) -> list[dict[str, Any]]:
        result = await run("doctor", "--json", home=self.home, extra=self.extra)
        found: list[dict[str, Any]] = json.loads(result.out)
        return found


@asynccontextmanager
async def two_instances(store: str, home: Path) -> AsyncIterator[Instances]:
    (home / "till").touch()
    extra = {
        "ELICIT_STORE": store,
        "TILL": str(home / "till"),
        "ELICIT_LOG_LEVEL": "info",
        "ELICIT_SECRET": "a secret that both instances have.",
        "ELICIT_STORE_MARKS": str(home / "marks"),
    }
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                serving("tests.outside.shop:mcp", home=home, cwd=PROJECT, extra=extra)
            )
            for _ in range(2)
        ]
        yield Instances(servers, home=home, extra=extra)


@asynccontextmanager
async def failing_over(
    home: Path, *, is_synchronous: bool = False
) -> AsyncIterator[tuple[Pair, Instances]]:
    async with (
        replicating(is_synchronous=is_synchronous) as pair,
        two_instances(pair.url, home) as instances,
    ):
        yield pair, instances
