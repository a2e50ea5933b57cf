"""Events after the sale: disputes, refunds that fail later, and the provider's other events."""

import asyncio
import json
from typing import Any

import pytest

from flows.payments.session import PAID_OTHERWISE
from tests.support.disputes import claim, unused_payment
from tests.support.mcp_server import eventually, text_of
from tests.support.paying import give_up, results_are_noted
from tests.support.payment_events import COMPLETED, sent_event
from tests.support.shop_env import REFUND, Buying, Shop, buying
from webapp.cli.payments import end_payment, list_payments, refund_payment
from webapp.command import CommandRefused
from webapp.operations.payment_rows import PaymentRow
from webapp.records.ids import tail_of


async def listed(shop: Shop) -> PaymentRow:
    (row,) = (await list_payments(shop.service, only_open=False)).rows
    return row


async def given_back(shop: Shop, **about: Any) -> str:
    (payment,) = await shop.payments()
    (line,) = await refund_payment(
        shop.service, tail_of(payment), reason=None, also_spent=False, **about
    )
    return line


async def happens(shop: Shop, buy: Buying, there: str, *buttons: str) -> list[bytes]:
    """Press buttons at the provider. Return the events that it sends, without delivering them."""
    reported = len(shop.post) + len([button for button in buttons if button != "slow"])
    for button in buttons:
        await buy.person.press_there(there, button)
    await eventually(lambda: len(shop.post) >= reported)
    post, shop.post[:] = [*shop.post], []
    return post


async def unused_payment_page(shop: Shop, buy: Buying) -> str:
    """Pay for a call that was abandoned, and return the provider's page of the unused payment."""
    await give_up(shop, buy)
    there = await buy.press("card")
    await shop.send_all()
    assert await shop.ledger() == ["open"]
    return there


# Disputes.


@pytest.mark.parametrize("number", [0, 1, 2, 3])
async def test_dispute_takes_the_providers_current_state_whichever_event_arrives(
    shop: Shop, number: int
) -> None:
    # finding: XM3
    async with buying(shop) as buy:
        there = await unused_payment_page(shop, buy)
        reported = await happens(shop, buy, there, "claim", "lost", "appeal", "won")
        await shop.send(reported[number])
        await shop.sweep()
        assert await shop.ledger() == ["open"]
        assert (await listed(shop)).disputes == {f"dp_{intent_of(reported[0])}": "won"}
        assert await buy.again() == "paid 9.00 EUR"


async def test_lost_dispute_with_a_won_appeal_counts_as_won(
    shop: Shop,
) -> None:
    # finding: XM3
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        steps = ("needs_response", "lost", "appeal_needs_response", "appeal_under_review", "won")
        for number, status in enumerate(steps):
            event = claim(payment, "charge.dispute.updated", status=status)
            event |= {"id": f"evt_{number}", "created": event["created"] + number}
            await shop.send(event)
            await shop.sweep()
            assert await shop.ledger() == ["open" if status == "won" else "disputed"]


async def test_bank_inquiry_leaves_the_payment_usable(shop: Shop) -> None:
    # finding: XM4
    async with buying(shop) as buy:
        there = await unused_payment_page(shop, buy)
        for event in await happens(shop, buy, there, "inquiry"):
            await shop.send(event)
        await shop.sweep()
        row = await listed(shop)
        assert (row.standing, row.is_open, row.disputed) == ("open", True, 0)
        assert "a bank inquiry" in (row.note or "")
        assert await buy.again() == "paid 9.00 EUR"
        await results_are_noted(shop)
        # An inquiry needs an answer to the bank even after the payment was used.
        assert (await listed(shop)).is_open
        for event in await happens(shop, buy, there, "closed"):
            await shop.send(event)
        await shop.sweep()
        assert not (await listed(shop)).is_open


async def test_partial_dispute_withdraws_only_the_disputed_amount(shop: Shop) -> None:
    # finding: XM4
    async with buying(shop) as buy:
        there = await unused_payment_page(shop, buy)
        for event in await happens(shop, buy, there, "claim_part"):
            await shop.send(event)
        await shop.sweep()
        row = await listed(shop)
        assert (row.standing, row.disputed) == ("open", 450)
        assert "4.50 EUR of it is disputed" in (row.note or "")
        page = await buy.person.visit(f"{shop.url}/payments")
        assert "of it is disputed at your bank" in page.text
        assert await buy.again() == "paid 9.00 EUR"
        for event in await happens(shop, buy, there, "lost"):
            await shop.send(event)
        await shop.sweep()
        await ends_in(shop, ["spent"])
        row = await listed(shop)
        assert (row.is_open, row.note) == (False, "a dispute withdrew 4.50 EUR of it")
        page = await buy.person.visit(f"{shop.url}/payments")
        assert "Your bank has taken back" in page.text


async def test_dispute_of_the_rest_after_a_partial_refund_disputes_the_payment(shop: Shop) -> None:
    # finding: XM4
    async with buying(shop) as buy:
        there = await unused_payment_page(shop, buy)
        await happens(shop, buy, there, "claim_part")
        await given_back(shop, amount="4.50")
        await shop.send((await happens(shop, buy, there, "lost"))[-1])
        await shop.sweep()
        assert await shop.ledger() == ["disputed"]
        row = await listed(shop)
        assert row.note == "4.50 EUR of it refunded, a dispute withdrew 4.50 EUR of it"


# Refunds that fail later.


@pytest.mark.parametrize("is_reported", [True, False])
@pytest.mark.parametrize("amount", [None, "3.00"])
async def test_refund_that_fails_later_is_listed_as_owed_and_can_be_repeated(
    shop: Shop, amount: str | None, *, is_reported: bool
) -> None:
    # finding: XM6
    async with buying(shop) as buy:
        there = await unused_payment_page(shop, buy)
        await happens(shop, buy, there, "slow")
        assert "is being refunded" in await given_back(shop, amount=amount)
        shop.post.clear()
        shop.clock.tick(days=3)
        for event in await happens(shop, buy, there, "refund_fails"):
            if is_reported:
                await shop.send(event)
        await shop.sweep()
        owed = 900 if amount is None else 300
        row = await listed(shop)
        assert (row.is_open, row.owed, row.refunded) == (True, owed, 0)
        assert "failed: refund it again, or run elicit payments done" in (row.note or "")
        assert "is being refunded" in await given_back(shop, amount=amount)
        row = await listed(shop)
        assert (row.owed, row.refunded) == (0, owed)
        refunds = await shop.refunds()
        assert [one["status"] for one in refunds] == ["pending", "failed"]
        # With the same key, the provider would repeat its earlier answer.
        assert len(set(shop.line.keys[-2:])) == 2


async def test_refund_command_detects_a_failed_refund_and_refunds_again(shop: Shop) -> None:
    # finding: XM6
    async with buying(shop) as buy:
        there = await unused_payment_page(shop, buy)
        await given_back(shop)
        await happens(shop, buy, there, "refund_fails")
        assert (await listed(shop)).standing == "refunded"
        assert (await given_back(shop)).startswith("9.00 EUR is refunded")
        assert [one["status"] for one in await shop.refunds()] == ["succeeded", "failed"]
        assert "was refunded on" in await given_back(shop)


async def test_pending_refund_is_shown_as_pending_until_its_arrival(shop: Shop) -> None:
    # finding: XM6
    async with buying(shop) as buy:
        there = await unused_payment_page(shop, buy)
        await happens(shop, buy, there, "slow")
        await given_back(shop)
        assert (await listed(shop)).standing == "refund pending"
        assert "has not confirmed it yet" in await given_back(shop)
        page = await buy.person.visit(buy.link)
        assert page.heading == "9.00 € is being refunded"
        await happens(shop, buy, there, "refund_arrives")
        shop.clock.tick(days=1)
        await shop.sweep()
        assert (await listed(shop)).standing == "refunded"


async def test_operator_can_close_a_failed_refund_as_done(shop: Shop) -> None:
    # finding: XM6
    async with buying(shop) as buy:
        there = await unused_payment_page(shop, buy)
        await given_back(shop)
        for event in await happens(shop, buy, there, "refund_fails"):
            await shop.send(event)
        page = await buy.person.visit(buy.link)
        assert page.heading == "A refund of 9.00 € failed"
        (payment,) = await shop.payments()
        (line,) = await end_payment(shop.service, tail_of(payment))
        assert line == "9.00 EUR counts as refunded, and is no longer listed."
        assert not (await listed(shop)).is_open
        assert await shop.ledger() == ["refunded"]


async def test_failure_event_of_an_earlier_refund_does_not_undo_a_later_refund(
    shop: Shop,
) -> None:
    # finding: XM6
    async with buying(shop) as buy:
        there = await unused_payment_page(shop, buy)
        await happens(shop, buy, there, "slow")
        shop.line.lost.append(REFUND)  # the reply to the first refund is lost
        shop.line.broken.append("GET /stripe/v1/refunds")
        with pytest.raises(CommandRefused):
            await given_back(shop)
        shop.line.broken.clear()
        (failed,) = (await happens(shop, buy, there, "refund_fails"))[-1:]
        await shop.send(failed)
        shop.clock.tick(minutes=6)
        await shop.sweep()
        assert [one["status"] for one in await shop.refunds()] == ["pending", "failed"]
        await shop.send({**json.loads(failed), "id": "evt_again"})
        await shop.sweep()
        row = await listed(shop)
        assert (row.standing, row.owed, row.refunded) == ("refund pending", 0, 900)


# Routine events of our own sales.

ORDINARY = {
    "payment_intent": ("payment_intent.created", "payment_intent.succeeded"),
    "charge": ("charge.succeeded", "charge.updated"),
    "refund": ("refund.created", "refund.updated", "charge.refund.updated"),
}


@pytest.mark.parametrize("kind", list(ORDINARY))
async def test_routine_events_of_our_own_sales_are_accepted_without_warnings(
    shop: Shop, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    # finding: XM7
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        await given_back(shop)
        (refund,) = await shop.refunds()
        metadata = {"elicitation": payment.elicitation_id}
        about = {
            "payment_intent": {"id": payment.payment_intent, "status": "succeeded"},
            "charge": {"id": refund["charge"], "payment_intent": payment.payment_intent},
            "refund": {**refund, "metadata": {**refund["metadata"], **metadata}},
        }[kind]
        about = {"object": kind, "metadata": metadata, **about}
        for number, name in enumerate(ORDINARY[kind]):
            answer = await shop.send(sent_event(name, about, id=f"evt_{number}"))
            assert answer.status_code == 200
        await shop.sweep()
        assert "refused" not in {hook.status for hook in await shop.webhooks()}
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
        assert await shop.ledger() == ["refunded"]


# A different amount was paid, or the provider sends an unknown status.


async def test_model_sees_at_once_that_a_different_amount_was_paid(shop: Shop) -> None:
    # finding: XM8
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        event = json.loads(shop.post.pop())
        event["data"]["object"] |= {"amount_total": 1071}
        shop.line.amends |= {"amount_total": 1071}
        await shop.send(event)
        assert "must not pay again" in await buy.result()
        page = await buy.person.visit(buy.link)
        assert page.heading == "A different amount was paid"
        again = text_of(await buy.caller.result("report"))
        assert PAID_OTHERWISE in again
        assert "must not pay again" in again
        assert not buy.caller.has_links_left


async def test_unknown_status_in_an_event_of_another_product_is_accepted(shop: Shop) -> None:
    # finding: XM10
    other = await shop.make_session(client_reference_id="another-product")
    for number, words in enumerate(({"payment_status": "escrowed"}, {"status": "parked"})):
        answer = await shop.send(sent_event(COMPLETED, {**other, **words}, id=f"evt_{number}"))
        assert answer.status_code == 200


async def test_unknown_status_of_our_payment_is_logged_and_checked_at_the_provider(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    # finding: XM10
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        paid = shop.post.pop()
        event = json.loads(paid)
        event["data"]["object"] |= {"payment_status": "escrowed"}
        assert (await shop.send(event)).status_code == 200
        (line,) = [one for one in caplog.records if one.getMessage() == "payment.unknown_status"]
        assert vars(line)["why"] == "escrowed"
        (row,) = (await list_payments(shop.service, only_open=True)).rows
        assert row.standing == "on its way"
        await shop.expire()  # the provider is asked, and now knows the result
        assert await shop.ledger() == ["open"]


def intent_of(event: bytes) -> str:
    about: str = json.loads(event)["data"]["object"]["payment_intent"]
    return about.removeprefix("pi_")


async def ends_in(shop: Shop, ledger: list[str]) -> None:
    while sorted(await shop.ledger()) != ledger:  # noqa: ASYNC110
        await asyncio.sleep(0)
