"""Difficult clients: they decline, lose the state, repeat calls, support few modes and time out."""

import asyncio
from datetime import timedelta
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from flows import elicit
from tests.support.mcp_server import (
    MODERN,
    answered_in,
    caller_of,
    eventually,
    link_in,
    links_asked,
    soon,
    text_of,
)
from webapp.limits import CallLimits

LOGIN = "https://example.org/login"
FORM_ONLY = types.ElicitationCapability()
LITTLE = pytest.mark.parametrize("declares", [FORM_ONLY, None], ids=["form-only", "nothing"])


@pytest.fixture
def bodies(server: Any) -> list[str]:
    """Add the tool `sign_in`. Return a list that gets the `place` of each answered call."""
    passed: list[str] = []

    @server.tool()
    async def sign_in(place: str = "here") -> str:
        who = await elicit.url("Sign in", LOGIN)
        passed.append(place)
        return f"signed in: {who.get('name', 'somebody')}"

    return passed


def meta_of(result: types.CallToolResult) -> dict[str, Any]:
    assert result.meta is not None
    return dict(result.meta)


@pytest.mark.every_way
async def test_decline_in_the_client_returns_a_sentence_with_an_error_code(
    server, bodies, revision
):
    async with caller_of(server, revision, answers=["decline"]) as (env, caller):
        result = await caller.result("sign_in")
        link = await caller.link()
        assert result.is_error
        assert text_of(result) == "The person declined: 'Sign in'. [ELICITATION_DECLINED]"
        assert meta_of(result)["code"] == "ELICITATION_DECLINED"
        assert meta_of(result)["elicitId"] == env.id_of(link)
        assert (await (await env.person()).visit(link)).heading == "You declined"
        assert not bodies


async def test_decline_is_final_for_its_call_and_the_next_call_asks_again(server, bodies, revision):
    async with caller_of(server, revision, answers=["decline"]) as (env, caller):
        await caller.result("sign_in")
        declined = await caller.link()
        call = caller.call("sign_in")
        link = await caller.link()
        assert env.id_of(link) != env.id_of(declined)
        await env.complete(link)
        assert not (await soon(call)).is_error


@pytest.mark.every_way
async def test_cancel_in_the_client_ends_the_wait_and_the_same_call_joins(server, bodies, revision):
    # defect: lynq cancel leaves the waiter
    async with caller_of(server, revision, answers=["cancel"]) as (env, caller):
        result = await caller.result("sign_in")
        first = await caller.link()
        assert result.is_error
        assert "[ELICITATION_CANCELLED]" in text_of(result)
        assert await env.status(first) == "pending"
        call = caller.call("sign_in")
        second = await caller.link()
        assert env.id_of(second) == env.id_of(first)
        await env.complete(first, {"name": "ann"})
        assert text_of(await soon(call)) == "signed in: ann"
        assert len(bodies) == 1


async def test_answer_after_a_cancel_is_used_by_the_same_call(server, bodies, revision):
    async with caller_of(server, revision, answers=["cancel"]) as (env, caller):
        await caller.result("sign_in")
        assert await env.complete(await caller.link(), {"name": "ann"}) == "accepted"
        assert await caller.text("sign_in") == "signed in: ann"


async def test_calls_with_different_arguments_ask_separate_questions(server, bodies, revision):
    async with caller_of(server, revision) as (env, caller):
        calls = [caller.call("sign_in", place=place) for place in ("here", "there")]
        links = [await caller.link() for _ in calls]
        assert env.id_of(links[0]) != env.id_of(links[1])
        for link in links:
            await env.complete(link)
        for call in calls:
            assert not (await soon(call)).is_error
        assert sorted(bodies) == ["here", "there"]


async def test_decline_on_the_page_ends_the_tool_and_the_link(server, bodies, revision):
    async with caller_of(server, revision) as (env, caller):
        call = caller.call("sign_in")
        link = await caller.link()
        person = await env.person()
        assert (await person.decline(link)).heading == "You declined"
        assert "[ELICITATION_DECLINED]" in text_of(await soon(call))
        assert (await person.visit(link)).csrf is None
        assert not bodies


async def test_answer_is_stored_for_the_same_call_if_the_client_never_retries(server, bodies):
    async with caller_of(server, MODERN) as (env, caller):
        (link,) = links_asked(await caller.send_call("sign_in"))
        assert not len(env.service.elicitations.waiters)
        assert await env.complete(link, {"name": "ann"}) == "accepted"
        assert not bodies
        assert await caller.last_text("sign_in") == "signed in: ann"
        assert bodies == ["here"]


@LITTLE
@pytest.mark.every_way
async def test_client_without_url_mode_gets_the_link_in_the_result(
    server, bodies, revision, declares: types.ElicitationCapability | None
):
    async with caller_of(server, revision, declares=declares) as (env, caller):
        first = await caller.result("sign_in")
        link = link_in(first)
        pending = meta_of(first)["elicitationPending"]
        assert (pending["url"], pending["elicitId"]) == (link, env.id_of(link))
        again = caller.call("sign_in")
        await env.pending()
        await (await env.person()).go_on(link)
        await env.complete(link, {"name": "ann"})
        assert text_of(await soon(again)) == "signed in: ann"
        assert not again.result().is_error
        assert not caller.has_links_left


async def test_decline_after_a_link_in_the_result_is_reported_once(server, bodies, revision):
    async with caller_of(server, revision, declares=None) as (env, caller):
        link = await caller.link_in_result("sign_in")
        await (await env.person()).decline(link)
        result = await caller.result("sign_in")
        assert "[ELICITATION_DECLINED]" in text_of(result)
        fresh = await caller.link_in_result("sign_in")
        assert env.id_of(fresh) != env.id_of(link)


async def test_client_dropping_the_state_joins_the_pending_question(server, bodies):
    async with caller_of(server, MODERN) as (env, caller):
        first = await caller.asked("sign_in")
        second = await caller.asked("sign_in")
        (key,) = first.input_requests or {}
        assert list(second.input_requests or {}) == [key]
        assert env.id_of(links_asked(first)[0]) == env.id_of(links_asked(second)[0])
        await env.complete(links_asked(first)[0], {"name": "ann"})
        assert await caller.last_text("sign_in") == "signed in: ann"
        assert len(bodies) == 1


@pytest.mark.parametrize("tamper", [lambda _: "x", lambda s: s[:-8], lambda s: s[:-1] + "~"])
async def test_damaged_request_state_is_refused(server, bodies, tamper):
    async with caller_of(server, MODERN) as (_, caller):
        asked = await caller.asked("sign_in")
        assert asked.request_state is not None
        asked.request_state = tamper(asked.request_state)
        with pytest.raises(MCPError) as refused:
            await caller.send_call("sign_in", after=asked)
        assert refused.value.error.code == -32602
        assert not bodies


async def test_request_state_of_another_call_is_refused(server, bodies):
    async with caller_of(server, MODERN) as (env, caller):
        asked = await caller.asked("sign_in", place="here")
        await env.complete(links_asked(asked)[0], {"name": "ann"})
        with pytest.raises(MCPError) as refused:
            await caller.send_call("sign_in", after=asked, place="there")
        assert refused.value.error.code == -32602
        assert not bodies


async def test_newer_of_two_concurrent_requests_waits_and_the_older_returns(server, bodies):
    async with caller_of(server, MODERN) as (env, caller):
        asked = await caller.asked("sign_in")
        (link,) = links_asked(asked)
        older = asyncio.create_task(caller.send_call("sign_in", after=asked))
        waiter = await env.waited_for_by_another(link, None)
        newer = asyncio.create_task(caller.send_call("sign_in", after=asked))
        await env.waited_for_by_another(link, waiter)
        assert "Another call is waiting" in text_of(answered_in(await older))
        await env.complete(link, {"name": "ann"})
        assert text_of(answered_in(await newer)) == "signed in: ann"
        assert len(bodies) == 1


async def test_two_requests_after_the_answer_run_the_tool_once(server):
    gate, inside = asyncio.Event(), asyncio.Event()
    bodies: list[int] = []

    @server.tool()
    async def buy() -> str:
        await elicit.url("Pay", LOGIN)
        bodies.append(1)
        inside.set()
        await gate.wait()
        return f"bought {len(bodies)}"

    async with caller_of(server, MODERN) as (env, caller):
        asked = await caller.asked("buy")
        await env.complete(links_asked(asked)[0])
        first = asyncio.create_task(caller.send_call("buy", after=asked))
        await soon(inside.wait())
        second = asyncio.create_task(caller.send_call("buy", after=asked))
        await eventually(lambda: len(env.service.elicitations.waiters) >= 2)
        gate.set()
        for waiter in (first, second):
            assert text_of(answered_in(await waiter)) == "bought 1"
        assert await caller.last_text("buy", after=asked) == "bought 1"
        assert bodies == [1]


@pytest.mark.every_way
async def test_newer_of_two_identical_calls_gets_the_answer(server, bodies, revision):
    # defect: lynq two waiters on one id
    async with caller_of(server, revision) as (env, one), env.caller(revision) as other:
        older = one.call("sign_in")
        link = await one.link()
        waiter = await env.waited_for_by_another(link, None)
        newer = other.call("sign_in")
        assert env.id_of(await other.link()) == env.id_of(link)
        result = await soon(older)
        assert not result.is_error
        assert "Another call is waiting" in text_of(result)
        await env.waited_for_by_another(link, waiter)
        await env.complete(link, {"name": "ann"})
        assert text_of(await soon(newer)) == "signed in: ann"
        assert len(bodies) == 1


@pytest.mark.parametrize("rounds", [1, 10])
async def test_client_retrying_without_delay_finally_gets_still_waiting(bodies, server, rounds):
    limits = CallLimits(retry=timedelta(), request_at_least=timedelta(), rounds=rounds)
    async with caller_of(server, MODERN, limits=limits) as (env, caller):
        result = await caller.result("sign_in")
        assert "Still waiting" in text_of(result)
        link = await caller.link()
        assert env.id_of(link_in(result)) == env.id_of(link)
        assert meta_of(result)["elicitationPending"]["elicitId"] == env.id_of(link)
        assert not caller.has_links_left
        await env.complete(link, {"name": "ann"})
        assert await caller.text("sign_in") == "signed in: ann"
        assert bodies == ["here"]


async def test_repeated_call_reports_still_waiting_with_the_same_link(bodies, server, revision):
    limits = CallLimits(link=timedelta())
    async with caller_of(server, revision, limits=limits, declares=None) as (env, caller):
        first = await caller.result("sign_in")
        again = await caller.result("sign_in")
        assert "Still waiting" in text_of(again)
        assert env.id_of(link_in(again)) == env.id_of(link_in(first))
        await env.complete(link_in(again))
        assert not (await caller.result("sign_in")).is_error
        assert bodies == ["here"]
