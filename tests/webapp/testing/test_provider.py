"""The payment provider's side of a test: valid and forged webhooks."""

import pytest


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
        assert await person.webhooks.send_forged() in (400, 401, 403)
        assert await person.webhooks.send_foreign(paid.session) in (200, 202)
        assert await person.payments() == [paid]


async def test_webhook_cannot_be_resent_before_payment(elicit_person, shop):
    async with elicit_person(shop) as person:
        with pytest.raises(AssertionError, match="let the person pay first"):
            await person.webhooks.send_again()
