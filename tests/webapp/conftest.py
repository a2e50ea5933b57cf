"""Fixtures: two processes on a memory store with a manual clock, and servers that sell."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.acme import DECLARED, Acme, declared
from tests.support.cli import log_as_before
from tests.support.clock import Clock
from tests.support.payment_env import PaymentEnv, selling
from tests.support.service_env import process
from tests.support.shop_env import Shop, open_shop
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore


@pytest.fixture(autouse=True)
def log_of_this_process() -> Iterator[None]:
    """Restore the loggers: a command that runs in the test's process redirects them."""
    with log_as_before():
        yield


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def here(store: MemoryStore, clock: Clock) -> AsyncIterator[Service]:
    async with process(store, clock) as service:
        yield service


@pytest.fixture
async def there(store: MemoryStore, clock: Clock, here: Service) -> AsyncIterator[Service]:
    async with process(store.sibling(), clock) as service:
        yield service


@pytest.fixture
def acme() -> Acme:
    return Acme()


@pytest.fixture
async def payment_env(acme: Acme, tmp_path: Path) -> AsyncIterator[PaymentEnv]:
    async with selling(declared(DECLARED, folder=tmp_path), acme) as payment_env:
        yield payment_env


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with open_shop() as shop:
        yield shop
