"""Calls that the client abandons after the person answered: what continues and what is stored."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flows import elicit
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    ServerEnv,
    caller_of,
    cut,
    eventually,
    links_asked,
    soon,
    text_of,
)
from webapp.limits import CallLimits

LOGIN = "https://example.org/login"


class Work:
    """The tool `buy`: it asks, runs `work` in `once` if the call says so, then waits for `gate`."""

    def __init__(self, server: Any, *, asks: bool = True) -> None:
        self.once_gate, self.gate = asyncio.Event(), asyncio.Event()
        self.log: list[str] = []

        @server.tool()
        async def buy(*, once: bool) -> str:
            answer = await elicit.url("Pay", LOGIN) if asks else {}
            done = await elicit.once("work", self.work) if once else 0
            self.log.append("after")
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.log.append("cancelled")
                raise
            self.log.append("end")
            return f"{dict(answer)} {done}"

    async def is_left(self, env: ServerEnv, call: asyncio.Task[Any], *, after: str) -> None:
        """Let the client abandon the call as soon as the tool has logged `after`."""
        await eventually(lambda: self.log[-1:] == [after])
        await cut(call)
        await env.posts_are_over()

    async def work(self, _key: str) -> int:
        self.log.append("work")
        await self.once_gate.wait()
        self.log.append("done")
        return 7


@pytest.mark.every_way
async def test_abandoned_call_is_cancelled_at_its_next_await_and_its_answer_is_stored(
    server, revision
):
    # finding: R14
    work = Work(server)
    async with caller_of(server, revision) as (env, caller):
        given_up = caller.call("buy", once=False)
        await env.complete(await caller.link(), {"n": 1})
        await eventually(lambda: work.log == ["after"])
        await cut(given_up)
        await eventually(lambda: work.log == ["after", "cancelled"])
        await eventually(lambda: not len(env.service.running_tools))
        work.gate.set()
        assert await caller.text("buy", once=False) == "{'n': 1} 0"
        assert not caller.has_links_left


async def test_once_finishes_after_the_call_is_abandoned_and_its_result_is_reused(server):
    # finding: R14
    work = Work(server)
    async with caller_of(server, LEGACY) as (env, caller):
        given_up = caller.call("buy", once=True)
        await env.complete(await caller.link(), {"n": 1})
        await work.is_left(env, given_up, after="work")
        work.once_gate.set()
        await eventually(lambda: not len(env.service.running_tools))
        assert work.log == ["work", "done"]  # nothing after the `await` ran
        work.gate.set()
        assert await caller.text("buy", once=True) == "{'n': 1} 7"
        assert work.log[2:] == ["after", "end"]


async def test_once_finishes_if_closing_the_stream_cancels_the_call(server):
    # finding: R14
    work = Work(server)
    async with caller_of(server, MODERN) as (env, caller):
        first = await caller.asked("buy", once=True)
        await env.complete(links_asked(first)[0], {"n": 1})
        given_up = asyncio.create_task(caller.send_call("buy", after=first, once=True))
        await work.is_left(env, given_up, after="work")
        again = caller.call("buy", once=True)
        work.once_gate.set()
        await eventually(lambda: work.log == ["work", "done", "after"])
        work.gate.set()
        assert text_of(await soon(again)) == "{'n': 1} 7"
        assert work.log == ["work", "done", "after", "end"]


async def test_same_call_waits_for_an_abandoned_call_without_questions(server):
    # finding: R14
    work = Work(server, asks=False)
    async with caller_of(server, MODERN) as (env, caller):
        given_up = caller.call("buy", once=True)
        work.once_gate.set()
        await work.is_left(env, given_up, after="after")
        again = caller.call("buy", once=True)
        await eventually(lambda: len(env.service.running_tools) == 2)
        work.gate.set()
        assert text_of(await soon(again)).endswith("{} 7")
        assert work.log == ["work", "done", "after", "end"]


async def test_shutdown_waits_for_once(server):
    # finding: R14
    work = Work(server, asks=False)
    async with caller_of(server, LEGACY) as (env, caller):
        given_up = caller.call("buy", once=True)
        await work.is_left(env, given_up, after="work")
        ending = asyncio.create_task(env.service.drain(within=env.settings.policies.grace))
        await eventually(lambda: env.service.is_draining)
        assert not ending.done()
        work.once_gate.set()
        await soon(ending)
        assert work.log == ["work", "done"]


@pytest.mark.every_way
@pytest.mark.parametrize("is_cut", [True, False])
async def test_same_call_is_asked_to_repeat_while_once_takes_too_long(server, revision, is_cut):
    # finding: R14
    work = Work(server, asks=False)
    brief = timedelta(seconds=0.2)
    limits = CallLimits(call=brief, retry=brief, request_at_least=brief, link=brief)
    async with caller_of(server, revision, limits=limits) as (env, caller):
        first = caller.call("buy", once=True)
        await eventually(lambda: work.log == ["work"])
        if is_cut:
            await cut(first)
            await env.posts_are_over()
        again = await caller.result("buy", once=True)
        assert "call again" in text_of(again)
        assert work.log == ["work"]
        work.once_gate.set()
        work.gate.set()
        await eventually(lambda: not len(env.service.running_tools))
