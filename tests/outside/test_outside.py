"""Tests that try each row of this folder once. Only `make soak` runs the long rows."""

from collections.abc import Iterator

import pytest

from tests.crash.shop_env import open_process_pool
from tests.outside.__main__ import main
from tests.outside.rows import ROWS, Row

SHORT = [row for row in ROWS if not getattr(row, "IS_LONG", False)]


@pytest.fixture(scope="module", autouse=True)
def _process_pool() -> Iterator[None]:
    """Open the process pool that many rows use, so that it starts once."""
    with open_process_pool("tests.crash.account_server"):
        yield


@pytest.mark.parametrize("row", SHORT, ids=[row.FINDING for row in SHORT])
async def test_reported_problem_does_not_occur_again(row: Row) -> None:
    tried = [each async for each in row.reproduce(1)]
    assert tried
    assert [case for case, is_right in tried if not is_right] == []


def test_unknown_id_next_to_a_known_one_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([ROWS[0].FINDING, "XX99"])
    assert refused.value.code == 2
    assert "No row has the id XX99." in capsys.readouterr().err
