"""The writer thread of a SQLite store: it commits the jobs of many callers in one transaction.

Risks: one job's conflict undoes another job's write, or a caller gets its answer before the commit.
The thread first writes all jobs in one statement. If a conflict undoes that statement, each job
gets its own statement and fails alone. All answers wait for the commit, and if the commit fails,
all jobs fail.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any

from flows.errors import StoreUnavailable
from webapp.stores.lanes import answer
from webapp.stores.sqlite_file import OpenedFile
from webapp.stores.sqlite_rows import (
    BYTES_AT_MOST,
    ROWS_AT_MOST,
    SELECT_RECORDS,
    Row,
    commit_row,
    record_of,
    releases_of,
    rows_of,
    unavailable,
    write_rows,
)
from webapp.stores.store import CLAIMS_HELD, Conflict, Fences, OtherFence, Record

# The fence of a SQLite file, and the loading of copies into a fenced file.
#
# Risks: a process that has the file open, perhaps of an older version, does not know about the
# fence and continues to write. The fence is therefore made of triggers in the file itself, which
# refuse every change by any process. The triggers allow changes only in the transaction that loads
# copies.

_CHANGES = (
    ("INSERT", "records"),
    ("UPDATE", "records"),
    ("DELETE", "records"),
    ("INSERT", "commits"),
)
_FENCE = "CREATE TABLE fence (why TEXT NOT NULL, is_open INTEGER NOT NULL DEFAULT 0)"
_TRIGGER = """
CREATE TRIGGER fence_{change}_{table} BEFORE {change} ON {table}
WHEN NOT (SELECT is_open FROM fence) BEGIN SELECT RAISE(ABORT, '{why}'); END
"""
_LOAD = """
INSERT INTO records (owner, kind, id, status, key, due_at, erase_at, version, sealed)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_DELETE = "DELETE FROM records WHERE owner = ? AND kind = ? AND id = ?"


def fence_of(connection: sqlite3.Connection) -> str | None:
    """Return the reason why writes are blocked, or None."""
    is_there = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'fence'"
    if connection.execute(is_there).fetchone() is None:
        return None
    (why,) = connection.execute("SELECT why FROM fence").fetchone()
    return str(why)


def put_fence(connection: sqlite3.Connection, why: str | None) -> None:
    """Replace the current fence, or remove it. Call this function within a transaction."""
    for change, table in _CHANGES:
        connection.execute(f"DROP TRIGGER IF EXISTS fence_{change}_{table}")
    connection.execute("DROP TABLE IF EXISTS fence")
    if why is None:
        return
    connection.execute(_FENCE)
    connection.execute("INSERT INTO fence (why) VALUES (?)", (why,))
    quoted = why.replace("'", "''")  # a trigger cannot have parameters
    for change, table in _CHANGES:
        connection.execute(_TRIGGER.format(change=change, table=table, why=quoted))


def load_copies(connection: sqlite3.Connection, records: Sequence[Record]) -> None:
    """Store copies within a transaction.

    Raises sqlite3.IntegrityError if another record has one of the keys.
    """
    is_fenced = fence_of(connection) is not None
    if is_fenced:
        connection.execute("UPDATE fence SET is_open = 1")
    connection.executemany(_DELETE, [(each.owner, each.kind, each.id) for each in records])
    connection.executemany(_LOAD, rows_of(records))
    if is_fenced:
        connection.execute("UPDATE fence SET is_open = 0")


_CAREFUL_COMMITS = 8
_JOBS_A_COMMIT = 256

LOG_RETENTION_SECONDS = 60.0
_READ = SELECT_RECORDS + "WHERE owner = ? AND kind = ? AND id = ?"
_FIND = SELECT_RECORDS + "WHERE owner = ? AND kind = ? AND key = ?"
_DUE = SELECT_RECORDS + (
    "WHERE due_at <= :now "
    "AND (claimed_until IS NULL OR claimed_until NOT BETWEEN :now + 1 AND :held_until) "
    "ORDER BY due_at LIMIT :limit"
)
_CLAIM = "UPDATE records SET claimed_until = ? WHERE owner = ? AND kind = ? AND id = ?"
_ERASE_OWNER = """
DELETE FROM records
WHERE number IN (SELECT number FROM records WHERE owner = :owner LIMIT :limit)
"""
_ERASE_OLD = """
DELETE FROM records
WHERE number IN (SELECT number FROM records WHERE erase_at <= :before LIMIT :limit)
"""
_ERASE_OLD_OF_OWNER = """
DELETE FROM records
WHERE number IN (
    SELECT number FROM records WHERE owner = :owner AND erase_at <= :before LIMIT :limit
)
"""

# The work of a job: the records to write, or a function for any other work.
Work = tuple[Record, ...] | Callable[[], object]
_Job = tuple["asyncio.Future[Any]", Work]
_Answer = tuple["asyncio.Future[Any]", object]


class SqliteWriter:
    """A thread with its own connection. A queue takes the jobs; the event loop gets the answers."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        file: OpenedFile,
        opening: int,
        remembered_commits: int,
    ) -> None:
        """Create the writer. `sqlite_rows` has prepared `connection`."""
        self._connection = connection
        self._file = file
        self._opening = opening
        self._remembered_commits = remembered_commits
        self._fence: str | None = None  # as read in this transaction
        self._careful = 0  # the number of commits that still use one statement per job
        self._start()

    def _start(self) -> None:
        self._is_ending = False
        (self._busy_milliseconds,) = self._connection.execute("PRAGMA busy_timeout").fetchone()
        self._fold_at = time.monotonic() + LOG_RETENTION_SECONDS
        self._jobs: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._gathered: list[_Job] = []  # the jobs of this turn of the event loop
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()
        # A daemon thread, so that a program that forgot aclose can end. Only unacknowledged jobs
        # are lost.
        Thread(target=self._run, name="sqlite-writer", daemon=True).start()

    def write(self, records: tuple[Record, ...]) -> "asyncio.Future[None]":
        """Queue a write of checked records."""
        return self._queue(records)

    def due(self, now: int, *, until: int, limit: int) -> "asyncio.Future[list[Record]]":
        """Queue a claim of the due records. The times are in microseconds."""
        return self._queue(partial(self._due, now, until, limit))

    def erase(self, *, owner: str | None, before: int | None, limit: int) -> "asyncio.Future[int]":
        """Queue an erasure by at least one of the conditions. The time is in microseconds."""
        return self._queue(partial(self._erase, owner, before, limit))

    def check(self) -> "asyncio.Future[None]":
        """Queue a commit that changes no record."""
        return self._queue(self._check)

    def load(self, records: tuple[Record, ...], *, behind: str) -> "asyncio.Future[None]":
        """Queue checked copies, to be stored while the fence `behind` is set."""
        return self._queue(partial(self._load, records, behind))

    def fence(self, why: str | None, *, instead_of: Fences | None) -> "asyncio.Future[None]":
        """Queue the creation of a fence, or its removal."""
        return self._queue(partial(self._put_fence, why, instead_of))

    async def aclose(self) -> None:
        """Finish every job, then close the connection. Nothing may be queued afterwards."""
        if not self._is_ending:
            self._is_ending = True
            self._hand_over()
            self._jobs.put(None)
        await asyncio.shield(self._end)

    def _queue(self, work: Work) -> "asyncio.Future[Any]":
        """Queue a job. All jobs of one turn of the event loop go to the thread together.

        The loop and the thread share the interpreter lock, and each switch costs more than a
        statement.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        self._gathered.append((future, work))
        if len(self._gathered) == 1:
            self._loop.call_soon(self._hand_over)
        return future

    def _hand_over(self) -> None:
        if self._gathered:
            self._jobs.put(self._gathered)
            self._gathered = []

    def _run(self) -> None:
        is_last = False
        while not is_last:
            jobs: list[_Job] = []
            while (more := self._jobs.get()) is not None:
                jobs += more
                if len(jobs) >= _JOBS_A_COMMIT or self._jobs.empty():
                    break
            is_last = more is None
            self._notify_loop(self._commit(jobs))
            self._fold_log()
        # Closing the last connection copies the log into the file: do it here, not on the event
        # loop.
        with suppress(sqlite3.Error):
            self._connection.close()
        self._notify_loop([(self._end, None)])

    def _fold_log(self) -> None:
        """Truncate the log once a minute: the log still holds data that was erased from the file.

        If another connection is reading, do not wait, but try again after the next commit.
        """
        if time.monotonic() < self._fold_at:
            return
        with suppress(sqlite3.Error):
            self._connection.execute("PRAGMA busy_timeout = 0")
            (is_busy, *_) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            self._connection.execute(f"PRAGMA busy_timeout = {self._busy_milliseconds}")
            if not is_busy:
                self._fold_at = time.monotonic() + LOG_RETENTION_SECONDS

    def _notify_loop(self, answers: list[_Answer]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            self._loop.call_soon_threadsafe(answer, answers)

    def _commit(self, jobs: list[_Job]) -> list[_Answer]:
        try:
            if self._careful and len(jobs) > 1:
                self._careful -= 1
            elif records := _all_records(jobs):
                try:
                    self._write_at_once(records)
                except (sqlite3.IntegrityError, *_REFUSED):
                    self._careful = _CAREFUL_COMMITS  # conflicts often come in groups
                else:
                    return [(future, None) for future, _ in jobs]
            return self._one_by_one(jobs)
        except Exception as error:  # noqa: BLE001 - end of the thread: every caller gets the error
            self._roll_back()
            return [(future, unavailable(self._file.path, error)) for future, _ in jobs]

    def _write_at_once(self, records: list[Record]) -> None:
        # Without BEGIN, the statement is its own transaction.
        write_rows(self._connection, [*rows_of(records), self._commit_row(records)])
        self._file.require_same_file()

    def _one_by_one(self, jobs: list[_Job]) -> list[_Answer]:
        answers: list[_Answer] = []
        written: list[Record] = []
        self._connection.execute("BEGIN IMMEDIATE")
        before = self._fence = fence_of(self._connection)
        for future, work in jobs:
            try:
                if callable(work):
                    answers.append((future, work()))
                else:
                    self._change(work)
                    written += work
                    answers.append((future, None))
            except (Conflict, OtherFence, StoreUnavailable, *_REFUSED) as error:
                answers.append((future, error))
        if written:
            write_rows(self._connection, [self._commit_row(written)])
        if self._fence is not None and self._fence != before:
            put_fence(self._connection, self._fence)  # after all jobs of this commit
        self._connection.execute("COMMIT")
        self._file.require_same_file()  # raises if the file was replaced: then every job fails
        return answers

    def _roll_back(self) -> None:
        # SQLite may have rolled back already. If this rollback fails, the next BEGIN reports it.
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _commit_row(self, records: Sequence[Record]) -> Row:
        return commit_row(
            records, opening=self._opening, remembered_commits=self._remembered_commits
        )

    def _must_be_fenced(self, words: Fences) -> None:
        if self._fence not in words:
            raise OtherFence(self._fence)

    def _refuse_if_fenced(self) -> None:
        if self._fence is not None:
            raise StoreUnavailable(self._fence)

    def _change(self, records: tuple[Record, ...]) -> None:
        self._refuse_if_fenced()
        rows = rows_of(records)
        try:
            write_rows(self._connection, rows)
        except sqlite3.IntegrityError as error:
            if len(records) > 1:
                # Releasing every key first lets keys move in any order. Few calls need this.
                with suppress(sqlite3.IntegrityError):
                    write_rows(self._connection, releases_of(records) + rows)
                    return
            raise self._conflict(records) from error

    def _conflict(self, records: tuple[Record, ...], *, is_load: bool = False) -> Exception:
        names = {(record.owner, record.kind, record.id) for record in records}
        for record in () if is_load else records:
            found = self._first(_READ, (record.owner, record.kind, record.id))
            if record.version != (0 if found is None else found.version):
                return Conflict(found)
        for record in records:
            found = self._first(_FIND, (record.owner, record.kind, record.key))
            if found is not None and (found.owner, found.kind, found.id) not in names:
                return Conflict(found)
        return ValueError("a record lacks a value that it must have")

    def _first(self, statement: str, values: tuple[str | None, ...]) -> Record | None:
        row = self._connection.execute(statement, values).fetchone()
        return None if row is None else record_of(row)

    def _check(self) -> None:
        self._refuse_if_fenced()
        write_rows(self._connection, [self._commit_row(())])

    def _load(self, records: tuple[Record, ...], behind: str) -> None:
        self._must_be_fenced((behind,))
        self._connection.execute("SAVEPOINT load")
        try:
            load_copies(self._connection, records)
        except (sqlite3.IntegrityError, *_REFUSED) as error:
            self._connection.execute("ROLLBACK TO load")
            if isinstance(error, sqlite3.IntegrityError):
                raise self._conflict(records, is_load=True) from error
            raise
        finally:
            self._connection.execute("RELEASE load")

    def _put_fence(self, why: str | None, instead_of: Fences | None) -> None:
        if instead_of is not None:
            self._must_be_fenced(instead_of)
        if why is None:
            put_fence(self._connection, None)
        self._fence = why

    def _due(self, now: int, until: int, limit: int) -> list[Record]:
        self._refuse_if_fenced()
        held_until = now + CLAIMS_HELD * (until - now)
        values = {"now": now, "held_until": held_until, "limit": limit}
        records = [record_of(row) for row in self._connection.execute(_DUE, values)]
        claims = [(until, record.owner, record.kind, record.id) for record in records]
        self._connection.executemany(_CLAIM, claims)
        return records

    def _erase(self, owner: str | None, before: int | None, limit: int) -> int:
        self._refuse_if_fenced()
        if before is None:
            statement = _ERASE_OWNER
        else:
            statement = _ERASE_OLD if owner is None else _ERASE_OLD_OF_OWNER
        values = {"owner": owner, "before": before, "limit": limit}
        return self._connection.execute(statement, values).rowcount


# Errors of one job other than a conflict: text or a number that SQLite cannot store. SQLite's other
# errors fail all jobs.
_REFUSED = (ValueError, OverflowError, sqlite3.ProgrammingError)


def _all_records(jobs: list[_Job]) -> list[Record]:
    """Return the records of jobs that only write and fit into one statement, else an empty list."""
    records: list[Record] = []
    for _, work in jobs:
        if callable(work):
            return []
        records += work
    is_little = sum(len(record.sealed) for record in records) <= BYTES_AT_MOST
    return records if is_little and len(records) < ROWS_AT_MOST else []
