"""Two processes on one memory store, and the hand clock that both read."""

from collections.abc import AsyncIterator

import pytest

from tests.clock import Clock
from tests.service.world import process
from webapp.service import Service
from webapp.stores.memory import MemoryStore


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
