"""Changes by other openings of a SQLite file, polled while there is a watch.

`data_version` says only that something was committed, including commits of our own writer. The
changes themselves come from the sequence of commits, which has no gaps. No commit between two polls
is therefore missed, and a gap means that the oldest commits were removed before they were read.
"""

import asyncio
import sqlite3
from weakref import WeakSet

from flows.errors import StoreUnavailable
from webapp.stores.sqlite_file import OpenedFile
from webapp.stores.sqlite_rows import SELECT_RECORDS, record_of, unavailable
from webapp.stores.store import Record
from webapp.stores.watch import Watch

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
    """A poll on the event loop's connection that feeds the watches and stops without a watch."""

    def __init__(self, reader: sqlite3.Connection, *, file: OpenedFile, opening: int) -> None:
        self._reader = reader
        self._file = file
        self._opening = opening
        self._loop = asyncio.get_running_loop()
        self._watches: WeakSet[Watch] = WeakSet()
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
        watch = Watch()
        self._watches.add(watch)
        return watch

    def close(self) -> None:
        """End the watches and the poll."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for watch in tuple(self._watches):
            watch.end()

    def _poll(self) -> None:
        self._timer = None
        if not self._watches:
            return
        before = self._data_version
        try:
            self._file.must_be_there()
            changes = self._changes()
        except (sqlite3.Error, StoreUnavailable) as error:
            for watch in tuple(self._watches):
                self._watches.discard(watch)
                watch.end(unavailable(self._file.path, error))
            return
        is_busy = self._data_version != before and not changes
        seconds = _POLL_SECONDS_BUSY if is_busy else _POLL_SECONDS
        self._timer = self._loop.call_later(seconds, self._poll)
        if changes:
            for watch in tuple(self._watches):
                for record in changes:
                    watch.notify(record)

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
