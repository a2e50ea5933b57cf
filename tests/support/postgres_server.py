"""A PostgreSQL of the tests' own: one server for a worker, a fresh database for each test.

It listens on a Unix socket, and where it is told so on loopback. It waits for the disk at each
commit, as one that is used does.
"""

import asyncio
import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path

import asyncpg
import psutil  # type: ignore[import-untyped]
import pytest

USER = "tester"
GUARDED_USER = "guarded"  # who needs a password
NOBODY = 65534  # it refuses to run as root
_SETTINGS = {
    "shared_buffers": "32MB",
    "max_connections": "60",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "listen_addresses": "''",
    "logging_collector": "off",
}
_numbers = count()


def program(name: str) -> str:
    """Return where it is installed; skip the test where it is not."""
    installed = shutil.which(name)
    if installed is None:
        found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
        if not found:
            pytest.skip(f"needs PostgreSQL on this machine ({name})")
        installed = str(found[-1])
    return installed


def run(*command: str) -> None:
    user = NOBODY if os.geteuid() == 0 else None
    done = subprocess.run(
        [program(command[0]), *command[1:]],
        check=False,
        capture_output=True,
        text=True,
        cwd="/",
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    assert done.returncode == 0, done.stdout + done.stderr


class PostgresServer:
    """One that can be stopped, killed and started again."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        follows: "PostgresServer | None" = None,
        port: int = 0,
    ) -> None:
        """`follows` is the primary of which it is a streaming standby, reached at that port."""
        self.port = 5432  # its socket is named for it
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
        self.data = self.folder / "data"
        if follows is None:
            self._make()
        else:
            run(
                "pg_basebackup",
                *("-D", f"{self.data}", "-h", "127.0.0.1", "-p", f"{port}", "-U", USER),
                *("--write-recovery-conf", "--checkpoint=fast", "--no-sync"),
            )
        self.set({"unix_socket_directories": f"'{self.folder}'", **(settings or {})})

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8")

    @property
    def socket(self) -> Path:
        return self.folder / f".s.PGSQL.{self.port}"

    def _make(self) -> None:
        run(
            "initdb",
            "--username",
            USER,
            "--encoding",
            "UTF8",
            "--locale",
            "C.UTF-8",
            f"{self.data}",
        )
        access = self.data / "pg_hba.conf"
        guarded = f"local all {GUARDED_USER} scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
        access.write_text(guarded + access.read_text("utf-8"), "utf-8")
        self.set(_SETTINGS)

    def set(self, settings: Mapping[str, str]) -> None:
        """From its next start on."""
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def start(self) -> None:
        log = str(self.folder / "log")
        run("pg_ctl", "start", "--wait", "--silent", "-D", f"{self.data}", "-l", log, "-t", "120")

    def promote(self) -> None:
        """Make a standby take writes, on the next timeline."""
        run("pg_ctl", "promote", "--wait", "--silent", "-D", f"{self.data}", "-t", "120")

    def hang(self) -> None:
        """Stop all of its processes where they are: it accepts connections and says nothing."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def wake(self) -> None:
        """Let it go on after `hang`."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def kill(self) -> None:
        """All of its processes at once, so that it may start again at once."""
        for postmaster in self._processes()[:1]:
            postmaster.suspend()  # or it would start others
        processes = self._processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=300)

    def _processes(self) -> list[psutil.Process]:
        """The postmaster first; none if it was killed."""
        number = int((self.data / "postmaster.pid").read_text("utf-8").split()[0])
        try:
            postmaster = psutil.Process(number)
            return [postmaster, *postmaster.children()]
        except psutil.NoSuchProcess:
            return []

    def remove(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.kill()  # a worker that ends waits for nothing
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, *, user: str = USER) -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}&port={self.port}"

    @asynccontextmanager
    async def database(self, options: str = "") -> AsyncIterator[str]:
        """The address of a fresh one."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        await self.execute(f"CREATE DATABASE {name} {options}")
        yield self.url(name)
        await self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def execute(self, statement: str) -> None:
        connection = await asyncpg.connect(self.url("postgres"))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


@cache
def shared_server() -> PostgresServer:
    """The worker's; no test stops it."""
    server = PostgresServer()
    atexit.register(server.remove)
    server.start()
    return server


@asynccontextmanager
async def fresh_database(options: str = "") -> AsyncIterator[str]:
    """The address of a database of the worker's server."""
    server = await asyncio.to_thread(shared_server)
    async with server.database(options) as url:
        yield url
