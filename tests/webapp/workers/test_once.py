"""`once` with identical calls that come to two workers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import PATIENCE_SECONDS, eventually, new_server
from tests.support.users import calling
from tests.support.workers import Workers, in_file, two_workers
from webapp.calls.once import DOING


@pytest.fixture
def store(tmp_path: Path) -> str:
    return in_file(tmp_path)


class Shop:
    """A factory of servers whose tool runs a step that waits until the test sets `may_end`."""

    def __init__(self) -> None:
        self.begun = 0
        self.fails = False
        self.may_end = asyncio.Event()

    def make(self) -> Any:
        server = new_server("mcp")

        async def work(key: str) -> str:
            self.begun += 1
            await self.may_end.wait()
            if self.fails:
                raise RuntimeError("the printer is on fire")
            return f"order {self.begun}"

        @server.tool()
        async def order(what: str) -> str:
            return str(await elicit.once("order", work))

        return server


async def is_claimed(workers: Workers) -> None:
    """Wait until the store shows that a worker has claimed the work."""
    store = workers.envs[0].service.elicitations.owners.store
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await store.list("once", status=DOING):  # noqa: ASYNC110 - seen in the store
            await asyncio.sleep(0)


async def test_step_running_on_another_worker_is_awaited(store):
    shop = Shop()
    async with (
        two_workers(shop.make, store=store) as workers,
        workers.session(0) as one,
        workers.session(1) as other,
    ):
        asked = calling("order", what="tea")
        first = await workers.sent(0, headers=one, message=asked)
        await is_claimed(workers)
        second = await workers.sent(1, headers=other, message=asked)
        assert (await second.head()).status == 200
        shop.may_end.set()
        for talk in (first, second):
            assert "order 1" in await talk.rest()
            talk.close()
    assert shop.begun == 1


async def test_step_failed_on_first_worker_can_run_on_other_worker(store):
    shop = Shop()
    shop.fails = True
    async with (
        two_workers(shop.make, store=store) as workers,
        workers.session(0) as one,
        workers.session(1) as other,
    ):
        asked = calling("order", what="tea")
        first = await workers.sent(0, headers=one, message=asked)
        await is_claimed(workers)
        shop.may_end.set()
        assert "order" in await first.rest()
        first.close()
        shop.fails = False
        # Until the end of the first call is stored, the other worker would return its result again.
        await eventually(lambda: not workers.envs[0].service.running_tools.is_storing_result)
        answer = await workers.answered(1, headers=other, message=asked)
        assert "order 2" in answer.body
