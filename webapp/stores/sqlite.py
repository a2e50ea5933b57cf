"""A store in one SQLite file, for the processes of one machine.

Risks: a slow disk blocks the event loop. Reads run on the loop's own connection, because reads use
cached pages and wait for no writer. Every operation that waits for the disk runs in a thread.

`MemoryStore` is the same without a file, for tests and demonstrations. Its methods await nothing,
so each is one step of the event loop.
"""

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from flows.errors import StoreUnavailable
from webapp.stores.lanes import answer
from webapp.stores.sqlite_file import OpenedFile
from webapp.stores.sqlite_rows import (
    NO_ROW,
    SELECT_RECORDS,
    Row,
    connect,
    microseconds,
    open_file,
    prepare,
    record_of,
    unavailable,
)
from webapp.stores.sqlite_writer import SqliteWriter, Work, fence_of
from webapp.stores.store import (
    CONDITIONS,
    RECORDS_AT_MOST,
    Fences,
    Record,
    Watch,
    Watches,
    as_written,
    bounds,
    check_copies,
    check_erasure,
    check_limit,
    check_records,
    check_time,
)

# Changes by other openings of a SQLite file, polled while there is a watch.
#
# `data_version` shows only that somebody committed, perhaps our own writer. The changes are in the
# table `commits`, whose rows are numbered without gaps, so no commit between two polls is missed.
# If numbers are missing, the oldest commits were removed before this poll could read them.

_POLL_SECONDS = 0.005
_POLL_SECONDS_BUSY = 0.015  # while our own writer commits, because each poll then costs time
_LOOK = "SELECT sum(opening <> ?), count(*), max(sequence) FROM commits WHERE sequence > ?"
_OF_OTHERS = """
WHERE (owner, kind, id) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]')
    FROM commits CROSS JOIN json_each(commits.records)
    WHERE sequence > ? AND opening <> ?
)
"""


class SqliteChanges:
    """A timer that polls the file for changes and notifies the watches, while there are any."""

    def __init__(self, reader: sqlite3.Connection, *, file: OpenedFile, opening: int) -> None:
        self._reader = reader
        self._file = file
        self._opening = opening
        self._loop = asyncio.get_running_loop()
        self._watches = Watches()
        self._timer: asyncio.TimerHandle | None = None
        self._data_version = -1
        self._seen_sequence = 0

    def watch(self) -> Watch:
        """Return a new watch that misses no change from now on."""
        if self._timer is None:
            try:
                self._seen_sequence = self._number("SELECT max(sequence) FROM commits")
            except sqlite3.Error as error:
                raise unavailable(self._file.path, error) from error
            self._timer = self._loop.call_later(_POLL_SECONDS, self._poll)
        return self._watches.open()

    def close(self) -> None:
        """End the watches and the poll."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._watches.end()

    def _poll(self) -> None:
        self._timer = None
        if not self._watches:
            return
        before = self._data_version
        try:
            self._file.require_same_file()
            changes = self._changes()
        except (sqlite3.Error, StoreUnavailable) as error:
            self._watches.end(unavailable(self._file.path, error))
            return
        is_busy = self._data_version != before and not changes
        seconds = _POLL_SECONDS_BUSY if is_busy else _POLL_SECONDS
        self._timer = self._loop.call_later(seconds, self._poll)
        if changes:
            self._watches.notify(*changes)

    def _changes(self) -> list[Record | None]:
        data_version = self._number("PRAGMA data_version")
        if data_version == self._data_version:
            return []
        values = (self._opening, self._seen_sequence)
        others, count, newest = self._reader.execute(_LOOK, values).fetchone()
        changes: list[Record | None] = []
        if count and newest - self._seen_sequence > count:
            changes.append(None)
        if others:
            # This includes changes committed since the query above; the next poll repeats them.
            values = (self._seen_sequence, self._opening)
            changes.extend(
                map(record_of, self._reader.execute(SELECT_RECORDS + _OF_OTHERS, values))
            )
        self._data_version = data_version
        self._seen_sequence = newest or self._seen_sequence
        return changes

    def _number(self, statement: str) -> int:
        (number,) = self._reader.execute(statement).fetchone()
        return int(number or 0)


_READ = SELECT_RECORDS + "WHERE owner = :owner AND kind = :kind AND id = :id"
_FIND = SELECT_RECORDS + "WHERE owner = :owner AND kind = :kind AND key = :key"


def _open(path: Path) -> tuple[sqlite3.Connection, sqlite3.Connection, OpenedFile]:
    writer, reader, file = open_file(path)
    try:
        prepare(writer)
    except sqlite3.Error as error:
        writer.close()
        reader.close()
        raise unavailable(path, error) from error
    return writer, reader, file


def _vacuum(path: Path) -> None:
    with closing(connect(path)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


class SqliteRecords:
    """Records in a SQLite database, in a file or in memory."""

    def __init__(
        self, reader: sqlite3.Connection, *, writer: SqliteWriter, file: OpenedFile
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._file = file
        self._is_closed = False

    async def write(self, *records: Record) -> tuple[Record, ...]:
        """See Store."""
        check_records(records)
        self._refuse_if_closed()
        if records:
            await self._writer.write(records)
        return as_written(records)

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        """See Store."""
        found = self._records(_READ, {"owner": owner, "kind": kind, "id": id})
        return found[0] if found else None

    async def find(self, owner: str, kind: str, key: str) -> Record | None:
        """See Store."""
        found = self._records(_FIND, {"owner": owner, "kind": kind, "key": key})
        return found[0] if found else None

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
        asked = {"kind": kind, "owner": owner, "status": status, **bounds(owner, after)}
        conditions = [
            f"{CONDITIONS[name]} :{name}" for name, value in asked.items() if value is not None
        ]
        where = f"WHERE {' AND '.join(conditions)} ORDER BY id LIMIT :limit"
        return self._records(SELECT_RECORDS + where, {**asked, "limit": limit})

    async def due(self, now: datetime, *, hold: timedelta, limit: int = 100) -> Sequence[Record]:
        """See Store."""
        check_time(now)
        check_limit(limit)
        self._refuse_if_closed()
        until = microseconds(now + hold)
        return await self._writer.due(microseconds(now), until=until, limit=limit)

    async def erase(
        self, *, owner: str | None = None, before: datetime | None = None, limit: int = 1000
    ) -> int:
        """See Store."""
        check_erasure(owner, before, limit)
        self._refuse_if_closed()
        moment = None if before is None else microseconds(before)
        return await self._writer.erase(owner=owner, before=moment, limit=limit)

    async def load(self, *records: Record, behind: str) -> None:
        """See Store."""
        check_copies(records)
        self._refuse_if_closed()
        if records:
            await self._writer.load(records, behind=behind)

    async def fence(self, why: str | None, *, instead_of: Fences | None = None) -> None:
        """See Store."""
        self._refuse_if_closed()
        await self._writer.fence(why, instead_of=instead_of)

    async def fenced(self) -> str | None:
        """See Store."""
        self._refuse_if_closed()
        try:
            return fence_of(self._reader)
        except sqlite3.Error as error:
            raise unavailable(self._file.path, error) from error

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"the store {self._file.path} is closed")

    def _records(
        self, statement: str, values: Mapping[str, str | int | None]
    ) -> tuple[Record, ...]:
        self._refuse_if_closed()
        try:
            rows = self._reader.execute(statement, values).fetchall()
            self._file.require_same_file()
        except sqlite3.Error as error:
            raise unavailable(self._file.path, error) from error
        return tuple([record_of(row) for row in rows])


class SqliteStore(SqliteRecords):
    """A handle to the file, called an opening. Each process has at least one of its own."""

    def __init__(
        self,
        reader: sqlite3.Connection,
        *,
        writer: SqliteWriter,
        changes: SqliteChanges,
        file: OpenedFile,
    ) -> None:
        super().__init__(reader, writer=writer, file=file)
        self._changes = changes

    @classmethod
    async def open(cls, path: Path, *, remembered_commits: int = 4096) -> Self:
        """Open the file. A missing file is created with mode 0600, missing folders with 0700.

        A watcher that is more than `remembered_commits` behind has to read its records again.
        """
        connection, reader, file = await asyncio.to_thread(_open, path)
        opening = secrets.randbits(62)
        return cls(
            reader,
            writer=SqliteWriter(
                connection, file=file, opening=opening, remembered_commits=remembered_commits
            ),
            changes=SqliteChanges(reader, file=file, opening=opening),
            file=file,
        )

    @property
    def address(self) -> str:
        return f"sqlite:///{self._file.path.resolve()}"

    def watch(self) -> Watch:
        """See Store."""
        self._refuse_if_closed()
        return self._changes.watch()

    async def check(self) -> None:
        """See Store."""
        self._refuse_if_closed()
        try:
            await asyncio.to_thread(self._file.must_have_space)
        except OSError as error:
            raise unavailable(self._file.path, error) from error
        await self._writer.check()

    async def scan(self) -> AsyncIterator[Sequence[Record]]:
        """See Store. All pages are as of one moment."""
        self._refuse_if_closed()
        path = self._file.path
        try:
            with closing(await asyncio.to_thread(connect, path)) as connection:
                connection.execute("BEGIN")
                pages = connection.execute(SELECT_RECORDS)
                self._file.require_same_file()
                while rows := await asyncio.to_thread(pages.fetchmany, RECORDS_AT_MOST):
                    self._refuse_if_closed()
                    yield tuple(map(record_of, rows))
        except sqlite3.Error as error:
            raise unavailable(path, error) from error

    async def vacuum(self) -> None:
        """See Vacuums. Needs free space of the file's size while it runs."""
        self._refuse_if_closed()
        path = self._file.path
        try:
            await asyncio.to_thread(_vacuum, path)
        except sqlite3.Error as error:
            raise unavailable(path, error) from error

    async def aclose(self) -> None:
        """See Store."""
        if not self._is_closed:
            self._is_closed = True
            self._changes.close()
            self._reader.close()
        await self._writer.aclose()


_FILE = OpenedFile(Path(":memory:"), sides=())


# A store without a file, for tests and demonstrations.


class MemoryStore(SqliteRecords):
    """An opening of a database in memory. All openings use one connection."""

    address = None

    def __init__(self, *, shares_with: "MemoryStore | None" = None) -> None:
        """Create an empty database, or open the database of `shares_with`."""
        self.database: _Database = _Database() if shares_with is None else shares_with.database
        self.database.openings.append(self)
        super().__init__(self.database, writer=_Writer(self.database), file=_FILE)
        self._watches = Watches()

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
        return self._watches.open()

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
            self._watches.end()

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
    """An in-memory database and the stores that use it. It closes when none of them is left."""

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
