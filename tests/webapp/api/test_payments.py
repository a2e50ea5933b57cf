"""The payments of a program's users over the HTTP API, and refunds."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest
from pytest_httpx import HTTPXMock

from flows import elicit
from flows.payments.claims import disputed
from flows.payments.money import Money
from flows.payments.receipt import Dispute
from tests.support.api_program import Program, program_at
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.chains import AUDITED, audit_entries_of
from tests.support.living import living
from tests.support.mcp_server import TLS
from webapp.api.asking import owner_of_user
from webapp.identity.api_keys import KeyScope
from webapp.records.ids import tail_of

ANN = {"user": "ann"}
REFUNDS = "/stripe/v1/refunds"


@pytest.fixture
async def till(here: AskingEnv) -> AsyncIterator[Program]:
    """Open the shop with an API key that may refund."""
    async with program_at(here, also=(KeyScope.REFUND,)) as program:
        yield program


async def listed(program: Program, **query: Any) -> list[dict[str, Any]]:
    answer = await program.at("payments", params={**ANN, **query})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["payments"]
    return found


async def refunded(program: Program, id: str, **body: Any) -> httpx.Response:
    return await program.at(f"payments/{id}/refund", method="POST", params=ANN, json=body)


async def refunded_at_provider(here: AskingEnv) -> list[int]:
    """Return the amounts that the provider has refunded."""
    about = {"authorization": f"Bearer {here.sandbox.stripe_key}"}
    async with httpx.AsyncClient(verify=TLS) as client:
        answer = (await client.get(f"{here.sandbox.url}{REFUNDS}", headers=about)).json()
    return [one["amount"] for one in answer["data"]]


async def test_user_payment_is_listed_and_read(here: AskingEnv, shop: Program) -> None:
    asked = await shop.paid(here)
    (answer,) = await listed(shop)
    assert answer == asked["payment"]
    assert (answer["question_id"], answer["status"], answer["refunded"]) == (asked["id"], "open", 0)
    assert (await shop.at(f"payments/{answer['id']}", params=ANN)).json() == answer
    assert await listed(shop, status="spent") == []
    await shop.post(asked["id"], "taken")
    assert [one["id"] for one in await listed(shop, status="spent")] == [answer["id"]]


async def test_payment_refunded_before_use_cannot_be_claimed(
    here: AskingEnv, till: Program
) -> None:
    asked = await till.paid(here)
    assert (await refunded(till, asked["payment"]["id"])).status_code == 200
    claimed = await till.post(asked["id"], "taken")
    assert (claimed.status_code, "refunded" in claimed.json()["detail"]) == (409, True)
    later = await till.paid(here)
    assert (await till.post(later["id"], "taken")).status_code == 200
    again = await refunded(till, later["payment"]["id"], also_spent=True)
    assert (again.status_code, again.json()["status"]) == (200, "refunded")
    # A repeated claim still succeeds after the refund.
    assert (await till.post(later["id"], "taken")).status_code == 200


async def test_concurrent_claim_and_refund_cannot_both_succeed(
    here: AskingEnv, till: Program
) -> None:
    asked = await till.paid(here)
    back, claimed = await asyncio.gather(
        refunded(till, asked["payment"]["id"]), till.post(asked["id"], "taken")
    )
    assert sorted((back.status_code, claimed.status_code)) == [200, 409]


async def test_payment_list_continues_after_page(here: AskingEnv, shop: Program) -> None:
    ids = [(await shop.paid(here))["payment"]["id"] for _ in range(3)]
    page = (await shop.at("payments", params={**ANN, "limit": 2})).json()
    rest = (await shop.at("payments", params={**ANN, "after": page["after"]})).json()
    assert (len(page["payments"]), len(rest["payments"])) == (2, 1)
    assert {one["id"] for one in page["payments"] + rest["payments"]} == set(ids)
    assert rest["after"] is None


async def test_payment_of_tool_or_other_program_is_hidden(
    here: AskingEnv, shop: Program, till: Program
) -> None:
    async def buy() -> str:
        return (await elicit.payment(Money("9.00", "EUR"), "Premium report")).id

    block = here.begin(buy)
    await (await here.guest()).pay((await block.link()).url)
    paid = await block
    async with program_at(here, program="other") as other:
        others = (await other.paid(here))["payment"]["id"]
    assert await listed(shop) == []
    for id in (paid, others):
        assert (await shop.at(f"payments/{id}", params=ANN)).status_code == 404
        refused = await refunded(till, id, also_spent=True)
        assert (refused.status_code, refused.json()["code"]) == (404, "NO_SUCH_PAYMENT")
    assert await refunded_at_provider(here) == []


async def test_refund_needs_key_with_refund_scope(here: AskingEnv, shop: Program) -> None:
    asked = await shop.paid(here)
    refused = await refunded(shop, asked["payment"]["id"])
    assert (refused.status_code, "refund" in refused.json()["detail"]) == (403, True)
    assert await refunded_at_provider(here) == []


async def test_repeated_refund_request_refunds_once(here: AskingEnv, till: Program) -> None:
    id = (await till.paid(here))["payment"]["id"]
    answers = await asyncio.gather(*(refunded(till, id, reason="Broken.") for _ in range(4)))
    answers.append(await refunded(till, id))
    assert {answer.status_code for answer in answers} == {200}
    data = answers[-1].json()
    assert (data["status"], data["refunded"]) == ("refunded", 900)
    assert all(answer.json() == data for answer in answers)
    assert await refunded_at_provider(here) == [900]
    assert await listed(till) == [data]


@pytest.mark.httpx_mock(
    should_mock=lambda request: (request.method, request.url.path) == ("POST", REFUNDS)
)
async def test_failed_refund_is_retried_with_same_idempotency_key(
    here: AskingEnv, till: Program, httpx_mock: HTTPXMock
) -> None:
    id = (await till.paid(here))["payment"]["id"]
    httpx_mock.add_response(500)
    failed = await refunded(till, id)
    assert (failed.status_code, failed.json()["code"]) == (502, "REFUND_NOT_DONE")
    assert "automatically" in failed.json()["detail"]
    assert [one["status"] for one in await listed(till)] == ["refunding"]
    (asked,) = httpx_mock.get_requests()
    httpx_mock.add_response(
        json={
            "id": "re_1",
            "object": "refund",
            "amount": 900,
            "currency": "eur",
            "status": "succeeded",
        }
    )
    assert (await refunded(till, id)).json()["status"] == "refunded"
    keys = {one.headers["idempotency-key"] for one in httpx_mock.get_requests()}
    assert keys == {asked.headers["idempotency-key"]}


async def test_repeated_partial_refund_refunds_amount_once(here: AskingEnv, till: Program) -> None:
    id = (await till.paid(here))["payment"]["id"]
    for _ in range(2):
        answer = (await refunded(till, id, amount="3.00")).json()
        assert (answer["status"], answer["refunded"]) == ("open", 300)
    assert (await refunded(till, id, amount="5.00")).json()["refunded"] == 500
    assert sorted(await refunded_at_provider(here)) == [200, 300]
    assert (await refunded(till, id)).json()["status"] == "refunded"
    assert sum(await refunded_at_provider(here)) == 900


async def test_repeated_refund_of_partly_disputed_payment_has_same_response(
    here: AskingEnv, till: Program
) -> None:
    id = (await till.paid(here))["payment"]["id"]
    ledger = here.service.kinds.payments.ledger
    (payment,) = await ledger.all()
    claim = partial(disputed, id="dp_1", stage=Dispute.OPEN, amount=300)
    await ledger.change(payment.owner, payment.id, claim)
    first, second = await refunded(till, id), await refunded(till, id)
    assert (first.status_code, first.json()["status"]) == (200, "disputed")
    assert (first.json()["refunded"], first.json()["disputed"]) == (600, 300)
    assert (second.status_code, second.json()) == (200, first.json())
    assert await refunded_at_provider(here) == [600]


@pytest.mark.parametrize("amount", ["0", "-1.00", "9.01", "1.005", "many", "", "1e9"])
async def test_invalid_partial_amount_is_refused(
    here: AskingEnv, till: Program, amount: str
) -> None:
    id = (await till.paid(here))["payment"]["id"]
    refused = await refunded(till, id, amount=amount)
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_INPUT")
    assert await refunded_at_provider(here) == []


async def test_audit_names_key_which_refunded_payment() -> None:
    about: dict[str, Any] = {"also": (KeyScope.REFUND,)}
    async with living(asking_env(policies=AUDITED)) as here, program_at(here, **about) as till:
        (key,) = await here.service.identity.api_keys.all()
        whole, part = [(await till.paid(here))["payment"]["id"] for _ in range(2)]
        await refunded(till, part, amount="3.00")
        await refunded(till, whole)
        entries = await audit_entries_of(here.service, owner_of_user(here.service, "ann"))
        by = {one.what: one.by for one in entries if one.kind == "payment"}
        assert {what: each == f"key {tail_of(key)}" for what, each in by.items()} == {
            "paid": False,
            "refunded in part: 3.00 EUR": True,
            "refunding": True,
            "refunded": True,
        }


async def test_claimed_payment_is_refunded_only_with_also_spent(
    here: AskingEnv, till: Program
) -> None:
    asked = await till.paid(here)
    await till.post(asked["id"], "taken")
    refused = await refunded(till, asked["payment"]["id"])
    assert (refused.status_code, refused.json()["code"]) == (409, "NOT_REFUNDABLE")
    assert "also_spent" in refused.json()["detail"]
    response = await refunded(till, asked["payment"]["id"], also_spent=True)
    assert (response.status_code, response.json()["status"]) == (200, "refunded")


async def test_refunded_payment_cannot_be_claimed(here: AskingEnv, till: Program) -> None:
    asked = await till.paid(here)
    await refunded(till, asked["payment"]["id"])
    assert (await till.post(asked["id"], "taken")).status_code == 409
    (answer,) = await listed(till)
    assert answer["status"] == "refunded"
