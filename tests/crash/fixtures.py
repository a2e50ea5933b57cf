"""Fixtures: a process pool for the run, and an environment and a customer for each test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.crash.account_env import AccountEnv, Customer, open_customer, open_market
from tests.crash.shop_env import ProcessPool, open_process_pool


@pytest.fixture(scope="session")
def account_process_pool() -> Iterator[ProcessPool]:
    with open_process_pool("tests.crash.account_server") as started:
        yield started


@pytest_asyncio.fixture
async def account_env(
    account_process_pool: ProcessPool, tmp_path: Path
) -> AsyncIterator[AccountEnv]:
    async with open_market(account_process_pool, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture
async def customer() -> AsyncIterator[Customer]:
    async with open_customer() as somebody:
        yield somebody
