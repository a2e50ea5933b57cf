"""A store loses its latest writes in a failover, or because an older copy replaces its file."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.outside.failing_over import Instances, comes, failing_over, two_instances

FINDING = "XB4"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    for _ in range(times):
        with tempfile.TemporaryDirectory() as home:
            async for case, is_right in _by_failover(Path(home)):
                yield f"postgres, {case}", is_right
        with tempfile.TemporaryDirectory() as home:
            async for case, is_right in _by_copy(Path(home)):
                yield f"sqlite, {case}", is_right


async def _by_failover(home: Path) -> AsyncIterator[tuple[str, bool]]:
    async with failing_over(home) as (pair, instances):
        await instances.order("tea")
        await pair.has_everything()
        pair.stream.freeze()
        before = await instances.order("cake")
        await pair.lose_primary("killed")
        await pair.promote()
        await comes(instances.are_ready)
        async for each in _cases_of(instances, before):
            yield each


async def _by_copy(home: Path) -> AsyncIterator[tuple[str, bool]]:
    store, copy = home / "store.db", home / "copy.db"
    async with two_instances(f"sqlite:///{store}", home) as instances:
        await instances.order("tea")

        async def is_marked() -> bool:
            return (home / "marks").exists()

        await comes(is_marked)
    shutil.copy(store, copy)
    async with two_instances(f"sqlite:///{store}", home) as instances:
        before = await instances.order("cake")
        marks = _marks(home)

        async def is_marked_again() -> bool:
            return _marks(home) != marks

        await comes(is_marked_again)
    shutil.move(copy, store)  # both processes have ended and left no write-ahead log
    async with two_instances(f"sqlite:///{store}", home) as instances:
        async for each in _cases_of(instances, before):
            yield each


def _marks(home: Path) -> list[bytes]:
    return [each.read_bytes() for each in sorted(home.glob("marks/*"))]


async def _cases_of(instances: Instances, before: list[str]) -> AsyncIterator[tuple[str, bool]]:
    async def is_noticed() -> bool:
        return any(instances.which_logged("store.stepped_back"))

    yield "the log says that something is lost", await comes(is_noticed)
    reported = {each["subject"]: each["standing"] for each in await instances.doctor()}
    yield "the doctor says so", reported.get("step back") == "note"
    instances.till.write_text("")
    yield "the same calls have the keys that they had", await instances.order("cake") == before
