"""Kill the server with SIGKILL during a call that has an `on_end` callback.

The callback's effect happens once, wherever the server died. The callback records its effect by
idempotency key, as the documentation says. With `--whole` each combination of parameters is tried
20 times, and the run ends with a table of the counts.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.crash.shop_env import LEASE_OVER, Person, ProcessPool, Server, Shop, calling, open_shop
from tests.support.shared_stores import STORES

# Windows after the result was sent: the restarted server has to run the callback by itself.
AFTER_THE_RESULT = (
    *("ending due", "ending claimed", "ending begun", "ending worked"),
    *("ending done", "ending stored"),
)
HOUR = 3600


@pytest_asyncio.fixture(params=["sqlite", "postgres"])
async def shop(
    process_pool: ProcessPool, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Shop]:
    async with (
        STORES[request.param](tmp_path) as address,
        open_shop(process_pool, tmp_path, address=address) as opened,
    ):
        yield opened


@pytest.mark.parametrize("die", AFTER_THE_RESULT)
async def test_callback_runs_once_after_kill(
    shop: Shop, person: Person, mode: str, die: str, rounds: Iterable[int]
) -> None:
    # finding: XA1
    for number in rounds:
        seat = {"seat": str(number)}
        async with (
            shop.start(die=die) as server,
            calling(server, "reserve", mode=mode, arguments=seat) as call,
        ):
            await person.walk(await call.link())
            with suppress(httpx.TransportError):
                await server.died()
        await ended(shop, later=LEASE_OVER)
        assert shop.endings == ["delivered"] * (number + 1)


@pytest.mark.parametrize(
    ("die", "how"),
    [
        *((die, "delivered") for die in ("registered", "link out", "settled")),
        # The client never comes back.
        *(("registered", "abandoned"), ("link out", "expired"), ("settled", "abandoned")),
    ],
)
async def test_killed_call_ends_with_or_without_its_client(
    shop: Shop, person: Person, mode: str, die: str, how: str, *, rounds: Iterable[int]
) -> None:
    # finding: XA1
    for number in rounds:
        seat = {"seat": str(number)}
        async with (
            shop.start(die=die) as server,
            calling(server, "reserve", mode=mode, arguments=seat) as call,
        ):
            if die == "settled":
                with suppress(httpx.TransportError):
                    await person.walk(await call.link())
            await server.died()
        assert len(shop.endings) == number
        if how == "delivered":
            async with (
                shop.start(later=LEASE_OVER) as server,
                calling(server, "reserve", mode=mode, arguments=seat) as call,
            ):
                if die != "settled":
                    await person.walk(await call.link())
                assert await call.result() == "seat for ann"
                await all_ran(shop, server)
        else:
            await ended(shop, later=HOUR)
        assert shop.endings == [how] * (number + 1)


async def ended(shop: Shop, *, later: int) -> None:
    """Let a new process run the callbacks that are due."""
    async with shop.start(later=later) as server:
        await all_ran(shop, server)


async def all_ran(shop: Shop, server: Server) -> None:
    """Wait until no callback is left. The server may have run them before it said "serving"."""
    while {row.status for row in await shop.store.list("ending")} != {"done"}:
        await server.says("wrote ending")
