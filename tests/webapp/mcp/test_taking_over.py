"""Calls that end at the second of their two questions, and are then repeated by a client."""

import asyncio
from typing import Any

import pytest

from flows import CallOver, elicit
from tests.support.mcp_server import LEGACY, caller_of, cut, eventually, soon, text_of

LOGIN = "https://example.org/login"


class Shop:
    """The tool `buy`, with two questions and an action that must happen once."""

    def __init__(self, server: Any) -> None:
        self.began = 0
        self.acted: list[str] = []

        @server.tool()
        async def buy() -> str:
            self.began += 1
            who = await elicit.url("Sign in", LOGIN)
            paid = await elicit.url("Pay", LOGIN)
            self.acted.append(f"{dict(who)} {dict(paid)}")
            return self.acted[-1]


@pytest.mark.every_way
async def test_new_call_inherits_the_second_question_of_an_abandoned_call(server, revision):
    shop = Shop(server)
    async with caller_of(server, revision) as (env, caller), env.caller(revision) as other:
        left = caller.call("buy")
        await env.complete(await caller.link(), {"name": "ann"})
        second = await caller.link()
        await env.waited_for_by_another(second, None)
        await cut(left)
        again = other.call("buy")
        shown = await other.link()
        assert env.id_of(shown) == env.id_of(second)
        await eventually(lambda: len(env.service.running_tools) <= 1)
        assert not shop.acted
        await env.complete(second, {"paid": True})
        assert text_of(await soon(again)) == "{'name': 'ann'} {'paid': True}"
        assert len(shop.acted) == 1
        assert len(await env.elicitations()) == 2
        assert not other.has_links_left


async def test_superseded_call_is_not_notified_of_completion(server):
    # finding: T4
    Shop(server)
    async with caller_of(server, LEGACY) as (env, caller), env.caller(LEGACY) as other:
        left = caller.call("buy")
        first = await caller.link()
        again = other.call("buy")
        await other.link()
        assert "Another call is waiting" in text_of(await soon(left))
        assert caller.completed == []
        await env.complete(first, {})
        second = await other.link()
        await env.complete(second, {})
        await soon(again)
        assert other.completed == [env.id_of(first), env.id_of(second)]
        assert caller.completed == []


@pytest.mark.every_way
async def test_cancel_at_the_second_question_does_not_consume_the_first_answer(server, revision):
    shop = Shop(server)
    async with caller_of(server, revision, answers=["accept", "cancel"]) as (env, caller):
        call = caller.call("buy")
        await env.complete(await caller.link(), {"name": "ann"})
        second = await caller.link()
        assert "[ELICITATION_CANCELLED]" in text_of(await soon(call))
        again = caller.call("buy")
        assert env.id_of(await caller.link()) == env.id_of(second)
        await env.complete(second, {"paid": True})
        assert text_of(await soon(again)) == "{'name': 'ann'} {'paid': True}"
        assert len(shop.acted) == 1
        assert len(await env.elicitations()) == 2


@pytest.mark.every_way
async def test_tool_asking_forever_after_its_call_does_not_block_other_tasks(server, revision):
    tries: list[str] = []
    others = asyncio.Event()

    @server.tool()
    async def leave() -> str:
        later.append(asyncio.create_task(linger()))
        return "left"

    async def linger() -> None:
        await gate.wait()
        asyncio.get_running_loop().call_soon(others.set)
        while not others.is_set() and len(tries) < 1_000:
            try:
                await elicit.url("Too late", LOGIN)
            except CallOver:
                tries.append("again")

    later: list[asyncio.Task[None]] = []
    gate = asyncio.Event()
    async with caller_of(server, revision) as (_, caller):
        assert await caller.text("leave") == "left"
        gate.set()
        await later[0]
        assert 0 < len(tries) < 1_000
