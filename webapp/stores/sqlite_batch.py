"""A batch of writes as one SQLite statement, so that no other Python thread runs in between.

Risks: Python releases the interpreter lock for each statement, and a busy thread can then keep it
for a long time, so a commit of many statements stalls between them. One statement needs no BEGIN,
and an error in one of its rows undoes all of them.

The statement inserts the rows into a temporary view of this connection. The triggers of the view
insert new records, and replace a stored record only if it still has the version that was read.
"""

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import chain

from msgspec.json import encode

from webapp.stores.sqlite_rows import microseconds
from webapp.stores.store import Record

# SQLite allows 32,766 values in a statement since 3.32, and a row has nine.
ROWS_AT_MOST = 1024
# A cached statement stays until the next commit of its size, together with its values.
BYTES_AT_MOST = 4 * 1024 * 1024

Row = tuple[str | int | bytes | None, ...]

_INSERT = "INSERT INTO writes VALUES {}"
NO_ROW: Row = (None,) * 9  # a row without a version, which no trigger handles
# Values in place of a version for rows that are no records: see batch.sql.
_RELEASE_KEY, _COMMIT = -1, -2


def prepare(connection: sqlite3.Connection) -> None:
    """Create the view, once for each connection."""
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.executescript(files("webapp.stores").joinpath("batch.sql").read_text("utf-8"))


def rows_of(records: Sequence[Record]) -> list[Row]:
    return [
        (
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
        for record in records
    ]


def releases_of(records: Sequence[Record]) -> list[Row]:
    """Return rows that remove the records' keys, so that keys can move in any order."""
    return [
        (record.owner, record.kind, record.id, None, None, None, None, _RELEASE_KEY, None)
        for record in records
    ]


def commit_row(records: Sequence[Record], *, opening: int, remembered_commits: int) -> Row:
    """Return the row that tells other openings what the commit changed."""
    names = encode([(record.owner, record.kind, record.id) for record in records]).decode()
    return (opening, None, None, None, None, remembered_commits, None, _COMMIT, names)


def write_rows(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Write all rows or none. Raises sqlite3.IntegrityError if a version or a key conflicts."""
    # Pad to a power of two: otherwise each number of rows would need its own compiled statement.
    size = 1 << (len(rows) - 1).bit_length()
    filled = chain(rows, (NO_ROW for _ in range(size - len(rows))))
    connection.execute(_statement(size), tuple(chain.from_iterable(filled)))


@lru_cache
def _statement(size: int) -> str:
    return _INSERT.format(", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * size))
