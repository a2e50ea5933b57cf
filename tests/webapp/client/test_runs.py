"""Programs that restart: they continue their run without asking or charging people again."""

import asyncio
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Literal

import httpx
import pytest

from flows import (
    AlreadyDone,
    Declined,
    Processing,
    ResultNotStored,
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


async def test_program_killed_while_waiting_asks_same_question(
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


async def test_answer_given_while_program_was_down_is_returned_immediately(
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


async def test_program_which_failed_after_answers_receives_them_again(
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


async def test_end_of_run_can_be_sent_twice(shop: Programs, here: AskingEnv) -> None:
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


async def test_same_purchase_within_two_minutes_raises_already_done(
    shop: Programs, here: AskingEnv
) -> None:
    await shop.done(buy, pay)
    with pytest.raises(AlreadyDone):
        await shop.done(buy)
    await here.pass_time(minutes=3)
    await shop.done(buy, pay)
    assert await statuses(here) == {"spent": 2}


async def test_again_makes_second_purchase_immediately(shop: Programs, here: AskingEnv) -> None:
    async def work(_: Elicit) -> None:
        await elicit.payment(NINE, "Tea", again=True)

    for _ in range(2):
        await shop.done(work, pay)
    assert await statuses(here) == {"spent": 2}


async def test_next_run_of_same_name_asks_form_again(shop: Programs) -> None:
    async def work(_: Elicit) -> str:
        return await elicit.form("Which city?")

    assert [await shop.done(work, fill) for _ in range(2)] == ["Lund", "Lund"]


async def test_runs_of_different_names_and_users_are_separate(shop: Programs) -> None:
    whose = [("order 8", "ann"), ("order 9", "ann"), ("order 8", "bob")]
    blocks = [shop.begin(buy, run=run, user=user) for run, user in whose]
    ids = {(await block.link()).elicitation_id for block in blocks}
    assert len(ids) == 3


async def test_decline_ends_run_and_leaves_payment_open(shop: Programs, here: AskingEnv) -> None:
    async def work(_: Elicit) -> str:
        paid = await elicit.payment(NINE, "A room")
        await elicit.form("Which city?")
        return paid.id

    with pytest.raises(Declined):
        await shop.done(work, pay, decline)
    assert await statuses(here) == {"open": 1}
    assert await shop.done(work, fill)
    assert await statuses(here) == {"spent": 1}


async def test_payment_not_returned_to_program_stays_open(shop: Programs, here: AskingEnv) -> None:
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


async def test_receipt_is_spent_explicitly_before_irreversible_work(
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


async def test_paid_step_is_done_once_although_decline_ended_run(
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


async def test_late_payment_reaches_program_which_asked_again(
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


async def test_once_runs_single_time_across_program_restarts(
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


async def test_once_runs_again_in_next_run(shop: Programs, here: AskingEnv) -> None:
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


async def test_failed_step_is_retried_with_same_idempotency_key(shop: Programs) -> None:
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


async def test_two_programs_in_same_run_do_step_once(shop: Programs) -> None:
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

        asker._requests.pause = pause

    async def first(asker: Elicit) -> object:
        asker._requests.pause = lambda _: asyncio.Event().wait()
        return await elicit.once("book", book)

    async def second(asker: Elicit) -> object:
        patient(asker)
        return await elicit.once("book", book)

    one = shop.begin(first)
    await begun.wait()
    other = shop.begin(second)
    assert [await one, await other] == ["booked", "booked"]
    assert len(done) == 1


async def test_claim_of_dead_program_expires(shop: Programs, here: AskingEnv) -> None:
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
            asker._requests.pause = pause
        return await elicit.once("book", book)

    first = shop.begin(work)
    await begun.wait()
    await first.cancel()
    assert await shop.done(work) == "booked"
    assert len(set(keys)) == 1


@pytest.mark.parametrize(
    ("result", "words"), [({1j}, "not JSON"), ("x" * 70_000, "longer than 61440")]
)
async def test_step_with_unserializable_result_is_not_repeated(
    shop: Programs, result, words
) -> None:
    done = list[str]()

    async def work(_: Elicit) -> object:
        return await elicit.once("book", book)

    async def book(key: str) -> Json:
        done.append(key)
        return result  # type: ignore[no-any-return]  # the set is deliberately not JSON

    for _ in range(2):
        with pytest.raises(ResultNotStored, match=words):
            await shop.done(work)
    assert len(done) == 1


async def test_result_of_once_is_encrypted(shop: Programs, here: AskingEnv) -> None:
    async def work(_: Elicit) -> object:
        return await elicit.once("book", book)

    async def book(_: str) -> Json:
        return "a-room-by-the-sea"

    await shop.done(work)
    (row,) = await here.service.elicitations.store.list("once")
    assert b"sea" not in row.sealed
    assert (await here.service.elicitations.rows.open(row, DoneOnce)).result


async def test_lost_responses_are_requested_again(shop: Programs, here: AskingEnv) -> None:
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


async def test_gateway_errors_of_proxy_are_retried(shop: Programs) -> None:
    way = CutOff()
    way.answers += [httpx.Response(502), httpx.Response(503, headers={"retry-after": "7"})]
    pauses = list[float]()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def work(asker: Elicit) -> bool:
        asker._requests.pause = pause
        return await elicit.confirm("Delete it?")

    assert await shop.done(work, approve, transport=way)
    assert len(pauses) == 2
    assert pauses[0] < 1
    assert pauses[1] == 7


@pytest.mark.parametrize(("processing", "seconds"), [("wait", "50"), ("return", "5")])
async def test_program_polls_payment_more_often_if_it_does_not_wait_for_processing(
    shop: Programs, processing: Literal["wait", "return"], seconds: str
) -> None:
    way = CutOff()

    async def work(_: Elicit) -> object:
        return await elicit.payment(NINE, "A room", processing=processing)

    await shop.done(work, pay, transport=way)
    waits = [found for one in way.sent if (found := one.url.params.get("wait"))]
    assert waits
    assert set(waits) == {seconds}


async def test_program_question_on_server_with_tools_names_the_application(
    shop: Programs, here: AskingEnv
) -> None:
    async def work(_: Elicit) -> bool:
        return await elicit.confirm("Delete it?")

    block = shop.begin(work)
    page = await (await here.guest()).person.visit((await block.link()).url)
    assert "If you approve, the application continues" in page.text
    await block.cancel()


async def test_unreachable_server_raises_error_with_advice(shop: Programs) -> None:
    class Nowhere(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("refused", request=request)

    async with shop.elicit(transport=Nowhere(), patience=timedelta()):
        with pytest.raises(ServerUnreachable, match="same run again, and it continues") as silent:
            await elicit.form("Which city?")
    assert silent.value.why == "ConnectError"


async def test_processing_payment_raises_if_program_chose_return(
    shop: Programs, here: AskingEnv
) -> None:
    async def work(_: Elicit) -> object:
        return await elicit.payment(NINE, "A room", processing="return")

    async def by_transfer(guest, link) -> None:
        await guest.press_at_checkout(link, "bank")

    with pytest.raises(Processing, match="run this again later"):
        await shop.done(work, by_transfer)
    assert len(await asked(here)) == 1


async def test_reopened_block_restarts_run_from_beginning(shop: Programs, here: AskingEnv) -> None:
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
