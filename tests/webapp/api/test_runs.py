"""The routes of runs: which requests are valid, and who owns a run."""

from typing import Any

import httpx
import pytest

from tests.support.api_program import CONFIRM, FORM, PAYMENT, Program, program_at
from tests.support.asking_env import AskingEnv
from webapp.identity.api_keys import KeyScope

RUN = {"user": "ann", "run": "order 8"}
STEP: dict[str, Any] = {**RUN, "name": "book", "by": "a-process"}


async def send(program: Program, path: str, body: dict[str, Any]) -> httpx.Response:
    return await program.client.post(f"/api/runs/{path}", json=body)


async def asked(program: Program, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    reported = await program.ask({**body, "run": "order 8", **more})
    assert reported.status_code == 201, reported.text
    state: dict[str, Any] = reported.json()
    return state


async def test_same_question_in_run_is_asked_once_and_others_separately(shop: Program) -> None:
    first = await asked(shop, CONFIRM)
    assert (await asked(shop, CONFIRM))["id"] == first["id"]
    others = [await asked(shop, CONFIRM, nth=1), await asked(shop, FORM)]
    assert len({first["id"], *(other["id"] for other in others)}) == 3


async def test_question_in_run_cannot_have_idempotency_key(shop: Program) -> None:
    refused = await shop.ask({**CONFIRM, "run": "order 8"}, name="order 8")
    assert (refused.status_code, refused.json()["code"]) == (400, "INVALID_INPUT")


async def test_idempotency_key_and_run_of_same_name_are_separate(shop: Program) -> None:
    named = await shop.ask(CONFIRM, name="order 8")
    assert (await asked(shop, CONFIRM))["id"] != named.json()["id"]


async def test_question_in_run_cannot_be_claimed_alone(here: AskingEnv, shop: Program) -> None:
    state = await asked(shop, PAYMENT)
    await (await here.guest()).pay(state["url"])
    refused = await shop.post(state["id"], "taken")
    assert (refused.status_code, "/api/runs/end" in refused.json()["detail"]) == (400, True)


async def test_run_is_ended_by_its_own_program_and_user(here: AskingEnv, shop: Program) -> None:
    state = await asked(shop, PAYMENT)
    await (await here.guest()).pay(state["url"])
    end = {**RUN, "questions": [state["id"]]}
    async with program_at(here, program="other") as other:
        assert (await send(other, "end", end)).status_code == 200
    assert (await send(shop, "end", {**end, "user": "bob"})).status_code == 200
    assert (await send(shop, "end", {**end, "run": "order 9"})).status_code == 200
    assert (await shop.read(state["id"]))["payment"]["status"] == "open"
    for _ in range(2):
        assert (await send(shop, "end", end)).json() == {"run": "order 8"}
    assert (await shop.read(state["id"]))["payment"]["status"] == "spent"
    over = await shop.ask({**PAYMENT, "run": "order 8"})
    assert (over.status_code, over.json()["code"]) == (409, "ELICITATION_ALREADY_DONE")


async def test_run_ended_with_error_leaves_payment_open(here: AskingEnv, shop: Program) -> None:
    state = await asked(shop, PAYMENT)
    await (await here.guest()).pay(state["url"])
    await send(shop, "end", {**RUN, "questions": [state["id"]], "is_error": True})
    again = await asked(shop, PAYMENT)
    assert (again["id"], again["payment"]["status"]) == (state["id"], "open")


@pytest.mark.parametrize("path", ["end", "spend", "once", "once/done"])
async def test_approver_key_or_key_for_other_user_cannot_reach_run(
    here: AskingEnv, shop: Program, path: str
) -> None:
    bodies: dict[str, dict[str, Any]] = {"end": RUN, "spend": {**RUN, "payment": "x"}}
    body: dict[str, Any] = bodies.get(path) or dict(STEP)
    await asked(shop, CONFIRM)
    async with (
        program_at(here, scope=KeyScope.APPROVE, owners=("ann",)) as desk,
        program_at(here, owners=("bob",)) as bobs,
    ):
        for program in (desk, bobs):
            assert (await send(program, path, body)).status_code == 403
            gone = await program.client.delete("/api/secrets/key", params={"user": "ann"})
            assert gone.status_code == 403


async def test_run_spends_its_own_payment(here: AskingEnv, shop: Program) -> None:
    state = await asked(shop, PAYMENT)
    await (await here.guest()).pay(state["url"])
    payment = (await shop.read(state["id"]))["payment"]["id"]
    other = {"user": "ann", "run": "order 9", "payment": payment}
    assert (await send(shop, "spend", other)).status_code == 404
    assert (await send(shop, "spend", {**RUN, "payment": payment})).status_code == 204
    assert (await shop.read(state["id"]))["payment"]["status"] == "spent"


async def test_payment_shared_by_two_runs_is_spent_by_first(here: AskingEnv, shop: Program) -> None:
    shared = {**PAYMENT, "key": "the report"}
    state = await asked(shop, shared)
    await (await here.guest()).pay(state["url"])
    payment = (await shop.read(state["id"]))["payment"]["id"]
    assert (await shop.ask({**shared, "run": "order 9"})).json()["id"] == state["id"]
    for run, status in (("order 8", 204), ("order 9", 409), ("order 8", 204)):
        response = await send(shop, "spend", {"user": "ann", "run": run, "payment": payment})
        assert response.status_code == status, response.text


async def test_paid_step_is_done_once_although_its_run_ended_with_error(
    here: AskingEnv, shop: Program
) -> None:
    state = await asked(shop, PAYMENT)
    await (await here.guest()).pay(state["url"])
    payment = (await shop.read(state["id"]))["payment"]["id"]
    step = {**STEP, "payment": payment}
    mine = (await send(shop, "once", step)).json()
    await send(shop, "once/done", {**step, "result": "shipped"})
    await send(shop, "end", {**RUN, "questions": [state["id"]], "is_error": True})
    elsewhere = await send(shop, "once", {**step, "run": "order 9"})
    assert elsewhere.status_code == 404
    assert (await asked(shop, PAYMENT))["payment"]["id"] == payment
    again = (await send(shop, "once", {**step, "by": "another"})).json()
    assert (again["status"], again["result"]) == ("done", "shipped")
    assert again["idempotency_key"] == mine["idempotency_key"]


async def test_step_is_claimed_by_single_process_and_done_once(
    here: AskingEnv, shop: Program
) -> None:
    mine = (await send(shop, "once", STEP)).json()
    assert mine["status"] == "yours"
    assert (await send(shop, "once", STEP)).json() == mine
    other = (await send(shop, "once", {**STEP, "by": "another"})).json()
    assert (other["status"], other["idempotency_key"]) == ("busy", mine["idempotency_key"])
    here.clock.tick(seconds=31)
    late = (await send(shop, "once", {**STEP, "by": "another"})).json()
    assert late["status"] == "yours"
    results = [
        (await send(shop, "once/done", {**STEP, "by": by, "result": by})).json()["result"]
        for by in ("another", "a-process")
    ]
    assert results == ["another", "another"]
    assert (await send(shop, "once", STEP)).json()["result"] == "another"


async def test_each_run_user_and_key_has_separate_step(shop: Program) -> None:
    steps: list[dict[str, Any]] = [
        STEP,
        {**STEP, "run": "order 9"},
        {**STEP, "user": "bob"},
        {**STEP, "key": 8},
    ]
    keys = {(await send(shop, "once", step)).json()["idempotency_key"] for step in steps}
    assert len(keys) == len(steps)
