"""Tests that try each row of this folder once. Only `make soak` runs the long rows."""

import pytest

from tests.outside.rows import ROWS, Row

SHORT = [row for row in ROWS if not getattr(row, "IS_LONG", False)]


@pytest.mark.parametrize("row", SHORT, ids=[row.FINDING for row in SHORT])
async def test_reported_problem_does_not_occur_again(row: Row) -> None:
    tried = [each async for each in row.reproduce(1)]
    assert tried
    assert [case for case, is_right in tried if not is_right] == []
