"""Reconciliation: the server finds payments at the provider that its store lost."""

import asyncio
from datetime import timedelta

import httpx
import pytest

from flows.elicitation.states import Status
from flows.errors import NotPossible
from flows.payments.mollie.gateway import mollie
from flows.payments.paypal.gateway import paypal
from flows.payments.session import sessions_of
from tests.support.mcp_server import PATIENCE_SECONDS, soon, text_of
from tests.support.payment_env import Mollie, PayPal, selling
from tests.support.records import copy_into, held_in
from tests.support.shop_env import CREATE, Buying, Shop, buying
from webapp.cli.payments import end_payment, list_payments, reconcile_payments
from webapp.command import CommandRefused
from webapp.records.values import Reconciliation
from webapp.service import Service
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

LISTING = "GET /stripe/v1/checkout/sessions"


def records_of(shop: Shop) -> tuple[Record, ...]:
    assert isinstance(shop.store, MemoryStore)
    return tuple(held_in(shop.store))


async def put_back(shop: Shop, records: tuple[Record, ...]) -> None:
    """Restore the store to these records and start a process on it."""
    store = MemoryStore()
    await copy_into(store, records)
    shop.store = store
    await shop.restart()


async def lost(shop: Shop, buy: Buying, *, button: str | None = "card") -> str:
    """Create a checkout page and press a button on it. Then restore the store as it was before.

    Return the address of the checkout page, which the restored store does not know.
    """
    before = records_of(shop)
    there = await buy.person.go_on(buy.link)
    if button is not None:
        await buy.person.press_there(there, button)
    await shop.send_all()
    buy.call.cancel()
    await asyncio.gather(buy.call, return_exceptions=True)
    await put_back(shop, before)
    return there


async def noted(shop: Shop) -> list[str | None]:
    """Return the notes on the payments that the operator's list marks for review."""
    rows = (await list_payments(shop.service, only_open=True)).rows
    return [f"{row.what}: {row.note}" for row in rows if row.standing == "otherwise"]


async def compared(shop: Shop) -> Reconciliation:
    """Return the progress of the comparison with Stripe."""
    rows = await shop.service.elicitations.all(Reconciliation)
    (row,) = [row for row in rows if row.seller == "stripe"]
    return row


async def wait_for_ledger(shop: Shop, statuses: list[str]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while sorted(await shop.ledger()) != statuses:  # noqa: ASYNC110
            await asyncio.sleep(0)


# The store lost a checkout, so the provider refuses the repeated request to create the checkout.


async def test_paid_checkout_that_the_store_lost_is_found_and_settles_the_question(
    shop: Shop,
) -> None:
    # finding: XV2
    async with buying(shop) as buy:
        await lost(shop, buy)
        async with shop.env.caller("legacy") as caller:
            call = caller.call("report")
            link = await caller.link()
            pressed = await buy.person.press(link)
            assert pressed.location == link
            assert text_of(await soon(call)) == "paid 9.00 EUR"
            assert (await buy.person.visit(link)).heading == "Paid 9.00 €"
        await wait_for_ledger(shop, ["spent"])
        assert len(await _sessions(shop)) == 1


async def test_open_checkout_that_the_store_lost_is_closed_before_a_new_checkout(
    shop: Shop,
) -> None:
    # finding: XV2
    async with buying(shop) as buy:
        there = await lost(shop, buy, button=None)
        async with shop.env.caller("legacy") as caller:
            call = caller.call("report")
            other = await buy.person.go_on(await caller.link())
            assert (await shop.session(_id(there)))["status"] == "expired"
            await buy.person.press_there(other, "card")
            await shop.send_all()
            assert text_of(await soon(call)) == "paid 9.00 EUR"
        await wait_for_ledger(shop, ["spent"])


async def test_pending_transfer_of_a_lost_checkout_is_awaited_and_not_paid_again(
    shop: Shop,
) -> None:
    # finding: XV2
    async with buying(shop) as buy:
        there = await lost(shop, buy, button="bank")
        async with shop.env.caller("legacy") as caller:
            call = caller.call("report")
            link = await caller.link()
            assert (await buy.person.press(link)).location == link
            assert (await buy.person.visit(link)).heading == "Your payment is on its way"
            await buy.person.press_there(there, "arrive")
            await shop.send_all()
            assert text_of(await soon(call)) == "paid 9.00 EUR"


async def test_several_lost_checkouts_are_all_found(shop: Shop) -> None:
    # finding: XV2
    async with buying(shop) as buy:
        before = records_of(shop)
        pages = [await (await shop.person()).go_on(buy.link) for _ in range(3)]
        await buy.person.press_there(pages[-1], "card")
        shop.post.clear()
        await put_back(shop, before)
        async with shop.env.caller("legacy") as caller:
            call = caller.call("report")
            await buy.person.press(await caller.link())
            assert text_of(await soon(call)) == "paid 9.00 EUR"
        (asked,) = await shop.asked()
        assert len(sessions_of(asked)) == 3


async def test_no_new_checkout_is_created_until_the_lost_checkout_is_looked_up(
    shop: Shop,
) -> None:
    # finding: XV2
    async with buying(shop) as buy:
        await lost(shop, buy)
        async with shop.env.caller("legacy") as caller:
            call = caller.call("report")
            link = await caller.link()
            shop.line.broken.append(LISTING)
            assert (await buy.person.press(link)).status == 502
            assert (await buy.person.press(link)).status == 502
            assert len(await _sessions(shop)) == 1
            shop.line.broken.clear()
            await buy.person.press(link)
            assert text_of(await soon(call)) == "paid 9.00 EUR"


async def test_used_idempotency_key_without_a_known_checkout_creates_a_new_checkout(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        shop.line.refused_once[CREATE] = (400, "idempotency_error")
        assert "/pay/" in await buy.person.go_on(buy.link)
        assert shop.line.keys[-2:] == [f"{shop.env.id_of(buy.link)}:{n}" for n in (1, 2)]


async def test_checkout_of_a_lost_reply_is_found_in_the_list_after_its_idempotency_key_expired(
    shop: Shop,
) -> None:
    # finding: XV2
    async with buying(shop) as buy:
        shop.line.lost.append(CREATE)
        assert (await buy.person.press(buy.link)).status == 502
        (session,) = await _sessions(shop)
        await buy.person.press_there(session["url"], "card")
        shop.post.clear()
        shop.line.refused[CREATE] = (400, "invalid_request_error")
        await shop.expire()
        assert await shop.ledger() == ["open"]
        del shop.line.refused[CREATE]
        assert await buy.again() == "paid 9.00 EUR"


async def test_payment_link_session_in_the_provider_list_is_not_adopted(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        id = shop.env.id_of(buy.link)
        await shop.make_session(client_reference_id=id)
        shop.line.refused_once[CREATE] = (400, "idempotency_error")
        await buy.person.go_on(buy.link)
        (asked,) = await shop.asked()
        assert len(sessions_of(asked)) == 1


# A provider that cannot list its payments.


async def test_lost_checkout_at_a_provider_without_a_list_is_listed_for_the_operator() -> None:
    # finding: XV2
    provider = PayPal()

    def refuse(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v2/checkout/orders":
            return httpx.Response(422, json={"name": "DUPLICATE_REQUEST_ID"})
        return httpx.Response(200, json={"access_token": "t"})

    async with selling(paypal("cid", "cs", is_live=False), refuse) as env:
        asked = await env.asked()
        with pytest.raises(NotPossible):
            await env.go_on(asked)
        ended = await env.now(asked)
        assert (ended.status, "cannot find it any more" in (ended.why or "")) == (
            Status.FAILED,
            True,
        )
        (row,) = (await list_payments(env.service, only_open=True)).rows
        assert "lost a payment page" in str(row.note)
        assert (row.refunded, row.disputed, row.owed) == (0, 0, 0)
        blocking = await env.service.kinds.payments.unresolved.list_to_check()
        assert [one.session for one in blocking] == [asked.id]
        await end_payment(env.service, row.id)
        assert provider.calls == []


# The operator reconciles the store with the provider, from a given time on.


async def test_payment_of_a_lost_question_is_listed_for_the_operator(shop: Shop) -> None:
    # finding: XV2
    before = records_of(shop)
    since = shop.clock()
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
    shop.clock.tick(minutes=5)
    await put_back(shop, before)
    await shop.service.kinds.payments.reconciling.reconcile(since)
    await shop.sweep()
    (note,) = await noted(shop)
    assert "a payment whose question is not in this store: paid 9.00 EUR" in str(note)
    assert (await _sessions(shop))[0]["id"] in str(note)
    assert await shop.ledger() == []


async def test_lost_payment_of_an_existing_question_is_settled_by_reconciliation(
    shop: Shop,
) -> None:
    # finding: XV2
    since = shop.clock()
    async with buying(shop) as buy:
        await lost(shop, buy)
        await shop.service.kinds.payments.reconciling.reconcile(since)
        await shop.sweep()
        assert (await shop.ledger(), await noted(shop)) == (["open"], [])
        assert await buy_again(shop) == "paid 9.00 EUR"


async def test_open_checkout_of_an_ended_question_is_closed_by_reconciliation(shop: Shop) -> None:
    since = shop.clock()
    async with buying(shop) as buy:
        there = await lost(shop, buy, button=None)
        await shop.expire()
        await shop.service.kinds.payments.reconciling.reconcile(since)
        await shop.sweep()
        await shop.sweep()
        assert (await shop.session(_id(there)))["status"] == "expired"


async def test_refund_that_the_store_lost_is_found_by_reconciliation(shop: Shop) -> None:
    # finding: XV2
    async with buying(shop) as buy:
        buy.call.cancel()
        await asyncio.gather(buy.call, return_exceptions=True)
        await buy.pay()
        shop.clock.tick(hours=1)
        before, since = records_of(shop), shop.clock()
        await shop.refund_by_hand()
        shop.post.clear()
        await put_back(shop, before)
        assert await shop.ledger() == ["open"]
        await shop.service.kinds.payments.reconciling.reconcile(since)
        await shop.sweep()
        await shop.sweep()
        assert await shop.ledger() == ["refunded"]


async def test_provider_is_not_asked_about_used_payments_by_reconciliation(shop: Shop) -> None:
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
    shop.clock.tick(hours=1)
    (payment,) = await shop.payments()
    await shop.service.kinds.payments.reconciling.reconcile(shop.clock())
    shop.line.calls.clear()
    await shop.sweep()
    await shop.sweep()
    assert (await compared(shop)).status == "done"
    assert shop.line.count(payment.session or "") == 0


async def test_payment_by_a_payment_link_with_our_reference_is_listed_and_settles_nothing(
    shop: Shop,
) -> None:
    since = shop.clock()
    async with buying(shop) as buy:
        made = await shop.make_session(client_reference_id=shop.env.id_of(buy.link))
        await buy.person.press_there(made["url"], "card")
        shop.post.clear()
        await shop.service.kinds.payments.reconciling.reconcile(since)
        await shop.sweep()
        (note,) = await noted(shop)
        assert "was not started by it" in str(note)
        assert await shop.ledger() == []


async def test_repeated_and_concurrent_reconciliation_changes_nothing(shop: Shop) -> None:
    # finding: XV2
    before, since = records_of(shop), shop.clock()
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
    await put_back(shop, before)
    other = await shop.process()
    services = (shop.service, other.service)
    for _ in range(2):
        await asyncio.gather(*(one.kinds.payments.reconciling.reconcile(since) for one in services))
        shop.clock.tick(seconds=31)
        await asyncio.gather(*(fall_due(one) for one in services))
        await shop.sweep()
    assert len(await noted(shop)) == 1
    row = await compared(shop)
    assert (row.status, row.seen, row.listed) == ("done", 1, 1)
    await other.ended()


async def test_payment_closed_by_the_operator_is_not_listed_again_by_reconciliation(
    shop: Shop,
) -> None:
    before, since = records_of(shop), shop.clock()
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
    await put_back(shop, before)
    await reconcile_payments(shop.service, since=since)
    (row,) = (await list_payments(shop.service, only_open=True)).rows
    await end_payment(shop.service, row.id)
    await reconcile_payments(shop.service, since=since)
    assert await noted(shop) == []


async def test_reconciliation_is_retried_until_the_provider_answers(
    shop: Shop,
) -> None:
    # finding: XV2
    before, since = records_of(shop), shop.clock()
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
    await put_back(shop, before)
    shop.line.broken.append(LISTING)
    with pytest.raises(CommandRefused, match="does not answer"):
        await reconcile_payments(shop.service, since=since)
    for _ in range(3):
        shop.clock.tick(minutes=10)
        await shop.sweep()
    row = await compared(shop)
    assert (row.status, row.tries > 1) == ("waiting", True)
    shop.line.broken.clear()
    await shop.restart()
    shop.clock.tick(hours=1)
    await shop.sweep()
    assert len(await noted(shop)) == 1


async def test_reconciliation_without_a_provider_says_that_nothing_was_compared(
    here: Service,
) -> None:
    with pytest.raises(CommandRefused, match="nothing was compared"):
        await reconcile_payments(here, since=here.clock())


async def test_reconciliation_reads_every_page_of_the_provider_list(shop: Shop) -> None:
    since = shop.clock()
    for number in range(250):
        await shop.make_session(client_reference_id=f"another-{number}")
    before = records_of(shop)
    async with buying(shop) as buy:
        await buy.pay()
        await buy.result()
    for number in range(150):
        await shop.make_session(client_reference_id=f"later-{number}")
    await put_back(shop, before)
    lines = await reconcile_payments(shop.service, since=since)
    (line,) = [line for line in lines if line.startswith("stripe:")]
    assert line.startswith("stripe: 1 payment pages of this server since 2026-03-01 12:00 UTC.")
    assert len(await noted(shop)) == 1
    assert sum(call == LISTING for call in shop.line.calls) == 5


async def test_mollie_payments_are_reconciled() -> None:
    provider = Mollie()
    async with selling(mollie("test_abc"), provider) as env:
        since = env.clock()
        await env.begun()
        provider.payments["tr_1"]["status"] = "paid"
        store = MemoryStore()
        async with selling(mollie("test_abc"), provider, store=store) as other:
            (line,) = await reconcile_payments(other.service, since=since - timedelta(hours=1))
            assert "1 are paid and need a check" in line


async def test_reconciliation_names_providers_without_a_list(shop: Shop) -> None:
    provider = PayPal()
    async with selling(paypal("cid", "cs", is_live=False), provider) as env:
        lines = await reconcile_payments(env.service, since=timedelta(hours=1))
        assert lines == [
            "paypal cannot list payment pages, so they cannot be compared: check at the provider."
        ]


async def test_reconciliation_since_a_future_time_is_refused(shop: Shop) -> None:
    with pytest.raises(CommandRefused, match="in the future"):
        await reconcile_payments(shop.service, since=shop.clock() + timedelta(hours=1))


async def buy_again(shop: Shop) -> str:
    async with shop.env.caller("legacy") as caller:
        return await caller.text("report")


async def _sessions(shop: Shop) -> list[dict[str, str]]:
    found: list[dict[str, str]] = (await shop._in_sandbox("checkout/sessions?limit=100"))["data"]
    return found


def _id(page: str) -> str:
    return page.rsplit("/", 1)[1]
