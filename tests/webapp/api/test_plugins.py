"""Hooks of a plugin, for questions over the HTTP API and for questions in an `asking` block."""

from collections.abc import AsyncIterator

import pytest

from flows import elicit
from flows.hooks import (
    GivenAnswer,
    HookRefused,
    ProposedQuestion,
    SettledQuestion,
    StartedQuestion,
    after,
    before,
)
from tests.support.api_program import CONFIRM, FORM, Program, program_at
from tests.support.asking_env import APPLICATION, AskingEnv, asking_env
from tests.support.living import living
from tests.support.mcp_server import eventually
from webapp.identity.api_keys import KeyScope


class Recorder:
    """A plugin that records questions, and refuses "closed" in messages and "Nowhere" as answer."""

    def __init__(self) -> None:
        self.seen = list[StartedQuestion | SettledQuestion]()

    @before("admit")
    def close(self, question: ProposedQuestion) -> None:
        if "closed" in question.message:
            raise HookRefused("The house is closed: ask again on Monday.")

    @before("settle")
    def look(self, answer: GivenAnswer) -> None:
        if answer.content.get("response") == "Nowhere":
            raise HookRefused("There is no such city: ask for another.", field="response")

    @after("start")
    def note(self, question: StartedQuestion) -> None:
        self.seen.append(question)

    @after("settle")
    def note_end(self, question: SettledQuestion) -> None:
        self.seen.append(question)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def here(recorder: Recorder) -> AsyncIterator[AskingEnv]:
    async with living(asking_env(plugins=[recorder])) as here:
        yield here


@pytest.fixture
async def shop(here: AskingEnv) -> AsyncIterator[Program]:
    async with program_at(here) as program:
        yield program


async def test_question_refused_by_hook_returns_403_and_stores_no_row(
    here: AskingEnv, shop: Program
) -> None:
    answer = await shop.ask({**FORM, "message": "Is it closed?"}, name="wish")
    assert answer.status_code == 403
    assert answer.json()["detail"] == "The house is closed: ask again on Monday."
    assert answer.headers["content-type"] == "application/problem+json"
    for kind in ("elicitation", "run", "standing"):
        assert not await here.service.elicitations.store.list(kind), kind
    assert (await shop.ask(FORM, name="wish")).status_code == 201, (
        "the refused question did not use up the idempotency key"
    )


async def test_repeated_request_notifies_plugin_of_start_once(
    recorder: Recorder, shop: Program, here: AskingEnv
) -> None:
    for _ in range(2):
        assert (await shop.ask(CONFIRM, name="wish")).status_code == 201
    (started,) = recorder.seen
    assert (started.kind, started.server, started.is_for_user) == ("confirm", APPLICATION, True)
    await shop.post(started.id, "cancel")
    await eventually(lambda: len(recorder.seen) == 2)
    ended = recorder.seen[1]
    assert isinstance(ended, SettledQuestion)
    assert (ended.id, ended.status, ended.owner) == (started.id, "cancelled", started.owner)


async def test_answer_of_approver_key_is_refused_by_hook_like_answer_of_person(
    here: AskingEnv, shop: Program
) -> None:
    asked = await shop.asked(FORM)
    approving = program_at(here, program="desk", scope=KeyScope.APPROVE, owners=("ann",))
    async with approving as desk:
        refused = await desk.post(
            asked["id"], "answer", {"accepts": True, "content": {"response": "Nowhere"}}
        )
        assert refused.status_code == 422
        assert "There is no such city" in refused.text
        assert (await shop.read(asked["id"]))["status"] == "pending"
        right = {"accepts": True, "content": {"response": "Ulm"}}
        assert (await desk.post(asked["id"], "answer", right)).status_code == 200


async def test_question_of_block_refused_by_hook_raises_hook_refused(
    recorder: Recorder, here: AskingEnv
) -> None:
    async def ask() -> str:
        return await elicit.form("Is it closed?")

    block = here.begin(ask)
    with pytest.raises(HookRefused, match="ask again on Monday"):
        await block.task
    assert recorder.seen == []
