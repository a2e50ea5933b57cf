"""`once` after a payment: the bought work runs once, whichever call gets the receipt."""

import asyncio
from datetime import timedelta

import pytest
from mcp.server.mcpserver.exceptions import ToolError

from flows import Receipt, elicit
from tests.support.mcp_server import LEGACY, MODERN, eventually, soon, text_of
from tests.support.shop_env import Shop, buying


class Press:
    """A tool that prints what was bought, and can fail afterwards."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.printed: list[str] = []  # the idempotency keys
        self.is_jammed = True
        self.is_stuck = False

    async def report(self, receipt: Receipt) -> str:
        number = await elicit.once("print", self._print)
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.is_jammed:
            raise ToolError("jammed")
        return f"copy {number} for {receipt.price}"

    async def _print(self, key: str) -> int:
        self.printed.append(key)
        return len(self.printed)


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
async def test_later_call_with_same_receipt_does_not_repeat_paid_step(
    shop: Shop, revision: str
) -> None:
    press = Press(shop)
    shop.body = press.report
    async with buying(shop, revision=revision) as buy:
        await buy.person.pay(buy.link)
        await shop.send_all()
        assert "jammed" in await buy.result()
        shop.clock.tick(days=2)  # the run has ended, and its stored data is erased
        await shop.sweep()
        press.is_jammed = False
        assert await buy.again() == "copy 1 for 9.00 EUR"
        assert len(press.printed) == 1


async def test_paid_step_is_not_repeated_after_crash_and_after_run_ended(shop: Shop) -> None:
    press = Press(shop)
    press.is_stuck, press.is_jammed = True, False
    shop.body = press.report
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        await shop.send_all()
        await eventually(lambda: press.printed)
        while not await shop.store.list("once"):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await shop.restart()
    press.is_stuck = False
    shop.clock.tick(days=6)
    await shop.sweep()
    async with shop.env.caller(LEGACY) as caller:
        assert text_of(await soon(caller.call("report"))) == "copy 1 for 9.00 EUR"
        assert not caller.has_links_left
    assert len(press.printed) == 1


async def test_new_payment_runs_paid_step_again(shop: Shop) -> None:
    press = Press(shop)
    press.is_jammed, shop.is_bought_again = False, True
    shop.body = press.report
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        await shop.send_all()
        assert await buy.result() == "copy 1 for 9.00 EUR"
        call = buy.caller.call("report")
        await buy.person.pay(await buy.caller.link())
        await shop.send_all()
        assert text_of(await soon(call)) == "copy 2 for 9.00 EUR"
    assert len(set(press.printed)) == 2, "each payment runs the step with a new idempotency key"


async def test_permanent_purchase_runs_step_once_for_each_call(shop: Shop) -> None:
    press = Press(shop)
    press.is_jammed, shop.is_for_good = False, True
    shop.body = press.report
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        await shop.send_all()
        assert await buy.result() == "copy 1 for 9.00 EUR"
        for number in (2, 3):
            # For two minutes, a repeated call gets the previous result instead of a new copy.
            shop.clock.tick(minutes=2)
            assert await buy.again() == f"copy {number} for 9.00 EUR"


async def test_result_of_paid_step_is_stored_as_long_as_receipt_can_be_reused(shop: Shop) -> None:
    await shop.restart(refund_unused=None)
    press = Press(shop)
    shop.body = press.report
    async with buying(shop) as buy:
        await buy.person.pay(buy.link)
        await shop.send_all()
        assert "jammed" in await buy.result()
        (stored,) = await shop.store.list("once")
        assert stored.erase_at == shop.clock() + timedelta(days=60)
        shop.clock.tick(days=29)
        await shop.sweep()
        press.is_jammed = False
        assert await buy.again() == "copy 1 for 9.00 EUR"
