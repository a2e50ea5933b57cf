"""A run: a model calls a tool, a person is reached or not, and the tool returns."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from flows.elicitation.states import Status
from tests.clients.env import NAME, RETURNS, Env
from tests.clients.official import PythonClient
from tests.clients.scripted import REQUIRED, CallResult, ScriptedClient
from tests.clients.transport import Json

READS_SECONDS = 3.0
CALLS_AT_MOST = 5

KnownClient: TypeAlias = ScriptedClient | PythonClient


class Calls(Protocol):
    """A connected client."""

    async def call(self, tool: str, **arguments: Any) -> CallResult: ...


class Sees(StrEnum):
    """The places where a person can answer."""

    FORM = "a form in the client"
    LINK = "the link, shown by the client"
    CHAT = "the link, in the chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    sees: Sees
    at_seconds: float


@dataclass(slots=True, kw_only=True)
class Visitor:
    """A person at the client's window, who answers once, at the first place that allows it.

    They read for `reads_seconds`, then answer. One second later they report that they are done.
    """

    env: Env
    reads_seconds: float = READS_SECONDS
    says: str = "accept"
    sights: list[Sight] = field(default_factory=list[Sight])
    _done: asyncio.Event = field(default_factory=asyncio.Event)
    _doing: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    async def fills_form(self, message: str, schema: Json) -> Json:
        await self._reads(Sees.FORM)
        self._soon_done()
        if self.says != "accept":
            return {"action": self.says}
        return {"action": "accept", "content": dict.fromkeys(schema["properties"], NAME)}

    async def opens_link(self, message: str, url: str) -> str:
        await self._reads(Sees.LINK)
        if self.says == "accept":
            self._begin(self._goes(url))
        else:
            self._soon_done()
        return self.says

    def is_shown(self, link: str) -> None:
        """Show the link to the person, as the model does in the chat."""
        self._begin(self._reads_chat(link))

    async def is_done(self) -> None:
        await self._done.wait()
        await asyncio.gather(*(task for task in self._doing if task.done()))

    async def leaves(self) -> None:
        """Wait until the person is done, and fail if one of their actions failed."""
        await self.is_done()
        for task in self._doing:
            task.cancel()
        await asyncio.gather(*self._doing, return_exceptions=True)

    async def _reads(self, sees: Sees) -> None:
        self.sights.append(Sight(sees=sees, at_seconds=self.env.seconds))
        if len(self.sights) > 1:  # the person is already answering at another place
            await asyncio.Event().wait()
        await asyncio.sleep(self.reads_seconds)

    async def _reads_chat(self, link: str) -> None:
        await self._reads(Sees.CHAT)
        await self._goes(link)

    async def _goes(self, link: str) -> None:
        try:
            await (self.env.go(link) if self.says == "accept" else self.env.decline(link))
        finally:
            self._soon_done()

    def _soon_done(self) -> None:
        asyncio.get_running_loop().call_later(1.0, self._done.set)

    def _begin(self, doing: Coroutine[Any, Any, None]) -> None:
        self._doing.append(asyncio.create_task(doing))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """The results of a question, from the first call to the tool's return."""

    sees: Sees | None  # None: never
    seconds: int
    results: tuple[CallResult, ...]  # one for each call, in order
    sights: tuple[Sight, ...]

    @property
    def text(self) -> str:
        return self.results[-1].text


async def until_it_returns(
    calls: Calls, visitor: Visitor, kind: str, *, what: str = "5"
) -> Reached:
    """Call like a model that shows each link and repeats the call, until the tool returns."""
    began, received = visitor.env.seconds, list[CallResult]()
    while len(received) < CALLS_AT_MOST:
        result = await calls.call(kind, what=what)
        received.append(result)
        if result.link is not None:
            visitor.is_shown(result.link)
            await visitor.is_done()
        elif not result.is_from_client and result.code != str(REQUIRED):
            break
    first = visitor.sights[0] if visitor.sights else None
    return Reached(
        sees=None if first is None else first.sees,
        seconds=0 if first is None else round(first.at_seconds - began),
        results=tuple(received),
        sights=tuple(visitor.sights),
    )


async def reach(env: Env, client: KnownClient, revision: str, kind: str) -> Reached:
    """Run a new client with a person who answers, and check that they are asked exactly once."""
    visitor = Visitor(env=env)
    async with client.connected(revision, transport=env.transport(), screen=visitor) as calls:
        reached = await until_it_returns(calls, visitor, kind)
    assert reached.text == RETURNS[kind], reached
    assert env.passed == [kind], reached
    # finding: XC2
    errors = [received for received in reached.results if received.is_error]
    assert all(received.is_from_client or received.code == str(REQUIRED) for received in errors), (
        reached
    )
    asked = [one for one in await env.elicitations() if one.status is not Status.EXPIRED]
    assert len(asked) == 1, "the repeated calls create only one question"
    await visitor.leaves()
    return reached
