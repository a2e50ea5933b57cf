"""A store that is full, locked or unreachable: the model reads what to do, and `/ready` fails."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from mcp.shared.exceptions import MCPError

from flows import elicit
from flows.errors import StoreUnavailable
from tests.support.clock import Clock
from tests.support.hand_loop import HandLoop
from tests.support.mcp_sandbox import Guest
from tests.support.mcp_server import (
    URL,
    caller_of,
    eventually,
    new_server,
    server_env,
    soon,
    text_of,
)
from tests.support.shop_env import AwayStore, FrailStore
from webapp.elicitations.readiness import Readiness
from webapp.stores import open_store

LOGIN = "https://example.org/login"
FULL = "the store /srv/secret/elicit.db is not usable: database or disk is full"


def asking_for_a_name(server: Any) -> list[str]:
    begun: list[str] = []

    @server.tool()
    async def greet() -> str:
        begun.append("greet")
        return f"hello {dict(await elicit.url('Sign in', LOGIN))}"

    return begun


@pytest.mark.every_way
async def test_full_store_error_asks_the_model_to_try_again(server, revision, caplog):
    # finding: R6
    asking_for_a_name(server)
    store = FrailStore()
    async with caller_of(server, revision, store=store) as (env, caller):
        store.troubles.append(FULL)
        refused = await caller.result("greet")
        assert refused.is_error
        assert "Try again in a minute" in text_of(refused)
        assert "[STORE_UNAVAILABLE]" in text_of(refused)
        assert "/srv/secret" not in refused.model_dump_json()
        assert (refused.meta or {})["jsonrpcCode"] == -32000
        assert FULL in [vars(each).get("why") for each in caplog.records]
        store.troubles.clear()
        again = caller.call("greet")
        await env.complete(await caller.link(), {"name": "ann"})
        assert text_of(await soon(again)) == "hello {'name': 'ann'}"


@pytest.mark.every_way
async def test_store_failure_at_the_end_of_a_call_returns_store_unavailable(server, revision):
    store = FrailStore()

    @server.tool()
    async def greet() -> str:
        answer = dict(await elicit.url("Sign in", LOGIN))
        store.troubles.append(FULL)
        return f"hello {answer}"

    async with caller_of(server, revision, store=store) as (env, caller):
        assert "[STORE_UNAVAILABLE]" in await env.text_after_visit(caller, "greet", {})
        store.troubles.clear()


async def test_delivery_of_every_kind_is_recorded_after_the_store_recovers(server):
    # finding: XV1
    @server.tool()
    @elicit.gate()
    async def unlock() -> str:
        key = await elicit.secret("The key")
        named = await elicit.secret("The key", name="key")
        await elicit.once("unlock", _unlocked)
        return f"unlocked with {len(key) + len(named)}"

    store = AwayStore()
    async with caller_of(server, "legacy", store=store, declares=URL) as (env, caller):
        call = caller.call("unlock")
        guest = Guest(await env.person())
        await guest.person.press(await caller.link())
        for _ in range(2):
            await guest.type(await caller.link(), value="k1")
        assert text_of(await soon(call)) == "unlocked with 4"
        await eventually(lambda: env.service.running_tools.is_storing_result)
        assert [one.delivered_at for one in await env.elicitations()] == [None] * 3
        store.goes[0] = False
        store.troubles.clear()
        await env.service.running_tools.renew()
        await eventually(lambda: not env.service.running_tools.is_storing_result)
        asked = await env.elicitations()
        assert all(one.delivered_at and one.content is None for one in asked)


async def _unlocked(_key: str) -> str:
    return "unlocked"


@pytest.mark.every_way
async def test_store_failure_while_listing_tools_returns_an_error_code(server, revision):
    class Unreadable(FrailStore):
        async def read(self, owner: str, kind: str, id: str) -> Any:
            await self.check()
            return await super().read(owner, kind, id)

    @server.tool()
    @elicit.needs(elicit.secret("The key", name="key"), hide=True)
    async def guarded() -> str:
        return "done"

    store = Unreadable()
    async with caller_of(server, revision, store=store) as (_, caller):
        store.troubles.append(FULL)
        with pytest.raises(MCPError, match="Try again in a minute") as refused:
            await caller.client.session.list_tools()
        assert refused.value.error.code == -32000
        store.troubles.clear()


@pytest.mark.parametrize("path", ["/ready", "/health"])
async def test_unwritable_store_is_not_ready_but_live(path):
    # finding: R6
    from mcp.server.mcpserver import MCPServer

    store = FrailStore()
    async with (
        server_env(MCPServer("shop"), store=store) as env,
        httpx.AsyncClient(base_url=env.url) as anybody,
    ):
        store.troubles.append(FULL)
        answer = await anybody.get(path)
        assert (answer.status_code, answer.json()) == (503, {"status": "unavailable"})
        assert "/srv/secret" not in answer.text
        probed = await anybody.head(path)
        assert (probed.status_code, probed.content) == (503, b"")
        assert (await anybody.get("/live")).json() == {"status": "ok"}
        assert (await anybody.head("/live")).status_code == 200
        store.troubles.clear()


async def test_deleted_store_file_makes_the_server_unready_immediately(tmp_path):
    # finding: R6
    from mcp.server.mcpserver import MCPServer

    path = tmp_path / "store.db"
    server = MCPServer("shop")
    begun = asking_for_a_name(server)
    async with (
        server_env(server, store=f"sqlite:///{path}") as env,
        httpx.AsyncClient(base_url=env.url) as anybody,
        env.caller("legacy") as caller,
    ):
        path.rename(tmp_path / "aside.db")
        assert (await anybody.get("/ready")).status_code == 503
        assert "[STORE_UNAVAILABLE]" in await caller.text("greet")
        page = await anybody.get("/connections")
        assert (page.status_code, page.headers["retry-after"]) == (503, "30")
        assert "nothing is lost" in page.text
        (tmp_path / "aside.db").rename(path)
        assert await env.elicitations() == []
    assert begun == ["greet"], "the tool starts, and its question raises the error"


@pytest.mark.parametrize("address", ["memory:", "sqlite"])
async def test_fenced_store_is_not_ready_until_the_fence_is_removed(tmp_path, caplog, address):
    url = f"sqlite:///{tmp_path / 'store.db'}" if address == "sqlite" else address
    store, seconds = await open_store(url), [100.0]
    readiness = Readiness(store, now=lambda: seconds[0])
    assert await readiness.is_ready()
    await store.fence("it has moved")
    seconds[0] += 1.0
    assert not await readiness.is_ready()
    assert "it has moved" in vars(caplog.records[-1])["why"]
    await store.fence(None)
    seconds[0] += 1.0
    assert await readiness.is_ready()
    await store.aclose()


class HeldStore(FrailStore):
    """A store whose checks last `seconds`, and raise `why` if set."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.why: str | None = None

    async def check(self) -> None:
        await asyncio.sleep(self.seconds)  # on a manual clock
        if self.why is not None:
            raise StoreUnavailable(self.why)


def on_a_hand_clock(steps: Callable[[HeldStore, Readiness], Awaitable[None]]) -> None:
    async def run() -> None:
        store = HeldStore()
        readiness = Readiness(store)
        await steps(store, readiness)
        await readiness.aclose()

    with asyncio.Runner(loop_factory=lambda: HandLoop(Clock())) as runner:
        runner.run(run())


async def probed(readiness: Readiness, *, seconds: int) -> list[bool]:
    """Return the results of readiness checks, one every 5 seconds, as a proxy makes them.

    Each check has to return within about 2 seconds.
    """
    answers, now = list[bool](), asyncio.get_running_loop().time
    for _ in range(0, seconds, 5):
        began = now()
        answers.append(await readiness.is_ready())
        assert now() - began < 2.1
        await asyncio.sleep(began + 5 - now())  # on a manual clock
    return answers


def test_slow_store_stays_ready() -> None:
    # finding: XV6
    async def steps(store: HeldStore, readiness: Readiness) -> None:
        assert await readiness.is_ready()
        store.seconds = 12
        assert await probed(readiness, seconds=300) == [True] * 60

    on_a_hand_clock(steps)


def test_unresponsive_store_is_not_ready_thirty_seconds_after_its_last_write(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # finding: XV6
    async def steps(store: HeldStore, readiness: Readiness) -> None:
        assert await readiness.is_ready()
        store.seconds, store.why = 10, "the store did not answer within 10 seconds"
        assert await probed(readiness, seconds=45) == [*[True] * 6, *[False] * 3]
        store.seconds, store.why = 0, None
        assert (await probed(readiness, seconds=30))[-1]

    on_a_hand_clock(steps)
    assert [each.message for each in caplog.records][:1] == ["store.slow"]
    assert "store.unavailable" in [each.message for each in caplog.records]


async def test_unexpected_exception_in_the_check_is_not_hidden_by_the_previous_result() -> None:
    class Broken(FrailStore):
        async def check(self) -> None:
            if self.troubles:
                raise ZeroDivisionError

    store, seconds = Broken(), [100.0]
    readiness = Readiness(store, now=lambda: seconds[0])
    assert await readiness.is_ready()
    store.troubles.append(FULL)
    for _ in range(2):
        seconds[0] += 1.0
        with pytest.raises(ZeroDivisionError):
            await readiness.is_ready()


def test_refusing_store_is_not_ready_immediately() -> None:
    # finding: XV6
    async def steps(store: HeldStore, readiness: Readiness) -> None:
        assert await readiness.is_ready()
        store.why = FULL
        await asyncio.sleep(1)  # on a manual clock: a check within one second writes nothing
        assert await probed(readiness, seconds=10) == [False, False]

    on_a_hand_clock(steps)


def test_never_responding_store_is_not_ready(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def steps(store: HeldStore, readiness: Readiness) -> None:
        store.seconds = 60
        assert await probed(readiness, seconds=25) == [False] * 5

    on_a_hand_clock(steps)
    (line,) = caplog.records
    assert "within 20 seconds" in vars(line)["why"]


async def test_draining_process_is_not_ready_but_live():
    server = new_server("mcp")
    async with server_env(server) as env, httpx.AsyncClient(base_url=env.url) as anybody:
        assert (await anybody.get("/ready")).json() == {"status": "ok"}
        await env.service.drain(within=timedelta())
        answer = await anybody.get("/ready")
        assert (answer.status_code, answer.json()) == (503, {"status": "draining"})
        assert (await anybody.get("/live")).status_code == 200


async def test_readiness_checks_the_store_at_most_once_per_second(caplog):
    class Counting(FrailStore):
        looks = 0

        async def check(self) -> None:
            self.looks += 1
            await super().check()

    caplog.set_level(logging.ERROR)
    store, seconds = Counting(), [100.0]
    readiness = Readiness(store, now=lambda: seconds[0])
    assert [await readiness.is_ready() for _ in range(3)] == [True] * 3
    store.troubles.append(FULL)
    assert await readiness.is_ready()
    assert store.looks == 1
    seconds[0] += 1.0
    assert not await readiness.is_ready()
    assert [vars(each)["why"] for each in caplog.records] == [FULL]
    store.troubles.clear()
    seconds[0] += 1.0
    assert await readiness.is_ready()
    assert store.looks == 3


async def test_store_unavailable_has_an_error_code_and_hides_its_reason():
    error = StoreUnavailable(FULL)
    assert (error.name, error.jsonrpc_code, error.http_status) == ("STORE_UNAVAILABLE", -32000, 503)
    assert (FULL in str(error), error.why) == (False, FULL)
