"""`elicit connect`: connect an account from a terminal, with a code typed on another device."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Status
from flows.errors import Declined, Denied, Failed
from flows.oauth import device_flow as oauth_device
from tests.oidc.connected import office, our_settings
from tests.oidc.env import Guest, Newcomer, OpenIdProvider
from tests.support.oauth_env import Asking, OAuthEnv
from webapp.cli.connect import Terminal, connect_by_code, open_questions
from webapp.routes.connections import start_reconnecting

GRANTS = {"grant_types": [oauth_device.GRANT_TYPE, "refresh_token"], "response_types": []}


class Desk:
    """A terminal whose user enters the code on another device while the terminal waits."""

    def __init__(
        self,
        guest: Guest,
        *,
        says: str = "yes",
        likes: bool = True,
        meanwhile: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.printed: list[str] = []
        self.asked: list[str] = []
        self._guest, self._says, self._likes = guest, says, likes
        self._has_entered = False
        self._meanwhile = meanwhile  # runs before the user confirms the account

    @property
    def terminal(self) -> Terminal:
        return Terminal(
            say=self.printed.append, choose=self._choose, is_right=self._is_right, pause=self._pause
        )

    async def _choose(self, number: int) -> int | None:
        raise AssertionError(number)

    async def _is_right(self, question: str) -> bool:
        self.asked.append(question)
        if self._meanwhile is not None:
            await self._meanwhile()
        return self._likes

    async def _pause(self, _: timedelta) -> None:
        if self._has_entered:
            return
        self._has_entered = True
        words = self.printed[1].replace(",", " ").split()
        address, code = words[1], words[words.index("enter") + 1]
        await self._guest.enter(address, user_code=code, says=self._says)


@asynccontextmanager
async def waiting(
    acme: OpenIdProvider, **about: Any
) -> AsyncIterator[tuple[OAuthEnv, Asking, Elicitation]]:
    async with office(acme) as here:
        acme.configure(clients=[our_settings(here, **GRANTS)])
        asked = here.ask("email", provider="acme", **about)
        await asked.link()
        (question,) = await open_questions(here.service, provider=None)
        yield here, asked, question


async def test_tool_continues_with_account_connected_by_code(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme) as (here, asked, question):
        desk = Desk(await newcomer(acme, "alice"))
        assert await connect_by_code(here.service, question, desk.terminal)
        assert desk.printed[0] == (
            'list of shop asks for your account at Acme, through "c" (its own name, not '
            "verified).\nWith the account, tools can:\n  Know that it is you (openid)\n"
            "  See your e-mail address (email)\nAll your assistants can use it. Change "
            "this at /connections."
        )
        assert desk.asked == ["This is alice@acme.example at Acme. May list of shop use it?"]
        assert desk.printed[-1] == "The account is connected, and the tool continues."
        assert (await asked.account()).label == "alice@acme.example"
        assert await open_questions(here.service, provider=None) == []


async def test_rejected_account_is_not_saved(acme: OpenIdProvider, newcomer: Newcomer) -> None:
    async with waiting(acme) as (here, asked, question):
        desk = Desk(await newcomer(acme, "bob"), likes=False)
        assert not await connect_by_code(here.service, question, desk.terminal)
        with pytest.raises(Declined):
            await asked.account()
        assert await here.connections() == []


async def test_denial_at_provider_leaves_question_open(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme) as (here, asked, question):
        desk = Desk(await newcomer(acme, "alice"), says="no")
        with pytest.raises(Denied):
            await connect_by_code(here.service, question, desk.terminal)
        assert [one.id for one in await open_questions(here.service, provider="acme")] == [
            question.id
        ]
        again = Desk(await newcomer(acme, "alice"))
        assert await connect_by_code(here.service, question, again.terminal)
        await asked.account()


async def test_ended_question_gets_no_account(acme: OpenIdProvider, newcomer: Newcomer) -> None:
    async with waiting(acme) as (here, asked, question):
        desk = Desk(await newcomer(acme, "alice"))
        await here.service.elicitations.end(question, Status.DECLINED)
        with pytest.raises(Failed, match="no longer waits"):
            await connect_by_code(here.service, question, desk.terminal)
        with pytest.raises(Declined):
            await asked.account()
        assert await here.connections() == []


async def test_account_other_than_requested_is_reported_and_not_saved(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme, account="alice@acme.example") as (here, asked, question):
        desk = Desk(await newcomer(acme, "bob"))
        assert not await connect_by_code(here.service, question, desk.terminal)
        assert "the account alice@acme.example at Acme" in desk.printed[0]
        assert desk.asked == []
        assert desk.printed[-1] == (
            "bob@acme.example was connected, but alice@acme.example was requested. "
            "Nothing was saved."
        )
        with pytest.raises(Failed, match=r"bob@acme\.example was connected"):
            await asked.account()
        assert await here.connections() == []


async def test_another_person_with_same_account_name_is_reported_and_not_saved(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme) as (here, asked, question):
        first = Desk(await newcomer(acme, "alice"))
        await connect_by_code(here.service, question, first.terminal)
        await asked.account()
        (alice,) = await here.connections()
        await here.service.elicitations.write(replace(alice, label="bob@acme.example"))
        again = await start_reconnecting(here.service, replace(alice, label="bob@acme.example"))
        assert again is not None
        desk = Desk(await newcomer(acme, "bob"))
        assert not await connect_by_code(here.service, again, desk.terminal)
        assert desk.asked == []
        assert desk.printed[-1] == (
            "The name bob@acme.example now belongs to another account than the one that was "
            "connected. Nothing was saved."
        )
        (account,) = await here.connections()
        assert account.person_id == alice.person_id


async def test_replaced_account_is_named_before_confirmation(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme) as (here, asked, question):
        first = Desk(await newcomer(acme, "alice"))
        await connect_by_code(here.service, question, first.terminal)
        await asked.account()
        again = here.ask("email", "profile", provider="acme", arguments="more")
        await again.link()
        (another,) = await open_questions(here.service, provider="ACME")
        desk = Desk(await newcomer(acme, "bob"))
        assert await connect_by_code(here.service, another, desk.terminal)
        assert "bob@acme.example at Acme. It replaces alice@acme.example." in (desk.asked[0])
        assert (await again.account()).label == "bob@acme.example"


async def test_account_confirmed_after_call_ended_is_saved_for_next_call(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme) as (here, asked, question):

        async def decline() -> None:
            await here.service.elicitations.end(question, Status.DECLINED)

        desk = Desk(await newcomer(acme, "alice"), meanwhile=decline)
        assert await connect_by_code(here.service, question, desk.terminal)
        assert desk.printed[-1] == (
            "The tool no longer waits. alice@acme.example is saved for the next call."
        )
        with pytest.raises(Declined):
            await asked.account()
        again = here.ask("email", provider="acme")
        assert (await again.account()).label == "alice@acme.example"


async def test_account_confirmed_twice_is_saved_for_next_call(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme) as (here, asked, question):
        guest = await newcomer(acme, "alice")

        async def also() -> None:
            other = Desk(await newcomer(acme, "alice"))
            assert await connect_by_code(here.service, question, other.terminal)
            await asked.account()

        desk = Desk(guest, meanwhile=also)
        assert await connect_by_code(here.service, question, desk.terminal)
        assert desk.printed[-1] == (
            "The tool had an account already. alice@acme.example is saved for the next call."
        )


async def test_question_answered_elsewhere_is_not_connected_by_code(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme) as (here, asked, question):
        first = Desk(await newcomer(acme, "alice"))
        await connect_by_code(here.service, question, first.terminal)
        await asked.account()
        late = Desk(await newcomer(acme, "alice"))
        with pytest.raises(Failed, match="in another way"):
            await connect_by_code(here.service, question, late.terminal)


async def test_question_of_another_owner_is_not_listed(acme: OpenIdProvider) -> None:
    async with office(acme) as here:
        tag = here.service.elicitations.owners.tag(issuer="https://login.example", subject="eve")
        asked = here.ask("email", provider="acme", owner=tag)
        await asked.link()
        assert await open_questions(here.service, provider=None) == []
        asked.task.cancel()
