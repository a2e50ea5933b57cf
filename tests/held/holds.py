"""The ways to hold a payment, each through its real interface: MCP, a block, the HTTP API."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from flows import Money, elicit
from flows.elicitation.tool_call import ToolCall
from flows.errors import ElicitError
from flows.payments.receipt import Payment
from flows.question import asking
from tests.support import signing
from tests.support.api_program import PAYMENT, Program, program_at
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.disputes import claim
from tests.support.living import living
from tests.support.mcp_sandbox import Guest
from tests.support.mcp_server import (
    LEGACY,
    MODERN,
    TLS,
    Person,
    ServerEnv,
    _Posts,
    cut,
    eventually,
    new_server,
    soon,
    text_of,
)
from tests.support.service_env import Holding
from tests.support.settings import AT_ONCE
from tests.support.shop_env import FrailStore
from tests.support.task_client import DECLARED, Refused, TaskClient, always
from webapp.calls.call import Call
from webapp.calls.verbs import Verbs
from webapp.client import Elicit, ServerRefused
from webapp.identity.api_keys import KeyScope
from webapp.sweeper import fall_due

NINE, WHAT = Money("9.00", "EUR"), "Premium report"
STEP = {"user": "ann", "run": "order 8", "name": "book", "by": "a-process"}


@dataclass(slots=True, kw_only=True)
class World:
    """An application with its tools, users and programs, and the sandbox."""

    here: AskingEnv
    env: ServerEnv
    store: FrailStore
    till: Program
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    made: list[str] = field(default_factory=list[str])
    after: list[str] = field(default_factory=list[str])  # what a tool did after its `once`

    async def work(self, receipt: str) -> str:
        """Do the paid work: report its start, and wait until it may end."""
        self.begun.set()
        await self.goes_on.wait()
        self.made.append(receipt)
        return "made"

    async def payment(self) -> Payment:
        (payment,) = await self.here.service.kinds.payments.ledger.all()
        return payment

    async def send(self, event: dict[str, Any]) -> None:
        """Deliver an event with the provider's signature."""
        body, secret = json.dumps(event).encode(), self.here.sandbox.webhook_secret
        headers = signing.stripe(body, secret=secret, now=self.here.clock())
        async with httpx.AsyncClient(verify=TLS, base_url=self.here.url) as provider:
            answer = await provider.post("/webhooks/stripe", content=body, headers=headers)
            assert answer.status_code == 200, answer.text

    async def calm(self) -> None:
        """Wait until no call runs and the end of each call is stored."""
        bodies = self.here.service.running_tools
        await eventually(lambda: not len(bodies) and not bodies.is_storing_result)


@dataclass(slots=True, kw_only=True)
class Held:
    """A payment that somebody holds. `finish` ends the holder's work and returns its outcome."""

    world: World
    person: Person
    finish: Callable[[], Awaitable[str]]
    cancel: Callable[[], Awaitable[str]]
    renew: Callable[[], Awaitable[object]]
    came_to: str | None = None

    async def end(self) -> str:
        """Call `finish` once, and return its outcome at each call."""
        if self.came_to is None:
            self.came_to = await self.finish()
        return self.came_to

    async def sweep(self) -> None:
        """Run the sweeper three times, and renew the holder's leases before each run."""
        for _ in range(3):
            self.world.here.clock.tick(seconds=15)
            if self.came_to is None:
                await self.renew()
            await fall_due(self.world.here.service)


Holds = Callable[[World], AbstractAsyncContextManager[Held]]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    server, worlds, store = new_server("mcp"), list[World](), FrailStore()

    @server.tool(structured_output=False)
    async def report() -> str:
        receipt = await elicit.payment(NINE, WHAT)
        return await worlds[0].work(receipt.id)

    @server.tool(structured_output=False)
    async def ship() -> str:
        receipt = await elicit.payment(NINE, WHAT)
        shipped = str(await elicit.once("ship", lambda _: worlds[0].work(receipt.id)))
        worlds[0].after.append(receipt.id)
        return shipped

    @server.tool(structured_output=False)
    @elicit.needs(elicit.payment(NINE, WHAT))
    async def needed() -> str:
        return await worlds[0].work((await elicit.payment(NINE, WHAT)).id)

    @server.tool(structured_output=False)
    async def stubborn() -> str:
        receipt = await elicit.payment(NINE, WHAT)
        try:
            return await worlds[0].work(receipt.id)
        except asyncio.CancelledError:
            worlds[0].made.append(receipt.id)
            return "made"

    async with AsyncExitStack() as stack:
        opened = asking_env(server=server, store=store, policies=always(AT_ONCE))
        here = await stack.enter_async_context(living(opened))
        posts = _Posts(here.asgi)
        env = ServerEnv(url=here.url, service=here.service, settings=here.settings, posts=posts)
        till = await stack.enter_async_context(program_at(here, also=(KeyScope.REFUND,)))
        worlds.append(World(here=here, env=env, store=store, till=till))
        here.clock.tick(minutes=1)  # the process no longer assumes a recent step of the clock
        try:
            yield worlds[0]
        finally:
            worlds[0].goes_on.set()
            store.troubles.clear()
            await env.aclose()


def _call(revision: str, tool: str) -> Holds:
    @asynccontextmanager
    async def held(world: World) -> AsyncGenerator[Held]:
        async with world.env.caller(revision) as caller:
            call = caller.call(tool)
            person = await world.here.browser(None)
            await Guest(person).pay(await caller.link())
            await soon(world.begun.wait())

            async def finish() -> str:
                world.goes_on.set()
                text = text_of(await soon(call))
                await world.calm()
                return "delivered" if text == "made" else text

            async def cancel() -> str:
                await cut(call)
                if revision == LEGACY and tool != "ship":
                    await world.calm()  # wait until the cancelled call has stopped
                world.goes_on.set()
                await world.calm()
                return "cancelled"

            renew = world.here.service.running_tools.renew
            yield Held(world=world, person=person, finish=finish, cancel=cancel, renew=renew)

    return held


async def _poll_until_begun(world: World, client: TaskClient, task: str) -> None:
    """Poll until the paid work has begun, and cancel the last poll, which waits for the end."""

    async def polls() -> None:
        while not world.begun.is_set():
            await client.get(task)

    polling = asyncio.create_task(polls())
    await soon(world.begun.wait())
    polling.cancel()
    await asyncio.wait({polling})


def task_of(revision: str, tool: str = "report") -> Holds:
    @asynccontextmanager
    async def held(world: World) -> AsyncGenerator[Held]:
        async with httpx.AsyncClient(timeout=300, verify=TLS) as http:
            client = TaskClient(http, world.env.mcp_url, revision, declares=DECLARED, name="mcp")
            await client.connect()
            task = await client.task(tool)
            state = await client.until(task, "input_required")
            link = next(word for word in state["statusMessage"].split() if "/e/" in word)
            person = await world.here.browser(None)
            await Guest(person).pay(link)
            await _poll_until_begun(world, client, task)

            async def finish() -> str:
                world.goes_on.set()
                try:
                    text = await client.text(task)
                except Refused:
                    return "no such task"
                finally:
                    await world.calm()
                return "delivered" if text == "made" else text

            async def cancel() -> str:
                await client.cancel(task)
                world.goes_on.set()
                await world.calm()
                return "cancelled"

            renew = world.here.service.running_tools.renew
            yield Held(world=world, person=person, finish=finish, cancel=cancel, renew=renew)

    return held


@asynccontextmanager
async def _block(world: World) -> AsyncGenerator[Held]:
    async def work() -> str:
        return await world.work((await elicit.payment(NINE, WHAT)).id)

    block, person = world.here.begin(work), await world.here.browser()
    await Guest(person).pay((await block.link()).url)
    await soon(world.begun.wait())

    async def finish() -> str:
        world.goes_on.set()
        try:
            await block
        except ElicitError as error:
            return f"[{error.name}]"
        await world.calm()
        return "delivered"

    async def cancel() -> str:
        await block.cancel()
        return "cancelled"

    renew = world.here.service.running_tools.renew
    yield Held(world=world, person=person, finish=finish, cancel=cancel, renew=renew)


@asynccontextmanager
async def _program(world: World) -> AsyncGenerator[Held]:
    """Hold the payment with the Python client, whose work continues and renews its claim."""
    links: asyncio.Queue[str] = asyncio.Queue()
    key = str(world.till.key)
    way = httpx.AsyncHTTPTransport(verify=TLS)

    async def program() -> str:
        about: dict[str, Any] = {"user": "ann", "run": "order 8", "transport": way}
        show = lambda link: links.put_nowait(link.url)  # noqa: E731
        async with Elicit(world.here.url, api_key=key, show=show, **about):
            receipt = await elicit.payment(NINE, WHAT)
            return str(await elicit.once("book", lambda _: world.work(receipt.id)))

    task, person = asyncio.create_task(program()), await world.here.browser()
    await Guest(person).pay(await soon(links.get()))
    await soon(world.begun.wait())

    async def finish() -> str:
        world.goes_on.set()
        try:
            return "delivered" if await soon(task) == "made" else "?"
        except ServerRefused:
            return "raises"

    async def renew() -> None:
        payment = (await world.payment()).id
        # Renew the claim as the client would: its renewal is due by the manual clock.
        await world.till.at("runs/once", method="POST", json={**STEP, "payment": payment})

    async def cancel() -> str:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return "cancelled"

    yield Held(world=world, person=person, finish=finish, cancel=cancel, renew=renew)
    await cancel()


@asynccontextmanager
async def _question(world: World) -> AsyncGenerator[Held]:
    asked = await world.till.paid(world.here)
    assert asked["payment"]["status"] == "open"

    async def finish() -> str:
        claimed = await world.till.post(asked["id"], "taken")
        return "delivered" if claimed.status_code == 200 else f"{claimed.status_code}"

    async def cancel() -> str:
        return f"{(await world.till.post(asked['id'], 'cancel')).status_code}"

    person = await world.here.browser()
    yield Held(world=world, person=person, finish=finish, cancel=cancel, renew=_nothing_to_do)


async def _call_left_by_dead_process(world: World, *, is_made: bool) -> tuple[Call, Person]:
    """Return a call whose process died while it held the payment, with or without a result."""
    service, presenter = world.here.service, Holding()
    call = Call(
        service,
        service.identity.caller_of_user("ann"),
        ToolCall(server="shop", tool="report", client="c", arguments="{}"),
        presenter=presenter,
    )

    async def body() -> None:
        call.begin()
        with asking(Verbs(call)):
            await elicit.payment(NINE, WHAT)
        if is_made:
            await call.finish(lambda: '"made"')

    running, person = asyncio.create_task(body()), await world.here.browser()
    await eventually(lambda: presenter.shown)
    assert presenter.shown is not None
    link = service.links.of(presenter.shown.elicitation, now=world.here.clock())
    await Guest(person).pay(link)
    await soon(running)
    world.here.clock.tick(seconds=31)
    return call, person


def _dead_process(*, is_made: bool) -> Holds:
    @asynccontextmanager
    async def held(world: World) -> AsyncGenerator[Held]:
        call, person = await _call_left_by_dead_process(world, is_made=is_made)

        async def finish() -> str:
            """Repeat the same call."""
            presenter = Holding()
            again = Call(world.here.service, call.caller, call.tool, presenter=presenter)
            task = asyncio.create_task(_run(again))
            await eventually(lambda: task.done() or presenter.shown)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                return "asks for a new payment"
            return task.result()

        yield Held(
            world=world, person=person, finish=finish, cancel=_nothing_to_do, renew=_nothing_to_do
        )

    return held


async def _run(call: Call) -> str:
    call.begin()
    try:
        with asking(Verbs(call)):
            await elicit.payment(NINE, WHAT)
    except ElicitError:
        await call.finish()
        return "error"
    except BaseException:
        if not call.is_interrupted:
            raise
        await call.finish()
    else:
        await call.finish(lambda: '"made"')
    await call.delivered()
    return "delivered"


def _asked_again(body: dict[str, Any], *names: str) -> Holds:
    """Return a hold whose question is open again, because its first payment was disputed."""

    @asynccontextmanager
    async def held(world: World) -> AsyncGenerator[Held]:
        first, second = names
        answer, person = (await world.till.ask(body, name=first)).json(), await world.here.browser()
        await Guest(person).pay(answer["url"])
        asked: dict[str, Any] = {}

        async def finish() -> str:
            state = await world.till.read(asked["id"])
            if state["status"] != "accepted":
                return "waits for payment" if state["status"] == "pending" else str(state["status"])
            claimed = await world.till.post(asked["id"], "taken")
            return "delivered" if claimed.status_code == 200 else f"{claimed.status_code}"

        async def cancel() -> str:
            cancelled = await world.till.post(asked["id"], "cancel")
            return "cancelled" if cancelled.status_code == 200 else f"{cancelled.status_code}"

        held = Held(world=world, person=person, finish=finish, cancel=cancel, renew=_nothing_to_do)
        await world.send(claim(await world.payment()))
        await held.sweep()
        for _ in range(2):  # only the second request opens the question again
            asked = (await world.till.ask(body, name=second)).json()
        assert asked["url"], asked
        yield held

    return held


async def _nothing_to_do() -> str:
    return "nothing to cancel"


HOLDS: Mapping[str, Holds] = {
    "a tool call, 2025-11-25": _call(LEGACY, "report"),
    "a tool call, 2026-07-28": _call(MODERN, "report"),
    "a tool that `needs` the payment": _call(LEGACY, "needed"),
    "a tool inside `once`": _call(LEGACY, "ship"),
    "a task, 2025-11-25": task_of(LEGACY),
    "a task, 2026-07-28": task_of(MODERN),
    "a task inside `once`": task_of(LEGACY, "ship"),
    "an `asking` block": _block,
    "a program's run, inside `once`": _program,
    "an API answer that is not yet `taken`": _question,
    "a call whose process died": _dead_process(is_made=False),
    "a result that may have been delivered": _dead_process(is_made=True),
    "a new question for the same payment": _asked_again(PAYMENT, "one", "one"),
    "a new question for a permanent purchase": _asked_again(
        {**PAYMENT, "once": True}, "one", "two"
    ),
}
