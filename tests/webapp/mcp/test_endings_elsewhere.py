"""Callbacks of `on_end` in `asking` blocks, in tasks, and before a person's data is erased."""

from collections.abc import AsyncIterator

import pytest

from flows import Ending, InvalidQuestion, Money, NotAccepted, elicit
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.living import living
from tests.support.mcp_server import eventually, new_server
from tests.support.task_client import task_client, tasks_env
from webapp.cli.purge import purge_owner
from webapp.command import CommandRefused
from webapp.testing import elicit_person

NINE = Money("9.00", "EUR")
endings_seen: list[Ending] = []


@pytest.fixture(autouse=True)
def _empty() -> None:
    endings_seen.clear()


@pytest.fixture
async def here() -> AsyncIterator[AskingEnv]:
    async with living(asking_env()) as here:
        yield here


async def note(ending: Ending) -> None:
    endings_seen.append(ending)


def hows() -> list[str]:
    return [ending.how.value for ending in endings_seen]


async def hold_and_buy() -> str:
    await elicit.on_end(note, {"seat": 14}, key="seat 14")
    receipt = await elicit.payment(NINE, "Seat 14")
    assert elicit.caller().is_known
    return receipt.id


async def test_block_ends_as_delivered_declined_or_expired(here: AskingEnv) -> None:
    # finding: XA1
    guest = await here.guest()
    block = here.begin(hold_and_buy)
    await guest.pay((await block.link()).url)
    await block
    await here.service.endings.settled()
    assert hows() == ["delivered"]
    block = here.begin(hold_and_buy, key="another")
    await block.link()
    await here.pass_time(minutes=31)
    with pytest.raises(NotAccepted):
        await block
    await here.service.endings.settled()
    assert hows() == ["delivered", "expired"]
    assert len({ending.caller for ending in endings_seen}) == 1


async def test_block_that_nobody_continues_expires(here: AskingEnv) -> None:
    # finding: XA1
    block = here.begin(hold_and_buy)
    await block.link()
    await block.cancel()
    again = here.begin(hold_and_buy)  # the same key continues
    await again.link()
    await again.cancel()
    assert endings_seen == []
    await here.pass_time(minutes=60)
    await here.service.endings.settled()
    assert hows() == ["expired"]


async def test_lambda_as_a_callback_in_a_block_is_refused(here: AskingEnv) -> None:
    # finding: XA1
    async def wrong() -> None:
        await elicit.on_end(lambda _: None, key="a")

    with pytest.raises(InvalidQuestion, match="a lambda"):
        await here.begin(wrong)


async def test_cancelled_task_ends_as_cancelled(library: str, revision: str) -> None:
    # finding: XA1
    server = new_server(library)

    @server.tool()
    async def visit() -> str:
        await elicit.on_end(note, key="a")
        await elicit.url("Please read this", "https://shop.example/terms")
        return "read"

    async with tasks_env(server) as env, task_client(env, revision) as client:
        task = await client.task("visit")
        await client.until(task, "input_required")
        await client.cancel(task)
        await eventually(lambda: hows() == ["cancelled"])
        again = await client.task("visit")
        await client.until(again, "input_required")
        await env.complete(env.link_of((await env.elicitations())[-1]))
        assert await client.text(again) == "read"
        await eventually(lambda: hows() == ["cancelled", "delivered"])


async def test_purge_is_refused_until_the_callbacks_have_run(library: str) -> None:
    # finding: XA1
    server = new_server(library)

    @server.tool()
    async def book() -> str:
        await elicit.on_end(note, key="a")
        await elicit.payment(NINE, "Seat")
        return "booked"

    async with elicit_person(server, declares=()) as person:
        await person.client.call_tool("book", {})
        service = person._app.service
        (record,) = await service.elicitations.store.list("ending")
        service.endings.servers, servers = (), service.endings.servers
        with pytest.raises(CommandRefused, match="test_endings_elsewhere:note"):
            await purge_owner(service, record.owner, is_sure=True)
        service.endings.servers = servers
        await person.let_pass(seconds=10)
        assert hows() == ["cancelled"]
        lines = await purge_owner(service, record.owner, is_sure=True)
        assert "1 callback of on_end" in lines[0]
        assert not await service.elicitations.store.list("ending")


async def test_purge_erases_a_callback_that_nobody_could_run_for_an_hour(library: str) -> None:
    # finding: XA1
    server = new_server(library)

    @server.tool()
    async def book() -> str:
        await elicit.on_end(note, key="a")
        return "booked"

    async with elicit_person(server, declares=()) as person:
        service = person._app.service
        service.endings.servers = ()
        await person.call("book")
        (record,) = await service.elicitations.store.list("ending", status="due")
        with pytest.raises(CommandRefused):
            await purge_owner(service, record.owner, is_sure=True)
        person.clock.tick(minutes=61)
        await purge_owner(service, record.owner, is_sure=True)
        assert not await service.elicitations.store.list("ending")
        assert endings_seen == []
