"""Attacks on tasks: reading another person's task, flooding, and answering for the person."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flows import elicit
from flows.elicitation.states import Status
from tests.support.clock import Clock
from tests.support.mcp_server import LEGACY, MODERN, eventually, new_server
from tests.support.signed_in_people import signed_in_env
from tests.support.task_client import Refused, TaskClient, always, task_client, tasks_env
from webapp.mcp.leg import AT_WORK_AT_MOST
from webapp.settings.quotas import PolicySettings

INVALID = -32602
YEARS_MS = 10**15
ODD_IDS = [None, 7, "", "x" * 10_000, "\u00e4", "' or 1=1", {"taskId": "x"}]


class Shop:
    def __init__(self, server: Any) -> None:
        self.began = 0
        self.deleted = 0
        self.may_end = asyncio.Event()

        @server.tool()
        async def visit() -> str:
            self.began += 1
            await elicit.url("Please read this", "https://shop.example/terms")
            return "read"

        @server.tool()
        async def delete() -> str:
            if not await elicit.confirm("Delete it all?"):
                return "kept"
            self.deleted += 1
            return "deleted"

        @server.tool()
        async def works(number: int) -> str:
            await self.may_end.wait()
            return f"{number}"


@pytest.fixture
def server() -> Any:
    return new_server("mcp")


@pytest.fixture
def shop(server: Any) -> Shop:
    return Shop(server)


def requests_about(client: TaskClient, task: Any) -> list[tuple[str, dict[str, Any]]]:
    of_revision: tuple[str, dict[str, Any]] = (
        ("tasks/update", {"inputResponses": {}}) if client.is_modern else ("tasks/result", {})
    )
    methods: list[tuple[str, dict[str, Any]]] = [
        ("tasks/get", {}),
        ("tasks/cancel", {}),
        of_revision,
    ]
    return [(method, {**more, "taskId": task}) for method, more in methods]


async def refusals(client: TaskClient, task: Any) -> set[tuple[int, str]]:
    """Return the refusals of every request about this task."""
    reported = set()
    for method, params in requests_about(client, task):
        with pytest.raises(Refused) as refused:
            await client.request(method, **params)
        reported.add((refused.value.code, str(refused.value)))
    return reported


async def test_task_of_another_person_looks_like_unknown_task(revision):
    async with signed_in_env(policies=always(PolicySettings())) as here:
        bearers = here.bearer("alice"), here.bearer("mallory")
        async with (
            task_client(here.env, revision, headers=bearers[0]) as alice,
            task_client(here.env, revision, headers=bearers[1]) as mallory,
        ):
            task = await alice.task("visit")
            made_up = task[:20] + "A" * (len(task) - 20)
            reported = await refusals(mallory, task)
            assert reported == await refusals(mallory, made_up) == await refusals(alice, made_up)
            assert {code for code, _ in reported} == {INVALID}
            await alice.until(task, "input_required")


async def test_task_of_another_client_is_refused(server, shop, revision):
    async with (
        tasks_env(server) as env,
        task_client(env, revision) as client,
        task_client(env, revision, name="another") as another,
    ):
        task = await client.task("visit")
        assert {code for code, _ in await refusals(another, task)} == {INVALID}
        await client.until(task, "input_required")


async def test_malformed_task_id_is_refused_without_exception(server, shop, revision, caplog):
    async with tasks_env(server) as env, task_client(env, revision) as client:
        for id in ODD_IDS:
            assert {code for code, _ in await refusals(client, id)} == {INVALID}
        assert not [record for record in caplog.records if record.exc_info]


async def test_task_ttl_is_limited_for_any_requested_ttl(server, shop):
    async with tasks_env(server) as env, task_client(env, LEGACY) as client:
        for wish in ({"ttl": YEARS_MS}, {"ttl": -1}, {"ttl": "for ever"}, {"ttl": None}, {}):
            answer = await client.request("tools/call", name="visit", arguments={}, task=wish)
            task = answer["task"]["taskId"]
            granted = (await client.until(task, "input_required"))["ttl"]
            assert 0 < granted <= timedelta(minutes=16) / timedelta(milliseconds=1)


async def test_running_tools_per_person_are_limited(server, shop):
    async with tasks_env(server) as env, task_client(env, LEGACY) as client:
        tasks = [await client.task("works", number=n) for n in range(AT_WORK_AT_MOST)]
        with pytest.raises(Refused, match="Wait until some"):
            await client.task("works", number=-1)
        assert len(env.service.running_tools) == AT_WORK_AT_MOST
        shop.may_end.set()
        for n, task in enumerate(tasks):
            assert await client.text(task) == f"{n}"
        assert await client.text(await client.task("works", number=-1)) == "-1"


async def test_polls_begin_no_further_tool_while_the_maximum_per_person_runs(server, shop):
    at_work: list[int] = []

    @server.tool()
    async def reads(number: int) -> str:
        await elicit.url(f"Please read page {number}", f"https://shop.example/{number}")
        at_work.append(number)
        await shop.may_end.wait()
        return f"{number}"

    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        tasks = [await client.task("reads", number=n) for n in range(AT_WORK_AT_MOST + 1)]
        for asked in await env.elicitations():
            await env.complete(env.link_of(asked))
        states = await asyncio.gather(*map(client.get, tasks))
        assert {state["status"] for state in states} == {"working"}
        began = len(at_work)
        shop.may_end.set()
        assert [await client.text(task) for task in tasks] == [f"{n}" for n in range(len(tasks))]
        assert began == AT_WORK_AT_MOST


async def test_concurrent_task_polls_run_tool_once(server, shop):
    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        task = await client.task("visit")
        await asyncio.gather(*(client.get(task) for _ in range(50)))
        assert shop.began == 1
        (asked,) = await env.elicitations()
        await env.complete(env.link_of(asked))
        states = await asyncio.gather(*(client.get(task) for _ in range(50)))
        assert {state["status"] for state in states} <= {"working", "completed"}
        assert await client.text(task) == "read"
        assert shop.began == 2


async def test_concurrent_cancel_and_accept_have_a_single_winner(server, shop):
    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        for _ in range(10):
            task = await client.task("delete")
            deleted = shop.deleted
            (key,) = (await client.get(task))["inputRequests"]
            yes = {key: {"action": "accept", "content": {}}}
            await asyncio.gather(
                client.cancel(task),
                client.request("tasks/update", taskId=task, inputResponses=yes),
                client.get(task),
            )
            state = await client.until(task, "completed", "cancelled")
            assert (await client.get(task))["status"] == state["status"]
            await eventually(lambda: not len(env.service.running_tools))
            assert shop.deleted - deleted <= 1
            if state["status"] == "completed":
                assert shop.deleted - deleted == 1
            for one in await env.elicitations():  # the next call would join an open question
                if not one.status.is_final:
                    await env.service.elicitations.end(one, Status.CANCELLED)


async def test_repeated_accept_is_applied_once(server, shop):
    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        task = await client.task("delete")
        (key,) = (await client.get(task))["inputRequests"]
        yes = {key: {"action": "accept", "content": {}}}
        await asyncio.gather(
            *(client.request("tasks/update", taskId=task, inputResponses=yes) for _ in range(20))
        )
        assert await client.text(task) == "deleted"
        assert shop.deleted == 1


async def test_client_answer_does_not_complete_link(server, shop):
    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        task = await client.task("visit")
        (key,) = (await client.get(task))["inputRequests"]
        for response in (
            {"action": "accept"},
            {"action": "accept", "content": {"status": "accepted", "done": True}},
            {"action": "accepted"},
            {"action": ["accept"]},
            {},
        ):
            answers = {key: response, "elicit-url-0": response, "0": response}
            await client.request("tasks/update", taskId=task, inputResponses=answers)
        assert await client.status(task) == "input_required"
        assert [one.status for one in await env.elicitations()] == [Status.PENDING]
        for responses in (None, 0, "yes"):
            with pytest.raises(Refused):
                await client.request("tasks/update", taskId=task, inputResponses=responses)


async def test_answer_before_minimum_time_is_ignored(server, shop):
    clock, second = Clock(), timedelta(seconds=1)
    async with (
        tasks_env(server, clock=clock, min_answer=second) as env,
        task_client(env, MODERN) as client,
    ):
        task = await client.task("delete")
        await client.update(task, action="accept", content={})
        await client.update(task, action="decline")
        assert await client.status(task) == "input_required"
        assert shop.deleted == 0
        clock.tick(seconds=5)
        await client.update(task, action="accept", content={})
        assert await client.text(task) == "deleted"
