"""A few random kills; with --whole a hundred, under fifty callers."""

from pathlib import Path

import pytest

from tests.crash.kills import Database, NoDatabase, survives
from tests.crash.shop_env import ProcessPool

pytest_plugins = ("tests.crash.fixtures",)


@pytest.fixture
def database() -> Database:
    return NoDatabase()


async def test_nothing_is_lost_or_doubled_whenever_it_is_killed(
    account_process_pool: ProcessPool,
    tmp_path: Path,
    database: Database,
    request: pytest.FixtureRequest,
) -> None:
    callers, kills = (50, 100) if request.config.getoption("--whole") else (6, 3)
    orders = await survives(
        account_process_pool,
        tmp_path,
        database=database,
        callers=callers,
        kills=kills,
        modes=("legacy", "2026-07-28"),
        seed=1,
    )
    assert orders >= callers
