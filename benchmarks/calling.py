"""A tool call over HTTP from start to result, with a person who is as quick as a program.

Each server is a process that is started once. The client is the SDK's. The person opens only the
address that lets the tool continue, so both sides answer the same HTTP requests.
"""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
from mcp import Client
from mcp_types import ElicitResult

from benchmarks.figure import Figure, alternate, in_rounds, summary
from benchmarks.served import MODERN

REVISIONS = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}
_ROOT = Path(__file__).resolve().parent.parent


async def tool_calls(*, seconds: float, times: int = 10) -> list[Figure]:
    """Return one line for each revision. `seconds` is the time limit for all lines together."""
    figures: list[Figure] = []
    async with serving("by_hand") as bare_url, serving("with_elicit") as our_url:
        for revision, mode in REVISIONS.items():
            async with (
                Caller.connected(bare_url, mode=mode) as bare,
                Caller.connected(our_url, mode=mode) as our_side,
            ):
                await alternate(0, bare.call, our_side.call, times=5)  # warm-up
                rounds = [
                    await alternate(number, bare.call, our_side.call, times=times)
                    for number in in_rounds(seconds / len(REVISIONS))
                ]
            figures.append(
                summary(
                    f"a tool call over HTTP, {revision}",
                    rounds,
                    show=lambda took: f"{took * 1e3:.1f} ms",
                    at_most=1.45 if revision < MODERN else 1.6,
                )
            )
    return figures


@asynccontextmanager
async def serving(which: str, *, module: str = "benchmarks.served") -> AsyncIterator[str]:
    """Provide the address of a server process that ends with this block or this process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        which,
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise RuntimeError(f"the server {which} did not start")
        yield address
    finally:
        process.stdin.close()
        await process.wait()


class Caller:
    """A client whose browser opens each link immediately."""

    def __init__(self, url: str, browser: httpx.AsyncClient) -> None:
        self._url = url
        self._browser = browser
        self._items = (f"tea-{number}" for number in count())
        self._item = ""
        self._visit: asyncio.Task[httpx.Response] | None = None
        self._client: Client | None = None

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str, *, mode: str) -> "AsyncIterator[Caller]":
        async with AsyncExitStack() as stack:
            caller = cls(url, await stack.enter_async_context(httpx.AsyncClient()))
            caller._client = await stack.enter_async_context(
                Client(f"{url}/mcp", mode=mode, elicitation_callback=caller.send_person)
            )
            yield caller

    async def call(self) -> float:
        """Return the seconds from the call to its result."""
        assert self._client is not None
        self._item = next(self._items)
        start = perf_counter()
        result = await self._client.call_tool("buy", {"item": self._item})
        took = perf_counter() - start
        assert self._visit is not None, result
        assert not result.is_error, result
        (await self._visit).raise_for_status()
        return took

    async def send_person(self, context: Any, params: Any) -> ElicitResult:
        self._visit = asyncio.create_task(self._browser.get(f"{self._url}/done/{self._item}"))
        return ElicitResult(action="accept")
