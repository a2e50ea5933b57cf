"""A payment whose record a failover lost: the server must report and list the payment."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import httpx
from mcp import Client
from mcp_types import ElicitResult

from tests.outside.failing_over import comes
from tests.outside.in_flight import TOOLS
from tests.support.cli import run, serving
from tests.support.mcp_server import new_browser
from tests.support.processes import error_of
from tests.support.standby import Pair, replicating
from webapp.demo.client import text_of
from webapp.demo.walker import walk

FINDING = "XB3"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for _ in range(times):
        with tempfile.TemporaryDirectory() as home:
            async with replicating() as pair:
                async for tried in _once(pair, Path(home)):
                    yield tried


async def _once(pair: Pair, home: Path) -> AsyncIterator[tuple[str, bool]]:
    (home / "rolling_tools.py").write_text(TOOLS)
    extra = {"ELICIT_STORE": pair.url}
    async with (
        serving("rolling_tools:mcp", "--sandbox", home=home, extra=extra) as server,
        new_browser() as browser,
    ):
        sandbox = (await browser.get(f"{server.url}/health")).json()["sandbox"]
        await _buy(server.url, sandbox, browser, number=1)
        await pair.has_everything()
        pair.stream.freeze()
        await _buy(server.url, sandbox, browser, number=2)
        paid = await _payments(home, extra)
        await pair.lose_primary("killed")
        await pair.promote()

        async def is_ready() -> bool:
            return (await browser.get(f"{server.url}/ready")).status_code == 200

        async def is_reported() -> bool:
            return "store.stepped_back" in error_of(server.process)

        await comes(is_ready)
        yield "that something is lost is said", await comes(is_reported)

        async def is_listed() -> bool:
            return await _payments(home, extra) == paid

        yield "what was paid in the lost seconds is on a list", await comes(is_listed)


async def _buy(url: str, sandbox: str, browser: httpx.AsyncClient, *, number: int) -> None:
    people = set[asyncio.Task[None]]()

    async def pay(_: object, asked: Any) -> ElicitResult:
        walking = walk(browser, asked.url, answers={}, also=[sandbox], say=lambda _: None)
        people.add(asyncio.create_task(walking))
        return ElicitResult(action="accept")

    async with Client(f"{url}/mcp", elicitation_callback=cast("Any", pay)) as client:
        text = text_of(await client.call_tool("buy", {"number": number}))
    await asyncio.gather(*people)
    assert text.startswith(f"buy {number} "), text


async def _payments(home: Path, extra: dict[str, str]) -> int:
    """Return the number of payments that `elicit payments list` shows, with and without --open."""
    found = set[str]()
    for also in ((), ("--open",)):
        result = await run("payments", "list", *also, "--json", home=home, extra=extra)
        found |= {each["id"] for each in json.loads(result.out)}
    return len(found)
