"""The trial of one fault: in a copy of the tree, by processes that import the copy.

Two mistakes could make the outcomes wrong. If the tests imported the original tree, every fault
would survive: so a run starts with a fault that always fails (see `prove` in `__main__`). If a test
fails without the fault too, it seems to kill the fault: so the killing tests run once more at the
end, on the unchanged tree.
"""

import importlib
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final, TextIO

import pytest
from hypothesis import Phase, settings

from tests.mutation.fault import DEAD, Fault
from tests.mutation.packages import PROJECT, package_of

HEAVY: Final = (
    *("anyio", "authlib.oauth2", "babel", "cryptography.x509", "fastmcp", "httpx", "hypothesis"),
    *("itsdangerous", "jinja2", "joserfc.jwt", "litestar.testing", "mcp.server", "msgspec"),
    *("pydantic", "uvicorn"),
)
# Ignores the warning that libraries were imported before pytest could rewrite their asserts.
QUIETLY: Final = (
    *("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
HANG_SECONDS: Final = 90  # limit for one test, or for the collection
MEMORY_AT_MOST_BYTES: Final = 6 * 1024**3
# Later portions have 24 files: a fault that survives the first files is seldom killed.
FILES_AT_ONCE: Final = (6, 12, 24)
NOT_COPIED: Final = (".git", ".venv", ".venv-*", "__pycache__", ".*_cache", "node_modules*")
KILLED, ENDED = "killed ", "ended"


def import_what_takes_long() -> None:
    for name in HEAVY:
        importlib.import_module(name)


def forget_the_tree() -> None:
    """Make a forked child import our modules again, from its own path."""
    for name in [*sys.modules]:
        if name.split(".")[0] in ("flows", "webapp", "tests", "elicit_url"):
            del sys.modules[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a trial.

    `word` is one of: killed, timed out, survived, cannot be applied, not reached, undecided.
    """

    word: str
    test: str | None = None

    @property
    def is_killed(self) -> bool:
        return self.word in DEAD


class Picked:
    """A pytest plugin that runs only these tests, or all but the slow ones if there are none."""

    def __init__(self, picked: Collection[str] = ()) -> None:
        self._picked = picked

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._is_wanted(item)]

    def _is_wanted(self, item: pytest.Item) -> bool:
        if self._picked:
            return item.nodeid in self._picked
        return item.get_closest_marker("slow") is None


class FailureReport:
    """A pytest plugin that reports the running and the failed test.

    pytest prints into the same file, so the last line may be unfinished when this plugin writes.
    """

    def __init__(self, log: TextIO) -> None:
        self._log = log

    def pytest_sessionstart(self) -> None:
        """Turn off hypothesis's shrinking: any failure counts."""
        phases = (Phase.explicit, Phase.generate)
        project = settings.get_profile("house")
        settings.register_profile("mutation", parent=project, phases=phases, print_blob=False)
        settings.load_profile("mutation")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._log.write(f"\n{KILLED}{report.nodeid}\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._log.write(f"\n{nodeid}\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._log.write(f"\n{KILLED}{report.nodeid}\n")


class Copy:
    """A copy of the tree in which one worker inserts and removes faults."""

    def __init__(self, top: Path) -> None:
        self.top = top / "tree"
        self._log = top / "log"
        shutil.copytree(PROJECT, self.top, ignore=shutil.ignore_patterns(*NOT_COPIED))

    @contextmanager
    def broken(self, module: str, lines: Sequence[str]) -> Iterator[None]:
        path = self.top / module
        whole = path.read_bytes()
        try:
            path.write_text("\n".join(lines), "utf-8")
            _forget_compiled(path)
            yield
        finally:
            path.write_bytes(whole)
            _forget_compiled(path)

    def first_failure(
        self, files: Sequence[str], picked: Collection[str] = (), *, seconds: float = inf
    ) -> Outcome:
        """Run test files, or only the `picked` tests in them, until one fails."""
        return self.run(files, seconds=seconds, plugins=[Picked(picked)])

    def run(
        self, files: Sequence[str], *, seconds: float, plugins: Sequence[object], stops: bool = True
    ) -> Outcome:
        """Run test files in a process that imports this copy, and return the first failure."""
        self._log.write_text("")
        child = os.fork()
        if not child:
            self._run(files, plugins, stops=stops)
        seen, begun = "", time.monotonic()
        since = begun
        while not os.waitpid(child, os.WNOHANG)[0]:
            time.sleep(0.02)
            text = self._log.read_text()
            if text != seen:
                seen, since = text, time.monotonic()
            is_hung = time.monotonic() - since > HANG_SECONDS
            if is_hung or time.monotonic() - begun > seconds:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                on = (seen.splitlines() or [files[0]])[-1]
                return Outcome(word="timed out" if is_hung else "undecided", test=on)
        lines = self._log.read_text().splitlines()
        for line in lines:
            if line.startswith(KILLED):
                return Outcome(word="killed", test=line.removeprefix(KILLED))
        if lines[-1:] == [ENDED]:
            return Outcome(word="survived")
        # The process crashed, or ended before a test was found.
        return Outcome(word="killed", test=lines[-1] if lines else files[0])

    def _run(self, files: Sequence[str], plugins: Sequence[object], *, stops: bool) -> None:
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_AT_MOST_BYTES, MEMORY_AT_MOST_BYTES))
            os.chdir(self.top)
            forget_the_tree()
            sys.path.insert(0, str(self.top))
            os.environ["PYTHONPATH"] = str(self.top)
            sys.dont_write_bytecode = False
            with (
                self._log.open("a", buffering=1) as log,
                redirect_stdout(log),
                redirect_stderr(log),
            ):
                how = [*QUIETLY, f"--basetemp={self.top.parent / 'tmp'}"]
                how += ["-x"] if stops else []
                code = pytest.main([*how, *files], plugins=[FailureReport(log), *plugins])
            if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                with self._log.open("a") as reported:
                    reported.write(ENDED + "\n")
        finally:
            os._exit(0)


def _forget_compiled(path: Path) -> None:
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


class Reach:
    """The tests that run each fault's statement, as `tests.mutation.reach` measured them."""

    def __init__(self, measured: Mapping[str, Any]) -> None:
        self._tests: Mapping[str, Mapping[str, float]] = measured["tests"]

    def portions(self, fault: Fault, paths: tuple[str, ...]) -> Iterator[dict[str, set[str]]]:
        """Yield a few files at a time, each with the tests to run there. Cheap files come first."""
        files: dict[str, set[str]] = {}
        seconds: dict[str, float] = {}
        for test, took in self._tests.get(fault.id, {}).items():
            file = test.split("::")[0]
            if not paths or file.startswith(paths):
                files.setdefault(file, set()).add(test)
                seconds[file] = seconds.get(file, 0) + took
        for portion in in_portions(sorted(files, key=seconds.__getitem__)):
            yield {file: files[file] for file in portion}


def likely_files(module: str) -> list[str]:
    """Return the test files that import the module, and those of its package.

    Files of the package that import the module or have its name come first, then other files that
    import it, then the rest of the package. In each group, importing and small files come first.
    """
    package = PROJECT / "tests" / package_of(module)
    stem, parts = Path(module).stem, module.removesuffix(".py").removesuffix("/__init__").split("/")
    names = re.compile(
        rf"\b(from|import) {re.escape('.'.join(parts))}\b"
        rf"|\bfrom {re.escape('.'.join(parts[:-1]))} import [^\n]*\b{parts[-1]}\b"
    )
    found: dict[Path, tuple[bool, bool, int]] = {}
    for path in (PROJECT / "tests").rglob("test_*.py"):
        text = path.read_text("utf-8")
        imports, is_near = bool(names.search(text)), path.is_relative_to(package)
        if imports or is_near:
            is_named = stem in path.stem or path.stem.removeprefix("test_") in stem
            found[path] = not (is_near and (imports or is_named)), not imports, len(text)
    return [path.relative_to(PROJECT).as_posix() for path in sorted(found, key=found.__getitem__)]


def in_portions(files: Sequence[str]) -> Iterator[Sequence[str]]:
    start, portion = 0, 0
    while start < len(files):
        size = FILES_AT_ONCE[min(portion, len(FILES_AT_ONCE) - 1)]
        yield files[start : start + size]
        start, portion = start + size, portion + 1
