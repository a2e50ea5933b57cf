"""The tables of docs/reference/payment-outcomes.md: each row names an existing test."""

import re
from pathlib import Path

# tests/held and test_after_the_sale.py check the tables below this marker.
END = re.compile(r"<!-- held: begin -->|## Step by step")
PROJECT = Path(__file__).parents[3]
PAGE = PROJECT / "docs/reference/payment-outcomes.md"
LINES = [
    line
    for line in END.split(PAGE.read_text("utf-8"))[0].splitlines()
    if line.startswith("| ") and not line.startswith("| what happened")
]


def test_each_row_of_the_outcome_tables_names_an_existing_test() -> None:
    sources = "".join(path.read_text("utf-8") for path in (PROJECT / "tests").rglob("test_*.py"))
    assert len(LINES) > 20
    for line in LINES:
        names = re.findall(r"`(test_\w+)`", line)
        assert names, line
        assert all(f"def {name}(" in sources for name in names), line


def test_each_row_of_the_outcome_tables_has_all_columns() -> None:
    assert {line.count("|") for line in LINES} == {6}
