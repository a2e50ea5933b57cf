"""A server on which probes can use every door: MCP tools, `asking` blocks, API programs and pages.

tests/doors/__init__.py explains doors and probes. `World.ask` asks the same question at any door
that can ask, so one probe covers all of these doors. People at MCP are "alice" and sign in at the
issuer. Users of the application, whom blocks and programs ask, are "ann" and are identified by a
cookie. Approvers of "finance" sign in at the issuer too.
"""

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final
from urllib.parse import urljoin

import httpx
import msgspec

from flows import elicit
from flows.elicitation.states import Elicitation, Status
from flows.errors import ElicitError
from tests.support.api_people import PeopleEnv, people_env, person_client
from tests.support.api_program import Program, program_at
from tests.support.approving import FINANCE, GROUPS
from tests.support.asking_env import Block
from tests.support.chains import AUDITED
from tests.support.issuer import sign_in
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    TLS,
    CutOffCaller,
    Page,
    Person,
    eventually,
    new_server,
)
from tests.support.runs_env import Programs
from tests.support.task_client import DECLARED, TaskClient, always
from webapp.api.asking import owner_of_user
from webapp.api.representations import NewQuestion
from webapp.identity.api_keys import KeyScope

ALICE: Final = "alice"  # asks with an MCP client
ANN: Final = "ann"  # a user of the application
ERIN: Final = "erin"  # decides as finance
DAY_SECONDS: Final = 24 * 3600
_TOOLS: list[Callable[[Any], None]] = []


def world_tools(register: Callable[[Any], None]) -> Callable[[Any], None]:
    """Register a function that adds tools to the world's server."""
    _TOOLS.append(register)
    return register


class Refused(Exception):
    """The server refused to ask a question. The text is the reply to the program or client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A stored question, and the person's link to its page."""

    id: str
    link: str
    subject: str  # the person whose browser opens the link


@dataclass(slots=True, kw_only=True)
class World:
    env: PeopleEnv
    program: Program
    programs: Programs
    desk: Program  # an API key that approves for ann
    stack: AsyncExitStack
    _numbers: Iterator[int] = field(default_factory=count)
    _browsers: dict[str, Person] = field(default_factory=dict[str, Person])

    async def ask(
        self, door: str, body: Mapping[str, Any], *, tool: str = "ask", program: str | None = None
    ) -> Asked:
        """Ask the question of `body`, which has the format of POST /api/questions.

        `tool` is the MCP tool that asks, `program` the name of the API program.

        Raises:
            Refused: The question was not asked.
        """
        before = {one.id for one in await self.open(door)}
        refusal = await self._asks(door, body, tool=tool, program=program)
        found = [one for one in await self.open(door) if one.id not in before]
        if not found:
            raise Refused(refusal)
        return self.known(found[0], door)

    def fresh(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the question with another message, so that earlier answers do not apply to it."""
        return {**body, "message": f"{body['message']} ({next(self._numbers)})"}

    def known(self, asked: Elicitation, door: str) -> Asked:
        link = self.env.here.service.links.of(asked, now=self.env.here.clock())
        return Asked(id=asked.id, link=link, subject=self.subject(door))

    async def open(self, door: str) -> list[Elicitation]:
        """Return the open questions of the person who is asked at this door."""
        return await self.env.here.service.elicitations.rows.open_of(
            self.owner(door), now=self.env.here.service.clock()
        )

    async def state(self, asked: Asked) -> Elicitation:
        found = await self.env.here.service.elicitations.get(asked.id)
        assert found is not None
        return found

    def subject(self, door: str) -> str:
        return ALICE if door in _AT_MCP else ANN

    def owner(self, door: str) -> str:
        service = self.env.here.service
        return self.env.owner(ALICE) if door in _AT_MCP else owner_of_user(service, ANN)

    async def browser(self, subject: str) -> Person:
        """Return this person's browser, which is signed in."""
        if subject not in self._browsers:
            if subject == ANN:
                self._browsers[subject] = await self.env.here.browser(ANN)
            else:
                person = await self.env.here.browser(None)
                self.env.issuer.claims = GROUPS if subject == ERIN else {}
                page = await person.visit(f"{self.env.here.url}/inbox")
                await sign_in(person, page, subject)
                self._browsers[subject] = person
        return self._browsers[subject]

    async def page(self, asked: Asked) -> Page:
        """Return the page of the question in its person's browser."""
        return await (await self.browser(asked.subject)).visit(asked.link)

    async def person_alone(self, subject: str, **claims: Any) -> Program:
        """Return a client of the API that uses this person's own access token and no key."""
        token = self.token(subject, use="api/inbox", **claims)
        return await self.stack.enter_async_context(person_client(self.env, token))

    def token(self, subject: str, *, use: str = "mcp", **claims: Any) -> str:
        now = int(self.env.here.clock().timestamp())
        groups = GROUPS if subject == ERIN else {}
        return self.env.token(subject, use=use, exp=now + DAY_SECONDS, **groups, **claims)

    async def asked_of_finance(self, arguments: Mapping[str, Any], message: str) -> Elicitation:
        """Ask finance for a decision with alice's tool, and return the question."""
        before = {one.id for one in await self.open(_AT_MCP[0])}
        await self.call(_AT_MCP[1], "ask_finance", arguments=arguments, message=message)
        (found,) = [one for one in await self.open(_AT_MCP[0]) if one.id not in before]
        return found

    async def addresses_of_finance(self) -> list[str]:
        """Return the addresses of the requests that wait in erin's inbox, the latest first."""
        inbox = f"{self.env.here.url}/inbox"
        page = await (await self.browser(ERIN)).visit(inbox)
        waiting, _, _ = page.text.partition("Decided in the last 30 days")
        found = re.findall(r'<a href="(/inbox/[^"?]+/[^"]+)"', waiting)
        return [urljoin(inbox, each) for each in found]

    async def call(self, door: str, tool: str, **arguments: Any) -> str:
        """Call a tool as alice with a client that shows no links, and return the result's text.

        Raises:
            Refused: The server returned a JSON-RPC error.
        """
        revision = MODERN if door == _AT_MCP[1] else LEGACY
        browser = await self.env.here.browser(None)
        caller = CutOffCaller(browser.browser, f"{self.env.here.url}/mcp", revision, elicits=False)
        caller.headers |= {"authorization": f"Bearer {self.token(ALICE)}"}
        await caller.connect()
        return result_text((await caller.call(tool, **arguments)).text)

    async def program_named(self, name: str, **about: Any) -> Program:
        return await self.stack.enter_async_context(
            program_at(self.env.here, program=name, **about)
        )

    async def end_all(self) -> None:
        """End all open questions, so that the next probe finds only its own questions."""
        for block in self.env.here.blocks:
            block.cancel()
        for door in _AT_MCP[0], _IN_BLOCK:
            for one in await self.open(door):
                await self.env.here.service.elicitations.end(one, Status.CANCELLED)

    async def _asks(
        self, door: str, body: Mapping[str, Any], *, tool: str, program: str | None
    ) -> str:
        """Ask the question, and return what the asking side receives immediately."""
        match door:
            case "task":
                return await self._asks_in_task(tool, body)
            case "`asking` block":
                block = self.env.here.begin(lambda: question_of(body).outcome(), key=None)
                return await self._asks_in(block)
            case "`webapp.client`":
                work = self.programs.begin(
                    lambda _: question_of(body).outcome(), run=f"run {next(self._numbers)}"
                )
                return await self._asks_in(work)
            case _ if door in _AT_MCP:
                return await self.call(door, tool, body=body)
            case _:  # at other doors, a program asks the question
                sender = await self.program_named(program) if program else self.program
                return (await sender.ask(dict(body))).text

    async def _asks_in(self, block: Block[Any]) -> str:
        await eventually(lambda: block.shown or block.task.done())
        if block.shown:
            return block.shown[0].url
        try:
            return str(await block.task)
        except ElicitError as error:
            return str(error)

    async def _asks_in_task(self, tool: str, body: Mapping[str, Any]) -> str:
        client = await self.task_client()
        state = await client.call(tool, body=dict(body))
        while state.get("status") == "working" and not await self.open(door="task"):
            state = await client.get(state["taskId"])
        return json.dumps(state)

    async def task_client(self) -> TaskClient:
        """Return alice's client that calls tools as tasks."""
        headers = {"authorization": f"Bearer {self.token(ALICE)}"}
        http = await self.stack.enter_async_context(
            httpx.AsyncClient(timeout=300, verify=TLS, headers=headers)
        )
        url = f"{self.env.here.url}/mcp"
        client = TaskClient(http, url, MODERN, declares=DECLARED, name="tasks")
        await client.connect()
        return client


_AT_MCP: Final = ("MCP tool, 2025-11-25", "MCP tool, 2026-07-28", "task")
_IN_BLOCK: Final = "`asking` block"


def owner_tag(world: World, subject: str) -> str:
    """Return the owner tag of a person who signs in at the issuer."""
    return world.env.owner(subject)


def question_of(body: Mapping[str, Any]) -> Any:
    """Return the question that a body of POST /api/questions describes."""
    return msgspec.convert(dict(body), NewQuestion).question()


def result_text(text: str) -> str:
    """Return the text of the result in a response of /mcp. Raise Refused for a JSON-RPC error."""
    lines = re.findall(r"^data: (\{.*)$", text, re.MULTILINE) or [text]
    answer = json.loads(lines[-1])
    if "error" in answer:
        raise Refused(f"{answer['error']['code']}: {answer['error']['message']}")
    text_found: str = answer["result"]["content"][0]["text"]
    return text_found


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    server = new_server("mcp")
    _add_tools(server)
    for register in _TOOLS:
        register(server)
    async with (
        people_env(server, approvers=(FINANCE,), policies=always(AUDITED)) as env,
        AsyncExitStack() as stack,
    ):
        also = (KeyScope.TOKENS, KeyScope.REFUND)
        program = await stack.enter_async_context(program_at(env.here, also=also))
        desk = await stack.enter_async_context(
            program_at(env.here, program="desk", scope=KeyScope.APPROVE, owners=(ANN,))
        )
        yield World(
            env=env,
            program=program,
            programs=Programs(here=env.here, key=program.key),
            desk=desk,
            stack=stack,
        )


def _add_tools(server: Any) -> None:
    async def ask(body: dict[str, Any]) -> str:
        outcome = await question_of(body).outcome()
        return json.dumps({"status": outcome.status, "content": outcome.content})

    async def ask_too(body: dict[str, Any]) -> str:
        return await ask(body)

    async def ask_finance(arguments: dict[str, Any], message: str) -> str:
        return str(await elicit.confirm(message, arguments=arguments, approver="finance"))

    for tool in (ask, ask_too, ask_finance):
        server.tool()(tool)
