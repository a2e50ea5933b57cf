"""The rules and entry points in docs/reference/threat-table.md."""

from pathlib import Path
from typing import Final

from tests.doors.rules import Door, Rule, rules

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "reference" / "threat-table.md"
_UNTIL: Final = "<!-- Written until here. -->\n"
_HEAD: Final = """## Rules and entry points

<!-- Written by `python -m tests.doors`; change tests/doors, not this section. -->

Each of these rules applies at every entry point of the server: MCP tools, the HTTP API, pages,
webhooks, commands, stores and so on. A rule that tools follow and the HTTP API does not is a
defect. For each rule, "Tested at" lists the entry points where a test in
[tests/doors](../../tests/doors) tries to break the rule. The table lists the other entry points,
and says why they cannot break it.
"""


def document() -> str:
    """Return the page with a new section of rules. The text before and after it does not change."""
    before, heading, rest = DOCUMENT.read_text("utf-8").partition(_HEAD.partition("\n")[0])
    _, until, after = rest.partition(_UNTIL)
    assert heading, "the page has no section of rules"
    assert until, "the section of rules has no heading after it"
    sections = "\n".join([_HEAD, *(_section(rule) for rule in rules())])
    return f"{before}{sections}\n{_UNTIL}{after}"


def _section(rule: Rule) -> str:
    tried = [door for door in Door if not isinstance(rule.cells.get(door, ""), str)]
    reasons: dict[str, list[Door]] = {}
    for door in Door:
        if isinstance(reason := rule.cells.get(door, ""), str):
            reasons.setdefault(reason, []).append(door)
    rows = [f"| {', '.join(doors)} | {reason} |" for reason, doors in reasons.items() if reason]
    return "\n".join(
        [
            f"### {rule.says}",
            "",
            f"Source: {rule.source}. Tested at: {', '.join(tried)}.",
            "",
            "| entry points that cannot break it | why |",
            "|---|---|",
            *rows,
            "",
        ]
    )
