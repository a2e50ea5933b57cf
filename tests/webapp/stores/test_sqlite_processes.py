"""Other processes on one SQLite file: a full disk, a file of another user, older code."""

import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

from tests.support.contenders import contender, read_line
from tests.support.records import record
from webapp.stores.sqlite import SqliteStore


async def test_full_disk_raises_clear_error_and_store_recovers_when_space_is_free(tmp_path):
    path = tmp_path / "store.db"
    async with contender("fill_the_disk", f"sqlite:///{path}") as process:
        report = await read_line(process)
        assert await process.wait() == 0
    assert str(path) in report["message"]
    assert "disk" in report["message"]
    store = await SqliteStore.open(path)
    found = [item.id for item in await store.list("elicitation", limit=1000)]
    assert found == sorted([*report["acknowledged"], "after"])
    await store.aclose()


async def test_read_only_file_raises_clear_error():
    # Use a folder that every user can enter. Pytest's own folder belongs to one user.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        store = await SqliteStore.open(path)
        await store.aclose()
        if os.geteuid() == 0:
            os.chown(path, 65534, -1)
        path.chmod(0o400)
        path.parent.chmod(0o555)
        async with contender("open_as_nobody", f"sqlite:///{path}") as process:
            message = await read_line(process)
            assert await process.wait() == 0
        path.parent.chmod(0o700)
    assert str(path) in message
    assert "readonly" in message


async def test_fence_blocks_direct_sql_writes_of_older_code(tmp_path):
    path = tmp_path / "store.db"
    store = await SqliteStore.open(path)
    await store.write(record("a-1"))
    connection = sqlite3.connect(path, isolation_level=None)
    await store.fence("it's moved away")
    for statement in (
        (
            "INSERT INTO records (owner, kind, id, status, version, sealed) "
            "VALUES ('a', 'elicitation', 'a-2', 'pending', 1, '')"
        ),
        "UPDATE records SET claimed_until = 1",
        "DELETE FROM records",
        "INSERT INTO commits (opening, records) VALUES (1, '[]')",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="it's moved away"):
            connection.execute(statement)
    await store.fence(None)
    assert connection.execute("UPDATE records SET claimed_until = 1").rowcount == 1
    connection.close()
    await store.aclose()
