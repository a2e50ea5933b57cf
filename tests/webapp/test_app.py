"""The application with its own lifespan, as an ASGI server drives it."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import httpx
from mcp.server.mcpserver import MCPServer

from flows.crypto.vault import Ring
from tests.support.serving import transport_to
from webapp.app import create_app, open_app
from webapp.http.connection import Message
from webapp.settings.settings import Settings

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


async def test_every_answer_says_for_how_long_to_come_by_https_where_that_is_asked_for() -> None:
    # finding: S26
    url, name = "https://elicit.example", "strict-transport-security"
    settings = Settings(url=url, ring=Ring([b"k" * 32]), store="memory:", uid=0)
    for hsts, said in ((None, None), (timedelta(days=1), "max-age=86400")):
        async with (
            open_app(replace(settings, hsts=hsts), MCPServer("my tools")) as app,
            httpx.AsyncClient(transport=transport_to(app), base_url=url) as client,
        ):
            for path in ("/", "/health", "/e/none", "/static/elicit.css", "/mcp", "//crooked"):
                assert (await client.get(path)).headers.get(name) == said, path
            elsewhere = await client.get("/", headers={"host": "evil.example"})
            assert elsewhere.headers.get(name) == said
