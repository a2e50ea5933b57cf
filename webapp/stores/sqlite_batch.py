"""Many writes as one statement, which SQLite carries out without letting anybody in between.

What could go wrong: the interpreter is let go for each statement, and whoever runs Python meanwhile
keeps it for as long as there is work; so a commit of many statements stands still between them.
One statement needs no BEGIN, and what one row of it is refused for undoes the whole.

The rows go into a view of this connection alone, whose triggers insert, compare and set.
"""

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import chain

from msgspec.json import encode

from webapp.stores.sqlite_rows import microseconds
from webapp.stores.store import Record

# SQLite takes 32,766 values in a statement since 3.32, and a row has nine.
ROWS_AT_MOST = 1024
# A statement stays for the next commit of its size, and its values with it.
BYTES_AT_MOST = 4 * 1024 * 1024

Row = tuple[str | int | bytes | None, ...]

_INSERT = "INSERT INTO writes VALUES {}"
_NO_ROW: Row = (None,) * 9  # of no version: no trigger is there for it
# In place of a version, where the row is no record: see batch.sql.
_RELEASE_KEY, _COMMIT = -1, -2


def prepare(connection: sqlite3.Connection) -> None:
    """Make the view, once for a connection."""
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
    """What takes the keys from records, so that they may move among them in any order."""
    return [
        (record.owner, record.kind, record.id, None, None, None, None, _RELEASE_KEY, None)
        for record in records
    ]


def commit_row(records: Sequence[Record], *, opening: int, remembered_commits: int) -> Row:
    """What other openings learn of the commit."""
    names = encode([(record.owner, record.kind, record.id) for record in records]).decode()
    return (opening, None, None, None, None, remembered_commits, None, _COMMIT, names)


def write_rows(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """All or none. Raises IntegrityError where a version or a key is another one's."""
    # Filled up to a power of two, or there would be a statement to compile for each number of rows.
    size = 1 << (len(rows) - 1).bit_length()
    filled = chain(rows, (_NO_ROW for _ in range(size - len(rows))))
    connection.execute(_statement(size), tuple(chain.from_iterable(filled)))


@lru_cache
def _statement(size: int) -> str:
    return _INSERT.format(", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * size))
