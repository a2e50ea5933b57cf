"""The demo's tools, served with the sandbox as `elicit serve` does: two origins and a caller.

All requests and responses of the server and the sandbox are recorded, so that a test can search
them for a typed secret.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast

import httpx
from mcp.server.mcpserver import MCPServer

from flows import elicit
from flows.crypto.tokens import Ring
from flows.elicitation.states import Elicitation
from flows.providers import github
from tests.browser.shop_env import Action, Calling, calling
from tests.crash.shop_env import no_certificates
from tests.support.mcp_server import service_in
from tests.support.serving import bound, serving, serving_at
from tests.support.settings import AT_ONCE
from webapp.app import open_app
from webapp.demo.server import add_tools
from webapp.http.exchange import ASGIApp, Message, Receive, Scope, Send
from webapp.sandbox.app import SandboxApp
from webapp.sandbox.settings import Sandbox, new_sandbox
from webapp.service import Service
from webapp.settings.settings import Settings
from webapp.stores import open_store
from webapp.sweeper import fall_due

SERVER = "Field notes"


class Tape:
    """The addresses, headers and bodies of the recorded applications' traffic."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, bytes]] = []

    def places_of(self, text: str) -> list[str]:
        """Return the place of each part with this text, such as `header` or `POST heard`."""
        return [place for place, part in self._parts if text.encode() in part]

    def record(self, app: ASGIApp) -> ASGIApp:
        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                self._add("address", scope["raw_path"], scope["query_string"])
                self._add("header", *(value for _, value in scope["headers"]))

            async def receive_recorded() -> Message:
                message = await receive()
                self._add(f"{scope.get('method')} heard", message.get("body", b""))
                return message

            async def say(message: Message) -> None:
                self._add("header", *(value for _, value in message.get("headers", ())))
                self._add("said", message.get("body", b""))
                await send(message)

            await app(scope, receive_recorded, say)

        return recorded

    def _add(self, place: str, *parts: bytes) -> None:
        self._parts += [(place, part) for part in parts if part]


class Post:
    """Delivers the sandbox's webhooks, or holds them back after `hold`."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._goes = asyncio.Event()
        self._goes.set()
        self._carried: set[asyncio.Task[httpx.Response]] = set()

    async def deliver(self, request: httpx.Request) -> httpx.Response:
        carrying = asyncio.create_task(self._carry(request))
        self._carried.add(carrying)
        return await carrying

    def hold(self) -> None:
        self._goes.clear()

    async def arrive(self) -> list[str]:
        """Deliver the webhooks that were held back, and return the responses."""
        self._goes.set()
        return [(await one).text for one in tuple(self._carried)]

    async def _carry(self, request: httpx.Request) -> httpx.Response:
        await self._goes.wait()
        return await self._client.send(request)


@dataclass(slots=True, kw_only=True)
class ServerEnv:
    """The server with the sandbox. `later` moves the clocks of both."""

    url: str
    sandbox_url: str
    later: timedelta = timedelta()
    service: Service = field(init=False)
    tape: Tape = field(default_factory=Tape)
    post: Post = field(init=False)

    def clock(self) -> datetime:
        return datetime.now(UTC) + self.later

    async def pass_time(self, time: timedelta) -> None:
        """Move the clock, and do the work that is due."""
        self.later += time
        await fall_due(self.service)

    async def elicitations(self) -> list[Elicitation]:
        """Return all elicitations, oldest first."""
        found = self.service.elicitations
        rows = [
            await found.rows.open(record, Elicitation)
            for record in await found.store.list("elicitation")
        ]
        return sorted(rows, key=lambda row: row.created_at)

    def calling(
        self, tool: str, *, mode: str = "legacy", action: Action = "accept"
    ) -> AbstractAsyncContextManager[Calling]:
        return calling(self.url, tool, {}, mode=mode, action=action)


@asynccontextmanager
async def open_env() -> AsyncIterator[ServerEnv]:
    """Serve the server and the sandbox, each on a port of 127.0.0.1."""
    store = await open_store("memory:")
    with bound("127.0.0.1") as reserved:
        port = reserved.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        env = ServerEnv(url=url, sandbox_url="")
        settings = Settings(
            url=url, ring=Ring([b"s" * 32]), store="memory:", uid=os.getuid(), policies=AT_ONCE
        )
        made: list[Sandbox] = []

        def outside(sandbox_url: str) -> ASGIApp:
            made.append(new_sandbox(url=sandbox_url, serves=url))
            app = SandboxApp(made[0], clock=env.clock, deliver=env.post.deliver)
            return env.tape.record(cast("ASGIApp", app))

        async with httpx.AsyncClient(verify=no_certificates()) as client:
            env.post = Post(client)
            async with serving_at(outside) as env.sandbox_url:
                (sandbox,) = made
                async with open_app(
                    settings, _server(), store=store, clock=env.clock, sandbox=sandbox
                ) as app:
                    env.service = service_in(app)
                    async with serving(env.tape.record(app), port=port):
                        try:
                            yield env
                        finally:
                            await env.post.arrive()
    await store.aclose()


def _server() -> MCPServer:
    """Return the demo's server, with tools for the kinds of questions that it does not ask."""
    server = MCPServer(SERVER, log_level="WARNING")
    add_tools(server)

    @server.tool()
    async def export_all() -> str:
        """Export everything from GitHub."""
        account = await elicit.oauth(
            github, scopes=["repo"], reason="To copy your repositories into one archive."
        )
        return f"Exported everything of {account.label}."

    @server.tool()
    async def add_station() -> str:
        """Add a weather station."""
        given = await elicit.secret(
            "Which station is yours, and what is its key?",
            {
                "type": "object",
                "properties": {
                    "station": {"type": "string", "title": "Station"},
                    "key": {
                        "type": "string",
                        "title": "Key",
                        "description": "Twelve letters at least, from the back of the station.",
                        "minLength": 12,
                        "writeOnly": True,
                    },
                },
                "required": ["station", "key"],
            },
            name="station",
        )
        return (
            f"Station {given['station']} was added with a key of {len(str(given['key']))} letters."
        )

    @server.tool()
    async def order_lunch() -> str:
        """Order lunch."""
        lunch = await elicit.form(
            "What shall I order?",
            {
                "type": "object",
                "properties": {"dish": {"type": "string", "title": "Dish"}},
                "required": ["dish"],
            },
        )
        return f"Ordered {lunch['dish']}."

    @server.tool(title="Delete the notes")
    @elicit.gate
    async def delete_notes() -> str:
        """Delete all field notes."""
        return "The notes are gone."

    return server
