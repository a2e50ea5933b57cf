"""A PostgreSQL server for tests: one for each worker, with a new database for each test.

It listens on a Unix socket, and on loopback if its settings say so. If there is room, its files are
in memory, because creating a database on a disk is the slowest part of a test. A killed server
loses no write in either place. Benchmarks use the disk.
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
GUARDED_USER = "guarded"  # the user that needs a password
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 2**30  # noqa: S108 - the system's file system in memory
NOBODY = 65534  # PostgreSQL refuses to run as root
_SETTINGS = {
    "shared_buffers": "32MB",
    "max_connections": "60",
    "max_wal_size": "128MB",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "listen_addresses": "''",
    "logging_collector": "off",
}
_numbers = count()


def program(name: str) -> str:
    """Return the path of an installed program. Skip the test if it is missing."""
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
    """A PostgreSQL server that a test can stop, kill and start again."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        follows: "PostgresServer | None" = None,
        port: int = 0,
        on_disk: bool = False,
    ) -> None:
        """Create the server.

        With `follows`, it is a streaming standby of that primary at `port`.
        """
        in_memory = (
            not on_disk and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
        )
        self.port = 5432  # part of its socket's name
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=MEMORY if in_memory else None))
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
        """Change settings. They apply from the next start."""
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())

    def start(self) -> None:
        log = str(self.folder / "log")
        run("pg_ctl", "start", "--wait", "--silent", "-D", f"{self.data}", "-l", log, "-t", "120")

    def promote(self) -> None:
        """Promote a standby, so that it accepts writes on the next timeline."""
        run("pg_ctl", "promote", "--wait", "--silent", "-D", f"{self.data}", "-t", "120")

    def hang(self) -> None:
        """Suspend all processes: the server accepts connections and does not answer."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def wake(self) -> None:
        """Resume the processes after `hang`."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def kill(self) -> None:
        """Kill all processes together, so that the server can start again immediately."""
        for postmaster in self._processes()[:1]:
            postmaster.suspend()  # otherwise it would replace killed processes
        processes = self._processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=300)

    def _processes(self) -> list[psutil.Process]:
        """Return the postmaster and its children, or an empty list if it was killed."""
        number = int((self.data / "postmaster.pid").read_text("utf-8").split()[0])
        try:
            postmaster = psutil.Process(number)
            return [postmaster, *postmaster.children()]
        except psutil.NoSuchProcess:
            return []

    def remove(self) -> None:
        if (self.data / "postmaster.pid").exists():
            self.kill()  # not stop(): an ending worker must not wait for a shutdown
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, *, user: str = USER) -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}&port={self.port}"

    @asynccontextmanager
    async def database(self, options: str = "") -> AsyncIterator[str]:
        """Provide the address of a new database."""
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
def shared_server(*, on_disk: bool = False) -> PostgresServer:
    """Return the worker's server. No test stops it."""
    server = PostgresServer(on_disk=on_disk)
    atexit.register(server.remove)
    server.start()
    return server


@asynccontextmanager
async def fresh_database(options: str = "") -> AsyncIterator[str]:
    """Provide the address of a new database on the worker's server."""
    server = await asyncio.to_thread(shared_server)
    async with server.database(options) as url:
        yield url
