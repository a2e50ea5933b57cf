"""Events after a payment: refunds made at the provider, and banks' claims.

The provider reports each refund and claim by an event only, once or twice, in any order, before or
after the event of the payment itself.
"""

import itertools
import json
from typing import Any

import pytest

from flows import Receipt
from flows.payments.receipt import Payment
from tests.support.disputes import CLOSED, CREATED, claim, claimed, unused_payment
from tests.support.mcp_server import eventually
from tests.support.paying import give_up, results_are_noted, two_tabs
from tests.support.payment_events import sent_event
from tests.support.shop_env import Buying, Shop, buying

INTENT = "GET /stripe/v1/payment_intents/"


async def bought(shop: Shop, buy: Buying) -> Payment:
    """Pay, use the payment, and return it."""
    assert await buy.paid() == "paid 9.00 EUR"
    await results_are_noted(shop)
    return (await shop.payments())[-1]


async def refunded_first(shop: Shop, buy: Buying, **about: str) -> tuple[bytes, bytes, str]:
    """Pay and refund at the provider. Return the refund's event, the payment's event and the id."""
    await buy.person.pay(buy.link)
    (paid,) = shop.post
    intent = json.loads(paid)["data"]["object"]["payment_intent"]
    await shop.refund_at_provider(intent, **about)
    _, refunded = shop.post
    shop.post.clear()
    return refunded, paid, intent


# Refunds and claims that the server finds by asking the provider, without an event.


@pytest.mark.parametrize(
    ("provider", "presses", "becomes", "shows"),
    [
        ("stripe", ["card", "claim"], "disputed", "9.00 € is disputed"),
        ("mollie", ["paid", "chargeback"], "disputed", "9.00 € was taken back by your bank"),
        ("mollie", ["paid", "part", "part"], "refunded", "9.00 € was refunded"),
    ],
)
async def test_refunded_or_disputed_payment_found_on_return_is_not_given_to_the_tool(
    shop: Shop, provider: str, presses: list[str], becomes: str, shows: str
) -> None:
    # finding: M2
    shop.provider = provider
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        back = await buy.person.press_there(there, presses[0])
        for button in presses[1:]:
            await buy.person.press_there(there, button)
        shop.post.clear()
        assert (await buy.person.come_back(back)).heading == shows
        assert "paid" not in await buy.result()
        assert (shop.bodies, await shop.ledger()) == (0, [becomes])
        await buy.is_asked_again()


async def test_provider_refund_found_on_return_asks_for_payment_again(shop: Shop) -> None:
    # finding: M2
    async with buying(shop) as buy:
        back = await buy.person.pay(buy.link)
        intent = json.loads(shop.post[0])["data"]["object"]["payment_intent"]
        await shop.refund_at_provider(intent)
        shop.post.clear()
        assert (await buy.person.come_back(back)).heading == "9.00 € was refunded"
        assert "the payment was refunded or charged back" in await buy.result()
        assert (shop.bodies, await shop.ledger()) == (0, ["refunded"])
        await buy.is_asked_again()


async def test_dispute_found_by_polling_ends_with_the_won_event(shop: Shop) -> None:
    # finding: M2
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        back = await buy.person.press_there(there, "card")
        await buy.person.press_there(there, "claim")
        shop.post.clear()
        await buy.person.visit(back)
        assert await shop.ledger() == ["disputed"]
        await buy.result()
        await buy.person.press_there(there, "won")
        await eventually(lambda: shop.post)
        await shop.send_all()
        await shop.sweep()
        assert await shop.ledger() == ["open"]


# Refunds made at the provider.


async def test_payment_refunded_at_the_provider_is_not_given_to_a_tool(shop: Shop) -> None:
    async with buying(shop) as buy:
        await unused_payment(shop, buy)
        await shop.refund_by_hand()
        assert await shop.send_all() == ["refunded"]
        (payment,) = await shop.payments()
        assert (payment.status, payment.refunded) == ("refunded", 900)
        assert "refunded in the meantime" in await buy.again()
        await buy.is_asked_again()
        assert shop.bodies == 0


async def test_used_payment_refunded_at_the_provider_is_refunded_in_the_ledger(shop: Shop) -> None:
    async with buying(shop) as buy:
        await bought(shop, buy)
        await shop.refund_by_hand()
        await shop.send_all()
        (payment,) = await shop.payments()
        assert (payment.status, payment.refunded_at) == ("refunded", shop.clock())
        assert payment.spent_at is not None


async def test_permanent_purchase_refunded_at_the_provider_has_to_be_paid_again(
    shop: Shop,
) -> None:
    shop.is_for_good = True
    async with buying(shop) as buy:
        await bought(shop, buy)
        assert await buy.again() == "paid 9.00 EUR"
        await shop.refund_by_hand()
        await shop.send_all()
        await buy.is_asked_again()


async def test_partial_refund_at_the_provider_leaves_the_payment_usable(shop: Shop) -> None:
    async with buying(shop) as buy:
        await unused_payment(shop, buy)
        await shop.refund_by_hand(amount="300")
        assert await shop.send_all() == ["open"]
        (payment,) = await shop.payments()
        assert (payment.refunded, payment.is_part_refunded) == (300, True)
        assert await buy.again() == "paid 9.00 EUR"


async def test_rest_of_a_partly_refunded_payment_is_refunded_automatically(shop: Shop) -> None:
    async with buying(shop) as buy:
        await unused_payment(shop, buy)
        await shop.refund_by_hand(amount="300")
        await shop.send_all()
        shop.clock.tick(days=7)
        await shop.sweep()
        assert await shop.ledger() == ["refunded"]
        assert sorted(refund["amount"] for refund in await shop.refunds()) == [300, 600]


async def test_partial_refund_events_in_any_order_add_up_to_a_full_refund(shop: Shop) -> None:
    async with buying(shop) as buy:
        await unused_payment(shop, buy)
        for amount in ("100", "300", "500"):
            await shop.refund_by_hand(amount=amount)
        latest, *earlier = reversed(shop.post)
        shop.post[:] = [latest, *earlier, latest]
        await shop.send_all()
        (payment,) = await shop.payments()
        assert (payment.status, payment.refunded) == ("refunded", 900)


async def test_refund_event_before_its_payment_waits_and_is_applied(shop: Shop) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        refunded, paid, _ = await refunded_first(shop, buy)
        assert (await shop.send(refunded)).json() == {"received": "waiting"}
        assert await shop.ledger() == []
        await shop.sweep()
        assert (await shop.ledger(), await shop.statuses()) == (["refunded"], ["failed"])
        await shop.send(paid)
        assert await shop.ledger() == ["refunded"]
        assert {hook.status for hook in await shop.webhooks()} == {"applied", "repeated"}


@pytest.mark.parametrize("by_another_process", [False, True])
async def test_payment_whose_refund_event_came_first_is_not_given_to_a_waiting_tool(
    shop: Shop, *, by_another_process: bool
) -> None:
    # finding: M1
    other = await shop.process()
    async with buying(shop) as buy:
        refunded, paid, _ = await refunded_first(shop, buy)
        reported = await shop.send(refunded, to=other if by_another_process else None)
        assert reported.json() == {"received": "waiting"}
        await shop.send(paid)
        assert "refunded in the meantime" in await buy.result()
        assert (shop.bodies, await shop.ledger()) == (0, ["refunded"])
        (payment,) = await shop.payments()
        assert payment.version == 1  # the payment was written only once
        assert {hook.status for hook in await shop.webhooks()} == {"applied"}
        await buy.is_asked_again()
    await other.ended()


async def test_partial_refunds_received_before_the_payment_are_stored_when_the_tool_runs(
    shop: Shop,
) -> None:
    # finding: M1
    seen: list[int] = []

    async def look(_: Receipt) -> str:
        seen.extend([payment.refunded for payment in await shop.payments()])
        return "done"

    shop.body = look
    async with buying(shop) as buy:
        first, paid, intent = await refunded_first(shop, buy, amount="100")
        await shop.refund_at_provider(intent, amount="200")
        for event in (shop.post.pop(), first, first, paid):
            await shop.send(event)
        assert (await buy.result(), seen) == ("done", [300])


async def test_event_about_our_own_refund_changes_nothing(shop: Shop) -> None:
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        shop.clock.tick(days=7)
        await shop.sweep()
        (before,) = await shop.payments()
        assert await shop.send_all() == ["refunded"]
        (after,) = await shop.payments()
        assert (after.refunded_at, after.refund_id) == (before.refunded_at, before.refund_id)
        assert payment.id == after.id


async def test_refund_of_one_tabs_payment_does_not_change_the_other_tabs_payment(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        first, second = await two_tabs(shop, buy)
        await buy.person.press_there(first, "card")
        shop.clock.tick(seconds=1)
        await buy.person.press_there(second, "card")
        await shop.send_all()
        await buy.result()
        await shop.refund_by_hand()
        await shop.send_all()
        assert sorted(await shop.ledger()) in (["open", "refunded"], ["refunded", "spent"])


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"livemode": True}, "mode"),
        ({"account": "acct_another"}, "account"),
        ({"currency": "usd"}, "currency"),
    ],
)
async def test_event_that_contradicts_the_payment_is_stored_as_refused(
    shop: Shop, changes: dict[str, Any], why: str
) -> None:
    async with buying(shop) as buy:
        await unused_payment(shop, buy)
        await shop.refund_by_hand()
        event = json.loads(shop.post.pop())
        if "currency" in changes:
            event["data"]["object"].update(changes)
        else:
            event.update(changes)
        assert (await shop.send(event)).json() == {"received": "refused"}
        assert await shop.ledger() == ["open"]
        assert [hook.why for hook in await shop.webhooks() if hook.status == "refused"] == [why]


async def test_refund_of_another_sale_changes_nothing_and_is_not_looked_up(shop: Shop) -> None:
    charge = {
        "id": "ch_9",
        "object": "charge",
        "amount": 900,
        "amount_refunded": 900,
        "currency": "eur",
        "metadata": {},
        "payment_intent": "pi_of_another_sale",
    }
    assert (await shop.send(sent_event("charge.refunded", charge))).json() == {
        "received": "ignored"
    }
    named = sent_event(
        "charge.refunded", {**charge, "metadata": {"elicitation": "x" * 60}}, id="evt_2"
    )
    assert (await shop.send(named)).json() == {"received": "waiting"}
    await shop.sweep()
    assert sorted(hook.status for hook in await shop.webhooks()) == ["ignored", "unknown"]
    assert shop.line.calls == [], "no request about the unknown refund goes to the provider"


# Banks' claims.


async def test_repeated_payment_event_does_not_drop_a_waiting_dispute(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        there = await buy.press("bank")
        await buy.person.press_there(there, "arrive")
        *_, arrived = shop.post
        await shop.send_all()
        await buy.result()
        (payment,) = await shop.payments()
        assert (await shop.send(claim(payment))).json() == {"received": "waiting"}
        again = json.loads(arrived) | {"id": "evt_again"}
        await shop.send(again)
        await shop.sweep()
        assert await shop.ledger() == ["disputed"]


async def test_disputed_payment_is_neither_given_to_a_tool_nor_refunded(shop: Shop) -> None:
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        assert await claimed(shop, payment) == "disputed"
        assert shop.line.count(INTENT) == 1
        assert "disputed at the person's bank" in await buy.again()
        await buy.is_asked_again()
        assert shop.bodies == 0
        shop.clock.tick(days=8)
        await shop.sweep()
        assert (await shop.ledger(), await shop.refunds()) == (["disputed"], [])


async def test_payment_whose_dispute_event_came_first_is_not_given_to_a_waiting_tool(
    shop: Shop,
) -> None:
    # finding: M1
    async with buying(shop) as buy:
        _, paid, intent = await refunded_first(shop, buy, amount="100")
        about = {"id": "dp_1", "object": "dispute", "payment_intent": intent}
        assert (await shop.send(sent_event(CREATED, about))).json() == {"received": "waiting"}
        await shop.send(paid)
        assert "disputed at the person's bank" in await buy.result()
        assert (shop.bodies, await shop.ledger()) == (0, ["disputed"])


async def test_won_dispute_makes_the_payment_usable_again(shop: Shop) -> None:
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        await claimed(shop, payment)
        assert await claimed(shop, payment, CLOSED, status="won") == "open"
        assert await buy.again() == "paid 9.00 EUR"


async def test_lost_dispute_leaves_the_payment_disputed(shop: Shop) -> None:
    async with buying(shop) as buy:
        payment = await bought(shop, buy)
        await claimed(shop, payment)
        assert await claimed(shop, payment, CLOSED, status="lost") == "disputed"
        (after,) = await shop.payments()
        assert (after.disputes, after.spent_at) == ({"dp_1": "lost"}, payment.spent_at)


@pytest.mark.parametrize(("ends", "stands"), [("won", "spent"), ("lost", "disputed")])
async def test_dispute_whose_closing_event_arrives_first_ends_the_same(
    shop: Shop, ends: str, stands: str
) -> None:
    async with buying(shop) as buy:
        payment = await bought(shop, buy)
        assert await claimed(shop, payment, CLOSED, status=ends) == stands
        assert await claimed(shop, payment) == stands


async def test_permanent_purchase_has_to_be_paid_again_while_disputed(shop: Shop) -> None:
    shop.is_for_good = True
    async with buying(shop) as buy:
        payment = await bought(shop, buy)
        await claimed(shop, payment)
        link = await buy.is_asked_again()
        await buy.person.pay(link)
        await shop.send_all()
        await results_are_noted(shop)
        assert await claimed(shop, payment, CLOSED, status="won") == "spent"
        assert await shop.ledger() == ["spent", "spent"]
        assert await buy.again() == "paid 9.00 EUR"


async def test_dispute_of_another_sale_is_stored_as_unknown_and_changes_nothing(shop: Shop) -> None:
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        foreign = claim(payment, payment_intent="pi_of_another_sale")
        await shop.send(foreign)
        await shop.sweep()
        assert await shop.ledger() == ["open"]
        assert "unknown" in {hook.status for hook in await shop.webhooks()}


async def test_dispute_is_applied_when_the_provider_is_reachable_again(shop: Shop) -> None:
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        shop.line.is_down = True
        assert await claimed(shop, payment) == "open"
        shop.line.is_down = False
        await shop.sweep()
        assert await shop.ledger() == ["disputed"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_refund_and_dispute_events_in_any_order_end_the_same(
    shop: Shop, order: tuple[int, ...]
) -> None:
    async with buying(shop) as buy:
        payment = await bought(shop, buy)
        await shop.refund_by_hand()
        events = [
            shop.post.pop(),
            json.dumps(claim(payment)).encode(),
            json.dumps(claim(payment, CLOSED, status="lost")).encode(),
        ]
        for number in order:
            await shop.send(events[number])
            await shop.sweep()
        (after,) = await shop.payments()
        assert (after.status, after.disputes) == ("refunded", {"dp_1": "lost"})
