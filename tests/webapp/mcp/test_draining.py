"""Shutdown of a process: waiting calls return early, to be repeated; running tools finish."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from flows import elicit
from tests.support.mcp_server import (
    FORM,
    LEGACY,
    ServerEnv,
    caller_of,
    eventually,
    link_in,
    new_server,
    soon,
    text_of,
)

AN_HOUR = timedelta(hours=1)
ENDED = timedelta(seconds=0)


@pytest.fixture
def server(library: str) -> Any:
    return selling(library)


def selling(library: str) -> Any:
    server = new_server(library)

    @server.tool()
    async def sign_in() -> str:
        who = await elicit.url("Sign in", "https://example.org/login")
        return f"signed in: {who['name']}"

    @server.tool()
    async def ask_name() -> str:
        return f"hello {await elicit.form('Who are you?')}"

    return server


async def is_ready(env: ServerEnv) -> bool:
    async with httpx.AsyncClient() as browser:
        answer = await browser.get(f"{env.url}/health")
    assert answer.json()["status"] == ("ok" if answer.status_code == 200 else "draining")
    return answer.status_code == 200


@pytest.mark.every_way
async def test_waiting_call_is_answered_at_shutdown_and_resumes_in_the_next_process(
    library, revision, tmp_path
):
    # finding: R5
    store = f"sqlite:///{tmp_path / 'elicit.db'}"
    async with caller_of(selling(library), revision, store=store) as (env, caller):
        held = caller.call("sign_in")
        link = await caller.link()
        assert await is_ready(env)
        await soon(env.service.drain(within=AN_HOUR))
        assert not await is_ready(env)
        result = await soon(held)
        assert "Still waiting for the person." in text_of(result)
        id = env.id_of(link_in(result))
        assert id == env.id_of(link)
    async with caller_of(selling(library), revision, store=store) as (env, caller):
        held = caller.call("sign_in")
        link = await caller.link()
        assert env.id_of(link) == id
        await env.complete(link, {"name": "ann"})
        assert text_of(await soon(held)) == "signed in: ann"


async def test_repeated_waiting_call_is_answered_at_shutdown(server, revision):
    # finding: R5
    async with caller_of(server, revision, declares=None) as (env, caller):
        first = await caller.link_in_result("sign_in")
        again = caller.call("sign_in")
        await eventually(lambda: len(env.service.elicitations.waiters))
        await soon(env.service.drain(within=AN_HOUR))
        assert env.id_of(link_in(await soon(again))) == env.id_of(first)


async def test_call_with_a_form_in_the_client_gets_a_page_link_at_shutdown(server):
    # finding: R5
    nobody = asyncio.Queue[str]()
    async with caller_of(server, LEGACY, declares=FORM, typed=nobody) as (env, caller):
        held = caller.call("ask_name")
        await eventually(lambda: caller.code_prompts)
        await soon(env.service.drain(within=AN_HOUR))
        result = await soon(held)
        assert "Still waiting for the person." in text_of(result)
        assert env.id_of(link_in(result))


async def test_call_during_shutdown_is_answered_without_waiting(server, revision):
    # finding: R5
    async with caller_of(server, revision) as (env, caller):
        await soon(env.service.drain(within=AN_HOUR))
        result = await caller.result("sign_in")
        (asked,) = await env.elicitations()
        assert env.id_of(link_in(result)) == asked.id


async def test_running_tool_finishes_within_the_shutdown_grace(library, revision):
    # finding: R5
    server, begun, goes_on = new_server(library), asyncio.Event(), asyncio.Event()

    @server.tool()
    async def work() -> str:
        begun.set()
        await goes_on.wait()
        return "done"

    async with caller_of(server, revision) as (env, caller):
        call = caller.call("work")
        await soon(begun.wait())
        await soon(env.service.drain(within=ENDED))  # returns at once: the deadline has passed
        patient = asyncio.create_task(env.service.drain(within=AN_HOUR))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not patient.done()
        assert not call.done()
        goes_on.set()
        await soon(patient)
        assert text_of(await soon(call)) == "done"
