"""Tests that time limits in tests are long: only a hang reaches one, even on a busy machine."""

import re
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest

HANG_SECONDS = 300
LIMIT = re.compile(
    r"asyncio\.timeout\((?P<literal>[\d_.]+)\)"
    r"|^\w*(?:PATIENCE|DEADLINE|LIMIT)_SECONDS = (?P<constant>[\d_.]+)"
    r"|\btimeout=(?P<argument>\d[\d_.]*)"
    r"|\bwait_for\(.*, (?:timeout=)?(?P<waited>\d[\d_.]*)\)",
    re.MULTILINE,
)
# Durations that are measured, not waited for.
CLOCKS = re.compile(r"\b(?:perf_counter|process_time|thread_time|timeit)\b")
MEASURING = {
    "tests/support/work.py",  # compares with a baseline at the same moment
    "tests/attacks/bounds.py",  # prints a table without a verdict
    "tests/test_limits.py",
}
PROJECT = Path(__file__).parent.parent


def test_no_test_time_limit_is_shorter_than_hang_limit() -> None:
    # finding: T1
    short = [
        f"{path.name}: {found[0]}"
        for path in Path(__file__).parent.rglob("*.py")
        for found in LIMIT.finditer(path.read_text("utf-8"))
        if float(next(filter(None, found.groups()))) < HANG_SECONDS
    ]
    assert short == []


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
async def test_http_clients_use_the_hang_limit_as_timeout(library: Any) -> None:
    # finding: XH10
    async with library.AsyncClient() as client:
        assert client.timeout == library.Timeout(HANG_SECONDS)


def test_tests_do_not_measure_elapsed_time() -> None:
    # finding: XH10
    measuring = {
        str(path.relative_to(PROJECT))
        for path in (PROJECT / "tests").rglob("*.py")
        if CLOCKS.search(path.read_text("utf-8"))
    }
    assert measuring == MEASURING
