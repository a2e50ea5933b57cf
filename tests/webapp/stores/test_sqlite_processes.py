"""Several processes on one SQLite file: a race, a kill, a full disk, a file that is not ours."""

import json
import os
import sqlite3
import tempfile
from pathlib import Path

import pytest

from tests.support.contender import record
from tests.support.contenders import contender
from webapp.stores.sqlite import SqliteStore


async def heard(process):
    return json.loads(await process.stdout.readline())


async def told(process):
    process.stdin.write(b"go\n")
    await process.stdin.drain()


async def test_two_processes_race_and_each_record_has_one_winner_that_both_know(tmp_path):
    path = tmp_path / "store.db"
    store = await SqliteStore.open(path)
    names = [f"a-{number:03}" for number in range(200)]
    await store.write(*map(record, names))
    async with contender("contend", path, "one") as one, contender("contend", path, "two") as two:
        for process in (one, two):
            assert await heard(process) == "ready"
        for process in (one, two):
            await told(process)
        first, second = await heard(one), await heard(two)
        for process in (one, two):
            await told(process)
            assert await process.wait() == 0
    assert sorted(first["won"] + second["won"]) == names
    assert first["lost"] == [[name, "two"] for name, _ in first["lost"]]
    assert sorted(name for name, _ in first["lost"]) == sorted(second["won"])
    assert sorted(name for name, _ in second["lost"]) == sorted(first["won"])
    found = {item.id: item for item in await store.list("elicitation", limit=1000)}
    assert {item.version for item in found.values()} == {2}
    assert sorted(name for name, item in found.items() if item.status == "one") == sorted(
        first["won"]
    )
    await store.aclose()


async def test_a_killed_writer_has_lost_nothing_that_it_acknowledged_and_halved_nothing(tmp_path):
    path = tmp_path / "store.db"
    async with contender("write_until_killed", path) as process:
        assert await heard(process) == "ready"
        acknowledged = [await heard(process) for _ in range(400)]
        process.kill()
        output, _ = await process.communicate()
    acknowledged += [json.loads(line) for line in output.splitlines(keepends=True) if b"\n" in line]
    store = await SqliteStore.open(path)
    found = {item.id for item in await store.list("elicitation", limit=1_000_000)}
    await store.aclose()
    assert found >= {name + twin for name in acknowledged for twin in ("", "-twin")}
    assert {f"{name}-twin" for name in found if not name.endswith("-twin")} <= found
    assert {name.removesuffix("-twin") for name in found} <= found


async def test_a_full_disk_is_a_clear_error_and_the_store_goes_on_when_there_is_room(tmp_path):
    path = tmp_path / "store.db"
    async with contender("fill_the_disk", path) as process:
        report = await heard(process)
        assert await process.wait() == 0
    assert str(path) in report["message"]
    assert "disk" in report["message"]
    store = await SqliteStore.open(path)
    found = [item.id for item in await store.list("elicitation", limit=1000)]
    assert found == sorted([*report["acknowledged"], "after"])
    await store.aclose()


async def test_a_file_that_may_only_be_read_is_a_clear_error():
    # A folder that every user may enter: pytest's own belongs to one alone.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        store = await SqliteStore.open(path)
        await store.aclose()
        if os.geteuid() == 0:
            os.chown(path, 65534, -1)
        path.chmod(0o400)
        path.parent.chmod(0o555)
        async with contender("open_as_nobody", path) as process:
            message = await heard(process)
            assert await process.wait() == 0
        path.parent.chmod(0o700)
    assert str(path) in message
    assert "readonly" in message


async def test_a_fence_holds_another_process_that_writes_and_acknowledges_nothing_after_it(
    tmp_path,
):
    path = tmp_path / "store.db"
    store = await SqliteStore.open(path)
    async with contender("write_until_refused", path) as process:
        assert await heard(process) == "ready"
        for _ in range(100):
            await heard(process)
        await store.fence("moved away")
        there = {item.id for item in await store.list("elicitation", limit=1_000_000)}
        output, _ = await process.communicate()
    *after, refusal = map(json.loads, output.splitlines())
    assert refusal == {"refused": "moved away"}
    assert {name + twin for name in after for twin in ("", "-twin")} <= there
    assert len(await store.list("elicitation", limit=1_000_000)) == len(there)
    await store.aclose()


async def test_a_fence_holds_code_that_knows_of_none(tmp_path):
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
