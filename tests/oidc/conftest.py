"""The two OpenID providers of these tests: `acme` is honest, and an attacker controls `rival`."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from tests.oidc.env import NO_NODE, NO_PACKAGE, Guest, Missing, Newcomer, OpenIdProvider, install
from tests.support.mcp_server import new_browser


@pytest.fixture(scope="session")
def node() -> str:
    """Install the provider, and return the path of node, which runs the provider."""
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
    """Return the first provider, restarted without sessions and registrations."""
    first_process.configure()
    return first_process


@pytest.fixture
def rival(second_process: OpenIdProvider) -> OpenIdProvider:
    """Return the second provider, restarted without sessions and registrations."""
    second_process.configure()
    return second_process


@pytest.fixture
async def newcomer() -> AsyncIterator[Newcomer]:
    """Provide a function that returns a person with a new browser, who is not signed in."""
    async with AsyncExitStack() as browsers:

        async def make(provider: OpenIdProvider, name: str) -> Guest:
            browser = await browsers.enter_async_context(new_browser())
            return Guest(name, at=provider, browser=browser)

        yield make


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report in one line which tests did not run and why."""
    for reason in (NO_NODE, NO_PACKAGE):
        skipped = terminalreporter.stats.get("skipped", ())
        if count := sum(reason in report.longreprtext for report in skipped):
            terminalreporter.write_line(f"{reason}: {count} OpenID tests not run", yellow=True)
