"""Each row of this folder, tried once from outside."""

import pytest

from tests.outside.rows import ROWS, Row


@pytest.mark.parametrize("row", ROWS, ids=[row.FINDING for row in ROWS])
async def test_what_was_seen_from_outside_is_not_seen_again(row: Row) -> None:
    tried = [each async for each in row.reproduce(1)]
    assert tried
    assert [case for case, is_right in tried if not is_right] == []
