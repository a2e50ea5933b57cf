"""Moving the store during payments: the old store refuses webhooks, the new one applies them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio

from tests.support.clock import Clock
from tests.support.shared_stores import STORES
from tests.support.shop_env import Shop, buying, open_shop
from webapp.stores import open_store
from webapp.stores.backup_file import BackupFile, write_backup
from webapp.stores.moving import copy, move


@pytest_asyncio.fixture(params=STORES)
async def address(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Open an empty store of each kind and return its address."""
    folder = tmp_path / "there"
    folder.mkdir()
    async with STORES[request.param](folder) as address:
        yield address


async def moved(shop: Shop, address: str) -> None:
    """Move the shop's store to the address, from a process next to the server."""
    target = await open_store(address)
    await move(shop.store, target)
    await target.aclose()


async def becomes(shop: Shop, *standings: str) -> None:
    """Wait until the ledger has these statuses: it changes only after the result was delivered."""
    async with asyncio.timeout(300):
        while await shop.ledger() != [*standings]:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def start_there(shop: Shop, address: str) -> None:
    await shop.store.aclose()
    shop.store = await open_store(address)
    await shop.restart(store=address)


async def test_webhook_refused_by_the_old_store_is_applied_once_in_the_new_store(
    tmp_path: Path, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_shop(
        clock=Clock(datetime.now(UTC)),  # the stores' servers use the real time
        folder=tmp_path,
    ) as shop:
        async with buying(shop) as buy:
            await buy.press("card")
            (event,) = shop.post
            await moved(shop, address)
            assert (await shop.send(event)).status_code == 503
            why = [vars(each).get("why") for each in caplog.records]
            assert any("has moved to" in str(each) for each in why), (
                "the log tells the operator where the store has moved"
            )
            assert await shop.statuses() == ["opened"]
        await start_there(shop, address)
        assert (await shop.send(event)).json() == {"received": "accepted"}
        assert (await shop.send(event)).json() == {"received": "duplicate"}
        assert await shop.ledger() == ["open"]
        async with shop.env.caller("legacy") as caller:
            assert (await caller.text("report")) == "paid 9.00 EUR"
        await becomes(shop, "spent")


async def test_checkout_opened_before_the_store_moved_can_be_paid_afterwards(
    tmp_path: Path, address: str
) -> None:
    async with open_shop(
        clock=Clock(datetime.now(UTC)),  # the stores' servers use the real time
        folder=tmp_path,
    ) as shop:
        async with buying(shop) as buy:
            there = await buy.person.go_on(buy.link)
            await moved(shop, address)
        await start_there(shop, address)
        await buy.person.press_there(there, "card")
        assert await shop.send_all() == ["accepted"]
        async with shop.env.caller("legacy") as caller:
            assert (await caller.text("report")) == "paid 9.00 EUR"


async def test_restored_backup_answers_an_open_question_and_uses_a_receipt(
    tmp_path: Path, address: str
) -> None:
    async with open_shop(
        clock=Clock(datetime.now(UTC)),  # the stores' servers use the real time
        folder=tmp_path,
    ) as shop:
        async with buying(shop) as buy:
            there = await buy.person.go_on(buy.link)
            paid = buy.caller.call("report", topic="coffee")
            link = await buy.caller.link()
            paid.cancel()
            await buy.person.pay(link)
            assert await shop.send_all() == ["accepted"]
            await write_backup(shop.store, tmp_path / "backup", now=shop.clock())
            assert sorted(await shop.statuses()) == ["accepted", "opened"]
        await shop.store.aclose()
        (tmp_path / "shop.db").unlink()
        store = await open_store(address)
        await store.fence("copies come")
        assert await copy(BackupFile(tmp_path / "backup").scan, store, behind="copies come")
        await store.fence(None)
        await store.aclose()
        await start_there(shop, address)
        assert await shop.ledger() == ["open"]
        await buy.person.press_there(there, "card")
        assert await shop.send_all() == ["accepted"]
        async with shop.env.caller("legacy") as caller:
            assert await caller.text("report") == "paid 9.00 EUR"
            assert await caller.text("report", topic="coffee") == "paid 9.00 EUR"
            assert not caller.has_links_left
        await becomes(shop, "spent", "spent")


async def test_fenced_store_answers_503_and_the_reason_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        open_shop(
            clock=Clock(datetime.now(UTC)),  # the stores' servers use the real time
            folder=tmp_path,
        ) as shop,
        buying(shop) as buy,
    ):
        await shop.store.fence("this store has moved to valkey://far.example/0")
        ready = await buy.person.browser.get(f"{shop.url}/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "unavailable")
        assert (await buy.person.browser.get(f"{shop.url}/live")).status_code == 200
        async with shop.env.caller("legacy") as caller:
            assert "[STORE_UNAVAILABLE]" in await caller.text("report", topic="coffee")
        pressed = await buy.person.press(buy.link)
        assert pressed.status == 503
        assert "far.example" not in pressed.text
        assert any("far.example" in str(vars(each).get("why")) for each in caplog.records)
        await shop.store.fence(None)
        await buy.pay()
        assert await buy.result() == "paid 9.00 EUR"
