"""Workers that are started anew while calls of every kind are in flight: none of them is lost."""

import asyncio
import json
import re
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import httpx2
from mcp import Client, MCPError
from mcp_types import ElicitRequestURLParams, ElicitResult

from tests.support.cli import Server, run, said_until, serving
from webapp.demo.client import text_of
from webapp.demo.walker import WalkFailed, walk

FINDING = "a rolling restart"
REVISIONS = ("legacy", "2026-07-28")
KINDS = ("visit", "account", "buy", "fill_in", "keep", "wipe")
FLOWS = 200  # and two of each kind and revision where each is tried but once
TRIES_AT_MOST = 40
TOOLS = """
import os
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from starlette.responses import JSONResponse
from flows import Money, complete_elicitation, elicit
from flows.providers import github

mcp = MCPServer("rolling")


@mcp.tool()
async def visit(number: int) -> str:
    done = await elicit.url("Visit", "https://example.org/", elicitation_id=f"visit-{number}")
    return f"visit {number} {done['by']}"


@mcp.tool()
async def account(number: int) -> str:
    account = await elicit.oauth(github, scopes=["repo"])
    async with account.client() as api:
        return f"account {number} {(await api.get('/user')).json()['login']}"


@mcp.tool()
async def buy(number: int) -> str:
    receipt = await elicit.payment(Money("9.00", "EUR"), f"lamp {number}")

    async def ship(key: str) -> str:
        with open("shipped", "a") as book:
            book.write(f"{number} {receipt.id}\\n")
        return receipt.id

    return f"buy {number} {await elicit.once('ship', ship)}"


@mcp.tool()
async def fill_in(number: int) -> str:
    return f"fill_in {number} {await elicit.form(f'A dish for {number}', str)}"


@mcp.tool()
async def keep(number: int) -> str:
    return f"keep {number} {len(await elicit.secret(f'The key {number}'))}"


@mcp.tool(annotations=ToolAnnotations(destructive_hint=True))
async def wipe(number: int) -> str:
    return f"wipe {number} wiped"


@mcp.custom_route("/complete", methods=["POST"])
async def complete(request):
    name = "visit-" + request.query_params["number"]
    return JSONResponse(await complete_elicitation(name, {"by": "ann"}))
"""


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    number = FLOWS if times > 1 else 2 * len(KINDS) * len(REVISIONS)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "rolling_tools.py").write_text(TOOLS)
        async with (
            serving("rolling_tools:mcp", "--workers", "2", "--sandbox", home=home) as server,
            httpx.AsyncClient() as browser,
        ):
            sandbox = (await browser.get(f"{server.url}/health")).json()["sandbox"]
            texts = await _in_flight(server, sandbox, number=number)
        for (kind, revision, one), text in texts.items():
            yield f"{revision}: {kind} comes to its end", text.startswith(f"{kind} {one} ")
        shipped = Counter((home / "shipped").read_text().splitlines())
        bought = [text.removeprefix("buy ") for text in texts.values() if text.startswith("buy ")]
        yield "what was paid for is shipped once", shipped == Counter(bought)
        payments = json.loads((await run("payments", "list", "--json", home=home)).out)
        paid = Counter(f"{each['what']} {each['standing']}" for each in payments)
        owed = Counter(f"lamp {text.split()[0]} spent" for text in bought)
        yield "each payment is made and used once", paid == owed


async def _in_flight(
    server: Server, sandbox: str, *, number: int
) -> dict[tuple[str, str, int], str]:
    """What each call came to, of which half have their person act after the restart alone."""
    wanted = [
        (KINDS[one % len(KINDS)], REVISIONS[one // len(KINDS) % len(REVISIONS)], one)
        for one in range(number)
    ]
    async with asyncio.TaskGroup() as group:
        people = _People(url=server.url, sandbox=sandbox, steps=group)
        calls = {each: group.create_task(_call(people, *each)) for each in wanted}
        async with asyncio.timeout(300):
            while len(people.links) < number // 2:
                await people.was_shown.wait()
                people.was_shown.clear()
        server.process.send_signal(signal.SIGHUP)
        await said_until("all workers are new", server.process)
        people.is_over.set()
    return {each: call.result() for each, call in calls.items()}


@dataclass(slots=True, kw_only=True)
class _People:
    url: str
    sandbox: str
    links: set[str] = field(default_factory=set[str])
    was_shown: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    steps: asyncio.TaskGroup

    def show(self, link: str, *, kind: str, number: int) -> None:
        if link not in self.links:
            self.links.add(link)
            self.was_shown.set()
            self.steps.create_task(self._act(link, kind=kind, number=number))

    async def _act(self, link: str, *, kind: str, number: int) -> None:
        if number % 2:
            await self.is_over.wait()
        for _ in range(TRIES_AT_MOST):
            with suppress(httpx.HTTPError, WalkFailed):
                async with httpx.AsyncClient(timeout=300) as browser:
                    if kind == "visit":
                        await browser.post(f"{self.url}/complete", params={"number": number})
                    else:
                        await walk(
                            browser, link, answers={}, also=[self.sandbox], say=lambda _: None
                        )
                return


async def _call(people: _People, kind: str, revision: str, number: int) -> str:
    """As a client and its model do it: who is told to come again, or to begin anew, does."""

    async def show(_: object, params: Any) -> ElicitResult:
        if isinstance(params, ElicitRequestURLParams):
            people.show(params.url, kind=kind, number=number)
            return ElicitResult(action="accept")
        fields = params.requested_schema["properties"]
        content: dict[str, Any] = {
            name: True if field["type"] == "boolean" else "soup" for name, field in fields.items()
        }
        return ElicitResult(action="accept", content=content)

    text = "nothing"
    for _ in range(TRIES_AT_MOST):
        try:
            async with Client(
                f"{people.url}/mcp", mode=revision, elicitation_callback=cast("Any", show)
            ) as client:
                text = text_of(await client.call_tool(kind, {"number": number}))
        except (MCPError, httpx.HTTPError, httpx2.HTTPError, ExceptionGroup) as error:
            text = repr(error)
            continue
        link = re.search(r"http://\S+/e/\S+", text)
        if link is not None:
            people.show(link[0], kind=kind, number=number)
        elif "again" not in text:
            return text
    return text
