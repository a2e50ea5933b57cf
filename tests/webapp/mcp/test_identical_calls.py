"""Identical calls share a question and a run of `once`. `key` joins other calls of a tool."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from flows import elicit
from flows.elicitation.states import Json
from tests.support.clock import Clock
from tests.support.mcp_server import (
    MODERN,
    attached,
    caller_of,
    eventually,
    link_in,
    links_asked,
    soon,
    text_of,
)
from webapp.stores.sqlite import MemoryStore

LOGIN = "https://example.org/login"
RELAYED = {"x-forwarded-for": "203.0.113.9"}
KINDS = ("elicitation", "run", "once", "alias", "data key")


async def test_call_after_the_question_expired_asks_a_new_question(server):
    @server.tool()
    async def sign_in() -> str:
        return str(dict(await elicit.url("Sign in", LOGIN, timeout=timedelta(minutes=1))))

    clock = Clock()
    # No sweeper runs in this test, so only the call itself can notice that the time has passed.
    async with attached(server, clock=clock) as env, env.caller(MODERN) as caller:
        (dead,) = links_asked(await caller.send_call("sign_in"))
        clock.tick(minutes=1)
        # The client never replied to the expired question, so the new question reaches the person
        # as a link.
        link = link_in(await caller.answered("sign_in"))
        assert env.id_of(link) != env.id_of(dead)
        assert await env.status(dead) == "expired"
        assert await env.complete(link, {"name": "ann"}) == "accepted"
        assert "ann" in await caller.last_text("sign_in")


def add_keyed(server: Any) -> None:
    @server.tool()
    async def sign_in(page: int) -> str:
        return str(dict(await elicit.url("Sign in", LOGIN, key="login")))

    @server.tool()
    async def pay(page: int) -> str:
        return str(dict(await elicit.url("Sign in", LOGIN, key="login")))


async def test_key_joins_calls_of_a_tool_with_different_arguments(server, revision):
    add_keyed(server)
    async with caller_of(server, revision) as (env, caller), env.caller(revision) as other:
        calls = [caller.call("sign_in", page=1)]
        first = await caller.link()
        calls.append(other.call("sign_in", page=2))
        second = await other.link()
        assert env.id_of(second) == env.id_of(first)
        await env.complete(second, {"name": "ann"})
        assert text_of(await soon(calls[1])) == "{'name': 'ann'}"
        await soon(calls[0])
        assert len(await env.elicitations()) == 1


async def test_key_does_not_join_calls_of_two_tools(server, revision):
    add_keyed(server)
    async with caller_of(server, revision) as (env, caller):
        calls = [caller.call(tool, page=1) for tool in ("sign_in", "pay")]
        links = [await caller.link() for _ in calls]
        assert env.id_of(links[0]) != env.id_of(links[1])
        for link in links:
            await env.complete(link)
        for call in calls:
            assert not (await soon(call)).is_error


@pytest.mark.every_way
async def test_two_concurrent_identical_calls_run_once_a_single_time(server, revision):
    bodies = Counter[str]()
    keys: list[str] = []
    gate = asyncio.Event()

    async def work(key: str) -> Json:
        keys.append(key)
        await gate.wait()
        return {"order": len(keys)}

    @server.tool()
    async def order() -> str:
        bodies["began"] += 1
        return str(await elicit.once("order", work))

    async with caller_of(server, revision) as (_, caller):
        calls = [caller.call("order"), caller.call("order")]
        await eventually(lambda: bodies["began"] == 2 and keys)
        for _ in range(100):  # until both calls have reached their waiting point
            await asyncio.sleep(0)
        gate.set()
        assert [text_of(await soon(call)) for call in calls] == ["{'order': 1}"] * 2
        assert len(keys) == 1


async def test_failed_once_is_run_again_by_the_waiting_call(server, revision):
    keys: list[str] = []
    gate = asyncio.Event()

    async def work(key: str) -> Json:
        keys.append(key)
        if len(keys) == 1:
            await gate.wait()
            raise OSError("the other side is down")
        return len(keys)

    @server.tool()
    async def order() -> str:
        return str(await elicit.once("order", work))

    async with caller_of(server, revision) as (_, caller):
        first = caller.call("order")
        await eventually(lambda: keys)
        second = caller.call("order")
        for _ in range(100):
            await asyncio.sleep(0)
        gate.set()
        assert (await soon(first)).is_error
        assert text_of(await soon(second)) == "2"
        assert keys[0] == keys[1]


async def test_refused_caller_does_not_start_once(server, revision):
    # finding: R1
    begun: list[str] = []

    @server.tool()
    async def order() -> str:
        async def work(key: str) -> Json:
            begun.append(key)
            return "ordered"

        return str(await elicit.once("order", work))

    store = MemoryStore()

    async def rows() -> list[int]:
        return [len(await store.list(kind, limit=1000)) for kind in KINDS]

    async with caller_of(server, revision, store=store, headers=RELAYED) as (_, caller):
        before = await rows()
        for _ in range(3):
            refused = await caller.result("order")
            assert "[ELICITATION_NOT_ALLOWED]" in text_of(refused)
            assert "once('order') did not run" in text_of(refused)
        assert await rows() == before
    assert not begun
