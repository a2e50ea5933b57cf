"""Check each promise on each host, and compare the verdict with the table in tests.hosts.table."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.hosts.checks import PROMISES, Promise
from tests.hosts.host import Host, Served
from tests.hosts.nginx import NGINX
from tests.hosts.table import HOSTS, expected

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module", params=HOSTS, ids=lambda host: host.name)
def host(request: pytest.FixtureRequest) -> Host:
    host: Host = request.param
    if getattr(host, "proxy", None) and NGINX is None:
        pytest.skip("needs nginx")
    return host


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(host: Host, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with host.served(tmp_path_factory.mktemp("host")) as served:
        yield served


@pytest.mark.parametrize(
    "promise",
    [each for each in PROMISES if not each.needs_own_host],
    ids=lambda promise: promise.name,
)
async def test_host_gives_expected_verdict_for_promise(
    host: Host, at: Served, promise: Promise
) -> None:
    assert await promise.check(at) == expected(host, promise.name)


@pytest.mark.parametrize(
    "promise",
    [each for each in PROMISES if each.needs_own_host],
    ids=lambda promise: promise.name,
)
async def test_separate_host_gives_expected_verdict_for_promise(
    host: Host, promise: Promise, tmp_path: Path
) -> None:
    async with host.served(tmp_path, extra=promise.settings) as served:
        assert await promise.check(served) == expected(host, promise.name)
