"""Approver API keys: which questions a key can answer, and for whom."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from flows import elicit
from tests.support.api_program import (
    ACCOUNT,
    CONFIRM,
    FORM,
    PAYMENT,
    SECRET,
    URL,
    Program,
    program_at,
)
from tests.support.asking_env import AskingEnv
from webapp.identity.api_keys import KeyScope


@pytest.fixture
async def desk(here: AskingEnv) -> AsyncIterator[Program]:
    """Open a program whose key approves for ann."""
    about: dict[str, Any] = {"scope": KeyScope.APPROVE, "owners": ("ann",)}
    async with program_at(here, program="desk", **about) as program:
        yield program


async def test_approver_key_accepts_and_declines_for_its_user(shop: Program, desk: Program) -> None:
    # parity: T10
    form, confirm = await shop.asked(FORM), await shop.asked(CONFIRM)
    seen = await desk.read(form["id"])
    assert (seen["message"], seen["url"], seen["schema"]["required"]) == (
        "Which city?",
        None,
        ["response"],
    )
    answer = {"accepts": True, "content": {"response": "Graz"}}
    answered = await desk.post(form["id"], "answer", answer)
    assert (answered.status_code, answered.json()["status"]) == (200, "accepted")
    assert answered.json()["content"] is None  # only the asking program receives the content
    assert (await desk.post(confirm["id"], "answer", {"accepts": False})).status_code == 200
    data = await shop.read(form["id"])
    assert (data["content"], data["why"]) == ({"response": "Graz"}, "answered with an API key")
    assert (await shop.read(confirm["id"]))["status"] == "declined"


async def test_approver_key_lists_questions_to_decide(shop: Program, desk: Program) -> None:
    # parity: T10
    asked = [await shop.asked(body) for body in (CONFIRM, PAYMENT, SECRET)]
    await shop.asked(CONFIRM, user="bob")
    listed = (await desk.call("GET", params={"status": "pending"})).json()["questions"]
    assert [one["id"] for one in listed] == [asked[0]["id"]]
    assert listed[0]["arguments"] == {"count": 5}


async def test_invalid_answer_of_approver_key_is_refused_with_reason(
    shop: Program, desk: Program
) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    asked = await shop.asked({**FORM, "schema": schema})
    wrong = {"accepts": True, "content": {"age": "old"}}
    refused = await desk.post(asked["id"], "answer", wrong)
    assert (refused.status_code, "age" in refused.text) == (422, True)
    assert (await shop.read(asked["id"]))["status"] == "pending"


async def test_approver_key_answers_question_of_application(here: AskingEnv, desk: Program) -> None:
    async def sure() -> bool:
        return await elicit.confirm("Delete it?")

    block = here.begin(sure)
    link = await block.link()
    assert (await desk.post(link.elicitation_id, "answer", {"accepts": True})).status_code == 200
    assert await block is True


@pytest.mark.parametrize("body", [URL, ACCOUNT, PAYMENT, SECRET])
async def test_approver_key_cannot_see_payment_account_secret_or_url_question(
    shop: Program, desk: Program, body: dict[str, Any]
) -> None:
    asked = await shop.asked(body)
    assert (await desk.call("GET", f"/{asked['id']}")).status_code == 404
    assert (await desk.post(asked["id"], "answer", {"accepts": True})).status_code == 404


async def test_approver_key_cannot_answer_question_of_other_user(
    shop: Program, desk: Program
) -> None:
    asked = await shop.asked(CONFIRM, user="bob")
    for answer in (True, False):
        refused = await desk.post(asked["id"], "answer", {"accepts": answer})
        assert refused.status_code == 404
    assert (await shop.read(asked["id"]))["status"] == "pending"


async def test_approver_key_cannot_ask_or_end_questions(shop: Program, desk: Program) -> None:
    asked = await shop.asked(CONFIRM)
    assert (await desk.ask(CONFIRM)).status_code == 403
    for verb, body in (("cancel", None), ("taken", None), ("complete", {})):
        assert (await desk.post(asked["id"], verb, body)).status_code == 403


async def test_ended_question_cannot_be_answered_by_approver_key(
    shop: Program, desk: Program
) -> None:
    asked = await shop.asked(CONFIRM)
    assert (await desk.post(asked["id"], "answer", {"accepts": False})).status_code == 200
    for answer in (True, False):
        late = await desk.post(asked["id"], "answer", {"accepts": answer})
        assert (late.status_code, late.json()["code"]) == (409, "ELICITATION_ALREADY_SETTLED")


async def test_expired_question_cannot_be_answered_before_sweeper_marks_expiry(
    here: AskingEnv, shop: Program, desk: Program
) -> None:
    for accepts in (True, False):
        asked = await shop.asked({**CONFIRM, "message": f"Is it {accepts}?"})
        here.clock.tick(minutes=6)
        late = await desk.post(asked["id"], "answer", {"accepts": accepts})
        assert late.status_code == 409
        assert late.json()["detail"].startswith("The question has expired")
        assert (await shop.read(asked["id"]))["status"] == "expired"
