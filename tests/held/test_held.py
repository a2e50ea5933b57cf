"""Each cell of the table of who holds a payment and who takes it away."""

import pytest

from tests.held.holds import HOLDS, world
from tests.held.table import FILE, PENDING, TABLE, cells, with_table
from tests.held.takes import TAKES

# finding: XD1, XD2, XV1


@pytest.mark.parametrize(("hold", "take"), [*cells()])
async def test_payment_in_hand_comes_to_what_the_table_says(hold: str, take: str) -> None:
    async with world() as at, HOLDS[hold](at) as held:
        door = await TAKES[take](held)
        if take == "a cancel":
            end = "work done" if at.made else "stopped"
        else:
            end = await held.finish()
        payment = await at.payment()
        assert f"{door}; {end}, {payment.status.value}" == TABLE[hold][take]


def test_document_has_the_table() -> None:
    text = FILE.read_text("utf-8")
    assert text == with_table(text), "python -m tests.held writes it"


def test_table_has_a_cell_for_each_pair() -> None:
    assert set(HOLDS) <= set(TABLE)
    for hold, row in TABLE.items():
        assert set(row) == set(TAKES), hold
        assert hold in HOLDS or all(cell.startswith(PENDING) for cell in row.values()), hold
