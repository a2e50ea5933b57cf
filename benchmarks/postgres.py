"""`python -m benchmarks.postgres`: the cost of a PostgreSQL store, next to bare asyncpg and DBOS.

The server is started for the run, on this machine, and waits for the disk at each commit. Risks:
the server uses the same processors as both sides. So processor time is shown in addition to the
rates.
"""

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

from benchmarks.figure import Figure, Round, alternate, in_rounds, summary, table
from benchmarks.in_process import open_elicitations, sealed_bytes
from benchmarks.settling import AT_ONCE, blobs, our_lifecycles, rate
from tests.support.postgres_server import PostgresServer
from tests.support.records import record
from webapp.stores import open_store
from webapp.stores.lanes import Lanes, first
from webapp.stores.postgres_driver import connect, create_pool

_TOP = Path(__file__).parents[1]
_DBOS = _TOP / "build" / "dbos"
_PINS = Path(__file__).parent / "dbos-requirements.txt"
_TABLE = "CREATE TABLE rows (id text PRIMARY KEY, blob bytea NOT NULL, version bigint NOT NULL)"
_UPSERT = """
INSERT INTO rows SELECT * FROM unnest($1::text[], $2::bytea[], $3::bigint[])
ON CONFLICT (id) DO UPDATE SET blob = excluded.blob, version = excluded.version
"""
_Write = tuple["asyncio.Future[None]", str, bytes, int]


class BarePostgres:
    """A writer that sends one statement for each write, without compare-and-set, keys and times.

    With `is_gathered`, one statement contains all writes of a turn of the event loop, and at most
    two statements run at the same time. Our store does the same.
    """

    def __init__(self, url: str, *, is_gathered: bool) -> None:
        self._url = url
        self._is_gathered = is_gathered
        self._lanes: Lanes[_Write] = Lanes(self._send, lanes=2, fit=first(500))
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        self._pool = await create_pool(
            partial(connect, self._url), min_size=0, max_size=10, reset=_keep
        )
        async with self._pool.acquire(timeout=10) as connection:
            await connection.execute(_TABLE)

    async def write(self, id: str, blob: bytes, version: int) -> None:
        if not self._is_gathered:
            async with self._pool.acquire(timeout=60) as connection:
                await connection.execute(_UPSERT, [id], [blob], [version])
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._lanes.put((future, id, blob, version))
        await future

    async def _send(self, writes: Sequence[_Write]) -> None:
        # a fixed order prevents deadlocks between two statements
        rows = sorted(writes, key=lambda write: write[1])
        _, ids, sealed, versions = (list(column) for column in zip(*rows, strict=True))
        async with self._pool.acquire(timeout=10) as connection:
            await connection.execute(_UPSERT, ids, sealed, versions)
        for future, *_ in writes:
            future.set_result(None)

    async def aclose(self) -> None:
        await self._lanes.finish()
        await self._pool.close()


async def _keep(_connection: object) -> None:
    """Do nothing when a connection returns to the pool. asyncpg would send a reset query."""


async def _bare_lifecycles(writer: BarePostgres, contents: Iterator[bytes], times: int) -> float:
    async def one() -> None:
        id = secrets.token_urlsafe(30)
        for version in range(4):
            await writer.write(id, next(contents), version)

    return await rate(one, times)


async def lifecycles(
    server: PostgresServer, *, is_gathered: bool, seconds: float, times: int = 1000
) -> Figure:
    async with (
        server.database() as url,
        open_elicitations(Path(), address=url) as (elicitations, owner),
    ):
        writer = BarePostgres(url, is_gathered=is_gathered)
        await writer.start()
        size = await sealed_bytes(elicitations, owner)
        baseline = partial(_bare_lifecycles, writer, blobs(size), times)
        own = partial(our_lifecycles, elicitations, owner, times)
        await alternate(0, baseline, own)
        rounds = [await alternate(number, baseline, own) for number in in_rounds(seconds)]
        await writer.aclose()
    return summary(
        f"lifecycles a second on PostgreSQL, {AT_ONCE} at once, 4 bare writes each"
        + (", gathered as ours are" if is_gathered else ""),
        rounds,
        show=lambda each: f"{each:,.0f}/s",
        at_least=None if is_gathered else 0.5,
    )


async def compared_with_dbos(server: PostgresServer, *, seconds: float, times: int = 300) -> Figure:
    """Compare lifecycles with DBOS workflows that wait for a message, on the same server."""
    packages = await asyncio.to_thread(installed)
    rounds: list[Round] = []
    async with (
        server.database() as url,
        server.database() as other,
        _process("benchmarks.dbos_process", other, str(times), packages=packages) as dbos,
        open_elicitations(Path(), address=url) as (elicitations, owner),
    ):
        await our_lifecycles(elicitations, owner, times)
        await _next_value(dbos)
        for _ in in_rounds(seconds):
            await _start(dbos)
            dbos_seconds = await _next_value(dbos)
            rounds.append((float(dbos_seconds), await our_lifecycles(elicitations, owner, times)))
    return summary(
        f"lifecycles a second on PostgreSQL, {AT_ONCE} at once, compared with DBOS",
        rounds,
        show=lambda each: f"{each:,.0f}/s",
        at_least=10,
    )


def installed() -> Path:
    """Install DBOS, which the library does not require, into its own folder. Return the folder."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes")
    if not (_DBOS / "dbos").exists():
        subprocess.run([*pip, "--target", str(_DBOS), "--requirement", str(_PINS)], check=True)
    return _DBOS


async def several(server: PostgresServer, *, rounds: int, times: int = 1000) -> list[Figure]:
    """Compare the cost of a lifecycle in one process with its cost in two and in four processes."""
    figures: list[Figure] = []
    took: dict[int, list[dict[str, float]]] = {1: [], 2: [], 4: []}
    for _ in range(rounds):
        for many in took:
            async with server.database() as url:
                took[many] += await _together(url, many, times)
    one = took[1]
    for many in (2, 4):
        rate_of_all = fmean(each["rate"] for each in took[many]) * many
        for what, unit, size, at_most in (
            ("processor time", "us", 1e6, 1.15),
            ("round trips", "", 1.0, None),
        ):
            name = {"processor time": "processor", "round trips": "trips"}[what]
            before, after = (
                median(each[name] for each in reports) * size for reports in (one, took[many])
            )
            figures.append(
                Figure(
                    what=f"{what} a lifecycle, {many} processes against 1 "
                    f"({rate_of_all:,.0f}/s in all)",
                    baseline=f"{before:.3g} {unit}".strip(),
                    our_side=f"{after:.3g} {unit}".strip(),
                    ratio=after / before,
                    target="" if at_most is None else f"<= {at_most}",
                    is_met=at_most is None or after / before <= at_most,
                    rounds=rounds,
                )
            )
    return figures


async def _together(url: str, many: int, times: int) -> list[dict[str, float]]:
    async with AsyncExitStack() as stack:
        processes: list[Process] = []
        for _ in range(many):
            process = await stack.enter_async_context(
                _process("benchmarks.postgres_process", "lifecycles", url, str(times))
            )
            await _next_value(process)
            processes.append(process)
        for process in processes:
            await _start(process)
        return [await _next_value(process) for process in processes]


async def wake(server: PostgresServer, *, times: int = 300) -> Figure:
    """Measure the time from the end of a write until another process receives the change."""
    waits: list[float] = []
    commits: list[float] = []
    async with (
        server.database() as url,
        _process("benchmarks.postgres_process", "receive", url, str(times)) as process,
    ):
        await _next_value(process)
        store = await open_store(url)
        for number in range(times):
            start = perf_counter()
            await store.write(record(f"a-{number}"))
            written = perf_counter()
            commits.append(written - start)
            waits.append(await _next_value(process) - written)
        await store.aclose()
    found = median(waits)
    return Figure(
        what="from the return of a write until another process sees it, compared with the write",
        baseline=f"{median(commits) * 1e3:.2f} ms",
        our_side=f"{found * 1e3:.2f} ms",
        ratio=found / median(commits),
        target="<= 10 ms",
        is_met=found <= 0.010,
        rounds=times,
    )


@asynccontextmanager
async def _process(
    module: str, *arguments: str, packages: Path | None = None
) -> AsyncIterator[Process]:
    path = os.pathsep.join([str(_TOP), *([str(packages)] if packages else [])])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _next_value(process: Process) -> Any:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if line[:1] in b'"{0123456789':
            return json.loads(line)
    raise AssertionError("the process ended")


async def _start(process: Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    await process.stdin.drain()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a rougher one")
    seconds = 6.0 if parser.parse_args().quick else 30.0
    server = PostgresServer({"max_connections": "200"}, on_disk=True)
    server.start()
    try:
        figures = [
            asyncio.run(lifecycles(server, is_gathered=False, seconds=seconds)),
            asyncio.run(lifecycles(server, is_gathered=True, seconds=seconds)),
            asyncio.run(compared_with_dbos(server, seconds=seconds)),
            *asyncio.run(several(server, rounds=1 if seconds < 30 else 5)),
            asyncio.run(wake(server)),
        ]
    finally:
        server.remove()
    print(table(figures))


if __name__ == "__main__":
    main()
