"""Webhooks as a thief and a confused provider send them, and what the person notices.

All webhooks are signed, because every seller with the same account can cause an authentic event. An
event that differs from the request is stored with its reason, answered with 2xx, and settles
nothing.
"""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from flows import Money
from tests.support.mcp_server import LEGACY, cut, eventually
from tests.support.payment_events import COMPLETED, EXPIRED, FAILED, SUCCEEDED, sent_event
from tests.support.shop_env import CREATE, Buying, Shop, buying
from webapp.cli.payments import list_payments

PAID = {"status": "complete", "payment_status": "paid", "payment_intent": "pi_thief"}
UNPAID = {"status": "complete", "payment_status": "unpaid", "payment_intent": "pi_1"}


async def begun(shop: Shop, buy: Buying) -> dict[str, Any]:
    """Press Continue, and return the provider's session."""
    return await shop.session((await buy.person.go_on(buy.link)).rsplit("/", 1)[1])


async def gone(shop: Shop, buy: Buying) -> None:
    """Disconnect the client. The question stays open."""
    await cut(buy.call)
    await eventually(lambda: not len(shop.service.elicitations.waiters))


async def acknowledged(shop: Shop, body: dict[str, Any]) -> None:
    answer = await shop.send(body)
    assert answer.status_code == 200, answer.text


async def webhook_statuses(shop: Shop) -> list[tuple[str, str | None]]:
    return [(hook.status, hook.why) for hook in await shop.webhooks()]


async def nothing_is_settled(shop: Shop, buy: Buying) -> None:
    assert (await shop.statuses(), await shop.ledger()) == (["opened"], [])
    assert not buy.call.done()
    assert shop.bodies == 0


async def is_paid_otherwise(shop: Shop, buy: Buying) -> None:
    """Check that the tool is notified of the mismatch and gets no payment."""
    assert "paid differently than requested" in await buy.result()
    assert (await shop.ledger(), shop.bodies) == ([], 0)


async def can_still_be_paid(shop: Shop, buy: Buying) -> None:
    """Check that the attack did no harm: the person pays and the tool returns."""
    await buy.person.pay(buy.link)
    await shop.send_all()
    assert await buy.result() == "paid 9.00 EUR"
    assert len(await shop.payments()) == 1


@pytest.mark.parametrize(
    ("changes", "about_event", "why"),
    [
        ({"amount_total": 1}, {}, "amount"),
        ({"amount_total": 90000}, {}, "amount"),
        ({"amount_total": 0, "payment_status": "no_payment_required"}, {}, "amount"),
        ({"currency": "usd"}, {}, "currency"),
        ({"currency": "vnd"}, {}, "currency"),
        ({"livemode": True}, {}, "mode"),
        ({}, {"livemode": True}, "mode"),
        ({}, {"account": "acct_thief"}, "account"),
    ],
)
async def test_payment_that_differs_from_the_request_settles_nothing(
    shop: Shop, changes, about_event, why, buy
):
    session = await begun(shop, buy)
    await acknowledged(shop, sent_event(COMPLETED, {**session, **PAID, **changes}, **about_event))
    assert await webhook_statuses(shop) == [("refused", why)]
    await shop.sweep()
    if why == "account":  # the event is not about us
        await nothing_is_settled(shop, buy)
        await can_still_be_paid(shop, buy)
        return
    # The money is ours, so the operator must decide.
    await is_paid_otherwise(shop, buy)
    listed = (await list_payments(shop.service, only_open=True)).rows
    assert any("requested 9.00 EUR" in str(row.note) for row in listed)
    assert (await buy.person.visit(buy.link)).heading == "A different amount was paid"
    await acknowledged(shop, sent_event(COMPLETED, {**session, **PAID}, id="evt_right"))
    assert await buy.again() == "paid 9.00 EUR"
    assert len(await shop.payments()) == 1


async def test_session_with_reference_to_another_question_settles_neither(shop: Shop, buy):
    mine = await begun(shop, buy)
    call = buy.caller.call("report", topic="coffee")
    link = await buy.caller.link()
    other = shop.env.id_of(link)
    event = sent_event(COMPLETED, {**mine, **PAID, "client_reference_id": other})
    await acknowledged(shop, event)
    await shop.sweep()
    assert await shop.ledger() == []
    assert not call.done()
    assert not buy.call.done()
    assert await webhook_statuses(shop) == [("refused", "session")]


async def test_payment_link_with_our_reference_is_stored_and_refused(shop: Shop, buy):
    session = await begun(shop, buy)
    link = {**session, **PAID, "id": "cs_test_thief", "payment_link": "plink_1"}
    await acknowledged(shop, sent_event(COMPLETED, link))
    assert await webhook_statuses(shop) == [("waiting", "session")]
    await nothing_is_settled(shop, buy)
    await shop.sweep()
    assert await webhook_statuses(shop) == [("refused", "session")]
    assert shop.line.count("cs_test_thief") == 0, "no session of an unknown payment link is fetched"
    await nothing_is_settled(shop, buy)
    await can_still_be_paid(shop, buy)


async def test_event_with_our_reference_before_continue_is_refused(shop: Shop, buy):
    about = {
        "id": "cs_test_thief",
        "amount_total": 900,
        "currency": "eur",
        "livemode": False,
        "client_reference_id": shop.env.id_of(buy.link),
        **PAID,
    }
    await acknowledged(shop, sent_event(COMPLETED, about))
    await shop.sweep()
    assert (await shop.statuses(), await shop.ledger()) == (["pending"], [])
    assert (await webhook_statuses(shop), shop.line.calls) == ([("refused", "session")], [])
    await can_still_be_paid(shop, buy)


async def test_unknown_session_waits_while_provider_is_down_and_is_then_refused(shop: Shop, buy):
    shop.line.is_down = True
    await buy.person.press(buy.link)  # the session's id is lost, so any session could be ours
    id = shop.env.id_of(buy.link)
    about = {"id": "cs_test_thief", "amount_total": 900, "currency": "eur", "livemode": False}
    await acknowledged(shop, sent_event(COMPLETED, {**about, **PAID, "client_reference_id": id}))
    await shop.sweep()
    assert await webhook_statuses(shop) == [("waiting", "session")]
    shop.line.is_down = False
    await shop.sweep()
    assert await webhook_statuses(shop) == [("refused", "session")]
    await nothing_is_settled(shop, buy)
    assert "Still waiting" in await buy.paid()  # the call has reached its time limit
    assert await buy.again() == "paid 9.00 EUR"
    assert len(await shop.payments()) == 1


async def test_repeated_refused_event_stays_refused(shop: Shop, buy):
    session = await begun(shop, buy)
    for _ in range(3):
        await acknowledged(shop, sent_event(COMPLETED, {**session, **PAID, "amount_total": 1}))
    await acknowledged(shop, sent_event(COMPLETED, {**session, **PAID}, account="acct_2"))
    assert await webhook_statuses(shop) == [("refused", "amount")]
    await is_paid_otherwise(shop, buy)


async def test_event_with_used_id_still_reports_the_payment(shop: Shop, buy):
    session = await begun(shop, buy)
    await acknowledged(shop, sent_event(COMPLETED, {**session, **PAID, "amount_total": 1}))
    await is_paid_otherwise(shop, buy)
    await acknowledged(shop, sent_event(COMPLETED, {**session, **PAID}))
    assert await buy.again() == "paid 9.00 EUR"
    assert len(await shop.payments()) == 1


async def test_unpaid_completed_session_settles_nothing(shop: Shop, buy):
    session = await begun(shop, buy)
    await acknowledged(shop, sent_event(COMPLETED, {**session, **UNPAID}))
    await acknowledged(shop, sent_event(SUCCEEDED, {**session, **UNPAID}, id="evt_2"))
    await acknowledged(
        shop, sent_event(COMPLETED, {**session, "status": "open", "payment_status": "unpaid"})
    )
    await nothing_is_settled(shop, buy)


@pytest.mark.parametrize("kind", [EXPIRED, FAILED])
async def test_expiry_or_failure_after_payment_does_not_undo_payment(shop: Shop, kind, buy):
    await gone(shop, buy)
    back = await buy.person.pay(buy.link)
    await shop.send_all()
    (payment,) = await shop.payments()
    session = await shop.session(payment.session)
    states: list[dict[str, Any]] = [{}, UNPAID, {"status": "expired", "payment_intent": None}]
    for number, state in enumerate(states):
        await acknowledged(shop, sent_event(kind, {**session, **state}, id=f"evt_{number}"))
    await shop.sweep()
    assert (await shop.statuses(), await shop.ledger()) == (["accepted"], ["open"])
    assert (await buy.person.come_back(back)).heading == "Paid 9.00 €"
    assert await buy.again() == "paid 9.00 EUR"


async def test_expired_checkout_leaves_question_open_and_next_press_starts_another(shop: Shop, buy):
    session = await begun(shop, buy)
    answer = await shop.send(sent_event(EXPIRED, {**session, "status": "expired", "url": None}))
    assert (answer.status_code, answer.json()) == (200, {"received": "expired"})
    await nothing_is_settled(shop, buy)
    await can_still_be_paid(shop, buy)


async def test_events_in_any_order_end_as_paid(shop: Shop, buy):
    session = await begun(shop, buy)
    events = [
        sent_event(SUCCEEDED, {**session, **PAID}, id="evt_3"),
        sent_event(COMPLETED, {**session, **UNPAID}, id="evt_2"),
        sent_event(FAILED, {**session, **UNPAID}, id="evt_4"),
        sent_event(EXPIRED, {**session, "status": "expired"}, id="evt_1"),
    ]
    for event in [*events, *events[::-1]]:
        await acknowledged(shop, event)
    assert await buy.result() == "paid 9.00 EUR"
    assert (await shop.statuses(), len(await shop.payments())) == (["accepted"], 1)


async def test_payment_for_one_question_never_pays_for_another(shop: Shop, buy):
    await gone(shop, buy)
    await buy.person.pay(buy.link)
    await shop.send_all()
    call = buy.caller.call("report", topic="coffee")
    link = await buy.caller.link()
    assert shop.env.id_of(link) != shop.env.id_of(buy.link)
    assert (await shop.ledger(), shop.bodies) == (["open"], 0)
    assert not call.done()


async def test_session_with_other_terms_when_fetched_settles_nothing(
    shop: Shop,
):
    async with buying(shop) as buy:
        shop.line.lost.append(CREATE)
        await buy.person.press(buy.link)
        await gone(shop, buy)
        (asked,) = await shop.asked()
    # The event names a session whose creation we never saw. When fetched, it has other terms.
    shop.line.amends = {"amount_total": 1, **PAID}
    learned = await shop.service.kinds.payments.checkouts.reconcile(asked)
    assert learned.attempt is not None
    assert isinstance(learned.attempt.kept, dict)
    session = await shop.session(str(learned.attempt.kept["session"]))
    strange = {**session, "id": "cs_test_strange"}
    await acknowledged(shop, sent_event(COMPLETED, {**strange, **PAID}))
    (hook,) = await shop.webhooks()
    await shop.service.elicitations.write(replace(hook, session=session["id"]))
    shop.price = Money("10.00", "EUR")
    async with buying(shop) as other:
        await gone(shop, other)
    shop.clock.tick(minutes=30)
    await shop.sweep()
    assert await shop.statuses() == ["expired", "expired"], (
        "a refused session does not delay the questions after it"
    )
    assert await shop.ledger() == []
    assert await webhook_statuses(shop) == [("refused", "amount")]


async def test_payment_for_erased_question_is_acknowledged_and_ignored(shop: Shop):
    async with buying(shop) as buy:
        session = await begun(shop, buy)
        await gone(shop, buy)
    for _ in range(2):
        shop.clock.tick(days=40)
        await shop.sweep()
    assert await shop.asked() == []
    await acknowledged(shop, sent_event(COMPLETED, {**session, **PAID}))
    assert await shop.ledger() == []


async def test_waiting_event_of_erased_question_is_refused_at_next_sweep(shop: Shop):
    async with buying(shop) as buy:
        session = await begun(shop, buy)
        await gone(shop, buy)
    await shop.expire()
    shop.clock.tick(days=29)
    await acknowledged(shop, sent_event(COMPLETED, {**session, **PAID, "id": "cs_test_thief"}))
    (hook,) = await shop.webhooks()
    (asked,) = await shop.asked()
    shop.clock.tick(days=2)
    await shop.store.erase(before=shop.clock())
    assert (await shop.asked(), await webhook_statuses(shop)) == ([], [("waiting", "session")])
    assert hook.elicitation_id == asked.id
    await shop.sweep()
    assert await webhook_statuses(shop) == [("refused", "erased")]


async def test_many_events_about_one_payment_leave_one_payment_and_one_result(shop: Shop):
    async with buying(shop) as buy:
        session = await begun(shop, buy)
        for number in range(20):
            kind = (COMPLETED, SUCCEEDED, FAILED, EXPIRED)[number % 4]
            await acknowledged(shop, sent_event(kind, {**session, **PAID}, id=f"evt_{number}"))
        assert await buy.result() == "paid 9.00 EUR"
        assert (len(await shop.payments()), shop.bodies) == (1, 1)
    shop.clock.tick(minutes=3)  # until then the same result is returned again
    async with shop.env.caller(LEGACY) as caller:
        _ = caller.call("report")
        assert shop.env.id_of(await caller.link()) != session["client_reference_id"]


async def test_refused_payment_shows_no_amount_from_the_event(shop: Shop, buy):
    session = await begun(shop, buy)
    answer = await shop.send(sent_event(COMPLETED, {**session, **PAID, "amount_total": 31337}))
    page = await buy.person.visit(buy.link)
    for text in (answer.text, page.text):
        assert "31337" not in text
        assert "pi_thief" not in text
    assert json.loads(answer.text) == {"received": "refused"}
