"""The two providers of this folder: one that is ours, and another that could be anybody's."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from tests.oidc.env import NO_NODE, NO_PACKAGE, Guest, Missing, Newcomer, OpenIdProvider, install
from tests.support.mcp_server import new_browser


@pytest.fixture(scope="session")
def node() -> str:
    """The node that runs the provider, which is installed."""
    try:
        return install()
    except Missing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def first_process(node: str) -> Iterator[OpenIdProvider]:
    with OpenIdProvider(node) as provider:
        yield provider


@pytest.fixture(scope="session")
def second_process(node: str) -> Iterator[OpenIdProvider]:
    with OpenIdProvider(node) as provider:
        yield provider


@pytest.fixture
def acme(first_process: OpenIdProvider) -> OpenIdProvider:
    """A provider that nobody has signed in at and nobody is registered with."""
    first_process.configure()
    return first_process


@pytest.fixture
def rival(second_process: OpenIdProvider) -> OpenIdProvider:
    """Another one."""
    second_process.configure()
    return second_process


@pytest.fixture
async def newcomer() -> AsyncIterator[Newcomer]:
    """Somebody with a fresh browser who is not signed in, by their name."""
    async with AsyncExitStack() as browsers:

        async def make(provider: OpenIdProvider, name: str) -> Guest:
            browser = await browsers.enter_async_context(new_browser())
            return Guest(name, at=provider, browser=browser)

        yield make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what did not run and why."""
    for reason in (NO_NODE, NO_PACKAGE):
        skipped = terminalreporter.stats.get("skipped", ())
        if count := sum(reason in report.longreprtext for report in skipped):
            terminalreporter.write_line(f"{reason}: {count} OpenID tests not run", yellow=True)
