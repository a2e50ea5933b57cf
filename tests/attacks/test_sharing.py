"""Shared accounts: a tool gets no account after the person stopped sharing it."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer

from flows import elicit
from flows.elicitation.states import Status
from flows.errors import Failed
from flows.oauth.account import Account
from flows.providers import github
from tests.support.callers import caller_at
from tests.support.connections_page import connect_as, press, tail, the_one
from tests.support.mcp_server import LEGACY, Person, cut, eventually, soon, text_of
from tests.support.oauth_env import OAuthEnv, approve, ends, oauth_env

IN_USE = "The person now uses another account. Call again to ask for that account."


async def unfetched(here: OAuthEnv, *scopes: str, **about: Any) -> Person:
    """Connect an account after the client cancelled its call, and return the person."""
    asked, person = here.ask(*scopes or ("repo",), **about), await here.person()
    link = await asked.link()
    at_provider = await person.go_on(link)
    await cut(asked.task)
    await ends(person, await person.visit(await approve(person, at_provider)))
    row = await here.row(link)
    assert (row.status, row.take) == (Status.ACCEPTED, None)
    return person


async def refused_and_then_asked(
    here: OAuthEnv, *scopes: str, why: str = "Call again", **about: Any
) -> None:
    """Check that the repeated call fails without a question, and that the call after it asks."""
    again = here.ask(*scopes or ("repo",), **about)
    with pytest.raises(Failed, match=why):
        await again.account()
    assert not again.has_asked
    assert await here.ask(*scopes or ("repo",), **about).link()


async def stop_sharing(here: OAuthEnv, person: Person) -> None:
    await press(person, here, "/unshare")


async def disconnect_and_connect_for_another(here: OAuthEnv, person: Person) -> None:
    await press(person, here, "/disconnect")
    here.clock.tick(minutes=2)
    await here.connect("repo", tool="count")


@pytest.mark.parametrize("lose_account", [stop_sharing, disconnect_and_connect_for_another])
async def test_earlier_acceptance_is_void_after_tool_lost_account(
    lose_account: Callable[[OAuthEnv, Person], Awaitable[None]], here
):
    person = await unfetched(here, tool="list")
    await lose_account(here, person)
    assert "list" not in (await the_one(here)).tools
    await refused_and_then_asked(here, tool="list")
    assert "list" not in (await the_one(here)).tools


async def test_repeated_call_after_unshare_gets_no_account_without_new_approval():
    server, held = MCPServer("shop"), list[Account]()

    @server.tool()
    async def list_all() -> str:
        held.append(await elicit.oauth(github, scopes=["repo"]))
        return "listed"

    async with oauth_env(server=server) as here, caller_at(here, LEGACY) as caller:
        call = caller.call("list_all")
        link, person = await caller.link(), await here.person()
        at_provider = await person.go_on(link)
        await cut(call)
        await eventually(lambda: not len(here.service.elicitations.waiters))
        await ends(person, await person.visit(await approve(person, at_provider)))
        await press(person, here, "/unshare")
        refused = await caller.result("list_all")
        assert refused.is_error
        assert "is no longer shared with this tool" in text_of(refused)
        again = caller.call("list_all")
        page = await person.visit(await caller.link())
        assert page.heading == "Let shop use octocat at GitHub?"
        assert not held
        await person.browser.post(page.leading("/allow"), data={"csrf": page.csrf})
        assert text_of(await soon(again)) == "listed"
        assert [account.label for account in held] == ["octocat"]


@pytest.mark.parametrize("is_shared", [True, False])
async def test_unfetched_acceptance_is_refused_after_person_switches_account(is_shared, here):
    person = await unfetched(here, tool="list", arguments="x")
    here.clock.tick(seconds=1)
    tool = "list" if is_shared else "count"
    hubot = await connect_as(here, "hubot", tool=tool, account="hubot")
    await press(person, here, f"{tail(hubot)}/switch")
    if is_shared:
        again = here.ask("repo", tool="list", arguments="x")
        assert (await again.account()).label == "hubot"
        assert not again.has_asked
    else:
        await refused_and_then_asked(here, why=IN_USE, tool="list", arguments="x")


async def test_unfetched_acceptance_is_refused_after_the_switched_account_is_disconnected(here):
    person = await unfetched(here, tool="list", arguments="x")
    here.clock.tick(seconds=1)
    hubot = await connect_as(here, "hubot", tool="list", account="hubot")
    await press(person, here, f"{tail(hubot)}/switch")
    await press(person, here, f"{tail(hubot)}/disconnect")
    await refused_and_then_asked(here, why=IN_USE, tool="list", arguments="x")
