"""Several processes on one store: a race, a kill, a fence."""

import json
from collections.abc import AsyncIterator

import pytest

from tests.support.contenders import contender, let_start, read_line
from tests.support.postgres_server import fresh_database
from tests.support.records import record
from tests.support.valkey_server import fresh_cluster, fresh_valkey
from webapp.stores import open_store


@pytest.fixture(params=["sqlite", "postgres", "valkey", "valkey cluster"])
async def address(request, tmp_path) -> AsyncIterator[str]:
    match request.param:
        case "postgres":
            async with fresh_database() as url:
                yield url
        case "valkey":
            yield fresh_valkey().url
        case "valkey cluster":
            yield fresh_cluster()[0].url
        case _:
            yield f"sqlite:///{tmp_path / 'store.db'}"


async def test_concurrent_writes_of_two_processes_have_a_single_winner_per_record(address):
    store = await open_store(address)
    names = [f"a-{number:03}" for number in range(200)]
    await store.write(*map(record, names))
    async with (
        contender("contend", address, "one") as one,
        contender("contend", address, "two") as two,
    ):
        for process in (one, two):
            assert await read_line(process) == "ready"
        for process in (one, two):
            await let_start(process)
        first, second = await read_line(one), await read_line(two)
        for process in (one, two):
            await let_start(process)
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


async def test_killed_writer_loses_no_acknowledged_write_and_leaves_no_partial_write(address):
    async with contender("write_until_killed", address) as process:
        assert await read_line(process) == "ready"
        acknowledged = [await read_line(process) for _ in range(400)]
        process.kill()
        output, _ = await process.communicate()
    acknowledged += [json.loads(line) for line in output.splitlines(keepends=True) if b"\n" in line]
    store = await open_store(address)
    found = {item.id for item in await store.list("elicitation", limit=1_000_000)}
    await store.aclose()
    assert found >= {name + twin for name in acknowledged for twin in ("", "-twin")}
    assert {f"{name}-twin" for name in found if not name.endswith("-twin")} <= found
    assert {name.removesuffix("-twin") for name in found} <= found


async def test_fence_stops_writes_of_another_process(address):
    store = await open_store(address)
    async with contender("write_until_refused", address) as process:
        assert await read_line(process) == "ready"
        for _ in range(100):
            await read_line(process)
        await store.fence("moved away")
        there = {item.id for item in await store.list("elicitation", limit=1_000_000)}
        output, _ = await process.communicate()
    *after, refusal = map(json.loads, output.splitlines())
    assert refusal == {"refused": "moved away"}
    assert {name + twin for name in after for twin in ("", "-twin")} <= there
    assert len(await store.list("elicitation", limit=1_000_000)) == len(there)
    await store.aclose()
