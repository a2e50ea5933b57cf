"""docs/reference/doors.md: the table of rules and entry points."""

from pathlib import Path
from typing import Final

from tests.doors.rules import Door, Rule, rules

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "reference" / "doors.md"
_HEAD: Final = """# Rules and entry points

<!-- Written by `python -m tests.doors`; change tests/doors, not this page. -->

Each rule on this page applies at every entry point of the server: MCP tools, the HTTP API, pages,
webhooks, commands, stores and so on. A rule that tools follow and the HTTP API does not is a
defect. For each rule, "Tested at" lists the entry points where a test in
[tests/doors](../../tests/doors) tries to break the rule. The table lists the other entry points,
and says why they cannot break it. [Threats](../explanation/threats.md) says who attacks, and how.
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
            f"Source: {rule.source}. Tested at: {', '.join(tried)}.",
            "",
            "| entry points that cannot break it | why |",
            "|---|---|",
            *rows,
            "",
        ]
    )
