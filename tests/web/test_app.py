"""The application with its own lifespan, as an ASGI server drives it."""

import asyncio

import httpx
from mcp.server.mcpserver import MCPServer

from flows.vault import Ring
from tests.web.serving import transport_to
from webapp.app import create_app
from webapp.settings import Settings
from webapp.wire import Message

URL = "http://127.0.0.1:8765"


async def test_the_application_starts_answers_and_stops_with_its_lifespan() -> None:
    settings = Settings(url=URL, ring=Ring([b"k" * 32]), store="memory:", uid=0)
    app = create_app(settings, MCPServer("my tools"))
    told = asyncio.Queue[Message]()
    said = asyncio.Queue[Message]()
    async with asyncio.timeout(300):
        living = asyncio.create_task(app({"type": "lifespan"}, told.get, said.put))
        await told.put({"type": "lifespan.startup"})
        assert (await said.get())["type"] == "lifespan.startup.complete"
        async with httpx.AsyncClient(transport=transport_to(app), base_url=URL) as client:
            assert (await client.get("/health")).json() == {"status": "ok"}
        await told.put({"type": "lifespan.shutdown"})
        assert (await said.get())["type"] == "lifespan.shutdown.complete"
        await living
