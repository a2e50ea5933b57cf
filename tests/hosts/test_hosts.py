"""Check each promise on each host, and compare the verdict with the table in tests.hosts.table."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio

from tests.hosts.checks import PROMISES, Promise
from tests.hosts.host import Host, Served
from tests.hosts.nginx import NGINX
from tests.hosts.table import HOSTS, expected

pytestmark = pytest.mark.asyncio(loop_scope="module")
Shared: TypeAlias = Callable[[], Awaitable[Served]]


@pytest.fixture(scope="module", params=HOSTS, ids=lambda host: host.name)
def host(request: pytest.FixtureRequest) -> Host:
    host: Host = request.param
    if getattr(host, "proxy", None) and NGINX is None:
        pytest.skip("needs nginx")
    return host


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(host: Host, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    """Provide a function that starts the host once, for all promises that can share it."""
    started = list[Served]()
    async with AsyncExitStack() as stack:

        async def serve() -> Served:
            if not started:
                served = host.served(tmp_path_factory.mktemp("host"))
                started.append(await stack.enter_async_context(served))
            return started[0]

        yield serve


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
async def test_host_gives_expected_verdict_for_promise(
    host: Host, shared: Shared, promise: Promise, tmp_path: Path
) -> None:
    if promise.needs_own_host:
        async with host.served(tmp_path, extra=promise.settings) as served:
            verdict = await promise.check(served)
    else:
        verdict = await promise.check(await shared())
    assert verdict == expected(host, promise.name)
