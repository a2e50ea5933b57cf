"""A store in the memory of this process, for tests and demonstrations: SQLite without a file.

Nothing survives the process. No method awaits anything, so each is one step of the event loop.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from weakref import WeakSet

from webapp.stores.sqlite import SqliteRecords
from webapp.stores.sqlite_file import OpenedFile
from webapp.stores.sqlite_rows import NO_ROW, SELECT_RECORDS, Row
from webapp.stores.sqlite_writer import SqliteWriter, Work, answer
from webapp.stores.store import RECORDS_AT_MOST, Record, Watch

_FILE = OpenedFile(Path(":memory:"), sides=())


class MemoryStore(SqliteRecords):
    """An opening of a database in memory. All openings use one connection."""

    address = None

    def __init__(self, *, shares_with: "MemoryStore | None" = None) -> None:
        """Create an empty database, or open the database of `shares_with`."""
        self.database: _Database = _Database() if shares_with is None else shares_with.database
        self.database.openings.append(self)
        super().__init__(self.database, writer=_Writer(self.database), file=_FILE)
        self._watches: WeakSet[Watch] = WeakSet()

    def sibling(self) -> "MemoryStore":
        """Return another opening of the same records, like the one of another process."""
        return MemoryStore(shares_with=self)

    async def write(self, *records: Record) -> tuple[Record, ...]:
        """See Store."""
        written = await super().write(*records)
        for opening in self.database.openings:
            if opening is not self:
                opening.notify(written)
        return written

    def watch(self) -> Watch:
        """See Store."""
        self._refuse_if_closed()
        watch = Watch()
        self._watches.add(watch)
        return watch

    async def check(self) -> None:
        """See Store."""
        self._refuse_if_closed()
        await self._writer.check()

    async def scan(self) -> AsyncIterator[Sequence[Record]]:
        """See Store."""
        records = self._records(SELECT_RECORDS, {})
        for start in range(0, len(records), RECORDS_AT_MOST):
            yield records[start : start + RECORDS_AT_MOST]

    async def aclose(self) -> None:
        """See Store."""
        if not self._is_closed:
            self._is_closed = True
            self.database.openings.remove(self)
            for watch in tuple(self._watches):
                watch.end()

    def notify(self, records: tuple[Record, ...]) -> None:
        """Notify the watches of this opening about records that a sibling wrote."""
        for watch in tuple(self._watches):
            for record in records:
                if watch.wants(record.kind, record.id):
                    watch.notify(record)


class _Writer(SqliteWriter):
    """A writer without a thread: it commits each job before the caller continues."""

    def __init__(self, database: sqlite3.Connection) -> None:
        super().__init__(database, file=_FILE, opening=0, remembered_commits=0)

    def _start(self) -> None:
        """Start no thread."""

    def _queue(self, work: Work) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer(self._commit([(future, work)]))
        return future

    def _commit_row(self, records: Sequence[Record]) -> Row:
        return NO_ROW  # the write notifies the other openings


class _Database(sqlite3.Connection):
    """A database that begins empty, with its openings. It closes when no opening uses it."""

    def __init__(self, *, is_template: bool = False) -> None:
        super().__init__(":memory:", isolation_level=None, check_same_thread=False)
        self.openings: list[MemoryStore] = []
        if not is_template:
            # copying is five times as fast as running the statements
            _empty_database().backup(self)

    def __del__(self) -> None:
        self.close()


@cache
def _empty_database() -> _Database:
    database, folder = _Database(is_template=True), files("webapp.stores")
    for name in ("schema.sql", "batch.sql"):
        script = folder.joinpath(name).read_text("utf-8")
        database.executescript(script.replace("CREATE TEMP", "CREATE"))
    return database
