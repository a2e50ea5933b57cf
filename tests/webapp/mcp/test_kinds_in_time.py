"""Accounts, payments and secrets over time: names, access tokens, timeouts, expiry, deletion."""

import asyncio
import logging
from datetime import timedelta
from typing import Any, cast

import pytest

from flows import Money, Receipt, elicit
from flows.elicitation.states import Status
from flows.question import Link
from tests.support.kind_tools import asked_for, bought, connected
from tests.support.mcp_sandbox import KEY, caller_at_sandbox, went_through
from tests.support.mcp_server import (
    MODERN,
    eventually,
    links_asked,
    new_browser,
    new_server,
    soon,
    text_of,
)
from webapp.limits import CallLimits
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

SHOP = "https://shop.example"


async def test_named_secret_is_asked_for_once_and_can_be_forgotten(server, revision):
    @server.tool()
    async def unlock() -> str:
        return str(len(await elicit.secret("Your door", name="door")))

    @server.tool()
    async def open_window() -> str:
        return str(len(await elicit.secret("Your window", name="door")))

    @server.tool()
    async def lock() -> str:
        return f"{await elicit.forget('door')} {await elicit.forget('window')}"

    async with caller_at_sandbox(server, revision) as (at, caller):
        assert text_of(await went_through(caller, "unlock", [at.guest.type])) == str(len(KEY))
        # The secret belongs to the person on this server, not to one tool.
        for tool in ("unlock", "open_window"):
            assert await caller.text(tool) == str(len(KEY))
        assert not caller.has_links_left
        assert await caller.text("lock") == "True False"
        assert await caller.text("lock") == "False False"
        assert text_of(await went_through(caller, "unlock", [at.guest.type])) == str(len(KEY))


async def test_named_secret_with_invalid_stored_value_is_asked_for_again(server, revision):
    schema: Any = {
        "type": "object",
        "properties": {"user": {"type": "string"}},
        "required": ["user"],
    }

    @server.tool()
    async def unlock() -> str:
        return str(len(await elicit.secret("Your door", name="door")))

    @server.tool()
    async def unlock_as() -> str:
        answer: Any = await elicit.secret("Your door", schema, name="door")
        return str(len(answer["user"]))

    async with caller_at_sandbox(server, revision) as (at, caller):

        async def give_user(link: str) -> None:
            await at.guest.type(link, user=KEY)

        assert text_of(await went_through(caller, "unlock", [at.guest.type])) == str(len(KEY))
        assert text_of(await went_through(caller, "unlock_as", [give_user])) == str(len(KEY))


@pytest.mark.parametrize("kind", ["oauth", "payment", "secret"])
async def test_key_shares_the_answer_with_calls_with_other_arguments(server, revision, kind):
    @server.tool()
    async def serve(page: int) -> str:
        await asked_for(kind, key="one")
        return f"page {page}"

    async with caller_at_sandbox(
        server, revision, limits=CallLimits(link=timedelta()), declares=None
    ) as (at, caller):
        await at.guest.finish(kind, await caller.link_in_result("serve", page=1))
        assert await caller.text("serve", page=2) == "page 2"
        assert len(await at.env.elicitations()) == 1


@pytest.mark.parametrize("kind", ["oauth", "payment", "secret"])
async def test_question_uses_its_own_timeout(server, revision, kind):
    @server.tool()
    async def ask() -> str:
        return str(await asked_for(kind, timeout=timedelta(minutes=1)))

    async with caller_at_sandbox(server, revision) as (at, caller):
        call = caller.call("ask")
        link = await caller.link()
        await at.pass_time(minutes=1)
        result = await soon(call)
        assert result.is_error
        assert "[ELICITATION_TIMEOUT]" in text_of(result)
        assert "60 seconds" in text_of(result)
        assert await at.env.status(link) == "expired"


async def test_payment_expires_after_30_minutes_and_other_kinds_after_5(server):
    # parity: F3
    @server.tool()
    async def ask(kind: str) -> str:
        return str(await asked_for(kind))

    async with caller_at_sandbox(server, MODERN) as (at, caller):
        for kind, minutes in (("oauth", 5), ("payment", 30), ("secret", 5)):
            await caller.send_call("ask", kind=kind)
            (*_, row) = await at.env.elicitations()
            assert row.expires_at - row.created_at == timedelta(minutes=minutes)
            at.clock.tick(seconds=1)


class Counting(MemoryStore):
    """A store that counts its reads."""

    reads = 0

    async def read(self, owner: str, kind: str, id: str) -> Record | None:
        self.reads += 1
        return await super().read(owner, kind, id)


async def test_token_exchange_past_the_timeout_is_awaited_without_busy_reads(server, revision):
    store = Counting()

    @server.tool()
    async def read() -> str:
        return str((await connected(timeout=timedelta(minutes=1))).label)

    hour = timedelta(hours=1)
    limits = CallLimits(progress=hour, retry=hour, call=hour)
    async with caller_at_sandbox(server, revision, store=store, limits=limits) as (at, caller):
        await at.plan(next="slow")
        call = caller.call("read")
        link = await caller.link()
        await at.env.pending()
        at.clock.tick(seconds=59)
        walking = asyncio.create_task(at.guest.connect(link))
        (row,) = await at.env.elicitations()
        while row.status is not Status.EXCHANGING:
            (row,) = await at.env.elicitations()
            await asyncio.sleep(0)
        at.clock.tick(seconds=2)
        at.env.service.elicitations.waiters.wake_all()
        before = store.reads
        for _ in range(500):
            await asyncio.sleep(0)
        reads = store.reads - before
        await at.plan(release=True)
        await walking
        assert text_of(await soon(call)) == "octocat"
        assert reads < 50


async def test_account_is_still_available_after_a_slow_payment(server):
    @server.tool()
    async def both() -> str:
        account = await connected()
        receipt = await bought()
        return f"{account.label} {receipt.price}"

    async with caller_at_sandbox(server, MODERN) as (at, caller):
        first = await caller.asked("both")
        await at.guest.connect(links_asked(first)[0])
        second = await caller.asked("both", after=first)
        at.clock.tick(minutes=25)
        await fall_due(at.env.service)
        await at.guest.pay(links_asked(second)[0])
        result = await caller.answered("both", after=second)
        assert text_of(result) == "octocat 9.00 EUR"


async def test_wiped_secret_is_asked_for_again_without_repeating_the_payment(server):
    @server.tool()
    async def both() -> str:
        key = await elicit.secret("Your door")
        receipt = await bought()
        return f"{len(key)} {receipt.price}"

    async with caller_at_sandbox(server, MODERN) as (at, caller):
        first = await caller.asked("both")
        await at.guest.type(links_asked(first)[0])
        second = await caller.asked("both", after=first)
        at.clock.tick(minutes=25)
        await fall_due(at.env.service)
        await at.guest.pay(links_asked(second)[0])
        again = await caller.asked("both", after=second)
        await at.guest.type(links_asked(again)[0])
        result = await caller.answered("both", after=again)
        assert text_of(result) == f"{len(KEY)} 9.00 EUR"
        assert [payment.status for payment in await at.payments()] == ["spent"]


async def test_repr_and_logs_of_answers_contain_no_secret(server, revision, caplog):
    caplog.set_level(logging.DEBUG)

    @server.tool()
    async def tell() -> str:
        account, receipt = await connected(), await bought()
        outcome = await elicit.secret("Your door").outcome()
        client = account.client()
        await client.aclose()
        return f"{account!r} {receipt!r} {outcome!r} {client.auth!r} {vars(client)!r}"

    @server.tool()
    async def blurt_out() -> str:
        account = await connected()
        raise RuntimeError(account)

    @server.tool()
    async def give_away() -> dict[str, Any]:
        return {"account": await connected()}

    @server.tool()
    async def hand_over() -> Any:
        return await bought()

    async with caller_at_sandbox(server, revision) as (at, caller):
        acts = [at.guest.connect, at.guest.pay, at.guest.type]
        assert "octocat" in text_of(await went_through(caller, "tell", acts))
        more = {
            "blurt_out": [at.guest.allow],
            "give_away": [at.guest.allow],
            "hand_over": [at.guest.pay],
        }
        for tool, todo in more.items():
            await went_through(caller, tool, todo)
        (connection,) = await at.connections()
        records = [r for r in caplog.records if r.name.startswith(("webapp", "flows"))]
        for secret in (KEY, connection.access_token):
            assert not any(secret in record.getMessage() for record in records)


async def test_tool_can_return_its_receipt(request, server, revision, library):
    @server.tool()
    async def hand_over() -> Receipt:
        return cast("Receipt", await bought())

    async with caller_at_sandbox(server, revision) as (at, caller):
        result = await went_through(caller, "hand_over", [at.guest.pay])
        assert not result.is_error
        assert "Tea" in text_of(result)


async def test_permanent_purchase_is_bought_once(revision):
    server = new_server("mcp")

    @server.tool()
    async def read(page: int) -> str:
        receipt = await elicit.payment(Money("9.00", "EUR"), "The book", once=True)
        return f"page {page} by {receipt.id}"

    async with caller_at_sandbox(server, revision) as (at, caller):
        first = text_of(await went_through(caller, "read", [at.guest.pay], page=1))
        again = await caller.text("read", page=2)
        assert first.split(" by ")[1] == again.split(" by ")[1]
        assert not caller.has_links_left
        await eventually(lambda: not len(at.env.service.running_tools))


@pytest.mark.parametrize("is_asked_again", [False, True])
async def test_late_vendor_callback_is_used_by_the_same_call(server, revision, is_asked_again):
    # finding: R18
    made: list[Link] = []

    @server.tool()
    async def pay() -> str:
        question = elicit.url("Pay", there, origins=[SHOP], timeout=timedelta(minutes=2))
        return f"paid {dict(await question)}"

    def there(link: Link) -> str:
        made.append(link)
        return f"{SHOP}/pay"

    async with caller_at_sandbox(server, revision) as (at, caller):
        call = caller.call("pay")
        link = await caller.link()
        await (await at.env.person()).go_on(link)
        await at.env.waited_for_by_another(link, None)
        at.clock.tick(minutes=3)
        at.env.service.elicitations.waiters.wake_all()
        assert "[ELICITATION_TIMEOUT]" in text_of(await soon(call))
        again = None
        if is_asked_again:
            again = caller.call("pay")
            await caller.link()
        async with new_browser() as vendor:
            answer = await vendor.post(made[0].callback_url, json={"order": 7})
        assert answer.json() == {"completion": "late"}
        call = again or caller.call("pay")
        await eventually(lambda: call.done() or caller.has_links_left)
        assert not caller.has_links_left
        assert text_of(await soon(call)) == "paid {'order': 7}"
