"""Two instances of one server behind nginx: what holds with one process holds with two."""

from pathlib import Path

import pytest
from mcp import MCPError

from tests.hosts.checks import PROMISES, Promise, Verdict, type_secret
from tests.hosts.instances import instances
from tests.hosts.nginx import NGINX
from tests.support.mcp_server import LEGACY, MODERN, soon, text_of

pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx")
# Where both keep their records; {folder} is the test's own.
STORES = ("sqlite:///{folder}/store.db",)
# What the proxy goes by, and whether the two reach each other.
WAYS = {"by session, apart": (True, False), "in turn, on one machine": (False, True)}
TRIED = ("pages", "host and origin", "identity", "sessions", "resumption", "delivery")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "promise", [each for each in PROMISES if each.name in TRIED], ids=lambda promise: promise.name
)
async def test_a_promise_holds_whichever_instance_a_request_comes_to(
    tmp_path: Path, promise: Promise, way: str, store: str
) -> None:
    address = store.format(folder=tmp_path)
    by_session, together = WAYS[way]
    async with instances(
        tmp_path, store=address, by_session=by_session, on_one_machine=together
    ) as both:
        assert await promise.check(both.served) == Verdict.HOLDS


@pytest.mark.parametrize("store", STORES)
async def test_where_nothing_goes_by_sessions_2026_07_28_needs_nothing_and_a_session_is_unknown(
    tmp_path: Path, store: str
) -> None:
    address = store.format(folder=tmp_path)
    async with (
        instances(tmp_path, store=address, by_session=False) as both,
        both.served.person() as person,
    ):
        at = both.served
        for number in range(4):
            async with at.calls.caller(MODERN, headers=at.key) as caller:
                call = caller.call("order", what=f"tea {number}")
                await type_secret(person, await caller.link())
                assert text_of(await soon(call)).endswith("for 4 letters")
        # What the official client makes of the 404: its call, or its opening, raises.
        with pytest.RaisesGroup(
            pytest.RaisesExc(MCPError, match="Session not found"), flatten_subgroups=True
        ):
            async with at.calls.caller(LEGACY, headers=at.key) as caller:
                for _ in range(4):
                    await soon(caller.client.list_tools())
