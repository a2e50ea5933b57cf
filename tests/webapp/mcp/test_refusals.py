"""Errors that tools get from money and receipts. The model reads their messages too."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from flows import Money, Receipt
from flows.errors import ElicitError
from tests.support.mcp_server import caller_of, soon, text_of
from tests.support.shop_env import REFUND, Shop, buying, open_shop


@pytest.fixture
async def shop(library: str) -> AsyncIterator[Shop]:
    async with open_shop(library=library) as shop:
        yield shop


def assert_error_reaches_model(result: Any, *, code: str, words: str) -> None:
    assert result.is_error
    text = text_of(result)
    assert "Error executing tool" not in text
    assert words in text
    assert text.endswith(f" [{code}]")
    assert result.meta["code"] == code


@pytest.mark.every_way
async def test_money_errors_reach_the_model(server, revision):
    # finding: M7
    @server.tool()
    async def price(amount: str, currency: str) -> str:
        return str(Money(amount, currency))

    @server.tool()
    def total(cents: int) -> str:
        return str(Money.from_minor_units(cents, "EUR"))

    @server.tool()
    async def sure(amount: str) -> str:
        try:
            return str(Money(amount, "EUR"))
        except ElicitError:
            raise ValueError("the tool's own error") from None

    async with caller_of(server, revision) as (_, caller):
        refused = await caller.result("price", amount="9.999", currency="EUR")
        assert_error_reaches_model(refused, code="INVALID_INPUT", words="3 digits after the point")
        refused = await caller.result("price", amount="9.00", currency="eur")
        assert_error_reaches_model(
            refused, code="INVALID_INPUT", words="Write the currency in capitals"
        )
        refused = await caller.result("total", cents=-1)
        assert_error_reaches_model(refused, code="INVALID_INPUT", words="must not be negative")
        own = await caller.result("sure", amount="9.999")
        assert own.is_error
        assert "INVALID_INPUT" not in text_of(own)


async def refund_what_is_spent(receipt: Receipt) -> str:
    await receipt.spend()
    return str(await receipt.refund())


async def spend_what_was_given_back(receipt: Receipt) -> str:
    await receipt.refund(reason="sold out")
    await receipt.spend()
    return "the goods"


@pytest.mark.every_way
@pytest.mark.parametrize("body", [refund_what_is_spent, spend_what_was_given_back])
async def test_receipt_errors_reach_the_model(
    shop: Shop, revision, body: Callable[[Receipt], Awaitable[str]]
):
    # finding: M7
    shop.body = body
    async with buying(shop, revision=revision) as buy:
        await buy.person.come_back(await buy.person.pay(buy.link))
        result = await soon(buy.call)
        assert_error_reaches_model(
            result, code="ELICITATION_ALREADY_SETTLED", words="so it cannot be"
        )


@pytest.mark.every_way
async def test_failed_refund_error_reaches_the_model(shop: Shop, revision):
    # finding: M7
    async def refund(receipt: Receipt) -> str:
        return str(await receipt.refund(reason="sold out"))

    shop.body = refund
    shop.line.broken.append(REFUND)
    async with buying(shop, revision=revision) as buy:
        await buy.person.come_back(await buy.person.pay(buy.link))
        result = await soon(buy.call)
        assert_error_reaches_model(result, code="ELICITATION_FAILED", words="504")
