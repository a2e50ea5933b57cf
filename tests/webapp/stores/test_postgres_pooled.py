"""PostgreSQL through PgBouncer in transaction mode, where a session is another's a moment later."""

import asyncio

import pytest

from flows.errors import StoreUnavailable
from tests.support.pgbouncer import pooled
from tests.support.postgres_server import fresh_database, shared_server
from tests.webapp.stores.test_contract import StoreContract
from webapp.stores import open_store


@pytest.fixture
async def direct():
    async with fresh_database() as url:
        yield url


@pytest.fixture
async def url(direct):
    async with pooled(await asyncio.to_thread(shared_server), direct) as url:
        yield url


class TestPooledPostgres(StoreContract):
    @pytest.fixture
    async def pair(self, url, direct):
        store, other = [await open_store(url, listen=direct) for _ in range(2)]
        yield store, other
        await store.aclose()
        await other.aclose()


async def test_a_pooler_is_refused_until_an_address_to_listen_at_is_set(url):
    with pytest.raises(StoreUnavailable) as refused:
        await open_store(url)
    assert "set ELICIT_STORE_LISTEN" in refused.value.why
    with pytest.raises(StoreUnavailable) as refused:
        await open_store(url, listen=url)
    assert refused.value.why.startswith("ELICIT_STORE_LISTEN leads to a pooler")


async def test_an_address_to_listen_at_is_for_postgres_alone(tmp_path):
    with pytest.raises(ValueError, match="ELICIT_STORE_LISTEN"):
        await open_store(f"sqlite:///{tmp_path}/store.db", listen="postgresql://127.0.0.1/x")
