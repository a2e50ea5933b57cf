"""The table of changes: what a provider's statement changes in each state of the ledger."""

import pytest

from flows.payments.events import CHANGES, Change, LedgerState, Statement

TABLE = """
           open      earlier  ended    accepted  no_payment  recorded  unknown
open       none      none     none     none      unrelated   update    unrelated
pending    expect    none     poll     poll      unrelated   update    unrelated
paid       accept    accept   accept   second    unrelated   update    list
returned   fail      none     give_up  give_up   unrelated   update    unrelated
failed     fail      none     give_up  give_up   unrelated   update    unrelated
closed     new_page  none     none     none      unrelated   update    unrelated
changed    -         -        -        -         -           update    wait
named      ask       ask      ask      ask       unrelated   -         list
nothing    -         -        -        -         -           -         ignore
"""
_HEAD, *_ROWS = (line.split() for line in TABLE.strip().splitlines())
CELLS = [
    (LedgerState(known.replace("_", " ")), Statement(statement), change.replace("_", " "))
    for statement, *changes in _ROWS
    for known, change in zip(_HEAD, changes, strict=True)
]


@pytest.mark.parametrize(("known", "statement", "change"), CELLS)
def test_statement_changes_what_the_table_says(
    known: LedgerState, statement: Statement, change: str
) -> None:
    if change == "-":  # our code never looks up this cell
        assert statement not in CHANGES[known]
    else:
        assert CHANGES[known].get(statement, "none") == change


def test_table_has_all_cells_and_each_change_is_used() -> None:
    assert len(CELLS) == len(LedgerState) * len(Statement) == len({cell[:2] for cell in CELLS})
    assert {change for _, _, change in CELLS} - {"-", "none"} == {change.value for change in Change}
