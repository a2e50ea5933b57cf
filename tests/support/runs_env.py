"""Programs that ask with the Python client, over the HTTP API of a test's application."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from flows import Money
from tests.support.asking_env import AskingEnv, Block
from tests.support.mcp_sandbox import Guest
from tests.support.mcp_server import TLS, eventually
from webapp.client import Elicit
from webapp.identity.api_keys import KeyScope

if TYPE_CHECKING:
    from flows.elicitation.shown_link import ShownLink

T = TypeVar("T")
NINE = Money("9.00", "EUR")


class CutOff(httpx.AsyncBaseTransport):
    """A transport that can lose the server's response, or answer in place of the server.

    `answers` are a proxy's responses to the next requests, which do not reach the server.
    """

    def __init__(self) -> None:
        self._way = httpx.AsyncHTTPTransport(verify=TLS)
        self.lost: list[str] = []  # path endings whose next response is lost
        self.answers: list[httpx.Response] = []
        self.sent: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        if self.answers:
            return self.answers.pop(0)
        reply = await self._way.handle_async_request(request)
        for end in self.lost:
            if request.url.path.endswith(end):
                self.lost.remove(end)
                await reply.aclose()
                raise httpx.ReadError("cut", request=request)
        return reply

    async def aclose(self) -> None:
        await self._way.aclose()


@dataclass(slots=True, kw_only=True)
class Programs:
    """Programs that use one API key."""

    here: AskingEnv
    key: str

    def elicit(self, *, run: str = "order 8", user: str | None = "ann", **more: Any) -> Elicit:
        more.setdefault("transport", httpx.AsyncHTTPTransport(verify=TLS))
        return Elicit(self.here.url, api_key=self.key, user=user, run=run, **more)

    def begin(
        self, work: Callable[[Elicit], Coroutine[Any, Any, T]], *, run: str = "order 8", **more: Any
    ) -> Block[T]:
        """Start `work` in a program that asks. Its links are recorded."""
        shown: list[ShownLink] = []

        async def go() -> T:
            async with self.elicit(run=run, show=shown.append, **more) as asker:
                return await work(asker)

        task = asyncio.create_task(go())
        self.here.blocks.append(task)
        return Block(task=task, shown=shown)

    async def done(
        self,
        work: Callable[[Elicit], Coroutine[Any, Any, T]],
        *acts: Callable[[Guest, str], Awaitable[object]],
        **more: Any,
    ) -> T:
        """Return the result of `work`, after a person did what each link asks for."""
        block, guest = self.begin(work, **more), await self.here.guest()
        for number, act in enumerate(acts):
            await act(guest, (await block.link(number)).url)
        result: T = await block
        return result

    async def killed(self, block: Block[Any]) -> None:
        """Cancel the program after its first link. It sends nothing more."""
        await eventually(lambda: block.shown or block.task.done())
        await block.cancel()


@asynccontextmanager
async def programs_at(here: AskingEnv, *scopes: KeyScope) -> AsyncIterator[Programs]:
    """Provide programs with a new API key."""
    lasts = here.clock().replace(year=here.clock().year + 1)
    key, _ = await here.service.identity.api_keys.new(
        program="shop", scopes=[KeyScope.ASK, *scopes], expires_at=lasts
    )
    yield Programs(here=here, key=key)


async def approve(guest: Guest, link: str) -> None:
    await guest.person.press(link)


async def connect(guest: Guest, link: str) -> None:
    await guest.connect(link)


async def pay(guest: Guest, link: str) -> None:
    await guest.pay(link)


async def type_in(guest: Guest, link: str) -> None:
    await guest.type(link)


async def decline(guest: Guest, link: str) -> None:
    await guest.decline(link)


async def deny(guest: Guest, link: str) -> None:
    await guest.deny(link)


async def fill(guest: Guest, link: str) -> None:
    """Fill in the only field of a form without a schema."""
    await guest.type(link, response="Lund")
