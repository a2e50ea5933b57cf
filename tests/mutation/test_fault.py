"""A frozen fault is found again by its text, or reported as gone."""

import json

import pytest

from tests.mutation.fault import OUTCOMES, PLANTED, Fault, Location, faults_of
from tests.mutation.rooms import sources_of

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
