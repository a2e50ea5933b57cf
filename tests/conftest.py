"""Plumbing of the test run: where the browser is, and that nothing is skipped unnoticed.

A skip is a gap that nobody sees. Where everything must run, REQUIRE_ALL_TESTS=1 makes any skip
fail the run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# How long one example takes says more of the machine than of what is tested. What one run has found
# is kept from the next: it prints how to find it again.
settings.register_profile("house", deadline=None, database=None, print_blob=True)
settings.load_profile("house")

pytest_plugins = ("tests.support.leaks",)

# What starts processes of ours, a browser or a client of another language: `make test-slow`.
SLOW_FOLDERS = ("browser", "crash", "oidc", "outside", "public", "typescript")
SLOW_COMMANDS = ("backups", "commands", "demo", "keys", "mac", "serve", "servers", "stdio")
NO_BROWSER = "no browser on this machine"
BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome")
ASK_PLAYWRIGHT = """
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    print(playwright.chromium.executable_path)
"""


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium: one found on PATH, else Playwright's own."""
    for name in BROWSER_NAMES:
        if path := shutil.which(name):
            return path
    # In a process of its own: Playwright's blocking interface does not go with a running loop.
    asked = subprocess.run(
        [sys.executable, "-c", ASK_PLAYWRIGHT],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    path = asked.stdout.strip()
    if path and Path(path).exists():
        return path
    pytest.skip(NO_BROWSER)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: starts a process, a browser or a foreign client")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow by where it stands, or by the browser that it asks for."""
    here = Path(__file__).parent
    slow = {
        *(here / folder for folder in SLOW_FOLDERS),
        *(here / "webapp" / "cli" / f"test_{name}.py" for name in SLOW_COMMANDS),
    }
    for item in items:
        has_browser = "chromium" in getattr(item, "fixturenames", ())
        if has_browser or slow & {item.path, *item.path.parents}:
            item.add_marker("slow")


def skipped_reports(config: pytest.Config) -> list[pytest.TestReport | pytest.CollectReport]:
    """What the run left out, files that skipped themselves while being collected included."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    return list(reporter.stats.get("skipped", ())) if reporter else []


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let a skip fail the run where everything must run."""
    is_required = os.environ.get("REQUIRE_ALL_TESTS") == "1"
    if is_required and session.exitstatus == pytest.ExitCode.OK and skipped_reports(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say in one line what did not run and why."""
    skipped = skipped_reports(config)
    if count := sum(NO_BROWSER in report.longreprtext for report in skipped):
        terminalreporter.write_line(f"{NO_BROWSER}: {count} browser tests not run", yellow=True)
    if skipped and os.environ.get("REQUIRE_ALL_TESTS") == "1":
        terminalreporter.write_line(
            f"REQUIRE_ALL_TESTS=1: {len(skipped)} skipped, so this run fails", red=True
        )
