"""Programs that restart: they continue their run without asking or charging people again."""

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta

import httpx
import pytest

from flows import (
    AlreadyDone,
    Declined,
    Processing,
    ResultNotKept,
    elicit,
)
from flows.elicitation.states import Elicitation, Json
from flows.payments.receipt import ReceiptStatus
from tests.support.asking_env import AskingEnv
from tests.support.mcp_server import TLS, eventually
from tests.support.runs_env import NINE, CutOff, Programs, approve, decline, fill, pay
from webapp.client import Elicit, ServerUnreachable
from webapp.demo.walker import Page
from webapp.records.values import DoneOnce


class Crash(Exception):
    """A program's own error."""


async def statuses(here: AskingEnv) -> Counter[str]:
    return Counter(p.status.value for p in await here.service.kinds.payments.ledger.all())


async def asked(here: AskingEnv) -> list[Elicitation]:
    return await here.service.elicitations.all(Elicitation)


async def buy(_: Elicit) -> str:
    return (await elicit.payment(NINE, "Premium report")).id


async def test_a_program_that_dies_while_it_waits_asks_the_same_question(
    shop: Programs, here: AskingEnv
) -> None:
    first = shop.begin(buy)
    link = await first.link()
    await shop.killed(first)
    second = shop.begin(buy)
    assert (await second.link()).elicitation_id == link.elicitation_id
    await (await here.guest()).pay(link.url)
    assert await second
    assert len(await asked(here)) == 1


async def test_what_was_answered_meanwhile_is_there_at_once(
    shop: Programs, here: AskingEnv
) -> None:
    first = shop.begin(buy)
    link = await first.link()
    await shop.killed(first)
    await (await here.guest()).pay(link.url)
    second = shop.begin(buy)
    assert await second
    assert second.shown == []
    assert await statuses(here) == {"spent": 1}


async def test_a_program_that_fails_after_its_answers_has_them_again(
    shop: Programs, here: AskingEnv
) -> None:
    is_broken = True

    async def work(_: Elicit) -> list[object]:
        city = await elicit.form("Which city?")
        paid = await elicit.payment(NINE, "A room")
        if is_broken:
            raise Crash
        return [city, paid.what]

    with pytest.raises(Crash):
        await shop.done(work, fill, pay)
    is_broken = False
    assert await shop.done(work) == ["Lund", "A room"]
    assert await statuses(here) == {"spent": 1}


async def test_the_end_of_a_run_is_one_write_which_may_be_sent_twice(
    shop: Programs, here: AskingEnv
) -> None:
    way = CutOff()
    way.lost.append("/runs/end")

    async def work(_: Elicit) -> None:
        await elicit.form("Which city?")
        await elicit.payment(NINE, "A room")

    await shop.done(work, fill, pay, transport=way)
    assert [r.url.path for r in way.sent][-2:] == ["/api/runs/end"] * 2
    assert await statuses(here) == {"spent": 1}
    assert [each.content for each in await asked(here)] == [None, None]
    assert all(each.delivered_at is not None for each in await asked(here))


async def test_what_was_bought_a_moment_ago_is_not_bought_again(
    shop: Programs, here: AskingEnv
) -> None:
    await shop.done(buy, pay)
    with pytest.raises(AlreadyDone):
        await shop.done(buy)
    await here.pass_time(minutes=3)
    await shop.done(buy, pay)
    assert await statuses(here) == {"spent": 2}


async def test_again_is_another_purchase_at_once(shop: Programs, here: AskingEnv) -> None:
    async def work(_: Elicit) -> None:
        await elicit.payment(NINE, "Tea", again=True)

    for _ in range(2):
        await shop.done(work, pay)
    assert await statuses(here) == {"spent": 2}


async def test_a_form_is_asked_anew_by_the_next_run_of_the_name(shop: Programs) -> None:
    async def work(_: Elicit) -> str:
        return await elicit.form("Which city?")

    assert [await shop.done(work, fill) for _ in range(2)] == ["Lund", "Lund"]


async def test_runs_of_other_names_and_users_are_apart(shop: Programs) -> None:
    whose = [("order 8", "ann"), ("order 9", "ann"), ("order 8", "bob")]
    blocks = [shop.begin(buy, run=run, user=user) for run, user in whose]
    ids = {(await block.link()).elicitation_id for block in blocks}
    assert len(ids) == 3


async def test_a_no_that_leaves_the_block_ends_the_run_and_keeps_what_was_paid(
    shop: Programs, here: AskingEnv
) -> None:
    async def work(_: Elicit) -> str:
        paid = await elicit.payment(NINE, "A room")
        await elicit.form("Which city?")
        return paid.id

    with pytest.raises(Declined):
        await shop.done(work, pay, decline)
    assert await statuses(here) == {"open": 1}
    assert await shop.done(work, fill)
    assert await statuses(here) == {"spent": 1}


async def test_a_payment_that_the_program_has_not_seen_is_not_used_up(
    shop: Programs, here: AskingEnv
) -> None:
    async def both(_: Elicit) -> str | None:
        try:
            await elicit.together(elicit.form("Which city?"), elicit.payment(NINE, "A room"))
        except Declined:
            await gone_on.wait()
        return None

    gone_on = asyncio.Event()
    block, guest = shop.begin(both), await here.guest()
    links = {link.kind: link.url for link in [await block.link(0), await block.link(1)]}
    await guest.decline(links["form"])
    await guest.pay(links["payment"])
    gone_on.set()
    await block
    assert await statuses(here) == {"open": 1}

    async def later(_: Elicit) -> str:
        return (await elicit.payment(NINE, "A room")).what

    assert await shop.done(later) == "A room"
    assert await statuses(here) == {"spent": 1}


async def test_a_receipt_is_spent_before_what_cannot_be_undone(
    shop: Programs, here: AskingEnv
) -> None:
    is_broken = True

    async def work(_: Elicit) -> str:
        receipt = await elicit.payment(NINE, "A room")
        for _times in range(2):
            await receipt.spend()
        if is_broken:
            raise Crash
        return receipt.id

    with pytest.raises(Crash):
        await shop.done(work, pay)
    assert await statuses(here) == {"spent": 1}
    is_broken = False
    assert await shop.done(work)
    (payment,) = await here.service.kinds.payments.ledger.all()
    assert payment.status is ReceiptStatus.SPENT


async def test_what_was_paid_for_is_done_once_though_a_no_ended_the_run(
    shop: Programs, here: AskingEnv
) -> None:
    shipped = list[str]()

    async def ship(key: str) -> Json:
        shipped.append(key)
        return "sent"

    async def work(_: Elicit) -> Json:
        await elicit.payment(NINE, "A room")
        sent = await elicit.once("ship", ship)
        if not await elicit.confirm("A receipt by mail?").outcome():
            raise Declined("No mail, then.")
        return sent

    with pytest.raises(Declined):
        await shop.done(work, pay, decline)
    assert await statuses(here) == {"open": 1}
    assert await shop.done(work, approve) == "sent"
    assert len(shipped) == 1
    assert await statuses(here) == {"spent": 1}


async def test_what_is_paid_late_is_had_by_the_program_that_asked_anew(
    shop: Programs, here: AskingEnv
) -> None:
    about = {"authorization": f"Bearer {here.sandbox.stripe_key}"}
    control = f"{here.sandbox.url}/stripe/control"
    async with httpx.AsyncClient(headers=about, verify=TLS) as provider:
        await provider.post(control, json={"hold": True})
        first = shop.begin(buy)
        link = await first.link()
        await shop.killed(first)
        person = (await here.guest()).person
        checkout = await person.browser.get(await person.go_on(link.url))
        (form,) = (f for f in Page(checkout.text).forms if f.action.endswith("/card"))
        await person.browser.post(checkout.url.join(form.action), data=form.fields)
        here.clock.tick(minutes=31)
        second = shop.begin(buy)
        assert (await second.link()).elicitation_id != link.elicitation_id
        await provider.post(control, json={"release": True})
        assert await second
    assert await statuses(here) == {"spent": 1}


async def test_once_is_done_once_however_often_the_program_starts(
    shop: Programs, here: AskingEnv
) -> None:
    done = list[str]()

    async def book(key: str) -> Json:
        done.append(key)
        return {"room": 7}

    async def work(_: Elicit) -> object:
        room = await elicit.once("book", book)
        if len(done) == 1 and not again:
            again.append(room)
            raise Crash
        return room

    again = list[object]()
    with pytest.raises(Crash):
        await shop.done(work)
    await here.pass_time(days=30)
    assert await shop.done(work) == {"room": 7}
    assert len(done) == 1
    with pytest.raises(AlreadyDone):
        await shop.done(work)


async def test_once_is_work_of_its_own_in_the_next_run(shop: Programs, here: AskingEnv) -> None:
    done = list[str]()

    async def work(_: Elicit) -> object:
        return await elicit.once("book", book, key=8)

    async def book(key: str) -> Json:
        done.append(key)
        return len(done)

    assert await shop.done(work) == 1
    await here.pass_time(minutes=3)
    assert await shop.done(work) == 2
    assert len(set(done)) == 2


async def test_work_that_fails_is_done_again_under_the_same_key(shop: Programs) -> None:
    keys = list[str]()

    async def work(_: Elicit) -> object:
        return await elicit.once("book", book)

    async def book(key: str) -> Json:
        keys.append(key)
        if len(keys) == 1:
            raise Crash
        return "booked"

    with pytest.raises(Crash):
        await shop.done(work)
    assert await shop.done(work) == "booked"
    assert len(set(keys)) == 1


async def test_two_programs_of_a_run_do_its_work_once(shop: Programs) -> None:
    begun, go_on, done = asyncio.Event(), asyncio.Event(), list[str]()

    async def book(key: str) -> Json:
        done.append(key)
        begun.set()
        await go_on.wait()
        return "booked"

    def patient(asker: Elicit) -> None:
        async def pause(_: float) -> None:
            go_on.set()
            await asyncio.sleep(0)

        asker._requests._pause = pause

    async def first(asker: Elicit) -> object:
        asker._requests._pause = lambda _: asyncio.Event().wait()
        return await elicit.once("book", book)

    async def second(asker: Elicit) -> object:
        patient(asker)
        return await elicit.once("book", book)

    one = shop.begin(first)
    await begun.wait()
    other = shop.begin(second)
    assert [await one, await other] == ["booked", "booked"]
    assert len(done) == 1


async def test_a_claim_of_a_dead_program_is_free_in_a_while(
    shop: Programs, here: AskingEnv
) -> None:
    begun, keys = asyncio.Event(), list[str]()

    async def book(key: str) -> Json:
        keys.append(key)
        begun.set()
        if len(keys) == 1:
            await asyncio.Event().wait()
        return "booked"

    async def work(asker: Elicit) -> object:
        async def pause(_: float) -> None:
            here.clock.tick(seconds=31)

        if begun.is_set():
            asker._requests._pause = pause
        return await elicit.once("book", book)

    first = shop.begin(work)
    await begun.wait()
    await first.cancel()
    assert await shop.done(work) == "booked"
    assert len(set(keys)) == 1


@pytest.mark.parametrize(
    ("result", "words"), [({1j}, "no JSON"), ("x" * 70_000, "longer than 61440")]
)
async def test_a_result_that_cannot_be_kept_is_no_reason_to_do_the_work_again(
    shop: Programs, result, words
) -> None:
    done = list[str]()

    async def work(_: Elicit) -> object:
        return await elicit.once("book", book)

    async def book(key: str) -> Json:
        done.append(key)
        return result  # type: ignore[no-any-return]  # the set is deliberately not JSON

    for _ in range(2):
        with pytest.raises(ResultNotKept, match=words):
            await shop.done(work)
    assert len(done) == 1


async def test_the_result_of_once_is_sealed(shop: Programs, here: AskingEnv) -> None:
    async def work(_: Elicit) -> object:
        return await elicit.once("book", book)

    async def book(_: str) -> Json:
        return "a-room-by-the-sea"

    await shop.done(work)
    (row,) = await here.service.elicitations.store.list("once")
    assert b"sea" not in row.sealed
    assert (await here.service.elicitations.rows.open(row, DoneOnce)).result


async def test_each_lost_answer_is_asked_for_again(shop: Programs, here: AskingEnv) -> None:
    way, done = CutOff(), list[str]()
    way.lost += ["/api/questions", "/runs/once", "/once/done", "/runs/end"]

    async def work(_: Elicit) -> object:
        await elicit.payment(NINE, "A room")
        return await elicit.once("book", book)

    async def book(key: str) -> Json:
        done.append(key)
        return "booked"

    assert await shop.done(work, pay, transport=way) == "booked"
    assert way.lost == []
    assert (len(done), await statuses(here)) == (1, {"spent": 1})


async def test_a_proxy_that_finds_no_server_is_no_answer(shop: Programs) -> None:
    way = CutOff()
    way.answers += [httpx.Response(502), httpx.Response(503, headers={"retry-after": "7"})]
    pauses = list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def work(asker: Elicit) -> bool:
        asker._requests._pause = pause
        return await elicit.confirm("Delete it?")

    assert await shop.done(work, approve, transport=way)
    assert len(pauses) == 2
    assert pauses[0] < 1
    assert pauses[1] == 7


async def test_a_server_that_never_answers_is_told_with_what_to_do(shop: Programs) -> None:
    class Nowhere(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused", request=request)

    async with shop.elicit(transport=Nowhere(), patience=timedelta()):
        with pytest.raises(ServerUnreachable, match="goes on where it was") as silent:
            await elicit.form("Which city?")
    assert silent.value.why == "ConnectError"


async def test_a_payment_on_its_way_is_not_waited_for_where_that_is_enough(
    shop: Programs, here: AskingEnv
) -> None:
    async def work(_: Elicit) -> object:
        return await elicit.payment(NINE, "A room", processing="return")

    async def by_transfer(guest, link) -> None:
        await guest.press_at_checkout(link, "bank")

    with pytest.raises(Processing, match="run this again later"):
        await shop.done(work, by_transfer)
    assert len(await asked(here)) == 1


async def test_a_block_that_is_opened_again_is_the_run_from_its_beginning(
    shop: Programs, here: AskingEnv
) -> None:
    guest, links = await here.guest(), list[str]()
    asker = shop.elicit(show=lambda link: links.append(link.url))
    for is_broken in (True, False):
        with suppress(Crash):
            async with asker:
                waiting = asyncio.ensure_future(elicit.confirm("Delete it?").outcome())
                await eventually(lambda: links)
                if is_broken:
                    await approve(guest, links[0])
                assert await waiting
                if is_broken:
                    raise Crash
    assert (len(links), len(await asked(here))) == (1, 1)
