"""Fixtures: node, and each of the official clients on each revision that it supports."""

import pytest

from tests.typescript.env import CLIENTS
from tests.typescript.packages import (
    FOR_CLIENTS,
    FOR_CONFORMANCE,
    NO_NODE,
    NO_PACKAGES,
    Missing,
    install,
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "official" in metafunc.fixturenames:
        metafunc.parametrize("official", CLIENTS, ids=str)


@pytest.fixture(scope="session")
def node() -> str:
    """Install the packages, and return the path of a Node.js that runs the clients."""
    return _installed(FOR_CLIENTS)


@pytest.fixture(scope="session")
def newer_node() -> str:
    """Install the packages, and return the path of a Node.js that runs the conformance suite."""
    return _installed(FOR_CONFORMANCE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report in one line which tests did not run and why."""
    skipped = terminalreporter.stats.get("skipped", ())
    for reason in (NO_NODE, NO_PACKAGES):
        if count := sum(reason in report.longreprtext for report in skipped):
            terminalreporter.write_line(f"{reason}: {count} tests not run", yellow=True)


def _installed(oldest: int) -> str:
    try:
        return install(oldest)
    except Missing as missing:
        pytest.skip(str(missing))
