"""Unsupported uses of a host, which are refused at its start or at the first request."""

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx

from tests.hosts.host import StartedHost
from tests.hosts.table import UVICORN
from tests.support.mcp_server import MODERN, CutOffCaller

PLAIN = StartedHost(name="uvicorn", says="", command=UVICORN)


async def test_missing_lifespan_is_reported_at_first_request(tmp_path: Path) -> None:
    host = replace(PLAIN, command=(*UVICORN, "--lifespan", "off"))
    async with host.served(tmp_path) as at, at.browser() as browser:
        answer = await browser.get(at.url)
        assert answer.status_code == 500
        assert "uvicorn my_app:app, without --lifespan off" in answer.text
        assert "app.not_running" in at.log()


async def test_caller_behind_unix_socket_is_not_local(tmp_path: Path) -> None:
    file = tmp_path / "socket"
    host = replace(PLAIN, command=("uvicorn", "{app}", "--uds", str(file)))
    async with host.served(tmp_path) as at, asyncio.timeout(300):
        while "running on unix socket" not in at.log():  # noqa: ASYNC110 - a log
            await asyncio.sleep(0)
        way = httpx.AsyncHTTPTransport(uds=str(file))
        async with httpx.AsyncClient(transport=way, timeout=300) as client:
            assert (await client.get(f"{at.url}/health")).json() == {"status": "ok"}
            caller = CutOffCaller(client, f"{at.url}/mcp", MODERN)
            await caller.connect()
            text = (await caller.call("order", what="tea")).text
    assert "Nobody can be asked" in text
    assert "a Unix socket" in text
