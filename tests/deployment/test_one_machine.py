"""A single machine: the systemd unit, and nginx or Caddy in front of `elicit serve`."""

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.deployment.fronts import FRONTS, FrontedHost
from tests.deployment.tools import DEPLOY, found, run, run_packaged
from tests.hosts.checks import PROMISES, Promise, Verdict
from tests.hosts.host import Served

UNIT = DEPLOY / "systemd" / "elicit.service"
LINK = "/e/a-token-of-a-link?code=4711&state=4712"
# These promises cannot be tested behind a proxy: the proxy cuts off slow senders itself, and the
# server never treats a forwarded request as local.
FRONTS_OWN = {"local", "slow senders"}


@pytest.fixture(name="unit")
def _unit(tmp_path: Path) -> str:
    """Return the unit with the path of an installed program."""
    program = Path(sys.prefix) / "bin" / "elicit"
    text = UNIT.read_text("utf-8")
    assert "/opt/elicit/venv/bin/elicit" in text
    (tmp_path / UNIT.name).write_text(text.replace("/opt/elicit/venv/bin/elicit", str(program)))
    return str(tmp_path / UNIT.name)


async def test_systemd_accepts_the_unit(unit: str) -> None:
    verified = await run(found("systemd-analyze"), "verify", unit)
    assert (verified.status, verified.err) == (0, "")


@pytest.mark.parametrize("name", ["elicit-backup.service", "elicit-backup.timer"])
async def test_systemd_accepts_the_backup_units(tmp_path: Path, name: str) -> None:
    # finding: XV8
    for each in ("elicit-backup.service", "elicit-backup.timer"):
        (tmp_path / each).write_text((DEPLOY / "systemd" / each).read_text("utf-8"))
    verified = await run(found("systemd-analyze"), "verify", str(tmp_path / name))
    assert (verified.status, verified.err) == (0, "")


async def test_systemd_unit_is_sandboxed(unit: str) -> None:
    command = ("security", "--offline=true", "--threshold=15", "--no-pager", unit)
    judged = await run(found("systemd-analyze"), *command)
    assert judged.status == 0, judged.out[-400:]


async def test_caddyfile_is_formatted() -> None:
    file = DEPLOY / "caddy" / "Caddyfile"
    formatted = await run_packaged("caddy", "fmt", str(file))
    assert formatted.out == file.read_text("utf-8")


@pytest.fixture(scope="module", params=FRONTS, ids=lambda host: host.name)
def host(request: pytest.FixtureRequest) -> FrontedHost:
    front: FrontedHost = request.param
    return front


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def at(host: FrontedHost, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with host.served(tmp_path_factory.mktemp("front")) as served:
        yield served


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "promise",
    [each for each in PROMISES if not each.ends and each.name not in FRONTS_OWN],
    ids=lambda promise: promise.name,
)
async def test_promise_holds_behind_proxy(at: Served, promise: Promise) -> None:
    # parity: F14
    assert await promise.check(at) is Verdict.HOLDS


async def test_held_calls_are_answered_through_proxy_when_server_stops(
    host: FrontedHost, tmp_path: Path
) -> None:
    async with host.served(tmp_path) as served:
        (drain,) = [each for each in PROMISES if each.ends]
        assert await drain.check(served) is Verdict.HOLDS
        async with served.browser() as browser:
            answer = await browser.get(f"{served.url}{LINK}")
            assert answer.status_code == 502
    # The log of a failed request has no link either.
    assert "a-token-of" not in served.proxy_log()
    assert not re.search("471[12]", served.proxy_log())


@pytest.mark.asyncio(loop_scope="module")
async def test_forged_forwarding_headers_are_not_passed_to_server(at: Served) -> None:
    forged = {"x-forwarded-for": "no address at all", "x-forwarded-proto": "ftp"}
    async with at.browser() as browser:
        answer = await browser.get(f"{at.url}/live", headers=forged)
    assert answer.status_code == 200  # the server would refuse a forwarded value


@pytest.mark.asyncio(loop_scope="module")
async def test_proxies_do_not_compress_pages(at: Served) -> None:
    async with at.browser() as browser:
        page = await browser.get(f"{at.url}/", headers={"accept-encoding": "gzip, zstd, br"})
    assert page.headers["content-type"].startswith("text/html")
    assert "content-encoding" not in page.headers
