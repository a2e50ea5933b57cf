"""Frozen faults: found again by their text, drawn from every package, tried with likely tests."""

import ast
import json
import re
from functools import cache
from io import StringIO

import pytest

from tests.mutation.fault import OUTCOMES, PLANTED, Fault, Location, faults_of
from tests.mutation.packages import PROJECT, shares, sources_of
from tests.mutation.reach import marked
from tests.mutation.trial import KILLED, FailureReport, likely_files

FAULT = Fault(
    id="F000",
    module="flows/a.py",
    operator="AddNot",
    before=("def is_over(lease):", "now = lease.now"),
    original=("if lease.until < now:", "    return True"),
    faulty=("if not lease.until < now:", "    return True"),
    after=("return False",),
)
LINES = ["def is_over(lease):", "    now = lease.now"]
LINES += ["    if lease.until < now:", "        return True", "    return False"]
ELSEWHERE = ["def other(lease, now):", "    if lease.until < now:", "        return True"]


@pytest.mark.parametrize(
    ("sources", "place"),
    [
        ({"flows/a.py": LINES}, Location(module="flows/a.py", start=2)),
        ({"flows/a.py": ["import x", "", *LINES]}, Location(module="flows/a.py", start=4)),
        ({"flows/a.py": [], "webapp/b.py": LINES}, Location(module="webapp/b.py", start=2)),
        ({"flows/a.py": [*ELSEWHERE, *LINES]}, Location(module="flows/a.py", start=5)),
        ({"flows/a.py": ELSEWHERE[1:]}, Location(module="flows/a.py", start=0)),
        ({"flows/a.py": [*ELSEWHERE, *ELSEWHERE]}, None),
        ({"flows/a.py": [*LINES, *LINES]}, None),
        ({"flows/a.py": LINES[:2], "webapp/b.py": ELSEWHERE}, None),
    ],
)
def test_moved_fault_is_found_by_its_lines(
    sources: dict[str, list[str]], place: Location | None
) -> None:
    assert FAULT.place(sources) == place


def test_applied_fault_uses_indentation_of_its_location() -> None:
    applied = FAULT.applied(LINES, Location(module="flows/a.py", start=2))
    assert applied == [*LINES[:2], "    if not lease.until < now:", *LINES[3:]]
    assert Fault.read(FAULT.written()) == FAULT


# finding: XH1
def test_each_planted_fault_has_a_location_and_is_killed() -> None:
    outcomes = json.loads(OUTCOMES.read_text())
    sources = sources_of()
    planted = [fault for fault in faults_of() if fault.operator == PLANTED]
    lost = [fault.id for fault in planted if fault.place(sources) is None]
    assert not lost, f"copy the changed lines of the code into faults.json, for {lost}"
    assert [outcomes[fault.id]["outcome"] for fault in planted] == ["killed"] * len(planted)


@cache
def functions_of(file: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    nodes = ast.walk(ast.parse((PROJECT / file).read_text("utf-8")))
    return [each for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


# finding: XH1
def test_each_fault_of_a_finding_is_killed_by_a_test_that_cites_it() -> None:
    outcomes = json.loads(OUTCOMES.read_text())
    planted = [fault for fault in faults_of() if fault.finding is not None]
    assert len(planted) > 4
    for fault in planted:
        file, _, test = outcomes[fault.id]["test"].partition("[")[0].partition("::")
        lines = (PROJECT / file).read_text("utf-8").splitlines()
        (found,) = (each for each in functions_of(file) if each.name == test.rpartition("::")[2])
        first = min(each.lineno for each in (found, *found.decorator_list))
        text = "\n".join(lines[first - 2 : found.end_lineno])
        assert re.search(rf"# finding: .*\b{fault.finding}\b", text), fault.id


# finding: XH2
def test_each_fault_was_killed_by_a_test_or_has_a_note() -> None:
    outcomes = json.loads(OUTCOMES.read_text())
    assert outcomes.keys() == {fault.id for fault in faults_of()}
    for id, each in outcomes.items():
        assert each["outcome"] in ("killed", "timed out", "survived"), f"{id} is undecided"
        assert ("test" in each) == (each["outcome"] != "survived"), id
        assert ("note" in each) == (each["outcome"] != "killed"), id


# finding: XH2
def test_draw_gives_each_package_its_share() -> None:
    sources = {f"flows/a/{number}.py": ["x = 1", ""] * 30 for number in range(3)}
    sources |= {"webapp/b.py": ["x = 1"] * 9, "webapp/c/d/e.py": ["x = 1"] * 1}
    assert shares(sources, 10) == {"flows/a": 8, "webapp": 1, "webapp/c": 1}
    given = shares(sources_of(), 300)
    assert sum(given.values()) == 300
    assert min(given.values()) >= 1


# finding: XH2
def test_fault_is_tried_with_the_tests_of_its_module_and_package() -> None:
    files = likely_files("webapp/http/rate_limit.py")
    assert files[0].startswith("tests/webapp/http/")
    assert "tests/webapp/http/test_rates.py" in files


# finding: XH2
def test_call_that_names_the_fault_stands_before_its_statement() -> None:
    found = Location(module="flows/a.py", start=2)
    lines = marked(LINES, [(FAULT, found.start)])
    assert [line.strip() for line in lines[1:4]] == [
        "now = lease.now",
        "_line_of_fault('F000')",
        "if lease.until < now:",
    ]


def test_failed_test_is_reported_on_its_own_line_after_unfinished_output() -> None:
    log = StringIO()
    log.write("..F")  # pytest prints into the same file
    report = pytest.TestReport(
        "tests/test_a.py::test_b", ("", None, ""), {}, outcome="failed", longrepr=None, when="call"
    )
    FailureReport(log).pytest_runtest_logreport(report)
    assert log.getvalue().splitlines() == ["..F", f"{KILLED}{report.nodeid}"]
