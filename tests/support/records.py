"""Store records for tests."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from webapp.stores import Record, Store
from webapp.stores.sqlite import MemoryStore
from webapp.stores.sqlite_rows import SELECT_RECORDS, record_of
from webapp.stores.store import plain_record

NOW = datetime(2026, 3, 1, 12, 0, 0, 123_457, tzinfo=UTC)
HOLD = timedelta(seconds=30)


def record(
    id="a-1", *, owner="a", kind="elicitation", status="pending", sealed=b"sealed", **fields: Any
) -> Record:
    return plain_record(owner, kind, id, status=status, sealed=sealed, **fields)


def held_in(store: MemoryStore) -> list[Record]:
    """Return the records of a memory store, oldest first, without awaiting anything."""
    return [record_of(row) for row in store._reader.execute(SELECT_RECORDS + "ORDER BY number")]


async def scanned(store: Store) -> list[Record]:
    return [each async for page in store.scan() for each in page]


async def go_back(store: Store, copies: Sequence[Record], *, newer: Sequence[str] = ()) -> None:
    """Reset the store to these copies, like a standby that lacks the last seconds.

    Records of the owners in `newer` that are not among the copies are erased.
    """
    for owner in newer:
        while await store.erase(owner=owner):
            pass
    await copy_into(store, copies)


async def copy_into(store: Store, copies: Sequence[Record]) -> None:
    """Store these copies, whatever their versions are."""
    await store.fence("going back")
    await store.load(*copies, behind="going back")
    await store.fence(None)
