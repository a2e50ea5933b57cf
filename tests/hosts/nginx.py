"""An nginx in front of a host. It keeps or strips the path, and writes its usual log."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.processes import start

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
WITH_NGINX = pytest.mark.skipif(NGINX is None, reason="needs nginx")
_CONFIGURATION = """\
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 2048; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  {servers}
}}
"""
_ONE_HOST = """\
  server {{
    listen 127.0.0.1:{front};
    location {path}/ {{
      proxy_pass http://127.0.0.1:{port}{passed};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 1h;
    }}
  }}
"""


def log_of(folder: Path) -> str:
    """Return the access log. The last request of each connection may be missing."""
    return (folder / "access.log").read_text()


@asynccontextmanager
async def nginx(
    folder: Path, front: int, port: int, *, path: str, takes_off: str
) -> AsyncIterator[None]:
    """Run nginx at port `front`, which forwards requests below `path` to `port`."""
    text = _ONE_HOST.format(
        front=front,
        port=port,
        path=path,
        passed=f"{path.removeprefix(takes_off)}/" if takes_off else "",
    )
    async with configured(folder, text, front=front):
        yield


@asynccontextmanager
async def configured(folder: Path, servers: str, *, front: int) -> AsyncIterator[None]:
    """Run nginx with these servers in its `http` block. One of them listens at `front`."""
    assert NGINX is not None
    text = _CONFIGURATION.format(folder=folder, servers=servers)
    (folder / "nginx.conf").write_text(text)
    process = await start(
        *(NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")), name="nginx", cwd=folder
    )
    try:
        await _listens(front)
        yield
    finally:
        process.send_signal(signal.SIGQUIT if process.returncode is None else 0)
        await process.wait()


async def _listens(port: int) -> None:
    async with asyncio.timeout(300):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0)
            else:
                writer.close()
                return
