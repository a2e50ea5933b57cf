"""Two instances of one server behind nginx keep the promises of a single process."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from mcp import MCPError

from tests.hosts.checks import PROMISES, Promise, Verdict, type_secret
from tests.hosts.host import Served
from tests.hosts.instances import NAMES, instances
from tests.hosts.nginx import NGINX
from tests.support.mcp_server import LEGACY, MODERN, Caller, soon, text_of
from tests.support.shared_stores import STORES

pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="needs nginx"),
    pytest.mark.asyncio(loop_scope="module"),
]
# Two flags: the proxy routes by session, and the instances can reach each other.
WAYS = {
    "by session, apart": (True, False),
    "in turn, on one machine": (False, True),
    "in turn, apart": (False, False),
}
TRIED = ("pages", "host and origin", "identity", "sessions", "resumption", "delivery")


@pytest.fixture(scope="module", name="store", params=STORES)
def _store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", name="way")
def _way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(
    way: str, store: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    """Provide both instances, for every test with this routing and store."""
    folder = tmp_path_factory.mktemp("instances")
    by_session, together = WAYS[way]
    async with (
        STORES[store](folder) as address,
        instances(folder, store=address, by_session=by_session, on_one_machine=together) as both,
    ):
        yield both.served


@pytest.mark.parametrize("way", [*WAYS][:2], indirect=True, scope="module")
@pytest.mark.parametrize(
    "promise", [each for each in PROMISES if each.name in TRIED], ids=lambda promise: promise.name
)
async def test_promise_holds_on_every_instance(at: Served, promise: Promise) -> None:
    assert await promise.check(at) == Verdict.HOLDS


@pytest.mark.parametrize("way", [*WAYS][2:], indirect=True, scope="module")
async def test_without_session_routing_newer_revision_works_and_older_loses_session(
    at: Served,
) -> None:
    async with at.person() as person:
        for number in range(4):
            async with at.calls.caller(MODERN, headers=at.key) as caller:
                call = caller.call("order", what=f"tea {number}")
                await type_secret(person, await caller.link())
                assert text_of(await soon(call)).endswith("for 4 letters")
        # The official client raises at the 404, in its call or when it connects.
        with pytest.RaisesGroup(
            pytest.RaisesExc(MCPError, match="Session not found"), flatten_subgroups=True
        ):
            async with at.calls.caller(LEGACY, headers=at.key) as caller:
                for _ in range(4):
                    await soon(caller.client.list_tools())


async def test_python_client_raises_on_404_and_new_session_joins_question(
    tmp_path: Path,
) -> None:
    async with (
        STORES["sqlite"](tmp_path) as address,
        instances(tmp_path, store=address) as both,
        both.served.person() as person,
        AsyncExitStack() as clients,
    ):

        async def connected() -> Caller:
            return await clients.enter_async_context(
                both.served.calls.caller(LEGACY, headers=both.served.key)
            )

        first = await connected()
        # Otherwise the client requests the output schema after the result, in its lost session.
        await first.client.list_tools()
        call = first.call("order", what="tea")
        link = await first.link()
        for name in NAMES:
            await both.restart(name)
        assert "call this tool again" in text_of(await soon(call))
        for _ in range(2):  # the client starts no new session by itself, now or later
            with pytest.raises(MCPError, match="Session not found"):
                await soon(first.call("order", what="tea"))
        second = await connected()
        call = second.call("order", what="tea")
        await second.link()
        await type_secret(person, link)
        assert text_of(await soon(call)).endswith("for 4 letters")
