"""docs/reference/doors.md: the table of rules and doors as text."""

from pathlib import Path
from typing import Final

from tests.doors.rules import Door, Rule, rules

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "reference" / "doors.md"
_HEAD: Final = """# Rules and doors

<!-- Written by `python -m tests.doors`; change tests/doors, not this page. -->

A rule of this project holds at every door: a rule that a tool follows and the HTTP API does not is
a defect. This table has each rule and each door. [tests/doors](../../tests/doors) tries to break
the rule at each door that is named as tried. For the other doors the table says why they cannot
break the rule. [Threats](../explanation/threats.md) says who attacks, and how.
"""


def document() -> str:
    """Return the complete page."""
    return "\n".join([_HEAD, *(_section(rule) for rule in rules())])


def _section(rule: Rule) -> str:
    tried = [door for door in Door if not isinstance(rule.cells.get(door, ""), str)]
    reasons: dict[str, list[Door]] = {}
    for door in Door:
        if isinstance(reason := rule.cells.get(door, ""), str):
            reasons.setdefault(reason, []).append(door)
    rows = [f"| {', '.join(doors)} | {reason} |" for reason, doors in reasons.items() if reason]
    return "\n".join(
        [
            f"## {rule.says}",
            "",
            f"Source: {rule.source}. Tried at: {', '.join(tried)}.",
            "",
            "| doors that cannot break it | why |",
            "|---|---|",
            *rows,
            "",
        ]
    )
