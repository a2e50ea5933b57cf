"""`once` after the store lost its latest writes: the work runs again, with the same key."""

from typing import Any

import pytest

from flows import elicit
from flows.elicitation.run import REPEATED_FOR
from flows.elicitation.states import Json
from tests.support.clock import Clock
from tests.support.mcp_server import ServerEnv, attached
from tests.support.records import go_back, scanned
from webapp.elicitations.watcher import _apply
from webapp.records.owners import SERVICE


class Orders:
    """Tools that place an order and record each idempotency key."""

    def __init__(self, server: Any) -> None:
        self.keys: list[str] = []

        async def place(key: str) -> Json:
            self.keys.append(key)
            return len(self.keys)

        @server.tool()
        async def order(what: str) -> str:
            return f"{await elicit.once('order', place)} of {what}"

        @server.tool()
        async def order_both(what: str) -> str:
            both = [await elicit.once("order", place, key=number) for number in range(2)]
            return f"{both} of {what}"


async def steps_back(env: ServerEnv, copies: Any) -> None:
    """Switch to the standby's older copy, and reconnect the process to the store's changes."""
    elicitations = env.service.elicitations
    owners = {each.owner for each in await scanned(elicitations.store)} - {SERVICE}
    await go_back(elicitations.store, copies, newer=sorted(owners))
    await _apply(elicitations, None)


# finding: XB4
@pytest.mark.every_way
@pytest.mark.parametrize("tool", ["order", "order_both"])
async def test_same_call_after_a_store_rollback_has_the_same_idempotency_keys(
    server, revision, tool
):
    orders = Orders(server)
    clock = Clock()
    async with attached(server, clock=clock) as env, env.caller(revision) as caller:
        await caller.text("order", what="something else")
        copies = await scanned(env.service.elicitations.store)
        first = await caller.text(tool, what="tea")
        before, orders.keys[:] = orders.keys[1:], []
        await steps_back(env, copies)
        assert await caller.text(tool, what="tea") != first
        assert orders.keys == before


# finding: XB4
async def test_repeated_identical_calls_have_distinct_keys_after_a_store_rollback(server, revision):
    orders = Orders(server)
    clock = Clock()
    async with attached(server, clock=clock) as env, env.caller(revision) as caller:
        await caller.text("order", what="tea")
        clock.tick(seconds=REPEATED_FOR.total_seconds())
        copies = await scanned(env.service.elicitations.store)
        for _ in range(2):
            await caller.text("order", what="tea")
            clock.tick(seconds=REPEATED_FOR.total_seconds())
        await steps_back(env, copies)
        for _ in range(3):
            await caller.text("order", what="tea")
            clock.tick(seconds=REPEATED_FOR.total_seconds())
        one, two, three, *after = orders.keys
        assert len({one, two, three}) == 3
        assert after[:2] == [two, three]
        assert after[2] not in orders.keys[:5]


# finding: XB4
async def test_idempotency_key_differs_on_another_day(server, revision):
    orders = Orders(server)
    clock = Clock()
    async with attached(server, clock=clock) as env, env.caller(revision) as caller:
        copies = await scanned(env.service.elicitations.store)
        await caller.text("order", what="tea")
        await steps_back(env, copies)
        clock.tick(days=1)
        await caller.text("order", what="tea")
        assert len(set(orders.keys)) == 2
