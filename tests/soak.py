"""`python -m tests.soak [--times 100]`: run the tests that are too slow for every change.

`--times` sets how often a process is killed at each point of tests/crash, and how often each row of
tests/outside is tried against a served process. The other tests with matrices run once with every
cell, and each frozen fault of tests/mutation has to be killed again. The counts are written to
docs/reference/benchmarks.md. The exit status is 1 on a failure.

Risks: an interrupted run looks complete. So the document is written after each part and names the
parts that have not run.
"""

import argparse
import asyncio
import logging
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.mutation.fault import DEAD
from tests.outside.rows import ROWS, Row

PROJECT = Path(__file__).parents[1]
DOCUMENT = PROJECT / "docs" / "reference" / "benchmarks.md"
POINTS, OUTSIDE, FAULTS = "tests/crash", "tests/outside", "tests/mutation"
ONCE = tuple(
    f"tests/{folder}"
    for folder in (
        *("attacks", "browser", "cookbook", "deployment", "frameworks", "hosts", "oidc", "public"),
        *("typescript", "webapp/cli", "webapp/mcp", "webapp/oauth", "webapp/pages"),
        *("webapp/serving", "webapp/testing"),
    )
)
BROKEN = "(the run itself)"
BEGIN, END = "<!-- soak: begin -->\n", "<!-- soak: end -->\n"
HEAD = (
    "These tests take too long to run for every change. The last run of `make soak TIMES={times}` "
    "wrote this section.\n\n"
    "Each point at which a process is killed (tests/crash) and each scenario of tests/outside is "
    "tried several times: the table has the total number of tries. Other tests have a matrix of "
    "cases, such as each kind of question with each store. `make soak` runs each case once; "
    "`make test` and `make test-slow` run only the diagonal of each matrix. `make soak` also "
    "plants each known fault of tests/mutation again, and checks that the same test detects it.\n\n"
    "| what | cases | tries | failures |\n|---|---|---|---|\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    what: str
    cases: int
    tries: int
    failures: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--times", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--workers", default="auto", help="of pytest-xdist; default: %(default)s")
    options = parser.parse_args()
    times, workers = options.times, options.workers
    parts: dict[str, Callable[[], Iterator[Line]]] = {
        POINTS: lambda: ran([POINTS], times=times, workers=workers),
        OUTSIDE: lambda: seen_from_outside(times=times),
        **{folder: partial(ran, [folder], times=1, workers=workers) for folder in ONCE},
        FAULTS: still_killed,
    }
    lines, left = list[Line](), [*parts]
    for part, run in parts.items():
        lines += run()
        left.remove(part)
        page = DOCUMENT.read_text("utf-8")
        DOCUMENT.write_text(with_table(page, table_of(lines, left=left, times=times)), "utf-8")
    return 1 if any(line.failures for line in lines) else 0


def ran(folders: Sequence[str], *, times: int, workers: str) -> Iterator[Line]:
    """Run the tests of these folders this many times, and yield a line for each file."""
    tries, failures = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for _ in range(times):
        for case, is_right in _run_once(folders, workers=workers):
            tries[case] += 1
            failures[case] += not is_right
    for file in sorted({file for file, _ in tries}):
        cases = [case for case in tries if case[0] == file]
        yield Line(
            what=file,
            cases=len(cases),
            tries=sum(tries[case] for case in cases),
            failures=sum(failures[case] for case in cases),
        )


def seen_from_outside(*, times: int) -> Iterator[Line]:
    logging.disable(logging.WARNING)  # hide the log of the libraries in this process
    for row in ROWS:
        yield asyncio.run(_tried(row, times=times))


def still_killed() -> Iterator[Line]:
    """Try each frozen fault with the test that killed it, and count the faults that survive."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.mutation"],
        cwd=PROJECT,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    tried = re.findall(r"^[FP]\d+ \S+ (.+)$", ran.stdout, re.MULTILINE)
    alive = sum(not outcome.startswith(DEAD) for outcome in tried)
    failures = alive or int(ran.returncode != 0)
    yield Line(what=FAULTS, cases=len(tried), tries=len(tried), failures=failures)


def table_of(lines: Sequence[Line], *, left: Sequence[str], times: int) -> str:
    rows = [f"| {one.what} | {one.cases} | {one.tries} | {one.failures} |" for one in lines]
    rows += [f"| {part} | not run | | |" for part in left]
    return HEAD.format(times=times) + "\n".join(rows) + "\n"


def with_table(page: str, table: str) -> str:
    """Return the page with this table between its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end
    return f"{before}{begin}{table}{end}{after}"


def _run_once(folders: Sequence[str], *, workers: str) -> Iterator[tuple[tuple[str, str], bool]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "--whole", "--rounds=1", "--quiet", *folders),
                *("--numprocesses", workers, "--dist", "loadfile", f"--junitxml={report}"),
            ],
            cwd=PROJECT,
            check=False,
        )
        cases = list(ET.parse(report).iter("testcase")) if report.exists() else []  # noqa: S314 - pytest's
    if ran.returncode not in (0, 1) or not cases:
        yield (BROKEN, " ".join(folders)), False
    for case in cases:
        file = case.get("classname", "").replace(".", "/") + ".py"
        is_right = not any(child.tag in ("failure", "error", "skipped") for child in case)
        yield (file, case.get("name", "")), is_right


async def _tried(row: Row, *, times: int) -> Line:
    tries, failures = Counter[str](), 0
    try:
        async for case, is_right in row.reproduce(times):
            tries[case] += 1
            failures += not is_right
    except Exception:
        logging.getLogger(__name__).exception("soak.broken")
        tries[BROKEN] += 1
        failures += 1
    what = f"{OUTSIDE} {row.FINDING}"
    return Line(what=what, cases=len(tries), tries=tries.total(), failures=failures)


if __name__ == "__main__":
    sys.exit(main())
