"""A call that began with one account uses the same account in each later request."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer

from flows import elicit
from flows.elicitation.states import Elicitation
from flows.oauth.connection import allow, lapse
from flows.providers import github
from tests.support.callers import caller_at
from tests.support.connections_page import connect_as, press, tail
from tests.support.mcp_server import (
    MODERN,
    Person,
    answered_in,
    asked_in,
    cut,
    eventually,
    soon,
    text_of,
)
from tests.support.oauth_env import OAuthEnv, approve, ends, oauth_env
from tests.support.own_requests import size_form

PersonAct = Callable[["Shop"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A server with the tool `clean`, which asks for an account and then for a signature."""

    here: OAuthEnv
    caller: Any
    person: Person
    got: list[str]  # the label of the account that each run of the tool's body received

    async def go_on(self) -> str:
        """Press Continue, and return the address of the provider's consent page."""
        return await self.person.go_on(await self.caller.link())

    async def approve(self, at_provider: str) -> None:
        callback = await approve(self.person, at_provider)
        await ends(self.person, await self.person.visit(callback))

    async def press(self, label: str, button: str) -> None:
        (one,) = [each for each in await self.here.connections() if each.label == label]
        await press(self.person, self.here, tail(one) + button)

    async def put_in_use(self, label: str) -> None:
        """Switch to the account with this label, one second after the last answer.

        Share hubot with the tool first, if the person has not done so.
        """
        self.here.clock.tick(seconds=1)
        (hubot,) = [each for each in await self.here.connections() if each.label == "hubot"]
        if "clean" not in hubot.tools:  # as if allowed in another question
            await self.here.service.elicitations.write(allow(hubot, "clean", None))
        await self.press(label, "/switch")

    async def lapse(self, label: str) -> None:
        """Mark the account as lapsed: its access token expired and cannot be renewed."""
        (one,) = [each for each in await self.here.connections() if each.label == label]
        await self.here.service.elicitations.write(lapse(one, now=self.here.clock()))

    async def sign(self) -> None:
        await self.caller.link()
        await self.accept()

    async def accept(self) -> None:
        rows = await self.here.service.elicitations.all(Elicitation)
        (asked,) = [each for each in rows if each.kind == "url" and not each.status.is_final]
        await self.here.service.completing.complete(asked.id, {})


@asynccontextmanager
async def shop(*meanwhile: PersonAct) -> AsyncIterator[Shop]:
    """Open a shop.

    `meanwhile` lists the person's actions, one for each run of the tool's body. The action happens
    after the body has received the account, and before the body asks for the signature.
    """
    server, got, left = MCPServer("shop"), list[str](), list(meanwhile)
    at: Shop

    @server.tool()
    async def clean() -> str:
        account = await elicit.oauth(github, scopes=["repo"])
        got.append(account.label)
        if left:
            await left.pop(0)(at)
        await elicit.url("Sign the deletion", "https://shop.example/sign")
        return f"deleted at {account.label}"

    async with oauth_env(server=server) as here, caller_at(here, MODERN) as caller:
        await connect_as(here, "hubot", tool="other")
        at = Shop(here=here, caller=caller, person=await here.person(), got=got)
        yield at


async def switch_to_hubot(at: Shop) -> None:
    await at.put_in_use("hubot")


async def switch_to_octocat(at: Shop) -> None:
    await at.put_in_use("octocat")


async def test_started_call_keeps_its_account_after_person_switches_account() -> None:
    async with shop(switch_to_hubot) as at:
        call = at.caller.call("clean")
        await at.approve(await at.go_on())
        await at.sign()
        assert text_of(await soon(call)) == "deleted at octocat"
        assert at.got == ["octocat", "octocat"]
        call = at.caller.call("clean")
        await at.sign()
        assert text_of(await soon(call)) == "deleted at hubot"


async def test_account_activated_before_call_received_any_is_used_throughout() -> None:
    async with shop(switch_to_octocat) as at:
        call = at.caller.call("clean")
        at_provider = await at.go_on()
        await cut(call)
        await eventually(lambda: not len(at.here.service.elicitations.waiters))
        await at.approve(at_provider)
        await at.put_in_use("hubot")
        call = at.caller.call("clean")
        await at.sign()
        assert text_of(await soon(call)) == "deleted at hubot"
        assert at.got == ["hubot", "hubot"]


@pytest.mark.parametrize(
    ("button", "why"),
    [
        ("/unshare", "is no longer shared with this tool"),
        ("/disconnect", "was disconnected in the meantime"),
    ],
)
async def test_started_call_fails_after_its_account_is_disconnected_or_unshared(
    button: str, why: str
) -> None:
    async def remove_account(at: Shop) -> None:
        await at.put_in_use("hubot")
        await at.press("octocat", button)

    async with shop(remove_account) as at:
        call = at.caller.call("clean")
        await at.approve(await at.go_on())
        refused = await soon(call)
        assert refused.is_error
        assert why in text_of(refused)
        assert at.got == ["octocat"]


class TestAnAccountThatNobodyWasAskedFor:
    """The account existed before the call: the person's later changes affect only the next call."""

    async def test_started_call_retains_account_when_person_activates_another(self) -> None:
        async with shop(nothing, nothing, switch_to_hubot) as at:
            await a_first_call(at)
            call = at.caller.call("clean")
            await at.sign()
            assert text_of(await soon(call)) == "deleted at octocat"
            assert at.got[2:] == ["octocat", "octocat"]
            call = at.caller.call("clean")
            await at.sign()
            assert text_of(await soon(call)) == "deleted at hubot"

    async def test_equal_calls_are_separate_and_each_retains_its_account(self) -> None:
        async with octocat_in_use(*asks_for_a_size()) as at:
            one = asked_in(await at.caller.send_call("clean"))
            await at.put_in_use("hubot")
            two = asked_in(await at.caller.send_call("clean"))
            answered_in(await at.caller.send_call("clean", after=two))
            answered_in(await at.caller.send_call("clean", after=one))
            assert at.got == ["octocat", "hubot", "hubot", "octocat"]

    async def test_lapsed_account_fails_started_call_and_next_call_uses_another(self) -> None:
        async def remove_account(at: Shop) -> None:
            await at.put_in_use("hubot")
            await at.lapse("octocat")

        async with shop(nothing, nothing, remove_account) as at:
            await a_first_call(at)
            call = at.caller.call("clean")
            await at.sign()
            refused = await soon(call)
            assert refused.is_error
            assert "no longer works. Call again" in text_of(refused)
            assert at.got[2:] == ["octocat"]
            assert text_of(await soon(at.caller.call("clean"))) == "deleted at hubot"

    @pytest.mark.parametrize("person", ["octocat", "hubot"])
    @pytest.mark.parametrize("is_at_hand", [True, False])
    async def test_tool_asking_again_for_lapsed_account_asks_person_once_more(
        self, *, is_at_hand: bool, person: str
    ) -> None:
        # finding: R16
        server, got, links = MCPServer("shop"), list[str](), list[str]()

        @server.tool()
        async def clean() -> str:
            got.append((await elicit.oauth(github, scopes=["repo"])).label)
            if len(got) == 1:
                await at.lapse("octocat")
            return (await elicit.oauth(github, scopes=["repo"])).label

        async with oauth_env(server=server) as here, caller_at(here, MODERN) as caller:
            if is_at_hand:
                await connect_as(here, "octocat", tool="clean")
            at = Shop(here=here, caller=caller, person=await here.person(), got=got)
            call = caller.call("clean")
            for who in [person] if is_at_hand else ["octocat", person]:
                links.append(await caller.link())
                callback = await approve(at.person, await at.person.go_on(links[-1]), person=who)
                await ends(at.person, await at.person.visit(callback))
            assert text_of(await soon(call)) == person
            assert not caller.has_links_left
            assert len(set(links)) == len(links)
            assert text_of(answered_in(await caller.send_call("clean"))) == person

    @pytest.mark.parametrize(
        ("button", "why"),
        [
            ("/unshare", "is no longer shared with this tool"),
            ("/disconnect", "was disconnected in the meantime"),
        ],
    )
    async def test_removed_account_fails_started_call_without_replacement(
        self, button: str, why: str
    ) -> None:
        async def remove_account(at: Shop) -> None:
            await at.put_in_use("hubot")
            await at.press("octocat", button)

        async with shop(nothing, nothing, remove_account) as at:
            await a_first_call(at)
            call = at.caller.call("clean")
            await at.sign()
            refused = await soon(call)
            assert refused.is_error
            assert why in text_of(refused)
            assert at.got[2:] == ["octocat"]
            # The refused call did not use the signature, so the next call needs no new one.
            assert text_of(await soon(at.caller.call("clean"))) == "deleted at hubot"

    async def test_account_is_retained_when_tool_asks_with_protocol_elicitation(self) -> None:
        async with octocat_in_use(*asks_for_a_size()) as at:
            sizing = asked_in(await at.caller.send_call("clean"))
            await at.put_in_use("hubot")
            assert text_of(answered_in(await at.caller.send_call("clean", after=sizing))) == "done"
            assert at.got == ["octocat", "octocat"]


def asks_for_a_size() -> tuple[MCPServer[Any], list[str]]:
    """Return a server whose tool sends an MCP form, and the labels that the tool received."""
    server, got = MCPServer("shop"), list[str]()

    @server.tool()
    async def clean(context: Context[Any, Any]) -> Any:
        got.append((await elicit.oauth(github, scopes=["repo"])).label)
        return "done" if "size" in (context.input_responses or {}) else size_form()

    return server, got


@asynccontextmanager
async def octocat_in_use(server: MCPServer[Any], got: list[str]) -> AsyncIterator[Shop]:
    """Open a shop where octocat is shared with the tool `clean`, and hubot with another tool."""
    async with oauth_env(server=server) as here, caller_at(here, MODERN) as caller:
        await connect_as(here, "hubot", tool="other")
        await connect_as(here, "octocat", tool="clean")
        yield Shop(here=here, caller=caller, person=await here.person(), got=got)


async def nothing(at: Shop) -> None:
    pass


async def a_first_call(at: Shop) -> None:
    """Complete a call that connects and shares octocat. The tool's body runs twice."""
    call = at.caller.call("clean")
    await at.approve(await at.go_on())
    await at.sign()
    assert text_of(await soon(call)) == "deleted at octocat"


class TestAnOldRequestState:
    """A request state that is sent again after its run ended does not bring back an account."""

    @pytest.mark.parametrize("minutes", [0, 11])
    async def test_repeated_signed_call_returns_result_or_asks_again_after_timeout(
        self, minutes: int
    ) -> None:
        # finding: S23
        async with shop(nothing, nothing) as at:
            await a_first_call(at)
            old = asked_in(await at.caller.send_call("clean"))
            await at.accept()
            signed = answered_in(await at.caller.send_call("clean", after=old))
            assert text_of(signed) == "deleted at octocat"
            await at.put_in_use("hubot")
            at.here.clock.tick(minutes=minutes)
            got = len(at.got)
            again = await at.caller.send_call("clean", after=old)
            if minutes:
                asked_in(again)
                assert at.got[got:] == ["hubot"]
            else:  # in case the client lost the result
                assert text_of(answered_in(again)) == "deleted at octocat"
                assert len(at.got) == got

    async def test_repeated_protocol_elicitation_call_uses_active_account(self) -> None:
        # finding: S23
        async with octocat_in_use(*asks_for_a_size()) as at:
            old = asked_in(await at.caller.send_call("clean"))
            assert text_of(answered_in(await at.caller.send_call("clean", after=old))) == "done"
            await at.put_in_use("hubot")
            assert text_of(answered_in(await at.caller.send_call("clean", after=old))) == "done"
            assert at.got == ["octocat", "octocat", "hubot"]
