"""A platform that starts the Procfile with a port that it chooses."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import httpx

from tests.deployment.tools import packages
from tests.support.cli import HOUSE, environment_of
from tests.support.processes import DEADLINE_SECONDS, ended, error_of, start
from tests.support.serving import free_port


async def test_the_procfile_serves_at_the_port_that_the_platform_chooses(tmp_path: Path) -> None:
    shutil.copy(HOUSE / "Procfile", tmp_path)
    shutil.copy(HOUSE / "examples" / "my_tools.py", tmp_path)
    port = str(free_port())
    settings = {
        "ELICIT_URL": "https://tools.example.com",
        "ELICIT_SECRET": "s" * 44,
        "ELICIT_PROXIES": "127.0.0.0/8",
        "ELICIT_STORE": f"sqlite:///{tmp_path}/kept/store.db",
        "ELICIT_EXPOSE": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(HOUSE), str(packages())]),
        "PYTHONUNBUFFERED": "1",
    }
    process = await start(
        *(sys.executable, str(packages() / "bin" / "honcho"), "start", "--port", port, "web"),
        name="honcho",
        cwd=tmp_path,
        env=environment_of(tmp_path, settings),
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE_SECONDS):
            while b"stop " not in (line := await process.stdout.readline()):
                assert line, error_of(process)
        async with httpx.AsyncClient() as router:
            routed = {"host": "tools.example.com", "x-forwarded-proto": "https"}
            routed["x-forwarded-for"] = "203.0.113.7"
            answer = await router.get(f"http://127.0.0.1:{port}/ready", headers=routed)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    finally:
        process.terminate()
        left = await ended(process)
    assert "stopped" in left.out
