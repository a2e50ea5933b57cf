"""The nursery of the run, and for each test a shop and a person."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.crash.shop_env import Nursery, Person, Shop, open_nursery, open_person, open_shop

REVISIONS = {"2025-11-25": "legacy", "2026-07-28": "2026-07-28"}


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    with open_nursery() as started:
        yield started


@pytest_asyncio.fixture
async def shop(nursery: Nursery, tmp_path: Path) -> AsyncIterator[Shop]:
    async with open_shop(nursery, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture
async def person() -> AsyncIterator[Person]:
    async with open_person() as somebody:
        yield somebody


@pytest.fixture(params=[*REVISIONS.values()], ids=[*REVISIONS])
def mode(request: pytest.FixtureRequest) -> str:
    """How the client speaks: one revision of the protocol after the other."""
    return str(request.param)
