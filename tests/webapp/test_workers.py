"""Several processes for one application: refused at the start."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from flows.errors import StoreUnavailable
from tests.support.leaks import EARS
from webapp.http.workers import must_be_one_process

MODULE = """
from mcp.server.mcpserver import MCPServer
import os
from webapp.app import create_app
from webapp.settings.settings import read_settings
app = create_app(read_settings(os.environ), MCPServer("several"))
"""
SEVERAL = [
    ({}, ["/venv/bin/uvicorn", "shop:app", "--workers", "4"]),
    ({}, ["/venv/bin/uvicorn", "shop:app", "--workers=2"]),
    ({}, ["/lib/uvicorn/__main__.py", "--workers", "3", "shop:app"]),
    ({}, ["/usr/bin/gunicorn", "-w", "2", "shop:app"]),
    ({}, ["/usr/bin/gunicorn", "-w2", "shop:app"]),
    ({}, ["/usr/bin/hypercorn", "-w", "2", "shop:app"]),
    ({"WEB_CONCURRENCY": "2"}, ["/usr/bin/gunicorn", "shop:app"]),
    ({"GUNICORN_CMD_ARGS": "--workers 3"}, ["/usr/bin/gunicorn", "shop:app"]),
    ({}, ["/usr/bin/fastapi", "run", "shop.py", "--workers", "2"]),
]
ONE = [
    ({}, []),
    ({}, ["/venv/bin/uvicorn", "shop:app"]),
    ({"WEB_CONCURRENCY": "4"}, ["/venv/bin/uvicorn", "shop:app", "--workers", "1"]),
    ({"WEB_CONCURRENCY": "4"}, ["/usr/bin/hypercorn", "shop:app"]),
    ({"GUNICORN_CMD_ARGS": "-w 3"}, ["/usr/bin/gunicorn", "-w", "1", "shop:app"]),
    ({"WEB_CONCURRENCY": "many"}, ["/venv/bin/uvicorn", "shop:app"]),
    ({"WEB_CONCURRENCY": "4"}, ["/venv/bin/elicit", "serve"]),
    ({}, ["/usr/bin/pytest", "-w", "4"]),
]


@pytest.mark.parametrize(("environment", "arguments"), SEVERAL)
def test_several_processes_are_refused(environment: dict[str, str], arguments: list[str]) -> None:
    with pytest.raises(StoreUnavailable, match=r"[2-4] processes .* --workers 1"):
        must_be_one_process(environment, arguments)


@pytest.mark.parametrize(("environment", "arguments"), ONE)
def test_one_process_is_fine(environment: dict[str, str], arguments: list[str]) -> None:
    must_be_one_process(environment, arguments)


async def test_uvicorn_with_two_workers_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "several.py").write_text(MODULE)
    environment = {
        **os.environ,
        "ELICIT_STORE": "memory:",
        "ELICIT_SECRET": "s" * 44,
        "PYTHONPATH": f"{tmp_path}:{Path.cwd()}",
    }
    words = ["-m", "uvicorn", "several:app", "--workers", "2", "--port", "0", "--lifespan", "on"]
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
                EARS.hear("uvicorn", line.decode())
                if b"2 processes are to serve this application" in line:
                    break
            else:
                pytest.fail("it started")
    finally:
        process.terminate()
        rest, _ = await process.communicate()
        EARS.hear("uvicorn", rest.decode())
