"""An application whose users sign in at an issuer, and programs that act for them over the API."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from flows import elicit
from flows.elicitation.states import Elicitation
from tests.support.api_program import Program
from tests.support.approving import AT_ONCE
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.chains import AUDITED
from tests.support.clock import Clock
from tests.support.issuer import Issuing, issuing, sign_in
from tests.support.mcp_server import LEGACY, TLS, CutOffCaller, Person, new_server
from webapp.settings.quotas import PolicySettings


def shop_tools() -> Any:
    """Return a server with a tool that asks a question and a tool behind a gate."""
    server = new_server("mcp")

    @server.tool()
    async def visit() -> str:
        await elicit.url("Read the terms.", "https://shop.example/terms")
        return "done"

    @server.tool()
    @elicit.gate
    async def wipe(folder: str) -> str:
        return f"{folder} is empty"

    return server


@dataclass(frozen=True, slots=True, kw_only=True)
class PeopleEnv:
    here: AskingEnv
    issuer: Issuing

    def token(self, subject: str | None, *, use: str = "mcp", **claims: Any) -> str:
        """Return an access token of this user for the audience at the path `use`."""
        about = {"audience": f"{self.here.url}/{use}", **claims}
        return self.issuer.token(subject, **about)

    def acting(self, subject: str | None, **claims: Any) -> str:
        """Return an access token that lets a program act for this user."""
        return self.token(subject, use="api", **claims)

    def own(self, subject: str | None, **claims: Any) -> str:
        """Return an access token with which this user calls the API directly."""
        return self.token(subject, use="api/inbox", **claims)

    def owner(self, subject: str) -> str:
        owners = self.here.service.elicitations.owners
        return owners.tag(issuer=self.issuer.url, subject=subject)

    async def signed_in(self, subject: str, url: str) -> Person:
        """Return a browser that opened this link and signed in as the user."""
        person = await self.here.browser(None)
        await sign_in(person, await person.visit(url), subject)
        return person

    async def call(self, subject: str, tool: str, **arguments: Any) -> str:
        """Call a tool as this user, with a client that only shows links.

        Return the result's text.
        """
        browser = await self.here.browser(None)
        caller = CutOffCaller(browser.browser, f"{self.here.url}/mcp", LEGACY, elicits=False)
        caller.headers |= {"authorization": f"Bearer {self.token(subject)}"}
        await caller.connect()
        response = (await caller.call(tool, **arguments)).text
        (result,) = re.findall(r"^data: (\{.*)$", response, re.MULTILINE)
        text: str = json.loads(result)["result"]["content"][0]["text"]
        return text

    async def asked_by_a_tool(self, subject: str, tool: str, **arguments: Any) -> Elicitation:
        """Call a tool as this user, and return the elicitation that the call created."""
        before = {one.id for one in await self._open_of(subject)}
        await self.call(subject, tool, **arguments)
        (asked,) = [one for one in await self._open_of(subject) if one.id not in before]
        return asked

    async def _open_of(self, subject: str) -> list[Elicitation]:
        service = self.here.service
        return await service.elicitations.rows.open_of(self.owner(subject), now=service.clock())


@asynccontextmanager
async def people_env(
    server: Any = None, *, policies: PolicySettings = AUDITED, **identity: Any
) -> AsyncIterator[PeopleEnv]:
    clock = Clock()
    async with (
        issuing(clock) as issuer,
        asking_env(
            server=server or shop_tools(),
            identity=issuer.who(**identity),
            policies=policies,
            limits=AT_ONCE,
            clock=clock,
        ) as here,
    ):
        yield PeopleEnv(here=here, issuer=issuer)


@asynccontextmanager
async def person_client(env: PeopleEnv, token: str) -> AsyncIterator[Program]:
    """Provide API access with a person's own access token and no API key."""
    about = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        base_url=env.here.url, headers=about, verify=TLS, timeout=300
    ) as client:
        yield Program(client=client, key="")
