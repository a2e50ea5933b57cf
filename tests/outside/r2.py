"""A result that is lost in transit, and the same call made again."""

import re
import secrets
import tempfile
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tests.outside.by_hand import LEGACY, MODERN, PATIENCE_SECONDS, ByHand, losing, texts_in
from tests.support.cli import Server, serving
from webapp.demo.walker import walk

FINDING = "R2"
LIBRARIES = ("mcp", "fastmcp")
REVISIONS = (LEGACY, MODERN)
_TOOLS = """
import secrets
from flows import Money, elicit
{imports}

mcp = {server}("lossy shop")


async def draw(key: str) -> str:
    return secrets.token_hex(8)


@mcp.tool()
async def order(what: str) -> str:
    return f"order {{await elicit.once('order', draw)}} of {{what}}"


@mcp.tool()
async def buy(what: str) -> str:
    receipt = await elicit.payment(Money("9.00", "EUR"), what)
    return f"order {{receipt.id}} of {{what}}"
"""
_LIBRARY = {
    "mcp": {"imports": "from mcp.server.mcpserver import MCPServer", "server": "MCPServer"},
    "fastmcp": {"imports": "from fastmcp import FastMCP", "server": "FastMCP"},
}


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for library in LIBRARIES:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            (home / "lossy_tools.py").write_text(_TOOLS.format(**_LIBRARY[library]))
            async with (
                serving("lossy_tools:mcp", "--sandbox", home=home) as server,
                httpx.AsyncClient(timeout=PATIENCE_SECONDS) as http,
            ):
                async for case in _at(server, http, times=times):
                    yield case


async def _at(
    server: Server, http: httpx.AsyncClient, *, times: int
) -> AsyncIterator[tuple[str, bool]]:
    for revision, reads_on, _ in product(REVISIONS, (False, True), range(times)):
        client = await ByHand(http, f"{server.url}/mcp", revision).connect()
        what = secrets.token_hex(4)
        lost = await _lost(client, "order", what, reads_on=reads_on)
        again = texts_in(await client.call("order", what=what))
        yield "the same call gets the result that was lost", again[0] == lost
        thief = await ByHand(http, f"{server.url}/mcp", LEGACY).connect()
        if revision == LEGACY:
            event = client.events[0] if client.events else "none"
            resumed = await _resumed(client, event)
            yield "Last-Event-ID gets the result that was lost", lost in resumed.text
            foreign = await _resumed(thief, event)
            yield "a foreign Last-Event-ID is refused", foreign.status_code == 400
    for revision, reads_on in product(REVISIONS, (False, True)):
        client = await ByHand(http, f"{server.url}/mcp", revision).connect()
        what = secrets.token_hex(4)
        asked = texts_in(await client.call("buy", what=what))[0]
        link = re.search(r"http://\S+/e/\S+", asked)
        assert link is not None, asked
        async with httpx.AsyncClient() as browser:
            sandbox = (await browser.get(f"{server.url}/health")).json()["sandbox"]
            await walk(browser, link[0], answers={}, also=[sandbox], say=lambda _: None)
        lost = await _lost(client, "buy", what, reads_on=reads_on)
        again = texts_in(await client.call("buy", what=what))
        yield "what was paid for and lost is not paid for again", again[0] == lost


async def _lost(client: ByHand, tool: str, what: str, *, reads_on: bool) -> str:
    """Call the tool through a proxy that loses the result. Return the text that the proxy read."""
    port = urlsplit(client.url).port
    assert port is not None
    async with losing(port, marker=b"order ", reads_on=reads_on) as (proxy, url):
        try:
            result = await client.call(tool, url=url, what=what)
        except httpx.HTTPError:
            result = None
        assert result is None, result
        await proxy.lost.wait()
    client.events = re.findall(r"(?m)^id: ?(\S+)", proxy.seen.decode("utf-8", "replace"))
    found = re.search(rf"order \S+ of {what}", proxy.seen.decode("utf-8", "replace"))
    assert found is not None, proxy.seen
    return found[0]


async def _resumed(client: ByHand, event: str) -> httpx.Response:
    """Return the stream after this event. The stream ends with the call's response."""
    return await client.get({"last-event-id": event})
