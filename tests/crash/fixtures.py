"""Fixtures: one nursery of stands for the run, and for each test a market and a customer."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.crash.account_env import Customer, Market, open_customer, open_market
from tests.crash.shop_env import Nursery, open_nursery


@pytest.fixture(scope="session")
def stand_nursery() -> Iterator[Nursery]:
    with open_nursery("tests.crash.account_server") as started:
        yield started


@pytest_asyncio.fixture
async def market(stand_nursery: Nursery, tmp_path: Path) -> AsyncIterator[Market]:
    async with open_market(stand_nursery, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture
async def customer() -> AsyncIterator[Customer]:
    async with open_customer() as somebody:
        yield somebody
