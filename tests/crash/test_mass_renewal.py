"""Many accounts expire in the same minute, and processes are killed while they refresh them.

Each account is refreshed once for each expiry. An account is lost only if a process was killed
between the provider's reply and the write of the new tokens: docs/how-to/providers.md.
"""

import logging
from pathlib import Path

import pytest

from tests.crash.mass_renewal import Storm, open_storm
from tests.crash.shop_env import ProcessPool
from tests.support.postgres_server import fresh_database

pytest_plugins = ("tests.crash.fixtures",)

EXPIRIES = 2


async def test_account_is_refreshed_once_for_each_expiry_despite_kills(
    account_process_pool: ProcessPool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    accounts, kills = (1000, 12) if request.config.getoption("--whole") else (40, 2)
    async with (
        fresh_database() as address,
        open_storm(
            account_process_pool, tmp_path, address=address, accounts=accounts, seed=1
        ) as storm,
    ):
        for number in range(1, EXPIRIES + 1):
            await check_one_expiry(storm, number=number, kills=kills)


async def check_one_expiry(storm: Storm, *, number: int, kills: int) -> None:
    hub = storm.hub
    revoked, latest = set(hub.revoked), hub.latest.copy()
    figures = await storm.expire(number=number, kills=kills)
    logging.getLogger(__name__).warning("Expiry %d of %s", number, figures)
    assert figures.kills == kills
    assert hub.revoked - revoked == figures.lost
    assert figures.lost <= figures.cut | figures.unanswered
    for user in storm.living:
        # A lost account is requested a second time, because nobody has the provider's reply.
        assert hub.asked[user, latest[user]] == (2 if user in figures.lost else 1)
        assert hub.latest[user] == latest[user] + 1
        if user not in figures.lost:
            assert figures.tokens[user] == {hub.pair(user)["access_token"]}
