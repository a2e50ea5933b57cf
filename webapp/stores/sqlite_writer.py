"""The one thread that writes: many callers' jobs in one transaction, answered all at once.

What could go wrong: one job's conflict undoes another's write, or an answer leaves before the
commit. A job fails alone, by statement or savepoint; the answers wait for the commit, and if that
fails, the failure is everyone's answer.
"""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from webapp.stores.sqlite_rows import SELECT_RECORDS, microseconds, record_of, unavailable
from webapp.stores.store import Conflict, Record

_CAREFUL_COMMITS = 8
_JOBS_A_COMMIT = 256
# Old commits are forgotten so many at once.
_FORGET_EVERY = 64

_INSERT = """
INSERT INTO records (owner, kind, id, status, key, due_at, erase_at, version, sealed)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 + 1, ?9)
"""
# An UPDATE that names an indexed column rewrites the index even where the value stays, and takes
# twice as long. So each write first tries the statement that names none, and else the other.
_UPDATE = """
UPDATE records
SET status = ?4, claimed_until = NULL, version = ?8 + 1, sealed = ?9
WHERE owner = ?1 AND kind = ?2 AND id = ?3 AND version = ?8
    AND key IS ?5 AND due_at IS ?6 AND erase_at IS ?7
"""
_UPDATE_INDEXED = """
UPDATE records
SET status = ?4, key = ?5, due_at = ?6, erase_at = ?7, claimed_until = NULL, version = ?8 + 1,
    sealed = ?9
WHERE owner = ?1 AND kind = ?2 AND id = ?3 AND version = ?8
"""
_RELEASE_KEY = "UPDATE records SET key = NULL WHERE owner = ? AND kind = ? AND id = ?"
_READ = SELECT_RECORDS + "WHERE owner = ? AND kind = ? AND id = ?"
_FIND = SELECT_RECORDS + "WHERE owner = ? AND kind = ? AND key = ?"
_DUE = SELECT_RECORDS + (
    "WHERE due_at <= ?1 AND (claimed_until IS NULL OR claimed_until <= ?1) ORDER BY due_at LIMIT ?2"
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

_Job = tuple["asyncio.Future[Any]", Callable[..., object], tuple[object, ...]]
_Answer = tuple["asyncio.Future[Any]", object]


class SqliteWriter:
    """A thread with its own connection: jobs go in by a queue, answers out by the event loop."""

    def __init__(
        self, connection: sqlite3.Connection, *, path: Path, opening: int, remembered_commits: int
    ) -> None:
        self._connection = connection
        self._path = path
        self._opening = opening
        self._remembered_commits = remembered_commits
        self._is_ending = False
        self._has_savepoints = False
        self._careful = 0  # so many commits with savepoints from the first
        self._changed: list[tuple[str, str, str]] = []
        self._jobs: SimpleQueue[list[_Job] | None] = SimpleQueue()
        self._gathered: list[_Job] = []  # in this turn of the loop
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = self._loop.create_future()
        # A daemon, so that a program that forgot aclose can end: what it loses is not acknowledged.
        Thread(target=self._run, name="sqlite-writer", daemon=True).start()

    def write(self, records: tuple[Record, ...]) -> "asyncio.Future[None]":
        """Queue a write of checked records."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue((future, self._write, records))
        return future

    def due(self, now: int, *, until: int, limit: int) -> "asyncio.Future[list[Record]]":
        """Queue a claim of what is due; times in microseconds."""
        future: asyncio.Future[list[Record]] = self._loop.create_future()
        self._queue((future, self._due, (now, until, limit)))
        return future

    def erase(self, *, owner: str | None, before: int | None, limit: int) -> "asyncio.Future[int]":
        """Queue an erasure under at least one of the conditions; the time in microseconds."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._queue((future, self._erase, (owner, before, limit)))
        return future

    async def aclose(self) -> None:
        """Finish every job, then close the connection; nothing may be queued afterwards."""
        if not self._is_ending:
            self._is_ending = True
            self._hand_over()
            self._jobs.put(None)
        await asyncio.shield(self._end)

    def _queue(self, job: _Job) -> None:
        """All of one turn of the loop go to the thread at once.

        The two take turns at the interpreter, and each change of turns costs more than a statement.
        """
        self._gathered.append(job)
        if len(self._gathered) == 1:
            self._loop.call_soon(self._hand_over)

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
            self._tell_loop(self._commit(jobs))
        # The last connection's closing folds the log into the file: here, not on the event loop.
        with suppress(sqlite3.Error):
            self._connection.close()
        self._tell_loop([(self._end, None)])

    def _tell_loop(self, answers: list[_Answer]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and nobody is left to be told
            self._loop.call_soon_threadsafe(_answer, answers)

    def _commit(self, jobs: list[_Job]) -> list[_Answer]:
        try:
            if self._careful:
                self._careful -= 1
                return self._perform(jobs, has_savepoints=True)
            try:
                return self._perform(jobs)
            except _HalfWritten:
                self._connection.execute("ROLLBACK")
                self._careful = _CAREFUL_COMMITS  # one conflict seldom comes alone
                return self._perform(jobs, has_savepoints=True)
        except Exception as error:  # noqa: BLE001 - the thread's edge: whatever it is, all are told
            self._roll_back()
            return [(future, unavailable(self._path, error)) for future, _, _ in jobs]

    def _perform(self, jobs: list[_Job], *, has_savepoints: bool = False) -> list[_Answer]:
        """One transaction; without savepoints, which few jobs need, it may be half written."""
        self._changed.clear()
        self._has_savepoints = has_savepoints
        self._connection.execute("BEGIN IMMEDIATE")
        answers = [(future, _outcome(perform, values)) for future, perform, values in jobs]
        if self._changed:
            self._remember_commit()
        self._connection.execute("COMMIT")
        return answers

    def _roll_back(self) -> None:
        # SQLite may have done it already; a rollback that fails leaves the next BEGIN to say so.
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _remember_commit(self) -> None:
        sequence = self._connection.execute(
            "INSERT INTO commits (opening, records) VALUES (?, ?)",
            (self._opening, json.dumps(self._changed)),
        ).lastrowid
        if sequence is not None and sequence % _FORGET_EVERY == 0:
            self._connection.execute(
                "DELETE FROM commits WHERE sequence <= ?", (sequence - self._remembered_commits,)
            )

    def _write(self, *records: Record) -> None:
        if len(records) == 1:
            is_written = self._change(records[0])
        elif not self._has_savepoints:
            try:
                is_written = all(map(self._change, records))
            except _REFUSED as error:
                raise _HalfWritten from error
            if not is_written:
                raise _HalfWritten
        else:
            # Releasing every key first lets them move in any order; few calls need that.
            is_written = self._change_all(records) or self._change_all(records, release=True)
        if not is_written:
            raise self._conflict(records)
        self._changed += [(record.owner, record.kind, record.id) for record in records]

    def _change(self, record: Record) -> bool:
        values = (
            record.owner,
            record.kind,
            record.id,
            record.status,
            record.key,
            None if record.due_at is None else microseconds(record.due_at),
            None if record.erase_at is None else microseconds(record.erase_at),
            record.version,
            record.sealed,
        )
        execute = self._connection.execute
        try:
            if record.version == 0:
                execute(_INSERT, values)
                return True
            # What is over lets go of its key and its time.
            is_over = record.key is None and record.due_at is None
            first, second = (_UPDATE_INDEXED, _UPDATE) if is_over else (_UPDATE, _UPDATE_INDEXED)
            return execute(first, values).rowcount == 1 or execute(second, values).rowcount == 1
        except sqlite3.IntegrityError:
            return False

    def _change_all(self, records: Sequence[Record], *, release: bool = False) -> bool:
        is_done = False
        self._connection.execute("SAVEPOINT job")
        try:
            if release:
                for record in records:
                    self._connection.execute(_RELEASE_KEY, (record.owner, record.kind, record.id))
            is_done = all(map(self._change, records))
        finally:
            # A full disk has ended the transaction, and the savepoint with it.
            if self._connection.in_transaction:
                if not is_done:
                    self._connection.execute("ROLLBACK TO job")
                self._connection.execute("RELEASE job")
        return is_done

    def _conflict(self, records: Sequence[Record]) -> Exception:
        names = {(record.owner, record.kind, record.id) for record in records}
        for record in records:
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

    def _due(self, now: int, until: int, limit: int) -> list[Record]:
        records = [record_of(row) for row in self._connection.execute(_DUE, (now, limit))]
        claims = [(until, record.owner, record.kind, record.id) for record in records]
        self._connection.executemany(_CLAIM, claims)
        return records

    def _erase(self, owner: str | None, before: int | None, limit: int) -> int:
        if before is None:
            statement = _ERASE_OWNER
        else:
            statement = _ERASE_OLD if owner is None else _ERASE_OLD_OF_OWNER
        values = {"owner": owner, "before": before, "limit": limit}
        return self._connection.execute(statement, values).rowcount


class _HalfWritten(Exception):
    """A job of several records was refused after the first: all that it stands in is done anew."""


# Text or a number that SQLite can't hold, beside a conflict. Its other errors are everyone's.
_REFUSED = (ValueError, OverflowError, sqlite3.ProgrammingError)


def _outcome(perform: Callable[..., object], values: tuple[object, ...]) -> object:
    try:
        return perform(*values)
    except (Conflict, *_REFUSED) as error:
        return error


def _answer(answers: list[_Answer]) -> None:
    for future, answer in answers:
        if future.done():  # its caller was cancelled
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
