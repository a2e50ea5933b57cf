"""Tests of the host examples: each starts, serves pages, answers a call and shuts down."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cli import log_as_before
from tests.support.mcp_server import MODERN, CutOffCaller
from tests.support.serving import transport_to
from webapp.http.exchange import Message
from webapp.identity.sessions import key_of
from webapp.settings.settings import read_settings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
URL = "http://127.0.0.1:8000"
# The served attribute of each module, and the path of ELICIT_URL.
HOSTS = {
    "served_by_uvicorn": ("app", ""),
    "mounted_in_starlette": ("host", ""),
    "mounted_in_fastapi": ("host", "/tools"),
    "mounted_in_litestar": ("host", "/tools"),
}


@contextmanager
def imported(name: str, home: Path) -> Iterator[tuple[Any, str]]:
    """Provide the application of an example, and its address."""
    attribute, path = HOSTS[name]
    with pytest.MonkeyPatch.context() as patch, log_as_before():  # Litestar configures its own log
        patch.setenv("ELICIT_URL", URL + path)
        patch.setenv("ELICIT_STORE", "memory:")
        patch.setenv("ELICIT_SECRET", "s" * 44)
        patch.setenv("HOME", str(home))
        patch.syspath_prepend(str(EXAMPLES))
        try:
            yield getattr(import_module(name), attribute), URL + path
        finally:
            for each in HOSTS:
                sys.modules.pop(each, None)


@asynccontextmanager
async def living(app: Any) -> AsyncIterator[None]:
    """Run the lifespan as an ASGI server does."""
    reported, sent = asyncio.Queue[Message](), asyncio.Queue[Message]()
    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(app(scope, reported.get, sent.put))
    await reported.put({"type": "lifespan.startup"})
    assert (await sent.get()) == {"type": "lifespan.startup.complete"}
    yield
    await reported.put({"type": "lifespan.shutdown"})
    assert (await sent.get()) == {"type": "lifespan.shutdown.complete"}
    await running


@pytest.mark.parametrize("name", HOSTS)
async def test_example_serves_its_pages_and_its_tool(name: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        app, url = stack.enter_context(imported(name, tmp_path))
        await stack.enter_async_context(asyncio.timeout(300))
        await stack.enter_async_context(living(app))
        client = httpx.AsyncClient(transport=transport_to(app))
        await stack.enter_async_context(client)
        home = await client.get(f"{url}/")
        assert (home.status_code, "greetings" in home.text) == (200, True)
        caller = CutOffCaller(client, f"{url}/mcp", MODERN)
        caller.headers["authorization"] = f"Bearer {key_of(read_settings().ring)}"
        await caller.connect()
        asked = (await caller.call("greet")).json()
        assert "How shall I call you?" in str(asked), asked
        if url == URL + "/tools":
            assert "own" in (await client.get(f"{URL}/about")).text


def test_examples_have_at_most_thirty_lines() -> None:
    for name in HOSTS:
        assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) <= 30, name
