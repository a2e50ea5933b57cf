"""A run of the conformance suite against a server."""

import json
import re
from pathlib import Path

from tests.support.processes import ended, start
from tests.typescript.packages import CONFORMANCE

DEADLINE_SECONDS = 300.0
PROBLEMS = {"FAILURE": 2, "WARNING": 1}  # the severity; 0 for other statuses
Checks = dict[str, dict[str, int]]  # by scenario and check, the worst severity


async def checked(node: str, url: str, revision: str, folder: Path) -> Checks:
    """Run all scenarios that the revision requires of a server, and return their checks."""
    process = await start(
        *(node, str(CONFORMANCE), "server", "--url", url),
        *("--requirements", revision, "--output-dir", str(folder)),
        name="the conformance suite",
    )
    end = await ended(process, within_seconds=DEADLINE_SECONDS)
    assert "=== SUMMARY ===" in end.out, end.err
    return {scenario_of(path): read(path) for path in sorted(folder.glob("*/checks.json"))}  # noqa: ASYNC240 - it is all written


def scenario_of(path: Path) -> str:
    """Return the scenario's name from its folder's name: `server-NAME-TIME`."""
    return re.sub(r"^server-|-\d{4}-\d\d-\d\dT.*$", "", path.parent.name)


def read(path: Path) -> dict[str, int]:
    checks: dict[str, int] = {}
    for check in json.loads(path.read_text("utf-8")):
        problem = PROBLEMS.get(check["status"], 0)
        checks[check["id"]] = max(problem, checks.get(check["id"], 0))
    return checks
