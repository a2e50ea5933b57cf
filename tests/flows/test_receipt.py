"""Receipts: used once or given back, never both."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from flows import receipt as receipts
from flows.elicitation import Json
from flows.errors import NotPossible
from flows.money import Money
from flows.receipt import (
    RECEIPT_KEPT,
    TRANSITIONS,
    Payment,
    Receipt,
    ReceiptStatus,
    Refund,
    RefundStatus,
    refund_of,
)
from tests.clock import NOON, Clock

OPEN, TAKEN, SPENT, REFUNDED = ReceiptStatus
Change = Callable[[Payment], Payment]
CHANGES: dict[ReceiptStatus, Change] = {
    TAKEN: receipts.take,
    SPENT: lambda payment: receipts.spend(payment, NOON),
    REFUNDED: lambda payment: receipts.refund(payment, NOON, "no seats", "re_1"),
}


def paid(status: ReceiptStatus = OPEN, **changes: Any) -> Payment:
    fields: dict[str, Any] = {
        "id": "ownertag-r_1",
        "owner": "ownertag",
        "elicitation_id": "ownertag-e_1",
        "join": "j",
        "server": "shop",
        "tool": "buy",
        "seller": "stripe",
        "session": "cs_test_1",
        "payment_intent": "pi_1",
        "amount": 900,
        "currency": "EUR",
        "what": "Premium report",
        "is_live": False,
        "paid_at": NOON,
        "status": status,
    }
    return Payment(**{**fields, **changes})


class Desk:
    """Reaches the outside for a receipt: it writes down what was wanted."""

    def __init__(self) -> None:
        self.wanted: list[tuple[str, ...]] = []

    def client(self, *, base_url: str, auth: httpx.Auth) -> httpx.AsyncClient:
        raise AssertionError("a receipt calls nobody itself")

    async def renew(self, connection: str, refused: str) -> str | None:
        raise AssertionError(connection)

    async def spend(self, receipt_id: str) -> Json:
        self.wanted.append(("spend", receipt_id))
        return None

    async def refund(self, receipt_id: str, *, reason: str | None) -> Json:
        self.wanted.append(("refund", receipt_id, reason or ""))
        return given_back().as_json()


def given_back() -> Refund:
    return Refund(id="re_1", price=Money("9.00", "EUR"), status=RefundStatus.PENDING)


@pytest.mark.parametrize("before", ReceiptStatus)
@pytest.mark.parametrize("wanted", CHANGES)
def test_only_what_the_table_has_is_possible(before: ReceiptStatus, wanted: ReceiptStatus) -> None:
    if wanted in TRANSITIONS[before]:
        receipts.require(paid(before), wanted)
        assert CHANGES[wanted](paid(before)).status is wanted
        return
    with pytest.raises(NotPossible) as refused:
        CHANGES[wanted](paid(before))
    assert (refused.value.status, refused.value.wanted) == (before, wanted)


def test_what_is_spent_or_given_back_is_so_for_good() -> None:
    assert {status for status in ReceiptStatus if status.is_final} == {SPENT, REFUNDED}
    assert set(TRANSITIONS) == set(ReceiptStatus)
    assert not any(OPEN in after for after in TRANSITIONS.values())


def test_a_change_says_when_and_why_and_touches_nothing_else() -> None:
    taken = receipts.take(paid())
    assert taken == paid(TAKEN)
    assert receipts.spend(taken, NOON) == paid(SPENT, spent_at=NOON)
    assert receipts.refund(taken, NOON, None, "re_1") == paid(
        REFUNDED, refunded_at=NOON, refund_id="re_1"
    )


def test_a_receipt_answers_its_question_until_it_is_used() -> None:
    assert [paid(status).holds_key for status in ReceiptStatus] == [True, True, False, False]


def test_what_was_bought_for_good_answers_for_good_unless_it_is_given_back() -> None:
    held = [paid(status, once=True).holds_key for status in ReceiptStatus]
    assert held == [True, True, True, False]


def test_a_receipt_is_kept_ten_years_and_is_never_due() -> None:
    for year in range(4):
        at = NOON.replace(year=2024 + year, month=2, day=28) + timedelta(days=1)
        kept_until = paid(paid_at=at).erase_at
        assert kept_until >= at.replace(year=at.year + 10, day=1, month=3)
        assert kept_until - at == RECEIPT_KEPT
    assert paid().due_at is None


def test_a_payment_comes_back_from_the_store_as_it_was() -> None:
    before = receipts.refund(paid(), NOON, "no seats", "re_1")
    assert msgspec.json.decode(msgspec.json.encode(before), type=Payment) == before
    assert msgspec.convert(msgspec.to_builtins(before), Payment) == before


def test_a_tool_gets_what_was_paid_and_not_whose_it_is() -> None:
    receipt = Receipt(paid(TAKEN), reach=Desk())
    assert bool(receipt) is True
    assert receipt == Receipt(paid(TAKEN), reach=Desk())
    assert (receipt.price, receipt.what) == (Money("9.00", "EUR"), "Premium report")
    assert (receipt.provider, receipt.is_test, receipt.status) == ("stripe", True, TAKEN)
    assert not Receipt(paid(is_live=True), reach=Desk()).is_test
    for hidden in ("ownertag-e", "pi_1", "cs_test_1", "Desk"):
        assert hidden not in repr(receipt)


async def test_a_tool_spends_its_receipt_and_gives_the_money_back() -> None:
    desk = Desk()
    receipt = Receipt(paid(TAKEN), reach=desk)
    await receipt.spend()
    assert await receipt.refund(reason="no seats") == given_back()
    assert await receipt.refund() == given_back()
    assert desk.wanted == [
        ("spend", "ownertag-r_1"),
        ("refund", "ownertag-r_1", "no seats"),
        ("refund", "ownertag-r_1", ""),
    ]


def test_a_refund_comes_back_as_it_was() -> None:
    assert refund_of(given_back().as_json()) == given_back()


class Ledger(RuleBasedStateMachine):
    """A payment under calls that take it, and people who want the money back, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.payment = paid()
        self.ends: list[ReceiptStatus] = []

    def change(self, change: Change) -> None:
        before = self.payment
        try:
            self.payment = change(before)
        except NotPossible:
            assert self.payment is before
            return
        if self.payment.status.is_final:
            self.ends.append(self.payment.status)

    @rule(minutes=st.integers(1, 60))
    def time_passes(self, minutes: int) -> None:
        self.clock.tick(minutes=minutes)

    @rule()
    def a_call_takes_it(self) -> None:
        self.change(receipts.take)

    @rule()
    def it_is_spent(self) -> None:
        self.change(lambda payment: receipts.spend(payment, self.clock()))

    @rule(reason=st.none() | st.text())
    def it_is_given_back(self, reason: str | None) -> None:
        self.change(lambda payment: receipts.refund(payment, self.clock(), reason, "re_1"))

    @invariant()
    def it_ends_once(self) -> None:
        assert len(self.ends) <= 1
        assert self.payment.status.is_final == bool(self.ends)

    @invariant()
    def it_is_never_both_used_and_given_back(self) -> None:
        spent, refunded = self.payment.spent_at, self.payment.refunded_at
        assert (spent is not None) == (self.payment.status is SPENT)
        assert (refunded is not None) == (self.payment.status is REFUNDED)
        assert (self.payment.refund_id is not None) == (refunded is not None)

    @invariant()
    def what_was_paid_stays_what_it_was(self) -> None:
        as_paid = replace(
            self.payment, status=OPEN, spent_at=None, refunded_at=None, refund_id=None, reason=None
        )
        assert as_paid == paid()


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
