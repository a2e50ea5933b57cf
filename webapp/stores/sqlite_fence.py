"""The fence around a SQLite file, and the copies that are put into it past that.

What could go wrong: a process that has the file open, perhaps of an older version, does not know of
the fence and writes on. So it is triggers of the file itself, which refuse every change, whoever
makes it; they stand aside within the one transaction that loads copies.
"""

import sqlite3
from collections.abc import Sequence

from webapp.stores.sqlite_batch import rows_of
from webapp.stores.store import Record

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
_MAKE_ROOM = "DELETE FROM records WHERE owner = ? AND kind = ? AND id = ?"


def fence_of(connection: sqlite3.Connection) -> str | None:
    """Why nobody may write, if that is so."""
    is_there = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'fence'"
    if connection.execute(is_there).fetchone() is None:
        return None
    (why,) = connection.execute("SELECT why FROM fence").fetchone()
    return str(why)


def put_fence(connection: sqlite3.Connection, why: str | None) -> None:
    """Put it up in place of the one that stands, or take it away. Within a transaction."""
    for change, table in _CHANGES:
        connection.execute(f"DROP TRIGGER IF EXISTS fence_{change}_{table}")
    connection.execute("DROP TABLE IF EXISTS fence")
    if why is None:
        return
    connection.execute(_FENCE)
    connection.execute("INSERT INTO fence (why) VALUES (?)", (why,))
    quoted = why.replace("'", "''")  # a trigger takes no parameters
    for change, table in _CHANGES:
        connection.execute(_TRIGGER.format(change=change, table=table, why=quoted))


def load_copies(connection: sqlite3.Connection, records: Sequence[Record]) -> None:
    """Within a transaction. Raises IntegrityError if another record holds a key."""
    is_fenced = fence_of(connection) is not None
    if is_fenced:
        connection.execute("UPDATE fence SET is_open = 1")
    connection.executemany(_MAKE_ROOM, [(each.owner, each.kind, each.id) for each in records])
    connection.executemany(_LOAD, rows_of(records))
    if is_fenced:
        connection.execute("UPDATE fence SET is_open = 0")
