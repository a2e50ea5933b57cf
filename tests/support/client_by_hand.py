"""A client whose answers a test gives one by one, with a manual clock."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import mcp_types as types

from flows.elicitation.states import Json, Status
from flows.elicitation.traits import OnPage
from tests.support.clock import Clock
from tests.support.mcp_server import FORM, Caller, ServerEnv, attached, eventually, link_in
from webapp.settings.quotas import PolicySettings

A_SECOND = timedelta(seconds=1)
NOBODY = "ELICITATION_NOBODY_ASKED"


class Shows:
    """A client whose answers come from the test, or are set in advance."""

    def __init__(self, *at_once: tuple[str, Any]) -> None:
        self.asked = 0
        self.answers: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        for answer in at_once:
            self.answers.put_nowait(answer)

    async def answer(self) -> tuple[str, Any]:
        self.asked += 1
        return await self.answers.get()

    async def says(self, action: str, content: Any = None) -> None:
        """Answer, and wait until the server has processed the answer."""
        self.answers.put_nowait((action, content))
        await eventually(self.answers.empty)
        for _ in range(200):
            await asyncio.sleep(0)


class Here:
    def __init__(self, env: ServerEnv, clock: Clock, caller: Caller, shows: Shows) -> None:
        self.env = env
        self.clock = clock
        self.caller = caller
        self.shows = shows

    async def pass_time(self, **amount: float) -> None:
        await self.env.pending()
        self.clock.tick(**amount)
        self.env.service.elicitations.waiters.wake_all()

    async def asks(self, tool: str) -> "asyncio.Task[types.CallToolResult]":
        """Start a call, and wait until the client shows its question."""
        before = self.shows.asked
        call = self.caller.call(tool)
        await eventually(lambda: self.shows.asked > before)
        return call

    async def answer_on_page(self, tool: str) -> None:
        (asked,) = [e for e in await self.env.elicitations() if e.request.tool == tool]
        assert not asked.status.is_final
        if tool == "visit":
            await self.env.service.completing.complete(asked.id, {})
            return
        kind = self.env.service.kinds.on_page(asked.kind)
        assert kind is not None
        content: Json = {"response": "Ann"} if tool == "name" else {}
        await kind.complete(asked, content, OnPage())

    async def decline_on_page(self) -> None:
        (asked,) = await self.env.elicitations()
        await self.env.service.elicitations.end(asked, Status.DECLINED)

    async def statuses(self) -> list[Status]:
        return [row.status for row in await self.env.elicitations()]


@asynccontextmanager
async def here(
    server: Any,
    revision: str,
    *at_once: tuple[str, Any],
    declares: types.ElicitationCapability = FORM,
    policies: PolicySettings | None = None,
    name: str = "mcp",
) -> AsyncGenerator[Here]:
    shows, clock = Shows(*at_once), Clock()
    async with (
        attached(server, clock=clock, policies=policies, min_answer=A_SECOND) as env,
        env.caller(revision, declares=declares, slow=shows.answer, name=name) as caller,
    ):
        yield Here(env, clock, caller, shows)


def code_of(result: types.CallToolResult) -> object:
    return (result.meta or {}).get("code")


def is_link(result: types.CallToolResult) -> bool:
    """Return True if the result links to our page and has no error code."""
    return bool(link_in(result)) and code_of(result) is None
