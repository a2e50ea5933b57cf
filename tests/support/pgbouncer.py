"""A PgBouncer in front of the tests' PostgreSQL, in transaction mode."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.postgres_server import NOBODY, USER, PostgresServer
from tests.support.processes import killed, start

_SETTINGS = """\
[databases]
* = host={server} user={user}
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 5
user = nobody
"""


def installed() -> str:
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if not found:
        pytest.skip("needs PgBouncer on this machine")
    return found


@asynccontextmanager
async def pooled(server: PostgresServer, url: str) -> AsyncIterator[str]:
    """Provide the address of the same database through PgBouncer."""
    folder = Path(tempfile.mkdtemp(prefix="pgbouncer-"))
    port = server.port  # PostgreSQL uses the port only in its socket's name
    settings = folder / "pgbouncer.ini"
    text = _SETTINGS.format(server=server.folder, user=USER, port=port, folder=folder)
    settings.write_text(text, "utf-8")
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
        os.chown(settings, NOBODY, NOBODY)
    process = await start(installed(), str(settings), name="pgbouncer", stdout=subprocess.DEVNULL)
    try:
        socket = folder / f".s.PGSQL.{port}"
        async with asyncio.timeout(300):
            while not await _is_open(socket):
                assert process.returncode is None
                await asyncio.sleep(0.01)
        yield url.replace(f"host={server.folder}", f"host={folder}")
    finally:
        await killed(process)
        shutil.rmtree(folder, ignore_errors=True)


async def _is_open(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return False
    writer.close()
    return True
