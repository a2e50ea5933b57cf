"""Fixtures of the servers and shops that the tests attack."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.living import living
from tests.support.mcp_server import new_server
from tests.support.oauth_env import OAuthEnv, oauth_env
from tests.support.shop_env import Buying, Shop, buying, open_shop
from tests.support.ways import run_each_way


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    run_each_way(metafunc)


@pytest.fixture
def server(library: str) -> Any:
    return new_server(library)


@pytest.fixture
async def here() -> AsyncIterator[OAuthEnv]:
    async with living(oauth_env()) as here:
        yield here


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with open_shop() as shop:
        yield shop


@pytest.fixture
async def buy(shop: Shop) -> AsyncIterator[Buying]:
    async with living(buying(shop)) as buy:
        yield buy
