"""Tasks: a call that waits for days keeps no request open, and its client polls for the result."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest

from flows import elicit
from flows.elicitation.states import Status
from flows.elicitation.traits import OnPage
from flows.kinds.gate import GatePolicy
from tests.support.clock import Clock
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    ServerEnv,
    eventually,
    new_server,
    server_env,
    soon,
)
from tests.support.task_client import (
    DECLARED,
    RELATED,
    TASKS,
    Refused,
    TaskClient,
    task_client,
    tasks_env,
)
from webapp.calls.call import RESULT_BYTES_AT_MOST
from webapp.calls.run import ARGUMENTS_BYTES_AT_MOST
from webapp.mcp.task_state import LOOKS_AT_LEAST, LOOKS_AT_MOST
from webapp.settings.quotas import PolicySettings
from webapp.stores.sqlite import MemoryStore

NAME: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
THREE_DAYS = timedelta(days=3)
ACCEPT = {"action": "accept"}
_MILLISECOND = timedelta(milliseconds=1)


class Shop:
    """An author's tools, which record the start of each body."""

    def __init__(self, server: Any) -> None:
        self.began: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

        @server.tool()
        async def visit(page: str = "terms") -> str:
            self.began.append(page)
            await elicit.url("Please read this", f"https://shop.example/{page}")
            await self.may_end.wait()
            return f"read {page}"

        @server.tool()
        async def delete(note: str = "") -> str:
            """Ask a person who may be away over the weekend."""
            is_yes = await elicit.confirm("Delete it all?", timeout=THREE_DAYS)
            return "deleted" if is_yes else "kept"

        @server.tool()
        async def book() -> str:
            first = await elicit.form("Your name?")
            second = await elicit.form("How many?")
            return f"{first} {second}"

        @server.tool()
        async def both() -> str:
            questions = (elicit.url(f"Read {n}", f"https://shop.example/{n}") for n in (1, 2))
            return f"{len(await elicit.together(*questions))} read"

        @server.tool()
        async def look() -> str:
            await elicit.url("Look", "https://shop.example/", wait_for_completion=False)
            return "looked"

        @server.tool()
        async def plain(words: str = "done", times: int = 1) -> str:
            self.began.append("plain")
            await self.may_end.wait()
            return words * times

        @server.tool()
        async def asks_itself() -> types.InputRequiredResult:
            """Ask with the protocol's own request, after the person accepted."""
            await elicit.confirm("Go on?")
            form = types.ElicitRequestFormParams(message="Who?", requested_schema=NAME)
            return types.InputRequiredResult(
                input_requests={"who": types.ElicitRequest(params=form)}
            )

        @server.tool()
        async def breaks() -> str:
            await elicit.confirm("Break it?")
            raise RuntimeError("broken")


@pytest.fixture
def shop(server: Any) -> Shop:
    return Shop(server)


async def the_open(env: ServerEnv) -> Any:
    """Return the only open question."""
    (asked,) = [one for one in await env.elicitations() if not one.status.is_final]
    return asked


async def say_yes(env: ServerEnv) -> None:
    """Accept the open question, as a person does on the page."""
    asked = await the_open(env)
    kind = env.service.kinds.on_page(asked.kind)
    assert kind is not None
    await kind.complete(asked, {}, OnPage())


@pytest.mark.every_way
async def test_task_waits_for_its_person_and_completes(server, shop, revision):
    async with tasks_env(server) as env, task_client(env, revision) as client:
        task = await client.task("visit")
        waiting = await client.until(task, "input_required")
        asked = await the_open(env)
        link = waiting["statusMessage"].split()[-1]
        assert env.id_of(link) == asked.id
        assert (await client.get(task))["status"] == "input_required"
        assert shop.began == ["terms"]  # polling starts no body
        await env.complete(link)
        assert await client.text(task) == "read terms"
        assert await client.status(task) == "completed"
        assert shop.began == ["terms", "terms"]
        assert (await env.elicitations())[0].delivered_at is not None


@pytest.mark.every_way
async def test_task_approval_survives_two_days_and_a_restart(library, revision):
    clock, store = Clock(), MemoryStore()

    def served() -> Any:
        server = new_server(library)
        Shop(server)
        return tasks_env(server, store=store, clock=clock)

    async with served() as env, task_client(env, revision) as client:
        task = await client.task("delete")
        state = await client.until(task, "input_required")
        ttl = state["ttlMs" if client.is_modern else "ttl"] * _MILLISECOND
        assert THREE_DAYS < ttl < THREE_DAYS + timedelta(hours=1)
    clock.tick(days=1)
    async with served() as env:
        clock.tick(hours=20)
        await say_yes(env)
        # The client comes back in the morning. The person's answer is still stored.
        clock.tick(hours=10)
        async with task_client(env, revision) as client:
            assert await client.text(task) == "deleted"
            assert await client.status(task) == "completed"


async def test_gate_in_a_task_waits_for_minutes(library, revision):
    clock, gates = Clock(), GatePolicy(patterns=("plain",))
    server = new_server(library)
    shop = Shop(server)
    async with (
        tasks_env(server, gate=gates, clock=clock) as env,
        task_client(env, revision) as client,
    ):
        task = await client.task("plain")
        await client.until(task, "input_required")
        await say_yes(env)
        clock.tick(minutes=4)
        assert await client.text(task) == "done"
        assert shop.began == ["plain"]


async def test_client_without_tasks_is_offered_none(server, shop, revision):
    plain: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}}
    async with tasks_env(server) as env, task_client(env, revision, declares=plain) as client:
        assert "tasks" not in client.promised
        assert TASKS not in client.promised.get("extensions", {})
        listed = await client.request("tools/list")
        assert all("execution" not in tool for tool in listed["tools"])
        answer = await client.call("plain")  # the client asks for a task on the older revision
        assert answer["content"][0]["text"] == "done"
        missing = -32021 if client.is_modern else -32601
        for method in ("tasks/get", "tasks/cancel"):
            with pytest.raises(Refused) as refused:
                await client.request(method, taskId="any")
            assert refused.value.code == missing


async def test_client_with_tasks_is_offered_tasks(server, shop, revision):
    async with tasks_env(server) as env, task_client(env, revision) as client:
        if client.is_modern:
            assert client.promised["extensions"][TASKS] == {}
            return
        assert client.promised["tasks"] == {"cancel": {}, "requests": {"tools": {"call": {}}}}
        listed = await client.request("tools/list")
        assert {tool["execution"]["taskSupport"] for tool in listed["tools"]} == {"optional"}


async def test_tasks_can_be_disabled_by_policy(server, shop, revision):
    policies = PolicySettings(tasks=False)
    async with tasks_env(server, policies=policies) as env, task_client(env, revision) as client:
        assert "tasks" not in client.promised
        assert TASKS not in client.promised.get("extensions", {})
        assert (await client.call("plain"))["content"][0]["text"] == "done"


async def test_client_without_links_gets_no_task(server, shop, revision):
    forms = {**DECLARED, "elicitation": {}}
    async with tasks_env(server) as env, task_client(env, revision, declares=forms) as client:
        assert "tasks" not in client.promised
        answer = await client.call("visit")
        assert "/e/" in answer["content"][0]["text"]


async def test_call_without_questions_returns_its_result_immediately(server, shop):
    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        answer = await client.call("plain")
        assert answer["resultType"] == "complete"
        assert answer["content"][0]["text"] == "done"


async def test_tool_without_questions_is_a_task_if_the_client_requests_a_task(server, shop):
    shop.may_end.clear()
    async with tasks_env(server) as env, task_client(env, LEGACY) as client:
        task = await client.task("plain")
        assert await client.status(task) == "working"
        # Repeating the call while it runs gives the same task.
        assert await client.task("plain") == task
        shop.may_end.set()
        assert await client.text(task) == "done"
        assert await client.text(task) == "done"
        assert shop.began == ["plain"]
        assert await client.task("plain") != task


async def test_question_is_sent_during_the_request_for_the_task_result(server, shop):
    async with tasks_env(server) as env, task_client(env, LEGACY) as client:
        task = await client.task("visit")
        await client.until(task, "input_required")
        result = asyncio.create_task(client.request("tasks/result", taskId=task))
        asked = await soon(client.asked.get())
        link = env.link_of(await the_open(env))
        assert asked["mode"] == "url"
        assert asked["_meta"][RELATED] == {"taskId": task}
        client.answers.put_nowait(ACCEPT)
        assert await client.status(task) == "input_required"
        await env.complete(link)
        outcome = await soon(result)
        assert outcome["content"][0]["text"] == "read terms"
        assert outcome["_meta"][RELATED] == {"taskId": task}


async def test_two_requests_for_a_task_result_both_get_the_result(server, shop):
    async with tasks_env(server) as env, task_client(env, LEGACY) as client:
        task = await client.task("visit")
        first = asyncio.create_task(client.request("tasks/result", taskId=task))
        await soon(client.asked.get())
        async with task_client(env, LEGACY) as other:
            second = asyncio.create_task(other.request("tasks/result", taskId=task))
            await soon(other.asked.get())
            await env.complete(env.link_of(await the_open(env)))
            client.answers.put_nowait(ACCEPT)
            other.answers.put_nowait(ACCEPT)
            for result in (first, second):
                assert (await soon(result))["content"][0]["text"] == "read terms"


async def test_task_state_includes_its_question_and_an_update_answers_the_question(server, shop):
    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        task = await client.task("book")
        first = (await client.get(task))["inputRequests"]
        (request,) = first.values()
        assert request["method"] == "elicitation/create"
        assert request["params"]["mode"] == "form"
        assert (await client.get(task))["inputRequests"] == first
        done = await client.update(task, action="accept", content={"response": "Ann"})
        assert done == {"resultType": "complete"}
        second = (await client.until(task, "input_required"))["inputRequests"]
        assert not first.keys() & second.keys()
        await client.update(task, action="accept", content={"response": "2"})
        assert await client.text(task) == "Ann 2"


async def test_accepting_a_link_in_a_task_does_not_complete_the_question(server, shop):
    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        task = await client.task("visit")
        for _ in range(3):
            await client.update(task, action="accept", content={"done": True})
        assert await client.status(task) == "input_required"
        assert (await the_open(env)).status is Status.PENDING
        task = await client.task("look")  # the tool needs nothing more
        await client.update(task, action="accept")
        assert await client.text(task) == "looked"


async def test_decline_in_the_client_is_the_tasks_result(server, shop):
    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        task = await client.task("visit")
        await client.update(task, action="decline")
        result = (await client.until(task, "completed"))["result"]
        assert result["isError"]
        assert "ELICITATION_DECLINED" in result["content"][0]["text"]


async def test_dismissed_question_cancels_its_task_and_stays_open(server, shop):
    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        task = await client.task("visit")
        asked = await the_open(env)
        await client.update(task, action="cancel")
        await client.until(task, "cancelled")
        again = await client.task("visit")
        assert again != task
        assert await the_open(env) == (await env.elicitations())[-1]
        await env.complete(env.link_of(asked))
        assert await client.text(again) == "read terms"


@pytest.mark.every_way
async def test_cancelled_task_stays_cancelled_and_the_same_call_continues(server, shop, revision):
    async with tasks_env(server) as env, task_client(env, revision) as client:
        task = await client.task("visit")
        await client.until(task, "input_required")
        answer = await client.cancel(task)
        if not client.is_modern:
            assert answer["status"] == "cancelled"
            with pytest.raises(Refused) as refused:
                await client.cancel(task)
            assert refused.value.code == -32602
            result = await client.request("tasks/result", taskId=task)
            assert result["isError"]
        again = await client.task("visit")
        await client.until(again, "input_required")
        await env.complete(env.link_of(await the_open(env)))
        assert await client.status(task) == "cancelled"
        assert await client.text(again) == "read terms"


async def test_task_cancellation_ends_the_running_tool(server, shop):
    shop.may_end.clear()
    async with tasks_env(server) as env, task_client(env, LEGACY) as client:
        task = await client.task("plain")
        await eventually(lambda: shop.began)
        await client.cancel(task)
        await eventually(lambda: not len(env.service.running_tools))
        assert await client.status(task) == "cancelled"


async def test_polling_after_startup_does_not_run_a_tool_claimed_by_another_process(revision):
    # finding: XD6
    store, clock = MemoryStore(), Clock()
    servers = [new_server("mcp") for _ in range(2)]
    before, after = [Shop(server) for server in servers]
    before.may_end.clear()
    async with (
        tasks_env(servers[0], store=store, clock=clock) as env,
        task_client(env, revision) as client,
        ends(before),
    ):
        task = await client.task("visit")
        await client.until(task, "input_required")
        await env.complete(env.link_of(await the_open(env)))
        await begun(client, task, before)
        clock.tick(seconds=31)  # a killed process cannot renew its lease
        opened = tasks_env(servers[1], store=store.sibling(), clock=clock, is_alone=False)
        async with opened as fresh, task_client(fresh, revision) as looking:
            for _ in range(5):
                assert await looking.status(task) == "working"
            assert after.began == []
            clock.tick(seconds=15)
            await looking.until(task, "completed")
            assert after.began == ["terms"]


@asynccontextmanager
async def ends(shop: Shop) -> AsyncGenerator[None]:
    """Let the waiting bodies finish when the block ends."""
    try:
        yield
    finally:
        shop.may_end.set()


async def begun(client: TaskClient, task: str, shop: Shop) -> None:
    """Poll the task until its body has started a second time, with the answer."""
    while len(shop.began) < 2:
        await client.get(task)


async def test_together_questions_in_a_task_are_answered_separately(server, shop, revision):
    async with tasks_env(server) as env, task_client(env, revision) as client:
        task = await client.task("both")
        state = await client.until(task, "input_required")
        if client.is_modern:
            assert len(state["inputRequests"]) == 2
        first, second = await env.elicitations()
        await env.complete(env.link_of(first))
        assert await client.status(task) == "input_required"
        await env.complete(env.link_of(second))
        assert await client.text(task) == "2 read"


async def test_tool_error_sets_the_task_status_of_its_revision(server, shop, revision):
    async with tasks_env(server) as env, task_client(env, revision) as client:
        task = await client.task("breaks")
        await client.until(task, "input_required")
        await say_yes(env)
        # A tool's error is a result. The older revision calls the task failed.
        state = await client.until(task, "completed", "failed")
        assert state["status"] == ("completed" if client.is_modern else "failed")
        assert "breaks" in await client.text(task)


async def test_tools_own_request_cannot_be_carried_by_a_task():
    server = new_server("mcp")
    Shop(server)
    async with tasks_env(server) as env, task_client(env, MODERN) as client:
        task = await client.task("asks_itself")
        await client.update(task, action="accept", content={})
        assert "not possible in a task" in await client.text(task)


async def test_expired_question_ends_its_task(server, shop, revision):
    clock = Clock()
    async with tasks_env(server, clock=clock) as env, task_client(env, revision) as client:
        task = await client.task("visit")
        await client.until(task, "input_required")
        clock.tick(minutes=6)
        assert "ELICITATION_TIMEOUT" in await client.text(task)
        clock.tick(minutes=11)
        with pytest.raises(Refused, match="Call the tool again"):
            await client.get(task)


async def test_poll_interval_grows_with_the_waiting_time(server, shop, revision):
    clock = Clock()
    async with tasks_env(server, clock=clock) as env, task_client(env, revision) as client:
        key = "pollIntervalMs" if client.is_modern else "pollInterval"
        task = await client.task("delete")
        first = (await client.until(task, "input_required"))[key] * _MILLISECOND
        clock.tick(hours=1)
        then = (await client.get(task))[key] * _MILLISECOND
        assert (first, then) == (LOOKS_AT_LEAST, LOOKS_AT_MOST)


async def test_oversized_task_result_is_available_in_the_same_process(server, shop):
    times = RESULT_BYTES_AT_MOST // 900
    async with tasks_env(server) as env, task_client(env, LEGACY) as client:
        task = await client.task("plain", words="x" * 1000, times=times)
        assert await client.text(task) == "x" * 1000 * times
        assert await client.status(task) == "completed"
        assert shop.began == ["plain"]


async def test_oversized_task_result_is_reported_lost_by_another_process(server, shop):
    store, times = MemoryStore(), RESULT_BYTES_AT_MOST // 900
    async with tasks_env(server, store=store) as env, task_client(env, LEGACY) as client:
        task = await client.task("plain", words="x" * 1000, times=times)
        await client.until(task, "completed")
    another = new_server("mcp")
    Shop(another)
    async with tasks_env(another, store=store) as env, task_client(env, LEGACY) as client:
        assert "is not stored any more" in await client.text(task)
        assert await client.status(task) == "failed"


async def test_oversized_arguments_create_no_task(server, shop, revision):
    words = "x" * ARGUMENTS_BYTES_AT_MOST
    async with tasks_env(server) as env, task_client(env, revision) as client:
        if not client.is_modern:
            with pytest.raises(Refused, match="without a task"):
                await client.call("delete", note=words)
            return
        asked = await client.call("delete", note=words)
        assert asked["resultType"] == "input_required"


async def test_servers_own_task_handlers_are_preserved(revision):
    server = new_server("mcp")
    Shop(server)

    async def own(context: Any, params: Any) -> dict[str, Any]:
        return {"taskId": params.task_id, "status": "of its own"}

    server._lowlevel_server.add_request_handler("tasks/get", types.GetTaskRequestParams, own)
    async with tasks_env(server) as env, task_client(env, revision) as client:
        assert "tasks" not in client.promised
        assert (await client.get("theirs"))["status"] == "of its own"
        await client.call("plain")


async def test_repeated_call_after_a_lost_response_gets_the_same_task(server, shop):
    """A client that lost the response repeats its call and gets the same task."""
    async with tasks_env(server) as env:
        tasks: list[str] = []
        for _ in range(2):
            async with task_client(env, MODERN) as client:
                tasks.append(await client.task("visit"))
        assert len(set(tasks)) == 1
        assert len(await env.elicitations()) == 1


async def test_short_question_creates_a_task_only_if_the_client_requests_a_task() -> None:
    server = new_server("mcp")

    @server.tool()
    async def ask(hours: int) -> str:
        return f"{await elicit.confirm('Go on?', timeout=timedelta(hours=hours))}"

    @server.tool()
    async def ask_soon() -> str:
        return f"{await elicit.confirm('Go on?')}"

    async with server_env(server) as env, task_client(env, MODERN) as client:
        assert (await client.call("ask_soon"))["resultType"] == "input_required"
        assert (await client.call("ask", hours=1))["resultType"] == "task"
    async with server_env(server) as env, task_client(env, LEGACY) as client:
        assert await client.task("ask_soon")
