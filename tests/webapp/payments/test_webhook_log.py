"""The log of webhooks: verified ones are stored and can be replayed, others are counted."""

import asyncio
import itertools
import json
from datetime import timedelta
from typing import Any

import pytest

from tests.support.disputes import claim, unused_payment
from tests.support.mcp_server import LEGACY, eventually, soon, text_of
from tests.support.paying import give_up, two_tabs
from tests.support.payment_events import COMPLETED, sent_event
from tests.support.shop_env import Buying, Shop, buying
from tests.support.webhooks import a_session, only, replayed, signed
from webapp.cli.webhooks import list_hooks, replay_hook, show_hook
from webapp.command import CommandRefused
from webapp.operations.rows import WebhookRow
from webapp.records.ids import tail_of
from webapp.records.owners import SERVICE
from webapp.records.values import StoredWebhook


async def paid_event(shop: Shop, buy: Buying) -> dict[str, Any]:
    await buy.person.pay(buy.link)
    event: dict[str, Any] = json.loads(shop.post.pop())
    return event


async def statuses(shop: Shop) -> list[str]:
    return sorted(hook.status for hook in await shop.webhooks())


# Stored webhooks.


async def test_event_with_a_state_already_known_from_the_return_is_stored(shop: Shop) -> None:
    async with buying(shop) as buy:
        there = await buy.person.go_on(buy.link)
        away = (await shop.session(there.rsplit("/", 1)[1]))["cancel_url"]
        await buy.person.press_there(there, "bank")
        await buy.person.come_back(away)
        assert await shop.webhooks() == []
        await shop.send_all()
        assert await statuses(shop) == ["applied"]


async def test_every_webhook_is_stored_encrypted_for_thirty_days(shop: Shop) -> None:
    async with buying(shop) as buy:
        paid = await paid_event(shop, buy)
        for event in (
            paid,
            sent_event("invoice.paid", {"id": "in_1"}, id="evt_ignored"),
            sent_event(
                COMPLETED, await a_session(shop, client_reference_id="x" * 40), id="evt_unknown"
            ),
        ):
            assert (await shop.send(event)).status_code == 200
        assert await statuses(shop) == ["applied", "ignored", "unknown"]
        for hook in await shop.webhooks():
            assert json.loads(hook.body)["id"] == hook.event
            assert hook.erase_at == shop.clock() + timedelta(days=30)
        records = await shop.store.list("hook")
        assert not any(b"evt_" in record.sealed for record in records)
        shop.clock.tick(days=30)
        await shop.sweep()
        assert await shop.webhooks() == []


async def test_repeated_webhook_is_stored_once(shop: Shop) -> None:
    ignored = sent_event("invoice.paid", {"id": "in_1"})
    assert [(await shop.send(ignored)).json()["received"] for _ in range(3)] == [
        "ignored",
        "duplicate",
        "duplicate",
    ]
    assert await statuses(shop) == ["ignored"]


async def test_webhooks_of_the_same_transition_are_stored_and_applied_once(shop: Shop) -> None:
    async with buying(shop) as buy:
        paid = await paid_event(shop, buy)
        for id in ("evt_a", "evt_b", "evt_c", "evt_b"):
            assert (await shop.send({**paid, "id": id})).status_code == 200
        assert await buy.result() == "paid 9.00 EUR"
        assert await statuses(shop) == ["applied", "repeated", "repeated"]
        assert len(await shop.payments()) == 1


async def test_concurrent_webhooks_of_the_same_transition_are_applied_once(shop: Shop) -> None:
    other = await shop.process()
    async with buying(shop) as buy:
        paid = await paid_event(shop, buy)
        events = [{**paid, "id": f"evt_{number}"} for number in range(3)]
        await asyncio.gather(*(shop.send(event, to=to) for event in events for to in (None, other)))
        assert await statuses(shop) == ["applied", "repeated", "repeated"]
        assert await buy.result() == "paid 9.00 EUR"
    await other.ended()


async def test_webhook_of_a_second_payment_is_applied_and_only_its_copy_is_repeated(
    shop: Shop,
) -> None:
    async with buying(shop) as buy:
        for page in await two_tabs(shop, buy):
            await buy.person.press_there(page, "card")
        second = json.loads(shop.post[-1])
        await shop.send_all()
        assert await statuses(shop) == ["applied", "applied"]
        await shop.send({**second, "id": "evt_copy"})
        assert await statuses(shop) == ["applied", "applied", "repeated"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_events_of_a_transfer_in_any_order_end_the_same(
    shop: Shop, order: tuple[int, ...]
) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        there = await buy.press("bank")
        await buy.person.press_there(there, "arrive")
        payment_intent = json.loads(shop.post[-1])["data"]["object"]["payment_intent"]
        await shop.refund_at_provider(payment_intent, amount="300")
        events, shop.post[:] = tuple(shop.post), []
        for number in order:
            await shop.send(events[number])
            await shop.sweep()
        (payment,) = await shop.payments()
        assert (payment.status, payment.refunded) == ("open", 300)
        assert await shop.statuses() == ["accepted"]


# Replays.


async def test_replaying_an_applied_webhook_changes_nothing(shop: Shop) -> None:
    async with buying(shop) as buy:
        await shop.send(await paid_event(shop, buy))
        assert await buy.result() == "paid 9.00 EUR"
        before = (await shop.payments(), await shop.asked())
        hook = await only(shop, "applied")
        for _ in range(2):
            assert (await replayed(shop, hook)).endswith("  applied")
        assert (await shop.payments(), await shop.asked()) == before
        assert (await only(shop, "applied")).replayed_at == shop.clock()


async def test_replaying_a_refused_webhook_is_refused_and_settles_nothing(shop: Shop) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        paid = await paid_event(shop, buy)
        about = paid["data"]["object"]
        wrong = {**paid, "data": {"object": {**about, "amount_total": 1}}}
        assert (await shop.send(wrong)).json() == {"received": "refused"}
        refused = await only(shop, "refused")
        assert (await replayed(shop, refused)).endswith("  refused (amount)")
        assert await shop.ledger() == []
        foreign = {**paid, "id": "evt_2", "data": {"object": {**about, "id": "cs_test_9"}}}
        await shop.send(foreign)
        await shop.sweep()
        (other,) = [hook for hook in await shop.webhooks() if hook.why == "session"]
        assert (await replayed(shop, other)).endswith("  refused (session)")
        assert (await shop.send({**paid, "id": "evt_3"})).status_code == 200
        assert await shop.ledger() == ["open"]


async def test_replayed_webhook_wakes_the_waiting_call_in_another_process(shop: Shop) -> None:
    async with buying(shop) as buy:
        paid = await paid_event(shop, buy)
        other = await shop.process()
        row = StoredWebhook(
            id=f"{SERVICE}{'x' * 24}",
            owner=SERVICE,
            seller="stripe",
            elicitation_id="",
            session="",
            body=json.dumps(paid),
            received_at=shop.clock(),
            erase_at=shop.clock() + timedelta(days=30),
            status="unknown",  # as if the store had lost the question and got it back
        )
        await other.service.elicitations.write(row)
        (line,) = await replay_hook(other.service, tail_of(row))
        assert line.endswith("  applied")
        assert await buy.result() == "paid 9.00 EUR"
        await other.ended()


async def test_replaying_a_truncated_refused_webhook_is_refused_again(shop: Shop) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        paid = await paid_event(shop, buy)
        about = {**paid["data"]["object"], "id": "cs_test_9", "custom_text": "x" * 20_000}
        await shop.send({**paid, "data": {"object": about}})
        await shop.sweep()
        refused = await only(shop, "refused")
        assert (refused.is_whole, len(refused.body)) == (False, 16 * 1024)
        assert not (await show_hook(shop.service, tail_of(refused))).is_whole
        assert (await replayed(shop, refused)).endswith("  refused (session)")


async def test_replaying_a_dispute_event_leaves_a_single_dispute(shop: Shop) -> None:
    async with buying(shop) as buy:
        payment = await unused_payment(shop, buy)
        answer = await shop.send(claim(payment))
        assert answer.json() == {"received": "waiting"}
        await shop.sweep()
        hook = next(h for h in await shop.webhooks() if h.type == "charge.dispute.created")
        assert hook.status == "applied"
        await replayed(shop, hook)
        assert await shop.ledger() == ["disputed"]
        (disputed,) = await shop.service.kinds.payments.ledger.all()
        assert len(disputed.claims) == 1


async def test_operator_can_list_and_show_webhooks_with_their_status(shop: Shop) -> None:
    assert (await list_hooks(shop.service)).rows == []
    async with buying(shop) as buy:
        await shop.send(await paid_event(shop, buy))
        await buy.result()
        (hook,) = await shop.webhooks()
        (row,) = (await list_hooks(shop.service)).rows
        assert row == WebhookRow(
            id=tail_of(hook),
            provider="stripe",
            event="checkout.session.completed",
            status="applied",
            why=None,
            times=1,
            received_at=hook.received_at,
        )
        shown = await show_hook(shop.service, tail_of(hook)[:8])
        assert (shown.id, shown.is_of_ours) == (row.id, True)
        assert json.loads(shown.body)["id"] == shown.event_id == hook.event
        for work in (show_hook, replay_hook):
            with pytest.raises(CommandRefused, match="There is no webhook"):
                await work(shop.service, "x" * 24)


# Webhooks that failed verification.


async def test_unverified_webhooks_are_counted_by_day_and_reason(shop: Shop) -> None:
    for _ in range(3):
        await shop.deliver(b"{}", [])
    await shop.deliver(b"{}", signed(shop, b"[]"))
    await shop.send(b"[]")
    await shop.sweep()
    shop.clock.tick(days=1)
    await shop.deliver(b"{}", signed(shop, b"{}", days=1))
    await shop.sweep()
    rows = (await list_hooks(shop.service)).rows
    assert [(row.received_at.day, row.why, row.times) for row in rows] == [
        (2, "not verified: too_old", 1),
        (1, "not verified: bad_signature", 1),
        (1, "not verified: malformed", 1),
        (1, "not verified: missing_header", 3),
    ]
    assert await shop.webhooks() == []
    shop.clock.tick(days=31)
    await shop.sweep()
    assert (await list_hooks(shop.service)).rows == []


async def test_many_invalid_webhooks_write_a_row_and_a_log_line_per_minute(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    writes = 0
    for _ in range(5):
        for _ in range(20):
            await shop.deliver(b"{}", [])
        before = await shop.store.list("unverified")
        await shop.service.webhooks.log.write_counts()
        writes += await shop.store.list("unverified") != before
        shop.clock.tick(seconds=20)
    assert writes == 2
    lines = [r for r in caplog.records if r.getMessage() == "webhook.unverified"]
    assert len(lines) == 2
    shop.clock.tick(minutes=1)
    await shop.sweep()
    assert (await list_hooks(shop.service)).rows[-1].times == 100


async def test_unverified_counts_of_two_processes_are_added(shop: Shop) -> None:
    other = await shop.process()
    await shop.deliver(b"{}", [])
    await shop.deliver(b"{}", [], to=other)
    await asyncio.gather(
        shop.service.webhooks.log.write_counts(), other.service.webhooks.log.write_counts()
    )
    assert (await list_hooks(shop.service)).rows[-1].times == 2
    await other.ended()


async def test_call_after_a_replayed_payment_webhook_uses_the_payment(shop: Shop) -> None:
    async with buying(shop) as buy:
        await give_up(shop, buy)
        await shop.send(await paid_event(shop, buy))
        await replayed(shop, await only(shop, "applied"))
    async with shop.env.caller(LEGACY) as caller:
        call = caller.call("report")
        await eventually(lambda: call.done() or caller.has_links_left)
        assert text_of(await soon(call)) == "paid 9.00 EUR"
