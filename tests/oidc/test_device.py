"""`elicit connect`: an account is connected from a terminal, by a code entered elsewhere."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from flows import oauth_device
from flows.elicitation import Elicitation, Status
from flows.errors import Declined, Denied, Failed
from tests.oidc.stage import Guest, Newcomer, OpenIdProvider
from tests.oidc.test_accounts import office, ours
from tests.web.connecting import Asking, Town
from webapp.device import Terminal, connect_by_code, open_questions

GRANTS = {"grant_types": [oauth_device.GRANT_TYPE, "refresh_token"], "response_types": []}


class Desk:
    """A terminal whose user enters the code on another device while time passes here."""

    def __init__(self, guest: Guest, *, says: str = "yes", likes: bool = True) -> None:
        self.said: list[str] = []
        self.asked: list[str] = []
        self._guest, self._says, self._likes = guest, says, likes
        self._has_entered = False
        self.meanwhile: Callable[[], object] | None = None

    @property
    def terminal(self) -> Terminal:
        return Terminal(say=self.said.append, is_right=self._is_right, pause=self._pause)

    async def _is_right(self, question: str) -> bool:
        self.asked.append(question)
        return self._likes

    async def _pause(self, _: timedelta) -> None:
        if self._has_entered:
            return
        self._has_entered = True
        words = self.said[0].replace(",", " ").split()
        address, code = words[1], words[words.index("enter") + 1]
        await self._guest.enter(address, user_code=code, says=self._says)


@asynccontextmanager
async def waiting(acme: OpenIdProvider) -> AsyncIterator[tuple[Town, Asking, Elicitation]]:
    async with office(acme) as here:
        acme.configure(clients=[ours(here, **GRANTS)])
        asked = here.ask("email", provider="acme")
        await asked.link()
        (question,) = await open_questions(here.service, provider=None)
        yield here, asked, question


async def test_the_tool_goes_on_with_the_account_that_was_named(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme) as (here, asked, question):
        desk = Desk(await newcomer(acme, "alice"))
        assert await connect_by_code(here.service, question, desk.terminal)
        assert "alice@acme.example" in desk.asked[0]
        assert (await asked.account()).label == "alice@acme.example"
        assert await open_questions(here.service, provider=None) == []


async def test_an_account_that_is_not_theirs_is_given_back(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme) as (here, asked, question):
        desk = Desk(await newcomer(acme, "bob"), likes=False)
        assert not await connect_by_code(here.service, question, desk.terminal)
        with pytest.raises(Declined):
            await asked.account()
        assert await here.connections() == []


async def test_a_no_at_the_provider_keeps_the_question_open(
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


async def test_a_question_that_ended_meanwhile_gets_no_account(
    acme: OpenIdProvider, newcomer: Newcomer
) -> None:
    async with waiting(acme) as (here, asked, question):
        desk = Desk(await newcomer(acme, "alice"))
        await here.service.elicitations.end(question, Status.DECLINED)
        with pytest.raises(Failed, match="does not wait"):
            await connect_by_code(here.service, question, desk.terminal)
        with pytest.raises(Declined):
            await asked.account()
        assert await here.connections() == []


async def test_another_owners_question_is_not_theirs_to_answer(acme: OpenIdProvider) -> None:
    async with office(acme) as here:
        tag = here.service.elicitations.owners.tag(issuer="https://login.example", subject="eve")
        asked = here.ask("email", provider="acme", owner=tag)
        await asked.link()
        assert await open_questions(here.service, provider=None) == []
        asked.task.cancel()
