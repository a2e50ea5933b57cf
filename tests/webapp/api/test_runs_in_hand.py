"""Payments claimed by a program's run: the rules are those of payments claimed by a call."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from flows import elicit
from flows.payments.claims import disputed
from flows.payments.receipt import Dispute, Payment
from flows.payments.refunds import RefundRequest
from tests.support.api_program import PAYMENT, Program, program_at
from tests.support.asking_env import AskingEnv
from tests.support.mcp_server import soon
from tests.support.runs_env import NINE, pay, programs_at
from webapp.cli.payments import list_payments, refund_payment
from webapp.client import Elicit, ServerRefused
from webapp.command import CommandRefused
from webapp.identity.api_keys import KeyScope

RUN = {"user": "ann", "run": "order 8"}
ANN = {"user": "ann"}
Takes = Callable[[AskingEnv, Program, Payment], Awaitable[str]]


@pytest.fixture
async def till(here: AskingEnv) -> AsyncIterator[Program]:
    """Open the shop with an API key that may refund."""
    async with program_at(here, also=(KeyScope.REFUND,)) as program:
        yield program


async def send(program: Program, path: str, **body: Any) -> httpx.Response:
    return await program.at(f"runs/{path}", method="POST", json={**RUN, **body})


async def the_payment(here: AskingEnv) -> Payment:
    (payment,) = await here.service.kinds.payments.ledger.all()
    return payment


async def ask_and_pay(
    here: AskingEnv, till: Program, *, run: str = "order 8", **question: Any
) -> dict[str, Any]:
    """Ask and pay the run's question. Return its state after the run has received the payment."""
    state = (await till.ask({**PAYMENT, **question, "run": run})).json()
    await (await here.guest()).pay(state["url"])
    answer: dict[str, Any] = (await till.ask({**PAYMENT, **question, "run": run})).json()
    assert answer["payment"]["status"] == "open"
    return answer


def step(payment: str, **more: Any) -> dict[str, Any]:
    return {"name": "book", "by": "a-process", "payment": payment, **more}


async def by_page(here: AskingEnv, till: Program, payment: Payment) -> str:
    person = await here.browser()
    page = await person.visit(f"{here.url}/payments")
    if "/refund" not in page.text:
        return f"no button: {'In use.' in page.text}"
    (sent,) = [await person.press(f"{here.url}/payments", to="/refund")]
    return str(sent.status)


async def by_command(here: AskingEnv, till: Program, payment: Payment) -> str:
    id = payment.id.removeprefix(payment.owner)
    try:
        (line,) = await refund_payment(here.service, id, reason=None, also_spent=False)
    except CommandRefused as refused:
        return str(refused)
    return line


async def by_api(here: AskingEnv, till: Program, payment: Payment) -> str:
    path = f"payments/{payment.id}/refund"
    answer = await till.at(path, method="POST", params=ANN, json={})
    return f"{answer.status_code} {answer.json().get('detail', 'refunded')}"


async def by_itself(here: AskingEnv, till: Program, payment: Payment) -> str:
    refunds = here.service.kinds.payments.refunds
    ledger = here.service.kinds.payments.ledger
    await ledger.change(payment.owner, payment.id, lambda one: due(one, here))
    await refunds.fall_due(await the_payment(here))
    return (await the_payment(here)).status


def due(payment: Payment, here: AskingEnv) -> Payment:
    return replace(payment, refund_at=here.clock() - timedelta(seconds=1))


TAKES: Mapping[str, tuple[Takes, str]] = {
    "page": (by_page, "no button: True"),
    "command": (by_command, "A call is using the payment at the moment: try again in a minute."),
    "api": (by_api, "409 A run of this program is using the payment"),
    "clock": (by_itself, "open"),
}


@pytest.mark.parametrize("by", TAKES)
async def test_payment_claimed_by_run_is_not_refunded(
    here: AskingEnv, till: Program, by: str
) -> None:
    # finding: XD1
    result = await ask_and_pay(here, till)
    assert (await send(till, "once", **step(result["payment"]["id"]))).json()["status"] == "yours"
    takes, says = TAKES[by]
    for _ in range(4):
        here.clock.tick(seconds=12)
        await send(till, "once", **step(result["payment"]["id"]))
        assert (await takes(here, till, await the_payment(here))).startswith(says)
    rows = (await list_payments(here.service, only_open=True)).rows
    assert [row.standing for row in rows] == ["taken"]
    done = await send(till, "once/done", **step(result["payment"]["id"], result="made"))
    assert done.status_code == 200
    assert (await takes(here, till, await the_payment(here))).startswith(says)
    assert (await send(till, "end", questions=[result["id"]])).status_code == 200
    assert (await the_payment(here)).status == "spent"


@pytest.mark.parametrize("by", TAKES)
async def test_payment_of_crashed_program_can_be_refunded_after_claim_expires(
    here: AskingEnv, till: Program, by: str
) -> None:
    result = await ask_and_pay(here, till)
    await send(till, "once", **step(result["payment"]["id"]))
    here.clock.tick(seconds=31)
    await TAKES[by][0](here, till, await the_payment(here))
    assert (await the_payment(here)).status == "refunded"


async def refund_begins(here: AskingEnv, payment: Payment) -> None:
    await here.service.kinds.payments.ledger.begin_refund(
        payment.owner, payment.id, RefundRequest()
    )


async def is_refunded(here: AskingEnv, payment: Payment) -> None:
    await here.service.kinds.payments.refunds.refund(payment.owner, payment.id, reason=None)


async def is_claimed(here: AskingEnv, payment: Payment) -> None:
    ledger = here.service.kinds.payments.ledger
    await ledger.change(
        payment.owner, payment.id, lambda row: disputed(row, "claim-1", Dispute.OPEN)
    )


GONE = {"refunding": refund_begins, "refunded": is_refunded, "disputed": is_claimed}


@pytest.mark.parametrize("became", GONE)
async def test_run_cannot_claim_refunded_or_disputed_payment(
    here: AskingEnv, till: Program, became: str
) -> None:
    result = await ask_and_pay(here, till)
    await GONE[became](here, await the_payment(here))
    assert (await the_payment(here)).status == became
    refused = await send(till, "once", **step(result["payment"]["id"]))
    assert refused.status_code == 409, refused.text
    ended = await send(till, "end", questions=[result["id"]])
    assert ended.status_code == 409, ended.text
    words = {"refunding": "refunded", "refunded": "refunded", "disputed": "bank"}[became]
    assert words in ended.json()["detail"]
    assert words in refused.json()["detail"]
    assert (await send(till, "end", questions=[result["id"]], is_error=True)).status_code == 200


@pytest.mark.parametrize("became", GONE)
async def test_run_end_reports_payment_refunded_or_disputed_during_work(
    here: AskingEnv, till: Program, became: str
) -> None:
    result = await ask_and_pay(here, till)
    await send(till, "once", **step(result["payment"]["id"]))
    here.clock.tick(seconds=31)  # the program did not renew its claim
    await GONE[became](here, await the_payment(here))
    renewed = await send(till, "once", **step(result["payment"]["id"]))
    assert renewed.status_code == 409
    done = await send(till, "once/done", **step(result["payment"]["id"], result="made"))
    assert done.status_code == 200, (
        "the program can report its finished work after the payment is gone"
    )
    assert (await send(till, "end", questions=[result["id"]])).status_code == 409


async def test_payment_claimed_by_other_run_cannot_be_claimed(
    here: AskingEnv, till: Program
) -> None:
    result = await ask_and_pay(here, till, key="the report")
    other = (await till.ask({**PAYMENT, "key": "the report", "run": "order 9"})).json()
    assert other["id"] == result["id"]
    other_run = {**RUN, "run": "order 9", **step(result["payment"]["id"])}
    await send(till, "once", **step(result["payment"]["id"]))
    busy = await till.at("runs/once", method="POST", json=other_run)
    assert (busy.status_code, busy.json()["code"]) == (409, "QUESTION_BUSY")
    await send(till, "end", questions=[result["id"]])
    spent = await till.at("runs/once", method="POST", json=other_run)
    assert (spent.status_code, "used" in spent.json()["detail"]) == (409, True)
    ended = {**RUN, "run": "order 9", "questions": [result["id"]]}
    assert (await till.at("runs/end", method="POST", json=ended)).status_code == 409


async def test_claim_of_run_holds_after_restarted_process_asks_again(
    here: AskingEnv, till: Program
) -> None:
    result = await ask_and_pay(here, till)
    await send(till, "once", **step(result["payment"]["id"]))
    again = await till.ask({**PAYMENT, "run": "order 8"})  # a restarted process asks again
    assert again.json()["payment"]["status"] == "open"
    assert "moment" in await by_command(here, till, await the_payment(here))
    busy = await send(till, "once", **step(result["payment"]["id"], by="another"))
    assert busy.json()["status"] == "busy"


async def test_run_refunds_its_own_claimed_payment(here: AskingEnv, till: Program) -> None:
    result = await ask_and_pay(here, till)
    await send(till, "once", **step(result["payment"]["id"]))
    path = f"payments/{result['payment']['id']}/refund"
    part = await till.at(path, method="POST", params=ANN, json={"run": "order 8", "amount": "3.00"})
    assert part.json()["refunded"] == 300, part.text
    whole = await till.at(path, method="POST", params=ANN, json={"run": "order 8"})
    assert whole.json()["status"] == "refunded", whole.text
    assert (await send(till, "end", questions=[result["id"]])).status_code == 200


@pytest.mark.parametrize("by", TAKES)
async def test_payment_of_done_step_is_spent_at_end_of_run_without_questions(
    here: AskingEnv, till: Program, by: str
) -> None:
    payment = (await ask_and_pay(here, till))["payment"]["id"]
    await send(till, "once", **step(payment))
    await send(till, "once/done", **step(payment, result="made"))
    for _ in range(2):  # a repeated end request has the same result
        assert (await send(till, "end", questions=[])).status_code == 200
        assert (await the_payment(here)).status == "spent"
    here.clock.tick(days=8)
    await TAKES[by][0](here, till, await the_payment(here))
    assert (await the_payment(here)).status == "spent"


async def test_end_of_run_reports_payment_refunded_after_work(
    here: AskingEnv, till: Program
) -> None:
    payment = (await ask_and_pay(here, till))["payment"]["id"]
    await send(till, "once", **step(payment))
    await send(till, "once/done", **step(payment, result="made"))
    here.clock.tick(seconds=31)
    await is_refunded(here, await the_payment(here))
    ended = await send(till, "end", questions=[])
    assert (ended.status_code, "refunded" in ended.json()["detail"]) == (409, True)
    assert (await send(till, "end", questions=[], is_error=True)).status_code == 200


async def test_failed_run_leaves_payment_of_done_step_to_next_run(
    here: AskingEnv, till: Program
) -> None:
    result = await ask_and_pay(here, till)
    payment = result["payment"]["id"]
    await send(till, "once", **step(payment))
    await send(till, "once/done", **step(payment, result="made"))
    assert (await send(till, "end", questions=[], is_error=True)).status_code == 200
    assert (await the_payment(here)).status == "open"
    again = (await till.ask({**PAYMENT, "run": "order 8"})).json()
    assert again["payment"]["id"] == payment
    assert (await send(till, "once", **step(payment))).json()["result"] == "made"
    assert (await send(till, "end")).status_code == 200
    assert (await the_payment(here)).status == "spent"


async def test_run_cannot_refund_payment_claimed_by_other_run(
    here: AskingEnv, till: Program
) -> None:
    result = await ask_and_pay(here, till)
    await send(till, "once", **step(result["payment"]["id"]))
    path = f"payments/{result['payment']['id']}/refund"
    refused = await till.at(path, method="POST", params=ANN, json={"run": "order 9"})
    assert refused.status_code == 409


async def test_step_without_payment_claims_all_payments_of_run(
    here: AskingEnv, till: Program
) -> None:
    result = await ask_and_pay(here, till)
    await send(till, "once", name="book", by="a-process")  # the step names no payment
    assert "moment" in await by_command(here, till, await the_payment(here))
    assert (await send(till, "end", questions=[result["id"]])).status_code == 200


async def test_program_raises_if_payment_is_disputed_during_work(here: AskingEnv) -> None:
    made: list[str] = []

    async def work(_: Elicit) -> None:
        receipt = await elicit.payment(NINE, "Premium report")
        (payment,) = await here.service.kinds.payments.ledger.all()
        await is_claimed(here, payment)
        made.append(receipt.id)

    async with programs_at(here) as programs:
        with pytest.raises(ServerRefused, match="bank"):
            await programs.done(work, pay)
    assert made


async def test_program_which_renews_claim_retains_payment(here: AskingEnv) -> None:
    goes_on, begun = asyncio.Event(), asyncio.Event()

    async def work(_: Elicit) -> str:
        receipt = await elicit.payment(NINE, "Premium report")

        async def make(_key: str) -> str:
            begun.set()
            await goes_on.wait()
            return receipt.id

        return str(await elicit.once("make", make))

    async with programs_at(here) as programs, program_at(here) as till:
        block, guest = programs.begin(work), await here.guest()
        await guest.pay((await block.link()).url)
        await soon(begun.wait())
        for takes, says in TAKES.values():
            if takes is not by_api:
                assert (await takes(here, till, await the_payment(here))).startswith(says)
        goes_on.set()
        await block
    assert (await the_payment(here)).status == "spent"


async def test_program_refunds_its_own_claimed_payment(here: AskingEnv) -> None:
    async def work(_: Elicit) -> str:
        receipt = await elicit.payment(NINE, "Premium report")

        async def look(_key: str) -> str:
            return "sold out"

        await elicit.once("look", look)
        return str((await receipt.refund(reason="sold out")).price)

    async with programs_at(here, KeyScope.REFUND) as programs:
        assert await programs.done(work, pay) == "9.00 EUR"
    assert (await the_payment(here)).status == "refunded"
