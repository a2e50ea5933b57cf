"""Measure which tests run the line of which fault: `python -m tests.mutation.reach MAP PATH ...`.

In a copy of the tree, the statement of each fault gets a call before it that records the fault's
id. The tests of each path then run once, in their own process, and take about as long as usual. MAP
lists the measured files, and for each fault the tests with their seconds. Another run with the same
MAP adds its files. Only tests that pass are recorded: a test that fails anyway would seem to kill
every fault.

MAP has no tests for statements that run at import, or for lines that only other processes run.
"""

import ast
import builtins
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest

from tests.mutation.fault import Fault, faults_of
from tests.mutation.packages import sources_of
from tests.mutation.trial import Copy, Picked, import_what_takes_long

SECONDS: Final = 3600
_MARK: Final = "_line_of_fault"  # a builtin while the tests run, so that no module needs an import


class Watch:
    """A pytest plugin that records the faults whose lines each passing test runs."""

    def __init__(self, answer: Path) -> None:
        self._answer = answer
        self._now: set[str] = set()
        self._seconds: dict[str, float] = {}
        self._found: dict[str, dict[str, float]] = {}
        self._files: set[str] = set()
        self._bad: set[str] = set()
        setattr(builtins, _MARK, self._now.add)

    def pytest_runtest_logstart(self) -> None:
        self._now.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self._files.add(test.split("::")[0])
        self._seconds[test] = self._seconds.get(test, 0) + report.duration
        if report.outcome != "passed":
            self._bad.add(test)
        if report.when == "teardown" and test not in self._bad:
            for fault in self._now:
                self._found.setdefault(fault, {})[test] = round(self._seconds[test], 3)

    def pytest_sessionfinish(self) -> None:
        reported = {"files": sorted(self._files), "tests": self._found}
        self._answer.write_text(json.dumps(reported))


def statement(tree: ast.AST, line: int) -> tuple[list[ast.stmt], int] | None:
    """Return the block and index of the smallest statement of a function at this line."""
    best: tuple[int, list[ast.stmt], int] | None = None
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            for block in blocks(node):
                for index, one in enumerate(block):
                    size = (one.end_lineno or one.lineno) - one.lineno
                    is_here = one.lineno <= line <= one.lineno + size
                    if is_here and (best is None or size <= best[0]):
                        best = size, block, index
    return best and best[1:]


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def marked(lines: Sequence[str], of_it: Sequence[tuple[Fault, int]]) -> list[str]:
    """Return the module with a call before each fault's statement."""
    tree = ast.parse("\n".join(lines))
    found = [
        (block, block[index], fault.id)
        for fault, start in of_it
        if (place := statement(tree, start + 1))
        for block, index in [place]
    ]
    for block, node, id in found:
        mark = ast.parse(f"{_MARK}({id!r})").body
        index = block.index(node)
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        block[index + is_docstring : index + is_docstring] = mark
    return ast.unparse(tree).split("\n")


def main() -> None:
    where, paths = Path(sys.argv[1]), sys.argv[2:]
    sources = sources_of()
    by_module: dict[str, list[tuple[Fault, int]]] = {}
    for fault in faults_of():
        if place := fault.place(sources):
            by_module.setdefault(place.module, []).append((fault, place.start))
    known: dict[str, Any] = {"files": [], "tests": {}}
    if where.exists():
        known = json.loads(where.read_text())
    import_what_takes_long()
    with TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for module, of_it in by_module.items():
            text = "\n".join(marked(sources[module], of_it))
            (copy.top / module).write_text(text, "utf-8")
        for path in paths:
            answer = Path(folder) / "answer.json"
            answer.unlink(missing_ok=True)
            outcome = copy.run(
                [path], seconds=SECONDS, plugins=[Picked(), Watch(answer)], stops=False
            )
            print(path, outcome.word if answer.exists() else "NOT MEASURED", flush=True)  # noqa: T201 -- it takes minutes
            if not answer.exists():
                continue
            found = json.loads(answer.read_text())
            known["files"] = sorted({*known["files"], *found["files"]})
            for id, tests in found["tests"].items():
                known["tests"].setdefault(id, {}).update(tests)
            where.write_text(json.dumps(known))


if __name__ == "__main__":
    main()
