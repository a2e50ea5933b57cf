"""Calls by a client that lies, repeats requests and races with itself."""

import asyncio
from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest

from flows import elicit
from flows.crypto.tokens import Claims, Purpose
from flows.elicitation.states import Json
from tests.support.call_requests import answer, settled_loop
from tests.support.clock import Clock
from tests.support.mcp_server import (
    MODERN,
    ServerEnv,
    answered_in,
    caller_of,
    link_in,
    links_asked,
    new_server,
    soon,
    text_of,
)
from tests.support.service_env import call_of, process
from webapp.calls.call import Call
from webapp.limits import CallLimits
from webapp.mcp.request_state import read_chain
from webapp.mcp.results import RESULT_TOOL
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore

LOGIN = "https://example.org/login"
SHORT = CallLimits(retry=timedelta(milliseconds=50), request_at_least=timedelta(milliseconds=50))


def buying(library: str) -> tuple[Any, list[Json]]:
    """Return a server with a tool that asks, and the list of answers that the tool received."""
    server, bought = new_server(library), list[Json]()

    @server.tool()
    async def buy() -> str:
        bought.append(dict(await elicit.url("Pay", LOGIN)))
        return f"bought {len(bought)}"

    return server, bought


@pytest.mark.parametrize("content", [None, {"name": "eve"}, {"paid": True, "status": "accepted"}])
async def test_accept_from_client_does_not_complete_link(content):
    server, bought = buying("mcp")
    async with caller_of(server, MODERN, limits=SHORT) as (env, caller):
        asked = await caller.asked("buy")
        (link,) = links_asked(asked)
        for _ in range(3):
            yes = types.ElicitResult(action="accept", content=content)
            keys = [*(asked.input_requests or {}), "elicit-url-0", "elicit-url-1"]
            again = await soon(
                caller.client.session.call_tool(
                    "buy",
                    {},
                    input_responses=dict.fromkeys(keys, yes),
                    request_state=asked.request_state,
                    allow_input_required=True,
                )
            )
            assert isinstance(again, types.InputRequiredResult)
        assert not bought
        assert await env.status(link) == "pending"
        await env.complete(link, {"name": "ann"})
        result = await caller.send_call("buy", after=asked)
        assert text_of(answered_in(result)) == "bought 1"
        assert bought == [{"name": "ann"}]


def states(env: ServerEnv, run_id: str) -> dict[str, str]:
    """Return invalid states: states that we signed for another purpose, and malformed states."""
    now = env.service.clock()
    made = {}
    for purpose in set(Purpose) - {Purpose.RUN}:
        expires_at = now + timedelta(hours=1)
        claims = Claims(purpose=purpose, id=run_id, rest="1;0", expires_at=expires_at)
        made[purpose.value] = env.service.links.state(claims, now=now)
    return {**made, "none": "", "rubbish": "x" * 200, "two": ":::", "long": "x" * 5000}


async def test_forged_state_with_our_prefix_is_treated_as_the_tools_own(
    library,
):
    server, bought = buying(library)
    async with caller_of(server, MODERN) as (env, caller):
        await caller.asked("buy")
        (record,) = await env.service.elicitations.store.list("run")
        for name, token in states(env, record.id).items():
            state = f"elicit-url:{token}"
            chain = read_chain(state, {}, links=env.service.links, now=env.service.clock())
            assert chain.run_id is None, name
            assert chain.foreign == state
        assert not bought


def call_from(service: Service, client: str, *, run_id: str | None = None) -> Call:
    """Return the same person's call, as made by this client."""
    return call_of(service, client=client, run_id=run_id)


async def test_another_client_of_same_person_neither_joins_nor_gets_answer():
    question = elicit.url("Pay", LOGIN)
    async with process(MemoryStore(), Clock()) as service:
        first = call_from(service, "first")
        waiting = asyncio.create_task(answer(first, question))
        await settled_loop()
        (record,) = await service.elicitations.store.list("elicitation")
        waiting.cancel()
        await settled_loop()
        await first.finish()
        await service.completing.complete(record.id, {"n": 1})
        for run_id in (None, first.run.value.id):
            second = call_from(service, "second", run_id=run_id)
            joined = asyncio.create_task(answer(second, question))
            await settled_loop()
            assert not joined.done()
            joined.cancel()
            await settled_loop()
            await second.finish()
        again = await answer(call_from(service, "first"), question)
        assert again.content == {"n": 1}


@pytest.mark.parametrize("size", [1, 40_000])
async def test_repeated_wait_for_finished_call_does_not_run_tool_again(revision, size: int):
    server, ran = new_server("mcp"), list[int]()

    @server.tool()
    @elicit.gate
    async def wipe() -> str:
        ran.append(size)
        return "x" * size

    async with caller_of(server, revision, declares=None) as (env, caller):
        shown = await caller.result("wipe")
        (row,) = await env.elicitations()
        await (await env.person()).press(link_in(shown))
        for _ in range(3):
            await caller.result(RESULT_TOOL, elicitId=row.id)
        assert ran == [size]
