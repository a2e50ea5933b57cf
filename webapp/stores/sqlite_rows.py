"""Rows of a SQLite store, with times as integer microseconds, and the opening of the file.

A file of another program, a newer layout, or a folder that other users can write to is refused
before any use.
"""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from pathlib import Path

from msgspec.json import encode

from flows.errors import StoreUnavailable
from webapp.stores.sqlite_file import (
    SIDES,
    OpenedFile,
    identity_of,
    must_be_of_this_machine,
    must_be_private,
)
from webapp.stores.store import Record

SELECT_RECORDS = (
    "SELECT owner, kind, id, status, key, due_at, erase_at, version, sealed FROM records "
)

# "elic": distinguishes our file from those of other programs.
_APPLICATION_ID = 0x656C6963
_LAYOUT_VERSION = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WAL_ATTEMPTS = 100
_DAMAGE_CHARACTERS = 200
_OLDEST_SQLITE = (3, 32, 0)
# The writer's thread may wait for another process. The event loop may not wait long.
_WRITER_BUSY_MILLISECONDS = 10_000
_READER_BUSY_MILLISECONDS = 500

_Row = tuple[str, str, str, str, str | None, int | None, int | None, int, bytes]


def record_of(row: _Row) -> Record:
    """Return the record from a row of SELECT_RECORDS."""
    owner, kind, record_id, status, key, due_at, erase_at, version, sealed = row
    return Record(
        owner=owner,
        kind=kind,
        id=record_id,
        status=status,
        key=key,
        due_at=None if due_at is None else _EPOCH + timedelta(microseconds=due_at),
        erase_at=None if erase_at is None else _EPOCH + timedelta(microseconds=erase_at),
        version=version,
        sealed=sealed,
    )


def microseconds(moment: datetime) -> int:
    """Return the microseconds since 1970, rounded: a float is exact to 0.25 microseconds."""
    return round(moment.timestamp() * 1_000_000)


def unavailable(path: Path, error: Exception) -> StoreUnavailable:
    """Return a StoreUnavailable for an error of SQLite or the system, which becomes its cause."""
    if isinstance(error, StoreUnavailable):
        return error
    refusal = StoreUnavailable(f"the store {path} is not usable: {error}")
    refusal.__cause__ = error
    return refusal


def open_file(path: Path) -> tuple[sqlite3.Connection, sqlite3.Connection, OpenedFile]:
    """Open the file, or create it; return a connection to write, one to read, and the file.

    Blocks on the disk, so call this function in a thread.
    """
    must_be_new_enough(sqlite3.sqlite_version_info)
    with ExitStack() as stack:
        try:
            for side in SIDES:
                must_be_private(path.with_name(f"{path.name}{side}"))
            must_be_of_this_machine(path)
            _make_private(path)
            before = identity_of(path)
            writer = connect(path)
            stack.callback(writer.close)
            _prepare(writer, path)
            _check_integrity(writer, path)
            reader = connect(path, busy_milliseconds=_READER_BUSY_MILLISECONDS)
            stack.callback(reader.close)
            reader.execute("PRAGMA query_only = ON")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the log as well
        except (sqlite3.Error, OSError) as error:
            raise unavailable(path, error) from error
        opened = OpenedFile(path)
        if before is None or not opened.is_of(before):
            raise StoreUnavailable(
                f"the file of the store {path} was replaced while the server opened it"
            )
        stack.pop_all()
    return writer, reader, opened


def connect(
    path: Path, *, busy_milliseconds: int = _WRITER_BUSY_MILLISECONDS
) -> sqlite3.Connection:
    """Return a connection that one thread at a time can use. Raises sqlite3.Error."""
    connection = sqlite3.connect(
        path, timeout=busy_milliseconds / 1000, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def must_be_new_enough(version: tuple[int, int, int]) -> None:
    """Raise StoreUnavailable for a SQLite version that allows too few values in a statement."""
    if version < _OLDEST_SQLITE:
        raise StoreUnavailable(
            f"SQLite 3.32 or newer is needed, and this Python has {'.'.join(map(str, version))}"
        )


def _make_private(path: Path) -> None:
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    try:
        # Never open an existing file: closing it would drop this process's other locks on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return


def _prepare(writer: sqlite3.Connection, path: Path) -> None:
    writer.execute("BEGIN IMMEDIATE")
    try:
        _lay_out(writer, path)
        writer.execute("COMMIT")
    finally:
        if writer.in_transaction:
            writer.execute("ROLLBACK")
    if _use_wal(writer) != "wal":
        raise StoreUnavailable(
            f"the store {path} is on a disk where SQLite can't use its WAL mode: put it on another "
            "disk"
        )


def _check_integrity(writer: sqlite3.Connection, path: Path) -> None:
    """Check every page of the file: a torn page would silently cut off the result of a query.

    Raises StoreUnavailable.
    """
    try:
        (found,) = writer.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        found = str(error)
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
    if found != "ok":
        what = " ".join(str(found).split())[:_DAMAGE_CHARACTERS]
        raise StoreUnavailable(
            f"the store {path} is damaged ({what}): move the file and its -wal and -shm files to "
            "another folder, and restore a backup (elicit restore)"
        )


def _use_wal(writer: sqlite3.Connection) -> str:
    for _ in range(_WAL_ATTEMPTS):
        try:
            (mode,) = writer.execute("PRAGMA journal_mode = WAL").fetchone()
            return str(mode)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            # Another process is opening the new file too. This statement ignores the busy timeout,
            # so wait with a statement that honors it.
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("ROLLBACK")
    raise StoreUnavailable("too many processes open the new store at the same time: try again")


def _lay_out(writer: sqlite3.Connection, path: Path) -> None:
    (application,) = writer.execute("PRAGMA application_id").fetchone()
    (layout,) = writer.execute("PRAGMA user_version").fetchone()
    (tables,) = writer.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, layout, tables) == (0, 0, 0):
        schema = files("webapp.stores").joinpath("schema.sql").read_text("utf-8")
        # executescript would commit first, and then two processes could both create the tables.
        statement = ""
        for line in schema.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                writer.execute(statement)
                statement = ""
        writer.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        writer.execute(f"PRAGMA user_version = {_LAYOUT_VERSION}")
    elif application != _APPLICATION_ID:
        raise StoreUnavailable(f"{path} is a SQLite file of another program, not an elicit store")
    elif layout > _LAYOUT_VERSION:
        raise StoreUnavailable(
            f"the store {path} has layout {layout}, written by a newer version of elicit; this "
            f"version can read layouts up to {_LAYOUT_VERSION}: update elicit"
        )


# A batch of writes as one SQLite statement, so that no other Python thread runs in between.
#
# Risks: Python releases the interpreter lock for each statement, and a busy thread can then keep it
# for a long time, so a commit of many statements stalls between them. One statement needs no BEGIN,
# and an error in one of its rows undoes all of them.
#
# The statement inserts the rows into a temporary view of this connection. The triggers of the view
# insert new records, and replace a stored record only if it still has the version that was read.

# SQLite allows 32,766 values in a statement since 3.32, and a row has nine.
ROWS_AT_MOST = 1024
# A limit, because the statement cache holds the values until the next commit of the same size.
BYTES_AT_MOST = 4 * 1024 * 1024

Row = tuple[str | int | bytes | None, ...]

_INSERT = "INSERT INTO writes VALUES {}"
NO_ROW: Row = (None,) * 9  # a row without a version, which no trigger handles
# Special values in the version column, for rows that are not records: see batch.sql.
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
    """Return rows that remove the records' keys, so that records can exchange keys."""
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
