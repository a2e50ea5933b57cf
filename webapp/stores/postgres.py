"""A store in PostgreSQL, for the processes of many machines.

Risks: each caller costs its own round trip, or waits for a server that is gone. Reads and writes of
one turn of the event loop therefore go out together, and no caller waits for more than ten seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from functools import partial

from flows.errors import StoreUnavailable
from webapp.stores.lanes import Gathering, Queued, first
from webapp.stores.postgres_changes import PostgresChanges
from webapp.stores.postgres_driver import (
    TO_REPEAT,
    UniqueViolation,
    check_texts,
    columns_of,
    is_text,
    record_of,
    statements,
)
from webapp.stores.postgres_server import Server
from webapp.stores.store import (
    CLAIMS_HELD,
    CONDITIONS,
    Conflict,
    Fences,
    Record,
    Watch,
    as_written,
    bounds,
    check_copies,
    check_erasure,
    check_limit,
    check_records,
    check_time,
)

# One statement contains the writes of many callers. Each write succeeds or fails alone.
#
# Risks: one caller's conflict undoes another's write, or two statements wait for each other's rows
# for ever. A function on the server (postgres.sql) therefore locks the rows in one order and
# refuses each conflicting write alone. If a constraint refuses a row, because another process
# inserts the same row at the same moment, the statement is undone and repeated, and then sees that
# row. The same happens after a deadlock.
#
# If no answer arrives, the caller gets StoreUnavailable, and it is unknown whether the write
# happened. Writing the same again is safe: if the first write happened, the Conflict carries the
# caller's own record.

_LANES = 2
_ROWS_AT_MOST = 1_000
_BYTES_AT_MOST = 4 * 1024 * 1024
_ATTEMPTS = 8

_Job = Queued[Sequence[Record]]


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
        records = job[0]
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
        # also count the names of a waiting job, because later jobs must not overtake it
        touched |= names
    return batch, behind


_READ_LANES = 2
_READS_AT_ONCE = 500
_PAGE = 500

_Name = tuple[str, str, str]


async def open_store(
    url: str, *, listen: str = "", watches: bool = True, accepts_server: bool = False
) -> "PostgresStore":
    """Open the store, and create its tables if they are missing.

    `listen` is the direct address of the server if `url` leads to a pooler.

    With `accepts_server`, the server is accepted even if it is older than the last server of this
    store, or belongs to a different database cluster.
    """
    server = await Server.open(
        url,
        listen=listen,
        may_be_pooled=bool(listen) or not watches,
        accepts_server=accepts_server,
    )
    changes = PostgresChanges(server)
    try:
        if watches:
            await changes.listen()
    except BaseException:
        await server.aclose()
        raise
    return PostgresStore(server, changes=changes)


async def holds_something(url: str) -> bool:
    """Return True if the address holds records. Raises StoreUnavailable if the check fails."""
    return await Server.holds_something(url)


class PostgresStore:
    """A handle to the store, called an opening. Each process has at least one of its own."""

    def __init__(self, server: Server, *, changes: PostgresChanges) -> None:
        self._server = server
        self._changes = changes
        self._writes = Gathering(self._write_together, lanes=_LANES, fit=_fit)
        self._reads, self._finds = (
            Gathering(partial(self._fetch, name), lanes=_READ_LANES, fit=first(_READS_AT_ONCE))
            for name in ("read", "find")
        )
        self._closing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def round_trips(self) -> int:
        """The number of round trips to the server since the store was opened."""
        return self._server.round_trips

    async def write(self, *records: Record) -> tuple[Record, ...]:
        """See Store."""
        check_records(records)
        check_texts(records)
        self._refuse_if_closed()
        if records:
            await self._writes.put(records)
        return as_written(records)

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        """See Store."""
        return await self._one(self._reads, (owner, kind, id))

    async def find(self, owner: str, kind: str, key: str) -> Record | None:
        """See Store."""
        return await self._one(self._finds, (owner, kind, key))

    async def list(
        self,
        kind: str,
        *,
        owner: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Sequence[Record]:
        """See Store."""
        check_limit(limit)
        self._refuse_if_closed()
        asked = {"kind": kind, "owner": owner, "status": status, **bounds(owner, after)}
        given = {name: value for name, value in asked.items() if value is not None}
        if not is_text(*given.values()):
            return ()
        conditions = [
            f"{CONDITIONS[name]} ${position}" for position, name in enumerate(given, start=2)
        ]
        rows = await self._server.fetch_again(
            "list", limit, *given.values(), condition=" AND ".join(conditions)
        )
        return tuple(map(record_of, rows))

    async def due(self, now: datetime, *, hold: timedelta, limit: int = 100) -> Sequence[Record]:
        """See Store."""
        check_time(now)
        check_limit(limit)
        self._refuse_if_closed()
        held_until = now + CLAIMS_HELD * hold
        rows = await self._server.fetch_again("due", now, now + hold, held_until, limit)
        records = [record_of(row) for row in rows]
        return sorted(records, key=lambda record: record.due_at or now)

    def watch(self) -> Watch:
        """See Store."""
        self._refuse_if_closed()
        return self._changes.watch()

    async def erase(
        self, *, owner: str | None = None, before: datetime | None = None, limit: int = 1000
    ) -> int:
        """See Store."""
        check_erasure(owner, before, limit)
        self._refuse_if_closed()
        values = [value for value in (owner, before) if value is not None]
        conditions = ["owner = $2"] if owner is not None else []
        if before is not None:
            conditions.append(f"erase_at <= ${len(conditions) + 2}")
        if owner is not None and not is_text(owner):
            return 0
        condition = " AND ".join(conditions)
        return len(await self._server.fetch_again("erase", limit, *values, condition=condition))

    async def check(self) -> None:
        """See Store."""
        self._refuse_if_closed()
        if not await self._server.fetch_again("check"):
            raise StoreUnavailable(
                await self.fenced() or "the store's own row in the table elicit_store is missing"
            )

    async def scan(self) -> AsyncIterator[Sequence[Record]]:
        """Yield every record once, in pages, as of one moment, even while others write."""
        self._refuse_if_closed()
        kind = record_id = owner = ""
        async with self._server.snapshot() as connection:
            while rows := await connection.fetch(
                statements()["page"], kind, record_id, owner, _PAGE
            ):
                page = tuple(map(record_of, rows))
                yield page
                kind, record_id, owner = page[-1].kind, page[-1].id, page[-1].owner

    async def load(self, *records: Record, behind: str) -> None:
        """See Store."""
        check_copies(records)
        check_texts(records)
        self._refuse_if_closed()
        if not records:
            return
        columns = columns_of(sorted(records, key=lambda each: (each.kind, each.id, each.owner)))
        try:
            await self._server.load(columns, behind=behind)
        except UniqueViolation:
            owners, kinds, ids, _, keys, *_ = columns
            rows = await self._server.fetch_again("key_holder", owners, kinds, ids, keys)
            raise Conflict(record_of(rows[0]) if rows else None) from None

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        """See Store."""
        self._refuse_if_closed()
        await self._server.fence(why, instead_of=instead_of)

    async def fenced(self) -> str | None:
        """Return the reason why writes are blocked, or None."""
        self._refuse_if_closed()
        rows = await self._server.fetch_again("fenced")
        return rows[0][0] if rows else None

    async def clock(self) -> datetime:
        """Return the server's current time."""
        self._refuse_if_closed()
        rows = await self._server.fetch_again("clock")
        moment: datetime = rows[0][0]
        return moment

    async def replication(self, *, asks_hosts: bool = True) -> Sequence[tuple[str, str | None]]:
        """See Replicated."""
        self._refuse_if_closed()
        return await self._server.replication(asks_hosts=asks_hosts)

    async def access(self) -> Sequence[tuple[str, str | None]]:
        """See Networked."""
        self._refuse_if_closed()
        return await self._server.access()

    async def aclose(self) -> None:
        """See Store."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._writes.finish()
        await self._reads.finish()
        await self._finds.finish()
        await self._changes.aclose()
        await self._server.aclose()

    def _refuse_if_closed(self) -> None:
        if self._closing is not None:
            raise StoreUnavailable(f"the store {self.address} is closed")

    async def _write_together(self, writes: Sequence[Sequence[Record]]) -> Sequence[object]:
        """Write all records, and return for each write None, or the conflict that refused it."""
        numbers = [number for number, records in enumerate(writes) for _ in records]
        columns = columns_of([record for records in writes for record in records])
        for _ in range(_ATTEMPTS):
            try:
                rows = await self._server.fetch("write", numbers, *columns)
            except TO_REPEAT:
                continue
            conflicts = {
                row[0]: Conflict(None if row[1] is None else record_of(row[1:])) for row in rows
            }
            for number, records in enumerate(writes):
                if number not in conflicts:
                    self._changes.notify(records)
            return [conflicts.get(number) for number in range(len(writes))]
        raise StoreUnavailable(
            f"the store {self._server.address} cancelled the same write {_ATTEMPTS} times, because "
            "other processes write the same records: try again"
        )

    async def _one(self, reads: Gathering[_Name], name: _Name) -> Record | None:
        self._refuse_if_closed()
        found: Record | None = await reads.put(name) if is_text(*name) else None
        return found

    async def _fetch(self, statement: str, names: Sequence[_Name]) -> Sequence[object]:
        columns = map(list, zip(*names, strict=True))
        rows = await self._server.fetch_again(statement, *columns)
        found = {row[9]: record_of(row) for row in rows}
        return [found.get(position) for position in range(1, len(names) + 1)]
