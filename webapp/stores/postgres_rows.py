"""Rows of PostgreSQL, and the checks for texts that PostgreSQL cannot store.

Risks: one record that the server refuses would fail every write in the same statement. Such a
record is therefore refused before it is sent.
"""

from collections.abc import Sequence
from typing import Any

from webapp.stores.store import Record

# The limit for a row in an index is 2,704 bytes.
_NAME_BYTES_AT_MOST = 2_500


def record_of(row: Sequence[Any]) -> Record:
    """Return the record from the first columns of a row."""
    return Record(
        owner=row[0],
        kind=row[1],
        id=row[2],
        status=row[3],
        key=row[4],
        due_at=row[5],
        erase_at=row[6],
        version=row[7],
        sealed=row[8],
    )


def columns_of(records: Sequence[Record]) -> tuple[list[Any], ...]:
    """Return the records as columns, in the order of `record_of`."""
    return (
        [record.owner for record in records],
        [record.kind for record in records],
        [record.id for record in records],
        [record.status for record in records],
        [record.key for record in records],
        [record.due_at for record in records],
        [record.erase_at for record in records],
        [record.version for record in records],
        [record.sealed for record in records],
    )


def is_text(*texts: str) -> bool:
    """Return True if PostgreSQL can store the texts. If not, no stored record has them."""
    for text in texts:
        if "\0" in text:
            return False
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            return False
    return True


def check_texts(records: Sequence[Record]) -> None:
    """Raise ValueError for records that the server would refuse."""
    for record in records:
        key = record.key or ""
        if not is_text(record.owner, record.kind, record.id, record.status, key):
            raise ValueError("PostgreSQL can't hold a zero byte or half a character in a text")
        name = f"{record.owner}{record.kind}{record.id}"
        if max(len(name), len(key)) > _NAME_BYTES_AT_MOST // 8:
            held = f"{record.owner}{record.kind}{max(record.id, key, key=len)}"
            if len(held.encode()) > _NAME_BYTES_AT_MOST:
                raise ValueError(f"a name or key is over {_NAME_BYTES_AT_MOST} bytes long")
