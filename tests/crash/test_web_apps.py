"""A kill -9 of a web application that asks its users, and a restart on the same store."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.mcp_server import TLS, Page, Person
from tests.support.processes import DEADLINE_SECONDS, killed, start
from tests.support.serving import bound
from tests.support.settings import SECRET

EXAMPLES = Path(__file__).parents[2] / "examples"


@asynccontextmanager
async def _running(name: str, *, listener: socket.socket, folder: Path) -> AsyncIterator[None]:
    """Run the example with the command in its docstring, and kill it at the end."""
    env = {
        "ELICIT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
        "ELICIT_SECRET": SECRET,
        "ELICIT_STORE": f"sqlite:///{folder / 'elicit.db'}",
        # Each restart has a new sandbox. These settings keep the client registration the same.
        "ELICIT_GITHUB_CLIENT_ID": "the-shop",
        "ELICIT_GITHUB_CLIENT_SECRET": "a-secret-of-the-shop",
    }
    fd = listener.fileno()
    uvicorn = (sys.executable, "-m", "uvicorn", f"{name}:app", "--fd", str(fd))
    process = await start(*uvicorn, name=name, cwd=EXAMPLES, env=env, pass_fds=[fd])
    try:
        yield
    finally:
        await killed(process)


@pytest.mark.parametrize("name", ["connect_in_fastapi", "connect_in_litestar"])
async def test_same_user_and_key_continue_question_after_restart(name: str, tmp_path: Path) -> None:
    with bound("127.0.0.1") as listener:
        listener.listen()  # connections wait until the application is up
        await _asked_before_and_after(name, listener, tmp_path)


async def _asked_before_and_after(name: str, listener: socket.socket, folder: Path) -> None:
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with httpx.AsyncClient(timeout=DEADLINE_SECONDS, verify=TLS) as browser:

        async def asked() -> str:
            """Press the button, and return the link on the page."""
            await browser.post(f"{url}/report")
            return (await seen("/e/")).split('href="')[1].split('"')[0]

        async def seen(words: str) -> str:
            """Return the page once it contains these words."""
            async with asyncio.timeout(DEADLINE_SECONDS):
                while words not in (page := (await browser.get(url)).text):
                    pass
            return page

        async with _running(name, listener=listener, folder=folder):
            await browser.post(f"{url}/login", data={"user": "ann"})
            first = await asked()
        async with _running(name, listener=listener, folder=folder):
            second = await asked()
            page = Page.of(await browser.get(first))  # the link from before the crash
            assert page.status == 200
            await Person(browser).decline(first)
            await seen("The person declined")
            assert (
                Page.of(await browser.get(second)).heading
                == Page.of(await browser.get(first)).heading
            )
