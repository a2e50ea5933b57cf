"""The trial of one fault: in a copy of the tree, by processes that import the copy.

Risks: the tests import the original tree, and every fault survives. So a run starts with a fault
that always fails (see `prove` in `__main__`). Or a test fails without the fault too, and seems to
kill the fault. So the killing tests run once more at the end, on the unchanged tree.
"""

import ast
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

import pytest
from hypothesis import Phase, settings

from tests.mutation.fault import Fault, Location
from tests.mutation.reach import FOLDERS, QUIETLY, forget_the_tree
from tests.mutation.subjects import HOUSE

SLOW_SECONDS: Final = 2  # slower tests run after all others
HANG_SECONDS: Final = 90  # limit for one test, or for the collection
MEMORY_AT_MOST_BYTES: Final = 6 * 1024**3
# Later portions have 24 files: a fault that survives the first files is seldom killed.
FILES_AT_ONCE: Final = (6, 12, 24)
NOT_COPIED: Final = (".git", ".venv", ".venv-*", "__pycache__", ".*_cache", "node_modules*")
KILLED, ENDED = "killed ", "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a trial.

    `word` is one of: killed, timed out, survived, cannot be applied, not reached, undecided.
    """

    word: str
    test: str | None = None

    @property
    def is_killed(self) -> bool:
        return self.word in ("killed", "timed out")


class Teller:
    """A pytest plugin that selects tests, and reports the running and the failed test."""

    def __init__(self, told: Path, picked: Collection[str]) -> None:
        self._told = told.open("a", buffering=1)
        self._picked = picked

    def pytest_sessionstart(self) -> None:
        """Turn off hypothesis's shrinking: any failure counts."""
        phases = (Phase.explicit, Phase.generate)
        house = settings.get_profile("house")
        settings.register_profile("mutation", parent=house, phases=phases, print_blob=False)
        settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._picked:
            items[:] = [item for item in items if item.nodeid in self._picked]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._told.write(f"{KILLED}{report.nodeid}\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._told.write(nodeid + "\n")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._told.write(f"{KILLED}{report.nodeid}\n")


class Copy:
    """A copy of the tree in which one worker inserts and removes faults."""

    def __init__(self, top: Path) -> None:
        self.top = top / "tree"
        self._told = top / "told"
        self._log = top / "log"
        shutil.copytree(HOUSE, self.top, ignore=shutil.ignore_patterns(*NOT_COPIED))

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
        self._told.write_text("")
        child = os.fork()
        if not child:
            self._run(files, picked)
        seen, begun = "", time.monotonic()
        since = begun
        while not os.waitpid(child, os.WNOHANG)[0]:
            time.sleep(0.02)
            told = self._told.read_text()
            if told != seen:
                seen, since = told, time.monotonic()
            is_hung = time.monotonic() - since > HANG_SECONDS
            if is_hung or time.monotonic() - begun > seconds:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                on = (seen.splitlines() or [files[0]])[-1]
                return Outcome(word="timed out" if is_hung else "undecided", test=on)
        lines = self._told.read_text().splitlines()
        for line in lines:
            if line.startswith(KILLED):
                return Outcome(word="killed", test=line.removeprefix(KILLED))
        if lines[-1:] == [ENDED]:
            return Outcome(word="survived")
        # The process crashed, or ended before a test was found.
        return Outcome(word="killed", test=lines[-1] if lines else files[0])

    def _run(self, files: Sequence[str], picked: Collection[str]) -> None:
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_AT_MOST_BYTES, MEMORY_AT_MOST_BYTES))
            os.chdir(self.top)
            forget_the_tree()
            sys.path.insert(0, str(self.top))
            os.environ["PYTHONPATH"] = str(self.top)
            sys.dont_write_bytecode = False
            with self._log.open("w") as log, redirect_stdout(log), redirect_stderr(log):
                how = [*QUIETLY, "-x", f"--basetemp={self.top.parent / 'tmp'}"]
                code = pytest.main([*how, *files], plugins=[Teller(self._told, picked)])
            if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                with self._told.open("a") as told:
                    told.write(ENDED + "\n")
        finally:
            os._exit(0)


def _forget_compiled(path: Path) -> None:
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


class Reach:
    """The tests that run each line, as `tests.mutation.reach` measured them."""

    def __init__(self, measured: Mapping[str, Mapping[str, object]]) -> None:
        self._reached: Mapping[str, Mapping[str, list[str]]] = measured["reached"]  # type: ignore[assignment]
        self._bad = frozenset(measured["bad"])
        self._seconds: Mapping[str, float] = measured["seconds"]  # type: ignore[assignment]

    def tests(self, fault: Fault, place: Location, lines: Sequence[str]) -> set[str]:
        """Return the tests of the fault's statement, or of its module if it runs at import."""
        reached = self._reached.get(place.module, {})
        last = place.start + len(fault.original)
        wanted = _statement(lines, range(place.start + 1, last + 1))
        if wanted is None:
            return {test for tests in reached.values() for test in tests} - self._bad
        return {test for line in wanted for test in reached.get(str(line), ())} - self._bad

    def slow(self, tests: Iterable[str]) -> set[str]:
        return {test for test in tests if self._seconds.get(test, 0) > SLOW_SECONDS}

    def cheapest_first(self, tests: Iterable[str]) -> list[str]:
        """Return the files of these tests, sorted by folder and then by the tests' duration."""
        seconds: dict[str, float] = {}
        for test in tests:
            file = test.split("::")[0]
            seconds[file] = seconds.get(file, 0) + self._seconds.get(test, 0)
        return sorted(seconds, key=lambda file: (rank(file), seconds[file]))


def rank(file: str) -> int:
    folder = (file.split("/")[1:-1] or ["."])[0]
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS)


def _statement(lines: Sequence[str], changed: range) -> range | None:
    """Return the smallest statement at these lines without its body, or None outside functions."""
    best: range | None = None
    for node in ast.walk(ast.parse("\n".join(lines))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for one in ast.walk(node):
            if not isinstance(one, ast.stmt | ast.ExceptHandler) or one is node:
                continue
            body = getattr(one, "body", None)
            until = (body[0].lineno - 1) if body else (one.end_lineno or one.lineno)
            span = range(one.lineno, max(until, one.lineno) + 1)
            if changed[0] in span and (best is None or len(span) < len(best)):
                best = span
    return best


def in_portions(files: Sequence[str]) -> Iterator[Sequence[str]]:
    start, portion = 0, 0
    while start < len(files):
        size = FILES_AT_ONCE[min(portion, len(FILES_AT_ONCE) - 1)]
        yield files[start : start + size]
        start, portion = start + size, portion + 1
