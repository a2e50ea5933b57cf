"""The payment provider's side of a test: valid and forged webhooks."""

import pytest


async def test_webhooks_that_come_again_count_once(elicit_person, shop):
    async with elicit_person(shop) as person:
        person.webhooks.arrive(duplicates=2)
        person.pays()
        assert (await person.call("buy_tea", cups=1)).text == "1 cups for 9.00 EUR"
        assert await person.webhooks.send_again() == 200
        assert [payment.status for payment in await person.payments()] == ["spent"]


async def test_a_payment_whose_webhook_is_lost_is_seen_when_the_person_comes_back(
    elicit_person, shop
):
    async with elicit_person(shop) as person:
        person.webhooks.arrive(drop=True)
        person.pays()
        assert (await person.call("buy_tea", cups=1)).text == "1 cups for 9.00 EUR"


async def test_a_webhook_that_is_forged_or_about_somebody_elses_sale_pays_nothing(
    elicit_person, shop
):
    async with elicit_person(shop) as person:
        person.pays()
        await person.call("buy_tea", cups=1)
        (paid,) = await person.payments()
        assert await person.webhooks.send_forged() in (400, 401, 403)
        assert await person.webhooks.send_foreign(paid.session) in (200, 202)
        assert await person.payments() == [paid]


async def test_there_is_no_webhook_before_anybody_has_paid(elicit_person, shop):
    async with elicit_person(shop) as person:
        with pytest.raises(AssertionError, match="let the person pay first"):
            await person.webhooks.send_again()
