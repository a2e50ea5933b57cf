"""Payments that could get lost: the provider is unreachable, sends no event, or is paid wrongly."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Status
from flows.errors import Failed, NotPossible, StoreUnavailable
from flows.payments.events import ON_ITS_WAY
from flows.payments.mollie.gateway import mollie
from flows.payments.paypal.gateway import paypal
from flows.payments.receipt import ReceiptStatus
from flows.payments.session import (
    PAID_OTHERWISE,
    Mismatch,
    UnresolvedPayment,
    UnresolvedStatus,
    ask_again,
    checkout_of,
    sessions_of,
)
from tests.support.acme import (
    DECLARED,
    Acme,
    Forgetful,
    begun,
    declared,
    ledger,
    left_pending,
    note_of_open_payment,
    send,
    still_open,
)
from tests.support.clock import Clock
from tests.support.payment_env import (
    LEMON_SQUEEZY,
    LemonSqueezy,
    Mollie,
    PaymentEnv,
    PayPal,
    approved,
    ordered,
    selling,
)
from tests.support.shop_env import Shop, buying
from webapp.cli.arguments import with_ids
from webapp.cli.main import parser_for
from webapp.cli.payments import end_payment
from webapp.command import CommandRefused
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

# The provider cannot be reached.


async def test_payment_is_found_after_an_outage_longer_than_the_checkouts_lifetime(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    acme.pay()
    acme.is_down = True
    await payment_env.sweep(minutes=31)
    for _ in range(12):
        await payment_env.sweep(minutes=10)
    assert await ledger(payment_env) == []
    acme.is_down = False
    await payment_env.sweep(hours=3)
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]
    calls = len(acme.calls)
    await payment_env.sweep(days=2)
    assert len(acme.calls) == calls


async def test_stripe_payment_is_found_after_an_outage_longer_than_the_checkouts_lifetime(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        shop.clock.tick(minutes=29)
        await buy.person.press_there(there, "card")
        shop.post.clear()
        shop.line.is_down = True
        await shop.expire()
        for _ in range(6):
            shop.clock.tick(minutes=10)
            await shop.sweep()
        shop.line.is_down = False
        shop.clock.tick(hours=3)
        await shop.sweep()
        assert await shop.ledger() == ["open"]
        assert await buy.again() == "paid 9.00 EUR"


@pytest.mark.parametrize("becomes", ["closed", "paid"])
async def test_checkout_whose_reply_was_lost_is_polled_until_the_provider_answers(
    payment_env: PaymentEnv, acme: Acme, becomes: str
) -> None:
    # finding: M11
    asked = await payment_env.asked()
    acme.loses = "/checkouts"
    with pytest.raises(Failed):
        await payment_env.go_on(asked)
    acme.loses = None
    acme.is_down = True
    await payment_env.sweep(minutes=61)
    for _ in range(30):
        await payment_env.sweep(hours=8)
    assert (await payment_env.now(asked)).is_open_there
    assert sum("POST" in call for call in acme.calls) < 500
    acme.is_down = False
    if becomes == "paid":
        acme.pay()
    await payment_env.sweep(hours=3)
    assert not (await payment_env.now(asked)).is_open_there
    assert acme.checkouts["co-1"]["state"] == becomes
    assert await ledger(payment_env) == [ReceiptStatus.OPEN] * (becomes == "paid")
    calls = len(acme.calls)
    await payment_env.sweep(days=2)
    assert len(acme.calls) == calls


async def test_checkout_refused_by_the_provider_is_not_polled_after_expiry(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    # finding: M11
    asked = await payment_env.asked()
    acme.refuses = "/checkouts"
    with pytest.raises(NotPossible):
        await payment_env.go_on(asked)
    await payment_env.sweep(minutes=31)
    assert not (await payment_env.now(asked)).is_open_there
    calls = len(acme.calls)
    await payment_env.sweep(days=2)
    assert len(acme.calls) == calls


async def test_unpaid_checkout_is_not_polled_again_after_the_providers_answer(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    acme.is_down = True
    await payment_env.sweep(minutes=61)
    acme.is_down = False
    await payment_env.sweep(hours=3)
    calls = len(acme.calls)
    await payment_env.sweep(days=3)
    assert len(acme.calls) == calls
    assert not (await payment_env.now(asked)).is_open_there
    assert (await ledger(payment_env), await still_open(payment_env)) == ([], [])


async def test_unanswered_checkout_is_polled_for_a_month_and_then_listed_for_the_operator(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await begun(payment_env)
    acme.pay()
    acme.is_down = True
    await payment_env.sweep(minutes=61)
    for _ in range(40):
        await payment_env.sweep(days=1)
    (first,) = await still_open(payment_env)
    words = (
        "requested 9.00 EUR, and the provider has not said whether it was paid: "
        "check co-1 at the provider"
    )
    assert (first.note, first.what) == (words, "Report")
    assert sum("GET" in call for call in acme.calls) < 100
    calls = len(acme.calls)
    await payment_env.sweep(days=2)
    assert len(acme.calls) == calls
    (line,) = await end_payment(payment_env.service, first.id)
    assert line == "co-1 at acme is no longer listed."
    assert await still_open(payment_env) == []
    with pytest.raises(CommandRefused):
        await end_payment(payment_env.service, first.id)


def test_last_poll_of_an_unresolved_payment_is_at_its_deadline() -> None:
    now = Clock()()
    until = now + timedelta(minutes=15)
    loose = UnresolvedPayment(
        id="l",
        owner="o",
        elicitation_id="e",
        tool="t",
        seller="acme",
        what="Report",
        amount=900,
        currency="EUR",
        is_live=True,
        session="co-1",
        found_at=now,
        until=until,
    )
    once = ask_again(loose, now)
    assert once.due_at == now + timedelta(minutes=10)
    last = ask_again(once, now + timedelta(minutes=10))
    assert last.due_at == until
    over = ask_again(last, until)
    assert (over.status, over.due_at) == (UnresolvedStatus.UNANSWERED, None)


# The provider sends no event.


async def test_pending_transfer_whose_event_was_lost_is_polled_until_arrival(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await left_pending(payment_env, acme)
    await payment_env.sweep(days=3)
    assert await ledger(payment_env) == []
    acme.pay()
    await payment_env.sweep(days=1)
    assert (await payment_env.now(asked)).status is Status.ACCEPTED
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]


async def test_polling_interval_of_a_pending_payment_doubles_up_to_a_day(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await left_pending(payment_env, acme)
    asked_at: list[int] = []
    for minute in range(0, 4 * 24 * 60, 5):
        calls = len(acme.calls)
        payment_env.clock.tick(minutes=5)
        await fall_due(payment_env.service)
        if len(acme.calls) > calls:
            asked_at.append(minute)
    pauses = [later - earlier for earlier, later in pairwise(asked_at)]
    assert pauses[:7] == [20, 40, 80, 160, 320, 640, 1280]
    assert max(pauses) <= 24 * 60 + 5


@pytest.mark.parametrize("end", ["paid", "failed"])
async def test_settled_payment_is_not_polled_again(
    payment_env: PaymentEnv, acme: Acme, end: str
) -> None:
    await left_pending(payment_env, acme)
    acme.pay(state=end)
    await payment_env.sweep(days=1)
    calls = len(acme.calls)
    await payment_env.sweep(days=4)
    assert len(acme.calls) == calls
    assert (await ledger(payment_env) == []) is (end == "failed")


async def test_extra_polls_do_not_change_the_polling_schedule(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await left_pending(payment_env, acme)
    checkouts = payment_env.service.kinds.payments.checkouts
    (loose,) = await payment_env.unresolved(status=UnresolvedStatus.WAITING)
    for _ in range(60):
        await checkouts.ask_again(loose)
    assert await payment_env.unresolved(status=UnresolvedStatus.WAITING) == [loose]
    await payment_env.sweep(days=29)
    acme.pay()
    await payment_env.sweep(days=1)
    assert (await payment_env.now(asked)).status is Status.ACCEPTED


class Full(MemoryStore):
    """A store with no space for a payment's row."""

    is_full = False

    async def write(self, *records: Record) -> tuple[Record, ...]:
        if self.is_full and any(record.kind == "payment" for record in records):
            raise StoreUnavailable("the disk is full")
        return await super().write(*records)


async def test_payment_that_could_not_be_stored_is_polled_again(acme: Acme, tmp_path: Path) -> None:
    store = Full()
    async with selling(declared(DECLARED, folder=tmp_path), acme, store=store) as payment_env:
        asked = await left_pending(payment_env, acme)
        acme.pay()
        store.is_full = True
        await payment_env.sweep(days=1)
        assert await ledger(payment_env) == []
        store.is_full = False
        await payment_env.sweep(days=2)
        assert (await payment_env.now(asked)).status is Status.ACCEPTED
        assert await ledger(payment_env) == [ReceiptStatus.OPEN]


async def test_two_processes_poll_a_pending_payment_once(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.press("bank")
        await shop.send_all()
        await shop.expire()
        other = await shop.process()
        shop.clock.tick(minutes=11)
        before = shop.line.count("GET /stripe/v1/checkout/sessions/")
        await asyncio.gather(fall_due(shop.service), fall_due(other.service))
        await asyncio.gather(fall_due(shop.service), fall_due(other.service))
        assert shop.line.count("GET /stripe/v1/checkout/sessions/") - before == 1
        await other.ended()


async def test_pending_mollie_payment_is_found_by_polling_without_webhooks() -> None:
    provider = Mollie()
    async with selling(mollie("test_abc"), provider) as payment_env:
        await payment_env.begun()
        provider.payments["tr_1"]["status"] = "pending"
        await payment_env.sweep(minutes=31)
        await payment_env.sweep(days=2)
        provider.payments["tr_1"]["status"] = "paid"
        await payment_env.sweep(days=1)
        assert await ledger(payment_env) == [ReceiptStatus.OPEN]


async def test_stripe_transfer_whose_event_was_lost_is_found_by_polling(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.press("bank")
        await shop.send_all()
        await shop.expire()
        assert ON_ITS_WAY in await buy.result()
        await buy.person.press_there(there, "arrive")
        shop.post.clear()
        for _ in range(3):
            shop.clock.tick(hours=12)
            await shop.sweep()
        assert await shop.ledger() == ["open"]


async def test_late_event_ends_the_polling(payment_env: PaymentEnv, acme: Acme) -> None:
    await left_pending(payment_env, acme)
    assert (await send(payment_env, acme.pay())).json() == {"received": "late"}
    calls = len(acme.calls)
    await payment_env.sweep(days=2)
    assert len(acme.calls) == calls
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]


# A different amount was paid.


async def captured(
    payment_env: PaymentEnv, provider: PayPal, value: str
) -> tuple[Elicitation, httpx.Response]:
    """Let PayPal capture this amount, and deliver the webhook about it."""
    asked = await payment_env.begun()
    amount = {"currency_code": "EUR", "value": value}
    capture = {"id": "CX", "status": "COMPLETED", "amount": amount}
    provider.unit("O1")["payments"] = {"captures": [capture]}
    provider.orders["O1"]["status"] = "COMPLETED"
    return asked, await payment_env.post(approved(asked, "O1"))


async def test_underpaid_order_is_listed_for_the_operator_and_settles_nothing() -> None:
    provider = PayPal()
    async with selling(paypal("cid", "cs", is_live=False), provider) as payment_env:
        asked, _ = await captured(payment_env, provider, "4.00")
        (first,) = await still_open(payment_env)
        assert first.note == "paid 4.00 EUR, requested 9.00 EUR: check O1 at the provider"
        assert first.what == "Report"
        now = await payment_env.now(asked)
        assert (now.status.is_final, now.progress) == (False, PAID_OTHERWISE)
        await payment_env.sweep(minutes=31)
        now = await payment_env.now(asked)
        assert (now.status, now.why, now.is_open_there) == (Status.EXPIRED, PAID_OTHERWISE, False)
        await payment_env.sweep(days=40)
        assert await ledger(payment_env) == []
        assert len(await still_open(payment_env)) == 1
        await end_payment(payment_env.service, first.id)
        assert await still_open(payment_env) == []


async def test_payment_in_another_currency_found_by_polling_is_listed_for_the_operator(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    acme.pay()
    acme.checkouts["co-1"]["currency"] = "USD"
    await payment_env.sweep(minutes=31)
    assert "paid 9.00 USD, requested 9.00 EUR" in await note_of_open_payment(payment_env)
    now = await payment_env.now(asked)
    assert (now.status, now.why) == (Status.EXPIRED, PAID_OTHERWISE)
    assert await ledger(payment_env) == []


async def test_payment_in_another_mode_found_by_polling_is_listed_for_the_operator(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await begun(payment_env)
    acme.pay()
    acme.checkouts["co-1"]["live"] = True
    await payment_env.sweep(minutes=31)
    note = await note_of_open_payment(payment_env)
    assert "paid 9.00 EUR, in another mode, requested 9.00 EUR" in note
    assert await ledger(payment_env) == []


async def test_event_with_a_different_amount_is_listed_until_the_right_amount_arrives(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    for id, became in (("msg_1", "refused"), ("msg_1", "duplicate")):
        assert (await send(payment_env, acme.pay(amount=400), id=id)).json() == {"received": became}
    assert "paid 4.00 EUR, requested 9.00 EUR" in await note_of_open_payment(payment_env)
    assert (await payment_env.now(asked)).progress == PAID_OTHERWISE
    # The earlier event was wrong: the right amount settles the question, without the operator.
    assert (await send(payment_env, acme.pay(), id="msg_3")).json() == {"received": "accepted"}
    assert await ledger(payment_env) == [ReceiptStatus.OPEN]
    assert "requested 9.00" not in await note_of_open_payment(payment_env)


async def test_done_command_removes_a_mismatched_payment_from_the_list(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await begun(payment_env)
    await send(payment_env, acme.pay(amount=400))
    (first,) = await still_open(payment_env)
    words = with_ids(["payments", "done", first.id])
    id = parser_for(words).parse_args(words).id
    await end_payment(payment_env.service, id)
    assert await still_open(payment_env) == []
    await send(payment_env, acme.pay(amount=400), id="msg_2")
    assert await still_open(payment_env) == []
    await send(payment_env, acme.pay(amount=500), id="msg_3")
    assert "paid 5.00 EUR" in await note_of_open_payment(payment_env)


async def test_mismatched_payment_refunded_at_the_provider_is_no_longer_listed(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    asked = await begun(payment_env)
    acme.pay()
    acme.checkouts["co-1"]["amount"] = 400
    await payment_env.sweep(minutes=31)
    assert len(await still_open(payment_env)) == 1
    acme.checkouts["co-1"]["refunded"] = 400
    checkouts = payment_env.service.kinds.payments.checkouts
    with pytest.raises(Mismatch, match="amount"):
        await checkouts.ask_provider(await payment_env.now(asked))
    assert await still_open(payment_env) == []


async def test_failed_payment_with_a_different_amount_is_not_listed(
    payment_env: PaymentEnv, acme: Acme
) -> None:
    await begun(payment_env)
    acme.checkouts["co-1"] |= {"state": "failed", "amount": 400}
    await payment_env.sweep(minutes=31)
    assert await still_open(payment_env) == []


async def test_page_and_tool_say_that_a_different_amount_was_paid(shop: Shop) -> None:
    async with buying(shop) as buy:
        back = await buy.person.pay(buy.link)
        shop.post.clear()
        shop.line.amends = {"amount_total": 400}
        page = await buy.person.come_back(back)
        assert page.heading == "A different amount was paid"
        await shop.expire()
        assert PAID_OTHERWISE in await buy.result()
        assert (await buy.person.visit(buy.link)).heading == "A different amount was paid"
        assert await shop.ledger() == []
        assert "paid 4.00 EUR, requested 9.00 EUR" in await note_of_open_payment(shop)


async def test_earlier_versions_text_for_a_different_amount_is_still_recognized(shop: Shop) -> None:
    former = "paid otherwise than asked: whoever runs this server has to look at it"
    async with buying(shop) as buy:
        back = await buy.person.pay(buy.link)
        shop.post.clear()
        shop.line.amends = {"amount_total": 400}
        await buy.person.come_back(back)
        (asked,) = [one for one in await shop.asked() if one.progress == PAID_OTHERWISE]
        await shop.service.elicitations.change(asked.id, lambda e: replace(e, progress=former))
        assert (await buy.person.visit(buy.link)).heading == "A different amount was paid"
        assert "must not pay again" in await buy.result()


# Two pages after one press of Continue, at a provider without idempotency keys.


@pytest.mark.parametrize("first", [0, 1])
async def test_both_checkouts_of_a_repeated_request_are_stored_in_either_reply_order(
    tmp_path: Path, first: int
) -> None:
    acme = Forgetful()
    seller = declared(f"{DECLARED}idempotency = false\n", folder=tmp_path)
    async with selling(seller, acme) as payment_env:
        asked = await payment_env.asked()
        going = asyncio.ensure_future(payment_env.go_on(asked))
        await acme.made.acquire()
        assert (await send(payment_env, acme.event("co-1"))).json() == {"received": "waiting"}
        payment_env.clock.tick(seconds=31)
        sweeping = asyncio.ensure_future(fall_due(payment_env.service))
        await acme.made.acquire()
        for turn in (first, 1 - first):
            acme.gates[turn].set()
            await (going, sweeping)[turn]
        assert going.result() == "https://pay-test.acme.example/co-1"
        now = await payment_env.now(asked)
        latest = checkout_of(now.attempt)
        assert latest is not None
        assert latest.session == "co-1"
        assert sessions_of(now) == ("co-1", "co-2")
        assert (await send(payment_env, acme.pay("co-1"), id="msg_2")).json() == {
            "received": "accepted"
        }
        assert await ledger(payment_env) == [ReceiptStatus.OPEN]
        await payment_env.sweep()
        assert acme.checkouts["co-2"]["state"] == "closed"


# Two payments on one page. An order of this provider names our key for the page, not the page's id.


@pytest.fixture
async def lemon() -> AsyncIterator[tuple[PaymentEnv, LemonSqueezy]]:
    provider = LemonSqueezy()
    async with selling(LEMON_SQUEEZY, provider) as payment_env:
        yield payment_env, provider


@pytest.mark.parametrize("orders", [("111", "222"), ("222", "111"), ("111", "222", "111", "222")])
async def test_second_payment_on_the_same_page_gets_its_own_row_and_is_refunded(
    lemon: tuple[PaymentEnv, LemonSqueezy], orders: tuple[str, ...]
) -> None:
    payment_env, provider = lemon
    asked = await payment_env.begun()
    for order in orders:
        await ordered(payment_env, asked, order)
    rows = await payment_env.service.kinds.payments.ledger.all()
    assert sorted(str(row.payment_intent) for row in rows) == ["111", "222"]
    first = await payment_env.receipt(asked)
    assert first.payment_intent == orders[0]
    await payment_env.service.kinds.payments.ledger.spend(first.owner, first.id, run=None)
    await payment_env.sweep(days=7, seconds=1)
    assert provider.orders_given_back == [orders[1]]


async def test_two_concurrent_payment_events_for_the_same_page_create_two_rows(
    lemon: tuple[PaymentEnv, LemonSqueezy],
) -> None:
    payment_env, _ = lemon
    asked = await payment_env.begun()
    await asyncio.gather(*(ordered(payment_env, asked, order) for order in ("111", "222")))
    rows = await payment_env.service.kinds.payments.ledger.all()
    assert sorted(str(row.payment_intent) for row in rows) == ["111", "222"]


async def test_checkout_of_a_provider_that_cannot_be_polled_is_not_listed(
    lemon: tuple[PaymentEnv, LemonSqueezy],
) -> None:
    payment_env, _ = lemon
    asked = await payment_env.begun()
    await payment_env.sweep(minutes=31)
    await payment_env.sweep(hours=2)
    assert not (await payment_env.now(asked)).is_open_there
    await payment_env.sweep(days=40)
    assert await still_open(payment_env) == []
