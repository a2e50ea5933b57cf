"""The page of connected accounts, as a person reads it and presses its buttons."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urljoin

from flows.oauth.connection import Connection
from tests.support.clock import Clock
from tests.support.issuer import Issuing, issuing, sign_in
from tests.support.mcp_server import Page, Person
from tests.support.oauth_env import OAuthEnv, approve, ends, oauth_env
from webapp.connecting import utc_now
from webapp.demo.walker import Page as Forms
from webapp.records.ids import OWNER_TAG_CHARACTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class City:
    """An application whose users sign in."""

    oauth_env: OAuthEnv
    issuer: Issuing

    def owner(self, subject: str) -> str:
        owners = self.oauth_env.service.elicitations.owners
        return owners.tag(issuer=self.issuer.url, subject=subject)

    async def citizen(self, subject: str) -> Person:
        """Return a person who signed in from the page of connected accounts."""
        person = await self.oauth_env.person()
        page = await sign_in(person, await look(person, self.oauth_env), subject)
        assert page.heading == "Your accounts", page.text
        return person


@asynccontextmanager
async def city() -> AsyncIterator[City]:
    async with issuing() as issuer:
        opening = oauth_env(
            clock=Clock(utc_now()),  # the issuer uses the machine's clock
            change=lambda settings, _: replace(settings, identity=issuer.who()),
        )
        async with opening as here:
            yield City(oauth_env=here, issuer=issuer)


async def look(person: Person, here: OAuthEnv) -> Page:
    return await person.visit(f"{here.url}/connections")


async def press(person: Person, here: OAuthEnv, to: str) -> Page:
    """Press the page's only button that leads to `to`, and return the page it ends at.

    If a link leads there, press the button of the page behind the link.
    """
    page = await look(person, here)
    links = re.findall(rf'<a class="button small" href="([^"]*{re.escape(to)})"', page.text)
    if links:
        (link,) = links
        page = await person.visit(urljoin(here.url, link))
    (form,) = (form for form in Forms(page.text).forms if to in form.action)
    sent = await person.browser.post(urljoin(here.url, form.action), data=form.fields)
    return await ends(person, Page.of(sent))


async def connect_as(here: OAuthEnv, login: str, **about: Any) -> Connection:
    """Connect the sandbox account `login`, which is not its first account."""
    asked, person = here.ask("repo", **about), await here.person()
    at_provider = await go_for_another(person, await asked.link())
    await ends(person, await person.visit(await approve(person, at_provider, person=login)))
    await asked.account()
    return next(one for one in await here.connections() if one.label == login)


async def go_for_another(person: Person, link: str) -> str:
    page = await person.visit(link)
    form = next(f for f in Forms(page.text).forms if "/allow" not in f.action)
    sent = Page.of(await person.browser.post(urljoin(link, form.action), data=form.fields))
    assert sent.location is not None
    return sent.location


async def the_one(here: OAuthEnv) -> Connection:
    (connection,) = await here.connections()
    return connection


def tail(connection: Connection) -> str:
    return connection.id[OWNER_TAG_CHARACTERS:]


def main_text(page: Page) -> str:
    """Return the text of the page, with single spaces."""
    return " ".join(re.sub(r"<[^>]+>", " ", page.text.partition("<main>")[2]).split())
