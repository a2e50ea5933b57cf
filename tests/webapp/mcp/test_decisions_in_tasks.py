"""Approvals by others in tasks: they survive days and restarts, and no client can answer them."""

import asyncio
from typing import Any

import pytest

from flows import elicit
from flows.elicitation.states import Elicitation, Status
from flows.hooks import ProposedQuestion, SettledQuestion, StartedQuestion, after, before
from tests.support.approving import FINANCE, ApprovalEnv, approving, press, served, shop
from tests.support.clock import Clock
from tests.support.issuer import issuing
from tests.support.mcp_server import (
    LEGACY,
    PATIENCE_SECONDS,
    eventually,
    new_server,
    server_env,
    soon,
)
from tests.support.task_client import TaskClient, task_client
from webapp.stores.sqlite import MemoryStore

FOLLOWS = "The person can follow or withdraw the request: http"


async def asked_in(here: ApprovalEnv, client: TaskClient, task: str) -> Elicitation:
    """Return the elicitation that the task waits for, once the task waits."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "statusMessage" not in await client.get(task):
            pass
    return await here.asked()


@pytest.mark.every_way
async def test_approval_in_a_task_survives_two_days_and_two_restarts(library, revision):
    clock, store, ran = Clock(), MemoryStore(), list[str]()
    async with issuing(clock) as issuer:

        def process() -> Any:
            return served(shop(library, ran=ran), issuer, clock, store=store.sibling())

        async with (
            process() as here,
            task_client(here.env, revision, headers=here.bearer("alice")) as client,
        ):
            task = await client.task("refund", order="o8")
            asked = await asked_in(here, client, task)
        clock.tick(days=2)
        async with process() as here:
            async with task_client(here.env, revision, headers=here.bearer("alice")) as client:
                state = await client.get(task)
                assert state["status"] == "working", (
                    "the task does not require input: the client cannot answer"
                )
                assert "Waiting for finance: Pay it back? (refund)" in state["statusMessage"]
                assert FOLLOWS in state["statusMessage"]
            frank = await here.signed_in("frank")
            await press(frank, await here.one(frank), "approve")
        assert not ran
        clock.tick(hours=10)
        async with process() as here:
            async with task_client(here.env, revision, headers=here.bearer("alice")) as client:
                assert await client.text(task) == "o8 is paid back"
                assert await client.status(task) == "completed"
            row = await here.asked()
            assert (row.id, row.proof) == (asked.id, "ByApprover")
        assert ran == ["o8"]


async def test_client_cannot_answer_an_approval_for_others(revision):
    async with (
        approving(shop()) as here,
        task_client(here.env, revision, headers=here.bearer("alice")) as client,
    ):
        task = await client.task("ship", order="o8")
        asked = await asked_in(here, client, task)
        assert "inputRequests" not in await client.get(task)
        if client.is_modern:
            # Use the name that the question would have if the client were asked.
            name = f"elicit-url-0-{asked.id[-8:]}"
            responses = {name: {"action": "decline"}}
            await client.request("tasks/update", taskId=task, inputResponses=responses)
        assert (await here.asked()).status is Status.PENDING
        frank = await here.signed_in("frank")
        await press(frank, await here.one(frank), "decline", reason="No stock")
        assert "No stock" in await client.text(task)


async def test_task_result_waits_for_the_approval():
    async with (
        approving(shop()) as here,
        task_client(here.env, LEGACY, headers=here.bearer("alice")) as client,
    ):
        task = await client.task("ship", order="o8")
        await asked_in(here, client, task)
        posts = here.env.begun_posts
        result = asyncio.create_task(client.text(task))  # the server holds this request
        await eventually(lambda: here.env.begun_posts > posts)
        frank = await here.signed_in("frank")
        await press(frank, await here.one(frank), "approve")
        assert await soon(result) == "accepted: shipped"


async def test_client_is_sent_only_its_own_persons_question(revision):
    server = new_server("mcp")

    @server.tool()
    async def sign() -> str:
        both = await elicit.together(
            elicit.confirm("Pay?", approver="finance"), elicit.confirm("Sign?")
        )
        return str(both)

    async with (
        approving(server) as here,
        task_client(here.env, revision, headers=here.bearer("alice")) as client,
    ):
        task = await client.task("sign")
        state = await client.until(task, "input_required")
        result = None
        if client.is_modern:
            (asked,) = state["inputRequests"].values()
            assert asked["params"]["message"] == "Sign?"
            here.clock.tick(minutes=1)
            await client.update(task, action="accept", content={})
        else:
            result = asyncio.create_task(client.text(task))
            assert "Sign?" in (await soon(client.asked.get()))["message"]
            here.clock.tick(minutes=1)
            client.answers.put_nowait({"action": "accept", "content": {}})
        await client.until(task, "working")
        frank = await here.signed_in("frank")
        await press(frank, await here.one(frank), "approve")
        text = await (client.text(task) if result is None else soon(result))
        assert text == "(True, True)"


class Noting:
    """A plugin that records the calls of its hooks, in order."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []

    @before("describe")
    def describe(self, question: ProposedQuestion) -> None:
        self.notes.append(("asked", question.message))

    @after("start")
    def started(self, question: StartedQuestion) -> None:
        self.notes.append(("started", question.message))

    @after("settle")
    def settled(self, question: SettledQuestion) -> None:
        self.notes.append((f"{question.status} {question.by}", question.message))


async def test_plugin_hook_runs_once_per_question_if_the_tool_runs_again(revision):
    clock, server, noting, began = Clock(), new_server("mcp"), Noting(), list[None]()

    @server.tool()
    async def sign() -> str:
        began.append(None)
        first = await elicit.confirm("Pay?", approver="finance")
        second = await elicit.confirm("Ship?", approver="finance")
        return str((first, second))

    async with issuing(clock) as issuer:
        who = issuer.who(approvers=(FINANCE,))
        async with server_env(server, who=who, clock=clock, plugins=[noting]) as env:
            here = ApprovalEnv(env=env, issuer=issuer, clock=clock)
            async with task_client(env, revision, headers=here.bearer("alice")) as client:
                task = await client.task("sign")
                frank = await here.signed_in("frank")
                for message in ("Pay?", "Ship?"):
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        while message not in (await client.get(task)).get("statusMessage", ""):
                            pass
                    await press(frank, await here.one(frank), "approve")
                assert await client.text(task) == "(True, True)"
            await env.service.kinds.plugins.aclose()
    assert len(began) == 3
    assert noting.notes == [
        (what, message)
        for message in ("Pay?", "Ship?")
        for what in ("asked", "started", "accepted ByApprover")
    ]
