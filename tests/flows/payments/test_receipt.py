"""Receipts: spent or refunded once, never both."""

from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from flows.elicitation.states import Json
from flows.errors import NotPossible
from flows.payments import claims, refunds
from flows.payments import receipt as receipts
from flows.payments.events import changed_payment
from flows.payments.gateway import Notice
from flows.payments.money import Money
from flows.payments.receipt import (
    RECEIPT_RETENTION,
    TRANSITIONS,
    Dispute,
    Payment,
    PaymentChange,
    Receipt,
    ReceiptStatus,
    Refund,
    RefundChange,
    RefundStatus,
    refund_of,
)
from flows.payments.refunds import (
    REFUND_AGAIN_AFTER,
    REFUND_AGAIN_AT_MOST,
    REFUND_TRIES_AT_MOST,
    RefundRequest,
)
from flows.question import OnWire
from tests.support.checkouts import payment as paid
from tests.support.clock import NOON, Clock

T = TypeVar("T")
OPEN, TAKEN, SPENT, REFUNDING, REFUNDED, DISPUTED = ReceiptStatus
ENDS = {SPENT, REFUNDED}
Change = Callable[[Payment], Payment]
CHANGES: dict[ReceiptStatus, Change] = {
    TAKEN: receipts.claim,
    SPENT: lambda payment: receipts.spend(payment, NOON),
    REFUNDING: lambda payment: refunds.begin(payment, NOON, RefundRequest(reason="no seats")),
}


class Desk:
    """A fake of the service behind a receipt, which records the changes that a receipt requests."""

    def __init__(self) -> None:
        self.wanted: list[tuple[str, ...]] = []

    def client(self, *, base_url: str, auth: httpx.Auth, on_wire: OnWire) -> httpx.AsyncClient:
        raise AssertionError("a receipt calls nobody itself")

    def sync_client(self, *, base_url: str, auth: httpx.Auth, on_wire: OnWire) -> httpx.Client:
        raise AssertionError("a receipt calls nobody itself")

    def now(self) -> datetime:
        return NOON

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        raise AssertionError(work)

    async def renew(self, connection: str, refused: str) -> tuple[str, str | None] | None:
        raise AssertionError(connection)

    async def spend(self, receipt_id: str) -> Json:
        self.wanted.append(("spend", receipt_id))
        return None

    async def invalidate(self, connection: str, refused: str) -> None:
        raise AssertionError(connection)

    async def refund(self, receipt_id: str, *, reason: str | None) -> Json:
        self.wanted.append(("refund", receipt_id, reason or ""))
        return refunded().as_json()


def refunded() -> Refund:
    return Refund(id="re_1", price=Money("9.00", "EUR"), status=RefundStatus.PENDING)


@pytest.mark.parametrize("before", ReceiptStatus)
@pytest.mark.parametrize("wanted", CHANGES)
def test_receipt_changes_status_only_as_table_allows(
    before: ReceiptStatus, wanted: ReceiptStatus
) -> None:
    # Starting a second refund changes nothing: the first refund continues.
    if before is wanted is REFUNDING:
        assert CHANGES[wanted](paid(before)) == paid(before)
        return
    if wanted in TRANSITIONS[before]:
        receipts.require(paid(before), wanted)
        assert CHANGES[wanted](paid(before)).status is wanted
        return
    with pytest.raises(NotPossible) as refused:
        CHANGES[wanted](paid(before))
    assert (refused.value.status, refused.value.wanted) == (before, wanted)


def test_receipt_never_becomes_open_again_and_spent_or_refunded_is_final() -> None:
    assert {status for status, after in TRANSITIONS.items() if not after} == ENDS | {DISPUTED}
    assert set(TRANSITIONS) == set(ReceiptStatus)
    assert not any(OPEN in after for after in TRANSITIONS.values())


def test_status_change_sets_its_time_and_reason_only() -> None:
    claimed = receipts.claim(paid())
    assert claimed == paid(TAKEN)
    assert receipts.spend(claimed, NOON) == paid(SPENT, spent_at=NOON)
    begun = refunds.begin(claimed, NOON, RefundRequest(reason="no seats", run="r"))
    later = NOON + REFUND_AGAIN_AFTER
    assert begun == paid(
        REFUNDING, reason="no seats", refund_by="r", refund_at=later, is_refund_begun=True
    )
    assert refunds.begin(begun, NOON, RefundRequest(reason="another")) == begun
    assert receipts.refunded(begun, NOON, refund_id="re_1") == paid(
        REFUNDED,
        reason="no seats",
        refund_by="r",
        is_refund_begun=True,
        refunded_at=NOON,
        refund_id="re_1",
        refunded=900,
    )


def test_receipt_answers_its_question_until_used() -> None:
    assert {status for status in ReceiptStatus if paid(status).holds_key} == {OPEN, TAKEN}


def test_permanent_purchase_answers_its_question_until_refunded() -> None:
    held = {status for status in ReceiptStatus if paid(status, once=True).holds_key}
    assert held == {OPEN, TAKEN, SPENT}


def test_receipt_is_stored_for_ten_years() -> None:
    for year in range(4):
        at = NOON.replace(year=2024 + year, month=2, day=28) + timedelta(days=1)
        erase_at = paid(paid_at=at).erase_at
        assert erase_at >= at.replace(year=at.year + 10, day=1, month=3)
        assert erase_at - at == RECEIPT_RETENTION


def test_receipt_is_due_while_automatic_refund_is_planned() -> None:
    assert paid().due_at is None
    due = {status for status in ReceiptStatus if paid(status, refund_at=NOON).due_at == NOON}
    assert due == {OPEN, REFUNDING}


def test_refund_retries_wait_longer_until_review_is_needed() -> None:
    payment, pauses = paid(REFUNDING, refund_at=NOON), []
    while payment.refund_at is not None:
        payment = refunds.try_again(payment, NOON)
        if payment.refund_at is not None:
            pauses.append(payment.refund_at - NOON)
    assert len(pauses) == REFUND_TRIES_AT_MOST - 1
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2 * REFUND_AGAIN_AFTER, REFUND_AGAIN_AT_MOST)
    assert payment.due_at is None


def test_operator_can_refund_spent_receipt() -> None:
    begun = refunds.begin(paid(SPENT), NOON, RefundRequest(also_spent=True))
    assert begun.status is REFUNDING
    for status in (REFUNDED, DISPUTED):
        with pytest.raises(NotPossible):
            refunds.begin(paid(status), NOON, RefundRequest(also_spent=True))


@pytest.mark.parametrize("before", [OPEN, SPENT, REFUNDING])
def test_refund_reported_by_provider_is_recorded_for_any_status(before: ReceiptStatus) -> None:
    in_part = receipts.partly_refunded(paid(before), NOON, amount=300)
    assert (in_part.status, in_part.refunded, in_part.is_part_refunded) == (before, 300, True)
    for payment in (
        receipts.partly_refunded(in_part, NOON, amount=900),
        receipts.refunded(in_part, NOON),
    ):
        assert (payment.status, payment.refunded, payment.refunded_at) == (REFUNDED, 900, NOON)
        assert not payment.is_part_refunded


def applied(change: PaymentChange) -> Callable[[Payment], Payment]:
    notice = Notice(id="evt_1", type="refund", is_live=False, news=change, payment="pi_1")
    return lambda payment: changed_payment(payment, notice, now=NOON)


def failed(id: str, amount: int) -> RefundChange:
    return RefundChange(id=id, stands=False, is_done=False, amount=amount)


def test_failed_part_refund_is_polled_despite_later_event_about_last_refund() -> None:
    part = receipts.partly_refunded(paid(), NOON, amount=300)
    both = receipts.refunded(part, NOON, refund_id="re_2")
    part_failed = applied(PaymentChange(refund=failed("re_1", 300)))
    last_done = RefundChange(id="re_2", stands=True, is_done=True, amount=600)
    for last in (last_done, failed("re_2", 600)):
        found = applied(PaymentChange(refund=last))(part_failed(both))
        assert found.due_at == NOON, last


def test_failed_refund_of_partly_claimed_payment_is_not_retried_automatically() -> None:
    claimed = claims.disputed(paid(), "dp_1", Dispute.OPEN, amount=300)
    begun = refunds.begin(claimed, NOON, RefundRequest())
    rest = claims.restated(receipts.partly_refunded(begun, NOON, amount=600))
    assert rest.status is DISPUTED
    after_poll = refunds.with_reported_changes(rest, [failed("re_1", 600)], NOON, before=rest)
    found = claims.restated(after_poll)
    assert (found.status, found.owed, found.due_at) == (REFUNDING, 600, None)


def test_full_refund_of_a_manually_repaid_payment_is_recorded() -> None:
    whole = receipts.refunded(paid(), NOON, refund_id="re_1")
    owed = applied(PaymentChange(refund=failed("re_1", 900)))(whole)
    settled = refunds.repaid_manually(owed, NOON)
    found = applied(PaymentChange(returned=900))(settled)
    assert (settled.status, settled.refunded) == (REFUNDED, 0)
    assert (found.status, found.refunded, found.owed) == (REFUNDED, 900, 0)


def test_new_refund_at_the_time_of_a_failed_one_is_polled() -> None:
    part = receipts.partly_refunded(paid(), NOON, amount=600)
    after_poll = refunds.with_reported_changes(part, [failed("re_1", 600)], NOON, before=part)
    assert (after_poll.refunded, after_poll.owed) == (0, 600)
    found = applied(PaymentChange(returned=300, at=NOON))(after_poll)
    assert found.due_at == NOON
    new = RefundChange(id="re_2", stands=True, is_done=True, amount=300)
    found = refunds.with_reported_changes(found, [failed("re_1", 600), new], NOON, before=found)
    assert (found.refunded, found.owed, found.pending) == (300, 300, None)


def test_list_without_the_newest_refund_does_not_reduce_the_refunded_total() -> None:
    both = receipts.partly_refunded(paid(), NOON, amount=600)
    first_failed = [failed("re_1", 300)]
    found = refunds.with_reported_changes(both, first_failed, NOON, before=both)
    assert (found.refunded, found.owed) == (300, 300)
    again = refunds.with_reported_changes(found, first_failed, NOON, before=found)
    assert (again.refunded, again.owed) == (300, 300)


def test_pending_refund_that_the_list_lacks_stays_pending() -> None:
    pending = refunds.pending(receipts.partly_refunded(paid(), NOON, amount=600), NOON)
    first = RefundChange(id="re_1", stands=True, is_done=True, amount=300)
    found = refunds.with_reported_changes(pending, [first], NOON, before=pending)
    assert (found.refunded, found.is_refund_pending) == (600, True)
    second = RefundChange(id="re_2", stands=True, is_done=True, amount=300)
    found = refunds.with_reported_changes(found, [first, second], NOON, before=found)
    assert (found.refunded, found.pending) == (600, None)


def test_late_event_about_a_pending_refund_leaves_the_refund_done_and_is_polled() -> None:
    done = receipts.partly_refunded(paid(), NOON, amount=300)
    late = RefundChange(id="re_1", stands=True, is_done=False, amount=300)
    found = applied(PaymentChange(refund=late))(done)
    assert (found.is_refund_pending, found.due_at) == (False, NOON)


def test_dispute_blocks_receipt_and_won_dispute_restores_receipt() -> None:
    for before in (paid(), paid(SPENT, spent_at=NOON)):
        claimed = claims.disputed(before, "dp_1", Dispute.OPEN)
        assert (claimed.status, claimed.holds_key) == (DISPUTED, False)
        assert claims.disputed(claimed, "dp_1", Dispute.LOST).status is DISPUTED
        assert claims.disputed(claimed, "dp_1", Dispute.WON).status is before.status
        second = claims.disputed(claimed, "dp_2", Dispute.LOST)
        assert claims.disputed(second, "dp_1", Dispute.WON).status is DISPUTED
    begun = refunds.begin(paid(), NOON, RefundRequest())
    claimed = claims.disputed(begun, "dp_1", Dispute.OPEN)
    assert claims.disputed(claimed, "dp_1", Dispute.WON).status is REFUNDING
    given = receipts.refunded(paid(), NOON)
    assert claims.disputed(given, "dp_1", Dispute.LOST).status is REFUNDED


def test_receipt_used_during_dispute_stays_spent() -> None:
    claimed = claims.disputed(paid(), "dp_1", Dispute.OPEN)
    used = receipts.used(claimed, NOON)
    assert (used.status, used.spent_at) == (DISPUTED, NOON)
    assert claims.disputed(used, "dp_1", Dispute.WON).status is SPENT
    assert receipts.used(paid(), NOON) == paid(SPENT, spent_at=NOON)
    for status in (SPENT, REFUNDING, REFUNDED):
        assert receipts.used(paid(status), NOON) == paid(status)


AT_PROVIDER = st.one_of(
    st.tuples(st.just("refund"), st.integers(1, 900)),
    st.tuples(st.sampled_from(["dp_1", "dp_2"]), st.just(Dispute.OPEN)),
)


@given(
    news=st.lists(AT_PROVIDER, max_size=5),
    ends=st.sampled_from([one for one in Dispute if one is not Dispute.LOST_AGAIN]),
    data=st.data(),
)
def test_provider_changes_in_any_order_lead_to_same_payment(
    news: list[tuple[str, Any]], ends: Dispute, data: st.DataObject
) -> None:
    def changed_by(payment: Payment, one: tuple[str, Any]) -> Payment:
        name, value = one
        if name == "refund":
            return receipts.partly_refunded(payment, NOON, amount=value)
        return claims.disputed(payment, name, value)

    news = [*news, ("dp_1", ends)]
    for before in (paid(), paid(SPENT, spent_at=NOON)):
        straight = before
        for one in news:
            straight = changed_by(straight, one)
        crossed = before
        for one in data.draw(st.permutations(news)):
            crossed = changed_by(crossed, one)
        assert (crossed.status, crossed.refunded) == (straight.status, straight.refunded)
        assert crossed.disputes == straight.disputes


def test_payment_survives_storage_unchanged() -> None:
    before = receipts.refunded(refunds.begin(paid(), NOON, RefundRequest(reason="no seats")), NOON)
    before = claims.disputed(before, "dp_1", Dispute.LOST)
    assert msgspec.json.decode(msgspec.json.encode(before), type=Payment) == before
    assert msgspec.convert(msgspec.to_builtins(before), Payment) == before


def test_receipt_shows_purchase_but_not_owner() -> None:
    receipt = Receipt(paid(TAKEN), resources=Desk())
    assert bool(receipt) is True
    assert receipt == Receipt(paid(TAKEN), resources=Desk())
    assert (receipt.price, receipt.what) == (Money("9.00", "EUR"), "Premium report")
    assert (receipt.provider, receipt.is_test, receipt.status) == ("stripe", True, TAKEN)
    assert not Receipt(paid(is_live=True), resources=Desk()).is_test
    for hidden in ("ownertag-e", "pi_1", "cs_test_1", "Desk"):
        assert hidden not in repr(receipt)


async def test_tool_can_spend_and_refund_its_receipt() -> None:
    desk = Desk()
    receipt = Receipt(paid(TAKEN), resources=desk)
    await receipt.spend()
    assert await receipt.refund(reason="no seats") == refunded()
    assert await receipt.refund() == refunded()
    assert desk.wanted == [
        ("spend", "ownertag-r_1"),
        ("refund", "ownertag-r_1", "no seats"),
        ("refund", "ownertag-r_1", ""),
    ]


def test_refund_survives_serialization_unchanged() -> None:
    assert refund_of(refunded().as_json()) == refunded()


class Ledger(RuleBasedStateMachine):
    """A payment with calls that claim it and people who request refunds, in any order."""

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
        if self.payment.status in ENDS:
            self.ends.append(self.payment.status)

    @rule(minutes=st.integers(1, 60))
    def time_passes(self, minutes: int) -> None:
        self.clock.tick(minutes=minutes)

    @rule()
    def claim(self) -> None:
        self.change(receipts.claim)

    @rule()
    def spend(self) -> None:
        self.change(lambda payment: receipts.spend(payment, self.clock()))

    @rule(reason=st.none() | st.text())
    def begin_refund(self, reason: str | None) -> None:
        self.change(
            lambda payment: refunds.begin(payment, self.clock(), RefundRequest(reason=reason))
        )

    @precondition(lambda self: self.payment.status is REFUNDING)
    @rule()
    def confirm_refund(self) -> None:
        self.change(lambda payment: receipts.refunded(payment, self.clock(), refund_id="re_1"))

    @invariant()
    def ends_at_most_once(self) -> None:
        assert len(self.ends) <= 1
        assert (self.payment.status in ENDS) == bool(self.ends)

    @invariant()
    def is_never_both_spent_and_refunded(self) -> None:
        spent, refunded = self.payment.spent_at, self.payment.refunded_at
        assert (spent is not None) == (self.payment.status is SPENT)
        assert (refunded is not None) == (self.payment.status is REFUNDED)
        assert (self.payment.refund_id is not None) == (refunded is not None)

    @invariant()
    def purchase_is_unchanged(self) -> None:
        as_paid = replace(
            self.payment,
            status=OPEN,
            spent_at=None,
            refunded_at=None,
            refund_id=None,
            refund_at=None,
            is_refund_begun=False,
            refunded=0,
            reason=None,
        )
        assert as_paid == paid()


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
