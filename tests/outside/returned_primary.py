"""The old primary, first in the store's address, returns after its standby was promoted."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.outside.failing_over import comes, failing_over
from tests.support.standby import LOSSES

FINDING = "XB2"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for _ in range(times):
        for how in LOSSES if times > 1 else ("silent",):
            with tempfile.TemporaryDirectory() as home:
                async for case, is_right in _once(Path(home), how):
                    yield f"{how}: {case}", is_right


async def _once(home: Path, how: str) -> AsyncIterator[tuple[str, bool]]:
    async with failing_over(home) as (pair, instances):
        await instances.order("tea")
        await pair.has_everything()
        await pair.lose_primary(how)
        await pair.promote()
        await comes(instances.are_ready)
        await pair.bring_primary_back(how)

        async def is_noticed() -> bool:
            return all(instances.which_logged("store.older_server"))

        yield "both instances say that it is back", await comes(is_noticed)
        before = await pair.written_on(pair.primary)
        for number in range(3):
            await instances.order(f"cake {number}")
        is_old = await pair.written_on(pair.primary) == before
        yield "nothing is written to it", is_old
        yield "nobody is connected to it", await pair.connections_to(pair.primary) == 0
        reported = [each for each in await instances.doctor() if each["subject"] == "servers"]
        says = [each["says"] for each in reported if pair.cables[0].host in each["says"]]
        yield "the doctor says that it was replaced", "on timeline 1" in "".join(says)
