"""Configuration of the test run: the browser, the selected tests, and skips.

A skip is easily overlooked. With REQUIRE_ALL_TESTS=1, any skip fails the run.

A parametrized test is a matrix: each parameter (a revision, a screen, a point at which a process
dies) is an axis, and each combination is a cell. A slow test with several axes, or a test marked
`diagonal`, runs only as many cells as it takes to use each value of each axis once (the diagonal).
In a module marked `in_turn("site")`, each case runs with one value of the parameter `site`: the
first case with the first value, the next with the second, and so on. With `--whole`, as in
`make soak`, every cell runs.
"""

import gc
import os
import shutil
import ssl
import subprocess
import sys
import zlib
from collections.abc import Generator
from inspect import signature
from pathlib import Path

import httpx
import httpx2
import pytest
from hypothesis import settings

# The duration of an example depends on the machine. Examples of earlier runs are not stored: a
# failure prints how to reproduce it.
settings.register_profile("house", deadline=None, database=None, print_blob=True)
settings.load_profile("house")

pytest_plugins = ("tests.support.leaks",)

# FastMCP writes its log through rich, which takes longer for one traceback than a test does for
# all its calls. It reads the variable when it is imported.
os.environ.setdefault("FASTMCP_ENABLE_RICH_LOGGING", "false")

# By default clients give up after five seconds, which can be too short on a busy machine. In each
# library, one object has this default for all clients, so change that object. No test needs the
# certificates of public authorities. Without this context, each client would read them again, which
# takes 15 processor milliseconds.
_TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
for _client in (httpx.AsyncClient, httpx2.AsyncClient):
    _default = signature(_client).parameters["timeout"].default
    _default.connect = _default.read = _default.write = _default.pool = 300.0
    (_client.__init__.__kwdefaults__ or {})["verify"] = _TRUSTS_NOBODY

# Tests that start our processes, a browser or a client in another language: `make test-slow`.
SLOW_FOLDERS = (
    *("browser", "crash", "deployment", "frameworks", "fuzzed", "oidc", "outside", "public"),
    "typescript",
    "webapp/serving",
)
SLOW_COMMANDS = (
    *("backups", "commands", "demo", "keys", "log", "mac", "moves", "serve", "servers"),
    *("start", "stdio"),
)
SLOW_MODULES = (
    *("cookbook/test_replay_option.py", "cookbook/test_tutorial.py"),
    *("hosts/test_hosts.py", "hosts/test_instances.py", "hosts/test_refusals.py"),
    "test_benchmarks.py",
    "webapp/stores/test_postgres_standby.py",
    "webapp/testing/test_plugin.py",
)
PAGES = Path(__file__).parent / "webapp" / "pages"  # some tests in this folder use a browser
ROUNDS = "rounds"  # the property with the results of a test that tries its cell several times
NO_BROWSER = "no browser on this machine"
BROWSER_NAMES = ("chromium", "chromium-browser", "google-chrome")
ASK_PLAYWRIGHT = """
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    print(playwright.chromium.executable_path)
"""


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of a Chromium: on PATH, or Playwright's own."""
    for name in BROWSER_NAMES:
        if path := shutil.which(name):
            return path
    # In a separate process: Playwright's synchronous API does not work in a running loop.
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


@pytest.fixture(name="free_port")
def _free_port() -> int:
    """Return a free port, because a real server may use the default port."""
    from tests.support.serving import free_port  # after pytest has loaded the plugin

    return free_port()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="every cell of the matrices")
    rounds = "how often a cell that counts its tries is tried; default: 20 with --whole, else once"
    parser.addoption("--rounds", type=int, default=0, help=rounds)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files that `-m` excludes. Collecting these files took half of a short run."""
    if collection_path.is_dir() or not collection_path.name.startswith("test_"):
        return None
    is_slow = bool(slow_places() & {collection_path, *collection_path.parents})
    may_be_slow = is_slow or collection_path.parent == PAGES
    left_out = {"slow": not may_be_slow, "not slow": is_slow}
    return left_out.get(config.option.markexpr) or None


def slow_places() -> set[Path]:
    here = Path(__file__).parent
    return {
        *(here / folder for folder in SLOW_FOLDERS),
        *(here / "webapp" / "cli" / f"test_{name}.py" for name in SLOW_COMMANDS),
        *(here / module for module in SLOW_MODULES),
    }


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: starts a process, a browser or a foreign client")
    config.addinivalue_line("markers", "diagonal: each value of each axis, not each combination")
    config.addinivalue_line("markers", "in_turn(axis): one value of the axis for each case")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests as slow by their folder, or by their browser."""
    slow = slow_places()
    paths = {item.path for item in items}
    slow_paths = {path for path in paths if slow & {path, *path.parents}}
    for item in items:
        is_slow = item.path in slow_paths
        has_browser = "chromium" in getattr(item, "fixturenames", ())
        if has_browser and item.path.parent != PAGES and not is_slow:
            raise pytest.UsageError(f"{item.nodeid}: one with a browser stands in {PAGES}")
        if item.get_closest_marker("slow"):
            raise pytest.UsageError(f"{item.nodeid}: what is slow is named in {__file__}")
        if has_browser or is_slow:
            item.add_marker("slow")
    if not config.getoption("--whole"):
        left_out = off_the_diagonal(items) | out_of_turn(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection while tests are collected. It took a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests and their imports from later garbage collections."""
    gc.collect()
    gc.freeze()


def off_the_diagonal(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cells to leave out: the remaining cells use each value of each axis."""
    matrices: dict[object, list[pytest.Function]] = {}
    for item in items:
        is_diagonal = item.get_closest_marker("slow") or item.get_closest_marker("diagonal")
        if isinstance(item, pytest.Function) and is_diagonal:
            matrices.setdefault((item.path, item.originalname), []).append(item)
    left_out = set[pytest.Item]()
    for cells in matrices.values():
        values = {cell: values_of(cell) for cell in cells}
        if any(len(each) < 2 for each in values.values()):
            continue
        missing = set[object]().union(*values.values())
        # Each test starts at a different cell, so that the whole suite covers more pairs of values.
        first = zlib.crc32(cells[0].originalname.encode()) % len(cells)
        order = cells[first:] + cells[:first]
        while missing:
            best = max(order, key=lambda cell: len(values[cell] & missing))
            missing -= values[best]
            order.remove(best)
        left_out.update(order)
    return left_out


def out_of_turn(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the cells to leave out of modules that are marked `in_turn`."""
    modules: dict[Path, dict[object, list[pytest.Item]]] = {}
    for item in items:
        mark = item.get_closest_marker("in_turn")
        if mark and isinstance(item, pytest.Function) and mark.args[0] in item.fixturenames:
            others = {k: v for k, v in item.callspec.params.items() if k != mark.args[0]}
            cases = modules.setdefault(item.path, {})
            cases.setdefault((item.originalname, repr(others)), []).append(item)
    return {
        cell
        for cases in modules.values()
        for number, cells in enumerate(cases.values())
        for cell in cells
        if cell is not cells[number % len(cells)]
    }


def values_of(cell: pytest.Function) -> frozenset[object]:
    """Return the cell's value on each axis. The parameters of one `parametrize` form one axis."""
    given = dict(cell.callspec.params) if hasattr(cell, "callspec") else {}
    named = [mark.args[0] for mark in cell.iter_markers("parametrize")]
    axes = [each.replace(" ", "").split(",") if isinstance(each, str) else each for each in named]
    axes += [[name] for name in given if not any(name in axis for axis in axes)]
    return frozenset(
        (axis[0], repr([given[name] for name in axis])) for axis in axes if axis[0] in given
    )


def skipped_reports(config: pytest.Config) -> list[pytest.TestReport | pytest.CollectReport]:
    """Return the reports of skipped tests and of files that were skipped at collection."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    return list(reporter.stats.get("skipped", ())) if reporter else []


def pytest_sessionstart(session: pytest.Session) -> None:
    from tests.support.forking import FORKS  # after pytest has loaded the plugin

    FORKS.are_used = not session.config.getoption("--whole")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the fork server. Fail the run if a test was skipped and all must run."""
    from tests.support.forking import FORKS  # after pytest has loaded the plugin

    FORKS.close()
    is_required = os.environ.get("REQUIRE_ALL_TESTS") == "1"
    if is_required and session.exitstatus == pytest.ExitCode.OK and skipped_reports(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Report which tests did not run and why, and how often each counted cell passed."""
    reports = [each for key in ("passed", "failed") for each in terminalreporter.stats.get(key, ())]
    for report in reports:
        passed, total = dict(report.user_properties).get(ROUNDS, (0, 0))
        if total > 1:
            terminalreporter.write_line(f"{passed:3} of {total:3}  {report.nodeid}")
    skipped = skipped_reports(config)
    if count := sum(NO_BROWSER in report.longreprtext for report in skipped):
        terminalreporter.write_line(f"{NO_BROWSER}: {count} browser tests not run", yellow=True)
    if skipped and os.environ.get("REQUIRE_ALL_TESTS") == "1":
        terminalreporter.write_line(
            f"REQUIRE_ALL_TESTS=1: {len(skipped)} skipped, so this run fails", red=True
        )
