"""Writes of many callers in one statement, which each succeed or fail alone.

Risks: one caller's conflict undoes another's write, or two statements wait for each other's rows
for ever. A function on the server (postgres.sql) therefore locks the rows in one order and refuses
each conflicting write alone. If a constraint refuses a row, because another process inserts the
same row at the same moment, the statement is undone and repeated, and then sees that row. The same
happens after a deadlock.

If no answer arrives, the caller gets StoreUnavailable, and it is unknown whether the write
happened. Writing the same again is safe: if the first write happened, the Conflict carries the
caller's own record.
"""

import asyncio
from collections.abc import Callable, Sequence

from flows.errors import StoreUnavailable
from webapp.stores.lanes import Lanes
from webapp.stores.postgres_driver import TO_REPEAT
from webapp.stores.postgres_rows import columns_of, record_of
from webapp.stores.postgres_server import Server
from webapp.stores.store import Conflict, Record

_LANES = 2
_ROWS_AT_MOST = 1_000
_BYTES_AT_MOST = 4 * 1024 * 1024
_ATTEMPTS = 8

_Job = tuple["asyncio.Future[None]", Sequence[Record]]
_Notify = Callable[[Sequence[Record]], None]


class PostgresWriter:
    """A queue that combines writes, and answers each caller when its write is durable."""

    def __init__(self, server: Server, *, notify: _Notify) -> None:
        """`notify` receives the written records after each commit."""
        self._server = server
        self._notify = notify
        self._lanes: Lanes[_Job] = Lanes(self._write, lanes=_LANES, fit=_fit)
        self._loop = asyncio.get_running_loop()

    def write(self, records: Sequence[Record]) -> "asyncio.Future[None]":
        """Queue a write of checked records."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._lanes.put((future, records))
        return future

    async def finish(self) -> None:
        """Wait until every write is answered."""
        await self._lanes.finish()

    async def _write(self, jobs: Sequence[_Job]) -> None:
        try:
            conflicts = await self._conflicts(jobs)
        except Exception as error:  # noqa: BLE001 - end of the task: every caller gets the error
            for future, _ in jobs:
                if not future.done():
                    future.set_exception(error)
            return
        written: list[Record] = []
        for number, (future, records) in enumerate(jobs):
            conflict = conflicts.get(number)
            if conflict is None:
                written += records
            if future.done():  # its caller was cancelled
                continue
            if conflict is None:
                future.set_result(None)
            else:
                future.set_exception(conflict)
        if written:
            self._notify(written)

    async def _conflicts(self, jobs: Sequence[_Job]) -> dict[int, Conflict]:
        """Write all jobs and return the conflicts, by the numbers of the jobs that failed."""
        numbers = [number for number, (_, records) in enumerate(jobs) for _ in records]
        columns = columns_of([record for _, records in jobs for record in records])
        for _ in range(_ATTEMPTS):
            try:
                rows = await self._server.fetch("write", numbers, *columns)
            except TO_REPEAT:
                continue
            return {
                row[0]: Conflict(None if row[1] is None else record_of(row[1:])) for row in rows
            }
        raise StoreUnavailable(
            f"the store {self._server.address} cancelled the same write {_ATTEMPTS} times, because "
            "other processes write the same records: try again"
        )


def _fit(jobs: Sequence[_Job]) -> tuple[list[_Job], list[_Job]]:
    """Return the jobs of the next statement, and the jobs that have to wait.

    A statement has a size limit, and no two of its jobs write the same record or use the same key.
    The second of two such jobs has to see the result of the first.
    """
    batch: list[_Job] = []
    behind: list[_Job] = []
    touched: set[tuple[str, ...]] = set()
    rows = size = 0
    for job in jobs:
        records = job[1]
        names: set[tuple[str, ...]] = set()
        for record in records:
            names.add((record.owner, record.kind, record.id))
            if record.key is not None:
                names.add((record.owner, record.kind, "", record.key))
        rows += len(records)
        size += sum(len(record.sealed) for record in records)
        is_much = bool(batch) and (rows > _ROWS_AT_MOST or size > _BYTES_AT_MOST)
        if is_much or not touched.isdisjoint(names):
            behind.append(job)
        else:
            batch.append(job)
        touched |= names  # a waiting job's names too: later jobs must not overtake it
    return batch, behind
