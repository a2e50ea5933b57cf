"""A kill -9 of a program over the HTTP API, and of its server, at each step of its run.

The program starts again, or continues by itself if its server died. Nobody is asked twice, the work
has one idempotency key, and the run ends once.
"""

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest
import pytest_asyncio

from tests.crash.server import Orders
from tests.crash.shop_env import (
    LEASE_OVER,
    ProcessPool,
    Server,
    Shop,
    no_certificates,
)
from tests.support.mcp_server import Person
from webapp.connecting import connect
from webapp.identity.api_keys import KeyScope


@pytest_asyncio.fixture
async def ann() -> AsyncIterator[Person]:
    async with httpx.AsyncClient(verify=no_certificates(), cookies={"user": "ann"}) as browser:
        yield Person(browser)


@pytest_asyncio.fixture
async def key(shop: Shop) -> str:
    async with connect(shop.settings) as service:
        text, _ = await service.identity.api_keys.new(
            program="shop",
            scopes=[KeyScope.ASK],
            expires_at=service.clock() + timedelta(days=1),
        )
    return text


@pytest.fixture
def start(process_pool: ProcessPool, shop: Shop, key: str) -> "Start":
    return Start(process_pool, shop, key)


class Start:
    """Starts the program. Every start runs the same program and the same run."""

    def __init__(self, pool: ProcessPool, shop: Shop, key: str) -> None:
        self._pool = pool
        self._shop = shop
        self._key = key

    def __call__(self, *, die: str | None = None) -> Server:
        port, folder = self._shop.port, str(self._shop.folder)
        return self._pool.start(
            Orders(port=port, public_port=port, folder=folder, die=die, key=self._key)
        )


async def link_of(program: Server) -> str:
    return (await program.says("link ")).removeprefix("link ")


async def all_is_done_once(shop: Shop, program: Server, *, is_reported: bool = True) -> None:
    done = (await program.says("done ")).removeprefix("done ")
    assert [status for _, status in await shop.elicitations()] == ["accepted"]
    assert len(set(shop.work)) == 1
    assert done == (shop.work[0] if is_reported else "already")
    runs = [run.status for run in await shop.store.list("run")]
    assert runs == ["delivered"]


@pytest.mark.parametrize("die", ["asked", "shown"])
async def test_program_killed_before_answer_finds_its_question(
    shop: Shop, ann: Person, start: Start, die: str
) -> None:
    async with shop.start():
        async with start(die=die) as program:
            await program.died()
        async with start() as program:
            await ann.press(await link_of(program))
            await all_is_done_once(shop, program)


@pytest.mark.parametrize("die", ["answered", "claimed", "working", "worked", "kept", "booked"])
async def test_program_killed_after_answer_does_not_ask_again(
    shop: Shop, ann: Person, start: Start, die: str
) -> None:
    async with shop.start() as server:
        async with start(die=die) as program:
            await ann.press(await link_of(program))
            await program.died()
        await server.set_clock(LEASE_OVER)
        async with start() as program:
            await all_is_done_once(shop, program)
    assert len(shop.work) == (2 if die == "worked" else 1)


@pytest.mark.parametrize("die", ["over", "ended"])
async def test_program_killed_after_end_repeats_nothing(
    shop: Shop, ann: Person, start: Start, die: str
) -> None:
    async with shop.start():
        async with start(die=die) as program:
            await ann.press(await link_of(program))
            await program.died()
        async with start() as program:
            await all_is_done_once(shop, program, is_reported=False)
    assert len(shop.work) == 1


async def test_program_continues_when_server_restarts_with_its_question(
    shop: Shop, ann: Person, start: Start
) -> None:
    async with shop.start(die="stored") as server, start() as program:
        await server.died()
        async with shop.start():
            await ann.press(await link_of(program))
            await all_is_done_once(shop, program)


@pytest.mark.parametrize("die", ["settled", "work claimed", "work kept", "delivered"])
async def test_program_continues_when_server_restarts_with_stored_answer(
    shop: Shop, ann: Person, start: Start, die: str
) -> None:
    async with shop.start(die=die) as server, start() as program:
        link = await link_of(program)
        try:
            await ann.press(link)
        except httpx.TransportError:
            assert die == "settled"
        await server.died()
        async with shop.start():
            await all_is_done_once(shop, program)
    assert len(shop.work) == 1
