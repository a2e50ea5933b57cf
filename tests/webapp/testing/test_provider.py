"""The payment provider's side of a test: refunds, disputes, valid and forged webhooks."""

import asyncio

import pytest

from flows import Money, elicit
from tests.support.mcp_server import new_server
from tests.webapp.testing.conftest import TEA
from webapp.testing.in_process import Responders


async def test_repeated_webhooks_count_once(elicit_person, shop):
    async with elicit_person(shop) as person:
        person.webhooks.arrive(duplicates=2)
        person.pays()
        assert (await person.call("buy_tea", cups=1)).text == "1 cups for 9.00 EUR"
        assert await person.webhooks.send_again() == 200
        assert [payment.status for payment in await person.payments()] == ["spent"]


async def test_payment_with_lost_webhook_is_found_on_return(elicit_person, shop):
    async with elicit_person(shop) as person:
        person.webhooks.arrive(drop=True)
        person.pays()
        assert (await person.call("buy_tea", cups=1)).text == "1 cups for 9.00 EUR"


async def test_forged_or_foreign_webhook_pays_nothing(elicit_person, shop):
    async with elicit_person(shop) as person:
        person.pays()
        await person.call("buy_tea", cups=1)
        (paid,) = await person.payments()
        assert await person.webhooks.send_forged() == 400
        assert await person.webhooks.send_foreign(paid.session) == 200
        assert await person.payments() == [paid]


async def test_webhook_cannot_be_resent_before_payment(elicit_person, shop):
    async with elicit_person(shop) as person:
        with pytest.raises(AssertionError, match="let the person pay first"):
            await person.webhooks.send_again()


# finding: XA14
async def test_provider_reports_refund_of_part_and_of_rest(elicit_person, shop):
    async with elicit_person(shop) as person:
        person.pays()
        await person.call("buy_tea", cups=1)
        (paid,) = await person.payments()
        await person.webhooks.report_refund(paid, Money("4.00", "EUR"))
        (paid,) = await person.payments()
        assert (paid.status, paid.refunded_price) == ("spent", Money("4.00", "EUR"))
        await person.webhooks.report_refund(paid)
        (paid,) = await person.payments()
        assert (paid.status, paid.refunded_price) == ("refunded", Money("9.00", "EUR"))
        for amount in (Money("1.00", "EUR"), Money("1.00", "USD")):
            with pytest.raises(AssertionError, match=r"of the payment can be refunded|is in EUR"):
                await person.webhooks.report_refund(paid, amount)


# finding: XA14
async def test_provider_reports_stages_of_dispute(elicit_person, shop):
    async with elicit_person(shop) as person:
        person.pays()
        await person.call("buy_tea", cups=1)
        (paid,) = await person.payments()
        with pytest.raises(AssertionError, match=r"stage 'won' now\. Possible stages: inquiry, op"):
            await person.webhooks.report_dispute(paid, "won")
        with pytest.raises(AssertionError, match="'claim' is not a stage"):
            await person.webhooks.report_dispute(paid, "claim")
        statuses = []
        for stage in ("inquiry", "open", "won"):
            await person.webhooks.report_dispute(paid, stage)
            statuses += [payment.status for payment in await person.payments()]
        assert statuses == ["spent", "disputed", "spent"]


@pytest.mark.parametrize("provider", ["paypal", "mollie"])
async def test_refund_and_lost_dispute_of_other_providers(elicit_person, library, provider):
    server = new_server(library)

    @server.tool()
    async def buy(what: str) -> str:
        return str((await elicit.payment(TEA, what, provider=provider)).price)

    async with elicit_person(server) as person:
        for what in ("cup", "pot"):
            person.pays()
            await person.call("buy", what=what)
        cup, pot = sorted(await person.payments(), key=lambda payment: payment.what)
        await person.webhooks.report_refund(cup)
        await person.webhooks.report_dispute(pot, "lost")
        statuses = {payment.what: payment.status for payment in await person.payments()}
        assert statuses == {"cup": "refunded", "pot": "disputed"}


async def test_server_receives_response_before_its_webhook():
    has_returned, messages = asyncio.Event(), []

    async def respond(_scope, _receive, send):
        await send({"type": "http.response.start"})
        await send({"type": "http.response.body"})
        await has_returned.wait()
        messages.append("webhook")

    async def receive():
        raise AssertionError("The request has no body.")

    async def send(message):
        messages.append(message["type"])

    responders = Responders()
    await responders.responding_first(respond)({}, receive, send)
    assert messages == ["http.response.start", "http.response.body"]
    has_returned.set()
    await responders.finish()
    assert messages[2:] == ["webhook"]


async def test_exception_before_response_is_raised_in_the_server():
    async def fail(_scope, _receive, _send):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Responders().responding_first(fail)({}, None, None)


async def test_held_report_of_dispute_arrives_when_released(elicit_person, shop):
    async with elicit_person(shop) as person:
        person.pays()
        await person.call("buy_tea", cups=1)
        (paid,) = await person.payments()
        person.webhooks.hold()
        await person.webhooks.report_dispute(paid)
        assert [payment.status for payment in await person.payments()] == ["spent"]
        await person.webhooks.release()
        await person.let_pass()
        assert [payment.status for payment in await person.payments()] == ["disputed"]
