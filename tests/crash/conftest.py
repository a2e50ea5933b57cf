"""The process pool of the run, and a shop and a person for each test."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conftest import ROUNDS
from tests.crash.shop_env import (
    Person,
    ProcessPool,
    Shop,
    open_person,
    open_process_pool,
    open_shop,
)

REVISIONS = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}


@pytest.fixture(scope="session")
def process_pool() -> Iterator[ProcessPool]:
    with open_process_pool() as started:
        yield started


@pytest_asyncio.fixture
async def shop(process_pool: ProcessPool, tmp_path: Path) -> AsyncIterator[Shop]:
    async with open_shop(process_pool, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture
async def person() -> AsyncIterator[Person]:
    async with open_person() as somebody:
        yield somebody


@pytest.fixture(params=[*REVISIONS.values()], ids=[*REVISIONS])
def mode(request: pytest.FixtureRequest) -> str:
    """Return the client's mode: each revision of the protocol in turn."""
    return str(request.param)


@pytest.fixture
def rounds(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Iterable[int]:
    """Return the numbers of a test's rounds. The run prints how many of them passed."""
    config = request.config
    total = config.getoption("--rounds") or (20 if config.getoption("--whole") else 1)

    def counted() -> Iterator[int]:
        for number in range(total):
            record_property(ROUNDS, [number, total])
            yield number
        record_property(ROUNDS, [total, total])

    return counted()
