"""A served shop, a checkout on another origin, and a caller of the shop's tool."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Literal, TypeAlias
from urllib.parse import parse_qs, urlencode

import httpx2
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import MCPServer
from mcp_types import (
    CallToolResult,
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
    Implementation,
    TextContent,
)
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from flows import Link, complete_elicitation, elicit
from flows.crypto.tokens import Ring
from tests.crash.shop_env import no_certificates
from tests.support.serving import bound, serving
from tests.support.settings import AT_ONCE
from webapp.app import open_app
from webapp.http.exchange import Receive, Scope, Send
from webapp.settings.settings import Settings
from webapp.stores import Record, Store, open_store

Action: TypeAlias = Literal["accept", "decline", "cancel"]
TIMEOUT = timedelta(minutes=5)


def checkout_page(*, done: str) -> HTMLResponse:
    """Return a page of the author's service, which contains none of our code."""
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta name="viewport" content="width=device-width">'
        '<link rel="icon" href="data:,"><title>Till</title>'
        f'<h1>Till</h1><p><a href="{escape(done)}">Pay</a></p>'
    )


async def payment_env(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer as the checkout's origin. `/hop` redirects to a third origin, as sign-ins do."""
    query = parse_qs(scope["query_string"].decode())
    answer: Response
    if scope["type"] != "http":
        return
    if scope["path"] == "/hop":
        answer = RedirectResponse(query["to"][0])
    elif scope["path"] == "/checkout":
        answer = checkout_page(done=query["back"][0])
    else:
        answer = PlainTextResponse("no such page", status_code=404)
    await answer(scope, receive, send)


@dataclass(slots=True, kw_only=True)
class Calling:
    """A tool call that is running."""

    task: asyncio.Task[CallToolResult] = field(init=False)
    links: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def link(self) -> str:
        async with asyncio.timeout(300):
            return await self.links.get()

    async def result(self) -> CallToolResult:
        async with asyncio.timeout(300):
            return await self.task

    async def text(self) -> str:
        (content,) = (await self.result()).content
        assert isinstance(content, TextContent)
        return content.text


@asynccontextmanager
async def calling(
    url: str, tool: str, arguments: dict[str, str], *, mode: str, action: Action = "accept"
) -> AsyncIterator[Calling]:
    """Call a tool of the server at `url`. The call is cancelled at the end of the block."""
    call = Calling()

    async def agree(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestURLParams)
        call.links.put_nowait(params.url)
        return ElicitResult(action=action)

    async def run() -> CallToolResult:
        async with (
            httpx2.AsyncClient(verify=no_certificates(), timeout=300) as http_client,
            Client(
                streamable_http_client(f"{url}/mcp", http_client=http_client),
                mode=mode,
                elicitation_callback=agree,
                client_info=Implementation(name="Claude", version="1"),
            ) as client,
        ):
            return await client.call_tool(tool, arguments)

    call.task = asyncio.create_task(run())
    try:
        yield call
    finally:
        call.task.cancel()
        await asyncio.gather(call.task, return_exceptions=True)


@dataclass(slots=True, kw_only=True)
class Shop:
    """The served shop. `later` moves its clock."""

    url: str
    store: Store
    later: timedelta = timedelta()

    def clock(self) -> datetime:
        return datetime.now(UTC) + self.later

    async def records(self) -> list[Record]:
        return list(await self.store.list("elicitation"))

    def calling(
        self, *, mode: str = "legacy", way: str = "checkout"
    ) -> AbstractAsyncContextManager[Calling]:
        return calling(self.url, "book_a_table", {"way": way}, mode=mode)


@asynccontextmanager
async def open_shop(*, port: int = 0) -> AsyncIterator[Shop]:
    """Serve the shop at 127.0.0.1 and its checkout at localhost, two sites for a browser.

    The checkout's `/hop` redirects to the same checkout under another name, which is a third
    origin.
    """
    store = await open_store("memory:")
    async with serving(payment_env) as address:
        with bound("127.0.0.1", port=port) as reserved:
            port = reserved.getsockname()[1]
            shop = Shop(url=f"http://127.0.0.1:{port}", store=store)
            settings = Settings(
                url=shop.url,
                ring=Ring([b"s" * 32]),
                store="memory:",
                uid=os.getuid(),
                policies=AT_ONCE,
            )
            tools = _tools(
                shop=shop.url,
                payment_env=address.replace("127.0.0.1", "localhost"),
                other=address,
            )
            async with (
                open_app(settings, tools, store=store, clock=shop.clock) as app,
                serving(app, port=port),
            ):
                yield shop
    await store.aclose()


def _tools(*, shop: str, payment_env: str, other: str) -> MCPServer:
    server = MCPServer("Table service")

    def to_checkout(link: Link) -> str:
        query = {"back": link.return_url, "callback": link.callback_url}
        return f"{payment_env}/checkout?{urlencode(query)}"

    def over_a_hop(link: Link) -> str:
        there = f"{other}/checkout?{urlencode({'back': link.return_url})}"
        return f"{payment_env}/hop?{urlencode({'to': there})}"

    def to_route(link: Link) -> str:
        return f"{shop}/checkout?{urlencode({'elicitation': link.return_token})}"

    ways = {
        "checkout": (to_checkout, payment_env),
        "hop": (over_a_hop, payment_env),
        "route": (to_route, shop),
    }

    @server.tool()
    async def book_a_table(way: str) -> str:
        """Book a table at a restaurant."""
        address, origin = ways[way]
        answer = await elicit.url(
            "Please pay the deposit of 9 € for the table for four at 19:30.",
            address,
            origins=[origin],
            timeout=TIMEOUT,
        )
        return f"Booked: {dict(answer)}"

    @server.custom_route("/checkout", methods=["GET"])
    async def show_checkout(request: Request) -> Response:
        return checkout_page(done=f"/paid?{request.url.query}")

    @server.custom_route("/paid", methods=["GET"])
    async def paid(request: Request) -> Response:
        return HTMLResponse(
            '<!doctype html><html lang="en"><link rel="icon" href="data:,"><title>Paid</title>'
            f"<h1>Completion: {await complete_elicitation(request, {'paid': 9})}</h1>"
        )

    return server
