"""Rows of a SQLite store, with times as integer microseconds, and the opening of the file.

A file of another program, a newer layout, or a folder that other users can write to is refused
before any use.
"""

import os
import sqlite3
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path

from flows.errors import StoreUnavailable
from webapp.stores.permissions import must_be_private
from webapp.stores.sqlite_file import (
    SIDES,
    OpenedFile,
    identity_of,
    must_be_of_this_machine,
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
_DAMAGE_LETTERS = 200
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
    """Return a connection to the file, for any thread, one at a time. Raises sqlite3.Error."""
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
    """Check every page of the file: a torn page would silently end a list.

    Raises StoreUnavailable.
    """
    try:
        (found,) = writer.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        found = str(error)
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise
    if found != "ok":
        what = " ".join(str(found).split())[:_DAMAGE_LETTERS]
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
