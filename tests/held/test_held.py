"""Tests of each cell in the table of who holds a payment and who takes it back."""

import pytest

from flows.payments.receipt import ReceiptStatus
from tests.held.holds import HOLDS, task_of, world
from tests.held.table import FILE, TABLE, cells, with_table
from tests.held.takes import TAKES
from tests.support.mcp_server import LEGACY, MODERN
from webapp.cli.purge import _erase

# finding: XD1, XD2, XD3, XM1, XM4, XM5, XM6, XV1, XV2


@pytest.mark.parametrize(("hold", "claim"), [*cells()])
async def test_held_payment_ends_as_table_says(hold: str, claim: str) -> None:
    async with world() as at, HOLDS[hold](at) as held:
        door = await TAKES[claim](held)
        if claim == "a cancellation":
            end = "work done" if at.made else "stopped"
        else:
            end = await held.end()
        payment = await at.payment()
        assert f"{door}; {end}, {payment.status.value}" == TABLE[hold][claim]


WORDS = {
    "a tool call, 2025-11-25": "[ELICITATION_ERASED]",
    "a tool call, 2026-07-28": "[ELICITATION_ERASED]",
    "a tool inside `once`": "[ELICITATION_ERASED]",
    "a task, 2025-11-25": "no such task",
    "a task, 2026-07-28": "no such task",
    "an `asking` block": "[ELICITATION_ERASED]",
    "a program's run, inside `once`": "raises",
}


@pytest.mark.parametrize("hold", WORDS)
async def test_holder_gets_explanation_when_data_is_erased(hold: str) -> None:
    # finding: XD3
    async with world() as at, HOLDS[hold](at) as held:
        payment = await at.payment()
        await _erase(at.here.service, payment.owner)
        assert WORDS[hold] in await held.finish()
        assert (await at.payment()).status is ReceiptStatus.OPEN


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize("tool", ["ship", "stubborn"])
async def test_cancelled_running_task_leaves_its_payment_to_same_call(
    revision: str, tool: str
) -> None:
    # finding: XD4
    async with world() as at, task_of(revision, tool)(at) as held:
        await held.cancel()
        assert (len(at.made), at.after) == (1, []), "the task is cancelled while it awaits `once`"
        payment = await at.payment()
        assert (payment.status, payment.may_be_delivered) == (ReceiptStatus.OPEN, True)
        assert payment.due_at is None, "no automatic refund of the payment is scheduled"
        assert not await at.here.service.kinds.payments.ledger.is_in_hand(payment)


def test_document_contains_current_table() -> None:
    text = FILE.read_text("utf-8")
    assert text == with_table(text), "the table is out of date: run python -m tests.held"


def test_table_has_a_cell_for_each_pair() -> None:
    assert set(HOLDS) == set(TABLE)
    for hold, row in TABLE.items():
        assert set(row) == set(TAKES), hold
