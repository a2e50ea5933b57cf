"""lynq: defects that were found by running it, and that no other test covers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from flows import elicit
from flows.elicitation.states import Completion, Status
from tests.support.clock import Clock
from tests.support.mcp_server import (
    LEGACY,
    eventually,
    link_in,
    new_server,
    server_env,
    soon,
    text_of,
)
from tests.support.service_env import Holding, call_of, process
from tests.support.shop_env import buying, open_shop
from webapp.calls.verbs import Verbs
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore


class Counting(MemoryStore):
    """A store that counts its operations, record by record."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    async def write(self, *records: Record) -> tuple[Record, ...]:
        self.count += len(records)
        return await super().write(*records)

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        self.count += 1
        return await super().read(owner, kind, id)

    async def find(self, owner: str, kind: str, key: str) -> Record | None:
        self.count += 1
        return await super().find(owner, kind, key)

    async def list(self, kind: str, **which: Any) -> Sequence[Record]:
        listed = await super().list(kind, **which)
        self.count += len(listed)
        return listed


async def test_client_failing_to_show_link_leaves_no_waiter() -> None:
    # defect: lynq failed send leaves the entry
    server = new_server("mcp")

    @server.tool()
    async def visit() -> str:
        return str(dict(await elicit.url("Please go there.", "https://shop.example/")))

    # The client's library fails at this invalid answer, and reports the failure to ours.
    async with server_env(server) as env, env.caller(LEGACY, answers=["broken"]) as caller:
        link = link_in(await soon(caller.call("visit")))
        assert not len(env.service.elicitations.waiters)
        assert await env.complete(link, {"done": True}) is Completion.ACCEPTED
        assert text_of(await soon(caller.call("visit"))) == "{'done': True}"


async def test_payment_return_url_opened_again_does_not_pay_again() -> None:
    # defect: lynq replayed return pays again
    async with open_shop() as shop, buying(shop) as buy:
        back = await buy.person.pay(buy.link)
        assert (await buy.person.come_back(back)).heading == "Paid 9.00 €"
        assert await buy.result() == "paid 9.00 EUR"
        shop.clock.tick(minutes=2)
        again = await buy.is_asked_again()
        for _ in range(2):
            assert (await buy.person.come_back(back)).heading == "Paid 9.00 €"
        assert len(await shop.payments()) == 1
        assert shop.bodies == 1
        assert await shop.env.status(again) is Status.PENDING


@pytest.mark.parametrize("does", ["start", "settle"])
async def test_cost_of_a_question_does_not_depend_on_waiting_questions(does: str) -> None:
    # defect: lynq cost grows with the square
    assert await cost(does, others=5) == await cost(does, others=300)


async def cost(does: str, *, others: int) -> int:
    """Return the number of store operations to start or settle a question while others wait."""
    store = Counting()
    calls: list[asyncio.Task[object]] = []
    async with process(store, Clock()) as service:

        async def start() -> None:
            presenter = Holding()
            call = call_of(service, presenter=presenter, subject=f"person {len(calls)}")
            question = elicit.url("Please go there.", "https://shop.example/")
            calls.append(asyncio.create_task(Verbs(call).ask(question)))
            await eventually(lambda: presenter.holds)

        for _ in range(others):
            await start()
        before = store.count
        if does == "start":
            await start()
        else:
            (row, *_) = await MemoryStore.list(store, "elicitation", limit=1)
            await service.completing.complete(row.id, {})
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        asked_for = store.count - before
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    return asked_for
