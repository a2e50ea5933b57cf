"""Measure which tests run which lines: `python -m tests.mutation.reach MAP [PATH ..]`.

It needs coverage (not in the constraints: `pip install coverage`). Each test file runs in its own
process, forked from a process that has imported the slow libraries. Only passing tests are
recorded: a test that fails anyway would seem to kill every fault.
"""

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from tests.mutation.subjects import HOUSE, SUBJECTS, modules_of

FOLDERS: Final = ("flows", "service", "stores", "mcp", "web", "attacks", ".")
HEAVY: Final = (
    *("anyio", "authlib.oauth2", "babel", "cryptography.x509", "fastmcp", "httpx", "hypothesis"),
    *("itsdangerous", "jinja2", "joserfc.jwt", "litestar.testing", "mcp.server", "msgspec"),
    *("pydantic", "uvicorn"),
)
FILE_AT_MOST_SECONDS: Final = 180
# Libraries with pytest plugins are imported before pytest can rewrite their asserts.
QUIETLY: Final = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def import_what_takes_long() -> None:
    for name in HEAVY:
        importlib.import_module(name)


def forget_the_tree() -> None:
    """Make a forked child import our modules again, from its own path."""
    for name in [*sys.modules]:
        if name.split(".")[0] in ("flows", "webapp", "tests", "elicit_url"):
            del sys.modules[name]


class Watch:
    """A pytest plugin that sets coverage's context to the running test and records durations."""

    def __init__(self, coverage: Any) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}
        self.bad: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.outcome != "passed":
            self.bad.add(report.nodeid)


def run_under_coverage(test_file: str, answer: Path) -> None:
    forget_the_tree()
    paths = [str(HOUSE / path) for subject in SUBJECTS for path in modules_of(subject)]
    coverage = importlib.import_module("coverage").Coverage(data_file=None, include=paths)
    coverage.start()
    watch = Watch(coverage)
    with answer.with_suffix(".log").open("w") as log, redirect_stdout(log):
        pytest.main([*QUIETLY, test_file], plugins=[watch])
    coverage.stop()
    data = coverage.get_data()
    reached = {
        Path(path).relative_to(HOUSE).as_posix(): {
            line: [one for one in contexts if one and one not in watch.bad]
            for line, contexts in data.contexts_by_lineno(path).items()
        }
        for path in data.measured_files()
    }
    seconds = {one: round(took, 3) for one, took in watch.seconds.items()}
    answer.write_text(json.dumps({"reached": reached, "seconds": seconds, "bad": [*watch.bad]}))


def measure(test_file: str) -> dict[str, Any]:
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = os.fork()
        if not child:
            try:
                os.setsid()
                run_under_coverage(test_file, answer)
            finally:
                os._exit(0)
        until = time.monotonic() + FILE_AT_MOST_SECONDS
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
            time.sleep(0.05)
        return dict(json.loads(answer.read_text())) if answer.exists() else {}


def test_files(folders: tuple[str, ...]) -> Iterator[str]:
    for folder in folders:
        for path in sorted((HOUSE / "tests" / folder).glob("test_*.py")):
            yield path.relative_to(HOUSE).as_posix()


def main() -> None:
    where = Path(sys.argv[1])
    files = sys.argv[2:] or [*test_files(FOLDERS)]
    os.chdir(HOUSE)
    import_what_takes_long()
    reached: dict[str, dict[str, list[str]]] = {}
    seconds: dict[str, float] = {}
    bad: list[str] = []
    if where.exists():  # measure some files again, and use the stored results of the others
        before = json.loads(where.read_text())
        reached, seconds, bad = before["reached"], before["seconds"], before["bad"]
    with ThreadPoolExecutor(2) as pool:
        for test_file, found in zip(files, pool.map(measure, files), strict=True):
            print(test_file, "measured" if found else "NOT MEASURED", flush=True)  # noqa: T201 -- it takes minutes, and says how far it is
            for path, lines in found.get("reached", {}).items():
                for line, tests in lines.items():
                    known = reached.setdefault(path, {}).setdefault(line, [])
                    known.extend(test for test in tests if test not in known)
            seconds |= found.get("seconds", {})
            bad += found.get("bad", [])
            where.write_text(json.dumps({"reached": reached, "seconds": seconds, "bad": bad}))


if __name__ == "__main__":
    main()
