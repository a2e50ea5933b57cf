"""A few random kills for every change; `make soak` has the hundred."""

from pathlib import Path

import pytest

from tests.crash.kills import Database, NoDatabase, survives
from tests.crash.shop_env import ProcessPool

pytest_plugins = ("tests.crash.fixtures",)


@pytest.fixture
def database() -> Database:
    return NoDatabase()


async def test_nothing_is_lost_or_doubled_whenever_it_is_killed(
    account_process_pool: ProcessPool, tmp_path: Path, database: Database
) -> None:
    orders = await survives(
        account_process_pool,
        tmp_path,
        database=database,
        callers=6,
        kills=3,
        modes=("legacy", "2026-07-28"),
        seed=1,
    )
    assert orders >= 6  # noqa: PLR2004 - one of each caller
