"""The audit entries of refunds: each names who requested the refund at this server, or nobody."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
from msgspec.structs import replace

from flows.payments import receipt, refunds
from flows.payments.claims import disputed
from flows.payments.events import changed_payment
from flows.payments.gateway import Notice
from flows.payments.receipt import Dispute, PartRefund, Payment, PaymentChange, RefundChange
from flows.payments.refunds import RefundRequest
from tests.support.checkouts import payment as paid
from tests.support.clock import NOON
from webapp.records.entries import Words
from webapp.records.values import KINDS

KEY, OTHER = "key one", "key two"
Change = Callable[[Payment], Payment]
ALL = 900  # in cents; of which 300 and 500 are parts


def event(returned: int = 0, *, refund: RefundChange | None = None) -> Change:
    """Return the change that a webhook makes, with the total that the provider has refunded."""
    change = PaymentChange(returned=returned, refund=refund)
    notice = Notice(id="evt_1", type="refund", is_live=False, news=change, payment="pi_1")
    return lambda payment: changed_payment(payment, notice, now=NOON)


def part(up_to: int = 300, by: str | None = KEY) -> tuple[Change, Change]:
    """Return the start of a part refund that `by` requests, and its end."""

    def end(payment: Payment) -> Payment:
        reserved = PartRefund(up_to=up_to, asking_until=NOON, again_at=NOON, by=by)
        begun = replace(payment, part=payment.part or reserved)
        return refunds.part_done(payment, NOON, begun=begun)

    begin = partial(refunds.begin_part, now=NOON, request=RefundRequest(by=by), up_to=up_to)
    return begin, end


def whole(by: str | None = KEY) -> tuple[Change, Change]:
    """Return the start of a full refund that `by` requests, and its end."""
    begin = partial(refunds.begin, now=NOON, request=RefundRequest(by=by))
    return begin, partial(receipt.refunded, now=NOON, refund_id="re_1")


def poll(*changes: RefundChange) -> Change:
    """Return the change that a poll of all refunds makes."""
    return lambda payment: refunds.with_reported_changes(payment, changes, NOON, before=payment)


def claim(stage: Dispute, amount: int | None = None) -> Change:
    return lambda payment: disputed(payment, "dp_1", stage, amount=amount)


BEGIN_PART, END_PART = part()
BEGIN, END = whole()
FAILED = event(refund=RefundChange(id="re_1", stands=False, is_done=False))
PART_FAILED = RefundChange(id="re_2", stands=False, is_done=False, amount=300)
PART, MORE = "refunded in part: 3.00 EUR", "refunded in part: 5.00 EUR"
CASES: dict[str, tuple[Sequence[Change], Sequence[tuple[str, str | None]]]] = {
    "the webhook of a part refund": ([*part(), event(300)], [(PART, KEY)]),
    "the webhook of a part refund before its reply": (
        [BEGIN_PART, event(300), END_PART],
        [(PART, KEY)],
    ),
    "the webhook of a full refund before its reply": (
        [BEGIN, event(ALL), END],
        [("refunding", KEY), ("refunded", KEY)],
    ),
    "more at the dashboard": ([*part(), event(300), event(500)], [(PART, KEY), (MORE, None)]),
    "the rest at the dashboard": ([*part(), event(ALL)], [(PART, KEY), ("refunded", None)]),
    "another part while a part is requested": (
        [BEGIN_PART, event(200), END_PART],
        [("refunded in part: 2.00 EUR", None), (PART, KEY)],
    ),
    "a late webhook of a part while a full refund is requested": (
        [BEGIN, event(300), END],
        [("refunding", KEY), ("refunded", KEY)],
    ),
    "the reply to a part refund while a full refund is requested": (
        [BEGIN_PART, *whole(OTHER)[:1], END_PART, END],
        [("refunding", OTHER), ("refunded", OTHER)],
    ),
    "the rest automatically": (
        [*part(), *whole(None)],
        [(PART, KEY), ("refunding", None), ("refunded", None)],
    ),
    "a part of a payment with an inquiry": (
        [claim(Dispute.INQUIRY), *part(), claim(Dispute.CLOSED)],
        [("inquiry: paid", None), (f"inquiry: {PART}", KEY), (PART, None)],
    ),
    "an inquiry about a payment with a part refund": (
        [*part(), claim(Dispute.INQUIRY)],
        [(PART, KEY), (f"inquiry: {PART}", None)],
    ),
    "a claim of all the money after a part refund, which the bank drops": (
        [*part(), claim(Dispute.OPEN), claim(Dispute.WON)],
        [(PART, KEY), (f"disputed: {PART}", None), (PART, None)],
    ),
    "a claim of all the money while a part refund is requested, which the bank drops": (
        [BEGIN_PART, claim(Dispute.OPEN), END_PART, claim(Dispute.WON)],
        [("disputed", None), (f"disputed: {PART}", KEY), (PART, None)],
    ),
    "the webhook of a part refund during a claim of all the money, which the bank drops": (
        [BEGIN_PART, claim(Dispute.OPEN), event(300), END_PART, claim(Dispute.WON)],
        [("disputed", None), (f"disputed: {PART}", KEY), (PART, None)],
    ),
    "a claim while a second part refund is requested, which the bank drops": (
        [
            *part(),
            part(500, OTHER)[0],
            claim(Dispute.OPEN),
            part(500, OTHER)[1],
            claim(Dispute.WON),
        ],
        [
            (PART, KEY),
            (f"disputed: {PART}", None),
            (f"disputed: {MORE}", OTHER),
            (MORE, None),
        ],
    ),
    "a part at the dashboard during a claim of all the money, which the bank drops": (
        [*part(), claim(Dispute.OPEN), event(500), claim(Dispute.WON)],
        [(PART, KEY), (f"disputed: {PART}", None), (f"disputed: {MORE}", None), (MORE, None)],
    ),
    "a claim while a full refund is requested, which the bank drops": (
        [BEGIN, claim(Dispute.OPEN), claim(Dispute.WON), END],
        [("refunding", KEY), ("disputed", None), ("refunding", None), ("refunded", KEY)],
    ),
    "a claim of all the money while a full refund is requested": (
        [BEGIN, claim(Dispute.OPEN), END],
        [("refunding", KEY), ("disputed", None), ("refunded", KEY)],
    ),
    "a part refund of all that no bank claims": (
        [claim(Dispute.OPEN, 600), *part(), claim(Dispute.WON)],
        [
            ("disputed in part: 6.00 EUR of paid", None),
            (f"disputed: {PART}", KEY),
            (PART, None),
        ],
    ),
    "a full refund of all that no bank claims": (
        [claim(Dispute.OPEN, 600), BEGIN, *part()[1:], claim(Dispute.WON), END],
        [
            ("disputed in part: 6.00 EUR of paid", None),
            ("disputed in part: 6.00 EUR of refunding", KEY),
            (f"disputed: {PART}", KEY),
            ("refunding", None),
            ("refunded", KEY),
        ],
    ),
    "a failed part while a full refund is requested": (
        [*part(), *whole(OTHER)[:1], poll(PART_FAILED), END],
        [(PART, KEY), ("refunding", OTHER), ("refund failed", None), ("refunded", OTHER)],
    ),
    "a failed part, made again at the dashboard": (
        [*part(), poll(PART_FAILED), event(500)],
        [(PART, KEY), ("refund failed: 3.00 EUR of it", None), (MORE, None)],
    ),
    "a failed refund, made at the dashboard": (
        [BEGIN, END, FAILED, event(ALL)],
        [("refunding", KEY), ("refunded", KEY), ("refund failed", None), ("refunded", None)],
    ),
    "a failed refund, paid in another way": (
        [BEGIN, END, FAILED, lambda one: refunds.repaid_manually(one, NOON)],
        [("refunding", KEY), ("refunded", KEY), ("refund failed", None), ("refunded", None)],
    ),
    "a failed refund, requested again": (
        [BEGIN, END, FAILED, *whole(OTHER)],
        [("refunding", KEY), ("refunded", KEY), ("refund failed", None), ("refunded", OTHER)],
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_refund_entry_names_requester_of_refund_at_this_server(case: str) -> None:
    changes, expected = CASES[case]
    payment = paid(version=1)

    async def stored(_: Payment) -> Payment:
        return payment

    words, entries = Words[Payment](KINDS, stored=stored), list[tuple[str, str | None]]()
    for change in changes:
        changed = replace(change(payment), version=payment.version + 1)
        found = await words.state_changes([changed])
        entries += [(each.entry.what, each.entry.by) for each in found]
        payment = changed
    assert entries == expected
