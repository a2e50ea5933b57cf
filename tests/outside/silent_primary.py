"""A primary that dies, hangs or leaves the network: both processes use the promoted standby."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.outside.failing_over import comes, failing_over
from tests.support.standby import LOSSES

FINDING = "XB1"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for _ in range(times):
        for how in LOSSES if times > 1 else ("silent",):
            with tempfile.TemporaryDirectory() as home:
                async with failing_over(Path(home)) as (pair, instances):
                    await instances.order("tea")
                    await pair.has_everything()
                    await pair.lose_primary(how)
                    await pair.promote()
                    is_ready = await comes(instances.are_ready)
                    yield f"{how}: both are served by the standby", is_ready
                    if is_ready:
                        ordered = len(await instances.order("cake")) == 2
                        yield f"{how}: and calls come to their end", ordered
                        says = [each["says"] for each in await instances.doctor()]
                        used = f"{pair.cables[1].host}: it accepts writes, on timeline 2"
                        yield f"{how}: the doctor reaches it too", used in says
