"""Time limits of the tests: a hang alone reaches one, however busy the machine is."""

import re
from pathlib import Path

HANG_SECONDS = 300
LIMIT = re.compile(
    r"asyncio\.timeout\((?P<literal>[\d_.]+)\)"
    r"|^(?P<name>PATIENCE_SECONDS|DEADLINE_SECONDS) = (?P<constant>[\d_.]+)"
    r"|(?:httpx2?\.AsyncClient|verify=).*\btimeout=(?P<client>\d[\d_.]*)",
    re.MULTILINE,
)


def test_no_limit_of_a_test_is_one_that_a_slow_machine_could_reach() -> None:
    # finding: T1
    short = [
        f"{path.name}: {found[0]}"
        for path in Path(__file__).parent.rglob("*.py")
        for found in LIMIT.finditer(path.read_text("utf-8"))
        if float(found["literal"] or found["constant"] or found["client"]) < HANG_SECONDS
    ]
    assert short == []
