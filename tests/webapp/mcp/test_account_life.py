"""The life of an account, as a tool and its user see it. The provider is the sandbox."""

import asyncio
from typing import Any

import httpx

from flows import elicit
from flows.providers import github
from tests.support.mcp_sandbox import SandboxEnv, caller_at_sandbox, went_through
from tests.support.mcp_server import TLS, soon, text_of


class Looking:
    """A tool that looks up an account's user, and can be paused before it uses the account."""

    def __init__(self, server: Any) -> None:
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.has_account = asyncio.Event()
        self.keys: list[str] = []

        @server.tool()
        async def look() -> str:
            account = await elicit.oauth(github, scopes=["repo"])
            self.keys.append(account.access_token)
            self.has_account.set()
            await self.may_go_on.wait()
            async with account.client() as api:
                replies = await asyncio.gather(*(api.get("/user") for _ in range(5)))
            return " ".join(
                str(reply.status_code) if reply.is_error else reply.json()["login"]
                for reply in replies
            )


GOOD = " ".join(["octocat"] * 5)


async def revoke(at: SandboxEnv) -> None:
    """Revoke the authorization of our OAuth client at the provider, as the person would."""
    (account,) = await at.connections()
    sandbox = at.sandbox
    url = f"{sandbox.url}/github/api/applications/{sandbox.client_id}/token"
    async with httpx.AsyncClient(
        auth=(sandbox.client_id, sandbox.client_secret), verify=TLS
    ) as api:
        reply = await api.request("DELETE", url, json={"access_token": account.access_token})
    assert reply.status_code == 204, reply.text


async def test_expired_access_token_is_renewed_before_the_tool_receives_the_account(
    server, revision
):
    tool = Looking(server)
    async with caller_at_sandbox(server, revision) as (at, caller):
        assert text_of(await went_through(caller, "look", [at.guest.connect])) == GOOD
        (before,) = await at.connections()
        at.clock.tick(hours=2)
        assert await caller.text("look") == GOOD
        assert not caller.has_links_left
        (after,) = await at.connections()
        assert before.access_token != after.access_token == tool.keys[-1]


async def test_access_token_expiring_during_a_tool_is_renewed_at_its_next_request(server, revision):
    tool = Looking(server)
    async with caller_at_sandbox(server, revision) as (at, caller):
        assert text_of(await went_through(caller, "look", [at.guest.connect])) == GOOD
        tool.may_go_on.clear()
        tool.has_account.clear()
        call = caller.call("look")
        await soon(tool.has_account.wait())
        at.clock.tick(minutes=65)
        tool.may_go_on.set()
        assert text_of(await soon(call)) == GOOD
        assert not caller.has_links_left
        (account,) = await at.connections()
        assert account.access_token not in tool.keys


async def test_access_revoked_at_the_provider_asks_the_person_to_connect_again_once(
    server, revision
):
    Looking(server)
    async with caller_at_sandbox(server, revision) as (at, caller):
        await went_through(caller, "look", [at.guest.connect])
        await revoke(at)
        at.clock.tick(minutes=1)
        # The server cannot know about the revocation before the provider rejects a request.
        assert await caller.text("look") == "401 401 401 401 401"
        assert [account.status for account in await at.connections()] == ["lapsed"]
        assert text_of(await went_through(caller, "look", [at.guest.connect])) == GOOD
        assert await caller.text("look") == GOOD
        assert not caller.has_links_left
        assert [account.status for account in await at.connections()] == ["connected"]
