"""Hosts that start two workers with a memory store: each host's start is refused."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.support.leaks import LEAKS

MODULE = """
from mcp.server.mcpserver import MCPServer
import os
from webapp.app import create_app
from webapp.settings.settings import read_settings
app = create_app(read_settings(os.environ), MCPServer("several"))
"""
CONFIGURED = "workers = 2"
RUN_BY_A_PROGRAM = """
import uvicorn
if __name__ == "__main__":
    uvicorn.run("several:app", port=0, workers=2)
"""
UVICORN = ("-m", "uvicorn", "several:app", "--port", "0", "--lifespan", "on")
GUNICORN = (
    *("-m", "gunicorn", "several:app", "--bind", "127.0.0.1:0"),
    *("--worker-class", "uvicorn_worker.UvicornWorker"),
)
STARTS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "uvicorn, by an option": ((*UVICORN, "--workers", "2"), {}),
    "uvicorn, by a variable": (UVICORN, {"WEB_CONCURRENCY": "2"}),
    "uvicorn, by a program": (("program.py",), {}),
    "gunicorn, by an option": ((*GUNICORN, "-w2"), {}),
    "gunicorn, by a file": (GUNICORN, {}),
}


@pytest.mark.parametrize("how", STARTS)
async def test_two_workers_with_memory_store_are_refused_at_startup_for_each_host(
    how: str, tmp_path: Path
) -> None:
    (tmp_path / "several.py").write_text(MODULE)
    (tmp_path / "program.py").write_text(RUN_BY_A_PROGRAM)
    if how == "gunicorn, by a file":
        (tmp_path / "gunicorn.conf.py").write_text(CONFIGURED)
    words, more = STARTS[how]
    environment = {
        **os.environ,
        **more,
        "ELICIT_STORE": "memory:",
        "ELICIT_SECRET": "s" * 44,
        "PYTHONPATH": f"{tmp_path}:{Path.cwd()}",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=tmp_path,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(300):
            async for line in process.stdout:
                LEAKS.check(how, line.decode())
                if b"2 processes would serve this application" in line:
                    break
            else:
                pytest.fail("it started")
    finally:
        process.terminate()
        rest, _ = await process.communicate()
        LEAKS.check(how, rest.decode())
