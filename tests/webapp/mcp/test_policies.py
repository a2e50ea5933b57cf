"""Quotas as clients see them: superseded questions, too many questions, questions of one call."""

from typing import Any

import pytest

from flows import elicit
from flows.elicitation.states import Status
from tests.support.mcp_server import LEGACY, caller_of, soon, text_of
from webapp.settings.quotas import PolicySettings

ADDRESS = "https://example.org/"
ONE = PolicySettings(one_per_session=True)


@pytest.fixture
def server(server: Any) -> Any:
    @server.tool()
    async def visit(name: str) -> str:
        outcome = await elicit.url(f"Go to {name}.", ADDRESS).outcome()
        return f"{name} {outcome.status} {outcome.action}"

    @server.tool()
    async def must_visit(name: str) -> str:
        await elicit.url(f"Go to {name}.", ADDRESS)
        return "been there"

    @server.tool()
    async def sure() -> str:
        return f"sure: {await elicit.confirm('Sure?')}"

    @server.tool()
    async def visit_at_once() -> str:
        await elicit.together(elicit.url("One.", ADDRESS), elicit.url("Two.", ADDRESS))
        return "been to both"

    @server.tool()
    async def visit_both() -> str:
        await elicit.url("One.", ADDRESS)
        await elicit.url("Two.", ADDRESS)
        return "been to both"

    return server


@pytest.mark.every_way
async def test_older_call_ends_when_a_newer_question_supersedes_its_question(server, revision):
    # parity: F8
    async with caller_of(server, revision, policies=ONE) as (env, caller):
        older = caller.call("visit", name="Rome")
        await env.waited_for_by_another(await caller.link(), None)
        failing = caller.call("must_visit", name="Oslo")
        link = await caller.link()
        assert text_of(await soon(older)) == "Rome superseded cancel"
        newest = caller.call("visit", name="Bern")
        last = await caller.link()
        result = await soon(failing)
        assert result.is_error
        assert result.meta["errorId"] == result.meta["code"] == "ELICITATION_SUPERSEDED"
        assert result.meta["elicitId"] == env.id_of(link)
        assert "A newer question replaced this question" in text_of(result)
        person = await env.person()
        assert (await person.visit(link)).csrf is None, (
            "the page of the superseded question has no form"
        )
        await env.complete(last)
        assert text_of(await soon(newest)) == "Bern accepted accept"


async def test_several_questions_are_open_at_once_by_default(server, revision):
    # parity: F8
    async with caller_of(server, revision) as (env, caller):
        calls, links = [], []
        for name in ("Rome", "Oslo"):
            calls.append(caller.call("visit", name=name))
            links.append(await caller.link())
        for call, link in zip(calls, links, strict=True):
            await env.complete(link)
            assert text_of(await soon(call)).endswith("accepted accept")


async def test_next_question_of_the_same_call_supersedes_nothing(server, revision):
    # parity: F8
    async with caller_of(server, revision, policies=ONE) as (env, caller):
        call = caller.call("visit_both")
        for _ in range(2):
            await env.complete(await caller.link())
        assert text_of(await soon(call)) == "been to both"
        assert {row.status for row in await env.elicitations()} == {Status.ACCEPTED}


async def test_together_questions_do_not_supersede_each_other(server, revision):
    # parity: F8
    async with caller_of(server, revision, policies=ONE) as (env, caller):
        call = caller.call("visit_at_once")
        for link in [await caller.link(), await caller.link()]:
            assert await env.status(link) is Status.PENDING
            await env.complete(link)
        assert text_of(await soon(call)) == "been to both"


async def test_newer_link_in_a_result_supersedes_the_older_question(server, revision):
    # parity: F8
    async with caller_of(server, revision, policies=ONE, declares=None) as (env, one):
        first = await one.link_in_result("visit", name="Rome")
        second = await one.link_in_result("visit", name="Oslo")
        assert await env.status(first) is Status.SUPERSEDED
        assert await env.status(second) is Status.PENDING
        await env.complete(second)
        assert await one.text("visit", name="Oslo") == "Oslo accepted accept"


async def test_clients_with_the_same_name_share_the_quota_across_revisions(server):
    # parity: F8
    async with caller_of(server, LEGACY, policies=ONE) as (env, caller):
        call = caller.call("visit", name="Rome")
        link = await caller.link()
        other = await env.cut_off_caller("2026-07-28")
        answer = await soon(other.call("visit", name="Oslo"))
        assert "input_required" in answer.text
        # Both clients call themselves `mcp`.
        assert text_of(await soon(call)) == "Rome superseded cancel"
        assert await env.status(link) is Status.SUPERSEDED


async def test_too_many_open_questions_return_an_error_to_the_model(server, revision):
    policies = PolicySettings(pending_per_owner=1)
    async with caller_of(server, revision, policies=policies) as (env, caller):
        first = caller.call("visit", name="Rome")
        link = await caller.link()
        refused = await caller.result("visit", name="Oslo")
        assert refused.is_error
        assert refused.meta["errorId"] == refused.meta["code"] == "ELICITATION_TOO_MANY_PENDING"
        assert refused.meta["status"] == 429
        assert "the limit of open questions for this person is reached (1)" in text_of(refused)
        unasked = await caller.result("sure")
        assert unasked.meta["code"] == "ELICITATION_TOO_MANY_PENDING"
        assert len(await env.elicitations()) == 1
        await env.complete(link)
        assert text_of(await soon(first)) == "Rome accepted accept"
        second = caller.call("visit", name="Oslo")
        await env.complete(await caller.link())
        assert text_of(await soon(second)) == "Oslo accepted accept"
