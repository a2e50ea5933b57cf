"""Calls of every kind in flight while the server restarts: how each ends, and the payments.

The clients behave like real clients: they call again or start again when the server asks them to.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import httpx
import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitRequestURLParams, ElicitResult

from tests.support.mcp_server import TLS
from webapp.demo.client import text_of
from webapp.demo.walker import WalkFailed, walk

REVISIONS = ("legacy", "2026-07-28")
KINDS = ("visit", "account", "buy", "fill_in", "sure", "keep", "both", "wipe")
FEW = 2 * len(KINDS) * len(REVISIONS)  # the number of calls if `times` is 1
MANY = 200
TRIES_AT_MOST = 40
SETTINGS = {"ELICIT_PENDING_PER_OWNER": "200"}  # one person gets all questions
# By kind: the expected result, which follows the kind and the call's number.
COMES_TO: Mapping[str, str] = {
    "visit": "ann",
    "account": "octocat",
    "buy": r"\S+",
    "fill_in": "soup|demo",  # in the client, or on the page for a client that does not answer
    "sure": "True",
    "keep": "4",
    "both": "(soup|demo) ann",
    "wipe": "wiped",
}
Flow: TypeAlias = tuple[str, str, int]
TOOLS = """
import os
from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from starlette.responses import JSONResponse
from flows import Money, complete_elicitation, elicit
from flows.providers import github

mcp = MCPServer("rolling")


def ended(words: str) -> str:
    with open("ended", "a") as book:
        book.write(words + "\\n")
    return words


@mcp.tool()
async def visit(number: int) -> str:
    done = await elicit.url("Visit", "https://example.org/", elicitation_id=f"visit-{number}")
    return ended(f"visit {number} {done['by']}")


@mcp.tool()
async def account(number: int) -> str:
    account = await elicit.oauth(github, scopes=["repo"])
    async with account.client() as api:
        return ended(f"account {number} {(await api.get('/user')).json()['login']}")


@mcp.tool()
async def buy(number: int) -> str:
    receipt = await elicit.payment(Money("9.00", "EUR"), f"lamp {number}")

    async def ship(key: str) -> str:
        with open("shipped", "a") as book:
            book.write(f"{number} {receipt.id}\\n")
        return receipt.id

    return ended(f"buy {number} {await elicit.once('ship', ship)}")


@mcp.tool()
async def fill_in(number: int) -> str:
    return ended(f"fill_in {number} {await elicit.form(f'A dish for {number}', str)}")


@mcp.tool()
async def sure(number: int) -> str:
    return ended(f"sure {number} {await elicit.confirm(f'Sure of {number}?')}")


@mcp.tool()
async def both(number: int) -> str:
    dish, done = await elicit.together(
        elicit.form(f"A dish with {number}", str),
        elicit.url("Visit", "https://example.org/", elicitation_id=f"visit-{number}"),
    )
    return ended(f"both {number} {dish} {done['by']}")


@mcp.tool()
async def keep(number: int) -> str:
    return ended(f"keep {number} {len(await elicit.secret(f'The key {number}'))}")


@mcp.tool(annotations=ToolAnnotations(destructive_hint=True))
async def wipe(number: int) -> str:
    return ended(f"wipe {number} wiped")


@mcp.custom_route("/complete", methods=["POST"])
async def complete(request):
    name = "visit-" + request.query_params["number"]
    return JSONResponse(await complete_elicitation(name, {"by": "ann"}))
"""


@dataclass(slots=True, kw_only=True)
class Served:
    """A running server: the headers that its MCP clients send, and its people's browser."""

    url: str
    sandbox: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    browser: httpx.AsyncClient


async def in_flight(
    served: Served, restart: Callable[[], Awaitable[object]], *, number: int
) -> dict[Flow, str]:
    """Return the result of each call. Half of the people act only after the restart."""
    flows = [
        (KINDS[one % len(KINDS)], REVISIONS[one // len(KINDS) % len(REVISIONS)], one)
        for one in range(number)
    ]
    async with asyncio.TaskGroup() as group:
        people = _People(served=served, steps=group)
        calls = {each: group.create_task(_call(people, *each)) for each in flows}
        async with asyncio.timeout(600):
            while len(people.asked) < number // 2:
                await people.was_asked.wait()
                people.was_asked.clear()
        await restart()
        people.has_ended.set()
    return {each: call.result() for each, call in calls.items()}


def cases_of(texts: Mapping[Flow, str], *, home: Path) -> Iterator[tuple[str, bool]]:
    """Yield cases about the calls' results and the tools' work, and whether each case passed."""
    for (kind, revision, one), text in texts.items():
        is_right = re.fullmatch(f"{kind} {one} (?:{COMES_TO[kind]})", text) is not None
        yield f"{revision}: {kind} comes to its end", is_right
    ended = Counter((home / "ended").read_text().splitlines())
    for (kind, revision, _), text in texts.items():
        yield f"{revision}: {kind} is done once", ended[text] == 1
    shipped = Counter((home / "shipped").read_text().splitlines())
    yield "what was paid for is shipped once", shipped == Counter(_bought(texts))


def is_paid_once(texts: Mapping[Flow, str], payments: list[Mapping[str, Any]]) -> bool:
    """Return True if `elicit payments list` has each purchase once, as spent."""
    paid = Counter(f"{each['what']} {each['standing']}" for each in payments)
    return paid == Counter(f"lamp {text.split()[0]} spent" for text in _bought(texts))


def _bought(texts: Mapping[Flow, str]) -> list[str]:
    return [text.removeprefix("buy ") for text in texts.values() if text.startswith("buy ")]


@dataclass(slots=True, kw_only=True)
class _People:
    served: Served
    steps: asyncio.TaskGroup
    asked: set[int] = field(default_factory=set[int])
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    _links: set[str] = field(default_factory=set[str])

    async def wait(self, number: int) -> None:
        """Record that this person was asked.

        Half of the people, of each kind and revision, then wait for the restart.
        """
        self.asked.add(number)
        self.was_asked.set()
        if number // (len(KINDS) * len(REVISIONS)) % 2:
            await self.has_ended.wait()

    def show(self, link: str, *, kind: str, number: int) -> None:
        if link not in self._links:
            self._links.add(link)
            self.steps.create_task(self._act(link, kind=kind, number=number))

    async def _act(self, link: str, *, kind: str, number: int) -> None:
        await self.wait(number)
        at = self.served
        for _ in range(TRIES_AT_MOST):
            with suppress(httpx.HTTPError, WalkFailed, _PaidAlready):
                if kind in ("visit", "both"):
                    response = await at.browser.post(
                        f"{at.url}/complete", params={"number": number}
                    )
                    response.raise_for_status()
                else:
                    await walk(at.browser, link, answers={}, also=[at.sandbox], say=_see)
                return


class _PaidAlready(Exception):
    """The redirect after the payment did not arrive, so the page offers only a refund."""


def _see(step: str) -> None:
    if "This is paid" in step:
        raise _PaidAlready


async def _call(people: _People, kind: str, revision: str, number: int) -> str:
    async def show(_: object, params: Any) -> ElicitResult:
        if isinstance(params, ElicitRequestURLParams):
            people.show(params.url, kind=kind, number=number)
            return ElicitResult(action="accept")
        await people.wait(number)
        fields = params.requested_schema["properties"]
        content: dict[str, Any] = {
            name: True if field["type"] == "boolean" else "soup" for name, field in fields.items()
        }
        return ElicitResult(action="accept", content=content)

    text = "nothing"
    for _ in range(TRIES_AT_MOST):
        reported = ""
        try:
            async with (
                httpx2.AsyncClient(
                    headers=dict(people.served.headers), timeout=300, verify=TLS
                ) as http,
                Client(
                    streamable_http_client(f"{people.served.url}/mcp", http_client=http),
                    mode=revision,
                    elicitation_callback=cast("Any", show),
                ) as client,
            ):
                reported = text_of(await client.call_tool(kind, {"number": number}))
        except (MCPError, httpx.HTTPError, httpx2.HTTPError, ExceptionGroup) as error:
            if not reported:  # with a result, only the end of the session failed
                text = repr(error)
                continue
        text = reported
        link = re.search(r"http://\S+/e/\S+", text)
        if link is not None:
            people.show(link[0], kind=kind, number=number)
        elif "again" not in text:
            return text
    return text
