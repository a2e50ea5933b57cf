"""The fence of a SQLite file, and the loading of copies into a fenced file.

Risks: a process that has the file open, perhaps of an older version, does not know about the fence
and continues to write. The fence is therefore made of triggers in the file itself, which refuse
every change by any process. The triggers allow changes only in the transaction that loads
copies.
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

    Raises sqlite3.IntegrityError if another record holds a key.
    """
    is_fenced = fence_of(connection) is not None
    if is_fenced:
        connection.execute("UPDATE fence SET is_open = 1")
    connection.executemany(_MAKE_ROOM, [(each.owner, each.kind, each.id) for each in records])
    connection.executemany(_LOAD, rows_of(records))
    if is_fenced:
        connection.execute("UPDATE fence SET is_open = 0")
