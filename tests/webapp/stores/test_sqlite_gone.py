"""A file that is deleted, replaced or moved under an open store: no write is acknowledged."""

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from flows.errors import StoreUnavailable
from tests.support.records import record
from webapp.stores import Record
from webapp.stores.sqlite import SqliteStore
from webapp.stores.sqlite_file import FREE_BYTES_AT_LEAST

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path)
    await store.write(record("a-1"))
    yield store
    await store.aclose()


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    copy.replace(path)


def move(path: Path, to: Path) -> None:
    path.rename(to)


def delete_the_log(path: Path) -> None:
    path.with_name("store.db-wal").unlink()


def delete_all(path: Path) -> None:
    shutil.rmtree(path.parent)


TROUBLES = [delete, replace, delete_the_log, delete_all]


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_calls_on_store_with_deleted_or_replaced_file_are_refused(
    store: SqliteStore, path: Path, trouble: Callable[[Path], None]
) -> None:
    # finding: R6
    trouble(path)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await store.write(record("a-2"))
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await store.due(NOW, hold=timedelta(seconds=1))
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await store.read("a", "elicitation", "a-1")
        with pytest.raises(StoreUnavailable, match=r"deleted or replaced|No such file"):
            await store.check()


async def test_concurrent_writes_to_deleted_file_are_all_refused(
    store: SqliteStore, path: Path
) -> None:
    delete(path)
    writes = [store.write(record(f"b-{number}")) for number in range(5)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert all(isinstance(result, StoreUnavailable) for result in results)


async def test_watch_detects_deleted_file_and_error_is_logged_once(
    store: SqliteStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = store.watch()
    delete(path)
    async with asyncio.timeout(300):  # only a hang reaches the limit
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            await anext(watch)
    with pytest.raises(StoreUnavailable):
        await store.read("a", "elicitation", "a-1")
    logged = [each for each in caplog.records if each.message == "store.gone"]
    assert [each.levelno for each in logged] == [logging.ERROR]
    assert "put the file back" in vars(logged[0])["why"]


async def test_store_works_again_after_moved_file_is_restored(
    store: SqliteStore, path: Path
) -> None:
    aside = path.with_name("aside.db")
    move(path, aside)
    with pytest.raises(StoreUnavailable):
        await store.write(record("a-2"))
    move(aside, path)
    await store.write(record("a-3"))
    assert await store.read("a", "elicitation", "a-3") is not None


async def test_check_does_not_notify_watches(store: SqliteStore, path: Path) -> None:
    other = await SqliteStore.open(path)
    watch = other.watch()
    await store.check()
    await store.write(record("a-2"))
    async with asyncio.timeout(300):
        seen = await anext(watch)
    assert isinstance(seen, Record)
    assert seen.id == "a-2"
    await other.aclose()


async def test_a_full_store_fails_its_check(store: SqliteStore) -> None:
    # finding: R6
    connection = store._writer._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match="full"):
        await _until_full(store)


async def _until_full(store: SqliteStore) -> None:
    for _ in range(100_000):
        await store.check()


async def test_read_only_store_fails_its_check(store: SqliteStore) -> None:
    store._writer._connection.execute("PRAGMA query_only = ON")
    with pytest.raises(StoreUnavailable, match="readonly"):
        await store.check()


async def test_store_locked_by_another_program_fails_its_check(
    store: SqliteStore, path: Path
) -> None:
    # finding: R6
    store._writer._connection.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        await store.check()
    other.execute("ROLLBACK")
    other.close()
    await store.check()


async def test_check_fails_if_free_disk_space_is_below_minimum(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(FREE_BYTES_AT_LEAST - 1))
    with pytest.raises(StoreUnavailable, match="31 MiB left, and 32 are needed"):
        await store.check()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(FREE_BYTES_AT_LEAST))
    await store.check()
