"""The Procfile, started with honcho on a platform or on a developer's checkout."""

import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from tests.deployment.tools import packages
from tests.support.cli import PROJECT, environment_of, output_until
from tests.support.processes import ended, start
from tests.support.serving import free_port


@asynccontextmanager
async def started(
    folder: Path, settings: Mapping[str, str], *, home: Path, port: str
) -> AsyncIterator[str]:
    """Run `honcho start` in a folder, and yield what the server prints when it is ready."""
    process = await start(
        *(sys.executable, str(packages() / "bin" / "honcho"), "start", "--port", port),
        name="honcho",
        cwd=folder,
        env=environment_of(
            home,
            {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": os.pathsep.join([str(PROJECT), str(packages())]),
                "PYTHONUNBUFFERED": "1",
                **settings,
            },
        ),
    )
    try:
        yield await output_until("stop ", process)
    finally:
        process.terminate()
        left = await ended(process)
    assert "stopped" in left.out


async def test_honcho_serves_the_demo_on_an_unchanged_checkout(tmp_path: Path) -> None:
    port = str(free_port())
    async with started(PROJECT, {}, home=tmp_path, port=port) as output:
        assert f"http://127.0.0.1:{port}/mcp" in output
        async with httpx.AsyncClient() as browser:
            home = await browser.get(f"http://127.0.0.1:{port}")
    assert "sign_guest_book" in home.text


async def test_procfile_serves_configured_server_on_port_of_platform(
    tmp_path: Path,
) -> None:
    shutil.copy(PROJECT / "Procfile", tmp_path)
    shutil.copy(PROJECT / "examples" / "my_tools.py", tmp_path)
    port = str(free_port())
    settings = {
        "ELICIT_SERVER": "my_tools:mcp",
        "ELICIT_URL": "https://tools.example.com",
        "ELICIT_SECRET": "s" * 44,
        "ELICIT_PROXIES": "127.0.0.0/8",
        "ELICIT_STORE": f"sqlite:///{tmp_path}/kept/store.db",
        "ELICIT_EXPOSE": "1",
    }
    async with started(tmp_path, settings, home=tmp_path, port=port):
        async with httpx.AsyncClient() as router:
            routed = {"host": "tools.example.com", "x-forwarded-proto": "https"}
            routed["x-forwarded-for"] = "203.0.113.7"
            answer = await router.get(f"http://127.0.0.1:{port}/ready", headers=routed)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
