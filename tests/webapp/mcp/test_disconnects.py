"""Connections that break before the answer, during the tool's work, or before the result."""

import asyncio
from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    Caller,
    ServerEnv,
    caller_of,
    cut,
    eventually,
    links_asked,
    soon,
    text_of,
)

LOGIN = "https://example.org/login"


class Work:
    """The tool `buy`: it asks, then runs `work` in `once`. `work` ends when `gate` is set."""

    def __init__(self, server: Any) -> None:
        self.gate = asyncio.Event()
        self.began = 0
        self.ended = 0

        @server.tool()
        async def buy() -> str:
            paid = await elicit.url("Pay", LOGIN)
            return f"bought {await elicit.once('work', self.work, again=True)} {dict(paid)}"

    async def work(self, _key: str) -> int:
        self.began += 1
        await self.gate.wait()
        self.ended += 1
        return self.ended

    async def is_begun(self, env: ServerEnv, caller: Caller) -> None:
        """Answer a call, wait until its work has begun, and close the client's connection."""
        given_up = caller.call("buy")
        await env.complete(await caller.link())
        await self.is_left(env, given_up)

    async def is_left(self, env: ServerEnv, call: asyncio.Task[Any]) -> None:
        await eventually(lambda: self.began)
        await cut(call)
        await env.posts_are_over()


async def left_waiting(env: ServerEnv, caller: Caller) -> str:
    """Return the link of a call that the client abandoned before the person answered."""
    given_up = caller.call("buy")
    link = await caller.link()
    await env.waited_for_by_another(link, None)
    await cut(given_up)
    await eventually(lambda: not len(env.service.elicitations.waiters))
    return link


async def lost_call(env: ServerEnv, caller: Caller, revision: str) -> asyncio.Task[Any]:
    """Start a call over a connection that can be cut.

    On 2026-07-28 the call resumes an earlier request.
    """
    impatient = await env.cut_off_caller(revision)
    is_modern = revision == MODERN
    state = (await caller.asked("buy")).request_state if is_modern else None
    return impatient.call("buy", state=state)


async def bodies_are_over(env: ServerEnv) -> None:
    await eventually(lambda: not len(env.service.running_tools))


async def test_question_stays_open_when_the_client_stops_waiting(server, revision):
    work = Work(server)
    work.gate.set()
    async with caller_of(server, revision) as (env, caller):
        link = await left_waiting(env, caller)
        assert await env.status(link) == "pending"
        call = caller.call("buy")
        if revision == MODERN:  # on the older revision the client has the link in this session
            assert env.id_of(await caller.link()) == env.id_of(link)
        await env.pending()
        await env.complete(link)
        assert text_of(await soon(call)) == "bought 1 {}"
        assert work.began == 1
        assert not caller.has_links_left


async def test_answer_without_a_waiting_call_is_stored_for_the_same_call(server, revision):
    work = Work(server)
    work.gate.set()
    async with caller_of(server, revision) as (env, caller):
        link = await left_waiting(env, caller)
        await env.complete(link, {"n": 1})
        assert await caller.text("buy") == "bought 1 {'n': 1}"
        assert work.began == 1


@pytest.mark.every_way
async def test_tool_that_has_its_answer_finishes_after_a_disconnect(server, revision):
    work = Work(server)
    async with caller_of(server, revision) as (env, caller):
        await work.is_begun(env, caller)
        work.gate.set()
        await bodies_are_over(env)
        assert work.ended == 1
        assert await caller.text("buy") == "bought 1 {}"
        assert (work.began, work.ended) == (1, 1)


async def test_same_call_waits_for_a_running_tool(server, revision):
    work = Work(server)
    async with caller_of(server, revision) as (env, caller):
        await work.is_begun(env, caller)
        again = caller.call("buy")
        await eventually(lambda: len(env.service.elicitations.waiters) >= 2)
        work.gate.set()
        assert text_of(await soon(again)) == "bought 1 {}"
        assert (work.began, work.ended) == (1, 1)


async def test_stored_result_is_returned_once_and_the_next_call_asks_again(server, revision):
    work = Work(server)
    async with caller_of(server, revision) as (env, caller):
        await work.is_begun(env, caller)
        work.gate.set()
        await bodies_are_over(env)
        assert await caller.text("buy") == "bought 1 {}"
        fresh = caller.call("buy")
        await env.complete(await caller.link())
        assert text_of(await soon(fresh)) == "bought 2 {}"


@pytest.mark.every_way
async def test_disconnect_while_waiting_loses_nothing(server, revision):
    """A client with a 60-second timeout cuts the connection without telling the server."""
    work = Work(server)
    work.gate.set()
    async with caller_of(server, revision) as (env, caller):
        lost = await lost_call(env, caller, revision)
        (pending,) = await env.pending()
        await cut(lost)
        call = caller.call("buy")
        link = await caller.link()
        assert env.id_of(link) == pending.id
        await env.waited_for_by_another(link, pending.waiter)
        await env.complete(link, {"n": 1})
        assert text_of(await soon(call)) == "bought 1 {'n': 1}"
        assert work.began == 1


async def test_disconnect_during_the_tool_stores_the_result(server, revision):
    work = Work(server)
    async with caller_of(server, revision) as (env, caller):
        lost = await lost_call(env, caller, revision)
        (pending,) = await env.pending()
        await env.complete(env.link_of(pending))
        await work.is_left(env, lost)
        work.gate.set()
        await bodies_are_over(env)
        assert await caller.text("buy") == "bought 1 {}"
        assert (work.began, work.ended) == (1, 1)


async def test_legacy_client_can_repeat_a_lost_call_while_the_tool_runs(server):
    work = Work(server)
    async with caller_of(server, LEGACY) as (env, caller):
        lost = await lost_call(env, caller, LEGACY)
        (pending,) = await env.pending()
        await env.complete(env.link_of(pending))
        await work.is_left(env, lost)
        again = caller.call("buy")
        await eventually(lambda: len(env.service.elicitations.waiters) >= 2)
        work.gate.set()
        assert text_of(await soon(again)) == "bought 1 {}"
        assert (work.began, work.ended) == (1, 1)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_tool_without_an_answer_is_cancelled_when_its_client_disconnects(server, when):
    """A tool of 2026-07-28 without a claimed answer is cancelled when its client disconnects."""
    started, ended = asyncio.Event(), asyncio.Event()

    @server.tool()
    async def idle(asks: bool) -> str:
        if asks:
            await elicit.url("Pay", LOGIN)
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return "never"

    async with caller_of(server, MODERN) as (env, caller):
        if when == "after":
            asked = await caller.asked("idle", asks=True)
            waiting = asyncio.create_task(caller.send_call("idle", after=asked, asks=True))
            await env.waited_for_by_another(links_asked(asked)[0], None)
            await cut(waiting)
        else:
            call = caller.call("idle", asks=False)
            await soon(started.wait())
            await cut(call)
            await soon(ended.wait())
        await bodies_are_over(env)
        assert not len(env.service.elicitations.waiters)
