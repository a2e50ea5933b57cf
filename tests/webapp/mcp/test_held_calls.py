"""The time that the server keeps a call open: shorter than clients' timeouts, and resumable."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from flows import elicit
from tests.support.clock import Clock
from tests.support.mcp_server import (
    BOTH,
    FORM,
    LEGACY,
    Caller,
    ServerEnv,
    attached,
    eventually,
    link_in,
    new_server,
    soon,
    text_of,
)
from tests.support.service_env import process
from webapp.calls.clients import McpClients
from webapp.http.exchange import StreamConnection
from webapp.identity.identity import Caller as Identified
from webapp.limits import CallLimits
from webapp.settings.quotas import PolicySettings
from webapp.stores.sqlite import MemoryStore

LOGIN = "https://example.org/login"
PATIENT = PolicySettings(patient_clients=frozenset({"patient"}))


def new_asking_server(library: str = "mcp") -> Any:
    server = new_server(library)

    @server.tool()
    async def sign_in() -> str:
        return str(dict(await elicit.url("Sign in", LOGIN)))

    @server.tool()
    async def name() -> str:
        return await elicit.form("Your name?")

    return server


@asynccontextmanager
async def held(server: Any, **options: Any) -> AsyncGenerator[tuple[ServerEnv, Clock, Caller]]:
    """Yield a server that its library serves, the manual clock of its waits, and a client."""
    clock = Clock()
    async with (
        attached(server, clock=clock, policies=PATIENT) as env,
        env.caller(LEGACY, **options) as caller,
    ):
        yield env, clock, caller


async def pass_time(env: ServerEnv, clock: Clock, *, seconds: float) -> None:
    """Advance the clock and let the waiting call see the new time."""
    await env.pending()
    clock.tick(seconds=seconds)
    env.service.elicitations.waiters.wake_all()


def is_still_waiting(result: Any) -> bool:
    return text_of(result).startswith("Still waiting for the person.")


async def test_waiting_call_with_a_link_is_answered_after_50_seconds(library):
    # defect: lynq limit of 60 seconds
    # defect: tesseron limit of 60 seconds
    # finding: R4
    async with held(new_asking_server(library)) as (env, clock, caller):
        call = caller.call("sign_in")
        link = await caller.link()
        await pass_time(env, clock, seconds=49)
        assert not call.done()
        await pass_time(env, clock, seconds=1)
        result = await soon(call)
        assert is_still_waiting(result)
        assert "call this tool again" in text_of(result)
        assert env.id_of(link_in(result)) == env.id_of(link)
        for _ in range(3):
            again = caller.call("sign_in")
            await pass_time(env, clock, seconds=50)
            assert is_still_waiting(await soon(again))
        last = caller.call("sign_in")
        await env.pending()
        await env.complete(link, {"name": "ann"})
        assert "ann" in text_of(await soon(last))
        assert not caller.has_links_left, "a question accepted in this session is not asked again"
        assert caller.completed == [env.id_of(link)]


async def link_of_a_held_call(env: ServerEnv, clock: Clock, caller: Caller) -> str:
    """Return the link of a call that was answered with "still waiting"."""
    call = caller.call("sign_in")
    link = await caller.link()
    await pass_time(env, clock, seconds=50)
    assert is_still_waiting(await soon(call))
    return link


async def test_answer_between_two_calls_is_reported_by_the_next_call(library):
    # finding: R4
    async with held(new_asking_server(library)) as (env, clock, caller):
        link = await link_of_a_held_call(env, clock, caller)
        await env.complete(link, {"name": "ann"})
        assert "ann" in await caller.text("sign_in")
        assert caller.completed == [env.id_of(link)]
        assert not caller.has_links_left


async def test_accepted_link_is_not_shown_again_if_two_calls_continue(library):
    # finding: R4
    async with held(new_asking_server(library)) as (env, clock, caller):
        link = await link_of_a_held_call(env, clock, caller)
        older = caller.call("sign_in")
        for _ in range(2):
            await eventually(lambda: len(env.service.elicitations.waiters))
            newer = caller.call("sign_in")
            assert "Another call is waiting" in text_of(await soon(older))
            older = newer
        assert not caller.has_links_left
        await env.complete(link, {"name": "ann"})
        assert "ann" in text_of(await soon(older))


async def test_another_session_gets_the_link_again(library):
    # finding: R4
    server, clock = new_asking_server(library), Clock()
    async with attached(server, clock=clock, policies=PATIENT) as env:
        async with env.caller(LEGACY) as caller:
            link = await link_of_a_held_call(env, clock, caller)
        async with env.caller(LEGACY) as other:
            last = other.call("sign_in")
            assert env.id_of(await other.link()) == env.id_of(link)
            await env.complete(link)
            await soon(last)


async def test_decline_between_two_calls_ends_the_question(library):
    # finding: R4
    slow, server = Slow(), new_asking_server(library)
    async with held(server, declares=BOTH, slow=slow.answer) as (env, clock, caller):
        call = caller.call("sign_in")
        await slow.was_asked(1)
        await pass_time(env, clock, seconds=50)
        assert is_still_waiting(await soon(call))
        slow.answers.put_nowait(("decline", None))
        await slow.has_answered(1)
        again = await caller.result("sign_in")
        assert again.is_error
        assert "declined" in text_of(again)
        assert slow.asked == 1


@pytest.mark.parametrize("when", ["between two calls", "while the next one waits"])
async def test_slowly_filled_form_is_shown_once(library, when):
    # finding: R4
    slow, server = Slow(), new_asking_server(library)
    async with held(server, declares=FORM, slow=slow.answer) as (env, clock, caller):
        call = caller.call("name")
        await slow.was_asked(1)
        await pass_time(env, clock, seconds=50)
        assert is_still_waiting(await soon(call))
        if when.startswith("between"):
            slow.answers.put_nowait(("accept", {"response": "Ann"}))
            await slow.has_answered(1)
        last = caller.call("name")
        if when.startswith("while"):
            await env.pending()
            slow.answers.put_nowait(("accept", {"response": "Ann"}))
        assert text_of(await soon(last)) == "Ann"
        assert slow.asked == 1


async def test_form_dismissed_between_two_calls_is_shown_again(library):
    # finding: R4
    slow, server = Slow(), new_asking_server(library)
    async with held(server, declares=FORM, slow=slow.answer) as (env, clock, caller):
        call = caller.call("name")
        await slow.was_asked(1)
        await pass_time(env, clock, seconds=50)
        await soon(call)
        slow.answers.put_nowait(("cancel", None))
        await slow.has_answered(1)
        last = caller.call("name")
        await slow.was_asked(2)
        slow.answers.put_nowait(("accept", {"response": "Ann"}))
        assert text_of(await soon(last)) == "Ann"


@pytest.mark.parametrize("way", ["named", "seen"])
async def test_patient_client_is_held_longer(library, way):
    # finding: R4
    name = "patient" if way == "named" else "mcp"
    async with held(new_asking_server(library), name=name) as (env, clock, caller):
        if way == "seen":
            see_it_wait(env.service.clients, clock, env, name, seconds=60)
        call = caller.call("sign_in")
        link = await caller.link()
        for _ in range(4):
            await pass_time(env, clock, seconds=60)
        assert not call.done()
        await env.complete(link, {"name": "ann"})
        assert "ann" in text_of(await soon(call))


def see_it_wait(
    clients: McpClients, clock: Clock, env: ServerEnv, client: str, *, seconds: float
) -> None:
    connection = StreamConnection()
    caller = Identified(owner=env.service.identity.local_owner, client=client)
    watched = clients.patience.watch(caller, connection)
    clock.tick(seconds=seconds)
    watched.has_result()
    connection.end(is_delivered=True)


async def test_client_is_patient_only_if_still_connected_after_a_minute():
    # finding: R4
    clock = Clock()
    async with process(MemoryStore(), clock) as service:
        clients = service.clients
        for owner, seconds, arrives in (
            ("ann", 59, True),
            ("bob", 60, False),
            ("eve", 60, True),
            ("who gave up", 61, True),
        ):
            connection = StreamConnection()
            watched = clients.patience.watch(Identified(owner=owner, client="c"), connection)
            clock.tick(seconds=seconds)
            if owner != "who gave up":  # this caller's call got an error, not a result
                watched.has_result()
            connection.end(is_delivered=arrives)
        seen = {
            who: clients.patience.is_patient(Identified(owner=who, client="c"), name="c")
            for who in ("ann", "bob", "eve", "who gave up")
        }
        assert seen == {"ann": False, "bob": False, "eve": True, "who gave up": False}
        other = Identified(owner="eve", client="another")
        assert not clients.patience.is_patient(other, name="another")


async def test_client_cancelling_its_call_is_not_counted_as_patient(library):
    # finding: R4
    server, clock = new_asking_server(library), Clock()
    async with attached(server, clock=clock, policies=PATIENT) as env:
        caller = await env.cut_off_caller(LEGACY)
        call = caller.call("sign_in")
        (asked,) = await env.pending()
        clock.tick(seconds=61)
        await caller.cancel()
        await soon(call)
        await eventually(lambda: not len(env.service.running_tools))
        me = Identified(owner=asked.owner, client=asked.request.client or "")
        assert not env.service.clients.patience.is_patient(me, name="c")


async def test_waiting_call_ends_in_time_after_a_clock_change(library):
    # finding: H2
    async with held(new_asking_server(library)) as (env, clock, caller):
        call = caller.call("sign_in")
        link = await caller.link()
        await pass_time(env, clock, seconds=40)
        clock.set(hours=-2)
        await pass_time(env, clock, seconds=9)
        assert not call.done()
        await pass_time(env, clock, seconds=1)
        assert is_still_waiting(await soon(call))
        # The clock is corrected: `last` must not count as a call that waited for two hours.
        last = caller.call("sign_in")
        await env.pending()
        clock.set(hours=2)
        await env.complete(link, {"name": "ann"})
        assert "ann" in text_of(await soon(last))
        me = Identified(owner=env.service.identity.local_owner, client="mcp")
        assert not env.service.clients.patience.is_patient(me, name="c")


@pytest.mark.parametrize("hours", [0, -2])
async def test_call_waiting_for_another_calls_tool_is_answered_in_time(server, hours):
    # finding: R4
    # finding: H2
    gate, began = asyncio.Event(), asyncio.Event()

    @server.tool()
    async def work() -> str:
        await elicit.url("Sign in", LOGIN)
        began.set()
        await gate.wait()
        return "worked"

    async with held(server) as (env, clock, caller):
        call = caller.call("work")
        await env.complete(await caller.link())
        await soon(began.wait())
        waiters = env.service.elicitations.waiters
        before = len(waiters)
        again = caller.call("work")
        await eventually(lambda: len(waiters) > before)
        clock.set(hours=hours)
        for _ in range(2):
            clock.tick(seconds=25)
            await env.service.running_tools.renew()

        def is_answered() -> bool:
            waiters.wake_all()
            return again.done()

        await eventually(is_answered)
        assert "call again" in text_of(await soon(again))
        gate.set()
        assert text_of(await soon(call)) == "worked"


def test_all_default_wait_limits_are_below_55_seconds():
    # finding: R4
    limits = CallLimits()
    assert limits.retry < limits.call < timedelta(seconds=55)
    assert limits.link < limits.call


class Slow:
    """A person who answers the client's form only when the test says so."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self.asked = 0
        self.answered = 0

    async def answer(self) -> tuple[str, Any]:
        self.asked += 1
        action, content = await self.answers.get()
        self.answered += 1
        return action, content

    async def was_asked(self, times: int) -> None:
        await eventually(lambda: self.asked == times)

    async def has_answered(self, times: int) -> None:
        """Wait until the server has received the answers."""
        await eventually(lambda: self.answered == times)
        for _ in range(200):
            await asyncio.sleep(0)


@pytest.mark.parametrize("declares", [None, FORM], ids=["nothing", "forms"])
async def test_client_that_gave_up_after_five_seconds_is_answered_sooner(library, declares):
    # finding: XC7
    async with held(new_asking_server(library), declares=declares) as (env, clock, caller):
        await caller.result("sign_in")  # the link
        given_up = caller.call("sign_in")
        await env.pending()
        clock.tick(seconds=5)
        given_up.cancel()  # the client's own timeout
        await eventually(lambda: not len(env.service.running_tools))
        again = caller.call("sign_in")
        await env.pending()
        clock.tick(seconds=4)
        env.service.elicitations.waiters.wake_all()
        assert link_in(await soon(again))


async def test_client_waiting_longer_later_is_held_for_the_full_limit(library):
    # finding: XC7
    async with held(new_asking_server(library), declares=None) as (env, clock, _):
        me = Identified(owner="ann", client="a client")
        clients, limit = env.service.clients, timedelta(seconds=25)
        first, connection = clients.patience.watch(me, None), StreamConnection()
        clock.tick(seconds=5)
        first.gave_up()
        assert clients.patience.limit_for(me, limit) == timedelta(seconds=4)
        longer = clients.patience.watch(me, connection)
        clock.tick(seconds=10)
        longer.has_result()
        connection.end(is_delivered=True)
        assert clients.patience.limit_for(me, limit) == limit


async def test_client_closing_its_stream_after_the_result_has_not_given_up(library):
    async with held(new_asking_server(library), declares=None) as (env, clock, _):
        me = Identified(owner="ann", client="a client")
        patience, limit = env.service.clients.patience, timedelta(seconds=25)
        connection = StreamConnection()
        watched = patience.watch(me, connection)
        clock.tick(minutes=1)
        watched.has_result()
        connection.pieces += 1  # the result, without the last chunk of the response
        connection.lose()
        assert patience.limit_for(me, limit) == limit
        assert patience.is_patient(me, name="a client")


async def test_client_closing_its_stream_before_the_result_was_sent_is_not_patient(library):
    async with held(new_asking_server(library), declares=None) as (env, clock, _):
        me = Identified(owner="ann", client="a client")
        patience, connection = env.service.clients.patience, StreamConnection()
        watched = patience.watch(me, connection)
        clock.tick(minutes=1)
        watched.has_result()
        connection.lose()
        assert not patience.is_patient(me, name="a client")


async def test_immediate_disconnect_does_not_change_the_wait_limit(library):
    # finding: XC7
    async with held(new_asking_server(library), declares=None) as (env, _, __):
        me = Identified(owner="ann", client="a client")
        env.service.clients.patience.watch(me, None).gave_up()
        limit = timedelta(seconds=25)
        assert env.service.clients.patience.limit_for(me, limit) == limit
