"""Random kills of the server on each store: a few, or with `--whole` 100 kills and 50 callers.

In the short run, the clock moves past the previous process's leases at each restart. In the run
with `--whole` it does not, so the callers wait for those leases.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.crash.kills import Database, KilledPostgres, KilledValkey, NoDatabase, survives
from tests.crash.shop_env import LEASE_OVER, ProcessPool
from tests.support.postgres_server import PostgresServer
from tests.support.valkey_server import own_valkey

pytest_plugins = ("tests.crash.fixtures",)


@pytest_asyncio.fixture(params=["sqlite", "postgres", "valkey"])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """Provide a database for one test."""
    if request.param == "postgres":
        server = PostgresServer()
        server.start()
        async with server.database() as url:
            yield KilledPostgres(server, url)
        server.remove()
    elif request.param == "valkey":
        with own_valkey() as valkey:
            yield KilledValkey(valkey)
    else:
        yield NoDatabase()


async def test_random_kills_lose_or_duplicate_nothing(
    account_process_pool: ProcessPool,
    tmp_path: Path,
    database: Database,
    request: pytest.FixtureRequest,
) -> None:
    is_whole = request.config.getoption("--whole")
    callers, kills = (50, 100) if is_whole else (6, 3)
    orders = await survives(
        account_process_pool,
        tmp_path,
        database=database,
        callers=callers,
        kills=kills,
        modes=("legacy", "2026-07-28"),
        apart_seconds=0 if is_whole else LEASE_OVER,
        seed=1,
    )
    assert orders >= callers
