"""Paid results whose response may be lost: a repeated call gets them without another payment."""

import pytest
from mcp.server.mcpserver.exceptions import ToolError
from msgspec.structs import replace

from flows import Receipt
from flows.elicitation.run import Run
from tests.support.mcp_server import LEGACY, MODERN, soon, text_of
from tests.support.shop_env import Buying, Shop, buying

PAID = "paid 9.00 EUR"


async def bought(shop: Shop, buy: Buying) -> str:
    """Pay, and return the result of the call."""
    await buy.person.pay(buy.link)
    await shop.send_all()
    return await buy.result()


async def texts_of_the_same_call(buy: Buying) -> list[str]:
    """Return the texts of the repeated call's result, and check that it asks for no payment."""
    result = await soon(buy.caller.call("report"))
    assert not buy.caller.has_links_left, "the repeated call must not ask for a payment"
    return [part.text for part in result.content]


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_same_call_after_payment_returns_same_result(shop: Shop, revision: str) -> None:
    # finding: R2
    async with buying(shop, revision=revision) as buy:
        assert await bought(shop, buy) == PAID
        for _ in range(3):
            before, note = await texts_of_the_same_call(buy)
            assert before == PAID
            assert "nothing new was bought" in note
            assert "12:02:00 UTC" in note
        assert await shop.ledger() == ["spent"]
        shop.clock.tick(minutes=2)
        await buy.person.pay(await buy.is_asked_again())
        assert len(await shop.asked()) == 2


async def test_another_process_returns_paid_result_after_restart(shop: Shop) -> None:
    # finding: R2
    async with buying(shop) as buy:
        assert await bought(shop, buy) == PAID
    await shop.restart()
    async with shop.env.caller(LEGACY) as caller:
        before, note = (await soon(caller.call("report"))).content
        assert before.text == PAID
        assert "sent again" in note.text
    assert (shop.bodies, await shop.ledger()) == (1, ["spent"])


async def test_same_call_with_again_buys_again_immediately(shop: Shop) -> None:
    # finding: R2
    shop.is_bought_again = True
    async with buying(shop) as buy:
        assert await bought(shop, buy) == PAID
        call = buy.caller.call("report")
        await buy.person.pay(await buy.caller.link())
        await shop.send_all()
        assert text_of(await soon(call)) == PAID
        assert await shop.ledger() == ["spent", "spent"]


async def test_result_of_refunded_payment_is_not_returned_again(shop: Shop) -> None:
    # finding: R2
    async with buying(shop) as buy:
        assert await bought(shop, buy) == PAID
        await shop.refund_by_hand()
        await shop.send_all()
        assert await shop.ledger() == ["refunded"]
        link = await buy.is_asked_again()
        assert shop.env.id_of(link) != shop.env.id_of(buy.link)


async def test_result_of_payment_refunded_before_delivery_is_not_returned(
    shop: Shop,
) -> None:
    # finding: R2
    async with buying(shop) as buy:
        assert await bought(shop, buy) == PAID
        await _as_if_it_had_not_arrived(shop)
        await shop.refund_by_hand()
        await shop.send_all()
        link = await buy.is_asked_again()
        assert shop.env.id_of(link) != shop.env.id_of(buy.link)


async def test_partial_refund_does_not_withdraw_result(shop: Shop) -> None:
    # finding: R2
    async with buying(shop) as buy:
        assert await bought(shop, buy) == PAID
        await shop.refund_by_hand(amount="100")
        await shop.send_all()
        assert (await texts_of_the_same_call(buy))[0] == PAID


async def test_product_refunded_by_tool_can_be_bought_again_immediately(shop: Shop) -> None:
    # finding: R2
    async def regret(receipt: Receipt) -> str:
        await receipt.refund(reason="sold out")
        return "sold out"

    shop.body = regret
    async with buying(shop) as buy:
        assert await bought(shop, buy) == "sold out"
        link = await buy.is_asked_again()
        assert shop.env.id_of(link) != shop.env.id_of(buy.link)


async def test_permanent_purchase_runs_tool_again_instead_of_repeating_result(shop: Shop) -> None:
    # finding: R2
    shop.is_for_good = True
    async with buying(shop) as buy:
        assert await bought(shop, buy) == PAID
        assert await texts_of_the_same_call(buy) == [PAID]
        assert shop.bodies == 2


async def test_retry_after_tool_error_reuses_payment_and_not_error(
    shop: Shop,
) -> None:
    # finding: R2
    async def fail(receipt: Receipt) -> str:
        del receipt
        raise ToolError("the printer jams")

    reported, shop.body = shop.body, fail
    async with buying(shop) as buy:
        assert "jams" in await bought(shop, buy)
        shop.body = reported
        assert await texts_of_the_same_call(buy) == [PAID]


async def _as_if_it_had_not_arrived(shop: Shop) -> None:
    """Restore the run to its state before the result was sent."""
    elicitations = shop.service.elicitations
    (run,) = await elicitations.all(Run)
    await elicitations.write(replace(run, is_delivered=False, repeated_until=None))
